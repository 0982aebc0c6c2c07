//! Packets toward guests that the kernel drops.

use super::{IdenticalPackets, Inbound, OTHERS, PacketsOfFingerprint};
use crate::join::request::RequestTable;
use crate::join::{Common, Exclusion, Served, Tap};
use teiji_model::event::{self, Dropped, Match};
use teiji_model::report::Reason;

/// A drop before any tap that may be that of a packet or of a copy of it.
#[derive(Clone, Copy)]
pub(super) struct PossibleDrop {
    exclusion: Exclusion,
    /// The tap that the packet was meant for.
    tap: u32,
    matching: Option<Match>,
}

/// Whether a packet was dropped at the tap that it was meant for.
fn is_at_its_tap(d: &Dropped, c: &Common) -> bool {
    d.tap == d.ifindex && c.tap(d.tap).is_some()
}

/// The functions of `drivers/net/tun.c` and `drivers/net/tap.c` that take packets off a tap and give them to its reader.
const READERS: [&str; 8] = [
    "tun_do_read",
    "tun_put_user",
    "tun_recvmsg",
    "tun_chr_read_iter",
    "tap_do_read",
    "tap_put_user",
    "tap_recvmsg",
    "tap_read_iter",
];

/// Whether a packet was dropped by who had taken it off the tap.
fn is_by_reader(d: &Dropped) -> bool {
    let location = event::name(&d.location);
    READERS.iter().any(|reader| location.starts_with(reader))
}

impl Inbound {
    /// Takes a drop of a packet that its reader had taken off a tap: whatever is known of others like it, it was this one. Returns
    /// whether it is such a drop.
    pub(in crate::join) fn discarded(
        &mut self,
        now: u64,
        d: &Dropped,
        c: &mut Common,
        requests: &mut RequestTable,
    ) -> bool {
        let Some(tap) = c.tap(d.ifindex).filter(|_| is_by_reader(d)) else { return false };
        let exclusion = Exclusion { reason: Reason::DroppedIn, drop: c.drop_sites.number(d) };
        if self.delivery.discarded(now, d.ifindex, d.fingerprint, exclusion, c, requests) {
            requests.segment_dropped(c.taps[tap].vm, d.matching.as_ref(), exclusion);
        }
        true
    }

    /// The kernel has dropped a packet that may be on its way to a guest.
    pub(in crate::join) fn dropped(
        &mut self,
        now: u64,
        d: &Dropped,
        identical: IdenticalPackets,
        c: &mut Common,
        requests: &mut RequestTable,
    ) {
        let exclusion = Exclusion { reason: Reason::DroppedIn, drop: c.drop_sites.number(d) };
        let drop = PossibleDrop { exclusion, tap: d.tap, matching: d.matching };
        match self.records.get(&d.fingerprint) {
            None => self.drop_without_record(now, d, drop, c, requests),
            Some(r) if r.is_on(d.ifindex) => self.drop_on_tap(now, d, drop, identical.follows, c, requests),
            Some(r) if r.ambiguous => self.drop_of_ambiguous(now, d, drop, c, requests),
            Some(r) if r.enqueued == 0 && r.dropped_before_tap.is_none() => {
                self.drop_before_tap(now, d, drop, identical.sent, c, requests);
            }
            Some(_) => {}
        }
    }

    /// Nothing was seen of the packet before.
    fn drop_without_record(
        &mut self,
        now: u64,
        d: &Dropped,
        drop: PossibleDrop,
        c: &mut Common,
        requests: &mut RequestTable,
    ) {
        if is_at_its_tap(d, c) && !d.unspecified {
            Self::count_drop(now, drop, now, c, requests);
        } else if c.tap(d.tap).is_some() && c.tap(d.ifindex).is_none() {
            let record = PacketsOfFingerprint {
                first: now,
                possible_drop: Some(drop),
                ..PacketsOfFingerprint::default()
            };
            self.insert(d.fingerprint, record, now, c, requests);
        }
    }

