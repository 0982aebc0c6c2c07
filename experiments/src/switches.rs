//! Who had a CPU while a thread waited for it, by the kernel's own trace points.

use crate::tracing::Lab;
use anyhow::{Context, Result, ensure};

const TRACED: &str = "/sys/kernel/tracing/instances/switches";

/// Has the kernel trace the switches of a CPU, and the wake-ups of some threads.
pub struct Switches<'l> {
    lab: &'l Lab,
    threads: Vec<u32>,
}

impl<'l> Switches<'l> {
    /// Begins to trace `cpu`, for which `threads` wait: at least one.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn start(lab: &'l Lab, cpu: u32, threads: &[u32]) -> Result<Switches<'l>> {
        let woken: Vec<String> = threads.iter().map(|tid| format!("pid == {tid}")).collect();
        let begin = format!(
            "(mountpoint -q /sys/kernel/tracing || mount -t tracefs tracefs /sys/kernel/tracing) && mkdir {TRACED} && \
             cd {TRACED} && echo mono >trace_clock && echo 16384 >buffer_size_kb && \
             echo 'CPU == {cpu}' >events/sched/sched_switch/filter && echo '{}' >events/sched/sched_waking/filter && \
             echo 1 >events/sched/sched_switch/enable && echo 1 >events/sched/sched_waking/enable",
            woken.join(" || ")
        );
        lab.host.run(&begin)?.ok().context("trace the switches of a CPU")?;
        Ok(Switches { lab, threads: threads.to_vec() })
    }

    /// Ends tracing; returns what each of the threads waited for.
    ///
    /// # Errors
    /// If events were lost, or the trace cannot be read.
    pub fn stop(self) -> Result<Vec<Turns>> {
        let end = format!(
            "cd {TRACED} && echo 0 >tracing_on && cat trace >/tmp/switches.txt && cat per_cpu/*/stats | \
             awk '/^(overrun|dropped events):/ {{ lost += $NF }} END {{ print lost }}' && cd / && rmdir {TRACED}"
        );
        let lost = self.lab.host.run(&end)?.ok()?;
        ensure!(lost.trim() == "0", "the kernel lost {} events of switches", lost.trim());
        let path = self.lab.fetch("/tmp/switches.txt")?;
        let text =
            std::fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
        self.threads.iter().map(|thread| Turns::parse(&text, *thread)).collect()
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
pub struct Turns(pub(crate) Vec<Turn>);

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Turn {
    pub(crate) from: u64,
    pub(crate) to: u64,
    pub(crate) tid: u32,
    /// Whether it was given the CPU while the thread waited already; else the thread began to wait during it.
    pub(crate) chosen: bool,
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
        let mut chosen = false;
        for line in text.lines() {
            let Some((head, what)) = line.split_once(": sched_") else { continue };
            let stamp = head.split_whitespace().next_back().and_then(|s| s.split_once('.'));
            let at = stamp.and_then(|(s, us)| {
                Some((s.parse::<u64>().ok()? * 1_000_000 + us.parse::<u64>().ok()?) * 1000)
            });
            let at = at.with_context(|| format!("no time in {line:?}"))?;
            let ends = |turn: Option<(u64, u32)>, turns: &mut Vec<Turn>| {
                if let Some((from, tid)) = turn.filter(|(from, _)| waits && at > *from) {
                    turns.push(Turn { from, to: at, tid, chosen });
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
                chosen = waits;
            } else if field(what, " pid=") == Some(thread)
                && !waits
                && turn.is_some_and(|(_, tid)| tid != thread)
            {
                (waits, chosen) = (true, false);
                turn = turn.map(|(_, tid)| (at, tid));
            }
        }
        Ok(Turns(turns))
    }

    /// How long each turn lasted between two times, ns, and whose it was; 0 is an idle CPU.
    fn between(&self, from: u64, to: u64) -> impl Iterator<Item = (u64, u32)> + '_ {
        let first = self.0.partition_point(|turn| turn.to <= from);
        let within = self.0[first..].iter().take_while(move |turn| turn.from < to);
        within.map(move |turn| (turn.to.min(to) - turn.from.max(from), turn.tid))
    }

    /// How long the thread waited between two times, and how much of that one of `tids` had the CPU, ns. Nobody has an idle CPU.
    pub fn waited(&self, from: u64, to: u64, tids: &[u32]) -> (u64, u64) {
        self.between(from, to).filter(|(_, tid)| *tid != 0).fold((0, 0), |(all, behind), (ns, tid)| {
            (all + ns, behind + if tids.contains(&tid) { ns } else { 0 })
        })
    }

    /// How long one of `tids` had the CPU while the thread waited, in all, ns.
    pub fn behind(&self, tids: &[u32]) -> u64 {
        self.waited(0, u64::MAX, tids).1
    }

    /// The longest time that another thread had the CPU at a stretch while the thread waited, ns.
    pub fn longest(&self) -> u64 {
        self.0.iter().map(|turn| turn.to - turn.from).max().unwrap_or(0)
    }

    /// How often one of `tids` was given the CPU while the thread waited for it: the scheduler's choice, however long it takes to have an
    /// effect.
    pub fn passed_over_for(&self, tids: &[u32]) -> usize {
        self.0.iter().filter(|turn| turn.chosen && tids.contains(&turn.tid)).count()
    }

    /// The last of the threads that had the CPU while the thread waited.
    pub fn last(&self, from: u64, to: u64) -> Option<u32> {
        self.between(from, to).map(|(_, tid)| tid).filter(|tid| *tid != 0).last()
    }
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
        let turn = |from, to, tid, chosen| Turn { from: at(from), to: at(to), tid, chosen };
        assert_eq!(
            turns.0,
            [turn(200, 1200, 40, true), turn(1200, 1300, 41, true), turn(2400, 2600, 40, false)]
        );
        assert_eq!([turns.passed_over_for(&[40]), turns.passed_over_for(&[40, 41])], [1, 2]);
        assert_eq!(turns.waited(at(0), at(9000), &[41]), (1_300_000, 100_000));
        assert_eq!(turns.waited(at(1100), at(1250), &[41]), (150_000, 50_000));
        assert_eq!(turns.last(at(0), at(2000)), Some(41));
        assert_eq!((turns.behind(&[40]), turns.longest()), (1_200_000, 1_000_000));
        assert_eq!(Turns::parse(TRACE, 41).unwrap().0, []);
    }
}
