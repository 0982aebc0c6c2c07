//! How rtnetlink's messages are made of bytes (netlink(7), include/uapi/linux/netlink.h), all in the machine's own order.

use super::{HEADER, IFINFOMSG, NLA_TYPE_MASK, TCMSG};
use nix::errno::Errno;

/// Sequence number and body of each answer to a request.
pub(crate) fn answers(mut rest: &[u8]) -> Vec<(u32, &[u8])> {
    let mut all = Vec::new();
    while let (Some(length), Some(kind), Some(sequence)) = (u32_at(rest, 0), u16_at(rest, 4), u32_at(rest, 8))
    {
        let Some(body) = rest.get(HEADER..length as usize) else { break };
        if i32::from(kind) == libc::NLMSG_ERROR {
            all.push((sequence, body));
        }
        rest = rest.get((length as usize).next_multiple_of(4)..).unwrap_or_default();
    }
    all
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

/// Type and body of each message of a datagram.
pub(crate) fn messages(mut rest: &[u8]) -> Vec<(u16, &[u8])> {
    let mut all = Vec::new();
    while let (Some(length), Some(kind)) = (u32_at(rest, 0), u16_at(rest, 4)) {
        let Some(body) = rest.get(HEADER..length as usize) else { break };
        all.push((kind, body));
        rest = rest.get((length as usize).next_multiple_of(4)..).unwrap_or_default();
    }
    all
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

/// The body of an NLMSG_ERROR: 0 is an acknowledgement.
pub(crate) fn errno_of(body: &[u8]) -> nix::Result<()> {
    match u32_at(body, 0).map(|e| e as i32) {
        Some(0) => Ok(()),
        Some(e) => Err(Errno::from_raw(-e)),
        None => Err(Errno::EBADMSG),
    }
}
