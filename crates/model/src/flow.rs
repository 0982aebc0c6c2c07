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
//! `src` and `dst` refer to the *request*: `dst port 53` selects DNS requests and their responses. [`Flow::parse`]
//! turns text into a [`Flow`]; [`Flow::matches`] defines what a flow selects.

mod matches;
mod parse;

pub use matches::Headers;
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

/// How requests and responses are matched.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Matching {
    /// ICMP echo by identifier and sequence number, UDP by equal payload (echo): hashed in the kernel, so no payload
    /// leaves it.
    #[default]
    Echo,
    /// SIP over UDP by Call-ID and CSeq: teiji reads the first bytes of each message, hashes them and discards them.
    Sip,
    /// No matching: packets are followed in one direction.
    None,
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
