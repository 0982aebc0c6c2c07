//! The network namespace of this thread, as the kernel half sees it.
use crate::Error;
use nix::errno::Errno;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, socket};
use std::os::fd::AsRawFd;

/// asm-generic/socket.h, Linux 5.14
const SO_NETNS_COOKIE: libc::c_int = 71;

/// A number that identifies the namespace and is not reused until the next boot (`SO_NETNS_COOKIE`, socket(7)).
pub(crate) fn cookie() -> Result<u64, Error> {
    let error =
        |e: Errno| Error::Kernel { doing: "tell the network namespace".to_string(), reason: e.desc().into() };
    let fd = socket(AddressFamily::Inet, SockType::Datagram, SockFlag::SOCK_CLOEXEC, None).map_err(error)?;
    let mut cookie = 0u64;
    let mut length = size_of::<u64>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `length` bytes to `cookie`, which has that many.
    let failed = unsafe {
        libc::getsockopt(
            fd.as_raw_fd(),
            libc::SOL_SOCKET,
            SO_NETNS_COOKIE,
            std::ptr::from_mut(&mut cookie).cast(),
            &mut length,
        )
    };
    if failed != 0 {
        return Err(error(Errno::last()));
    }
    Ok(cookie)
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_kernel_answers() {
        assert!(super::cookie().unwrap() > 0);
    }
}
