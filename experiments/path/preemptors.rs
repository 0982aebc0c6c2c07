//! Who had a thread's CPU while it waited for it: by the kernel's own trace points, and by teiji.
//!
//! teiji names one thread for each wait, by chance: each thread as often as it deserves (docs/decisions/0003). So a share of all waits is
//! an estimate. The trace points say what each thread deserved. With that the names are drawn again many times, which shows how far the
//! estimate may be off: that depends on how many waits there were, and how unequal they are, and on a busy machine it changes from run to
//! run.

use super::blame::WAIT_CAP;
use crate::admission::Rng;
use crate::tracing::{Lab, events, requests};
use anyhow::{Context, Result, ensure};
use std::path::Path;
use teiji_model::event::{EventKind, Point};
use teiji_model::report::Joined;
use teiji_model::stage::{Stage, ThreadState};

const TRACED: &str = "/sys/kernel/tracing/instances/preemptors";

/// How often all names are drawn. That a share of teiji's is further off than those of all of these, although its names are drawn in the
/// same way, has a probability of 1 in 100,000.
const DRAWS: usize = 200_000;
/// What the probes and the trace points may disagree about besides, as a share of the waits.
const OFF: f64 = 0.02;

/// Has the kernel trace the switches of a CPU, and the wake-ups of a thread.
pub struct Switches<'l> {
    lab: &'l Lab,
    thread: u32,
}

impl<'l> Switches<'l> {
    /// Begins to trace `cpu`, for which `thread` waits.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn start(lab: &'l Lab, cpu: u32, thread: u32) -> Result<Switches<'l>> {
        let begin = format!(
            "(mountpoint -q /sys/kernel/tracing || mount -t tracefs tracefs /sys/kernel/tracing) && mkdir {TRACED} && \
             cd {TRACED} && echo mono >trace_clock && echo 16384 >buffer_size_kb && \
             echo 'CPU == {cpu}' >events/sched/sched_switch/filter && echo 'pid == {thread}' >events/sched/sched_waking/filter && \
             echo 1 >events/sched/sched_switch/enable && echo 1 >events/sched/sched_waking/enable"
        );
        lab.host.run(&begin)?.ok().context("trace the switches of a CPU")?;
        Ok(Switches { lab, thread })
    }

    /// Ends tracing; returns what the thread waited for.
    ///
    /// # Errors
    /// If events were lost, or the trace cannot be read.
    pub fn stop(self) -> Result<Turns> {
        let end = format!(
            "cd {TRACED} && echo 0 >tracing_on && cat trace >/tmp/switches.txt && cat per_cpu/*/stats | \
             awk '/^(overrun|dropped events):/ {{ lost += $NF }} END {{ print lost }}' && cd / && rmdir {TRACED}"
        );
        let lost = self.lab.host.run(&end)?.ok()?;
        ensure!(lost.trim() == "0", "the kernel lost {} events of switches", lost.trim());
        let path = self.lab.fetch("/tmp/switches.txt")?;
        let text =
            std::fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
        Turns::parse(&text, self.thread)
    }
}

impl Drop for Switches<'_> {
    fn drop(&mut self) {
        // If the load failed, tracing would cost the tests that follow, and the next one could not begin.
        let _ =
            self.lab.host.run(&format!("[ ! -d {TRACED} ] || (echo 0 >{TRACED}/tracing_on; rmdir {TRACED})"));
    }
}

/// The times in which other threads had the CPU while the thread waited for it.
#[derive(Debug, Default, PartialEq)]
pub struct Turns(Vec<Turn>);

#[derive(Clone, Copy, Debug, PartialEq)]
struct Turn {
    from: u64,
    to: u64,
    tid: u32,
}

/// The number after `name` in a line of a trace.
fn field(line: &str, name: &str) -> Option<u32> {
    line.split(name).nth(1)?.split_whitespace().next()?.parse().ok()
}

impl Turns {
    /// Reads the kernel's text. Before the first switch nothing is known.
    fn parse(text: &str, thread: u32) -> Result<Turns> {
        let mut turns = Vec::new();
        // Since when the present turn lasts, and whose it is; and whether the thread waits.
        let (mut turn, mut waits): (Option<(u64, u32)>, bool) = (None, false);
        for line in text.lines() {
            let Some((head, what)) = line.split_once(": sched_") else { continue };
            let stamp = head.split_whitespace().next_back().and_then(|s| s.split_once('.'));
            let at = stamp.and_then(|(s, us)| {
                Some((s.parse::<u64>().ok()? * 1_000_000 + us.parse::<u64>().ok()?) * 1000)
            });
            let at = at.with_context(|| format!("no time in {line:?}"))?;
            let ends = |turn: Option<(u64, u32)>, turns: &mut Vec<Turn>| {
                if let Some((from, tid)) = turn.filter(|(from, _)| waits && at > *from) {
                    turns.push(Turn { from, to: at, tid });
                }
            };
            if what.starts_with("switch: ") {
                let next = field(what, "next_pid=").with_context(|| format!("no thread in {line:?}"))?;
                ends(turn, &mut turns);
                turn = Some((at, next));
                if field(what, "prev_pid=") == Some(thread) {
                    waits = what.split("prev_state=").nth(1).is_some_and(|state| state.starts_with('R'));
                } else if next == thread {
                    waits = false;
                }
            } else if field(what, " pid=") == Some(thread)
                && !waits
                && turn.is_some_and(|(_, tid)| tid != thread)
            {
                waits = true;
                turn = turn.map(|(_, tid)| (at, tid));
            }
        }
        ensure!(!turns.is_empty(), "the thread {thread} never waited");
        Ok(Turns(turns))
    }

