//! Why a request is in no figure: one table of reasons, each with its name, its explanation and the party to blame.
//!
//! A request that is not complete has exactly one reason, so the counts of the reasons of an [`Outcome`] add up to the
//! count of that outcome in [`RequestCounts`](crate::report::RequestCounts).

use serde::{Deserialize, Serialize};

/// The outcome of a request that is not complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// Dropped by the host, or a point of its path or a time of it is not known for certain; see [`Reason`].
    Incomplete,
    /// It may be confused with another request.
    Ambiguous,
    /// No response was seen.
    Unanswered,
}

impl Outcome {
    /// The name in reports and in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Outcome::Incomplete => "incomplete",
            Outcome::Ambiguous => "ambiguous",
            Outcome::Unanswered => "unanswered",
        }
    }
}

/// Who is to blame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Blame {
    /// The host: its kernel, its devices, its load.
    Host,
    /// The programs and the kernel in the guest.
    Guest,
    /// The network, or whoever answers the guest's own requests.
    Outside,
    /// teiji: the probes or the analysis missed something, or cannot tell.
    Teiji,
    /// Nobody: the cause is what was sent, or when the trace began and ended.
    Nobody,
}

/// Makes the enum and its table from one list.
macro_rules! reasons {
    ($($(#[$doc:meta])* $reason:ident, $name:literal, $blame:ident, $text:literal;)*) => {
        /// Why a request is not complete.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(rename_all = "snake_case")]
        pub enum Reason { $($(#[$doc])* $reason,)* }

        impl Reason {
            /// All reasons.
            pub const ALL: &'static [Reason] = &[$(Reason::$reason,)*];

            /// The name in JSON.
            pub fn name(self) -> &'static str {
                match self { $(Reason::$reason => $name,)* }
            }

            /// The explanation, as the end of a sentence about a request.
            pub fn text(self) -> &'static str {
                match self { $(Reason::$reason => $text,)* }
            }

            /// Who is to blame.
            pub fn blame(self) -> Blame {
                match self { $(Reason::$reason => Blame::$blame,)* }
            }
        }
    };
}

reasons! {
    /// The kernel dropped its packet before it reached the guest.
    DroppedIn, "dropped_in", Host, "dropped by the host";
    /// The kernel dropped its response.
    DroppedOut, "dropped_out", Host, "its response was dropped by the host";
    /// No vhost worker took its packet off the tap.
    NotTaken, "not_taken", Host, "put on the tap, and never taken by a vhost worker or the VMM";
    /// The worker took its packet, but no signal was seen.
    NotSignalled, "not_signalled", Teiji, "taken off the tap, and the signal to the guest was not seen";
    /// The worker signalled, but no vCPU of the VM was seen to accept the interrupt.
    NoInterrupt, "no_interrupt", Teiji, "signalled to the guest, but no vCPU was seen to accept the interrupt";
    /// The worker was stalled while it handed the packet to a guest that polls, or the kernel skipped a run of a probe of the signal.
    ArrivalUnknown, "arrival_unknown", Teiji, "when the guest received it is not known: the vhost worker was stalled while it handed it over, or the kernel skipped a probe";
    /// The interrupt was accepted, but the vCPU was not seen to enter the guest with it.
    NotEntered, "not_entered", Host, "its interrupt was accepted, but the vCPU was not seen to enter the guest with it";
    /// The packet reached the guest, but no response came.
    NoAnswer, "no_answer", Guest, "reached the guest, but no answer was seen in the time allowed";
    /// The response left the guest, but did not reach a link.
    NotForwarded, "not_forwarded", Host, "its answer left the guest, but was not seen at a link";
    /// The response did not get from the link's queue to the device.
    NotHandedOver, "not_handed_over", Host, "its answer came to a link's queue, but was not seen to be handed to the device";
    /// Its response was a large packet whose segments cannot be followed, and was not seen to leave whole.
    LargePacket, "large_packet", Teiji, "its answer left the guest as a large packet (GSO), which the host may have split: it was not seen further on";
    /// Its reception by the host was not seen.
    NotReceived, "not_received", Teiji, "its reception by the host was not seen, unlike that of other requests";
    /// It has fewer reports than packets of its kind usually have.
    FewerReports, "fewer_reports", Teiji, "seen at fewer places on its way than packets of its kind usually are";
    /// The usual number of reports, or the interrupt of its queue, was not known yet.
    NotLearnt, "not_learnt", Teiji, "the first of its kind: what its path reports was not known yet";
    /// Another packet with the same fingerprint was on the path.
    Alike, "alike", Nobody, "an identical packet was on the way at the same time";
    /// Another request with the same key was open.
    SameKey, "same_key", Nobody, "another request with the same key was open at the same time";
    /// The two sides of its TCP connection did not take turns.
    Interleaved, "interleaved", Nobody, "client and server of its connection spoke at the same time: what answers what cannot be told by sequence numbers";
    /// A segment of it, or of its answer, came out of order, or was not seen.
    SegmentMissing, "segment_missing", Nobody, "one of its segments was lost before this host, or came out of order or unseen";
    /// Its TCP connection ended first.
    Closed, "closed", Nobody, "its connection was closed or reset before it was answered";
    /// It has more copies of its packet than can be followed.
    TooManyTaps, "too_many_taps", Teiji, "its packet was put on more taps at once than are followed";
    /// It was sent again, and the first copy is not the one that was answered, or was not seen to reach the guest.
    OtherCopy, "other_copy", Nobody, "sent again before it was answered, and it is not known which copy was answered";
    /// Events were lost, missed or late at about that time.
    EventsLost, "events_lost", Teiji, "at that time events were lost or came too late, or runs of probes were missed";
    /// It came by a NIC that was given to the VM, and which of the NIC's interrupts was its own is not certain.
    InterruptUnknown, "interrupt_unknown", Teiji, "which interrupt of the NIC it came with is not certain";
    /// It came by a NIC that was given to the VM, and the guest did not report all of its way.
    ReportMissing, "report_missing", Teiji, "the guest did not report all of its way through it";
    /// It was given up to make room for others.
    Evicted, "evicted", Teiji, "given up for lack of room: too many were followed at once";
    /// The times of its points contradict each other.
    OutOfOrder, "out_of_order", Teiji, "the times of its points are not in the order of its path";
    /// The trace ended before the request did.
    TraceEnded, "trace_ended", Nobody, "still on its way when the trace ended";
}

impl Reason {
    /// The explanation, as the end of a sentence about a request that the guest itself sent.
    pub fn text_of_outgoing(self) -> &'static str {
        match self {
            Reason::DroppedIn => "its answer was dropped by the host",
            Reason::DroppedOut => "dropped by the host on its way out",
            Reason::NotTaken => "its answer was put on the tap, and never taken by a vhost worker or the VMM",
            Reason::NotSignalled => {
                "its answer was taken off the tap, and the signal to the guest was not seen"
            }
            Reason::NoInterrupt => {
                "its answer was signalled to the guest, but no vCPU was seen to accept the interrupt"
            }
            Reason::ArrivalUnknown => {
                "when the guest received its answer is not known: the vhost worker was stalled while it handed it over, or \
                 the kernel skipped a probe"
            }
            Reason::NotEntered => {
                "the interrupt of its answer was accepted, but the vCPU was not seen to enter the guest with it"
            }
            Reason::NoAnswer => "left this host, but no answer came back in the time allowed",
            Reason::NotForwarded => "left the guest, but was not seen at a link or on another VM's tap",
            Reason::NotHandedOver => "came to a link's queue, but was not seen to be handed to the device",
            Reason::LargePacket => {
                "left the guest as a large packet (GSO), which the host may have split: it was not seen further on"
            }
            Reason::NotReceived => {
                "the host's reception of its answer was not seen, unlike that of other packets"
            }
            Reason::TooManyTaps => "its answer was put on more taps at once than are followed",
            Reason::FewerReports
            | Reason::NotLearnt
            | Reason::Alike
            | Reason::SameKey
            | Reason::Interleaved
            | Reason::SegmentMissing
            | Reason::Closed
            | Reason::OtherCopy
            | Reason::EventsLost
            | Reason::InterruptUnknown
            | Reason::ReportMissing
            | Reason::Evicted
            | Reason::OutOfOrder
            | Reason::TraceEnded => self.text(),
        }
    }

    /// The explanation, as the end of a sentence about a request by a NIC that was given to the VM.
    pub fn text_of_passthrough(self) -> &'static str {
        match self {
            Reason::NoAnswer => {
                "received by the guest, but it was not seen to send an answer by such a NIC in the time allowed"
            }
            _ => self.text(),
        }
    }

    /// Who is to blame, if the guest itself sent the request.
    pub fn blame_of_outgoing(self) -> Blame {
        match self {
            Reason::NoAnswer => Blame::Outside,
            _ => self.blame(),
        }
    }

    /// Whether the kernel dropped a packet of the request.
    pub fn is_drop(self) -> bool {
        matches!(self, Reason::DroppedIn | Reason::DroppedOut)
    }
}

/// How many requests had an outcome for a reason.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeftOut {
    /// The outcome.
    pub outcome: Outcome,
    /// The reason.
    pub reason: Reason,
    /// Who is to blame.
    pub blame: Blame,
    /// The explanation, for people.
    pub explanation: String,
    /// Where the kernel dropped them, if it did.
    pub dropped: Option<DropLocation>,
    /// How many requests.
    pub count: u64,
}

