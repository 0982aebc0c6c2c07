//! The scheduler of VMs whose threads go by the deadlines of their packets (`scx_vcpu`), as long as the policy in force asks for it.
//!
//! ```text
//!  no such VM ──(one comes)──► loaded: VMs, taps and threads are kept up to date ──(the last one goes)──► no such VM
//!                                │  ▲
//!     the kernel ends it, as when a CPU comes or goes   └──(after a pause)
//! ```
//! It belongs to this process: however the agent ends, the kernel returns to its own scheduler within milliseconds, and nothing is left
//! but the threads' policy SCHED_EXT, which then means the same as the default.

use super::backoff;
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};
use teiji_bpf::Error;
use teiji_bpf::scx_vcpu::{MAX_VMS, Role, VcpuScheduler, VmSettings};
use teiji_model::observed::Observed;
use teiji_model::plan::PacketVm;
use teiji_model::policy::PacketClass;
use teiji_model::resource::Task;
use teiji_model::status::PacketVmStatus;
use teiji_model::text::printable;

#[derive(Default)]
pub(super) struct Vcpus {
    loaded: Option<Loaded>,
    /// It is not loaded before then, after this pause.
    pause: Option<(Instant, Duration)>,
}

struct Loaded {
    scheduler: VcpuScheduler,
    since: Instant,
    /// By the process of the VM. A VM keeps its number while its process runs: its threads have it.
    vms: BTreeMap<Task, Numbered>,
    /// The number of the VM of each tap.
    taps: BTreeMap<u32, u32>,
    threads: BTreeSet<Task>,
}

struct Numbered {
    number: u32,
    name: String,
    class: Option<PacketClass>,
}

impl Vcpus {
    /// Lets these VMs' threads go by the deadlines of their packets, and no others'. Returns what does not work; printable.
    pub(super) fn keep(&mut self, wanted: &[PacketVm], observed: &Observed, now: Instant) -> Vec<String> {
        let mut problems = Vec::new();
        if let Some(why) = self.ended() {
            problems.push(format!(
                "the kernel has returned to its own scheduler, so that no thread goes by the deadlines of packets: {}; the agent loads \
                 its scheduler again",
                printable(&why)
            ));
            self.failed(now);
        }
        if wanted.is_empty() {
            if self.loaded.take().is_some() {
                tracing::info!(
                    "no VM asks for it any more: the kernel schedules all threads by itself again"
                );
            }
            self.pause = None;
            return problems;
        }
        if self.loaded.is_none() {
            if self.pause.is_some_and(|(until, _)| now < until) {
                return problems;
            }
            match VcpuScheduler::load() {
                Ok((scheduler, _)) => {
                    tracing::info!("threads of VMs go by the deadlines of packets");
                    let (vms, taps, threads) = Default::default();
                    self.loaded = Some(Loaded { scheduler, since: now, vms, taps, threads });
                }
                Err(why) => {
                    problems.push(format!("threads of VMs do not go by the deadlines of packets: {why}"));
                    self.failed(now);
                    return problems;
                }
            }
        }
        let Some(loaded) = &mut self.loaded else { return problems };
        if let Err(why) = loaded.update(wanted, observed) {
            problems.push(format!("not all threads of VMs go by the deadlines of packets: {why}"));
        }
        problems
    }

    /// When it is to be tried again.
    pub(super) fn due(&self) -> Option<Instant> {
        self.pause.filter(|_| self.loaded.is_none()).map(|(until, _)| until)
    }

    /// Why the kernel has returned to its own scheduler, if it has.
    pub(super) fn ended(&self) -> Option<String> {
        match self.loaded.as_ref()?.scheduler.ended() {
            Ok(why) => why,
            Err(error) => Some(error.to_string()),
        }
    }

    /// The pause after a failure; it begins anew if the scheduler has worked for as long as the longest one.
    fn failed(&mut self, now: Instant) {
        let worked = self.loaded.take().is_some_and(|loaded| now - loaded.since >= backoff::PAUSE_MOST);
        let pause = backoff::longer(self.pause.filter(|_| !worked).map(|(_, pause)| pause));
        self.pause = Some((now + pause, pause));
    }

    /// What the VMs have got. Empty if it cannot be read.
    pub(super) fn status(&self) -> Vec<PacketVmStatus> {
        self.loaded.as_ref().and_then(|loaded| loaded.status().ok()).unwrap_or_default()
    }
}

