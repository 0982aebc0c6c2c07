//! rtnetlink (rtnetlink(7), net/sched/sch_api.c, net/core/rtnetlink.c): the qdiscs of a device, and how large packets
//! it accepts. Reads and changes them; what may be changed is not decided here.

mod dump;
mod message;

use message::{answers, errno_of, ifinfomsg};
pub(crate) use message::{attribute, attributes, messages, tcmsg, u32_at};
use nix::errno::Errno;
use nix::sys::socket::{
    AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, connect, recv, send, setsockopt,
    socket, sockopt,
};
use nix::sys::time::TimeVal;
use std::cell::Cell;
use std::collections::BTreeMap;
use std::os::fd::{AsRawFd, OwnedFd};

/// The kernel answers at once; this bounds the wait for a lock that another process holds.
const PATIENCE_S: i64 = 10;
/// `TC_H_ROOT` in linux/pkt_sched.h.
pub(crate) const ROOT: u32 = 0xffff_ffff;
/// `TC_H_INGRESS`, also the parent of `clsact`.
const INGRESS: u32 = 0xffff_fff1;
/// `sizeof(struct nlmsghdr)`, of `struct tcmsg` and of `struct ifinfomsg`.
const HEADER: usize = 16;
pub(crate) const TCMSG: usize = 20;
const IFINFOMSG: usize = 16;
pub(crate) const TCA_KIND: u16 = 1;
pub(crate) const TCA_OPTIONS: u16 = 2;
/// Statistics; in them `struct gnet_stats_queue` of linux/gen_stats.h.
const TCA_STATS2: u16 = 7;
const TCA_STATS_QUEUE: u16 = 3;
pub(crate) const TCA_STAB: u16 = 8;
/// `IFF_UP` and `IFF_LOWER_UP` of linux/if.h.
const UP: u32 = 0x1;
const LOWER_UP: u32 = 0x1_0000;
const IFLA_IFNAME: u16 = 3;
const IFLA_MTU: u16 = 4;
const IFLA_QDISC: u16 = 6;
const IFLA_MASTER: u16 = 10;
const IFLA_LINKINFO: u16 = 18;
const IFLA_INFO_KIND: u16 = 1;
const IFLA_EXT_MASK: u16 = 29;
/// `RTEXT_FILTER_SKIP_STATS`: leaves out statistics, half of the list.
const SKIP_STATS: u32 = 8;
const IFLA_GSO_MAX_SIZE: u16 = 41;
/// Linux 6.3.
const IFLA_GSO_IPV4_MAX_SIZE: u16 = 63;
const NLA_TYPE_MASK: u16 = 0x3fff;

/// A qdisc as the kernel describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Qdisc {
    /// Its kind, such as `fq_codel`.
    pub kind: String,
    /// Its options, in the format of a message.
    pub options: Vec<u8>,
    /// Where it is: [`ROOT`], or below another.
    pub parent: u32,
    /// Its own handle; 0 if it is the kernel's default.
    pub handle: u32,
    /// Its size table, in the format of a message; empty if it has none.
    pub table: Vec<u8>,
}

impl Qdisc {
    #[cfg(test)]
    pub(crate) fn new(kind: &str, parent: u32, handle: u32) -> Qdisc {
        Qdisc { kind: kind.into(), options: Vec::new(), parent, handle, table: Vec::new() }
    }

    /// Whether somebody chose it; the kernel's own default has no handle.
    pub(crate) fn chosen(&self) -> bool {
        self.handle != 0
    }

    /// Whether it handles arriving packets.
    pub(crate) fn ingress(&self) -> bool {
        self.parent == INGRESS
    }
}

/// The statistics of a qdisc. The counters wrap.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct QdiscStats {
    /// Its kind, such as `fq_codel`.
    pub kind: String,
    pub handle: u32,
    /// Packets in it.
    pub qlen: u32,
    /// Packets that it dropped.
    pub drops: u32,
    /// What this counts depends on the kind: see `qdiscs::SHAPING`.
    pub overlimits: u32,
}

