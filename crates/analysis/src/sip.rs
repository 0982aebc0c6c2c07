//! Finds the fields of a SIP message by which requests and responses are matched (RFC 3261).
//!
//! ```text
//!  INVITE sip:bob@example.com SIP/2.0      a request, or  SIP/2.0 200 OK  a response
//!  To: <sip:bob@example.com>               with a tag: within a dialogue
//!  Call-ID: a84b4c76e66710                 or  i:
//!  CSeq: 314159 INVITE
//! ```
//!
//! The key is a hash of Call-ID and CSeq, the group is a hash of the Call-ID. A truncated message is sufficient if it
//! contains both headers. Only the fields that are hashed are examined, in one pass, and nothing is stored.

use crate::hash::bytes;
use teiji_model::event::{GroupRole, Match, Role};

/// The longest part of a message that is examined, bytes: a UDP payload.
const MAX_MESSAGE: usize = 65_535;

/// The part of `message`, the payload of a datagram or its beginning, in a request. `hash_key` is the secret of the
/// run. `None` if it is not SIP, or if one of the two headers is missing.
///
/// | message | role |
/// | --- | --- |
/// | a request other than ACK | [`Role::Request`] |
/// | ACK | [`Role::OneWay`], with the key of the INVITE that has its CSeq number |
/// | the response 100 | [`Role::Trying`] |
/// | another 1xx response | [`Role::Provisional`] |
/// | another response | [`Role::Final`] |
///
/// A group begins with an INVITE outside a dialogue (its To has no tag; if To is truncated, the group does not begin)
/// and ends with BYE.
pub fn parse(message: &[u8], hash_key: u64) -> Option<Match> {
    let message = &message[..message.len().min(MAX_MESSAGE)];
    let mut lines = Lines { rest: message };
    let start = lines.next()?;
    let status = status(start);
    if status.is_none() && !is_request_line(start) {
        return None;
    }
    let (mut call_id, mut cseq, mut tagged) = (None, None, None);
    while let Some(line) = lines.next() {
        if line.is_empty() {
            break;
        }
        let Some(colon) = line.iter().position(|b| *b == b':') else { continue };
        let (name, value) = (line[..colon].trim_ascii(), line[colon + 1..].trim_ascii());
        let is = |long: &str, short: &str| {
            name.eq_ignore_ascii_case(long.as_bytes()) || name.eq_ignore_ascii_case(short.as_bytes())
        };
        if is("call-id", "i") {
            call_id = call_id.or(Some(value));
        } else if is("cseq", "cseq") {
            cseq = cseq.or(number_and_method(value));
        } else if is("to", "t") {
            tagged = tagged.or(Some(has_tag(value)));
        }
        if call_id.is_some() && cseq.is_some() && tagged.is_some() {
            break;
        }
    }
    let call_id = call_id.filter(|id| !id.is_empty())?;
    let (number, method) = cseq?;
    let role = match status {
        Some(100) => Role::Trying,
        Some(101..=199) => Role::Provisional,
        Some(_) => Role::Final,
        None if method == b"ACK" => Role::OneWay,
        None => Role::Request,
    };
    let group_role = match method {
        b"INVITE" if status.is_some() || tagged == Some(false) => GroupRole::Begins,
        b"BYE" => GroupRole::Ends,
        _ => GroupRole::Within,
    };
    // 0 means no group.
    let group = bytes(hash_key, &[b"call", call_id]).max(1);
    let answered = if method == b"ACK" { b"INVITE" } else { method };
    let key = bytes(hash_key, &[b"request", call_id, &number.to_le_bytes(), answered]);
    Some(Match { key, role, group, group_role })
}

/// Complete lines; a truncated line at the end is left out. A line that begins with white space continues the one
/// before. Of the headers used here only unusual senders split lines in this way: such a line counts as one without a
/// name.
struct Lines<'a> {
    rest: &'a [u8],
}

impl<'a> Lines<'a> {
    fn next(&mut self) -> Option<&'a [u8]> {
        let end = self.rest.iter().position(|b| *b == b'\n')?;
        let line = &self.rest[..end];
        self.rest = &self.rest[end + 1..];
        Some(line.strip_suffix(b"\r").unwrap_or(line))
    }
}

/// The status code of a status line.
fn status(line: &[u8]) -> Option<u16> {
    let rest = line.strip_prefix(b"SIP/2.0 ")?;
    let (code, rest) = rest.split_at_checked(3)?;
    if !matches!(rest.first(), None | Some(b' ')) {
        return None;
    }
    let code = code.iter().try_fold(0u16, |n, b| b.is_ascii_digit().then(|| n * 10 + u16::from(b - b'0')))?;
    (100..700).contains(&code).then_some(code)
}

fn is_request_line(line: &[u8]) -> bool {
    let mut words = line.split(|b| *b == b' ');
    let method = words.next().is_some_and(is_token);
    let uri = words.next().is_some_and(|uri| !uri.is_empty());
    method && uri && words.next() == Some(b"SIP/2.0") && words.next().is_none()
}

fn is_token(word: &[u8]) -> bool {
    !word.is_empty() && word.iter().all(|b| b.is_ascii_alphanumeric() || b"-.!%*_+`'~".contains(b))
}

/// The value of CSeq.
fn number_and_method(value: &[u8]) -> Option<(u32, &[u8])> {
    let digits = value.iter().take_while(|b| b.is_ascii_digit()).count();
    let (number, method) = value.split_at(digits);
    let number = std::str::from_utf8(number).ok()?.parse().ok()?;
    let trimmed = method.trim_ascii();
    (method.len() > trimmed.len() && is_token(trimmed)).then_some((number, trimmed))
}

/// Whether a To has a `tag` parameter. Parameters follow the `>` of the address, if it has one.
fn has_tag(value: &[u8]) -> bool {
    let after = value.iter().rposition(|b| *b == b'>').map_or(value, |at| &value[at + 1..]);
    after.split(|b| *b == b';').skip(1).any(|parameter| {
        let name = parameter.split(|b| *b == b'=').next().unwrap_or(parameter);
        name.trim_ascii().eq_ignore_ascii_case(b"tag")
    })
}

#[cfg(test)]
mod tests;
