//! Computes the stages of a joined request.
//!
//! Each stage ends where the next begins, so that they add up to the total; time that no stage accounts for is
//! `unattributed`. `guest` ends at the last kick of the tap queue that carried the response, not before the guest
//! entry and not after the frame was sent. If there is no such kick, a worker that was already running took the
//! frame: then `guest` lasts until the frame was sent, and the request is marked (`coalesced_kick`).
//!
//! While the guest works on a request, its vCPU may be preempted by another thread. The host causes these waits, so
//! they are subtracted from `guest` and added to `vcpu_wake`, which has the request's other waits for the vCPU
//! (docs/decisions/0004).
//!
//! A stage is split by the difference of its thread's clock readings at both ends. The clocks are not read at exactly
//! the instant of the time stamps, so the sum may be off by [`SLACK`] or 2 %, whichever is more: the largest part is
//! adjusted. A split that is off by more is discarded.

use super::outbound::OutboundPacket;
use super::request::Open;
use teiji_model::event::Role;
use teiji_model::report::{Joined, Request, StageTime};
use teiji_model::stage::{Split, Stage, ThreadState};

/// How much a split may always differ from its stage, ns.
const SLACK: u64 = 2000;

/// An empty request, to be filled by [`fill_stages`].
pub(super) fn empty() -> Joined {
    Joined {
        vm: 0,
        request: Request {
            key: 0,
            group: 0,
            start: 0,
            total: 0,
            stages: Vec::with_capacity(Stage::COUNT),
            depth: 0,
            vcpu: 0,
            vcpu_state: None,
            preempted: 0,
            coalesced_kick: false,
            inside: None,
            threads: None,
            copies: 1,
            answered: None,
        },
        ended_by: Role::Final,
        preempted_by: Vec::with_capacity(4),
    }
}

/// Fills `joined`; `None` if a point is missing or out of order.
pub(super) fn fill_stages(
    open: &Open,
    sent: &OutboundPacket,
    joined: &mut Joined,
    dropped: &mut u64,
) -> Option<()> {
    let packet = open.inbound.as_ref()?;
    let (switch_out, rest) = sent.stages()?;
    let left = open.kick.map_or(sent.sent, |(ts, _)| ts);
    let total = sent.end().checked_sub(packet.start)?;
    let (qdisc, wire_out) = rest.unwrap_or((0, 0));
    let mut ns = [
        packet.enqueued.checked_sub(packet.start)?,
        packet.dequeued.checked_sub(packet.enqueued)?,
        packet.signalled.checked_sub(packet.dequeued)?,
        packet.accepted.checked_sub(packet.signalled)?,
        packet.entered.checked_sub(packet.accepted)?,
        left.checked_sub(packet.entered)?,
        sent.sent.checked_sub(left)?,
        switch_out,
        qdisc,
        wire_out,
        0,
    ];
    ns[Stage::Unattributed as usize] = total.checked_sub(ns.iter().sum())?;

    joined.vm = open.vm as usize;
    joined.ended_by = open.answered_by;
    let r = &mut joined.request;
    r.key = open.matching.key;
    r.group = open.matching.group;
    r.start = packet.start;
    r.total = total;
    r.depth = packet.depth;
    r.vcpu = packet.vcpu_index;
    r.vcpu_state = packet.state;
    r.coalesced_kick = open.kick.is_none();
    r.stages.clear();
    joined.preempted_by.clear();

    let kick = open.kick.map(|(_, k)| k);
    let same_vcpu = kick.filter(|k| k.vcpu == packet.vcpu);
    for (stage, ns) in Stage::ALL.into_iter().zip(ns) {
        // Both readings of the thread's clock, and the thread that preempted it.
        let (clocks, preempted_by) = match stage {
            Stage::TapQueue => (packet.put_clock.zip(packet.taken_clock), packet.worker_preempted_by),
            Stage::VcpuWake => {
                (packet.accept_clock.map(|accepted| (accepted, packet.entry_clock)), packet.vcpu_preempted_by)
            }
            Stage::Guest => {
                (same_vcpu.map(|k| (packet.entry_clock, k.clock)), same_vcpu.map_or(0, |k| k.preempted_by))
            }
            Stage::VhostTx => match kick {
                Some(k) => (k.worker.zip(open.worker), open.preempted_by),
                None => (Some(Default::default()), 0),
            },
            _ => (None, 0),
        };
        let fitted = clocks.and_then(|(from, to)| fit(to.checked_since(&from)?, ns));
        *dropped += u64::from(clocks.is_some() && fitted.is_none());
        // Waits for which nobody is named count too: the others are to be shares of all.
        if fitted.is_some_and(|s| s.get(ThreadState::Ready) > 0) {
            joined.preempted_by.push((stage, preempted_by));
        }
        r.stages.push(StageTime { stage, ns, split: fitted });
    }
    r.preempted = return_waits(&mut r.stages, &mut joined.preempted_by);
    Some(())
}

