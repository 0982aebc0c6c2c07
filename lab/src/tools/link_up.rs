//! Sets the links of a nested guest up, in spite of a fault of nested virtualisation by translation.
//!
//! The first access of a guest to a page of a device's registers is emulated by KVM in the lab host. If the guest has
//! handled an exception (a page fault, say) since it last left guest mode, KVM refuses that and QEMU stops the guest for
//! good: "KVM internal error. Suberror: 3". The reason is that QEMU's `helper_vmrun` and `do_vmexit`
//! (target/i386/tcg/system/svm_helper.c) leave the *type* of the last exception in EXITINTINFO, correctly without the
//! valid bit, and that KVM's `svm_check_emulate_instruction` (arch/x86/kvm/svm/svm.c, Linux 6.14) tests the type and not
//! the valid bit. Accesses after the first one take another path, which tries again.
//!
//! When a link of virtio-net is set up, its driver writes to the page by which it notifies the device, mostly for the
//! first time, in the context of a process that has just had page faults. So about one boot in ten ended there. Here an
//! instruction that always leaves guest mode precedes the request.

use std::{io, os::fd::AsRawFd};

use nix::sys::socket::{AddressFamily, SockFlag, SockType, socket};

use crate::error::{Doing, Result};

/// Sets the interface of this name up.
///
/// # Errors
/// If there is none, or without root.
pub fn run(name: &str) -> Result<()> {
    let doing = || format!("set the link {name} up");
    let socket =
        socket(AddressFamily::Inet, SockType::Datagram, SockFlag::SOCK_CLOEXEC, None).doing(doing)?;
    // SAFETY: an `ifreq` of zeros is valid: an empty name and no flags.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    // The last byte stays 0, which ends the name; the kernel finds no interface with a name that was cut.
    let room = request.ifr_name.len() - 1;
    for (to, from) in request.ifr_name[..room].iter_mut().zip(name.bytes()) {
        *to = from as libc::c_char;
    }
    // Both requests are made at the same place in the code, so that its pages are in memory at the second one.
    for (number, add) in [(libc::SIOCGIFFLAGS, 0), (libc::SIOCSIFFLAGS, libc::IFF_UP)] {
        // SAFETY: the flags are the part of the union that the first request writes and the second one reads.
        unsafe { request.ifr_ifru.ifru_flags |= add as libc::c_short };
        leave_guest_mode();
        // SAFETY: `request` is an `ifreq` with a name that ends with 0, which is what both requests take.
        if unsafe { libc::ioctl(socket.as_raw_fd(), number, &raw mut request) } != 0 {
            return Err(io::Error::last_os_error()).doing(doing);
        }
    }
    Ok(())
}

/// KVM always intercepts CPUID.
#[inline(always)]
fn leave_guest_mode() {
    #[cfg(target_arch = "x86_64")]
    #[allow(unused_unsafe, reason = "newer compilers take it for safe")]
    // SAFETY: every x86-64 processor has the instruction.
    let _ = unsafe { core::arch::x86_64::__cpuid(0) };
}
