//! How requests and responses are matched, and how that is written.
//!
//! ```text
//! matching = "echo" | "sip" | "dns" | "tcp" | "key:" OFFSET ":" LEN | "none"
//! ```
//!
//! OFFSET counts from the first byte of the UDP payload, which is 0; LEN is the number of bytes.

use super::{Flow, Proto};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt;
use std::str::FromStr;

/// How requests and responses are matched. Recordings number the variants: a new one is added at the end, and to
/// [`Matching::since`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
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
    /// UDP by some bytes of the payload: hashed in the kernel, so no payload leaves it.
    Key(Key),
}

/// Bytes of a payload that a response repeats: the request's identifier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Key {
    offset: u16,
    len: u8,
}

impl Key {
    /// The most bytes of a key.
    pub const MAX_LEN: u8 = 16;

    /// `len` bytes after the first `offset` bytes of the payload; `None` if there is no byte, or more than
    /// [`Key::MAX_LEN`].
    pub fn new(offset: u16, len: u8) -> Option<Key> {
        (1..=Key::MAX_LEN).contains(&len).then_some(Key { offset, len })
    }

    /// How many bytes of payload precede it.
    pub fn offset(self) -> u16 {
        self.offset
    }

    /// How many bytes it has.
    pub fn bytes(self) -> u8 {
        self.len
    }
}

/// The form of recordings and between processes. Text has that of [`Matching::from_str`].
#[derive(Serialize, Deserialize)]
enum Wire {
    Echo,
    Sip,
    None,
    Dns,
    Tcp,
    Key(u16, u8),
}

impl Serialize for Matching {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        if to.is_human_readable() {
            return to.collect_str(self);
        }
        let wire = match self {
            Matching::Echo => Wire::Echo,
            Matching::Sip => Wire::Sip,
            Matching::None => Wire::None,
            Matching::Dns => Wire::Dns,
            Matching::Tcp => Wire::Tcp,
            Matching::Key(key) => Wire::Key(key.offset, key.len),
        };
        wire.serialize(to)
    }
}

impl<'de> Deserialize<'de> for Matching {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Matching, D::Error> {
        if from.is_human_readable() {
            return String::deserialize(from)?.parse().map_err(D::Error::custom);
        }
        Ok(match Wire::deserialize(from)? {
            Wire::Echo => Matching::Echo,
            Wire::Sip => Matching::Sip,
            Wire::None => Matching::None,
            Wire::Dns => Matching::Dns,
            Wire::Tcp => Matching::Tcp,
            Wire::Key(offset, len) => Matching::Key(
                Key::new(offset, len).ok_or_else(|| D::Error::custom("a key has 1 to 16 bytes"))?,
            ),
        })
    }
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

    /// The first version of recordings that has it as it is now.
    pub(crate) fn since(self) -> u16 {
        match self {
            Matching::Echo | Matching::None => 1,
            Matching::Dns => 4,
            // Of SIP, version 5 tells the response 100 from the other provisional ones.
            Matching::Sip | Matching::Tcp | Matching::Key(_) => 5,
        }
    }

    /// Whether the protocol repeats a request with the same key if no response comes. Once a key has been answered, a
    /// further request with it is taken for such a copy for as long as a request may take.
    pub fn repeats(self) -> bool {
        match self {
            Matching::Sip | Matching::Dns | Matching::Tcp => true,
            Matching::Echo | Matching::None | Matching::Key(_) => false,
        }
    }
}

/// In the form that [`Matching::from_str`] reads.
impl fmt::Display for Matching {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Matching::Key(Key { offset, len }) => return write!(f, "key:{offset}:{len}"),
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
            _ => {
                let numbers = text.strip_prefix("key:").and_then(|rest| rest.split_once(':'));
                let key = numbers.and_then(|(offset, len)| Key::new(offset.parse().ok()?, len.parse().ok()?));
                let expected = "expected echo, sip, dns, tcp, none, or key:OFFSET:LEN with a LEN of 1 to 16";
                Matching::Key(key.ok_or_else(|| MatchingError(expected.into()))?)
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        let keys = [(0, 1), (65535, 16)].map(|(offset, len)| Matching::Key(Key::new(offset, len).unwrap()));
        let others = [Matching::Echo, Matching::Sip, Matching::None, Matching::Dns, Matching::Tcp];
        for matching in others.into_iter().chain(keys) {
            assert_eq!(matching.to_string().parse(), Ok(matching));
            let json = serde_json::to_string(&matching).unwrap();
            assert_eq!(json, format!("\"{matching}\""));
            assert_eq!(serde_json::from_str::<Matching>(&json).unwrap(), matching);
            let bytes = postcard::to_allocvec(&matching).unwrap();
            assert_eq!(postcard::from_bytes::<Matching>(&bytes).unwrap(), matching);
        }
        for other in
            ["", "DNS", "telepathy", "dns ", "key", "key:0", "key:0:0", "key:0:17", "key:65536:1", "key:-1:4"]
        {
            assert!(other.parse::<Matching>().is_err(), "{other}");
        }
    }

    #[test]
    fn a_recording_has_no_key_of_another_length() {
        for len in [0u8, 17, 255] {
            let bytes = postcard::to_allocvec(&Wire::Key(3, len)).unwrap();
            assert!(postcard::from_bytes::<Matching>(&bytes).is_err(), "{len}");
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
