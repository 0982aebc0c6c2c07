//! The points of a packet's path at which all tools are told to look: the functions and tracepoints that teiji probes.
//!
//! The first nine are those that the loads of this experiment pass, in the order in which a request needs them: with the
//! first two, a request is seen to arrive; with the first eight, its packets, its vCPU and its threads are. (A device
//! without a queue of its own passes `qdisc_dequeue` without a packet.)

/// How a point is probed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A tracepoint, and its subsystem.
    Tracepoint(&'static str),
    /// A function, and the module that it is in, if any.
    Function(Option<&'static str>),
}

/// What is known about an event at a point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Subject {
    /// A packet, by its argument with this number; `true`: its data begins behind the Ethernet header.
    Packet(u8, bool),
    /// The current thread gives its CPU to another: arguments 1 and 2.
    Switch,
    /// A thread, by argument 0.
    Thread,
    /// The current thread.
    Current,
}

/// A point.
#[derive(Clone, Copy, Debug)]
pub struct Point {
    /// Name of the function or tracepoint.
    pub name: &'static str,
    /// How it is probed.
    pub kind: Kind,
    /// What is known there.
    pub subject: Subject,
}

const fn tracepoint(system: &'static str, name: &'static str, subject: Subject) -> Point {
    Point { name, kind: Kind::Tracepoint(system), subject }
}

const fn function(module: Option<&'static str>, name: &'static str, subject: Subject) -> Point {
    Point { name, kind: Kind::Function(module), subject }
}

/// How many of [`ALL`] the loads pass.
pub const PASSED: usize = 9;

/// The points that are compared: those of taps that vhost serves.
pub const ALL: [Point; 22] = [
    tracepoint("net", "netif_receive_skb", Subject::Packet(0, true)),
    tracepoint("net", "net_dev_start_xmit", Subject::Packet(0, false)),
    tracepoint("kvm", "kvm_entry", Subject::Current),
    tracepoint("kvm", "kvm_exit", Subject::Current),
    tracepoint("sched", "sched_switch", Subject::Switch),
    tracepoint("sched", "sched_wakeup", Subject::Thread),
    tracepoint("net", "net_dev_queue", Subject::Packet(0, false)),
    function(None, "dev_hard_start_xmit", Subject::Packet(0, false)),
    tracepoint("qdisc", "qdisc_dequeue", Subject::Packet(3, false)),
    tracepoint("net", "netif_rx", Subject::Packet(0, true)),
    tracepoint("skb", "kfree_skb", Subject::Packet(0, false)),
    tracepoint("sched", "sched_migrate_task", Subject::Thread),
    tracepoint("sched", "sched_process_exit", Subject::Thread),
    tracepoint("kvm", "kvm_apic_accept_irq", Subject::Current),
    function(Some("tun"), "tun_recvmsg", Subject::Current),
    function(Some("tun"), "tun_sendmsg", Subject::Current),
    function(Some("vhost_net"), "handle_rx", Subject::Current),
    function(Some("vhost"), "vhost_poll_wakeup", Subject::Current),
    function(Some("vhost"), "vhost_add_used_n", Subject::Current),
    function(Some("vhost"), "vhost_add_used_and_signal_n", Subject::Current),
    function(Some("kvm"), "kvm_arch_set_irq_inatomic", Subject::Current),
    function(Some("kvm"), "kvm_arch_no_poll", Subject::Current),
];

/// What teiji probes besides: taps that the VMM serves itself, macvtaps, NICs that VMs were given, and who wakes threads of guests that
/// report. No load here passes them, and no tool is attached to them.
#[cfg(test)]
const NOT_MEASURED: [&str; 9] = [
    "ioeventfd_write",
    "kvm_send_userspace_msi",
    "sched_waking",
    "tap_handle_frame",
    "tap_recvmsg",
    "tap_sendmsg",
    "tun_chr_read_iter",
    "tun_chr_write_iter",
    "vfio_msihandler",
];

/// The numbers of points at which the growth of the cost is measured.
pub const STEPS: [usize; 5] = [1, 2, 4, 8, ALL.len()];

#[cfg(test)]
mod tests {
    use super::*;

    /// The other tools look where teiji does, no more and no less.
    #[test]
    fn the_points_are_those_that_teiji_probes() {
        let mut probed: Vec<String> =
            teiji_bpf::path_trace::hooks().unwrap().into_iter().map(|h| h.target).collect();
        probed.sort();
        probed.dedup();
        let mut points: Vec<&str> = ALL.iter().map(|p| p.name).chain(NOT_MEASURED).collect();
        points.sort_unstable();
        assert_eq!(points, probed);
    }
}
