//! What the kernel's counters say of where a VM's time went, and what is wrong: the result of `teiji diagnose`.

use crate::census::Census;
use crate::finding::{Confidence, Remedy};
use crate::reason::Blame;
use serde::Serialize;

/// The result for some VMs.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Diagnosis {
    /// How long they were observed, ns.
    pub length: u64,
    /// By VM, in the order in which they were asked for.
    pub vms: Vec<VmDiagnosis>,
}

/// The result for a VM.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct VmDiagnosis {
    /// Its name. Untrusted text.
    pub name: String,
    /// The VMM's process id.
    pub pid: u32,
    /// The result in at most 12 words.
    pub headline: String,
    /// Where the time of its threads went: vCPUs by index, then vhost workers.
    pub threads: Vec<ThreadTime>,
    /// Where the time of its vCPUs and of its workers went from one look at the counters to the next.
    pub series: Vec<Bin>,
    /// Part of what its vCPUs ran, together: KVM polled before it let them sleep, ns; `None` if debugfs does not tell.
    pub polled: Option<u64>,
    /// What is wrong, worst first; empty if nothing is, or if it cannot be told.
    pub faults: Vec<Fault>,
    /// What could not be seen, and why, for people.
    pub unseen: Vec<String>,
}

impl VmDiagnosis {
    /// Whether something was seen of it, and no fault found.
    pub fn is_well(&self) -> bool {
        self.faults.is_empty() && !self.threads.is_empty()
    }
}

/// Where the time of a thread went.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ThreadTime {
    /// What it is, such as `vCPU 0`.
    pub name: String,
    /// Its thread id.
    pub tid: u32,
    /// CPUs that it was seen on.
    pub cpus: Vec<u32>,
    /// Where it went.
    #[serde(flatten)]
    pub times: Times,
    /// What probes counted of it meanwhile, if they did.
    pub census: Option<Census>,
}

/// What the time of a thread, or of several together, went to, ns. All but `guest`, which is part of `ran`, add up to `length`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Times {
    /// How long it was observed.
    pub length: u64,
    /// It had a CPU.
    pub ran: u64,
    /// Of `ran`: in guest mode, as the kernel counts by ticks.
    pub guest: u64,
    /// It was runnable, and others had its CPU.
    pub waited: u64,
    /// How often it began to run.
    pub starts: u64,
    /// The CPU quota of a control group kept it from running.
    pub throttled: u64,
    /// It was stopped by a signal or a debugger, or its control group was frozen.
    pub stopped: u64,
    /// A vCPU that slept in the VMM, not in KVM: as that of a VM that is paused.
    pub in_vmm: u64,
    /// It slept uninterruptibly, usually for a device, as a page of guest memory had to be read.
    pub disk: u64,
    /// It slept; of a vCPU usually: the guest had halted it.
    pub slept: u64,
}

impl Times {
    /// How long it would have run if it had got all that it wanted. Saturates.
    pub fn wanted(&self) -> u64 {
        self.ran.saturating_add(self.waited).saturating_add(self.throttled)
    }

    /// The part of the time that it would have used that went to waiting, 0 to 1.
    pub fn waited_share(&self) -> f64 {
        share(self.waited, self.wanted())
    }

    /// How long something kept it from running: all but `ran` and `slept`. Saturates.
    pub fn lost(&self) -> u64 {
        [self.waited, self.throttled, self.stopped, self.in_vmm, self.disk]
            .into_iter()
            .fold(0, u64::saturating_add)
    }

    /// Adds another part of the time, or another thread's.
    pub fn add(&mut self, other: &Times) {
        let Times { length, ran, guest, waited, starts, throttled, stopped, in_vmm, disk, slept } = self;
        for (sum, part) in [
            (length, other.length),
            (ran, other.ran),
            (guest, other.guest),
            (waited, other.waited),
            (starts, other.starts),
            (throttled, other.throttled),
            (stopped, other.stopped),
            (in_vmm, other.in_vmm),
            (disk, other.disk),
            (slept, other.slept),
        ] {
            *sum = sum.saturating_add(part);
        }
    }
}

