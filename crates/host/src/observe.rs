//! The host as a plan needs to know it. Changes nothing.
//!
//! | module | holds |
//! | --- | --- |
//! | `guard` | what keeps a real-time thread from starving the others of its CPU |
//! | `links` | network devices, their interrupts, and whether guests' packets leave by them |
//! | `managers` | other programs that change the same settings, and cpusets that limit them |
//!
//! What vanishes while it is looked at is left out. What is there but cannot be read, or
//! never changed, is named in `Observed::unreadable`, once for each kind of setting; once for each device that has
//! reasons of its own.

mod guard;
mod links;
mod managers;

use crate::Error;
use crate::cgroup::{self, Hierarchy};
use crate::root::Root;
use crate::settings::Settings;
use crate::task::task;
use std::collections::{BTreeMap, BTreeSet};
use std::mem;
use teiji_model::cpus::CpuSet;
use teiji_model::host::{Identity, VM_USERS, Vm};
use teiji_model::plan::{Observed, ObservedLink, ObservedVm, own_group};
use teiji_model::setting::{Setting, SettingError, Task, Value};

impl Root {
    /// The host as it is now: CPUs, VMs, NICs, every setting of theirs that can be read, and who else changes them.
    ///
    /// # Errors
    /// If `/proc` cannot be listed, or the list of online CPUs not be read.
    pub fn observe(&self) -> Result<Observed, Error> {
        let cpus = self.online().ok_or_else(|| Error::Cpus { path: self.path(ONLINE) })?;
        let hierarchy = Hierarchy::find(self).ok();
        let vms: Vec<ObservedVm> = self
            .identified_vms()?
            .into_iter()
            .filter_map(|vm| observe(self, hierarchy.as_ref(), vm))
            .collect();
        let links = links::links(self);
        let mut found = Found::new(self);
        // What keeps an impostor's settings from being read is not what is said of the others'.
        let (doubtful, genuine): (Vec<_>, Vec<_>) =
            vms.iter().partition(|vm| vm.identity.doubt(&VM_USERS).is_some());
        genuine.iter().for_each(|vm| found.vm(vm));
        links.iter().flat_map(|link| &link.irqs).for_each(|irq| found.read(Setting::IrqCpus(*irq)));
        for device in links.iter().map(ObservedLink::device) {
            found.read(Setting::Queue(device.clone()));
            found.read(Setting::SegmentSize(device));
        }
        found.read(Setting::HaltPoll);
        cpus.iter().for_each(|cpu| found.read(Setting::CpuLatency(cpu)));
        let unreadable = found.unreadable();
        doubtful.iter().for_each(|vm| found.vm(vm));
        let managers = managers::managers(self, hierarchy.as_ref(), &cpus, &vms);
        let realtime_guard = guard::realtime(self, &cpus);
        Ok(Observed {
            cpus,
            vms,
            links,
            settings: found.settings,
            unreadable,
            realtime_guard,
            managers,
            deadlines: Default::default(),
        })
    }

    /// CPUs that are online.
    fn online(&self) -> Option<CpuSet> {
        self.text(ONLINE)?.parse().ok().filter(|cpus: &CpuSet| !cpus.is_empty())
    }
}

const ONLINE: &str = "sys/devices/system/cpu/online";

/// A VM with its tasks; those that have vanished are left out of both. `None` if the VM has.
fn observe(
    root: &Root,
    hierarchy: Option<&Hierarchy>,
    (mut vm, identity): (Vm, Identity),
) -> Option<ObservedVm> {
    let process = task(root, vm.pid)?;
    let (kept, vcpus) = with_tasks(root, mem::take(&mut vm.vcpus), |v| v.tid);
    vm.vcpus = kept;
    let (kept, workers) = with_tasks(root, mem::take(&mut vm.workers), |w| w.tid);
    vm.workers = kept;
    let group = hierarchy
        .and_then(|h| cgroup::common(&h.of_threads(vm.pid)))
        .filter(|g| cgroup::is_group(g) && !g.ends_with(" (deleted)"));
    // A vhost worker that is a kernel thread is listed as a process of its own.
    let own: BTreeSet<u32> = workers.iter().map(|w| w.id).chain([vm.pid]).collect();
    let members = group.as_deref().filter(|g| *g != "/").zip(hierarchy).and_then(|(g, h)| h.members(g));
    let group_shared = members.is_none_or(|all| all.iter().any(|pid| !own.contains(pid)));
    Some(ObservedVm { vm, identity, process, vcpus, workers, group, group_shared })
}

fn with_tasks<T>(root: &Root, all: Vec<T>, id: impl Fn(&T) -> u32) -> (Vec<T>, Vec<Task>) {
    all.into_iter().filter_map(|one| task(root, id(&one)).map(|task| (one, task))).unzip()
}

/// Settings that were read, and why others could not be.
struct Found {
    from: Settings,
    settings: BTreeMap<Setting, Value>,
    /// By kind of setting: the first reason, and how many more there were.
    failures: Vec<(mem::Discriminant<Setting>, String, usize)>,
    /// Whether the kernel is asked, which has a reason for each device.
    real: bool,
}

impl Found {
    fn new(root: &Root) -> Self {
        Found {
            from: Settings::new(root.clone()),
            settings: BTreeMap::new(),
            failures: Vec::new(),
            real: root.is_real(),
        }
    }

    fn read(&mut self, setting: Setting) {
        match self.from.fixed(&setting).map_or_else(|| self.from.read(&setting), Err) {
            Ok(value) => {
                self.settings.insert(setting, value);
            }
            Err(SettingError::Gone(_)) => {}
            Err(why) => self.failed(&setting, why.to_string()),
        }
    }

    fn failed(&mut self, setting: &Setting, why: String) {
        let kind = mem::discriminant(setting);
        let own = self.real && matches!(setting, Setting::Queue(_) | Setting::SegmentSize(_));
        match self.failures.iter_mut().find(|(of, ..)| *of == kind && !own) {
            Some((.., more)) => *more += 1,
            None => self.failures.push((kind, why, 0)),
        }
    }

    fn vm(&mut self, vm: &ObservedVm) {
        for task in vm.vcpus.iter().chain(&vm.workers) {
            self.read(Setting::ThreadCpus(*task));
            self.read(Setting::ThreadScheduling(*task));
        }
        self.read(Setting::Group(vm.process));
        let present = vm.group.clone().filter(|_| !vm.group_shared);
        for group in present.into_iter().chain([own_group(vm.vm.pid)]) {
            self.read(Setting::GroupWeight(group.clone()));
            self.read(Setting::GroupQuota(group));
        }
    }

    fn unreadable(&self) -> Vec<String> {
        let line = |(_, why, more): &(_, String, usize)| match more {
            0 => why.clone(),
            more => format!("{why} (and {more} more of its kind)"),
        };
        self.failures.iter().map(line).collect()
    }
}
