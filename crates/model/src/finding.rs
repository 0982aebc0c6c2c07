//! What a trace found to make requests slow: named causes with their evidence.
//!
//! A [`Finding`] says one cause, which parts of the path it is seen in and how much these take, how far that can be relied
//! on, what it means, and what shortens it. Whoever finds causes ranks them: the first of a VM's findings is the one that
//! its verdict names. A remedy is said once, here, as data: [`Change`] for what a policy can change, which planning then
//! fits to a host, or a text that says where else to look.

use crate::reason::Blame;
use crate::stage::{Actor, Stage, ThreadState};
use crate::units::DURATION;
use serde::{Deserialize, Serialize};

/// Share of the time or of the fluctuation from which a part of a cause counts: an eighth.
pub const MUCH: f64 = 0.125;

/// Makes the enum and its list from one table.
macro_rules! causes {
    ($($(#[$doc:meta])* $cause:ident, $name:literal;)*) => {
        /// What makes requests slow.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(rename_all = "snake_case")]
        pub enum Cause { $($(#[$doc])* $cause,)* }

        impl Cause {
            /// All of them.
            pub const ALL: &'static [Cause] = &[$(Cause::$cause,)*];

            /// As it is written in JSON.
            pub const fn name(self) -> &'static str {
                match self { $(Cause::$cause => $name,)* }
            }
        }
    };
}

causes! {
    /// A vCPU thread is runnable while another thread has its CPU.
    VcpuWaitsForCpu, "vcpu_waits_for_cpu";
    /// The host works on the vCPU's exits.
    VcpuExits, "vcpu_exits";
    /// A halted vCPU is woken up.
    VcpuWakeUp, "vcpu_wake_up";
    /// A halted vCPU is polled for its wake-up.
    VcpuPolls, "vcpu_polls";
    /// The vCPU is in guest mode and does not take the interrupt.
    InterruptNotTaken, "interrupt_not_taken";
    /// An accepted interrupt waits for its vCPU, of which nothing more is known.
    InterruptWaits, "interrupt_waits";
    /// The guest computes.
    GuestRuns, "guest_runs";
    /// The guest is idle while it works on the request.
    GuestHalts, "guest_halts";
    /// Time in the guest, of which nothing more is known.
    GuestTime, "guest_time";
    /// A vhost worker is runnable while another thread has its CPU.
    WorkerWaitsForCpu, "worker_waits_for_cpu";
    /// A sleeping vhost worker is woken up.
    WorkerWakeUp, "worker_wake_up";
    /// The vhost worker is at work on something earlier.
    WorkerBusy, "worker_busy";
    /// Packets wait for a vhost worker of which nothing more is known.
    PacketsWaitForWorker, "packets_wait_for_worker";
    /// The guest's frames wait for a vhost worker of which nothing more is known.
    FramesWaitForWorker, "frames_wait_for_worker";
    /// The host's bridge, firewall and softirqs, toward the guest.
    ReceivePath, "receive_path";
    /// The vhost worker copies into the guest's ring.
    RingFill, "ring_fill";
    /// The interrupt is on its way to the vCPU.
    InterruptDelivery, "interrupt_delivery";
    /// The host's bridge and firewall, from the guest.
    TransmitPath, "transmit_path";
    /// The queue of the link.
    LinkQueue, "link_queue";
    /// The frame is handed over to the link's driver.
    DriverHandOver, "driver_hand_over";
    /// Time that no stage accounts for.
    Unattributed, "unattributed";
}

/// A cause that was found for one VM.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Finding {
    /// Which.
    pub cause: Cause,
    /// The same in at most six words.
    pub title: String,
    /// Whose it is.
    pub blame: Blame,
    /// Its share of what was judged, 0 to 1: of the fluctuation, or of a typical request's time.
    pub share: f64,
    /// Where it is seen, greatest part first; never empty.
    pub evidence: Vec<Evidence>,
    /// Threads that had the CPU instead, greatest share first; empty unless a thread waits for a CPU.
    pub preempted_by: Vec<Preemptor>,
    /// How far it can be relied on: less with each of `doubts`.
    pub confidence: Confidence,
    /// What makes it less certain, for people.
    pub doubts: Vec<String>,
    /// What it means, for people.
    pub explanation: String,
    /// What shortens it.
    pub remedy: Remedy,
}

impl Finding {
    /// The stage of its greatest part.
    pub fn stage(&self) -> Option<Stage> {
        self.evidence.first().map(|e| e.stage)
    }

    /// What that stage's thread was doing.
    pub fn state(&self) -> Option<ThreadState> {
        self.evidence.first().and_then(|e| e.state)
    }
}

/// A part of the path that a cause is seen in: a stage, or what its thread spent of it in one state.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Evidence {
    /// Which stage.
    pub stage: Stage,
    /// What its thread was doing; `None` where that is not known or no thread carries the stage.
    pub state: Option<ThreadState>,
    /// Its share of what was judged, as of the finding.
    pub share: f64,
    /// Its share of the mean time.
    pub time_share: f64,
    /// Its share of the fluctuation.
    pub fluctuation_share: f64,
    /// How long it takes, ns: its mean or its median, whichever is longer; `None` if only shares are known.
    pub length: Option<u64>,
}

impl Evidence {
    /// Whether it is much of the time or of the fluctuation.
    pub fn counts(&self) -> bool {
        self.time_share >= MUCH || self.fluctuation_share >= MUCH
    }
}

/// A thread that kept another from its CPU.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Preemptor {
    /// Thread id.
    pub tid: u32,
    /// Its name, empty if it was not learnt.
    pub name: String,
    /// Share of the time waited, 0 to 1.
    pub share: f64,
}

/// How far a finding can be relied on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Confidence {
    /// Several doubts.
    Low,
    /// One doubt.
    Medium,
    /// No doubt.
    High,
}

