//! One value of a policy, parsed according to its kind.

use super::keys::ValueKind;
use std::net::IpAddr;
use teiji_model::cpus::{CpuSet, CpuSetError};
use teiji_model::flow::{bits, masked};
use teiji_model::policy::{Endpoint, MAX_PID};
use teiji_model::text::{cut, quote};
use toml::de::DeValue;

/// The longest user name, bytes: `LOGIN_NAME_MAX` minus the final NUL.
const MAX_USER: usize = 255;
/// The longest name of a network device, bytes: `IFNAMSIZ` minus the final NUL (include/uapi/linux/if.h).
const MAX_DEVICE: usize = 15;

/// A value that its [`ValueKind`] allows.
#[derive(Clone, Debug)]
pub(super) enum Value {
    /// In base units.
    Number(u64),
    /// One of the kind's words.
    Word(&'static str),
    /// Not empty.
    Cpus(CpuSet),
    /// Host bits are 0.
    Endpoint(Endpoint),
    /// A name that a device can have.
    Device(String),
    /// Not empty.
    Users(Vec<String>),
    /// A name that a VM can have.
    Vm(String),
}

impl ValueKind {
    /// Parses a value.
    ///
    /// # Errors
    /// What is wrong and what to write; long names are truncated, and characters may not be printable.
    pub(super) fn read(&self, value: &DeValue<'_>) -> Result<Value, String> {
        if let ValueKind::Integer { min, max } = self {
            return integer(value, *min, *max)
                .ok_or_else(|| format!("{} is not a valid value; {}", shown(value), self.fix()))
                .map(Value::Number);
        }
        let DeValue::String(text) = value else {
            return Err(format!("{} is not text in quotes; {}", shown(value), self.fix()));
        };
        match self {
            ValueKind::Amount { of, min, max, or } => {
                if let Some(word) = or.iter().find(|word| *word == text) {
                    return Ok(Value::Word(word));
                }
                let amount = of.parse(text).map_err(|e| format!("{e}{}", alternatives(or)))?;
                if !(min..=max).contains(&&amount) {
                    return Err(format!("{} is out of range; {}", quote(text), self.fix()));
                }
                Ok(Value::Number(amount))
            }
            ValueKind::Word(words) => words
                .iter()
                .find(|word| *word == text)
                .map(|word| Value::Word(word))
                .ok_or_else(|| format!("{} is not known; {}", quote(text), self.fix())),
            ValueKind::Cpus => cpus(text).map(Value::Cpus).map_err(|e| format!("{e}; {}", self.fix())),
            ValueKind::Endpoint => endpoint(text).map(Value::Endpoint),
            ValueKind::Device => match wrong_device(text) {
                Some(wrong) => Err(wrong),
                None => Ok(Value::Device(text.clone().into_owned())),
            },
            ValueKind::Vm => match wrong_vm(text) {
                Some(wrong) => Err(wrong),
                None => Ok(Value::Vm(text.clone().into_owned())),
            },
            ValueKind::Users => users(text)
                .map(Value::Users)
                .ok_or_else(|| format!("{} is not a list of users; {}", quote(text), self.fix())),
            ValueKind::Integer { .. } => Err(self.fix()),
        }
    }

