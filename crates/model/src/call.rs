//! SIP calls in a report: their messages, when these passed, and what was sent again.
//!
//! ```text
//!  client          guest      times are those at the host: of a message to the guest when the host received it,
//!    │── INVITE ────►│        of one from the guest when its vhost worker handed it to the host
//!    │◄── 100, 1xx ──│
//!    │◄── final ─────│        the final response to INVITE: 200 in a call that is answered
//!    │── ACK ───────►│
//!    │── BYE ───────►│
//!    │◄── final ─────│        the final response to BYE ends the call
//! ```

use crate::report::Dist;
use serde::{Deserialize, Serialize};

/// A message of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CallMessage {
    /// The INVITE outside a dialogue that begins the call.
    Invite,
    /// 100: the next hop has received the INVITE.
    Trying,
    /// The first response of 101 to 199, such as 180 (ringing).
    Provisional,
    /// The final response to that INVITE.
    Final,
    /// The ACK of that response.
    Ack,
    /// The BYE that ends the call.
    Bye,
    /// The final response to BYE.
    ByeFinal,
}

impl CallMessage {
    /// The number of messages.
    pub const COUNT: usize = 7;
    /// All messages, in the order of a call.
    pub const ALL: [CallMessage; Self::COUNT] = [
        CallMessage::Invite,
        CallMessage::Trying,
        CallMessage::Provisional,
        CallMessage::Final,
        CallMessage::Ack,
        CallMessage::Bye,
        CallMessage::ByeFinal,
    ];

    /// The name for people.
    pub const fn name(self) -> &'static str {
        match self {
            CallMessage::Invite => "INVITE",
            CallMessage::Trying => "100",
            CallMessage::Provisional => "1xx",
            CallMessage::Final => "final",
            CallMessage::Ack => "ACK",
            CallMessage::Bye => "BYE",
            CallMessage::ByeFinal => "BYE final",
        }
    }
}

/// Groups of requests: for SIP, calls from the first INVITE to the response to BYE (the round trip of paper P0).
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Groups {
    /// Groups that were completed.
    pub complete: u64,
    /// Groups that began and were not completed.
    pub incomplete: u64,
    /// Time from the first request to the last response, ns.
    pub total: Dist,
    /// The part of that time outside this host: waiting for the other side's next message.
    pub outside: Dist,
    /// The messages of complete calls, in the order of a call; those that no call has are left out.
    #[serde(default)]
    pub messages: Vec<CallMessageReport>,
    /// The longest complete calls, longest first; at most 10.
    #[serde(default)]
    pub slowest: Vec<Call>,
}

/// A message over all complete calls.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CallMessageReport {
    /// Which.
    pub message: CallMessage,
    /// When its first copy passed, ns after the INVITE; `count` is the number of calls that have it.
    pub at: Dist,
    /// Further copies of it.
    pub copies: u64,
}

/// A complete call.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Call {
    /// As [`Request::group`](crate::report::Request::group) of its requests.
    pub group: u64,
    /// When the host received its INVITE, ns on the clock of the events.
    pub start: u64,
    /// From then until the response to its BYE was handed to the NIC, ns.
    pub total: u64,
    /// The part of that time outside this host, ns.
    pub outside: u64,
    /// Its messages, in the order of a call.
    pub messages: Vec<CallStep>,
}

/// A message of one call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CallStep {
    /// Which.
    pub message: CallMessage,
    /// When its first copy passed, ns after the INVITE.
    pub at: u64,
    /// How many copies passed until the call ended: 1 if it was not sent again.
    pub copies: u8,
}

/// Requests that were sent again before their response had left. Which copy was answered is certain if only one reached
/// the guest, or if the guest reports that its application took only one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SentAgain {
    /// How many there are, those that are not complete included.
    pub requests: u64,
    /// Complete ones whose first copy was answered.
    pub first: u64,
    /// Complete ones of which a later copy was answered: their times are those of that copy.
    pub later: u64,
    /// Complete ones of which several copies reached the guest, and it is not known which was answered: their times are
    /// counted from the first copy.
    pub unknown: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_numbered_in_their_order() {
        for (i, message) in CallMessage::ALL.into_iter().enumerate() {
            assert_eq!(message as usize, i);
        }
    }
}