/// Where and why the kernel dropped packets.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DropLocation {
    /// The kernel's function; empty if not known.
    #[serde(rename = "place")]
    pub location: String,
    /// The kernel's reason (`enum skb_drop_reason`, without its prefix), or its number.
    pub why: String,
    /// The device that the packet was at; empty if not known.
    pub device: String,
}

impl LeftOut {
    /// An entry for `count` requests to the guest.
    pub fn new(outcome: Outcome, reason: Reason, dropped: Option<DropLocation>, count: u64) -> LeftOut {
        let entry =
            LeftOut { outcome, reason, blame: reason.blame(), explanation: String::new(), dropped, count };
        entry.explained(reason.text())
    }

    /// An entry for `count` requests that the guest itself sent.
    pub fn of_outgoing(
        outcome: Outcome,
        reason: Reason,
        dropped: Option<DropLocation>,
        count: u64,
    ) -> LeftOut {
        let entry =
            LeftOut { blame: reason.blame_of_outgoing(), ..LeftOut::new(outcome, reason, dropped, count) };
        entry.explained(reason.text_of_outgoing())
    }

    /// An entry for `count` requests by a NIC that was given to the VM.
    pub fn of_passthrough(
        outcome: Outcome,
        reason: Reason,
        dropped: Option<DropLocation>,
        count: u64,
    ) -> LeftOut {
        LeftOut::new(outcome, reason, dropped, count).explained(reason.text_of_passthrough())
    }

