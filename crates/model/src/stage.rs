//! The stages of a packet's path through a KVM host, and the states of the threads that process it.
//!
//! A request enters at the host's NIC (or bridge port), and its response leaves there. The stages divide the time
//! between these two instants: each ends where the next one begins.
//!
//! ```text
//!  host_rx ─switch_in─ tap ─tap_queue─ worker ─vhost_rx─ signal ─irq─ accept ─vcpu_wake─ guest entry
//!                                                                                          │ guest
//!  nic ─wire_out─ dequeue ─qdisc─ link ─switch_out─ host stack ─────vhost_tx───────────── kick
//! ```

mod table;

pub use table::{About, Colour, TABLE, Track};

use serde::{Deserialize, Serialize};

/// One stage of the path. The variants are in the order of the path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stage {
    /// Received by the host (NIC or bridge port) → put on the tap (`tun_net_xmit`).
    SwitchIn,
    /// Put on the tap → taken by the vhost worker (`tun_recvmsg`).
    TapQueue,
    /// Taken → written to the ring and signalled (`vhost_add_used_and_signal_n`).
    VhostRx,
    /// Signalled → interrupt accepted for a vCPU (`kvm_apic_accept_irq`).
    Irq,
    /// Accepted → that vCPU enters guest mode with it (`kvm_entry`). Also, each time that the vCPU
    /// loses its CPU to another thread before the kick, the wait until it is back on a CPU.
    VcpuWake,
    /// Guest entry → the guest kicks its transmit queue, without the waits for a CPU, which belong to `vcpu_wake`.
    Guest,
    /// Kick → frame handed to the host stack.
    VhostTx,
    /// Host stack → queued on the link (`net_dev_queue`).
    SwitchOut,
    /// Queued on the link → dequeued from its qdisc; zero if the link has no queue.
    Qdisc,
    /// Dequeued → handed to the NIC (`dev_hard_start_xmit`; to its driver or, before that, to a packet socket).
    WireOut,
    /// Time that no stage accounts for. At most 1 % by design; printed, never hidden.
    Unattributed,
}

impl Stage {
    /// The number of stages.
    pub const COUNT: usize = 11;

    /// All stages, in path order.
    pub const ALL: [Stage; Self::COUNT] = [
        Stage::SwitchIn,
        Stage::TapQueue,
        Stage::VhostRx,
        Stage::Irq,
        Stage::VcpuWake,
        Stage::Guest,
        Stage::VhostTx,
        Stage::SwitchOut,
        Stage::Qdisc,
        Stage::WireOut,
        Stage::Unattributed,
    ];

    /// The stage's line of the table.
    pub fn about(self) -> &'static About {
        &TABLE[self as usize]
    }

    /// The name used in every output.
    pub fn name(self) -> &'static str {
        self.about().name
    }

    /// The kind of thread whose states divide the stage's time, if any.
    pub fn actor(self) -> Option<Actor> {
        self.about().actor
    }
}

/// A kind of thread that a stage waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Actor {
    /// A vhost worker: a thread of the VMM (`vhost-<pid>`) or a kernel thread.
    Worker,
    /// A vCPU thread of the VMM.
    Vcpu,
}

/// What a vCPU thread or vhost worker is doing: exactly one state at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ThreadState {
    /// vCPU only: in guest mode.
    Guest,
    /// vCPU only: the guest has halted, and KVM polls for its next wake-up (`halt_poll_ns`).
    Poll,
    /// Blocked. Includes the wake-up of an idle CPU and, for a halted vCPU, the way back to guest mode.
    Asleep,
    /// Runnable while another thread has the CPU.
    Ready,
    /// On a CPU in host code: a vCPU's exit is handled, or a worker is busy.
    Run,
}

impl ThreadState {
    /// The number of states.
    pub const COUNT: usize = 5;
    /// All states, in the order of [`Split`].
    pub const ALL: [ThreadState; Self::COUNT] =
        [ThreadState::Guest, ThreadState::Poll, ThreadState::Asleep, ThreadState::Ready, ThreadState::Run];

    /// Short name for tables, which depends on the kind of thread.
    pub const fn name(self, actor: Actor) -> &'static str {
        match (self, actor) {
            (ThreadState::Guest, _) => "in guest",
            (ThreadState::Poll, _) => "polling",
            (ThreadState::Asleep, _) => "asleep",
            (ThreadState::Ready, _) => "waiting for a CPU",
            (ThreadState::Run, Actor::Vcpu) => "in an exit",
            (ThreadState::Run, Actor::Worker) => "busy",
        }
    }
}

/// Nanoseconds by [`ThreadState`], in the order of [`ThreadState::ALL`].
///
/// As a clock: time since the thread was first seen. As the difference of two clocks: how an interval was spent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Split(pub [u64; ThreadState::COUNT]);

impl Split {
    /// Time in `state`, in ns.
    pub const fn get(&self, state: ThreadState) -> u64 {
        self.0[state as usize]
    }

    /// Sum over all states, in ns; saturates.
    pub fn total(&self) -> u64 {
        self.0.iter().fold(0, |a, &b| a.saturating_add(b))
    }

    /// Like [`Split::since`], but `None` if the clock of a state went backwards: then these are not two readings of one
    /// clock.
    pub fn checked_since(&self, earlier: &Split) -> Option<Split> {
        let forwards = self.0.iter().zip(earlier.0).all(|(now, then)| *now >= then);
        forwards.then(|| self.since(earlier))
    }

    /// The interval between an `earlier` reading of the same clock and this one; never negative.
    pub fn since(&self, earlier: &Split) -> Split {
        let mut d = [0; ThreadState::COUNT];
        for (i, slot) in d.iter_mut().enumerate() {
            *slot = self.0[i].saturating_sub(earlier.0[i]);
        }
        Split(d)
    }
}
