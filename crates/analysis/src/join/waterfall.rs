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

use super::Common;
use super::delivery::InboundPacket;
use super::outbound::OutboundPacket;
use super::request::Open;
use super::waits::Waiter;
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
    c: &mut Common,
    joined: &mut Joined,
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

    let pid = c.pids[open.vm as usize];
    for (stage, ns) in Stage::ALL.into_iter().zip(ns) {
        let both = readings(stage, packet, open, pid);
        let fitted = both.and_then(|(_, from, to)| fit(to.checked_since(&from)?, ns));
        c.splits_dropped += u64::from(both.is_some() && fitted.is_none());
        r.stages.push(StageTime { stage, ns, split: fitted });
    }
    r.preempted = return_waits(&mut r.stages);
    for time in &r.stages {
        let waited = time.split.is_some_and(|split| split.get(ThreadState::Ready) > 0);
        let Some((waiter, from, to)) = readings(time.stage, packet, open, pid).filter(|_| waited) else {
            continue;
        };
        let with_guest = time.stage == Stage::VcpuWake && r.preempted > 0;
        let guest = readings(Stage::Guest, packet, open, pid).filter(|_| with_guest);
        let to = guest.map_or(to, |(_, _, to)| to);
        // A number of its own for each stage of each request.
        let chance = r.start ^ (time.stage as u64) << 56;
        // Waits for which nobody is named count too: the others are to be shares of all.
        joined.preempted_by.push((time.stage, c.waits.preempted_by(waiter, &from, &to, chance)));
    }
    Some(())
}

/// The thread of a stage, and its clock at the stage's beginning and end, if both were read.
fn readings(stage: Stage, packet: &InboundPacket, open: &Open, pid: u32) -> Option<(Waiter, Split, Split)> {
    let kick = open.kick.map(|(_, k)| k);
    let vcpu = Waiter::Vcpu(pid, packet.vcpu);
    match stage {
        Stage::TapQueue => Some((Waiter::Worker(packet.worker), packet.put_clock?, packet.taken_clock?)),
        Stage::VcpuWake => Some((vcpu, packet.accept_clock?, packet.entry_clock)),
        Stage::Guest => kick.filter(|k| k.vcpu == packet.vcpu).map(|k| (vcpu, packet.entry_clock, k.clock)),
        Stage::VhostTx => match kick {
            Some(k) => Some((Waiter::Worker(open.sender?), k.worker?, open.worker?)),
            // It has no time.
            None => Some((vcpu, Split::default(), Split::default())),
        },
        _ => None,
    }
}

/// Moves the time that the vCPU waited for a CPU within `guest` to `vcpu_wake`: the guest had begun, but it is the host
/// that has to keep it running. Returns that time, ns.
fn return_waits(stages: &mut [StageTime]) -> u64 {
    const READY: usize = ThreadState::Ready as usize;
    let (before, after) = stages.split_at_mut(Stage::Guest as usize);
    let (Some(wake), Some(guest)) = (before.last_mut(), after.first_mut()) else { return 0 };
    let (Some(in_wake), Some(in_guest)) = (&mut wake.split, &mut guest.split) else { return 0 };
    let waited = in_guest.0[READY];
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
