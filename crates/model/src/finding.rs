//! What a trace has found to make requests slow: named causes with their evidence.
//!
//! A [`Finding`] names one cause. It says in which parts of the path the cause is seen and how long these take, how
//! reliable this is, what the cause means, and what shortens it. Findings are ranked: the VM's verdict names the first
//! one. The remedy is data: a [`PolicyChange`], which planning fits to a host, or a text that says
//! where else to look.

use crate::reason::Blame;
use crate::report::GuestPart;
use crate::stage::{Actor, Stage, ThreadState};
use crate::units::DURATION;
use serde::{Deserialize, Serialize};

/// From this share of the time or of the fluctuation on, a part counts: an eighth.
pub const SIGNIFICANT_SHARE: f64 = 0.125;

/// Makes the enum and its list from one table.
macro_rules! causes {
    ($($(#[$doc:meta])* $cause:ident, $name:literal;)*) => {
        /// What makes requests slow.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(rename_all = "snake_case")]
        pub enum Cause { $($(#[$doc])* $cause,)* }

        impl Cause {
            /// All causes.
            pub const ALL: &'static [Cause] = &[$(Cause::$cause,)*];

            /// The name in JSON.
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
    /// An accepted interrupt waits for its vCPU; what the vCPU does is not known.
    InterruptWaits, "interrupt_waits";
    /// The guest uses its vCPU.
    GuestRuns, "guest_runs";
    /// The guest is idle while the request is in it.
    GuestHalts, "guest_halts";
    /// Time in the guest; what the vCPU does is not known.
    GuestTime, "guest_time";
    /// A packet is in the guest, and the vCPU that has to handle it next is halted.
    PacketWaitsForHaltedVcpu, "packet_waits_for_halted_vcpu";
    /// A packet is in the socket while the vCPU of its reader runs something else.
    ReaderWaitsInGuest, "reader_waits_in_guest";
    /// The application works on the answer.
    Application, "application";
    /// The same, by a thread that is created for the request.
    ThreadPerRequest, "thread_per_request";
    /// A vhost worker is runnable while another thread has its CPU.
    WorkerWaitsForCpu, "worker_waits_for_cpu";
    /// A sleeping vhost worker is woken up.
    WorkerWakeUp, "worker_wake_up";
    /// The vhost worker is busy with earlier packets.
    WorkerBusy, "worker_busy";
    /// Packets wait for a vhost worker; what the worker does is not known.
    PacketsWaitForWorker, "packets_wait_for_worker";
    /// The guest's frames wait for a vhost worker; what the worker does is not known.
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
    /// The cause.
    pub cause: Cause,
    /// The cause in at most six words, for people.
    pub title: String,
    /// Who is to blame.
    pub blame: Blame,
    /// Its share, 0 to 1, of what was judged: the fluctuation, or the time of a typical request.
    pub share: f64,
    /// Where the cause is seen, largest part first; never empty.
    pub evidence: Vec<Evidence>,
    /// Threads that had the CPU instead, largest share first; empty unless a thread waits for a CPU.
    pub preempted_by: Vec<Preemptor>,
    /// How reliable the finding is: each entry of `doubts` lowers it.
    pub confidence: Confidence,
    /// What makes the finding less certain, for people.
    pub doubts: Vec<String>,
    /// What the cause means, for people.
    pub explanation: String,
    /// What shortens the time.
    pub remedy: Remedy,
}

impl Finding {
    /// The stage of the largest part.
    pub fn stage(&self) -> Option<Stage> {
        self.evidence.first().map(|e| e.stage)
    }

    /// What the thread of that stage was doing.
    pub fn state(&self) -> Option<ThreadState> {
        self.evidence.first().and_then(|e| e.state)
    }
}

/// A part of the path in which a cause is seen: a stage, or the part of it that its thread spent in one state.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Evidence {
    /// Which stage.
    pub stage: Stage,
    /// Which part of the stage `guest`, for requests that the guest's reports divide.
    #[serde(default)]
    pub part: Option<GuestPart>,
    /// What the stage's thread was doing; `None` if that is not known or no thread carries the stage.
    pub state: Option<ThreadState>,
    /// The part's share of what was judged, like [`Finding::share`].
    pub share: f64,
    /// The part's share of the mean time.
    pub time_share: f64,
    /// The part's share of the fluctuation.
    pub fluctuation_share: f64,
    /// How long the part takes, ns: the mean or the median, whichever is longer; `None` if only shares are known.
    pub length: Option<u64>,
}

impl Evidence {
    /// The name of the part of the guest's time, or that of the stage.
    pub fn place(&self) -> &'static str {
        self.part.map_or(self.stage.name(), GuestPart::name)
    }

    /// Whether the part has at least [`SIGNIFICANT_SHARE`] of the time or of the fluctuation.
    pub fn is_significant(&self) -> bool {
        self.time_share >= SIGNIFICANT_SHARE || self.fluctuation_share >= SIGNIFICANT_SHARE
    }
}

/// A thread that preempted another one.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Preemptor {
    /// Thread id.
    pub tid: u32,
    /// Its name; empty if not known.
    pub name: String,
    /// Its share of the time waited, 0 to 1.
    pub share: f64,
}

/// How reliable a finding is.
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
    /// From the number of doubts.
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
    /// What a policy can change; `None` if no key of a policy helps.
    pub change: Option<PolicyChange>,
    /// The policy lines of `change`, the same for every host; empty without a change.
    pub lines: Vec<PolicyLine>,
    /// Why the change helps, or where else to look.
    pub text: String,
    /// What is left to do if the host already has that value; may be empty.
    pub otherwise: String,
}

impl Remedy {
    /// A remedy that a policy can set.
    pub fn change(change: PolicyChange, text: impl Into<String>, otherwise: impl Into<String>) -> Self {
        let lines = vec![change.line()];
        Remedy { change: Some(change), lines, text: text.into(), otherwise: otherwise.into() }
    }

    /// A remedy that no policy can set; the text says why.
    pub fn none(text: impl Into<String>) -> Self {
        Remedy { change: None, lines: Vec::new(), text: text.into(), otherwise: String::new() }
    }

    /// A remedy that no policy can set; `look` says where to look.
    pub fn elsewhere(look: &str) -> Self {
        Self::none(format!("no key of a policy helps; {look}"))
    }
}

/// What a policy can change against a cause.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PolicyChange {
    /// The VM's threads run before all ordinary threads, because threads of this kind wait for a CPU.
    Realtime {
        /// Which threads wait.
        threads: Actor,
    },
    /// KVM polls before it lets a halted vCPU sleep.
    HaltPoll {
        /// For how long it polls, ns.
        ns: u64,
        /// The mean time from one request to the next, ns.
        gap: u64,
    },
    /// The CPUs that vhost workers run on do not enter deep idle states.
    CpuLatency {
        /// The longest time that a CPU may take to wake up, µs.
        us: u32,
    },
}

impl PolicyChange {
    /// The policy line that makes this change.
    pub fn line(&self) -> PolicyLine {
        let (section, key, value) = match self {
            PolicyChange::Realtime { .. } => ("vm", "class", "realtime".to_owned()),
            PolicyChange::HaltPoll { ns, .. } => ("host", "halt_poll", DURATION.write(*ns)),
            PolicyChange::CpuLatency { us } => ("host", "cpu_latency", format!("{us}us")),
        };
        PolicyLine { section: section.to_owned(), key: key.to_owned(), value: format!("\"{value}\"") }
    }
}

/// A line of a policy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PolicyLine {
    /// `vm`: the section of the traced VM; `host`: the section of the host.
    pub section: String,
    /// The key.
    pub key: String,
    /// The value, as TOML.
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
        let line = |change: PolicyChange| {
            let PolicyLine { section, key, value } = change.line();
            format!("{section}.{key} = {value}")
        };
        assert_eq!(line(PolicyChange::Realtime { threads: Actor::Vcpu }), "vm.class = \"realtime\"");
        for (ns, wanted) in [(5_000_000, "5ms"), (200_000, "200us"), (1_000_001, "1.000001ms")] {
            let poll = PolicyChange::HaltPoll { ns, gap: 1 };
            assert_eq!(line(poll), format!("host.halt_poll = \"{wanted}\""));
        }
        assert_eq!(line(PolicyChange::CpuLatency { us: 2 }), "host.cpu_latency = \"2us\"");
    }

    #[test]
    fn a_part_counts_by_its_time_or_by_its_fluctuation() {
        for (time_share, fluctuation_share, is_significant) in [
            (SIGNIFICANT_SHARE, 0.0, true),
            (0.0, SIGNIFICANT_SHARE, true),
            (0.124, 0.124, false),
            (f64::NAN, f64::NAN, false),
        ] {
            let part = Evidence {
                stage: Stage::Irq,
                part: None,
                state: None,
                share: 1.0,
                time_share,
                fluctuation_share,
                length: None,
            };
            assert_eq!(part.is_significant(), is_significant, "{time_share} {fluctuation_share}");
        }
    }
}
