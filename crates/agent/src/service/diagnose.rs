//! What is wrong with VMs, by the kernel's own counters.

use super::{Error, Service};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use teiji_model::diagnosis::Diagnosis;

/// How often the counters are read: the states of threads in between are not seen.
const INTERVAL: Duration = Duration::from_millis(500);
/// So many samples are kept at most: with 200 VMs one has some 600 kB.
const MOST: u32 = 240;
/// How soon a request to stop is noticed.
const NOTICED: Duration = Duration::from_millis(50);

impl Service {
    /// What is wrong with the VMs of these names, or all VMs without any name, during `length`, or until `stop` is set; and notes about
    /// other VMs of the same names, printable. Attaches no probe, and changes nothing.
    ///
    /// # Errors
    /// Without root, or if a name is that of no VM or of several.
    pub fn diagnose(
        &self,
        names: &[String],
        length: Duration,
        stop: &AtomicBool,
    ) -> Result<(Diagnosis, Vec<String>), Error> {
        self.real("the counters of VMs below --root do not move, so nothing can be told from them")?;
        Service::needs_root("what threads of other users do, and KVM's statistics, are for root only")?;
        let selected = self.select(names, &[])?;
        // All, as any of them may be in the way.
        let vms = self.root.vms()?;
        let mut samples = vec![self.root.usage(&vms, true)];
        let begun = Instant::now();
        let interval = INTERVAL.max(length / MOST);
        let mut next = interval;
        while !stop.load(Ordering::Relaxed) && begun.elapsed() < length {
            let at = next.min(length);
            std::thread::sleep(at.saturating_sub(begun.elapsed()).min(NOTICED));
            if begun.elapsed() >= next && next < length {
                samples.push(self.root.usage(&vms, false));
                // One that came late does not make the following ones crowd.
                next = begun.elapsed() + interval;
            }
        }
        samples.push(self.root.usage(&vms, true));
        let mut diagnosis = teiji_analysis::diagnose::diagnose(&vms, &samples);
        let place = |pid: u32| selected.vms.iter().position(|vm| vm.pid == pid);
        diagnosis.vms.retain(|vm| place(vm.pid).is_some());
        diagnosis.vms.sort_by_key(|vm| place(vm.pid));
        Ok((diagnosis, selected.notes))
    }
}
