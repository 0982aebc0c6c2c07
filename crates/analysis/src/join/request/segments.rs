//! Requests of TCP: what [`Connections`](crate::join::connections) makes of segments becomes requests, copies and answers.

use super::{CopyId, RequestTable};
use crate::join::connections::{Heard, News, NoAnswer, Part};
use crate::join::{Common, Exclusion, Validity};
use teiji_model::event::{Match, Role, Segment};
use teiji_model::report::Reason;

impl RequestTable {
    /// The request that a packet to the guest begins, if it begins one.
    pub(super) fn of_client(
        &mut self,
        now: u64,
        vm: u32,
        m: &Match,
        validity: Validity,
        c: &mut Common,
    ) -> Option<(Match, Validity)> {
        match m.role {
            Role::Request | Role::Either => Some((*m, validity)),
            Role::Segment { .. } => {
                let (key, found) = self.segment(now, vm, m.key, &m.segment()?, true, validity, c)?;
                Some((Match { key, role: Role::Request, group: 0, ..*m }, validity.worse(found)))
            }
            Role::Trying | Role::Provisional | Role::Final | Role::OneWay => None,
        }
    }

    /// The answer that a packet of the guest begins, if it begins one.
    pub(super) fn of_guest(
        &mut self,
        now: u64,
        vm: u32,
        m: &Match,
        c: &mut Common,
    ) -> Option<(Match, Validity)> {
        match m.role {
            Role::Final | Role::Either => Some((*m, Validity::Valid)),
            Role::Segment { .. } => {
                let (key, found) = self.segment(now, vm, m.key, &m.segment()?, false, Validity::Valid, c)?;
                Some((Match { key, role: Role::Final, group: 0, ..*m }, found))
            }
            Role::Request | Role::Trying | Role::Provisional | Role::OneWay => None,
        }
    }

    /// Returns the key of the request, if the segment begins one or its answer, and whether that is certain. `packet`:
    /// whether the segment itself can be followed.
    #[allow(clippy::too_many_arguments, reason = "what is known of one segment")]
    fn segment(
        &mut self,
        now: u64,
        vm: u32,
        connection: u64,
        s: &Segment,
        to_guest: bool,
        packet: Validity,
        c: &mut Common,
    ) -> Option<(u64, Validity)> {
        let Heard { part, ended, news, given_up } =
            self.connections.segment(now, (vm, connection), s, to_guest, &c.lost);
        if let Some((vm, key, why)) = ended {
            self.ends_unanswered(vm, key, why, c);
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
                stats.connections.segments += 1;
                Some((key, validity))
            }
            Part::Answers { key, validity } => Some((key, validity)),
            Part::Continues { key, validity, second } => {
                stats.connections.segments += u64::from(to_guest);
                stats.connections.of_several_segments += u64::from(second);
                // A segment that the host drops keeps the guest waiting for its copy.
                let validity =
                    if s.payload > 0 && to_guest { validity.worse(dropped(packet)) } else { validity };
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
            NoAnswer::Closed => {
                if let Some(open) = self.open.remove(id) {
                    self.unanswered(open, Some(Reason::Closed.into()), c);
                }
            }
            NoAnswer::Missed => {
                self.index.remove(&(vm, key));
                self.close(Some(id), Validity::incomplete(Reason::SegmentMissing), c);
            }
            NoAnswer::Evicted => {
                c.evicted += 1;
                if let Some(open) = self.open.remove(id) {
                    self.unanswered(open, Some(Reason::Evicted.into()), c);
                }
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
