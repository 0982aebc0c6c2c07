//! Parses and writes filters.

use super::{End, Flow, Net, Port, Proto};
use crate::columns::columns;
use crate::text::printable;
use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

/// The longest filter, bytes.
const MAX_TEXT: usize = 1024;

const WORDS: [&str; 11] = ["ip", "ip6", "udp", "tcp", "icmp", "src", "dst", "host", "net", "port", "and"];

/// Why a filter is wrong, and where. Displays the message, the filter, and a line of carets under the wrong words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FlowError {
    /// What is wrong and, if it can be told, what would be right.
    pub message: String,
    /// The filter as it was written.
    pub text: String,
    /// Where, in bytes from the start of `text`; the length of `text` if something is missing at the end.
    pub at: usize,
    /// How many bytes are wrong; 0 at the end.
    pub len: usize,
}

impl fmt::Display for FlowError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let before = columns(&printable(self.text.get(..self.at).unwrap_or(&self.text)));
        let under = columns(&printable(self.text.get(self.at..self.at + self.len).unwrap_or(""))).max(1);
        writeln!(f, "{}", printable(&self.message))?;
        writeln!(f, "  {}", printable(&self.text))?;
        write!(f, "  {:before$}{}", "", "^".repeat(under))
    }
}

impl std::error::Error for FlowError {}

/// A word and where it begins.
#[derive(Clone, Copy)]
struct Word<'a> {
    text: &'a str,
    at: usize,
}

struct Parser<'a> {
    text: &'a str,
    words: Vec<Word<'a>>,
    next: usize,
    flow: Flow,
}

type Parsed<T> = Result<T, FlowError>;

impl Flow {
    /// Parses a filter. An empty text selects everything.
    ///
    /// # Errors
    /// What is wrong at which byte: an unknown word (with the nearest right one), a missing or malformed operand, or
    /// conditions that no packet can meet together.
    pub fn parse(text: &str) -> Result<Flow, FlowError> {
        let mut p = Parser { text, words: Vec::new(), next: 0, flow: Flow::default() };
        if text.len() > MAX_TEXT {
            let message = format!("the filter is longer than {MAX_TEXT} bytes");
            return Err(FlowError { message, text: String::new(), at: 0, len: 0 });
        }
        for word in text.split_whitespace() {
            // `word` is a part of `text`, so the difference of their addresses is its offset.
            let at = word.as_ptr() as usize - text.as_ptr() as usize;
            p.words.push(Word { text: word, at });
        }
        let mut first = true;
        while let Some(word) = p.take() {
            let and = word.text.eq_ignore_ascii_case("and");
            match (and, first) {
                (true, true) => return p.fail(word, "`and` has no condition before it".into()),
                (true, false) => {
                    let term = p.need("a condition", "and")?;
                    p.term(term)?;
                }
                (false, _) => p.term(word)?,
            }
            first = false;
        }
        Ok(p.flow)
    }
}

impl FromStr for Flow {
    type Err = FlowError;

    fn from_str(text: &str) -> Result<Flow, FlowError> {
        Flow::parse(text)
    }
}