impl Loaded {
    fn update(&mut self, wanted: &[PacketVm], observed: &Observed) -> Result<(), Error> {
        // The threads of those that have ended are no longer known to the scheduler either.
        self.vms.retain(|process, _| observed.vms.iter().any(|vm| vm.process == *process));
        let mut taps = BTreeMap::new();
        let mut threads = BTreeSet::new();
        for PacketVm { name, process, class } in wanted {
            let Some(vm) = observed.vms.iter().find(|vm| vm.process == *process) else { continue };
            let number = self.number(*process, name)?;
            self.promise(*process, Some(*class))?;
            taps.extend(vm.vm.nics.iter().filter(|nic| nic.ifindex != 0).map(|nic| (nic.ifindex, number)));
            let vcpus = vm.vcpus.iter().map(|task| (*task, Role::Vcpu));
            for (task, role) in vcpus.chain(vm.workers.iter().map(|task| (*task, Role::VhostWorker))) {
                // One that has ended meanwhile is not in the next observation.
                if self.threads.contains(&task) || self.scheduler.assign(&task, number, role)? {
                    threads.insert(task);
                }
            }
        }
        self.threads = threads;
        let unwanted = |process: &Task| wanted.iter().all(|other| other.process != *process);
        let gone: Vec<Task> = self.vms.keys().copied().filter(unwanted).collect();
        for process in gone {
            self.promise(process, None)?;
        }
        for ifindex in self.taps.keys().filter(|ifindex| !taps.contains_key(ifindex)) {
            self.scheduler.remove_tap(*ifindex)?;
        }
        for (ifindex, number) in
            taps.iter().filter(|(ifindex, number)| self.taps.get(ifindex) != Some(number))
        {
            self.scheduler.put_tap(*ifindex, *number)?;
        }
        self.taps = taps;
        Ok(())
    }

    fn number(&mut self, process: Task, name: &str) -> Result<u32, Error> {
        if let Some(known) = self.vms.get(&process) {
            return Ok(known.number);
        }
        let free = |number: &u32| self.vms.values().all(|vm| vm.number != *number);
        let number = (0..MAX_VMS).find(free).ok_or_else(|| Error::Refused {
            doing: format!("schedule {name} by deadlines"),
            reason: format!("{MAX_VMS} VMs are already; make fewer"),
        })?;
        self.vms.insert(process, Numbered { number, name: name.to_owned(), class: None });
        Ok(number)
    }

    /// `None`: its threads go by weight.
    fn promise(&mut self, process: Task, class: Option<PacketClass>) -> Result<(), Error> {
        let Some(vm) = self.vms.get_mut(&process).filter(|vm| vm.class != class) else { return Ok(()) };
        let Some(promised) = class.or(vm.class) else { return Ok(()) };
        let settings = VmSettings {
            deadline: Duration::from_nanos(promised.deadline),
            period: Duration::from_nanos(promised.period),
            budget: Duration::from_nanos(if class.is_some() { promised.runtime } else { 0 }),
        };
        self.scheduler.put_vm(vm.number, &settings)?;
        vm.class = class;
        Ok(())
    }

    fn status(&self) -> Result<Vec<PacketVmStatus>, Error> {
        let threads = self.scheduler.threads()?;
        let promised = self.vms.values().filter_map(|vm| Some((vm, vm.class?)));
        let of = |(vm, class): (&Numbered, PacketClass)| {
            let got = self.scheduler.vm_stats(vm.number)?;
            let own = || threads.iter().filter(|thread| thread.vm == vm.number);
            let mut waits = Vec::new();
            for thread in own() {
                waits.resize(thread.waits.len().max(waits.len()), 0);
                waits.iter_mut().zip(&thread.waits).for_each(|(all, n): (&mut u64, _)| *all += n);
            }
            let ns = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
            Ok(PacketVmStatus {
                name: vm.name.clone(),
                class,
                threads: own().count(),
                packets: got.packets,
                expired: got.expired,
                before_others: ns(got.before_others),
                by_weight: ns(got.by_weight),
                exhausted: got.exhausted,
                turns: got.turns,
                overruns: got.overruns,
                waits,
            })
        };
        promised.map(of).collect()
    }
}
