//! Who had a thread's CPU while it waited for it: by the kernel's own trace points ([`crate::switches`]), and by teiji.
//!
//! teiji names one thread for each wait, by chance: each thread as often as it deserves (docs/decisions/0003). So a share of all waits is
//! an estimate. The trace points say what each thread deserved. With that the names are drawn again many times, which shows how far the
//! estimate may be off: that depends on how many waits there were, and how unequal they are, and on a busy machine it changes from run to
//! run.

use super::blame::WAIT_CAP;
use crate::admission::Rng;
use crate::switches::Turns;
use crate::tracing::{events, requests};
use anyhow::{Result, ensure};
use std::path::Path;
use teiji_model::event::{EventKind, Point};
use teiji_model::report::Joined;
use teiji_model::stage::{Stage, ThreadState};

/// How often all names are drawn. That a share of teiji's is further off than those of all of these, although its names are drawn in the
/// same way, has a probability of 1 in 100,000.
const DRAWS: usize = 200_000;
/// What the probes and the trace points may disagree about besides, as a share of the waits.
const OFF: f64 = 0.02;

/// A wait in teiji's view: a time in which it is, its length, ns, and the thread that is named for it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wait {
    pub(super) from: u64,
    pub(super) to: u64,
    pub(super) ns: u64,
    pub(super) named: u32,
}

/// A thread that waits for its CPU.
#[derive(Clone, Copy, Debug)]
pub(super) enum Waiter {
    /// The vCPU of the VM with this process id.
    Vcpu(u32),
    /// The vhost worker with this thread id.
    Worker(u32),
}

/// The waits between two readings of the thread's clock in a row.
pub(super) fn of_readings(recording: &Path, waiter: Waiter) -> Result<Vec<Wait>> {
    let mut events = events(recording)?;
    // A recording has waits in frames of their own.
    events.sort_by_key(|event| event.ts);
    let mut last = None;
    let mut waits = Vec::new();
    for event in events {
        let (clock, named) = match (waiter, event.kind) {
            (Waiter::Vcpu(vm), EventKind::GuestEntry(e)) if e.vm == vm => (e.clock, e.preempted_by),
            (Waiter::Vcpu(vm), EventKind::Kick(k)) if k.vm == vm => (k.clock, k.preempted_by),
            (Waiter::Vcpu(vm), EventKind::Wait(w)) if w.vm == vm && w.vcpu.is_some() => {
                (w.clock, w.preempted_by)
            }
            (Waiter::Worker(tid), EventKind::Wait(w)) if w.tid == tid => (w.clock, w.preempted_by),
            (Waiter::Worker(tid), EventKind::Packet(p))
                if p.tid == tid && matches!(p.point, Point::TapDequeue | Point::TapSend) =>
            {
                let Some(clock) = p.worker else { continue };
                (clock, p.preempted_by)
            }
            _ => continue,
        };
        let ready = clock.get(ThreadState::Ready);
        // A clock begins at 0: the first reading has all of the wait since then.
        let (from, before) = last.unwrap_or((event.ts.saturating_sub(clock.total()), 0));
        waits.push(Wait { from, to: event.ts, ns: ready.saturating_sub(before), named });
        last = Some((event.ts, ready));
    }
    Ok(waits)
}

/// The wait of a request for its vCPU.
fn of_request(joined: &Joined) -> Option<Wait> {
    let stages = &joined.request.stages;
    let time = |stage: Stage| stages.iter().find(|time| time.stage == stage);
    let wake = time(Stage::VcpuWake)?;
    let before: u64 =
        stages.iter().take_while(|time| time.stage != Stage::VcpuWake).map(|time| time.ns).sum();
    let from = joined.request.start + before;
    // Waits in the guest were added to those before: see `return_waits`.
    let guest = if joined.request.preempted > 0 { time(Stage::Guest)?.ns } else { 0 };
    let (_, named) = *joined.preempted_by.iter().find(|(stage, _)| *stage == Stage::VcpuWake)?;
    Some(Wait { from, to: from + wake.ns + guest, ns: wake.split?.get(ThreadState::Ready), named })
}

/// What share of the waits is said to be behind some threads, each wait counted up to [`WAIT_CAP`].
#[derive(Clone, Copy, Debug)]
pub struct Share {
    /// The waits.
    pub waits: usize,
    /// By teiji.
    pub named: f64,
    /// By the trace points.
    pub deserved: f64,
    /// The least and the greatest share of [`DRAWS`] that give each thread what it deserves of each reading.
    pub drawn: [f64; 2],
    /// By the trace points, if whoever had the CPU last were named for all of a wait.
    pub by_last: f64,
}

impl Share {
    fn may_be(&self, share: f64) -> bool {
        (self.drawn[0] - OFF..=self.drawn[1] + OFF).contains(&share)
    }