    fn between(&self, from: u64, to: u64) -> impl Iterator<Item = (u64, u32)> + '_ {
        let first = self.0.partition_point(|turn| turn.to <= from);
        let within = self.0[first..].iter().take_while(move |turn| turn.from < to);
        within.map(move |turn| (turn.to.min(to) - turn.from.max(from), turn.tid))
    }

    /// How long the thread waited between two times, and how much of that one of `tids` had the CPU, ns. Nobody has an idle CPU.
    fn waited(&self, from: u64, to: u64, tids: &[u32]) -> (u64, u64) {
        self.between(from, to).filter(|(_, tid)| *tid != 0).fold((0, 0), |(all, behind), (ns, tid)| {
            (all + ns, behind + if tids.contains(&tid) { ns } else { 0 })
        })
    }

    /// The last of the threads that had the CPU while the thread waited.
    fn last(&self, from: u64, to: u64) -> Option<u32> {
        self.between(from, to).map(|(_, tid)| tid).filter(|tid| *tid != 0).last()
    }
}

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
    let mut last = None;
    let mut waits = Vec::new();
    for event in events(recording)? {
        let (clock, named) = match (waiter, event.kind) {
            (Waiter::Vcpu(vm), EventKind::GuestEntry(e)) if e.vm == vm => (e.clock, e.preempted_by),
            (Waiter::Vcpu(vm), EventKind::Kick(k)) if k.vm == vm => (k.clock, k.preempted_by),
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

    const TRACE: &str = "# tracer: nop
     teiji-lab-40      [002] d..2.    10.000100: sched_switch: prev_comm=hog prev_pid=40 prev_prio=120 prev_state=R ==> next_comm=CPU 0/KVM next_pid=9 next_prio=120
     CPU 0/KVM-9       [002] d..2.    10.000200: sched_switch: prev_comm=CPU 0/KVM prev_pid=9 prev_prio=120 prev_state=R+ ==> next_comm=hog next_pid=40 next_prio=120
           hog-40      [002] d..2.    10.001200: sched_switch: prev_comm=hog prev_pid=40 prev_prio=120 prev_state=R ==> next_comm=perl next_pid=41 next_prio=49
          perl-41      [002] d..2.    10.001300: sched_switch: prev_comm=perl prev_pid=41 prev_prio=49 prev_state=S ==> next_comm=CPU 0/KVM next_pid=9 next_prio=120
     CPU 0/KVM-9       [002] d..2.    10.001400: sched_switch: prev_comm=CPU 0/KVM prev_pid=9 prev_prio=120 prev_state=S ==> next_comm=hog next_pid=40 next_prio=120
        <idle>-0       [000] dNs2.    10.002400: sched_waking: comm=CPU 0/KVM pid=9 prio=120 target_cpu=002
           hog-40      [002] d..2.    10.002600: sched_switch: prev_comm=hog prev_pid=40 prev_prio=120 prev_state=R ==> next_comm=CPU 0/KVM next_pid=9 next_prio=120
";
    /// ns after 10 s.
    const fn at(us: u64) -> u64 {
        10_000_000_000 + us * 1000
    }

    #[test]
    fn turns_are_those_while_the_thread_waits() {
        let turns = Turns::parse(TRACE, 9).unwrap();
        let turn = |from, to, tid| Turn { from: at(from), to: at(to), tid };
        assert_eq!(turns.0, [turn(200, 1200, 40), turn(1200, 1300, 41), turn(2400, 2600, 40)]);
        assert_eq!(turns.waited(at(0), at(9000), &[41]), (1_300_000, 100_000));
        assert_eq!(turns.waited(at(1100), at(1250), &[41]), (150_000, 50_000));
        assert_eq!(turns.last(at(0), at(2000)), Some(41));
        assert!(Turns::parse(TRACE, 41).is_err());
    }

    /// Many short waits and a few long ones, which all are nine tenths behind the thread 40.
    #[test]
    fn whoever_was_last_is_told_from_what_is_deserved() {
        let (mut turns, mut waits) = (Vec::new(), Vec::new());
        for i in 0..400_u64 {
            let ns = if i.is_multiple_of(20) { 40_000_000 } else { 2_000_000 };
            let (from, to) = (i * 50_000_000, i * 50_000_000 + ns);
            let between = to - ns / 10;
            turns.extend([Turn { from, to: between, tid: 40 }, Turn { from: between, to, tid: 41 }]);
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
        let turns = begins.iter().map(|&from| Turn { from, to: from + 20 * MS, tid: 40 });
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
