//! What a VM's response time waits for, and which key of a policy, if any, shortens that.
//!
//! The causes of one VM: what its verdict blames, and every other part of a stage that has at least [`MUCH`] of the
//! time or of the fluctuation. Parts with the same remedy are one cause.

use teiji_model::report::{StageReport, VmReport};
use teiji_model::stage::{Actor, Stage, ThreadState};

/// Share of the time or of the fluctuation from which a part counts: an eighth, as in the verdict.
pub(super) const MUCH: f64 = 0.125;
/// Causes of one VM; a report that was made by a trace has fewer.
const MOST: usize = 16;

/// What shortens a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Remedy {
    /// The thread that waits for a CPU goes before others: `class`.
    Class(Actor),
    /// The halted vCPU does not sleep: `halt_poll`.
    Poll,
    /// The CPU that the sleeping vhost worker wakes up on is awake: `cpu_latency`.
    Awake,
    /// No key of a policy; where else to look.
    Elsewhere(&'static str),
}

/// The remedy for a stage's part.
fn remedy(stage: Stage, state: Option<ThreadState>) -> Remedy {
    use ThreadState::{Asleep, Guest, Poll, Ready, Run};
    match (stage, state) {
        (Stage::VcpuWake | Stage::Guest, Some(Ready)) => Remedy::Class(Actor::Vcpu),
        (Stage::TapQueue | Stage::VhostTx, Some(Ready)) => Remedy::Class(Actor::Worker),
        (Stage::VcpuWake, Some(Asleep)) => Remedy::Poll,
        (Stage::TapQueue | Stage::VhostTx, Some(Asleep)) => Remedy::Awake,
        (Stage::VcpuWake | Stage::Guest, Some(Run)) => {
            Remedy::Elsewhere("count the vCPU's exits by their reason: perf kvm stat record, on the host")
        }
        (Stage::VcpuWake, Some(Poll)) => {
            Remedy::Elsewhere("the vCPU polls already, so nothing wakes it sooner")
        }
        (Stage::VcpuWake, Some(Guest)) => {
            Remedy::Elsewhere("look in the guest for what runs with interrupts off")
        }
        (Stage::Guest, Some(Asleep | Poll)) => Remedy::Elsewhere(
            "look in the guest for what the service waits for: a disk, a lock, another service",
        ),
        (Stage::Guest, _) => Remedy::Elsewhere("profile the service in the guest: perf record, there"),
        (Stage::VcpuWake, None) | (Stage::Irq, _) => Remedy::Elsewhere(
            "see whether interrupts are delivered by hardware: enable_apicv of kvm_intel, avic of kvm_amd",
        ),
        (Stage::TapQueue | Stage::VhostTx, Some(Run | Guest | Poll)) | (Stage::VhostRx, _) => {
            Remedy::Elsewhere(
                "the vhost worker has too much to do: give the VM's NIC more queues (queues=N of QEMU's netdev, \
             ethtool -L in the guest) or fewer packets",
            )
        }
        (Stage::TapQueue | Stage::VhostTx, None) => {
            Remedy::Elsewhere("what the vhost worker did was not seen: trace again, with a larger --buffer")
        }
        (Stage::SwitchIn | Stage::SwitchOut, _) => Remedy::Elsewhere(
            "look at the host's bridge, firewall rules (nft list ruleset) and softirqs (softnet_stat)",
        ),
        (Stage::Qdisc, _) => Remedy::Elsewhere("look at what else leaves by the link: tc -s qdisc show"),
        (Stage::WireOut, _) => Remedy::Elsewhere("look at the NIC and its driver: ethtool -S"),
        (Stage::Unattributed, _) => {
            Remedy::Elsewhere("no stage accounts for it: trace again, with a larger --buffer")
        }
    }
}

/// A cause of one VM's response time.
#[derive(Clone, Debug)]
pub(super) struct Cause {
    pub remedy: Remedy,
    /// The parts that it is made of, for people; the verdict's first.
    pub places: String,
    /// Longest mean or median of its parts, ns; `None` if the report does not tell.
    pub length: Option<u64>,
}

/// A part of a stage that counts.
struct Part<'a> {
    stage: Stage,
    state: Option<ThreadState>,
    of: Option<&'a StageReport>,
}

/// The causes of a VM, the verdict's first; empty if there is nothing to judge by.
pub(super) fn causes(vm: &VmReport) -> Vec<Cause> {
    let Some(blamed) = vm.verdict.stage else { return Vec::new() };
    let find = |stage| vm.stages.iter().find(|s| s.stage == stage);
    let mut parts = vec![Part { stage: blamed, state: vm.verdict.state, of: find(blamed) }];
    for s in &vm.stages {
        let states =
            s.parts.iter().filter(|p| much(p.time_share, p.fluctuation_share)).map(|p| Some(p.state));
        let whole = (s.parts.is_empty() && much(s.time_share, s.fluctuation_share)).then_some(None);
        for state in states.chain(whole) {
            if parts.len() < MOST && !parts.iter().any(|p| p.stage == s.stage && p.state == state) {
                parts.push(Part { stage: s.stage, state, of: Some(s) });
            }
        }
    }
    let mut all: Vec<Cause> = Vec::new();
    for part in parts {
        let remedy = remedy(part.stage, part.state);
        let (place, length) = (part.place(), part.length());
        match all.iter_mut().find(|c| c.remedy == remedy) {
            Some(cause) => {
                cause.places += &format!("; {place}");
                cause.length = cause.length.max(length);
            }
            None => all.push(Cause { remedy, places: place, length }),
        }
    }
    all
}

fn much(time: f64, fluctuation: f64) -> bool {
    time >= MUCH || fluctuation >= MUCH
}

impl Part<'_> {
    /// Shares of the time and of the fluctuation, and its length in ns, if the report tells.
    fn figures(&self) -> Option<(f64, f64, f64)> {
        let of = self.of?;
        let Some(state) = self.state else {
            return Some((of.time_share, of.fluctuation_share, of.dist.mean.max(of.dist.p50 as f64)));
        };
        let part = of.parts.iter().find(|p| p.state == state)?;
        Some((part.time_share, part.fluctuation_share, part.mean.max(part.p50 as f64)))
    }

    /// `vcpu_wake, asleep (79 % of the time, 80 % of the fluctuation)`.
    fn place(&self) -> String {
        let mut text = self.stage.name().to_owned();
        if let (Some(state), Some(actor)) = (self.state, self.stage.actor()) {
            text += &format!(", {}", state.name(actor));
        }
        if let Some((time, fluctuation, _)) = self.figures() {
            text += &format!(" ({} of the time, {} of the fluctuation)", percent(time), percent(fluctuation));
        }
        text
    }

    fn length(&self) -> Option<u64> {
        self.figures().map(|(.., length)| length as u64)
    }
}

/// A share as a whole percentage.
pub(super) fn percent(share: f64) -> String {
    // A report may be read from a file; `as` saturates, and takes what is no number for 0.
    format!("{} %", (share * 100.0).round() as i32)
}
