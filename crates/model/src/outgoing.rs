//! Requests that a guest itself sends, as a client: what a report says of them.
//!
//! ```text
//!   guest ─ vhost_tx ─ switch_out ─ qdisc ─ wire_out ─► outside ─► switch_in ─ tap_queue ─ vhost_rx ─ irq ─ vcpu_wake ─ guest
//!       kick                                 handed over       received                                       guest entry
//! ```
//!
//! All but `outside` is this host's own time. If another traced VM answers, `outside` lasts from the arrival on that VM's
//! tap until that VM has sent the answer, so it contains that VM's part of this host.

use crate::report::{Dist, LeftOut, RequestCounts};
use crate::stage::Stage;
use serde::{Deserialize, Serialize};

/// A part of the time from the guest's kick until the guest has the answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OutgoingStage {
    /// As [`Stage::VhostTx`].
    VhostTx,
    /// As [`Stage::SwitchOut`].
    SwitchOut,
    /// As [`Stage::Qdisc`].
    Qdisc,
    /// As [`Stage::WireOut`].
    WireOut,
    /// Until the host receives the answer: the network, and whoever answers.
    Outside,
    /// As [`Stage::SwitchIn`], of the answer.
    SwitchIn,
    /// As [`Stage::TapQueue`], of the answer.
    TapQueue,
    /// As [`Stage::VhostRx`], of the answer.
    VhostRx,
    /// As [`Stage::Irq`], of the answer.
    Irq,
    /// As [`Stage::VcpuWake`], of the answer.
    VcpuWake,
    /// As [`Stage::Unattributed`].
    Unattributed,
}

impl OutgoingStage {
    /// The number of stages.
    pub const COUNT: usize = 11;

    /// All stages, in the order of time.
    pub const ALL: [OutgoingStage; Self::COUNT] = [
        OutgoingStage::VhostTx,
        OutgoingStage::SwitchOut,
        OutgoingStage::Qdisc,
        OutgoingStage::WireOut,
        OutgoingStage::Outside,
        OutgoingStage::SwitchIn,
        OutgoingStage::TapQueue,
        OutgoingStage::VhostRx,
        OutgoingStage::Irq,
        OutgoingStage::VcpuWake,
        OutgoingStage::Unattributed,
    ];

    /// The stage of the host's path that it is; `None`: it is outside the host.
    pub const fn of_host(self) -> Option<Stage> {
        Some(match self {
            OutgoingStage::VhostTx => Stage::VhostTx,
            OutgoingStage::SwitchOut => Stage::SwitchOut,
            OutgoingStage::Qdisc => Stage::Qdisc,
            OutgoingStage::WireOut => Stage::WireOut,
            OutgoingStage::Outside => return None,
            OutgoingStage::SwitchIn => Stage::SwitchIn,
            OutgoingStage::TapQueue => Stage::TapQueue,
            OutgoingStage::VhostRx => Stage::VhostRx,
            OutgoingStage::Irq => Stage::Irq,
            OutgoingStage::VcpuWake => Stage::VcpuWake,
            OutgoingStage::Unattributed => Stage::Unattributed,
        })
    }

    /// The name used in every output.
    pub fn name(self) -> &'static str {
        self.of_host().map_or("outside", Stage::name)
    }

    /// The instants at which it begins and ends.
    pub fn meaning(self) -> &'static str {
        self.of_host()
            .map_or("handed to the NIC → the answer is received by the host", |s| s.about().meaning)
    }
}

/// The requests that one guest itself sent.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Outgoing {
    /// Their counts. `seen`: handed to the host's network stack by the vhost worker; `complete`: sent, answered, and every
    /// stage of both ways known. Of complete ones that were sent again, all are `sent_again.unknown`: their times are counted
    /// from the first copy.
    pub requests: RequestCounts,
    /// Why they are not complete, as [`VmReport::left_out`](crate::report::VmReport::left_out).
    pub left_out: Vec<LeftOut>,
    /// Complete ones that another traced VM has answered: how long that took on this host, its own requests say.
    pub to_other_vms: u64,
    /// Response time: the guest's kick → the guest entry with the answer. From the time when the request was handed to the
    /// host's stack if no kick is its own. `None` if there is no complete one.
    pub total: Option<Dist>,
    /// The host's own part of it: all but `outside`.
    pub host: Option<Dist>,
    /// By stage, in the order of time; empty if there is no complete one.
    pub stages: Vec<OutgoingStageReport>,
}

impl Outgoing {
    /// The share of the time that was spent outside this host, 0 to 1; `None` if there is no complete request.
    pub fn outside_share(&self) -> Option<f64> {
        self.stages.iter().find(|s| s.stage == OutgoingStage::Outside).map(|s| s.time_share)
    }
}

/// One stage over all complete requests.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct OutgoingStageReport {
    /// The stage.
    pub stage: OutgoingStage,
    /// Its durations.
    pub dist: Dist,
    /// Its share of the time, as [`StageReport::time_share`](crate::report::StageReport::time_share).
    pub time_share: f64,
    /// Its share of the fluctuation, as
    /// [`StageReport::fluctuation_share`](crate::report::StageReport::fluctuation_share).
    pub fluctuation_share: f64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_the_hosts_stages_and_of_json() {
        for (i, stage) in OutgoingStage::ALL.into_iter().enumerate() {
            assert_eq!(stage as usize, i);
            assert_eq!(serde_json::to_string(&stage).unwrap(), format!("\"{}\"", stage.name()));
        }
    }
}
