//! The resources of a host: observes, reads and changes them. What is changed, and in which order, is not decided here.
//!
//! Each kind has one file and one row of [`ACCESS`]: which resources of the kind exist, with their values
//! ([`Access::observe`], which reads all of a kind at once where the kernel has a list), reading and writing one, and
//! what this host supports of the kind. The dependencies are in `teiji_model::resource::dependency`.
//!
//! | module | resource |
//! | --- | --- |
//! | `thread_cpus`, `thread_scheduling` | a thread's CPUs and its scheduling: `sched_setaffinity(2)`, `sched_setattr(2)` |
//! | `irq_cpus` | an interrupt's CPUs: `/proc/irq/<n>/smp_affinity_list` |
//! | `receive_cpus` | the CPUs that packets of a receive queue are handed to: `rps_cpus` |
//! | `group` | which control group a process is in |
//! | `group_weight`, `group_quota` | `cpu.weight` and `cpu.max` of a control group |
//! | `governor` | the frequency governor of CPUs: `scaling_governor` |
//! | `halt_poll` | KVM's halt polling |
//! | `cpu_latency` | the wake-up latency of a CPU's idle states |
//! | `root_qdisc` | a device's root qdisc that is not teiji's |
//! | `segment_size` | a device's `gso_max_size` |
//!
//! | module | what several kinds share |
//! | --- | --- |
//! | `thread`, `cpu_controller`, `device` | threads, files of control groups, devices by rtnetlink |
//! | `errors` | what the kernel's answers mean, in the operator's words |
//! | `file` | reading and writing a kernel file by one system call |
//!
//! Each change is one system call that the kernel carries out completely or not at all: a process that is killed
//! meanwhile leaves the old value or the new one. The exception is a move of a process into one of teiji's own groups.
//! The group is made before the move, and removed after the process has left it. If teiji is killed in between, an
//! empty group remains, which [`Settings::remove_leftovers`] removes.
//!
//! The kernel may store another value than the requested one (it intersects CPUs with those that are online and in the
//! cpuset): the caller reads back and compares.

mod cpu_controller;
mod cpu_latency;
mod device;
mod errors;
mod file;
mod governor;
mod group;
mod group_quota;
mod group_weight;
mod halt_poll;
mod irq_cpus;
mod receive_cpus;
mod root_qdisc;
mod segment_size;
mod thread;
mod thread_cpus;
mod thread_scheduling;

pub use device::Devices;
pub(crate) use thread::{ThreadSettings, settings as threads};

use crate::cgroup::Hierarchy;
use crate::root::Root;
use std::collections::BTreeSet;
use teiji_model::cpus::CpuSet;
use teiji_model::host::Requirement;
use teiji_model::observed::{ObservedLink, ObservedVm};
use teiji_model::resource::{Resource, ResourceError, ResourceKind, Resources, Value};

/// A kind of resource of a host.
pub(crate) trait Access: Sync {
    /// The kind; each has one row in [`ACCESS`].
    fn kind(&self) -> ResourceKind;

    /// Records the resources of the VMs, devices and CPUs among the facts, each with its value or the reason why it has
    /// none or cannot be changed. Takes time linear in their number.
    fn observe(&self, facts: &Facts<'_>, found: &mut Resources);

    /// The present value of one resource.
    ///
    /// # Errors
    /// As [`Settings::read`].
    fn read(&self, root: &Root, resource: &Resource) -> Result<Value, ResourceError>;

    /// Sets the value of one resource.
    ///
    /// # Errors
    /// As [`Settings::write`].
    fn write(&self, root: &Root, resource: &Resource, value: &Value) -> Result<(), ResourceError>;

    /// Why a resource that can be read cannot be changed on this host. The kernel shows this by a file that nobody may
    /// write; root should not circumvent that, not even by `chmod`.
    fn fixed(&self, _root: &Root, _resource: &Resource) -> Option<ResourceError> {
        None
    }

    /// What this host supports of the kind, for `teiji doctor`; `None` if there is nothing to report.
    fn requirement(&self, _root: &Root) -> Option<Requirement> {
        None
    }
}

/// Every kind.
static ACCESS: [&dyn Access; 12] = [
    &irq_cpus::IrqCpus,
    &receive_cpus::ReceiveCpus,
    &cpu_latency::CpuLatency,
    &governor::Governor,
    &halt_poll::HaltPoll,
    &segment_size::SegmentSize,
    &group::Group,
    &group_weight::GroupWeight,
    &group_quota::GroupQuota,
    &thread_cpus::ThreadCpus,
    &thread_scheduling::ThreadScheduling,
    &root_qdisc::RootQdisc,
];

/// The facts of a host that are known before its resources are observed.
pub(crate) struct Facts<'a> {
    pub root: &'a Root,
    /// The CPUs that are online.
    pub cpus: &'a CpuSet,
    pub vms: &'a [ObservedVm],
    /// The control groups that the threads of each VM are in, in the order of the VMs.
    pub groups: &'a [BTreeSet<String>],
    /// The threads of VMs that are scheduled.
    pub threads: &'a [ThreadSettings],
    pub links: &'a [ObservedLink],
    /// The hierarchy of control groups, or why there is none.
    pub hierarchy: Result<&'a Hierarchy<'a>, &'static str>,
    /// The kernel's list of devices.
    pub devices: &'a Devices,
}

