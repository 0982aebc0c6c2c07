//! Every section and key of a policy: the one table that the parser, its messages, the schema and docs/policy.md
//! are made from.

use super::value::Value;
use teiji_model::cpus::MAX_CPUS;
use teiji_model::policy::MAX_HALT_POLL;
use teiji_model::queue::{MAX_DEADLINE, MAX_RATE, MIN_FRAME, OVERHEAD};
use teiji_model::resource;
use teiji_model::units::{DURATION, PERCENT, Quantity, RATE, SIZE};

/// What a key's value may be.
#[derive(Debug)]
pub(super) enum Kind {
    /// Text: an amount between two others, in the quantity's base unit, or one of some words.
    Amount { of: &'static Quantity, min: u64, max: u64, or: &'static [&'static str] },
    /// A whole number between two others.
    Integer { min: u64, max: u64 },
    /// Text: a list of CPUs, not empty.
    Cpus,
    /// Text: one of these words.
    Word(&'static [&'static str]),
    /// Text: an address or prefix, with a port or without.
    Endpoint,
    /// Text: the name of a network device.
    Device,
    /// Text: names or numbers of users, not empty.
    Users,
}

/// A key.
#[derive(Debug)]
pub(super) struct Key {
    pub name: &'static str,
    pub kind: Kind,
    /// Whether its section needs it.
    pub required: bool,
    /// What holds without it; empty if it is required.
    pub default: &'static str,
    /// A value, as TOML and as JSON.
    pub example: &'static str,
    /// What it means; sentences.
    pub doc: &'static str,
}

/// What the part of a header after the section's own word names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Naming {
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

/// A kind of section.
#[derive(Debug)]
pub(super) struct Section {
    /// Its first word.
    pub name: &'static str,
    /// How its header looks.
    pub form: &'static str,
    pub naming: Naming,
    pub doc: &'static str,
    pub keys: &'static [Key],
    /// Keys that only have a meaning beside another, each group with that other first: a file that writes the first
    /// anew does away with what earlier files say of the rest.
    pub groups: &'static [&'static [&'static str]],
    /// Keys that people will look for here and that are not, each with why; follows "`KEY` ".
    pub strays: &'static [(&'static str, &'static str)],
}

impl Section {
    pub(super) fn key(&self, name: &str) -> Option<&'static Key> {
        self.keys.iter().find(|key| key.name == name)
    }
}

/// The section of that name.
pub(super) fn section(name: &str) -> Option<&'static Section> {
    SECTIONS.iter().find(|section| section.name == name)
}

const HOUR: u64 = 3_600_000_000_000;
/// `SCHED_DEADLINE` counts in units of 1,024 ns and in 63 bits (`__checkparam_dl()`, kernel/sched/deadline.c);
/// whole seconds, so that the bound can be read.
const DEADLINE: Kind =
    Kind::Amount { of: &DURATION, min: 1024, max: i64::MAX as u64 / 1_000_000_000 * 1_000_000_000, or: &[] };
const NOT_YET: &str = "cannot be kept yet by this version; take it out";

/// A key that sets resources as they are.
#[derive(Debug)]
pub(super) struct Sets {
    /// Its section's first word.
    pub section: &'static str,
    pub key: &'static str,
    /// What it sets: every resource of that kind that the section speaks of.
    pub kind: resource::Kind,
    /// What the resource's value is for the key's.
    pub value: fn(Value) -> Option<resource::Value>,
    /// What it costs, for people; empty if nothing worth saying.
    pub cost: &'static str,
}

/// All keys that need no more than that: the parser and the plan know them from here only.
pub(super) const SETS: &[Sets] = &[
    Sets {
        section: "host",
        key: "governor",
        kind: resource::Kind::Governor,
        value: |value| match value {
            Value::Word(word) => Some(resource::Value::Word(word.to_owned())),
            _ => None,
        },
        cost: "",
    },
    Sets { section: "link", key: "rps_cpus", kind: resource::Kind::ReceiveCpus, value: cpus, cost: STEERING },
    Sets { section: "vm", key: "rps_cpus", kind: resource::Kind::ReceiveCpus, value: cpus, cost: STEERING },
];

