//! The host as a plan needs to know it. Changes nothing.
//!
//! | module | holds |
//! | --- | --- |
//! | `starvation_guard` | what keeps a real-time thread from starving the others of its CPU |
//! | `links` | network devices, their interrupts, and whether guests' packets leave by them |
//! | `managers` | other programs that change the same settings, and cpusets that limit them |
//!
//! Anything that vanishes during the observation is left out. Each kind of resource is observed by its own module in
//! [`resource`]. The kernel is asked for all devices and for all qdiscs at once, so the time of an
//! observation is linear in their number.

mod links;
mod managers;
mod starvation_guard;

use crate::Error;
use crate::cgroup::{self, Hierarchy};
use crate::resource::{self, Devices, Facts};
use crate::root::Root;
use crate::task::alive;
use crate::vm::{self, Found};
use std::collections::{BTreeMap, BTreeSet};
use teiji_model::cpus::CpuSet;
use teiji_model::observed::{Observed, ObservedVm};

impl Root {
    /// The state of the host: CPUs, VMs, NICs, every setting of these that can be read, and other programs that change
    /// them.
    ///
    /// # Errors
    /// If `/proc` or the list of online CPUs cannot be read.
    pub fn observe(&self) -> Result<Observed, Error> {
        self.observe_with_devices().map(|(observed, _)| observed)
    }

    /// The state of the host as [`Root::observe`] returns it, and the kernel's lists of devices and qdiscs that it was taken from,
    /// which are long on a host with many VMs.
    ///
    /// # Errors
    /// As [`Root::observe`].
    pub fn observe_with_devices(&self) -> Result<(Observed, Devices), Error> {
        let cpus = self.online().ok_or_else(|| Error::Cpus { path: self.path(ONLINE) })?;
        let hierarchy = Hierarchy::find(self);
        let mut members = Members::new(hierarchy.as_ref().ok());
        let processes = vm::processes(self)?;
        let vmms = vm::vmms(self, &processes);
        let devices = Devices::of(self);
        let found = vm::vms(self, &processes, vmms, &devices);
        let (mut vms, groups): (Vec<ObservedVm>, Vec<BTreeSet<String>>) =
            found.into_iter().filter_map(|found| observe(self, &mut members, found)).unzip();
        let threads = resource::threads(self, &mut vms);
        let links = links::links(self, &devices);
        let hierarchy_or_why = hierarchy.as_ref().map_err(|why| *why);
        let facts = Facts {
            root: self,
            cpus: &cpus,
            vms: &vms,
            groups: &groups,
            threads: &threads,
            links: &links,
            hierarchy: hierarchy_or_why,
            devices: &devices,
        };
        let settings = resource::observe(&facts);
        let managers = managers::managers(&facts, &processes);
        let realtime_guard = starvation_guard::realtime(self, &cpus);
        let observed = Observed {
            cpus,
            vms,
            links,
            settings,
            realtime_guard,
            managers,
            deadline_support: Default::default(),
            sched_ext: Default::default(),
        };
        Ok((observed, devices))
    }

    /// CPUs that are online; `None` if that cannot be read.
    pub(crate) fn online(&self) -> Option<CpuSet> {
        self.text(ONLINE)?.parse().ok().filter(|cpus: &CpuSet| !cpus.is_empty())
    }
}

const ONLINE: &str = "sys/devices/system/cpu/online";

/// A VM, and the groups that its threads are in. `None` if it has vanished.
fn observe(root: &Root, groups: &mut Members<'_>, found: Found) -> Option<(ObservedVm, BTreeSet<String>)> {
    let Found { vm, identity, process, vcpus, workers } = found;
    let of_threads = groups.hierarchy.map(|h| h.of_threads(vm.pid)).unwrap_or_default();
    // So what has been read of the process until now is its own.
    alive(root, process).ok()?;
    let group = cgroup::common(&of_threads).filter(|g| cgroup::is_group(g) && !g.ends_with(" (deleted)"));
    // A vhost worker that is a kernel thread is listed as a process of its own.
    let own: BTreeSet<u32> = workers.iter().map(|w| w.id).chain([vm.pid]).collect();
    let members = group.as_deref().filter(|g| *g != "/").and_then(|g| groups.of(g));
    let group_shared = members.is_none_or(|all| all.iter().any(|pid| !own.contains(pid)));
    Some((ObservedVm { vm, identity, process, vcpus, workers, group, group_shared }, of_threads))
}

/// The processes in each group. A group is read once, however many VMs share it.
struct Members<'a> {
    hierarchy: Option<&'a Hierarchy<'a>>,
    known: BTreeMap<String, Option<BTreeSet<u32>>>,
}

impl<'a> Members<'a> {
    fn new(hierarchy: Option<&'a Hierarchy<'a>>) -> Self {
        Members { hierarchy, known: BTreeMap::new() }
    }

    /// The processes in a group and in those below it; `None` if they cannot be told.
    fn of(&mut self, group: &str) -> Option<&BTreeSet<u32>> {
        let hierarchy = self.hierarchy?;
        self.known.entry(group.to_owned()).or_insert_with(|| hierarchy.members(group)).as_ref()
    }
}