    /// This entry, with an explanation that begins with `text`.
    fn explained(self, text: &str) -> LeftOut {
        let mut explanation = text.to_owned();
        if let Some(d) = &self.dropped {
            explanation += &if d.location.is_empty() {
                format!(" ({}; the place is not known)", d.why)
            } else {
                format!(" at {} ({})", d.location, d.why)
            };
            if !d.device.is_empty() {
                explanation += &format!(" on {}", d.device);
            }
        }
        LeftOut { explanation, ..self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_json_and_all_differ() {
        let mut names = std::collections::BTreeSet::new();
        for reason in Reason::ALL {
            assert_eq!(serde_json::to_string(reason).unwrap(), format!("\"{}\"", reason.name()));
            assert!(names.insert(reason.name()) && !reason.text().is_empty(), "{reason:?}");
        }
        for outcome in [Outcome::Incomplete, Outcome::Ambiguous, Outcome::Unanswered] {
            assert_eq!(serde_json::to_string(&outcome).unwrap(), format!("\"{}\"", outcome.name()));
        }
    }

    #[test]
    fn a_drop_is_explained_with_what_is_known_of_it() {
        let of = |location: &str, device: &str| {
            let d =
                DropLocation { location: location.into(), why: "FULL_RING".into(), device: device.into() };
            LeftOut::new(Outcome::Incomplete, Reason::DroppedIn, Some(d), 1).explanation
        };
        assert_eq!(of("tun_net_xmit", "tap0"), "dropped by the host at tun_net_xmit (FULL_RING) on tap0");
        let d = DropLocation { location: "f".into(), why: "FULL_RING".into(), device: "eth0".into() };
        let outgoing = LeftOut::of_outgoing(Outcome::Incomplete, Reason::DroppedOut, Some(d), 2);
        assert_eq!(outgoing.explanation, "dropped by the host on its way out at f (FULL_RING) on eth0");
        let unanswered = LeftOut::of_outgoing(Outcome::Unanswered, Reason::NoAnswer, None, 2);
        assert_eq!((unanswered.blame, unanswered.count), (Blame::Outside, 2));
        assert_eq!(of("", ""), "dropped by the host (FULL_RING; the place is not known)");
    }
}
