//! Packets from guests that the kernel drops.

use super::{Outbound, OutboundPacket};
use crate::join::request::RequestTable;
use crate::join::{Common, Exclusion, Validity};
use teiji_model::event::Dropped;
use teiji_model::report::Reason;

impl Outbound {
    /// The kernel has dropped a packet that may come from a guest. Returns whether it cannot have been on its way to a
    /// guest. `waits`: an identical packet is on the tap where the drop happened. The dropped packet may then be a
    /// request, if guests cannot be recognised by their MAC addresses.
    pub(in crate::join) fn dropped(
        &mut self,
        now: u64,
        d: &Dropped,
        waits: bool,
        c: &mut Common,
        requests: &mut RequestTable,
    ) -> bool {
        let exclusion = Exclusion { reason: Reason::DroppedOut, drop: c.drop_sites.number(d) };
        let Some(s) = self.records.get_mut(&d.fingerprint) else {
            if d.unspecified || d.tap == d.ifindex || waits {
                return false;
            }
            let Some(tap) = c.tap(d.ifindex) else { return false };
            // Dropped before the host stack received it.
            let vm = c.taps[tap].vm;
            return requests.answer_dropped(now, vm, d.matching.as_ref(), exclusion, c);
        };
        if s.ambiguous {
            // Counted when it became ambiguous.
        } else if !d.unspecified && s.is_at(d.ifindex) {
            if let Some(s) = self.records.remove(&d.fingerprint) {
                Self::count_drop(&s, exclusion, c, requests);
            }
        } else if !s.over() {
            s.drop = Some(exclusion);
        }
        d.tap == 0
    }

    pub(super) fn count_drop(
        s: &OutboundPacket,
        exclusion: Exclusion,
        c: &mut Common,
        requests: &mut RequestTable,
    ) {
        let stats = &mut c.vm_stats[s.vm as usize].outbound;
        stats.incomplete += 1;
        stats.dropped += 1;
        Self::not_left(s, Validity::Incomplete(exclusion), c, requests);
    }
}