/// A network device as the kernel lists it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Link {
    /// Its interface index.
    pub index: u32,
    pub name: String,
    /// `ARPHRD_ETHER` and the like.
    pub hardware: u16,
    /// The kind of virtual device, such as `tun`; empty for a physical one.
    pub kind: String,
    /// Largest IP packet, bytes.
    pub mtu: u32,
    /// Whether it is up and has a carrier.
    pub carries: bool,
    /// The device that it is a port or slave of, by its index.
    pub master: Option<u32>,
    /// How large packets it accepts; `None` if this kernel does not report it.
    pub sizes: Option<SegmentSizes>,
}

/// How large packets a device accepts from the host's own stack, in bytes of the IP packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SegmentSizes {
    /// `gso_max_size`.
    pub all: u32,
    /// `gso_ipv4_max_size`; `None` on kernels that do not have it.
    pub v4: Option<u32>,
}

/// One of several requests that are carried out together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NetlinkRequest {
    /// `RTM_NEWQDISC` and the like.
    pub kind: u16,
    /// In addition to `NLM_F_REQUEST`.
    pub flags: i32,
    /// `struct tcmsg`.
    pub head: [u8; TCMSG],
    /// Attributes, each padded.
    pub attributes: Vec<u8>,
}

/// What answers requests for lists: the kernel, or a test.
pub(crate) trait Lister {
    /// The messages that are listed in answer to such a request, each without its netlink header.
    ///
    /// # Errors
    /// The kernel's error; `EINTR` if the list kept changing while it was read, in all attempts.
    fn dump(&mut self, kind: u16, head: &[u8]) -> nix::Result<Vec<Vec<u8>>>;
}

thread_local! {
    static LISTS: Cell<u64> = const { Cell::new(0) };
}

/// How many lists this thread has requested from the kernel: a measure of the cost of reading devices and qdiscs that
/// needs no clock.
pub fn lists_requested() -> u64 {
    LISTS.get()
}

/// A socket that is opened at the first request.
#[derive(Default)]
pub(crate) struct OpenedOnDemand(Option<Rtnl>);

impl Lister for OpenedOnDemand {
    fn dump(&mut self, kind: u16, head: &[u8]) -> nix::Result<Vec<Vec<u8>>> {
        let rtnl = match &mut self.0 {
            Some(rtnl) => rtnl,
            none => none.insert(Rtnl::open()?),
        };
        rtnl.dump(kind, head)
    }
}

impl Lister for Rtnl {
    fn dump(&mut self, kind: u16, head: &[u8]) -> nix::Result<Vec<Vec<u8>>> {
        LISTS.set(LISTS.get() + 1);
        dump::whole(&mut Listing { rtnl: self, kind, head })
    }
}

/// A netlink socket.
pub(crate) struct Rtnl {
    socket: OwnedFd,
    sequence: u32,
}

impl Rtnl {
    pub(crate) fn open() -> nix::Result<Rtnl> {
        Ok(Rtnl { socket: connected()?, sequence: 0 })
    }

    /// All qdiscs of a device that the kernel lists.
    pub(crate) fn qdiscs(&mut self, ifindex: u32) -> nix::Result<Vec<Qdisc>> {
        let all = self.dump(libc::RTM_GETQDISC, &tcmsg(ifindex, 0))?;
        Ok(all.iter().filter_map(|body| qdisc_of(body, ifindex)).collect())
    }

    /// All qdiscs of all devices, by the devices' indices.
    pub(crate) fn all_qdiscs(&mut self) -> nix::Result<BTreeMap<u32, Vec<Qdisc>>> {
        self.by_device(qdisc_of)
    }

    /// The statistics of all qdiscs, by the devices' indices.
    pub(crate) fn qdisc_stats(&mut self) -> nix::Result<BTreeMap<u32, Vec<QdiscStats>>> {
        self.by_device(qdisc_stats_of)
    }

