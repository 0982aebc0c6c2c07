//! The byte format of rtnetlink messages (netlink(7), include/uapi/linux/netlink.h), in native byte order.

use super::{HEADER, IFINFOMSG, NLA_TYPE_MASK, TCMSG};
use nix::errno::Errno;

/// `NLM_F_DUMP_INTR`: the listed objects have changed since the list was begun.
pub(crate) const DUMP_INTR: u16 = libc::NLM_F_DUMP_INTR as u16;

/// Sequence number and body of each answer to a request.
pub(crate) fn answers(datagram: &[u8]) -> Vec<(u32, &[u8])> {
    let answers = each(datagram).into_iter().filter(|m| i32::from(m.kind) == libc::NLMSG_ERROR);
    answers.map(|m| (m.sequence, m.body)).collect()
}

/// `struct tcmsg`: family and padding, ifindex, handle, parent, info.
pub(crate) fn tcmsg(ifindex: u32, parent: u32) -> [u8; TCMSG] {
    let mut m = [0; TCMSG];
    m[4..8].copy_from_slice(&ifindex.to_ne_bytes());
    m[12..16].copy_from_slice(&parent.to_ne_bytes());
    m
}

/// `struct ifinfomsg`: family, type, index, flags, change.
pub(crate) fn ifinfomsg(ifindex: u32) -> [u8; IFINFOMSG] {
    let mut m = [0; IFINFOMSG];
    m[4..8].copy_from_slice(&ifindex.to_ne_bytes());
    m
}

/// An attribute with its header, padded.
pub(crate) fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
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

pub(crate) fn u32_at(b: &[u8], at: usize) -> Option<u32> {
    b.get(at..at + 4)?.try_into().ok().map(u32::from_ne_bytes)
}

/// A message of a datagram.
pub(crate) struct Message<'a> {
    /// `NLMSG_DONE`, `RTM_NEWQDISC` and the like.
    pub kind: u16,
    /// `NLM_F_MULTI`, [`DUMP_INTR`] and the like.
    pub flags: u16,
    /// The sequence number of the request that this message answers.
    pub sequence: u32,
    pub body: &'a [u8],
}

/// Each message of a datagram.
pub(crate) fn each(mut rest: &[u8]) -> Vec<Message<'_>> {
    let mut all = Vec::new();
    while let (Some(length), Some(kind), Some(flags), Some(sequence)) =
        (u32_at(rest, 0), u16_at(rest, 4), u16_at(rest, 6), u32_at(rest, 8))
    {
        let Some(body) = rest.get(HEADER..length as usize) else { break };
        all.push(Message { kind, flags, sequence, body });
        rest = rest.get((length as usize).next_multiple_of(4)..).unwrap_or_default();
    }
    all
}

/// Type and body of each message of a datagram.
pub(crate) fn messages(datagram: &[u8]) -> Vec<(u16, &[u8])> {
    each(datagram).into_iter().map(|m| (m.kind, m.body)).collect()
}

/// Type and value of each attribute.
pub(crate) fn attributes(mut rest: &[u8]) -> Vec<(u16, &[u8])> {
    let mut all = Vec::new();
    while let (Some(length), Some(kind)) = (u16_at(rest, 0), u16_at(rest, 2)) {
        let Some(value) = rest.get(4..usize::from(length)) else { break };
        all.push((kind & NLA_TYPE_MASK, value));
        rest = rest.get(usize::from(length).next_multiple_of(4)..).unwrap_or_default();
    }
    all
}

/// The error in the body of an NLMSG_ERROR; 0 is an acknowledgement.
pub(crate) fn errno_of(body: &[u8]) -> nix::Result<()> {
    match u32_at(body, 0).map(|e| e as i32) {
        Some(0) => Ok(()),
        Some(e) => Err(Errno::from_raw(-e)),
        None => Err(Errno::EBADMSG),
    }
}