const STEERING: &str = "each packet is handed on by an interrupt between CPUs, unless it was taken in there";

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
        naming: Naming::One,
        doc: "The host as a whole.",
        keys: &[
            Key {
                name: "halt_poll",
                kind: Kind::Amount { of: &DURATION, min: 0, max: MAX_HALT_POLL, or: &["off"] },
                required: false,
                default: "as it is",
                example: "\"50us\"",
                doc: "How long KVM polls before it lets a halted vCPU sleep (`kvm.halt_poll_ns`). Longer wakes up \
                      sooner and burns more CPU. `\"off\"` never polls.",
            },
            Key {
                name: "cpu_latency",
                // The kernel keeps a signed 32-bit number of µs whose greatest means "no limit"
                // (PM_QOS_RESUME_LATENCY_NO_CONSTRAINT, include/linux/pm_qos.h).
                kind: Kind::Amount {
                    of: &DURATION,
                    min: 1000,
                    max: (i32::MAX as u64 - 1) * 1000,
                    or: &["any", "none"],
                },
                required: false,
                default: "as it is",
                example: "\"20us\"",
                doc: "Longest wake-up that the CPUs' idle states may have (`power/pm_qos_resume_latency_us`), in \
                      whole µs. `\"any\"` lets the CPU save what it can; `\"none\"` keeps it awake, which costs \
                      most power.",
            },
            Key {
                name: "cpu_latency_cpus",
                kind: Kind::Cpus,
                required: false,
                default: "all CPUs",
                example: "\"2-5\"",
                doc: "The CPUs that `cpu_latency` is for.",
            },
            Key {
                name: "governor",
                kind: Kind::Word(&["performance", "schedutil", "ondemand", "conservative", "powersave"]),
                required: false,
                default: "as it is",
                example: "\"performance\"",
                doc: "What chooses the CPUs' frequency (cpufreq), for all of them; `teiji doctor` says which governors there are.",
            },
            Key {
                name: "vm_users",
                kind: Kind::Users,
                required: false,
                default: "`\"root,libvirt-qemu,qemu\"`",
                example: "\"root,nova\"",
                doc: "Users whose VMs may name themselves (QEMU's `-name`). `[vm.NAME]` ignores a VM of any other user, \
                      unless libvirt confirms its name.",
            },
        ],
        groups: &[&["cpu_latency", "cpu_latency_cpus"]],
        strays: &[],
    },
    Section {
        name: "link",
        form: "[link.NAME]",
        naming: Naming::Link,
        doc: "A NIC of the host, or a bridge's uplink, by its device name.",
        keys: &[
            Key {
                name: "irq_cpus",
                kind: Kind::Cpus,
                required: false,
                default: "as it is",
                example: "\"0-1\"",
                doc: "CPUs that handle the NIC's interrupts.",
            },
            Key {
                name: "rps_cpus",
                kind: Kind::Cpus,
                required: false,
                default: "as it is",
                example: "\"2-3\"",
                doc: "CPUs that packets from the NIC's receive queues are handed to (receive packet steering), whichever CPU took them in.",
            },
            Key {
                name: "rate",
                kind: Kind::Amount { of: &RATE, min: 1000, max: MAX_RATE, or: &[] },
                required: false,
                default: "the device's own speed less 0.1 %",
                example: "\"1gbit\"",
                doc: "How much the link sends once channels leave by it, counted on the wire. At most the device's \
                      speed; a little less keeps its own queue empty although clocks differ.",
            },
            Key {
                name: "slack",
                kind: Kind::Amount { of: &DURATION, min: 0, max: HOUR, or: &["auto"] },
                required: false,
                default: "`\"auto\"`",
                example: "\"2ms\"",
                doc: "Best effort goes first while the earliest deadline is further away than this. `\"auto\"` is \
                      the smallest that keeps every deadline.",
            },
            Key {
                name: "max_packet",
                // The shortest frame, and the longest packet that the kernel's stack makes (`GSO_MAX_SIZE`,
                // include/linux/netdevice.h) with its Ethernet header and a VLAN tag.
                kind: Kind::Amount { of: &SIZE, min: MIN_FRAME as u64, max: 8 * 65_535 + 18, or: &[] },
                required: false,
                default: "what the device allows",
                example: "\"1514b\"",
                doc: "Largest Ethernet frame that comes to the link's queue, unsplit: what a deadline may have to \
                      wait for. The host's own stack is kept to it (`gso_max_size`); guests are not, so turn their \
                      `host_tso4`, `host_tso6`, `host_ufo` and `gso` off first.",
            },
            Key {
                name: "realtime_max",
                kind: Kind::Amount { of: &RATE, min: 1000, max: MAX_RATE, or: &[] },
                required: false,
                default: "no bound but the link",
                example: "\"900mbit\"",
                doc: "Most that the link's channels may have together.",
            },
        ],
        groups: &[],
        strays: &[],
    },
    Section {
        name: "vm",
        form: "[vm.NAME]",
        naming: Naming::Vm,
        doc: "A virtual machine, by libvirt's name, QEMU's `-name`, or `\"pid:N\"` in quotes.",
        keys: &[
            Key {
                name: "class",
                kind: Kind::Word(&["fair", "realtime", "deadline"]),
                required: false,
                default: "as it is",
                example: "\"realtime\"",
                doc: "How its vCPU threads and vhost workers are scheduled: `\"fair\"` is the default scheduler, \
                      `\"realtime\"` is `SCHED_FIFO`, `\"deadline\"` is `SCHED_DEADLINE`. See sched(7).",
            },
            Key {
                name: "priority",
                // The kernel's greatest is 99, which is the workers' then.
                kind: Kind::Integer { min: 1, max: 98 },
                required: false,
                default: "10",
                example: "20",
                doc: "Priority of its vCPU threads in `SCHED_FIFO`; with `class = \"realtime\"` only. The greatest \
                      goes first. Its vhost workers have one more: a busy guest would keep them from running otherwise.",
            },
            Key {
                name: "runtime",
                kind: DEADLINE,
                required: false,
                default: "none: `class = \"deadline\"` needs it",
                example: "\"2ms\"",
                doc: "CPU time of each thread in each period; with `class = \"deadline\"` only.",
            },
            Key {
                name: "deadline",
                kind: DEADLINE,
                required: false,
                default: "`period`",
                example: "\"5ms\"",
                doc: "How long after the period's start a thread has had its `runtime`, between `runtime` and \
                      `period`; with `class = \"deadline\"` only.",
            },
            Key {
                name: "period",
                kind: DEADLINE,
                required: false,
                default: "none: `class = \"deadline\"` needs it",
                example: "\"10ms\"",
                doc: "How often each thread gets its `runtime`; with `class = \"deadline\"` only. The kernel's \
                      bounds are `kernel.sched_deadline_period_min_us` and `_max_us`.",
            },
            Key {
                name: "vcpu_cpus",
                kind: Kind::Cpus,
                required: false,
                default: "as it is",
                example: "\"2-3\"",
                doc: "CPUs for its vCPU threads. Not with `class = \"deadline\"`: Linux does not pin such threads.",
            },
            Key {
                name: "worker_cpus",
                kind: Kind::Cpus,
                required: false,
                default: "as it is",
                example: "\"4\"",
                doc: "CPUs for its vhost workers. Not with `class = \"deadline\"`.",
            },
            Key {
                name: "rps_cpus",
                kind: Kind::Cpus,
                required: false,
                default: "as it is",
                example: "\"2-3\"",
                doc: "CPUs that packets from its taps are handed to (receive packet steering): the host's part of the way out.",
            },
            Key {
                name: "weight",
                kind: Kind::Integer { min: 1, max: 10_000 },
                required: false,
                default: "as it is; the kernel's is 100",
                example: "200",
                doc: "Share of the CPU against other control groups (`cpu.weight`).",
            },
            Key {
                name: "quota",
                // One tenth of a percent is 1 ms, the least that `cpu.max` takes, in its longest period of 1 s.
                kind: Kind::Amount { of: &PERCENT, min: 1, max: MAX_CPUS as u64 * 1000, or: &["none"] },
                required: false,
                default: "as it is",
                example: "\"150%\"",
                doc: "Most CPU time that it may use (`cpu.max`); `\"100%\"` is one whole CPU. `\"none\"` takes a \
                      limit away.",
            },
        ],
        groups: &[&["class", "priority", "runtime", "deadline", "period"]],
        strays: &[
            ("halt_poll", "is host-wide; write it in [host]"),
            ("cpu_latency", "is the CPUs', not a VM's; write it in [host]"),
            ("numa", NOT_YET),
        ],
    },
    Section {
        name: "channel",
        form: "[channel.NAME]",
        naming: Naming::Channel,
        doc: "A one-way flow whose packets have a deadline, by a name of your choice.",
        keys: &[
            Key {
                name: "link",
                kind: Kind::Device,
                required: false,
                default: "the only `[link.NAME]` of the policy",
                example: "\"eth0\"",
                doc: "The device that its packets leave the host by.",
            },
            Key {
                name: "from",
                kind: Kind::Endpoint,
                required: false,
                default: "any",
                example: "\"10.0.0.2:5060\"",
                doc: "Sender.",
            },
            Key {
                name: "to",
                kind: Kind::Endpoint,
                required: false,
                default: "any",
                example: "\"10.0.1.0/24\"",
                doc: "Receiver.",
            },
            Key {
                name: "proto",
                kind: Kind::Word(&["udp", "tcp"]),
                required: false,
                default: "any",
                example: "\"udp\"",
                doc: "Transport protocol.",
            },
            Key {
                name: "deadline",
                kind: Kind::Amount { of: &DURATION, min: 1, max: MAX_DEADLINE, or: &[] },
                required: true,
                default: "",
                example: "\"3ms\"",
                doc: "How long a packet may take through the link's queue.",
            },
            Key {
                name: "min_rate",
                kind: Kind::Amount { of: &RATE, min: 1, max: MAX_RATE, or: &[] },
                required: true,
                default: "",
                example: "\"2mbit\"",
                doc: "Rate that is guaranteed, counted on the wire; what exceeds it goes as best effort.",
            },
            Key {
                name: "burst",
                // With less, no packet ever fits.
                kind: Kind::Amount { of: &SIZE, min: (MIN_FRAME + OVERHEAD) as u64, max: 1 << 30, or: &[] },
                required: false,
                default: "two frames of the link's MTU",
                example: "\"3kb\"",
                doc: "How much may come at once and still be guaranteed, counted on the wire: a frame of at least \
                      60 bytes, and 24 more for each.",
            },
        ],
        groups: &[],
        strays: &[("mark", NOT_YET), ("dscp", NOT_YET), ("on_miss", NOT_YET)],
    },
    Section {
        name: "vf",
        form: "[vf.LINK.N]",
        naming: Naming::Vf,
        doc: "Virtual function N, from 0, of the SR-IOV NIC LINK.",
        keys: &[
            Key {
                name: "hard",
                // `ip link set … vf … max_tx_rate` counts in Mbit/s, and 0 is no limit.
                kind: Kind::Amount { of: &RATE, min: 1_000_000, max: 10_000_000_000_000, or: &[] },
                required: false,
                default: "no limit",
                example: "\"400mbit\"",
                doc: "Most that it may send.",
            },
            Key {
                name: "weight",
                kind: Kind::Integer { min: 1, max: 100 },
                required: false,
                default: "the same as the others",
                example: "2",
                doc: "Share of the link against the NIC's other functions.",
            },
        ],
        groups: &[],
        strays: &[],
    },
];
