//! NICs that were given to a VM (VFIO), and requests that reach its guest by them: what a report says of them.
//!
//! ```text
//!            host: interrupts                          guest: teiji-guest
//!   NIC ─► handler ─irq─ accepted ─vcpu_wake─ guest entry ─guest_irq─ received ─guest_stack─ … ─guest_tx─ the guest's driver ─► NIC
//! ```
//! The host's kernel sees no packet of such a NIC: only that the NIC interrupts a vCPU. So a request begins with the interrupt, and
//! ends when the guest gives the answer to its driver. What the NIC does before and after that cannot be seen, and no stage stands
//! for it: the response time on the wire is longer.

use crate::host::GivenNic;
use crate::report::{Dist, GuestPart, LeftOut, RequestCounts};
use crate::stage::Stage;
use serde::{Deserialize, Serialize};

/// A part of the time from the NIC's interrupt until the guest has given the answer to its driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PassthroughStage {
    /// The host's interrupt handler begins → a vCPU has accepted the guest's interrupt.
    Irq,
    /// As [`Stage::VcpuWake`], up to the first guest entry.
    VcpuWake,
    /// As [`GuestPart::GuestIrq`].
    GuestIrq,
    /// As [`GuestPart::GuestStack`].
    GuestStack,
    /// As [`GuestPart::SocketWait`].
    SocketWait,
    /// As [`GuestPart::App`].
    App,
    /// Begins to send → given to the driver.
    GuestTx,
}

impl PassthroughStage {
    /// The number of stages.
    pub const COUNT: usize = 7;

    /// All stages, in the order of time.
    pub const ALL: [PassthroughStage; Self::COUNT] = [
        PassthroughStage::Irq,
        PassthroughStage::VcpuWake,
        PassthroughStage::GuestIrq,
        PassthroughStage::GuestStack,
        PassthroughStage::SocketWait,
        PassthroughStage::App,
        PassthroughStage::GuestTx,
    ];

    /// Which part of the time in the guest it is; `None`: it is the host's.
    pub const fn guest_part(self) -> Option<GuestPart> {
        match self {
            PassthroughStage::Irq | PassthroughStage::VcpuWake => None,
            PassthroughStage::GuestIrq => Some(GuestPart::GuestIrq),
            PassthroughStage::GuestStack => Some(GuestPart::GuestStack),
            PassthroughStage::SocketWait => Some(GuestPart::SocketWait),
            PassthroughStage::App => Some(GuestPart::App),
            PassthroughStage::GuestTx => Some(GuestPart::GuestTx),
        }
    }

    /// The name used in every output.
    pub fn name(self) -> &'static str {
        match self {
            PassthroughStage::Irq => Stage::Irq.name(),
            PassthroughStage::VcpuWake => Stage::VcpuWake.name(),
            _ => self.guest_part().map_or("", GuestPart::name),
        }
    }
}

/// The NICs that a VM was given, and the requests to its guest by them.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Passthrough {
    /// Those that the VM has, or had at the end of the trace; may be empty.
    pub nics: Vec<GivenNic>,
    /// How often they interrupted the VM, as far as the host's kernel handled that: not if hardware delivers their interrupts to
    /// the guest (posted interrupts of the IOMMU).
    pub interrupts: u64,
    /// Those of them that no vCPU was seen to accept.
    pub not_accepted: u64,
    /// From the beginning of the host's interrupt handler until the vCPU entered guest mode with the interrupt, or until it was posted to
    /// a vCPU in guest mode; each interrupt by itself. `None` if that was never seen.
    pub until_guest_entry: Option<Dist>,
    /// The requests by them; `None` if the guest reported no packet of theirs that takes part in a request.
    pub requests: Option<PassthroughRequests>,
}

/// Requests that reached a guest by NICs that it was given.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PassthroughRequests {
    /// Their counts. `seen`: received by the guest; `complete`: answered, and every stage from the interrupt, or from the guest's
    /// first sight, is known.
    pub counts: RequestCounts,
    /// Why they are not complete, as [`VmReport::left_out`](crate::report::VmReport::left_out).
    pub left_out: Vec<LeftOut>,
    /// Complete ones whose packet was not certainly the one that caused the NIC's interrupt: when it came is not known. They are in no
    /// figure but `without_interrupt_total`.
    pub without_interrupt: u64,
    /// Of these: received from the guest's driver → the answer was given to it.
    pub without_interrupt_total: Option<Dist>,
    /// Of the others: the host's interrupt handler began → the guest gave the answer to its driver. `None` if there is none.
    pub total: Option<Dist>,
    /// By stage, in the order of time; empty if there is none.
    pub stages: Vec<PassthroughStageReport>,
}

/// One stage over all complete requests that began with an interrupt.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PassthroughStageReport {
    /// The stage.
    pub stage: PassthroughStage,
    /// Its durations.
    pub dist: Dist,
    /// Its share of the time, as [`StageReport::time_share`](crate::report::StageReport::time_share).
    pub time_share: f64,
    /// Its share of the fluctuation, as
    /// [`StageReport::fluctuation_share`](crate::report::StageReport::fluctuation_share).
    pub fluctuation_share: f64,
}

/// A complete request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PassthroughRequest {
    /// The VM, as an index into `Meta::vms`.
    pub vm: usize,
    /// The key by which request and response are matched; the guest's own.
    pub key: u64,
    /// When the host's interrupt handler began, or, if that is not known, when the guest received the packet: ns on the clock of the events.
    pub start: u64,
    /// Until the guest gave the answer to its driver, ns.
    pub total: u64,
    /// How long it was in each stage, ns; `None`: that cannot be seen.
    pub stages: [Option<u64>; PassthroughStage::COUNT],
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_the_other_tables_and_of_json() {
        for (i, stage) in PassthroughStage::ALL.into_iter().enumerate() {
            assert_eq!(stage as usize, i);
            assert_eq!(serde_json::to_string(&stage).unwrap(), format!("\"{}\"", stage.name()));
        }
        let parts: Vec<GuestPart> =
            PassthroughStage::ALL.into_iter().filter_map(PassthroughStage::guest_part).collect();
        assert_eq!(parts, GuestPart::ALL);
    }
}
