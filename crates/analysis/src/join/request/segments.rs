//! Requests of TCP: what [`Connections`](crate::join::connections) makes of segments becomes requests, copies and answers.

use super::{CopyId, RequestTable};
use crate::join::connections::{Ended, News, NoAnswer, Part, SegmentOutcome};
use crate::join::{Common, Exclusion, Validity};
use teiji_model::event::{Match, Role, Segment};
use teiji_model::report::Reason;

impl RequestTable {
    /// Takes a packet to the guest, or from it: a segment of TCP advances its connection, which may end and mark requests. Returns the
    /// packet's part in requests: its own match; or, of a segment, the request or the answer that it begins, and whether that is
    /// certain. To be called once for each packet. `packet_validity`: whether it can be followed.
    pub(in crate::join) fn part_of_packet(
        &mut self,
        now: u64,
        vm: u32,
        m: Option<&Match>,
        to_guest: bool,
        packet_validity: Validity,
        c: &mut Common,
    ) -> Option<(Match, Validity)> {
        let m = m?;
        let Some(segment) = m.segment() else { return Some((*m, Validity::Valid)) };
        let (key, role, validity) = self.segment(now, vm, m.key, &segment, to_guest, packet_validity, c)?;
        Some((Match { key, role, group: 0, ..*m }, validity))
    }

    /// Returns the key of the request, if the segment begins one or its answer, which of the two, and whether that is certain.
    /// `packet_validity`: whether the segment itself can be followed.
    #[allow(clippy::too_many_arguments, reason = "what is known of one segment")]
    fn segment(
        &mut self,
        now: u64,
        vm: u32,
        connection: u64,
        s: &Segment,
        to_guest: bool,
        packet_validity: Validity,
        c: &mut Common,
    ) -> Option<(u64, Role, Validity)> {
        let SegmentOutcome { part, guest_is_client, ended, news, given_up } =
            self.connections.segment(now, (vm, connection), s, to_guest, &c.lost);
        if let Some(Ended { vm, key, guest_is_client, why }) = ended {
            if guest_is_client {
                self.outgoing.ends_unanswered(vm, key, why, c);
            } else {
                self.ends_unanswered(vm, key, why, c);
            }
        }
        c.evicted += u64::from(given_up);
        let stats = &mut c.vm_stats[vm as usize];
        match news {
            Some(News::Seen { client }) => {
                stats.connections.seen += 1;
                stats.connections.client_not_known += u64::from(!client);
            }
            Some(News::Interleaved) => stats.connections.interleaved += 1,
            None => {}
        }
        match part {
            Part::None => None,
            Part::Begins { key, validity } => {
                stats.connections.segments += u64::from(!guest_is_client);
                Some((key, Role::Request, validity))
            }
            Part::Answers { key, validity } => Some((key, Role::Final, validity)),
            Part::Continues { key, validity, .. } | Part::Doubts { key, validity } if guest_is_client => {
                self.outgoing.continues(vm, key, validity);
                None
            }
            Part::Again { key } if guest_is_client => {
                self.outgoing.segment_again(vm, key, c);
                None
            }
            Part::Continues { key, validity, second } => {
                stats.connections.segments += 1;
                stats.connections.of_several_segments += u64::from(second);
                // A segment that the host drops keeps the guest waiting for its copy.
                let validity =
                    if s.payload > 0 { validity.worse(dropped(packet_validity)) } else { validity };
                self.mark(self.index.get(&(vm, key)).copied().map(CopyId::first), validity);
                None
            }
            Part::Doubts { key, validity } => {
                self.mark(self.index.get(&(vm, key)).copied().map(CopyId::first), validity);
                None
            }
            Part::Again { key } => {
                stats.requests.retransmitted += 1;
                if let Some(id) = key.and_then(|key| self.index.get(&(vm, key))).copied()
                    && let Some(open) = self.open.get_mut(id)
                {
                    open.segment_again = true;
                }
                None
            }
        }
    }

    /// A request that is open gets no answer any more.
    fn ends_unanswered(&mut self, vm: u32, key: u64, why: NoAnswer, c: &mut Common) {
        let Some(id) = self.index.get(&(vm, key)).copied() else { return };
        match why {
            NoAnswer::Closed | NoAnswer::Evicted => {
                let reason = if why == NoAnswer::Closed { Reason::Closed } else { Reason::Evicted };
                c.evicted += u64::from(why == NoAnswer::Evicted);
                if let Some(open) = self.open.remove(id) {
                    self.unanswered(open, Some(reason.into()), c);
                }
            }
            NoAnswer::Missed => {
                self.index.remove(&(vm, key));
                self.close(Some(id), Validity::incomplete(Reason::SegmentMissing), c);
            }
        }
    }

    /// The kernel has dropped a segment that was on a tap already.
    pub(in crate::join) fn segment_dropped(&mut self, vm: u32, m: Option<&Match>, exclusion: Exclusion) {
        if let Some(m) = m
            && let Some(s) = m.segment()
            && let Some(key) = self.connections.request_of(vm, m.key, &s)
        {
            self.mark(
                self.index.get(&(vm, key)).copied().map(CopyId::first),
                Validity::Incomplete(exclusion),
            );
        }
    }
}

/// A packet's own validity, if the host is known to have dropped it.
fn dropped(packet: Validity) -> Validity {
    match packet {
        Validity::Incomplete(exclusion) if exclusion.reason.is_drop() => packet,
        _ => Validity::Valid,
    }
}
