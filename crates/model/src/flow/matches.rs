//! The meaning of a filter: the reference that the kernel's filter is tested against.

use super::{End, Flow, Net, Proto};
use std::net::IpAddr;

/// The fields of a packet that a filter compares.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Headers {
    /// Transport protocol, `None` if no filter can name it.
    pub proto: Option<Proto>,
    /// Source address.
    pub src: IpAddr,
    /// Destination address.
    pub dst: IpAddr,
    /// Source port, 0 if there is none.
    pub sport: u16,
    /// Destination port, 0 if there is none.
    pub dport: u16,
}

impl Headers {
    /// The headers of a packet that goes the other way.
    pub fn reversed(&self) -> Headers {
        Headers { src: self.dst, dst: self.src, sport: self.dport, dport: self.sport, ..*self }
    }
}

impl Net {
    /// Whether `addr` lies in the prefix.
    pub fn contains(&self, addr: IpAddr) -> bool {
        match (self.addr, addr) {
            (IpAddr::V4(net), IpAddr::V4(a)) => {
                let mask = u32::MAX.checked_shl(32 - u32::from(self.prefix.min(32))).unwrap_or(0);
                (u32::from(net) ^ u32::from(a)) & mask == 0
            }
            (IpAddr::V6(net), IpAddr::V6(a)) => {
                let mask = u128::MAX.checked_shl(128 - u32::from(self.prefix.min(128))).unwrap_or(0);
                (u128::from(net) ^ u128::from(a)) & mask == 0
            }
            _ => false,
        }
    }
}

impl Flow {
    /// Whether the filter selects a packet. `request` says that the packet travels in the direction of requests; for a
    /// packet in the direction of responses, source and destination are exchanged first. A condition on [`End::Any`]
    /// holds if either end meets it.
    pub fn matches(&self, packet: &Headers, request: bool) -> bool {
        let h = if request { *packet } else { packet.reversed() };
        let ends = |end: End, src: bool, dst: bool| match end {
            End::Any => src || dst,
            End::Src => src,
            End::Dst => dst,
        };
        let version = if h.src.is_ipv4() { 4 } else { 6 };
        let ported = matches!(h.proto, Some(Proto::Udp | Proto::Tcp));
        self.version.is_none_or(|v| v == version)
            && self.proto.is_none_or(|p| h.proto == Some(p))
            && self.nets.iter().all(|n| ends(n.end, n.contains(h.src), n.contains(h.dst)))
            && self.ports.iter().all(|p| ported && ends(p.end, p.port == h.sport, p.port == h.dport))
    }
}
