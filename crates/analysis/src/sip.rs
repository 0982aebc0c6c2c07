//! Finds in a SIP message what matches requests with responses.

use teiji_model::event::Match;

/// What `message` is a part of.
pub fn parse(_message: &[u8], _hash_key: u64) -> Option<Match> {
    None
}