    /// Whether `named` is what the threads deserve.
    pub fn is_fair(&self) -> bool {
        self.may_be(self.named)
    }
}

/// The share of waits behind `tids`. Each wait gets the name of one of the readings that lie in it.
fn share(waits: &[Wait], readings: &[Wait], turns: &Turns, tids: &[u32]) -> Share {
    let mut share = Share { waits: 0, named: 0.0, deserved: 0.0, drawn: [1.0, 0.0], by_last: 0.0 };
    let mut all_weights = 0.0;
    // Of each wait: its weight, and the readings in it, each with the part of it that comes before the reading.
    let mut parts: Vec<(f64, Vec<(f64, usize)>)> = Vec::new();
    for wait in waits {
        let (all, behind) = turns.waited(wait.from, wait.to, tids);
        let weight = wait.ns.min(WAIT_CAP) as f64;
        let counts = |tid: u32| if tids.contains(&tid) { weight } else { 0.0 };
        share.waits += 1;
        all_weights += weight;
        share.deserved += weight * behind as f64 / all as f64;
        share.named += counts(wait.named);
        share.by_last += turns.last(wait.from, wait.to).map_or(0.0, counts);
        let (mut within, mut before) = (Vec::new(), 0);
        let first = readings.partition_point(|reading| reading.to <= wait.from);
        for (i, reading) in readings.iter().enumerate().skip(first).take_while(|(_, r)| r.from < wait.to) {
            before += turns.waited(reading.from.max(wait.from), reading.to.min(wait.to), tids).0;
            within.push((before as f64 / all as f64, i));
        }
        parts.push((weight, within));
    }
    let of_reading = |reading: &Wait| {
        let (all, behind) = turns.waited(reading.from, reading.to, tids);
        behind as f64 / all.max(1) as f64
    };
    let of_readings: Vec<f64> = readings.iter().map(of_reading).collect();
    let mut rng = Rng::new(1);
    let mut named = vec![false; readings.len()];
    for _ in 0..DRAWS {
        for (name, deserved) in named.iter_mut().zip(&of_readings) {
            *name = *deserved > 0.0 && (*deserved >= 1.0 || rng.unit() < *deserved);
        }
        let drawn: f64 = parts
            .iter()
            .map(|(weight, within)| {
                let point = if within.len() > 1 { rng.unit() } else { 0.0 };
                let at = within.iter().find(|(until, _)| point <= *until).or(within.last());
                if at.is_some_and(|(_, reading)| named[*reading]) { *weight } else { 0.0 }
            })
            .sum();
        let drawn = drawn / all_weights;
        share.drawn = [drawn.min(share.drawn[0]), drawn.max(share.drawn[1])];
    }
    for sum in [&mut share.named, &mut share.deserved, &mut share.by_last] {
        *sum /= all_weights;
    }
    share
}

/// Whether the trace points say the same of a wait, or of a time without one. This machine may stop the emulated CPU between a probe
/// and a trace point.
fn agrees(wait: &Wait, turns: &Turns) -> bool {
    let (all, _) = turns.waited(wait.from, wait.to, &[]);
    (all > 0 || wait.ns == 0) && all.abs_diff(wait.ns) <= 1_000_000 + wait.ns / 10
}

/// The waits of which the trace points say the same, and the others.
fn confirmed(waits: Vec<Wait>, turns: &Turns) -> (Vec<Wait>, Vec<Wait>) {
    waits.into_iter().filter(|wait| wait.ns > 0).partition(|wait| agrees(wait, turns))
}

/// Fails unless most of these waits are confirmed.
fn most_agree(what: &str, agreed: usize, others: usize) -> Result<()> {
    ensure!(
        agreed > 0 && others * 10 <= agreed,
        "{others} waits {what} are not those of the trace points, {agreed} are"
    );
    Ok(())
}

/// The waits between readings that are [`confirmed`]: most of them have to be.
fn agreed(readings: Vec<Wait>, turns: &Turns) -> Result<Vec<Wait>> {
    let (agreed, others) = confirmed(readings, turns);
    most_agree("between readings", agreed.len(), others.len())?;
    Ok(agreed)
}

/// The waits of requests that are [`confirmed`]. One reading of which the trace points do not say the same lies in the waits of all
/// requests that were in flight, so how many of these are left says little. Of the other requests most have to be confirmed.
fn agreed_of_requests(requests: Vec<Wait>, readings: &[Wait], turns: &Turns) -> Result<Vec<Wait>> {
    let bad: Vec<&Wait> = readings.iter().filter(|reading| !agrees(reading, turns)).collect();
    let (agreed, mut others) = confirmed(requests, turns);
    others.retain(|wait| !bad.iter().any(|reading| reading.from < wait.to && wait.from < reading.to));
    most_agree("of requests", agreed.len(), others.len())?;
    Ok(agreed)
}