impl<'a> Parser<'a> {
    fn take(&mut self) -> Option<Word<'a>> {
        let word = self.words.get(self.next).copied();
        self.next += 1;
        word
    }

    fn fail<T>(&self, word: Word<'_>, message: String) -> Parsed<T> {
        Err(FlowError { message, text: self.text.into(), at: word.at, len: word.text.len() })
    }

    fn need(&mut self, what: &str, after: &str) -> Parsed<Word<'a>> {
        self.take().ok_or_else(|| FlowError {
            message: format!("{what} is missing after `{after}`"),
            text: self.text.into(),
            at: self.text.len(),
            len: 0,
        })
    }

    fn term(&mut self, word: Word<'a>) -> Parsed<()> {
        let lower = word.text.to_ascii_lowercase();
        match lower.as_str() {
            "ip" => self.version(4, word),
            "ip6" => self.version(6, word),
            "udp" => self.proto(Proto::Udp, word),
            "tcp" => self.proto(Proto::Tcp, word),
            "icmp" => self.proto(Proto::Icmp, word),
            "src" | "dst" => {
                let end = if lower == "src" { End::Src } else { End::Dst };
                let noun = self.need("`host`, `net` or `port`", &lower)?;
                self.noun(end, noun, &["host", "net", "port"])
            }
            _ => self.noun(End::Any, word, &WORDS),
        }
    }

    fn noun(&mut self, end: End, word: Word<'a>, allowed: &[&str]) -> Parsed<()> {
        match word.text.to_ascii_lowercase().as_str() {
            "host" => {
                let operand = self.need("an address", "host")?;
                self.host(end, operand)
            }
            "net" => {
                let operand = self.need("an address and prefix length, such as 10.0.0.0/8,", "net")?;
                self.net(end, operand)
            }
            "port" => {
                let operand = self.need("a port number", "port")?;
                self.port(end, operand)
            }
            _ => self.unknown(word, allowed),
        }
    }

    fn unknown<T>(&self, word: Word<'_>, allowed: &[&str]) -> Parsed<T> {
        let lower = word.text.to_ascii_lowercase();
        if ["or", "not", "!", "&&", "||"].contains(&lower.as_str()) || lower.contains(['(', ')']) {
            return self.fail(word, format!("`{}` is not supported: all conditions must hold", word.text));
        }
        let nearest = allowed
            .iter()
            .map(|w| (strsim::damerau_levenshtein(&lower, w), *w))
            .min_by_key(|(distance, _)| *distance)
            .filter(|(distance, _)| *distance <= 2);
        let help = match nearest {
            Some((_, right)) => format!("did you mean `{right}`?"),
            None if lower.parse::<IpAddr>().is_ok() => format!("an address is written `host {lower}`"),
            None if lower.parse::<u16>().is_ok() => format!("a port is written `port {lower}`"),
            None => format!("expected one of: {}", allowed.join(", ")),
        };
        self.fail(word, format!("unknown word `{}`; {help}", word.text))
    }

    fn version(&mut self, version: u8, word: Word<'_>) -> Parsed<()> {
        if self.flow.version.is_some_and(|v| v != version) {
            return self.fail(word, "a packet cannot be both ip and ip6".into());
        }
        if let Some(other) = self.flow.nets.iter().find(|n| family(n.addr) != version) {
            return self.fail(word, format!("no packet is {} and has the address {}", word.text, other.addr));
        }
        self.flow.version = Some(version);
        Ok(())
    }

    fn proto(&mut self, proto: Proto, word: Word<'_>) -> Parsed<()> {
        if let Some(other) = self.flow.proto.filter(|p| *p != proto) {
            return self.fail(word, format!("a packet cannot be both {other} and {proto}"));
        }
        if proto == Proto::Icmp && !self.flow.ports.is_empty() {
            return self.fail(word, "icmp has no ports".into());
        }
        self.flow.proto = Some(proto);
        Ok(())
    }

    fn host(&mut self, end: End, word: Word<'_>) -> Parsed<()> {
        if word.text.contains('/') {
            return self.fail(word, format!("a prefix is written `net {}`", word.text));
        }
        let Ok(addr) = word.text.parse::<IpAddr>() else {
            return self.fail(word, format!("`{}` is not an IP address; names are not looked up", word.text));
        };
        self.add_net(Net { end, addr, prefix: bits(addr) }, word)
    }

    fn net(&mut self, end: End, word: Word<'_>) -> Parsed<()> {
        let Some((addr, prefix)) = word.text.split_once('/') else {
            return match word.text.parse::<IpAddr>() {
                Ok(_) => self
                    .fail(word, format!("a prefix length is missing; one address is `host {}`", word.text)),
                Err(_) => self.fail(word, format!("`{}` is not an address with a prefix length", word.text)),
            };
        };
        let Ok(addr) = addr.parse::<IpAddr>() else {
            return self.fail(word, format!("`{addr}` is not an IP address"));
        };
        let Some(prefix) = number(prefix).filter(|p| *p <= u32::from(bits(addr))).map(|p| p as u8) else {
            return self.fail(word, format!("`{prefix}` is not a prefix length from 0 to {}", bits(addr)));
        };
        let net = Net { end, addr: masked(addr, prefix), prefix };
        if net.addr != addr {
            let message = format!("{addr}/{prefix} has host bits set; the prefix is {}/{prefix}", net.addr);
            return self.fail(word, message);
        }
        self.add_net(net, word)
    }

    fn add_net(&mut self, net: Net, word: Word<'_>) -> Parsed<()> {
        if self.flow.version.is_some_and(|v| v != family(net.addr)) {
            let v = if family(net.addr) == 4 { "ip6" } else { "ip" };
            return self.fail(word, format!("no packet is {v} and has the address {}", net.addr));
        }
        for other in &self.flow.nets {
            if family(other.addr) != family(net.addr) {
                let message = format!("no packet has both {} and {}", other.addr, net.addr);
                return self.fail(word, message);
            }
            let apart = !other.contains(net.addr) && !net.contains(other.addr);
            if apart && net.end == other.end && net.end != End::Any {
                let message = format!(
                    "one end cannot be in both {}/{} and {}/{}",
                    other.addr, other.prefix, net.addr, net.prefix
                );
                return self.fail(word, message);
            }
        }
        if self.flow.nets.contains(&net) {
            return Ok(());
        }
        if self.flow.nets.len() == Flow::MAX_NETS {
            return self.fail(word, format!("at most {} addresses fit into a filter", Flow::MAX_NETS));
        }
        self.flow.nets.push(net);
        Ok(())
    }

    fn port(&mut self, end: End, word: Word<'_>) -> Parsed<()> {
        if self.flow.proto == Some(Proto::Icmp) {
            return self.fail(word, "icmp has no ports".into());
        }
        let Some(port) = number(word.text).filter(|p| (1..=65535).contains(p)).map(|p| p as u16) else {
            return self.fail(word, format!("`{}` is not a port number from 1 to 65535", word.text));
        };
        let port = Port { end, port };
        if let Some(other) =
            self.flow.ports.iter().find(|o| o.end == end && end != End::Any && o.port != port.port)
        {
            return self
                .fail(word, format!("one end cannot have both port {} and {}", other.port, port.port));
        }
        if self.flow.ports.contains(&port) {
            return Ok(());
        }
        if self.flow.ports.len() == Flow::MAX_PORTS {
            return self.fail(word, format!("at most {} ports fit into a filter", Flow::MAX_PORTS));
        }
        self.flow.ports.push(port);
        Ok(())
    }
}