    fn by_device<T>(&mut self, of: fn(&[u8], u32) -> Option<T>) -> nix::Result<BTreeMap<u32, Vec<T>>> {
        let mut all: BTreeMap<u32, Vec<T>> = BTreeMap::new();
        for body in self.dump(libc::RTM_GETQDISC, &tcmsg(0, 0))? {
            if let Some((index, found)) = u32_at(&body, 4).and_then(|index| Some((index, of(&body, index)?)))
            {
                all.entry(index).or_default().push(found);
            }
        }
        Ok(all)
    }

    /// All devices of the network namespace.
    pub(crate) fn links(&mut self) -> nix::Result<Vec<Link>> {
        let mut head = ifinfomsg(0).to_vec();
        head.extend(attribute(IFLA_EXT_MASK, &SKIP_STATS.to_ne_bytes()));
        let all = self.dump(libc::RTM_GETLINK, &head)?;
        Ok(all.iter().filter_map(|body| link_of(body)).collect())
    }

    /// Sends all these requests by one system call, within which the kernel carries out each of them
    /// (`netlink_rcv_skb()`, net/netlink/af_netlink.c), even if this process is killed meanwhile.
    ///
    /// # Errors
    /// The index of the first request that the kernel refused, and why; the others are carried out nevertheless.
    /// Without an index nothing was carried out, or the answers were lost.
    pub(crate) fn send_batch(&mut self, requests: &[NetlinkRequest]) -> Result<(), (Option<usize>, Errno)> {
        let whole = |errno| (None, errno);
        let first = self.sequence + 1;
        let mut all = Vec::new();
        for (i, request) in requests.iter().enumerate() {
            // The kernel reports every refusal, and the answer to the last request comes after all others.
            let last = if i + 1 == requests.len() { libc::NLM_F_ACK } else { 0 };
            let flags = libc::NLM_F_REQUEST | last | request.flags;
            all.extend(self.message(request.kind, flags, &request.head, &request.attributes));
        }
        setsockopt(&self.socket, sockopt::SndBufForce, &(all.len() + (64 << 10))).map_err(whole)?;
        setsockopt(&self.socket, sockopt::RcvBufForce, &(4 << 20)).map_err(whole)?;
        send(self.socket.as_raw_fd(), &all, MsgFlags::empty()).map_err(whole)?;
        let mut refused = None;
        loop {
            let buffer = self.receive().map_err(whole)?;
            for (sequence, body) in answers(&buffer) {
                let index = sequence.wrapping_sub(first) as usize;
                if let Err(errno) = errno_of(body) {
                    refused = refused.or(Some((Some(index), errno)));
                }
                if index + 1 == requests.len() {
                    return refused.map_or(Ok(()), Err);
                }
            }
        }
    }

    /// The device's largest IP packet, bytes; `ENODEV` if the device does not exist.
    pub(crate) fn mtu(&mut self, ifindex: u32) -> nix::Result<u32> {
        self.link(ifindex, |body| {
            let all = attributes(body.get(IFINFOMSG..)?);
            all.iter().find(|(k, _)| *k == IFLA_MTU).and_then(|(_, v)| u32_at(v, 0))
        })
    }

    /// The device's name; `ENODEV` if the device does not exist.
    pub(crate) fn name(&mut self, ifindex: u32) -> nix::Result<String> {
        self.link(ifindex, |body| text_of(body, IFLA_IFNAME))
    }

    /// The kind of the device's root qdisc, which costs less than the list of all qdiscs; `ENODEV` if the device does
    /// not exist.
    pub(crate) fn root_kind(&mut self, ifindex: u32) -> nix::Result<String> {
        self.link(ifindex, |body| text_of(body, IFLA_QDISC))
    }

    /// Makes a qdisc of this kind the root, in place of the present one.
    pub(crate) fn replace_root(&mut self, ifindex: u32, kind: &str, options: &[u8]) -> nix::Result<()> {
        let mut name = kind.as_bytes().to_vec();
        name.push(0);
        let mut attributes = attribute(TCA_KIND, &name);
        if !options.is_empty() {
            attributes.extend(attribute(TCA_OPTIONS, options));
        }
        let flags = libc::NLM_F_REQUEST | libc::NLM_F_ACK | libc::NLM_F_CREATE | libc::NLM_F_REPLACE;
        self.ask(libc::RTM_NEWQDISC, flags, &tcmsg(ifindex, ROOT), &attributes)?;
        self.acknowledged()
    }

