//! Where VMs are on a host with NUMA nodes.

use super::{Error, Service};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use teiji_control::placement::{Pins, advise, demand};
use teiji_host::NumaObserver;
use teiji_model::numa::NumaHost;
use teiji_model::placement::Advice;

/// How often it is looked which CPU each thread is on.
const EVERY: Duration = Duration::from_millis(10);
/// With many threads, less often: looks take at most this part of a CPU's time.
const MOST: u32 = 20;

impl Service {
    /// Where the VMs of these names are, or all VMs without any name; and notes about other VMs of the same names, printable. Threads
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
        let begun = Instant::now();
        while !stop.load(Ordering::Relaxed) && begun.elapsed() < length {
            let at = Instant::now();
            observer.look();
            let pause = EVERY.max(at.elapsed() * MOST);
            std::thread::sleep(pause.min(length.saturating_sub(begun.elapsed())));
        }
        let mut host = observer.end();
        teiji_analysis::numa::assess(&mut host);
        Ok((host, selected.notes))
    }

    /// Where the VMs of this host should be.
    pub fn numa_advice(host: &NumaHost, pins: Pins) -> Advice {
        let (demand, mut problems, assumed) = demand(host, pins);
        let mut advice = advise(&demand);
        problems.append(&mut advice.problems);
        Advice { problems, assumed, ..advice }
    }
}