impl Confidence {
    /// By the number of doubts.
    pub const fn of(doubts: usize) -> Self {
        match doubts {
            0 => Confidence::High,
            1 => Confidence::Medium,
            _ => Confidence::Low,
        }
    }
}

/// What shortens a wait.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Remedy {
    /// What a policy changes, `None` if no key of a policy helps.
    pub change: Option<Change>,
    /// The lines of a policy that `change` is, whatever the host; empty without one.
    pub lines: Vec<PolicyLine>,
    /// Why that helps, or where else to look.
    pub text: String,
    /// What is left to do where the host is so already; may be empty.
    pub otherwise: String,
}

impl Remedy {
    /// What a policy changes.
    pub fn change(change: Change, text: impl Into<String>, otherwise: impl Into<String>) -> Self {
        let lines = vec![change.line()];
        Remedy { change: Some(change), lines, text: text.into(), otherwise: otherwise.into() }
    }

    /// Nothing that a policy changes; the text says why.
    pub fn none(text: impl Into<String>) -> Self {
        Remedy { change: None, lines: Vec::new(), text: text.into(), otherwise: String::new() }
    }

    /// Nothing that a policy changes; where to look.
    pub fn elsewhere(look: &str) -> Self {
        Self::none(format!("the policy has no remedy: {look}"))
    }
}

/// What a policy can change against a cause.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Change {
    /// The VM's threads go before all ordinary ones, as those of this kind wait.
    Realtime {
        /// Which wait.
        threads: Actor,
    },
    /// KVM polls halted vCPUs before they sleep.
    HaltPoll {
        /// For how long, ns.
        ns: u64,
        /// From one request to the next, on average, ns.
        gap: u64,
    },
    /// The CPUs that vhost workers run on do not sleep deeply.
    CpuLatency {
        /// The longest that a CPU may take to wake up, µs.
        us: u32,
    },
}

impl Change {
    /// The line of a policy.
    pub fn line(&self) -> PolicyLine {
        let (section, key, value) = match self {
            Change::Realtime { .. } => ("vm", "class", "realtime".to_owned()),
            Change::HaltPoll { ns, .. } => ("host", "halt_poll", DURATION.write(*ns)),
            Change::CpuLatency { us } => ("host", "cpu_latency", format!("{us}us")),
        };
        PolicyLine { section: section.to_owned(), key: key.to_owned(), value: format!("\"{value}\"") }
    }
}

/// A line of a policy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PolicyLine {
    /// `vm`: the section of the VM that was traced; `host`: that of the host.
    pub section: String,
    /// The key.
    pub key: String,
    /// Its value, as TOML.
    pub value: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_json() {
        for cause in Cause::ALL {
            assert_eq!(serde_json::to_value(cause).unwrap(), cause.name());
        }
    }

    #[test]
    fn lines_of_a_policy_have_units() {
        let line = |change: Change| {
            let PolicyLine { section, key, value } = change.line();
            format!("{section}.{key} = {value}")
        };
        assert_eq!(line(Change::Realtime { threads: Actor::Vcpu }), "vm.class = \"realtime\"");
        for (ns, wanted) in [(5_000_000, "5ms"), (200_000, "200us"), (1_000_001, "1.000001ms")] {
            let poll = Change::HaltPoll { ns, gap: 1 };
            assert_eq!(line(poll), format!("host.halt_poll = \"{wanted}\""));
        }
        assert_eq!(line(Change::CpuLatency { us: 2 }), "host.cpu_latency = \"2us\"");
    }

    #[test]
    fn a_part_counts_by_its_time_or_by_its_fluctuation() {
        for (time_share, fluctuation_share, counts) in
            [(MUCH, 0.0, true), (0.0, MUCH, true), (0.124, 0.124, false), (f64::NAN, f64::NAN, false)]
        {
            let part = Evidence {
                stage: Stage::Irq,
                state: None,
                share: 1.0,
                time_share,
                fluctuation_share,
                length: None,
            };
            assert_eq!(part.counts(), counts, "{time_share} {fluctuation_share}");
        }
    }
}