/// What a VM did from one look at the counters to the next.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Bin {
    /// When it begins, ns since the observation began.
    pub at: u64,
    /// Its vCPU threads, together.
    pub vcpus: Times,
    /// Its vhost workers, together.
    pub workers: Times,
    /// Packets for the guest that were taken off its taps.
    pub taken: u64,
    /// Packets for the guest that were not: a tap was full, or nobody had it open.
    pub dropped: u64,
    /// What probes counted of its threads, together, if they did.
    pub census: Option<Census>,
}

/// `part` of `whole`, 0 to 1; 0 of nothing.
pub fn share(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { (part as f64 / whole as f64).min(1.0) }
}

/// Something that is wrong.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Fault {
    /// What.
    pub cause: FaultCause,
    /// The cause in at most six words.
    pub title: String,
    /// Who is to blame.
    pub blame: Blame,
    /// The part of the time that a thread could have used and did not get, 0 to 1, of the thread or CPU that lost most; `None` of a
    /// cause that is no loss of time, or of which it is not known.
    pub share: Option<f64>,
    /// The figures that show it, for people.
    pub evidence: Vec<String>,
    /// Who had the CPU instead, the longest first.
    pub neighbours: Vec<Neighbour>,
    /// How reliable it is.
    pub confidence: Confidence,
    /// What makes it less certain, for people.
    pub doubts: Vec<String>,
    /// What it means, for people.
    pub explanation: String,
    /// What helps.
    pub remedy: Remedy,
}

/// Who had a CPU.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Neighbour {
    /// A VM, a unit, a container, or a thread by its name. Untrusted text.
    pub name: String,
    /// The part of the CPUs' time that it had, 0 to 1.
    pub share: f64,
}

/// Makes the enum and its list from one table.
macro_rules! causes {
    ($($(#[$doc:meta])* $cause:ident, $name:literal;)*) => {
        /// What can be wrong.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
        #[serde(rename_all = "snake_case")]
        pub enum FaultCause { $($(#[$doc])* $cause,)* }

        impl FaultCause {
            /// All causes.
            pub const ALL: &'static [FaultCause] = &[$(FaultCause::$cause,)*];

            /// Whether threads wait for a CPU that others have.
            pub const fn is_wait(self) -> bool {
                matches!(self, FaultCause::VcpuWaitsForCpu | FaultCause::WorkerWaitsForCpu)
            }

            /// The name in JSON.
            pub const fn name(self) -> &'static str {
                match self { $(FaultCause::$cause => $name,)* }
            }
        }
    };
}

causes! {
    /// Threads are stopped by a signal or a debugger, or frozen.
    Stopped, "stopped";
    /// The VMM does not run the vCPUs: the VM is paused.
    Paused, "paused";
    /// A CPU quota keeps threads from running.
    Throttled, "throttled";
    /// A vCPU thread waits while others have its CPU.
    VcpuWaitsForCpu, "vcpu_waits_for_cpu";
    /// A vhost worker waits while others have its CPU.
    WorkerWaitsForCpu, "worker_waits_for_cpu";
    /// A vhost worker has no time left.
    WorkerBusy, "worker_busy";
    /// The guest uses all that its vCPUs can give.
    GuestBusy, "guest_busy";
    /// Pages of guest memory have to be read from a device.
    Swapped, "swapped";
    /// Packets for the guest come faster than they are taken.
    TapFull, "tap_full";
    /// A qdisc limits the rate of packets.
    RateLimited, "rate_limited";
    /// A qdisc delays packets on purpose.
    Delayed, "delayed";
    /// The VMM copies the guest's memory for a live migration or a snapshot.
    Migration, "migration";
    /// Interrupts and softirqs take the CPUs.
    Interrupts, "interrupts";
    /// A hypervisor below this host takes the CPUs.
    Stolen, "stolen";
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_json() {
        for cause in FaultCause::ALL {
            assert_eq!(serde_json::to_value(cause).unwrap(), cause.name());
        }
    }
}
