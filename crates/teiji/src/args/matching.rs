//! [`Matching`] on the command line.

use clap::builder::{PossibleValue, StringValueParser, TypedValueParser};
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Arg, Command, Error};
use std::ffi::OsStr;
use teiji_model::flow::Matching;

/// The values with their help, for `--help`, the manual page and completions.
const VALUES: [(&str, &str); 6] = [
    ("echo", "ICMP echo, and UDP services that send the payload back"),
    ("sip", "SIP over UDP by Call-ID and CSeq; copies up to 512 bytes of each message out of the kernel"),
    ("dns", "DNS over UDP by id and question"),
    ("tcp", "TCP (HTTP and others): what the client sends until the server answers, by sequence numbers"),
    (
        "key:OFFSET:LEN",
        "UDP by LEN bytes (at most 16) from byte OFFSET of the payload on (the first is 0), which a response \
         repeats; hashed in the kernel",
    ),
    ("none", "Not at all: packets are followed in one direction"),
];

/// Reads a [`Matching`].
#[derive(Clone, Copy, Debug)]
pub(super) struct MatchingParser;

impl TypedValueParser for MatchingParser {
    type Value = Matching;

    fn parse_ref(&self, cmd: &Command, arg: Option<&Arg>, value: &OsStr) -> Result<Matching, Error> {
        let text = StringValueParser::new().parse_ref(cmd, arg, value)?;
        text.parse().map_err(|_| {
            let mut error = Error::new(ErrorKind::InvalidValue).with_cmd(cmd);
            if let Some(arg) = arg {
                error.insert(ContextKind::InvalidArg, ContextValue::String(arg.to_string()));
            }
            error.insert(ContextKind::InvalidValue, ContextValue::String(text));
            let known = VALUES.iter().map(|(name, _)| (*name).to_owned()).collect();
            error.insert(ContextKind::ValidValue, ContextValue::Strings(known));
            error
        })
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        Some(Box::new(VALUES.iter().map(|(name, help)| PossibleValue::new(*name).help(*help))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_value_that_is_offered_is_read() {
        for (name, _) in VALUES {
            let text = name.replace("OFFSET", "2").replace("LEN", "4");
            assert_eq!(text.parse::<Matching>().unwrap().to_string(), text);
        }
    }
}
