//! Every section and key of a policy: the table that the parser, its messages, the schema and docs/policy.md are based
//! on.

use super::value::Value;
use teiji_model::cpus::MAX_CPUS;
use teiji_model::policy::MAX_HALT_POLL;
use teiji_model::qdisc::{MAX_BURST, MAX_DEADLINE, MAX_RATE, MAX_SLACK, MIN_FRAME, OVERHEAD};
use teiji_model::resource;
use teiji_model::units::{DURATION, PERCENT, Quantity, RATE, SIZE};

/// The kind of value of a key.
#[derive(Debug)]
pub(super) enum ValueKind {
    /// Text: an amount between two others, in the quantity's base unit, or one of these words.
    Amount { of: &'static Quantity, min: u64, max: u64, or: &'static [&'static str] },
    /// A whole number between two others.
    Integer { min: u64, max: u64 },
    /// Text: a list of CPUs, not empty.
    Cpus,
    /// Text: one of these words.
    Word(&'static [&'static str]),
    /// Text: an address or prefix, with or without a port.
    Endpoint,
    /// Text: the name of a network device.
    Device,
    /// Text: names or numbers of users, not empty.
    Users,
    /// Text: the name of a VM, as in the header of its section.
    Vm,
}

/// A key.
#[derive(Debug)]
pub(super) struct Key {
    pub name: &'static str,
    pub kind: ValueKind,
    /// Whether its section needs it.
    pub required: bool,
    /// What applies if the key is not written; empty if it is required.
    pub default: &'static str,
    /// An example of a value, valid as TOML and as JSON.
    pub example: &'static str,
    /// What the key means, in sentences.
    pub doc: &'static str,
}

/// What the part of a header after the section's word names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HeaderNames {
    /// Nothing: there is one such section.
    One,
    /// A network device.
    Link,
    /// A VM.
    Vm,
    /// A channel.
    Channel,
    /// A network device and one of its virtual functions.
    Vf,
}

/// Keys that only have a meaning together with another key.
#[derive(Debug)]
pub(super) struct KeyGroup {
    /// The other key.
    pub first: &'static str,
    pub rest: &'static [&'static str],
    /// Whether a file that sets the first key discards what earlier files say about the rest.
    pub discards: bool,
}

/// A kind of section.
#[derive(Debug)]
pub(super) struct Section {
    /// Its first word.
    pub name: &'static str,
    /// The form of its header.
    pub form: &'static str,
    pub header_names: HeaderNames,
    pub doc: &'static str,
    pub keys: &'static [Key],
    /// Keys that only have a meaning together with another key.
    pub groups: &'static [KeyGroup],
    /// Keys that people may look for here but that do not exist, each with the reason, which follows "`KEY` ".
    pub misplaced: &'static [(&'static str, &'static str)],
}

impl Section {
    pub(super) fn key(&self, name: &str) -> Option<&'static Key> {
        self.keys.iter().find(|key| key.name == name)
    }
}

/// The section with this name.
pub(super) fn section(name: &str) -> Option<&'static Section> {
    SECTIONS.iter().find(|section| section.name == name)
}

/// `SCHED_DEADLINE` counts in units of 1,024 ns and in 63 bits (`__checkparam_dl()`, kernel/sched/deadline.c). The
/// limit is rounded to whole seconds, so that it can be read.
const SCHED_DEADLINE_TIME: ValueKind = ValueKind::Amount {
    of: &DURATION,
    min: 1024,
    max: i64::MAX as u64 / 1_000_000_000 * 1_000_000_000,
    or: &[],
};
const NOT_YET: &str = "is not supported by this version yet; remove it";

/// A key that sets resources to the value written.
#[derive(Debug)]
pub(super) struct DirectKey {
    /// The section's word.
    pub section: &'static str,
    pub key: &'static str,
    /// What it sets: every resource of this kind that the section covers.
    pub kind: resource::ResourceKind,
    /// Converts the key's value into the resource's value.
    pub value: fn(Value) -> Option<resource::Value>,
    /// What it costs, for people; empty if there is nothing worth mentioning.
    pub cost: &'static str,
}

/// All keys of this sort. The parser and the plan know them only from this table. Older keys have code of
/// their own in the plan, some because they need it: what `halt_poll` costs depends on its value, and the interrupts of a
/// link are not covered by its device. A new key belongs here if it can.
pub(super) const DIRECT_KEYS: &[DirectKey] = &[
    DirectKey {
        section: "host",
        key: "governor",
        kind: resource::ResourceKind::Governor,
        value: |value| match value {
            Value::Word(word) => Some(resource::Value::Word(word.to_owned())),
            _ => None,
        },
        cost: "a rollback brings the former governor back with its default tunables",
    },
    DirectKey {
        section: "link",
        key: "rps_cpus",
        kind: resource::ResourceKind::ReceiveCpus,
        value: cpus,
        cost: STEERING,
    },
    DirectKey {
        section: "vm",
        key: "rps_cpus",
        kind: resource::ResourceKind::ReceiveCpus,
        value: cpus,
        cost: STEERING,
    },
];