    /// Deletes the root qdisc: the kernel replaces it by its default.
    pub(crate) fn delete_root(&mut self, ifindex: u32) -> nix::Result<()> {
        let flags = libc::NLM_F_REQUEST | libc::NLM_F_ACK;
        self.ask(libc::RTM_DELQDISC, flags, &tcmsg(ifindex, ROOT), &[])?;
        self.acknowledged()
    }

    /// How large packets a device accepts; `ENODEV` if the device does not exist.
    pub(crate) fn segment_sizes(&mut self, ifindex: u32) -> nix::Result<SegmentSizes> {
        self.link(ifindex, segment_sizes_of)
    }

    fn link<T>(&mut self, ifindex: u32, parse: impl Fn(&[u8]) -> Option<T>) -> nix::Result<T> {
        self.ask(libc::RTM_GETLINK, libc::NLM_F_REQUEST, &ifinfomsg(ifindex), &[])?;
        let buffer = self.receive()?;
        for (kind, body) in messages(&buffer) {
            match kind {
                libc::RTM_NEWLINK => return parse(body).ok_or(Errno::EBADMSG),
                kind if i32::from(kind) == libc::NLMSG_ERROR => errno_of(body)?,
                _ => {}
            }
        }
        Err(Errno::EBADMSG)
    }

    /// Sets how large packets a device accepts.
    pub(crate) fn set_segment_sizes(&mut self, ifindex: u32, sizes: SegmentSizes) -> nix::Result<()> {
        let mut attributes = attribute(IFLA_GSO_MAX_SIZE, &sizes.all.to_ne_bytes());
        if let Some(v4) = sizes.v4 {
            attributes.extend(attribute(IFLA_GSO_IPV4_MAX_SIZE, &v4.to_ne_bytes()));
        }
        let flags = libc::NLM_F_REQUEST | libc::NLM_F_ACK;
        self.ask(libc::RTM_NEWLINK, flags, &ifinfomsg(ifindex), &attributes)?;
        self.acknowledged()
    }

    fn ask(&mut self, kind: u16, flags: i32, head: &[u8], attributes: &[u8]) -> nix::Result<()> {
        let m = self.message(kind, flags, head, attributes);
        send(self.socket.as_raw_fd(), &m, MsgFlags::empty()).map(drop)
    }

    /// A message with the next sequence number.
    fn message(&mut self, kind: u16, flags: i32, head: &[u8], attributes: &[u8]) -> Vec<u8> {
        self.sequence += 1;
        let length = HEADER + head.len() + attributes.len();
        let mut m = Vec::with_capacity(length + 3);
        m.extend((length as u32).to_ne_bytes());
        m.extend(kind.to_ne_bytes());
        m.extend((flags as u16).to_ne_bytes());
        m.extend(self.sequence.to_ne_bytes());
        m.extend([0; 4]);
        m.extend(head);
        m.extend(attributes);
        m.resize(length.next_multiple_of(4), 0);
        m
    }

    fn receive(&self) -> nix::Result<Vec<u8>> {
        // netlink(7): no message of a dump is larger
        let mut buffer = vec![0; 32 << 10];
        let length = loop {
            // With a timeout set, the call is not restarted after a signal (signal(7)).
            match recv(self.socket.as_raw_fd(), &mut buffer, MsgFlags::MSG_TRUNC) {
                Err(Errno::EINTR) => {}
                length => break length?,
            }
        };
        if length > buffer.len() {
            return Err(Errno::EMSGSIZE);
        }
        buffer.truncate(length);
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

/// A socket connected to the kernel.
fn connected() -> nix::Result<OwnedFd> {
    let socket =
        socket(AddressFamily::Netlink, SockType::Raw, SockFlag::SOCK_CLOEXEC, SockProtocol::NetlinkRoute)?;
    setsockopt(&socket, sockopt::ReceiveTimeout, &TimeVal::new(PATIENCE_S, 0))?;
    connect(socket.as_raw_fd(), &NetlinkAddr::new(0, 0))?;
    Ok(socket)
}

/// A request for a list, and the socket for it.
struct Listing<'a> {
    rtnl: &'a mut Rtnl,
    kind: u16,
    head: &'a [u8],
}

impl dump::Wire for Listing<'_> {
    fn reports_changes(&self) -> bool {
        self.kind == libc::RTM_GETLINK
    }

