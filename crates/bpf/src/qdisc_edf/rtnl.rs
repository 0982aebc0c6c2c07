//! Root qdiscs by rtnetlink (rtnetlink(7), net/sched/sch_api.c): asks for one, sets one, deletes one.
//!
//! A qdisc that the operator chose is put back as the kernel described it: most kinds take the options that they
//! report. What classes and filters it had could not be put back, so such a qdisc is not replaced at all.
use crate::Error;
use nix::errno::Errno;
use nix::sys::socket::{
    AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, recv, send, setsockopt, socket,
    sockopt,
};
use nix::sys::time::TimeVal;
use std::os::fd::{AsRawFd, OwnedFd};

/// The kernel answers at once; this bounds a wait for a lock that somebody else holds.
const PATIENCE_S: i64 = 10;
/// `TC_H_ROOT` in linux/pkt_sched.h.
const ROOT: u32 = 0xffff_ffff;
/// `sizeof(struct nlmsghdr)` and of `struct tcmsg`.
const HEADER: usize = 16;
const TCMSG: usize = 20;
const TCA_KIND: u16 = 1;
const TCA_OPTIONS: u16 = 2;
const NLA_TYPE_MASK: u16 = 0x3fff;
/// Kinds that hold classes or other qdiscs, whose inner life the root's options do not tell.
const CLASSFUL: [&str; 13] =
    ["htb", "hfsc", "prio", "drr", "qfq", "ets", "cbs", "mqprio", "taprio", "multiq", "red", "tbf", "netem"];

/// A root qdisc as the kernel describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Qdisc {
    /// Its kind, such as `fq_codel`.
    pub kind: String,
    /// Its options, as they go into a message.
    pub options: Vec<u8>,
    handle: u32,
}

impl Qdisc {
    /// Whether somebody chose it; the kernel's own default has no handle.
    pub(super) fn chosen(&self) -> bool {
        self.handle != 0
    }

    /// Why it could not be put back, if so.
    pub(super) fn irreplaceable(&self) -> Option<String> {
        let kind = self.kind.escape_debug();
        if self.kind == super::KIND {
            return Some(format!(
                "it has a {kind} of another process; `tc qdisc del dev … root` removes that"
            ));
        }
        (self.chosen() && (CLASSFUL.contains(&self.kind.as_str()) || self.kind.starts_with("bpf_"))).then(|| {
            format!("its root qdisc {kind} may hold classes, qdiscs or filters, which could not be put back; remove it first")
        })
    }
}

/// A netlink socket.
pub(super) struct Rtnl {
    socket: OwnedFd,
    sequence: u32,
}

fn error(doing: String, e: Errno) -> Error {
    match e {
        Errno::EPERM => Error::Kernel { doing, reason: "not permitted: it needs CAP_NET_ADMIN".into() },
        e => Error::Kernel { doing, reason: e.desc().into() },
    }
}

/// A number that names the network namespace of this thread, as the kernel half sees it (`SO_NETNS_COOKIE`,
/// socket(7)).
pub(super) fn netns_cookie() -> Result<u64, Error> {
    let doing = || "tell the network namespace".to_string();
    let fd = socket(AddressFamily::Inet, SockType::Datagram, SockFlag::SOCK_CLOEXEC, None)
        .map_err(|e| error(doing(), e))?;
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
        return Err(error(doing(), Errno::last()));
    }
    Ok(cookie)
}

/// asm-generic/socket.h, Linux 5.14
const SO_NETNS_COOKIE: libc::c_int = 71;

impl Rtnl {
    pub(super) fn open() -> Result<Rtnl, Error> {
        let doing = || "open a netlink socket".to_string();
        let socket =
            socket(AddressFamily::Netlink, SockType::Raw, SockFlag::SOCK_CLOEXEC, SockProtocol::NetlinkRoute)
                .map_err(|e| error(doing(), e))?;
        setsockopt(&socket, sockopt::ReceiveTimeout, &TimeVal::new(PATIENCE_S, 0))
            .map_err(|e| error(doing(), e))?;
        nix::sys::socket::connect(socket.as_raw_fd(), &NetlinkAddr::new(0, 0))
            .map_err(|e| error(doing(), e))?;
        Ok(Rtnl { socket, sequence: 0 })
    }