    /// What to write instead, as the second half of a message.
    pub(super) fn fix(&self) -> String {
        match self {
            ValueKind::Amount { of, min, max, or } => format!(
                "write {} with its unit and in quotes, as in \"{}\", from {} to {}{}",
                of.noun,
                of.example,
                of.write(*min),
                of.write(*max),
                alternatives(or)
            ),
            ValueKind::Integer { min, max } => {
                format!("write a whole number without quotes, from {min} to {max}")
            }
            ValueKind::Cpus => "write a list of CPUs in quotes, as in \"0-3,8\"".to_owned(),
            ValueKind::Word(words) => format!("write {}", any_of(words)),
            ValueKind::Endpoint => {
                "write an address or prefix, with a port or without, as in \"10.0.0.2:5060\", \
                               \"10.0.1.0/24\" or \"[fd00::2]:5060\""
                    .to_owned()
            }
            ValueKind::Device => "write the name of a device in quotes, as in \"eth0\"".to_owned(),
            ValueKind::Users => "write names of users in quotes, as in \"root,qemu\"".to_owned(),
            ValueKind::Vm => "write the name of a VM in quotes, as in \"sip1\"".to_owned(),
        }
    }
}

/// `, or "auto"`; empty if there are no words.
fn alternatives(words: &[&str]) -> String {
    if words.is_empty() { String::new() } else { format!(", or {}", any_of(words)) }
}

/// `"a", "b" or "c"`.
fn any_of(words: &[&str]) -> String {
    let words: Vec<String> = words.iter().map(|word| format!("\"{word}\"")).collect();
    match words.split_last() {
        Some((last, [])) => last.clone(),
        Some((last, others)) => format!("{} or {last}", others.join(", ")),
        None => String::new(),
    }
}

/// A value in the form in which a message shows it.
fn shown(value: &DeValue<'_>) -> String {
    match value {
        DeValue::String(text) => format!("\"{}\"", cut(text)),
        DeValue::Integer(number) => quote(number.as_str()),
        DeValue::Float(number) => quote(number.as_str()),
        DeValue::Boolean(truth) => quote(&truth.to_string()),
        DeValue::Datetime(_) => "a date or time".to_owned(),
        DeValue::Array(_) => "a list".to_owned(),
        DeValue::Table(_) => "a table".to_owned(),
    }
}

fn integer(value: &DeValue<'_>, min: u64, max: u64) -> Option<u64> {
    let DeValue::Integer(number) = value else { return None };
    u64::from_str_radix(number.as_str(), number.radix()).ok().filter(|n| (min..=max).contains(n))
}

fn cpus(text: &str) -> Result<CpuSet, String> {
    let set: CpuSet = text.parse().map_err(|e: CpuSetError| {
        let short = match e {
            CpuSetError::NotCpu(part) => CpuSetError::NotCpu(cut(&part)),
            CpuSetError::Backwards(part) => CpuSetError::Backwards(cut(&part)),
            CpuSetError::TooGreat(part) => CpuSetError::TooGreat(cut(&part)),
        };
        short.to_string()
    })?;
    if set.is_empty() { Err("no CPU is named".to_owned()) } else { Ok(set) }
}

/// Names or numbers of users, separated by commas.
fn users(text: &str) -> Option<Vec<String>> {
    let word = |word: &str| {
        let word = word.trim();
        let sane = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.' | '$' | '@');
        let right = (1..=MAX_USER).contains(&word.len()) && word.chars().all(sane);
        right.then(|| word.to_owned())
    };
    text.split(',').map(word).collect()
}

/// Parses `10.0.0.2`, `10.0.0.2:5060`, `10.0.1.0/24`, `10.0.1.0/24:5060`, `fd00::2`, `fd00::/64`, `[fd00::2]:5060` or
/// `[fd00::/64]:5060`.
fn endpoint(text: &str) -> Result<Endpoint, String> {
    let fix = ValueKind::Endpoint.fix();
    let not = |what: &str| format!("{} is not {what}; {fix}", quote(text));
    let (net, port) = match text.strip_prefix('[') {
        Some(rest) => match rest.split_once(']') {
            Some((net, "")) => (net, None),
            Some((net, port)) => (net, Some(port.strip_prefix(':').ok_or_else(|| not("an address"))?)),
            None => return Err(not("closed by `]`")),
        },
        // An IPv6 address has several colons; a port after it requires brackets.
        None if text.matches(':').count() > 1 => (text, None),
        None => text.split_once(':').map_or((text, None), |(net, port)| (net, Some(port))),
    };
    let (address, length) =
        net.split_once('/').map_or((net, None), |(address, length)| (address, Some(length)));
    let address: IpAddr = address.parse().map_err(|_| {
        format!("{} is not an IP address, and names are not looked up; {fix}", quote(address))
    })?;
    let most = bits(address);
    let prefix = match length {
        None => most,
        Some(length) => decimal(length)
            .filter(|n| *n <= u32::from(most))
            .map(|n| n as u8)
            .ok_or_else(|| format!("{} is not a prefix length; write one from 0 to {most}", quote(length)))?,
    };
    let masked = masked(address, prefix);
    if masked != address {
        return Err(format!(
            "{} has bits set beyond its prefix; write {masked}/{prefix}, or {address} for that one address",
            quote(net)
        ));
    }
    let port = match port {
        None => None,
        Some(port) => Some(
            decimal(port)
                .and_then(|n| u16::try_from(n).ok())
                .filter(|n| *n > 0)
                .ok_or_else(|| format!("{} is not a port; write a number from 1 to 65535", quote(port)))?,
        ),
    };
    Ok(Endpoint { address, prefix, port })
}

/// A decimal number without a sign.
pub(super) fn decimal(text: &str) -> Option<u32> {
    if text.bytes().all(|b| b.is_ascii_digit()) { text.parse().ok() } else { None }
}

/// Why nothing can have this name; `None` if it is valid.
pub(super) fn not_a_name(name: &str) -> Option<String> {
    if name.trim().is_empty() {
        return Some("the name is empty; write the name between the quotes".to_owned());
    }
    let wrong = name.chars().any(char::is_control);
    wrong.then(|| format!("the name {} has a control character; write it without", quote(name)))
}

/// Why no VM can have this name in a policy; `None` if it is valid.
pub(super) fn wrong_vm(name: &str) -> Option<String> {
    not_a_name(name).or_else(|| {
        let pid = name.strip_prefix("pid:")?;
        let right = decimal(pid).filter(|n| (1..=MAX_PID).contains(n) && n.to_string() == pid);
        right.is_none().then(|| format!("{} is not a process id; write one as in \"pid:1234\"", quote(pid)))
    })
}

/// Why no device can have this name, by the rules of `dev_valid_name()`, net/core/dev.c.
pub(super) fn wrong_device(name: &str) -> Option<String> {
    if name.len() > MAX_DEVICE {
        return Some(format!(
            "{} is longer than the {MAX_DEVICE} bytes of a device's name; write the name that ip-link(8) shows",
            quote(name)
        ));
    }
    let wrong = name.is_empty()
        || name.chars().any(char::is_control)
        || name == "."
        || name == ".."
        || name.contains(['/', ':'])
        || name.contains(char::is_whitespace);
    wrong.then(|| format!("no device can be called {}; write the name that ip-link(8) shows", quote(name)))
}
