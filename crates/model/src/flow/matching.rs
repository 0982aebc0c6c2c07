//! How requests and responses are matched, and how that is written.
//!
//! ```text
//! matching = "echo" | "sip" | "dns" | "tcp" | "none"
//! ```

use super::{Flow, Proto};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// How requests and responses are matched. Recordings number the variants: a new one is added at the end, and to
/// [`Matching::since`].
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
    /// DNS over UDP by id and question: hashed in the kernel, so no payload leaves it.
    Dns,
    /// TCP by sequence and acknowledgement numbers: a request is what the client says until the server answers.
    Tcp,
}

/// The port of DNS.
const DNS_PORT: u16 = 53;

impl Matching {
    /// What is matched in the packets of a filter, unless the operator says otherwise: DNS if it selects UDP and the port
    /// of DNS at the responder or at either end, TCP if it selects TCP, echo otherwise.
    pub fn of(flow: &Flow) -> Matching {
        let port = |port| flow.ports.iter().any(|p| p.port == port && p.end != super::End::Src);
        match flow.proto {
            Some(Proto::Udp) if port(DNS_PORT) => Matching::Dns,
            Some(Proto::Tcp) => Matching::Tcp,
            _ => Matching::Echo,
        }
    }

    /// The first version of recordings that has it.
    pub(crate) fn since(self) -> u16 {
        match self {
            Matching::Echo | Matching::Sip | Matching::None => 1,
            Matching::Dns | Matching::Tcp => 4,
        }
    }

    /// Whether the protocol repeats a request with the same key if no response comes. Once a key has been answered, a
    /// further request with it is taken for such a copy for as long as a request may take.
    pub fn repeats(self) -> bool {
        match self {
            Matching::Sip | Matching::Dns | Matching::Tcp => true,
            Matching::Echo | Matching::None => false,
        }
    }
}

/// In the form that [`Matching::from_str`] reads.
impl fmt::Display for Matching {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Matching::Echo => "echo",
            Matching::Sip => "sip",
            Matching::None => "none",
            Matching::Dns => "dns",
            Matching::Tcp => "tcp",
        })
    }
}

/// What cannot be read as a [`Matching`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct MatchingError(String);

impl FromStr for Matching {
    type Err = MatchingError;

    fn from_str(text: &str) -> Result<Matching, MatchingError> {
        Ok(match text {
            "echo" => Matching::Echo,
            "sip" => Matching::Sip,
            "none" => Matching::None,
            "dns" => Matching::Dns,
            "tcp" => Matching::Tcp,
            _ => return Err(MatchingError("expected echo, sip, dns, tcp or none".into())),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        for matching in [Matching::Echo, Matching::Sip, Matching::None, Matching::Dns, Matching::Tcp] {
            assert_eq!(matching.to_string().parse(), Ok(matching));
        }
        for other in ["", "DNS", "telepathy", "dns "] {
            assert!(other.parse::<Matching>().is_err(), "{other}");
        }
    }

    #[test]
    fn a_filter_decides_where_it_is_unambiguous() {
        for (filter, matching) in [
            ("", Matching::Echo),
            ("port 53", Matching::Echo),
            ("udp", Matching::Echo),
            ("udp port 5060", Matching::Echo),
            ("udp port 53", Matching::Dns),
            ("ip6 and udp and dst port 53", Matching::Dns),
            ("udp src port 53", Matching::Echo),
            ("tcp port 53", Matching::Tcp),
            ("ip6 and tcp and dst port 80", Matching::Tcp),
            ("icmp", Matching::Echo),
        ] {
            assert_eq!(Matching::of(&Flow::parse(filter).unwrap()), matching, "{filter}");
        }
    }
}