    /// The root qdisc of an interface; `None` if it has none that the kernel lists.
    pub(super) fn root(&mut self, ifindex: u32) -> Result<Option<Qdisc>, Error> {
        let doing = || format!("ask for the root qdisc of interface {ifindex}");
        let flags = libc::NLM_F_REQUEST | libc::NLM_F_DUMP;
        self.ask(libc::RTM_GETQDISC, flags, ifindex, 0, &[]).map_err(|e| error(doing(), e))?;
        let mut found = None;
        loop {
            let buffer = self.receive().map_err(|e| error(doing(), e))?;
            let mut ended = false;
            for (kind, body) in messages(&buffer) {
                match i32::from(kind) {
                    libc::NLMSG_DONE => ended = true,
                    libc::NLMSG_ERROR => {
                        errno_of(body).map_err(|e| error(doing(), e))?;
                        ended = true;
                    }
                    _ => found = found.or_else(|| root_of(body, ifindex)),
                }
            }
            if ended {
                return Ok(found);
            }
        }
    }

    /// Makes a qdisc of this kind the root, whatever is there.
    pub(super) fn replace_root(&mut self, ifindex: u32, kind: &str, options: &[u8]) -> Result<(), Error> {
        let doing = || format!("make {} the root qdisc of interface {ifindex}", kind.escape_debug());
        let mut name = kind.as_bytes().to_vec();
        name.push(0);
        let mut attributes = attribute(TCA_KIND, &name);
        if !options.is_empty() {
            attributes.extend(attribute(TCA_OPTIONS, options));
        }
        let flags = libc::NLM_F_REQUEST | libc::NLM_F_ACK | libc::NLM_F_CREATE | libc::NLM_F_REPLACE;
        self.ask(libc::RTM_NEWQDISC, flags, ifindex, ROOT, &attributes)
            .and_then(|()| self.acknowledged())
            .map_err(|e| error(doing(), e))
    }

    /// Deletes the root qdisc: the kernel puts its default there.
    pub(super) fn delete_root(&mut self, ifindex: u32) -> Result<(), Error> {
        let flags = libc::NLM_F_REQUEST | libc::NLM_F_ACK;
        self.ask(libc::RTM_DELQDISC, flags, ifindex, ROOT, &[])
            .and_then(|()| self.acknowledged())
            .map_err(|e| error(format!("delete the root qdisc of interface {ifindex}"), e))
    }

    fn ask(
        &mut self,
        kind: u16,
        flags: i32,
        ifindex: u32,
        parent: u32,
        attributes: &[u8],
    ) -> nix::Result<()> {
        self.sequence += 1;
        let length = HEADER + TCMSG + attributes.len();
        let mut m = Vec::with_capacity(length);
        m.extend((length as u32).to_ne_bytes());
        m.extend(kind.to_ne_bytes());
        m.extend((flags as u16).to_ne_bytes());
        m.extend(self.sequence.to_ne_bytes());
        m.extend([0; 4]);
        // struct tcmsg: family and padding, ifindex, handle, parent, info
        m.extend([0; 4]);
        m.extend(ifindex.to_ne_bytes());
        m.extend([0; 4]);
        m.extend(parent.to_ne_bytes());
        m.extend([0; 4]);
        m.extend(attributes);
        send(self.socket.as_raw_fd(), &m, MsgFlags::empty()).map(drop)
    }

    fn receive(&self) -> nix::Result<Vec<u8>> {
        // netlink(7): no message of a dump is larger
        let mut buffer = vec![0; 32 << 10];
        let n = recv(self.socket.as_raw_fd(), &mut buffer, MsgFlags::empty())?;
        buffer.truncate(n);
        Ok(buffer)
    }

    fn acknowledged(&self) -> nix::Result<()> {
        loop {
            let buffer = self.receive()?;
            for (kind, body) in messages(&buffer) {
                if i32::from(kind) == libc::NLMSG_ERROR {
                    return errno_of(body);
                }
            }
        }
    }
}

/// An attribute with its header, padded.
fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
    let mut a = Vec::with_capacity(value.len() + 8);
    a.extend((value.len() as u16 + 4).to_ne_bytes());
    a.extend(kind.to_ne_bytes());
    a.extend(value);
    a.resize(a.len().next_multiple_of(4), 0);
    a
}

fn u16_at(b: &[u8], at: usize) -> Option<u16> {
    b.get(at..at + 2)?.try_into().ok().map(u16::from_ne_bytes)
}