const STEERING: &str =
    "each packet costs an interrupt between CPUs, unless one of these CPUs has received it";

fn cpus(value: Value) -> Option<resource::Value> {
    match value {
        Value::Cpus(cpus) => Some(resource::Value::Cpus(cpus)),
        _ => None,
    }
}

/// All sections.
pub(super) const SECTIONS: &[Section] = &[
    Section {
        name: "host",
        form: "[host]",
        header_names: HeaderNames::One,
        doc: "The host as a whole.",
        keys: &[
            Key {
                name: "halt_poll",
                kind: ValueKind::Amount { of: &DURATION, min: 0, max: MAX_HALT_POLL, or: &["off"] },
                required: false,
                default: "as it is",
                example: "\"50us\"",
                doc: "How long KVM polls before it lets a halted vCPU sleep (`kvm.halt_poll_ns`). Longer polling \
                      wakes vCPUs up sooner and uses more CPU time. `\"off\"` never polls.",
            },
            Key {
                name: "cpu_latency",
                // The kernel stores a signed 32-bit number of µs, and its greatest value means "no limit"
                // (PM_QOS_RESUME_LATENCY_NO_CONSTRAINT, include/linux/pm_qos.h).
                kind: ValueKind::Amount {
                    of: &DURATION,
                    min: 1000,
                    max: (i32::MAX as u64 - 1) * 1000,
                    or: &["any", "none"],
                },
                required: false,
                default: "as it is",
                example: "\"20us\"",
                doc: "Longest wake-up latency that the CPUs' idle states may have \
                      (`power/pm_qos_resume_latency_us`), in whole µs. `\"any\"` allows all idle states; \
                      `\"none\"` keeps the CPU awake, which costs most power.",
            },
            Key {
                name: "cpu_latency_cpus",
                kind: ValueKind::Cpus,
                required: false,
                default: "all CPUs",
                example: "\"2-5\"",
                doc: "The CPUs that `cpu_latency` applies to.",
            },
            Key {
                name: "governor",
                kind: ValueKind::Word(&["performance", "schedutil", "ondemand", "conservative", "powersave"]),
                required: false,
                default: "as it is",
                example: "\"performance\"",
                doc: "The frequency governor of all CPUs (cpufreq); `teiji doctor` lists the available ones.",
            },
            Key {
                name: "vm_users",
                kind: ValueKind::Users,
                required: false,
                default: "`\"root,libvirt-qemu,qemu\"`",
                example: "\"root,nova\"",
                doc: "Users whose VMs may name themselves (QEMU's `-name`). `[vm.NAME]` ignores a VM of any other \
                      user, unless libvirt confirms its name. Without this key, where libvirt's daemon keeps its \
                      state (`/run/libvirt/qemu`), VMs that it does not confirm have to be root's.",
            },
        ],
        // The CPUs outlive another latency: a file that changes how much must not thereby change where.
        groups: &[KeyGroup { first: "cpu_latency", rest: &["cpu_latency_cpus"], discards: false }],
        misplaced: &[],
    },
    Section {
        name: "link",
        form: "[link.NAME]",
        header_names: HeaderNames::Link,
        doc: "A NIC of the host, or a bridge's uplink, by its device name.",
        keys: &[
            Key {
                name: "irq_cpus",
                kind: ValueKind::Cpus,
                required: false,
                default: "as it is",
                example: "\"0-1\"",
                doc: "CPUs that handle the NIC's interrupts.",
            },
            Key {
                name: "rps_cpus",
                kind: ValueKind::Cpus,
                required: false,
                default: "as it is",
                example: "\"2-3\"",
                doc: "CPUs that process the packets of the NIC's receive queues (receive packet steering), \
                      whichever CPU receives them.",
            },
            Key {
                name: "rate",
                kind: ValueKind::Amount { of: &RATE, min: 1000, max: MAX_RATE, or: &[] },
                required: false,
                default: "the device's speed minus 0.1 %",
                example: "\"1gbit\"",
                doc: "Rate of the link once channels leave by it, counted on the wire. At most the device's \
                      speed; a little less keeps the device's own queue empty although clocks differ.",
            },
            Key {
                name: "slack",
                kind: ValueKind::Amount { of: &DURATION, min: 0, max: MAX_SLACK, or: &["auto"] },
                required: false,
                default: "`\"auto\"`",
                example: "\"2ms\"",
                doc: "Best effort goes first while the earliest deadline is further away than this. `\"auto\"` \
                      is the smallest value that keeps every deadline.",
            },
            Key {
                name: "max_packet",
                // The shortest frame, and the longest packet that the kernel's stack makes (`GSO_MAX_SIZE`,
                // include/linux/netdevice.h) with its Ethernet header and a VLAN tag.
                kind: ValueKind::Amount { of: &SIZE, min: MIN_FRAME as u64, max: 8 * 65_535 + 18, or: &[] },
                required: false,
                default: "what the device allows",
                example: "\"1514b\"",
                doc: "Largest Ethernet frame that enters the link's queue, before it is split: a packet with a \
                      deadline may have to wait for one. teiji limits the packets of the host's own stack to \
                      this size (`gso_max_size`), but not those of guests: turn off their `host_tso4`, \
                      `host_tso6`, `host_ufo` and `gso` first.",
            },
            Key {
                name: "realtime_max",
                kind: ValueKind::Amount { of: &RATE, min: 1000, max: MAX_RATE, or: &[] },
                required: false,
                default: "limited only by the link",
                example: "\"900mbit\"",
                doc: "Highest rate of all the link's channels together.",
            },
        ],
        groups: &[],
        misplaced: &[],
    },
    Section {
        name: "vm",
        form: "[vm.NAME]",
        header_names: HeaderNames::Vm,
        doc: "A virtual machine, by libvirt's name, QEMU's `-name`, or `\"pid:N\"` in quotes.",
        keys: &[
            Key {
                name: "class",
                kind: ValueKind::Word(&["fair", "realtime", "deadline", "packets"]),
                required: false,
                default: "as it is",
                example: "\"realtime\"",
                doc: "How its vCPU threads and vhost workers are scheduled: `\"fair\"` is the default scheduler, \
                      `\"realtime\"` is `SCHED_FIFO`, `\"deadline\"` is `SCHED_DEADLINE`; see sched(7). \
                      `\"packets\"` is teiji's own scheduler (see \"Threads by the deadlines of packets\").",
            },
            Key {
                name: "priority",
                // The kernel's greatest is 99, which the workers then have.
                kind: ValueKind::Integer { min: 1, max: 98 },
                required: false,
                default: "10",
                example: "20",
                doc: "Priority of its vCPU threads in `SCHED_FIFO`; with `class = \"realtime\"` only. The thread \
                      with the greatest priority runs first. The priority of its vhost workers is one higher, as \
                      a busy guest would starve them otherwise.",
            },
            Key {
                name: "runtime",
                kind: SCHED_DEADLINE_TIME,
                required: false,
                default: "none: `class = \"deadline\"` and `\"packets\"` need it",
                example: "\"2ms\"",
                doc: "CPU time in each period: of each thread with `class = \"deadline\"`; of all its threads \
                      together, before those of others, with `class = \"packets\"`.",
            },
            Key {
                name: "deadline",
                kind: SCHED_DEADLINE_TIME,
                required: false,
                default: "`period`",
                example: "\"5ms\"",
                doc: "Between `runtime` and `period`. With `class = \"deadline\"`, the time from the start of a \
                      period within which a thread gets its `runtime`; with `class = \"packets\"`, the time from \
                      a packet's arrival at the VM's tap within which its threads are to handle it.",
            },
            Key {
                name: "period",
                kind: SCHED_DEADLINE_TIME,
                required: false,
                default: "none: `class = \"deadline\"` and `\"packets\"` need it",
                example: "\"10ms\"",
                doc: "How often each thread, or the VM, gets its `runtime`. With `class = \"deadline\"` the \
                      kernel's bounds are `kernel.sched_deadline_period_min_us` and `_max_us`.",
            },
            Key {
                name: "vcpu_cpus",
                kind: ValueKind::Cpus,
                required: false,
                default: "as it is",
                example: "\"2-3\"",
                doc: "CPUs for its vCPU threads. Not with `class = \"deadline\"`: Linux does not pin such threads.",
            },
            Key {
                name: "worker_cpus",
                kind: ValueKind::Cpus,
                required: false,
                default: "as it is",
                example: "\"4\"",
                doc: "CPUs for its vhost workers. Not with `class = \"deadline\"`.",
            },
            Key {
                name: "rps_cpus",
                kind: ValueKind::Cpus,
                required: false,
                default: "as it is",
                example: "\"2-3\"",
                doc: "CPUs that process the packets from its taps (receive packet steering) on the host.",
            },
            Key {
                name: "weight",
                kind: ValueKind::Integer { min: 1, max: 10_000 },
                required: false,
                default: "as it is; the kernel's is 100",
                example: "200",
                doc: "Share of CPU time relative to other control groups (`cpu.weight`).",
            },
            Key {
                name: "quota",
                // 1 % is 1 ms of the period of 100 ms that teiji sets; the kernel refuses less
                // (`min_cfs_quota_period`).
                kind: ValueKind::Amount { of: &PERCENT, min: 10, max: MAX_CPUS as u64 * 1000, or: &["none"] },
                required: false,
                default: "as it is",
                example: "\"150%\"",
                doc: "Limit on its CPU time (`cpu.max`); `\"100%\"` is one whole CPU. `\"none\"` removes a \
                      limit.",
            },
        ],
        groups: &[KeyGroup {
            first: "class",
            rest: &["priority", "runtime", "deadline", "period"],
            discards: true,
        }],
        misplaced: &[
            ("halt_poll", "is host-wide; write it in [host]"),
            ("cpu_latency", "applies to CPUs, not to a VM; write it in [host]"),
            ("numa", NOT_YET),
        ],
    },
    Section {
        name: "channel",
        form: "[channel.NAME]",
        header_names: HeaderNames::Channel,
        doc: "A one-way flow whose packets have a deadline, by a name of your choice.",
        keys: &[
            Key {
                name: "link",
                kind: ValueKind::Device,
                required: false,
                default: "the only `[link.NAME]` of the policy",
                example: "\"eth0\"",
                doc: "The device that its packets leave the host by.",
            },
            Key {
                name: "from",
                kind: ValueKind::Endpoint,
                required: false,
                default: "any",
                example: "\"10.0.0.2:5060\"",
                doc: "Sender.",
            },
            Key {
                name: "to",
                kind: ValueKind::Endpoint,
                required: false,
                default: "any",
                example: "\"10.0.1.0/24\"",
                doc: "Receiver.",
            },
            Key {
                name: "proto",
                kind: ValueKind::Word(&["udp", "tcp"]),
                required: false,
                default: "any",
                example: "\"udp\"",
                doc: "Transport protocol.",
            },
            Key {
                name: "deadline",
                kind: ValueKind::Amount { of: &DURATION, min: 1, max: MAX_DEADLINE, or: &[] },
                required: true,
                default: "",
                example: "\"3ms\"",
                doc: "How long a packet may take through the link's queue.",
            },
            Key {
                name: "min_rate",
                kind: ValueKind::Amount { of: &RATE, min: 1, max: MAX_RATE, or: &[] },
                required: true,
                default: "",
                example: "\"2mbit\"",
                doc: "Guaranteed rate, counted on the wire; packets above it are sent as best effort.",
            },
            Key {
                name: "burst",
                // With less, no packet ever fits.
                kind: ValueKind::Amount {
                    of: &SIZE,
                    min: (MIN_FRAME + OVERHEAD) as u64,
                    max: MAX_BURST,
                    or: &[],
                },
                required: false,
                default: "two frames of the link's MTU",
                example: "\"3kb\"",
                doc: "How much may come at once and still be guaranteed, counted on the wire: for each frame at \
                      least 60 bytes, plus 24.",
            },
            Key {
                name: "vm",
                kind: ValueKind::Vm,
                required: false,
                default: "no bound from the kick",
                example: "\"sip1\"",
                doc: "The VM that sends its packets, which teiji does not check. If that has `class = \"packets\"`, `teiji plan` also says how long a packet may \
                      take from the guest's kick until its last bit is on the wire.",
            },
        ],
        groups: &[],
        misplaced: &[("mark", NOT_YET), ("dscp", NOT_YET), ("on_miss", NOT_YET)],
    },
    Section {
        name: "vf",
        form: "[vf.LINK.N]",
        header_names: HeaderNames::Vf,
        doc: "Virtual function N, from 0, of the SR-IOV NIC LINK. This version checks the section, but `teiji plan` \
              refuses it.",
        keys: &[
            Key {
                name: "hard",
                // `ip link set … vf … max_tx_rate` counts in Mbit/s, and 0 is no limit.
                kind: ValueKind::Amount { of: &RATE, min: 1_000_000, max: 10_000_000_000_000, or: &[] },
                required: false,
                default: "no limit",
                example: "\"400mbit\"",
                doc: "Highest rate at which it may send.",
            },
            Key {
                name: "weight",
                kind: ValueKind::Integer { min: 1, max: 100 },
                required: false,
                default: "the same as the other functions",
                example: "2",
                doc: "Share of the link relative to the NIC's other functions.",
            },
        ],
        groups: &[],
        misplaced: &[],
    },
];