/// Moves the time that the vCPU waited for a CPU within `guest` to `vcpu_wake`: the guest had begun, but it is the host
/// that has to keep it running. Returns that time, ns.
fn return_waits(stages: &mut [StageTime], preempted_by: &mut Vec<(Stage, u32)>) -> u64 {
    const READY: usize = ThreadState::Ready as usize;
    let (before, after) = stages.split_at_mut(Stage::Guest as usize);
    let (Some(wake), Some(guest)) = (before.last_mut(), after.first_mut()) else { return 0 };
    let (Some(in_wake), Some(in_guest)) = (&mut wake.split, &mut guest.split) else { return 0 };
    let waited = in_guest.0[READY];
    if waited == 0 {
        return 0;
    }
    // Only one preempting thread is kept for the whole wait: that of the longer part.
    let (less, more) = if waited > in_wake.0[READY] {
        (Stage::VcpuWake, Stage::Guest)
    } else {
        (Stage::Guest, Stage::VcpuWake)
    };
    if preempted_by.iter().any(|(stage, _)| *stage == more) {
        preempted_by.retain(|(stage, _)| *stage != less);
    }
    for (stage, _) in preempted_by {
        if *stage == Stage::Guest {
            *stage = Stage::VcpuWake;
        }
    }
    in_guest.0[READY] = 0;
    guest.ns -= waited;
    in_wake.0[READY] += waited;
    wake.ns += waited;
    waited
}

/// `split` made to add up to `ns`, if it nearly does.
fn fit(split: Split, ns: u64) -> Option<Split> {
    let total = split.total();
    if total.abs_diff(ns) > SLACK.max(ns / 50) {
        return None;
    }
    let mut parts = split.0;
    let greatest = parts.iter_mut().max()?;
    if total <= ns {
        // A clock that did not advance says nothing about what the thread did.
        if total == 0 && ns > 0 {
            return None;
        }
        *greatest += ns - total;
    } else {
        *greatest = greatest.checked_sub(total - ns)?;
    }
    Some(Split(parts))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_split_is_fitted_or_dropped_but_never_invented() {
        let s = Split([0, 0, 10_000, 50_000, 0]);
        assert_eq!(fit(s, 60_000), Some(s));
        assert_eq!(fit(s, 61_000), Some(Split([0, 0, 10_000, 51_000, 0])));
        assert_eq!(fit(s, 58_000), Some(Split([0, 0, 10_000, 48_000, 0])));
        assert_eq!(fit(s, 63_000), None);
        assert_eq!(fit(s, 57_000), None);
        let long = Split([0, 0, 0, 1_000_000, 0]);
        assert_eq!(fit(long, 1_020_000), Some(Split([0, 0, 0, 1_020_000, 0])));
        assert_eq!(fit(long, 1_021_000), None);
        assert_eq!(fit(Split::default(), 500), None);
        assert_eq!(fit(Split::default(), 0), Some(Split::default()));
        assert_eq!(fit(Split([900, 900, 0, 0, 0]), 0), None);
        assert_eq!(fit(Split([900, 0, 0, 0, 0]), 0), Some(Split::default()));
    }
}