fn u32_at(b: &[u8], at: usize) -> Option<u32> {
    b.get(at..at + 4)?.try_into().ok().map(u32::from_ne_bytes)
}

/// Type and body of each message of a datagram.
fn messages(mut rest: &[u8]) -> Vec<(u16, &[u8])> {
    let mut all = Vec::new();
    while let (Some(length), Some(kind)) = (u32_at(rest, 0), u16_at(rest, 4)) {
        let Some(body) = rest.get(HEADER..length as usize) else { break };
        all.push((kind, body));
        rest = rest.get((length as usize).next_multiple_of(4)..).unwrap_or_default();
    }
    all
}

/// Type and value of each attribute.
fn attributes(mut rest: &[u8]) -> Vec<(u16, &[u8])> {
    let mut all = Vec::new();
    while let (Some(length), Some(kind)) = (u16_at(rest, 0), u16_at(rest, 2)) {
        let Some(value) = rest.get(4..usize::from(length)) else { break };
        all.push((kind & NLA_TYPE_MASK, value));
        rest = rest.get(usize::from(length).next_multiple_of(4)..).unwrap_or_default();
    }
    all
}

/// The body of an NLMSG_ERROR: 0 is an acknowledgement.
fn errno_of(body: &[u8]) -> nix::Result<()> {
    match u32_at(body, 0).map(|e| e as i32) {
        Some(0) => Ok(()),
        Some(e) => Err(Errno::from_raw(-e)),
        None => Err(Errno::EBADMSG),
    }
}

/// The qdisc that a message is about, if it is the root of this interface.
fn root_of(body: &[u8], ifindex: u32) -> Option<Qdisc> {
    if u32_at(body, 4)? != ifindex || u32_at(body, 12)? != ROOT {
        return None;
    }
    let of = |wanted| attributes(&body[TCMSG..]).into_iter().find(|(k, _)| *k == wanted).map(|(_, v)| v);
    let kind = of(TCA_KIND)?;
    Some(Qdisc {
        kind: String::from_utf8_lossy(kind.strip_suffix(&[0]).unwrap_or(kind)).into_owned(),
        options: of(TCA_OPTIONS).unwrap_or_default().to_vec(),
        handle: u32_at(body, 8)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_read_as_they_are_written() {
        let mut body = vec![0; 4];
        body.extend(3u32.to_ne_bytes());
        body.extend(0x8001_0000_u32.to_ne_bytes());
        body.extend(ROOT.to_ne_bytes());
        body.extend([0; 4]);
        body.extend(attribute(TCA_KIND, b"fq\0"));
        body.extend(attribute(TCA_OPTIONS | 0x8000, &[1, 2, 3, 4, 5]));
        let mut datagram = ((HEADER + body.len()) as u32).to_ne_bytes().to_vec();
        datagram.extend(libc::RTM_NEWQDISC.to_ne_bytes());
        datagram.extend([0; 10]);
        datagram.extend(&body);
        let read = messages(&datagram);
        assert_eq!(read.len(), 1);
        let q = root_of(read[0].1, 3).unwrap();
        assert_eq!((q.kind.as_str(), &q.options[..], q.chosen()), ("fq", &[1, 2, 3, 4, 5][..], true));
        assert_eq!(root_of(read[0].1, 4), None);
        // Cut off anywhere, nothing is invented.
        for n in 0..datagram.len() {
            assert_eq!(messages(&datagram[..n]).len(), 0);
        }
        assert_eq!(errno_of(&(-1i32).to_ne_bytes()), Err(Errno::EPERM));
    }

    #[test]
    fn qdiscs_with_an_inner_life_are_not_replaced() {
        let q = |kind: &str, handle| Qdisc { kind: kind.into(), options: Vec::new(), handle };
        assert_eq!(q("fq_codel", 0).irreplaceable(), None);
        assert_eq!(q("pfifo", 0x8001_0000).irreplaceable(), None);
        assert!(q("htb", 0x1_0000).irreplaceable().unwrap().contains("classes"));
        assert!(q(super::super::KIND, 0).irreplaceable().is_some());
    }

    /// Of this machine: loopback is interface 1 and has a root qdisc that nobody chose.
    #[test]
    fn the_kernel_answers() {
        let root = Rtnl::open().unwrap().root(1).unwrap();
        assert!(root.is_none_or(|q| !q.kind.is_empty()));
        assert!(netns_cookie().unwrap() > 0);
    }
}
