//! What a trace watches: the flow filter, the direction and how requests are matched.
//!
//! The filter language is a subset of pcap's: conditions that all must hold, joined by `and` or written side by side.
//!
//! ```text
//! flow = [ term { ["and"] term } ]
//! term = "ip" | "ip6"
//!      | "udp" | "tcp" | "icmp"                    icmp is ICMP and ICMPv6
//!      | ["src" | "dst"] "host" ADDRESS
//!      | ["src" | "dst"] "net" ADDRESS "/" LENGTH
//!      | ["src" | "dst"] "port" NUMBER
//! ```
//!
//! `src` and `dst` refer to the *request to a guest*: `dst port 53` selects requests to a guest that is a DNS server, and their
//! responses; those that a guest sends pass `port 53`. [`Flow::parse`]
//! turns text into a [`Flow`]; [`Flow::matches`] defines what a flow selects.

mod matches;
mod matching;
mod parse;

pub use matches::Headers;
pub use matching::{Key, Matching, MatchingError};
pub use parse::FlowError;
pub use parse::{bits, masked};

use serde::{Deserialize, Serialize};
use std::net::IpAddr;

/// Transport protocol of a filter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Proto {
    /// UDP.
    Udp,
    /// TCP.
    Tcp,
    /// ICMP or ICMPv6.
    Icmp,
}

/// Which end of a *request* a condition refers to; for a response the ends are exchanged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum End {
    /// Either end.
    Any,
    /// The requester's.
    Src,
    /// The responder's.
    Dst,
}

/// An address prefix of an end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Net {
    /// Which end.
    pub end: End,
    /// The address; its host bits are 0.
    pub addr: IpAddr,
    /// Prefix length, bits.
    pub prefix: u8,
}

impl Net {
    /// Address and mask as 32-bit words in network order, as in a packet; IPv4 is the first word. A prefix that is longer
    /// than the address counts as the whole address.
    pub fn words(&self) -> ([u32; 4], [u32; 4]) {
        let (address, width) = match self.addr {
            IpAddr::V4(a) => (u128::from(a.to_bits()) << 96, 32),
            IpAddr::V6(a) => (a.to_bits(), 128),
        };
        let mask = u128::MAX.checked_shl(128 - u32::from(self.prefix.min(width))).unwrap_or(0);
        let words = |n: u128| [96, 64, 32, 0].map(|shift| ((n >> shift) as u32).to_be());
        (words(address & mask), words(mask))
    }
}

/// A port of an end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Port {
    /// Which end.
    pub end: End,
    /// Port number, 1 to 65535.
    pub port: u16,
}

/// Conditions that all must hold, evaluated in the kernel. The default selects everything.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Flow {
    /// IP version, 4 or 6.
    pub version: Option<u8>,
    /// Transport protocol.
    pub proto: Option<Proto>,
    /// At most [`Flow::MAX_NETS`].
    pub nets: Vec<Net>,
    /// At most [`Flow::MAX_PORTS`].
    pub ports: Vec<Port>,
}

impl Flow {
    /// The greatest number of address conditions.
    pub const MAX_NETS: usize = 2;
    /// The greatest number of port conditions.
    pub const MAX_PORTS: usize = 2;
}

/// Which packets are followed, seen from the guest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Direction {
    /// Toward the guest only.
    In,
    /// From the guest only.
    Out,
    /// Both directions; needed for requests.
    #[default]
    Both,
}

/// What a trace is asked to watch.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Watch {
    /// The flow.
    pub flow: Flow,
    /// The text of the flow, as it was written.
    pub flow_text: String,
    /// The direction.
    pub direction: Direction,
    /// The matching.
    pub matching: Matching,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_words_of_a_net_lie_in_network_order() {
        let words = |addr: &str, prefix| Net { end: End::Any, addr: addr.parse().unwrap(), prefix }.words();
        let (a, m) = words("10.1.2.3", 16);
        assert_eq!(a[0].to_ne_bytes(), [10, 1, 0, 0]);
        assert_eq!(m[0].to_ne_bytes(), [255, 255, 0, 0]);
        assert_eq!((a[1], m[1]), (0, 0));
        let (a, m) = words("2001:db8::1", 33);
        assert_eq!(a[0].to_ne_bytes(), [0x20, 1, 0x0d, 0xb8]);
        assert_eq!((m[0], m[1].to_ne_bytes()), (u32::MAX, [0x80, 0, 0, 0]));
        assert_eq!(words("::", 0).1, [0; 4]);
        assert_eq!(words("::1", 128).1, [u32::MAX; 4]);
        assert_eq!(words("10.1.2.3", 200).1, [u32::MAX, 0, 0, 0]);
    }
}
