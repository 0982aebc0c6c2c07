//! Reads and changes one setting of the host. Whether, what for and in which order is not decided here.
//!
//! | module | setting |
//! | --- | --- |
//! | `thread` | a thread's CPUs and its scheduling: `sched_setaffinity(2)`, `sched_setattr(2)` |
//! | `irq` | an interrupt's CPUs: `/proc/irq/<n>/smp_affinity_list` |
//! | `group` | which control group a process is in |
//! | `share` | `cpu.weight` and `cpu.max` of a control group |
//! | `power` | KVM's halt polling, and the wake-up latency of a CPU's idle states |
//! | `queue` | a device's root qdisc that is not teiji's, and its `gso_max_size` |
//! | `attempt` | what the kernel's answers mean, in the operator's words |
//! | `file` | reading and writing a kernel file by one system call |
//!
//! Each change is one system call that the kernel does wholly or not at all: whoever is killed meanwhile leaves
//! the old value or the new one. The exception is moving a process into a group of teiji's own, which is made
//! first, and taken away after the process has left: what may remain of it is an empty group, which
//! [`Settings::tidy`] removes.
//!
//! The kernel may make of a value something else than was asked for (it intersects CPUs with those that are
//! online and in the cpuset): the caller reads back and compares.

mod attempt;
mod file;
mod group;
mod irq;
mod power;
mod queue;
mod share;
mod thread;

use crate::root::Root;
use attempt::Attempt;
use teiji_model::queue::Queue;
use teiji_model::setting::{Setting, SettingError, Value};

/// The settings of a host.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Settings {
    root: Root,
}

impl Settings {
    /// Of the host whose files are below `root`.
    ///
    /// Threads are changed by system calls, which know only those of the running kernel: below another directory
    /// than `/` they are read from procfs and cannot be changed.
    pub fn new(root: Root) -> Self {
        Settings { root }
    }

    /// What a setting is now. A root qdisc of teiji's is named as any other: what it keeps, its maps tell. Needs no
    /// privilege but that of reading the file in question.
    ///
    /// # Errors
    /// [`SettingError::Gone`] if the thread, interrupt or group is not there (any more), another if this host
    /// does not have such a setting or the caller may not read it.
    pub fn read(&self, setting: &Setting) -> Result<Value, SettingError> {
        let (root, attempt) = (&self.root, Attempt::reading(setting));
        match setting {
            Setting::ThreadCpus(task) => thread::read_cpus(root, *task, &attempt).map(Value::Cpus),
            Setting::ThreadScheduling(task) => {
                thread::read_scheduling(root, *task, &attempt).map(Value::Scheduling)
            }
            Setting::IrqCpus(irq) => irq::read(root, *irq, &attempt).map(Value::Cpus),
            Setting::Group(task) => group::read(root, *task, &attempt).map(Value::Group),
            Setting::GroupWeight(path) => share::read_weight(root, path, &attempt).map(Value::Weight),
            Setting::GroupQuota(path) => share::read_quota(root, path, &attempt).map(Value::Quota),
            Setting::HaltPoll => power::read_halt_poll(root, &attempt).map(Value::Nanoseconds),
            Setting::CpuLatency(cpu) => power::read_latency(root, *cpu, &attempt).map(Value::Latency),
            Setting::Queue(device) => queue::read_queue(root, device, &attempt).map(Value::Queue),
            Setting::SegmentSize(device) => queue::read_size(root, device, &attempt).map(Value::Bytes),
        }
    }

    /// Makes a setting so. What needs which privilege: threads `CAP_SYS_NICE`, devices
    /// `CAP_NET_ADMIN`, the rest root's right to write the file.
    ///
    /// # Errors
    /// If the kernel refuses it, and then nothing has changed.
    pub fn write(&self, setting: &Setting, value: &Value) -> Result<(), SettingError> {
        if let Some(why) = self.fixed(setting) {
            return Err(why);
        }
        let (root, attempt) = (&self.root, Attempt::writing(setting, value));
        match (setting, value) {
            (Setting::ThreadCpus(task), Value::Cpus(cpus)) => thread::write_cpus(root, *task, cpus, &attempt),
            (Setting::ThreadScheduling(task), Value::Scheduling(wanted)) => {
                thread::write_scheduling(root, *task, *wanted, &attempt)
            }
            (Setting::IrqCpus(irq), Value::Cpus(cpus)) => irq::write(root, *irq, cpus, &attempt),
            (Setting::Group(task), Value::Group(path)) => group::write(root, *task, path, &attempt),
            (Setting::GroupWeight(path), Value::Weight(weight)) => {
                share::write_weight(root, path, *weight, &attempt)
            }
            (Setting::GroupQuota(path), Value::Quota(quota)) => {
                share::write_quota(root, path, *quota, &attempt)
            }
            (Setting::HaltPoll, Value::Nanoseconds(ns)) => power::write_halt_poll(root, *ns, &attempt),
            (Setting::CpuLatency(cpu), Value::Latency(latency)) => {
                power::write_latency(root, *cpu, *latency, &attempt)
            }
            (Setting::Queue(device), Value::Queue(Queue::Stock(wanted))) => {
                queue::write_queue(root, device, wanted, &attempt)
            }
            (Setting::SegmentSize(device), Value::Bytes(size)) => {
                queue::write_size(root, device, *size, &attempt)
            }
            _ => Err(attempt.impossible("that is not a value that it can have")),
        }
    }

    /// Removes what changes that were interrupted, and VMs that have ended, left behind: empty groups of teiji's own.
    ///
    /// That of a VM that is still ending cannot be removed yet. For who has the lock only: a group that another teiji is
    /// about to use is empty as well.
    pub fn tidy(&self) {
        group::tidy(&self.root);
    }

    /// Why a setting that can be read cannot be changed on this host. The kernel tells by a file that nobody may
    /// write, which neither root nor `chmod` should get around.
    pub(crate) fn fixed(&self, setting: &Setting) -> Option<SettingError> {
        let (path, why) = match setting {
            Setting::IrqCpus(irq) => (irq::path(*irq), irq::MANAGED),
            Setting::HaltPoll => (power::HALT_POLL.to_owned(), power::READ_ONLY),
            _ => return None,
        };
        let is_fixed = file::is_read_only(&self.root, &path);
        is_fixed.then(|| SettingError::Unsupported(format!("{setting} cannot be changed: {why}")))
    }
}