    fn ask(&mut self) -> nix::Result<u32> {
        self.rtnl.ask(self.kind, libc::NLM_F_REQUEST | libc::NLM_F_DUMP, self.head, &[])?;
        Ok(self.rtnl.sequence)
    }

    fn receive(&mut self) -> nix::Result<Vec<u8>> {
        self.rtnl.receive()
    }

    fn renew(&mut self) -> nix::Result<()> {
        self.rtnl.socket = connected()?;
        Ok(())
    }
}

/// The qdisc that a message is about, if it is one of this device.
fn qdisc_of(body: &[u8], ifindex: u32) -> Option<Qdisc> {
    if u32_at(body, 4)? != ifindex {
        return None;
    }
    let all = attributes(body.get(TCMSG..)?);
    let of = |wanted| all.iter().find(|(k, _)| *k == wanted).map(|(_, v)| *v);
    let kind = of(TCA_KIND)?;
    Some(Qdisc {
        kind: String::from_utf8_lossy(kind.strip_suffix(&[0]).unwrap_or(kind)).into_owned(),
        options: of(TCA_OPTIONS).unwrap_or_default().to_vec(),
        parent: u32_at(body, 12)?,
        handle: u32_at(body, 8)?,
        table: of(TCA_STAB).unwrap_or_default().to_vec(),
    })
}

/// The statistics of the qdisc that a message is about, if it is one of this device.
fn qdisc_stats_of(body: &[u8], ifindex: u32) -> Option<QdiscStats> {
    let Qdisc { kind, handle, .. } = qdisc_of(body, ifindex)?;
    let of = |all: &[(u16, &[u8])], wanted| all.iter().find(|(k, _)| *k == wanted).map(|(_, v)| v.to_vec());
    let stats = of(&attributes(body.get(TCMSG..)?), TCA_STATS2)?;
    let queue = of(&attributes(&stats), TCA_STATS_QUEUE)?;
    // qlen, backlog, drops, requeues, overlimits
    let field = |n: usize| u32_at(&queue, 4 * n);
    Some(QdiscStats { kind, handle, qlen: field(0)?, drops: field(2)?, overlimits: field(4)? })
}

/// The device that a message is about.
pub(crate) fn link_of(body: &[u8]) -> Option<Link> {
    let all = attributes(body.get(IFINFOMSG..)?);
    let of = |wanted| all.iter().find(|(k, _)| *k == wanted).map(|(_, v)| *v);
    let text = |b: &[u8]| String::from_utf8_lossy(b.strip_suffix(&[0]).unwrap_or(b)).into_owned();
    let info = of(IFLA_LINKINFO).map(attributes).unwrap_or_default();
    Some(Link {
        index: u32_at(body, 4)?,
        name: text(of(IFLA_IFNAME)?),
        hardware: u16::from_ne_bytes(body.get(2..4)?.try_into().ok()?),
        kind: info.iter().find(|(k, _)| *k == IFLA_INFO_KIND).map(|(_, v)| text(v)).unwrap_or_default(),
        mtu: u32_at(of(IFLA_MTU)?, 0)?,
        carries: u32_at(body, 8)? & (UP | LOWER_UP) == UP | LOWER_UP,
        master: of(IFLA_MASTER).and_then(|v| u32_at(v, 0)),
        sizes: segment_sizes_of(body),
    })
}

/// A text attribute of the device that a message is about.
fn text_of(body: &[u8], wanted: u16) -> Option<String> {
    let all = attributes(body.get(IFINFOMSG..)?);
    let text = all.iter().find(|(k, _)| *k == wanted).map(|(_, v)| *v)?;
    Some(String::from_utf8_lossy(text.strip_suffix(&[0]).unwrap_or(text)).into_owned())
}

