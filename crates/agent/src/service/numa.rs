//! Where VMs are on a host with NUMA nodes.

use super::{Error, Service};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use teiji_control::placement::{Pins, advise};
use teiji_host::{NumaObserver, kernel, numa_bench};
use teiji_model::numa::NumaHost;
use teiji_model::numa_bench::{NumaBench, Settings};
use teiji_model::placement::Advice;

/// How often it is looked which CPU each thread is on.
const EVERY: Duration = Duration::from_millis(10);
/// With many threads less often: the pause is at least so many times as long as a look, which so takes at most 5 % of a CPU.
const PAUSE_PER_LOOK: u32 = 20;

impl Service {
    /// Where the VMs of these names are, or all VMs if there are no names; and notes about other VMs of the same names, printable. Threads
    /// are observed for `length`, or until `stop` is set. Changes nothing.
    ///
    /// # Errors
    /// Without root, or if a name is that of no VM or of several.
    pub fn numa(
        &self,
        names: &[String],
        length: Duration,
        stop: &AtomicBool,
    ) -> Result<(NumaHost, Vec<String>), Error> {
        self.real("threads below --root do not run, so it cannot be told on which nodes they are")?;
        Service::needs_root("where memory of other users' processes is, is for root only")?;
        let selected = self.select(names, &[])?;
        let mut observer = NumaObserver::begin(&self.root, &selected.vms);
        let (begun, mut former) = (Instant::now(), Duration::MAX);
        while !stop.load(Ordering::Relaxed) && begun.elapsed() < length {
            let cpu = kernel::cpu_time();
            observer.look();
            let took = kernel::cpu_time().saturating_sub(cpu);
            let pause = pause(std::mem::replace(&mut former, took), took);
            std::thread::sleep(pause.min(length.saturating_sub(begun.elapsed())));
        }
        let mut host = observer.end();
        teiji_analysis::numa::assess(&mut host);
        Ok((host, selected.notes))
    }

    /// Where the VMs of this host should be.
    pub fn numa_advice(host: &NumaHost, pins: Pins) -> Advice {
        advise(host, pins)
    }

    /// What is measured between nodes if nothing else is asked for.
    pub fn usual_numa_bench(&self) -> Settings {
        numa_bench::usual_settings(&self.root)
    }

    /// Measures what accesses to memory cost between the nodes of this host. `progress` is told what comes next, and how many parts are
    /// done of how many. Needs no privileges, and changes nothing but where the calling thread runs meanwhile.
    ///
    /// # Errors
    /// If the kernel refuses, or a node has too little memory.
    pub fn numa_bench(
        &self,
        settings: &Settings,
        progress: &mut dyn FnMut(&str, usize, usize),
    ) -> Result<NumaBench, Error> {
        self.real("the memory of a host below --root cannot be measured")?;
        Ok(numa_bench::bench(&self.root, settings, progress)?)
    }
}

/// How long to wait for the next look, after two that took so much of a CPU. Only their time on the CPU counts, and that of the cheaper one, as a
/// hypervisor or interrupts may have had the CPU during the other: after a look that others made long the next one must not be late, too, or
/// threads that move meanwhile are missed.
fn pause(former: Duration, last: Duration) -> Duration {
    EVERY.max(former.min(last).saturating_mul(PAUSE_PER_LOOK))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn looks_take_at_most_a_twentieth_of_a_cpu() {
        let pause = |former, last| pause(Duration::from_micros(former), Duration::from_micros(last));
        assert_eq!(pause(100, 200), EVERY);
        assert_eq!(pause(200_000, 100_000), Duration::from_secs(2));
        assert_eq!(super::pause(Duration::MAX, Duration::from_millis(1)), Duration::from_millis(20));
        // Somebody else had the CPU during one of them.
        assert_eq!((pause(100, 150_000), pause(150_000, 100)), (EVERY, EVERY));
    }
}