    /// The packet is on a tap. `follows`: an identical one may be on its way to that tap.
    fn drop_on_tap(
        &mut self,
        now: u64,
        d: &Dropped,
        drop: PossibleDrop,
        follows: bool,
        c: &mut Common,
        requests: &mut RequestTable,
    ) {
        let Some(r) = self.records.get_mut(&d.fingerprint) else { return };
        if follows && !d.unspecified {
            // It is not known which of the two was dropped.
            Self::mark_ambiguous(r, &mut self.delivery, requests);
            r.sent = true;
            r.dequeued = r.dequeued.saturating_add(1);
            self.records.touch(&d.fingerprint, now);
            return;
        }
        let slot = r.on_taps.iter_mut().find(|t| t.is_some_and(|(ifindex, _)| ifindex == d.ifindex));
        let id = slot.and_then(|slot| if d.unspecified { *slot } else { slot.take() });
        if let Some((_, id)) = id.filter(|_| d.unspecified) {
            self.delivery.may_be_dropped(id, drop.exclusion);
        } else if let Some((_, id)) = id {
            self.delivery.dropped(now, id, drop.exclusion, c, requests);
            if let Some(tap) = c.tap(d.ifindex) {
                requests.segment_dropped(c.taps[tap].vm, drop.matching.as_ref(), drop.exclusion);
            }
        }
        if !d.unspecified && !r.open() {
            self.records.remove(&d.fingerprint);
        }
    }

    /// It does not matter which of the identical packets it was. The drop takes the place of its dequeue, and of its
    /// enqueue if it had none.
    fn drop_of_ambiguous(
        &mut self,
        now: u64,
        d: &Dropped,
        drop: PossibleDrop,
        c: &mut Common,
        requests: &mut RequestTable,
    ) {
        let Some(r) = self.records.get_mut(&d.fingerprint) else { return };
        if !is_at_its_tap(d, c) || d.unspecified {
            return;
        }
        let before = r.enqueued == r.dequeued;
        r.dequeued = r.dequeued.saturating_add(1);
        if before {
            r.enqueued = r.enqueued.saturating_add(1);
            Self::count_drop(now, drop, r.first, c, requests);
        }
    }

    /// The packet is not on a tap yet. `sent`: see [`IdenticalPackets`].
    fn drop_before_tap(
        &mut self,
        now: u64,
        d: &Dropped,
        drop: PossibleDrop,
        sent: Option<bool>,
        c: &mut Common,
        requests: &mut RequestTable,
    ) {
        let Some(r) = self.records.get_mut(&d.fingerprint) else { return };
        let received = r.reports > 0;
        let start = if received { r.first } else { now };
        if !d.unspecified && (is_at_its_tap(d, c) || received && d.ifindex == r.first_if) {
            let device = u64::from(r.first_if);
            let learnt = |key, n| self.learnt.get(key).unwrap_or(n);
            let as_learnt = r.reports <= learnt(device, 1) && r.others <= learnt(device | OTHERS, 0);
            if sent.unwrap_or(!as_learnt) {
                // An identical packet was received as well, and it is not known which report belongs to which.
                r.ambiguous = true;
                (r.enqueued, r.dequeued) = (1, 1);
            } else {
                r.dropped_before_tap = Some(d.tap);
            }
            Self::count_drop(now, drop, start, c, requests);
        } else if c.tap(d.ifindex).is_none()
            && c.tap(d.tap).is_some()
            && r.possible_drop.is_none_or(|_| !d.unspecified)
        {
            r.possible_drop = Some(drop);
        }
    }

    /// Counts a packet that was dropped before it reached its tap.
    pub(super) fn count_drop(
        now: u64,
        drop: PossibleDrop,
        start: u64,
        c: &mut Common,
        requests: &mut RequestTable,
    ) {
        let Some(tap) = c.tap(drop.tap) else { return };
        let Tap { vm, served, .. } = c.taps[tap];
        let stats = &mut c.vm_stats[vm as usize].inbound;
        stats.incomplete += 1;
        stats.dropped += 1;
        if served == Served::Unseen {
            return; // On such a tap requests are not followed.
        }
        requests.dropped_before(now, vm, drop.matching.as_ref(), start, drop.exclusion, c);
    }
}