fn segment_sizes_of(body: &[u8]) -> Option<SegmentSizes> {
    let all = attributes(body.get(IFINFOMSG..)?);
    let of = |wanted| all.iter().find(|(k, _)| *k == wanted).and_then(|(_, v)| u32_at(v, 0));
    Some(SegmentSizes { all: of(IFLA_GSO_MAX_SIZE)?, v4: of(IFLA_GSO_IPV4_MAX_SIZE) })
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
        let q = qdisc_of(read[0].1, 3).unwrap();
        assert_eq!((q.kind.as_str(), &q.options[..], q.chosen()), ("fq", &[1, 2, 3, 4, 5][..], true));
        assert_eq!((q.parent, q.ingress()), (ROOT, false));
        assert_eq!(qdisc_of(read[0].1, 4), None);
        assert_eq!(qdisc_stats_of(read[0].1, 3), None);
        let numbers = [7u32, 900, 8, 0, 9].map(u32::to_ne_bytes).concat();
        body.extend(attribute(TCA_STATS2 | 0x8000, &attribute(TCA_STATS_QUEUE, &numbers)));
        let stats = QdiscStats { kind: "fq".into(), handle: 0x8001_0000, qlen: 7, drops: 8, overlimits: 9 };
        assert_eq!((qdisc_stats_of(&body, 3), qdisc_stats_of(&body, 4)), (Some(stats), None));
        // A datagram that is cut off anywhere returns no message.
        for n in 0..datagram.len() {
            assert_eq!(messages(&datagram[..n]).len(), 0);
        }
        assert_eq!(errno_of(&(-1i32).to_ne_bytes()), Err(Errno::EPERM));
    }

    #[test]
    fn sizes_are_read_as_they_are_written() {
        let mut body = ifinfomsg(3).to_vec();
        body.extend(attribute(IFLA_GSO_MAX_SIZE, &65_536u32.to_ne_bytes()));
        assert_eq!(segment_sizes_of(&body), Some(SegmentSizes { all: 65_536, v4: None }));
        body.extend(attribute(IFLA_GSO_IPV4_MAX_SIZE, &4096u32.to_ne_bytes()));
        assert_eq!(segment_sizes_of(&body), Some(SegmentSizes { all: 65_536, v4: Some(4096) }));
        for n in 0..IFINFOMSG + 8 {
            assert_eq!(segment_sizes_of(&body[..n]), None);
        }
    }

    /// On this machine: loopback is interface 1 and has a root qdisc that nobody chose.
    #[test]
    fn the_kernel_answers() {
        let mut rtnl = Rtnl::open().unwrap();
        let all = rtnl.qdiscs(1).unwrap();
        assert!(all.iter().all(|q| !q.kind.is_empty()));
        assert!(rtnl.segment_sizes(1).unwrap().all > 1000);
        assert_eq!(rtnl.segment_sizes(0x7fff_ffff), Err(Errno::ENODEV));
        assert_eq!(rtnl.all_qdiscs().unwrap().get(&1), (!all.is_empty()).then_some(&all));
        assert_eq!(rtnl.qdisc_stats().unwrap().get(&1).map(Vec::len), (!all.is_empty()).then_some(all.len()));
        let links = rtnl.links().unwrap();
        let lo = links.iter().find(|link| link.index == 1).unwrap();
        assert_eq!((lo.name.as_str(), lo.hardware, lo.kind.as_str(), lo.master), ("lo", 772, "", None));
        assert_eq!(rtnl.name(1).as_deref(), Ok("lo"));
        assert!(
            matches!(rtnl.root_kind(1).as_deref(), Ok("noqueue") | Ok("noop")),
            "{:?}",
            rtnl.root_kind(1)
        );
        assert_eq!(rtnl.name(0x7fff_ffff), Err(Errno::ENODEV));
        assert_eq!((lo.sizes, lo.mtu), (rtnl.segment_sizes(1).ok(), rtnl.mtu(1).unwrap()));
    }
}