/// A decimal number without a sign.
fn number(text: &str) -> Option<u32> {
    if text.bytes().all(|b| b.is_ascii_digit()) { text.parse().ok() } else { None }
}

fn family(addr: IpAddr) -> u8 {
    if addr.is_ipv4() { 4 } else { 6 }
}

/// How many bits an address has.
pub fn bits(addr: IpAddr) -> u8 {
    if addr.is_ipv4() { 32 } else { 128 }
}

/// `addr` with the bits after the first `prefix` cleared.
pub fn masked(addr: IpAddr, prefix: u8) -> IpAddr {
    match addr {
        IpAddr::V4(a) => {
            let mask = u32::MAX.checked_shl(32 - u32::from(prefix.min(32))).unwrap_or(0);
            IpAddr::V4((u32::from(a) & mask).into())
        }
        IpAddr::V6(a) => {
            let mask = u128::MAX.checked_shl(128 - u32::from(prefix.min(128))).unwrap_or(0);
            IpAddr::V6((u128::from(a) & mask).into())
        }
    }
}

impl fmt::Display for Proto {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Proto::Udp => "udp",
            Proto::Tcp => "tcp",
            Proto::Icmp => "icmp",
        })
    }
}

/// The filter in the form that [`Flow::parse`] reads; empty if it selects everything.
impl fmt::Display for Flow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let side = |end: End| match end {
            End::Any => "",
            End::Src => "src ",
            End::Dst => "dst ",
        };
        let mut terms = Vec::new();
        terms.extend(self.version.map(|v| if v == 4 { "ip".to_string() } else { "ip6".to_string() }));
        terms.extend(self.proto.map(|p| p.to_string()));
        for n in &self.nets {
            terms.push(if n.prefix == bits(n.addr) {
                format!("{}host {}", side(n.end), n.addr)
            } else {
                format!("{}net {}/{}", side(n.end), n.addr, n.prefix)
            });
        }
        terms.extend(self.ports.iter().map(|p| format!("{}port {}", side(p.end), p.port)));
        f.write_str(&terms.join(" and "))
    }
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