impl Facts<'_> {
    /// Records the result of reading each of these.
    fn read_each(
        &self,
        access: &dyn Access,
        resources: impl IntoIterator<Item = Resource>,
        found: &mut Resources,
    ) {
        for resource in resources {
            let read =
                access.fixed(self.root, &resource).map_or_else(|| access.read(self.root, &resource), Err);
            found.record(resource, read);
        }
    }
}

/// All resources of a host.
pub(crate) fn observe(facts: &Facts<'_>) -> Resources {
    let mut found = Resources::default();
    ACCESS.iter().for_each(|kind| kind.observe(facts, &mut found));
    found
}

/// What this host supports of its resources.
pub(crate) fn requirements(root: &Root) -> Vec<Requirement> {
    ACCESS.iter().filter_map(|kind| kind.requirement(root)).collect()
}

fn access(kind: ResourceKind) -> Result<&'static dyn Access, ResourceError> {
    let found = ACCESS.iter().find(|access| access.kind() == kind).copied();
    found.ok_or_else(|| errors::unsupported("this version of teiji cannot change it"))
}

/// The settings of a host: reads and changes its resources.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Settings {
    root: Root,
}

impl Settings {
    /// The settings of the host whose files are below `root`.
    ///
    /// Threads are changed by system calls, which reach only those of the running kernel: below another directory than
    /// `/` they are read from procfs and cannot be changed.
    pub fn new(root: Root) -> Self {
        Settings { root }
    }

    /// The present value of a resource. teiji's root qdisc is reported like any other: its channels are in its maps.
    /// Needs no privilege but that of reading the file in question.
    ///
    /// # Errors
    /// [`ResourceError::Gone`] if the thread, interrupt or group does not exist (any more), another error if this host
    /// does not have such a resource or the caller may not read it.
    pub fn read(&self, resource: &Resource) -> Result<Value, ResourceError> {
        access(resource.kind())?.read(&self.root, resource)
    }

    /// Sets the value of a resource. Privileges: threads need `CAP_SYS_NICE`, devices `CAP_NET_ADMIN`, all others
    /// root's permission to write the file.
    ///
    /// # Errors
    /// If the kernel refuses it, and then nothing has changed.
    pub fn write(&self, resource: &Resource, value: &Value) -> Result<(), ResourceError> {
        let access = access(resource.kind())?;
        match access.fixed(&self.root, resource) {
            Some(why) => Err(why),
            None => access.write(&self.root, resource, value),
        }
    }

    /// Which other resources a change of this one may disturb; not every kernel does so.
    pub fn disturbed_by(&self, resource: &Resource) -> Vec<Resource> {
        group::disturbs(&self.root, resource)
    }

    /// Removes what interrupted changes and ended VMs left behind: empty groups of teiji's own.
    ///
    /// The group of a VM that is still ending cannot be removed yet. To be called with the lock held: a group that
    /// another teiji is about to use is empty as well.
    pub fn remove_leftovers(&self) {
        group::remove_leftovers(&self.root);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_can_be_changed_and_has_one_row() {
        let kinds: Vec<ResourceKind> = ACCESS.iter().map(|access| access.kind()).collect();
        assert_eq!(kinds, teiji_model::resource::RESOURCE_KINDS);
    }

    #[test]
    fn a_resource_takes_values_of_its_kind_only() {
        let settings = Settings::new(Root::new("/nowhere"));
        let wrong = settings.write(&Resource::HaltPoll, &Value::Weight(3)).unwrap_err();
        assert!(matches!(&wrong, ResourceError::Refused(why) if why.contains("not a value")), "{wrong:?}");
    }
}