/// The shares of the waits for a vCPU that are behind some threads.
#[derive(Debug)]
pub struct Shares {
    /// Of the waits between two readings of its clock: each has a name of its own.
    pub of_readings: Share,
    /// Of those that ended when another thread than these gave up the CPU, so that `by_last` is 0. `None` if there are none.
    pub ended_by_others: Option<Share>,
    /// Of the waits of requests.
    pub of_requests: Share,
}

impl Shares {
    /// Whether the shares would not be fair if whoever had the CPU last were named for all of a wait.
    pub fn tell(&self) -> bool {
        self.ended_by_others.is_some_and(|share| !share.may_be(share.by_last))
    }
}

/// The shares of the waits for the vCPU of `vm` that are behind `tids`.
///
/// # Errors
/// If the recording cannot be read, or its waits are not those of the trace points.
pub fn shares(recording: &Path, vm: u32, turns: &Turns, tids: &[u32]) -> Result<Shares> {
    let readings = of_readings(recording, Waiter::Vcpu(vm))?;
    let waits = agreed(readings.clone(), turns)?;
    let requests = requests(recording)?.0.iter().filter_map(of_request).collect();
    let requests = agreed_of_requests(requests, &readings, turns)?;
    let by_others = |wait: &&Wait| turns.last(wait.from, wait.to).is_some_and(|tid| !tids.contains(&tid));
    let ended: Vec<Wait> = waits.iter().filter(by_others).copied().collect();
    Ok(Shares {
        of_readings: share(&waits, &readings, turns, tids),
        ended_by_others: (!ended.is_empty()).then(|| share(&ended, &readings, turns, tids)),
        of_requests: share(&requests, &readings, turns, tids),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::switches::Turn;

    /// Many short waits and a few long ones, which all are nine tenths behind the thread 40.
    #[test]
    fn whoever_was_last_is_told_from_what_is_deserved() {
        let (mut turns, mut waits) = (Vec::new(), Vec::new());
        for i in 0..400_u64 {
            let ns = if i.is_multiple_of(20) { 40_000_000 } else { 2_000_000 };
            let (from, to) = (i * 50_000_000, i * 50_000_000 + ns);
            let between = to - ns / 10;
            turns.extend([
                Turn { from, to: between, tid: 40, chosen: true },
                Turn { from: between, to, tid: 41, chosen: true },
            ]);
            waits.push(Wait { from, to, ns, named: if i % 10 == 7 { 41 } else { 40 } });
        }
        let turns = Turns(turns);
        let fair = share(&waits, &waits, &turns, &[40]);
        assert!((fair.deserved - 0.9).abs() < 1e-6 && fair.by_last == 0.0, "{fair:?}");
        assert!(fair.is_fair() && fair.drawn[0] > 0.6 && fair.drawn[1] > 0.97, "{fair:?}");
        waits.iter_mut().for_each(|wait| wait.named = 41);
        let unfair = share(&waits, &waits, &turns, &[40]);
        assert!(!unfair.is_fair() && unfair.named == unfair.by_last, "{unfair:?}");
        assert_eq!(agreed(waits.clone(), &turns).unwrap().len(), waits.len());
        waits.iter_mut().for_each(|wait| wait.ns *= 2);
        assert!(agreed(waits, &turns).is_err());
    }

    /// Twenty requests wait for 20 ms each, each during two readings.
    #[test]
    fn a_request_whose_wait_is_not_confirmed_is_left_out_only_with_a_reading_that_is_not() {
        const MS: u64 = 1_000_000;
        let wait = |from: u64, ms: u64| Wait { from, to: from + ms * MS, ns: ms * MS, named: 40 };
        let begins: Vec<u64> = (0..20).map(|i| i * 100 * MS).collect();
        let turns = begins.iter().map(|&from| Turn { from, to: from + 20 * MS, tid: 40, chosen: true });
        let turns = Turns(turns.collect());
        let readings = begins.iter().flat_map(|&from| [wait(from, 10), wait(from + 10 * MS, 10)]);
        let mut readings: Vec<Wait> = readings.collect();
        let mut requests: Vec<Wait> = begins.iter().map(|&from| wait(from, 20)).collect();
        let left = |requests: &[Wait], readings: &[Wait]| {
            agreed_of_requests(requests.to_vec(), readings, &turns).ok().map(|waits| waits.len())
        };
        assert_eq!(left(&requests, &readings), Some(20));
        // Three of the requests contradict the trace points.
        requests.iter_mut().take(3).for_each(|wait| wait.ns /= 2);
        assert_eq!(left(&requests, &readings), None);
        // So do a reading of each of two of them, of which one shows no wait.
        readings[0].ns *= 2;
        readings[3].ns = 0;
        assert_eq!(left(&requests, &readings), Some(17));
        requests.iter_mut().for_each(|wait| wait.ns = 5 * MS);
        assert_eq!(left(&requests, &readings), None);
    }
}
