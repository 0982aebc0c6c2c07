//! What a trace watches: the flow filter, the direction and how requests are matched.
//!
//! The filter's language is a subset of pcap's: conditions that all must hold, joined by `and` or merely
//! put side by side.
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
//! `src` and `dst` speak of the *request*: `dst port 53` takes DNS requests and their responses.
//! [`Flow::parse`] turns text into a [`Flow`], [`Flow::matches`] says what a flow means.

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

/// Which end of a *request* a condition speaks of; a response is matched with the ends exchanged.
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

/// An address prefix at an end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Net {
    /// Which end.
    pub end: End,
    /// Address, host bits zero.
    pub addr: IpAddr,
    /// Prefix length, bits.
    pub prefix: u8,
}

/// A port at an end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Port {
    /// Which end.
    pub end: End,
    /// Port number, 1 to 65535.
    pub port: u16,
}

/// A conjunction of conditions, evaluated in the kernel. The default lets everything pass.
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
    /// Address conditions in one filter.
    pub const MAX_NETS: usize = 2;
    /// Port conditions in one filter.
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
    /// Both; needed for requests.
    #[default]
    Both,
}

/// How requests and responses are matched.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Matching {
    /// ICMP echo by identifier and sequence, UDP by equal payload (echo): hashed in the kernel, no
    /// payload leaves it.
    #[default]
    Echo,
    /// SIP over UDP by Call-ID and CSeq: the first bytes of each message are read by teiji, hashed and
    /// forgotten.
    Sip,
    /// None: packets are followed one way.
    None,
}

/// What a trace is asked to watch.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Watch {
    /// The flow.
    pub flow: Flow,
    /// The text the flow was written as.
    pub flow_text: String,
    /// The direction.
    pub direction: Direction,
    /// The matching.
    pub matching: Matching,
}
