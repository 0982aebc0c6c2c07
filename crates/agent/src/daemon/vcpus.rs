//! The scheduler of VMs whose threads go by the deadlines of their packets (`scx_vcpu`), as long as the policy in force asks for it.
//!
//! ```text
//!  no such VM ──(one comes)──► loaded: VMs, taps and threads are kept up to date ──(the last one goes)──► no such VM
//!                               │  ▲
//!      a CPU comes or goes      │  └──(after a pause)
//!      it cannot be loaded  ────┤
//!                               └──► ended by somebody, or by the kernel for a fault ──(SIGHUP)──► no such VM
//! ```
//! It belongs to this process: however the agent ends, the kernel returns to its own scheduler within milliseconds, and nothing is left
//! but the threads' policy SCHED_EXT, which then means the same as the default.

use super::backoff;
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};
use teiji_bpf::Error;
use teiji_bpf::scx_vcpu::{Ended, Figures, MAX_THREADS, MAX_VMS, Role, VcpuScheduler, VmSettings, VmStats};
use teiji_control::admission::cpu;
use teiji_model::observed::Observed;
use teiji_model::plan::PacketVm;
use teiji_model::policy::PacketClass;
use teiji_model::resource::Task;
use teiji_model::status::PacketVmStatus;
use teiji_model::text::printable;

// The planner must not depend on BPF, so it has copies of these constants.
const _: () = assert!(
    teiji_control::plan::MAX_VMS == MAX_VMS as usize
        && teiji_control::plan::MAX_THREADS == MAX_THREADS as usize
        && cpu::PERIOD_PARTS == Figures::SLOTS_PER_PERIOD
        && cpu::TURN == Figures::MAX_OWED
        && cpu::PER_OTHERS == Figures::EDF_PER_OTHERS
        && cpu::MIN_SLICE == Figures::MIN_SLICE
);

#[derive(Default)]
pub(super) struct Vcpus {
    loaded: Option<Loaded>,
    /// It is not loaded before then, after this pause, because of this; printable.
    pause: Option<(Instant, Duration, String)>,
    /// Why it is not loaded any more until somebody asks for it; printable.
    given_up: Option<String>,
}

struct Loaded {
    scheduler: VcpuScheduler,
    since: Instant,
    /// By the process of the VM. A VM keeps its number while its process runs: its threads have it.
    vms: BTreeMap<Task, Numbered>,
    /// The number of the VM of each tap.
    taps: BTreeMap<u32, u32>,
    threads: BTreeSet<Task>,
    /// Numbers from here on were never given out.
    unused: u32,
}

struct Numbered {
    number: u32,
    name: String,
    class: Option<PacketClass>,
    /// What VMs that had its number before have got.
    before: VmStats,
}

impl Vcpus {
    /// Lets these VMs' threads go by the deadlines of their packets, and no others'. Returns what does not work; printable.
    pub(super) fn keep(&mut self, wanted: &[PacketVm], observed: &Observed, now: Instant) -> Vec<String> {
        if wanted.is_empty() {
            self.unload("no VM of the policy in force that is here has class = \"packets\"");
            (self.pause, self.given_up) = (None, None);
            return Vec::new();
        }
        self.see_whether_it_ended(now);
        if let Some(why) = &self.given_up {
            return vec![why.clone()];
        }
        if self.loaded.is_none() {
            if let Some((_, _, why)) = self.pause.as_ref().filter(|(until, ..)| now < *until) {
                return vec![why.clone()];
            }
            match VcpuScheduler::load() {
                Ok((scheduler, _)) => {
                    tracing::info!("threads of VMs go by the deadlines of packets");
                    let (vms, taps, threads) = Default::default();
                    self.loaded = Some(Loaded { scheduler, since: now, vms, taps, threads, unused: 0 });
                }
                Err(why) => {
                    let why = format!("threads of VMs do not go by the deadlines of packets: {why}");
                    self.pauses(now, printable(&why));
                    return vec![printable(&why)];
                }
            }
        }
        let Some(loaded) = &mut self.loaded else { return Vec::new() };
        let problem = loaded.update(wanted, observed).err();
        let problem =
            problem.map(|why| format!("not all threads of VMs go by the deadlines of packets: {why}"));
        problem.iter().map(|why| printable(why)).collect()
    }

    /// Notices that the kernel has returned to its own scheduler.
    pub(super) fn see_whether_it_ended(&mut self, now: Instant) {
        let Some(ended) = self.ended() else { return };
        let why = printable(&ended.why);
        let what =
            format!("no thread goes by the deadlines of packets: the kernel has ended the scheduler ({why})");
        if ended.may_return {
            self.pauses(now, format!("{what}; the agent loads it again"));
        } else {
            // Who ended it, as by SysRq-S, does not want it; and one that is at fault would harm the host again.
            self.loaded = None;
            self.given_up = Some(format!("{what}; `systemctl reload teiji-agent` (SIGHUP) loads it again"));
        }
    }

    /// Somebody asks for it: it is loaded at the next look.
    pub(super) fn asked(&mut self) {
        self.given_up = None;
        self.pause = None;
    }

    /// The kernel schedules all threads by itself again.
    pub(super) fn unload(&mut self, why: &str) {
        if self.loaded.take().is_some() {
            tracing::info!("{why}: the kernel schedules all threads by itself again");
        }
    }

    /// When it is to be tried again.
    pub(super) fn due(&self) -> Option<Instant> {
        self.pause.as_ref().filter(|_| self.loaded.is_none()).map(|(until, ..)| *until)
    }

    /// That the kernel has returned to its own scheduler, if it has and nobody has noticed.
    pub(super) fn ended(&self) -> Option<Ended> {
        match self.loaded.as_ref()?.scheduler.ended() {
            Ok(ended) => ended,
            Err(error) => Some(Ended { why: error.to_string(), may_return: true }),
        }
    }

    /// The pause after a failure; pauses begin anew if the scheduler has worked for as long as the longest one.
    fn pauses(&mut self, now: Instant, why: String) {
        let worked = self.loaded.take().is_some_and(|loaded| now - loaded.since >= backoff::PAUSE_MOST);
        let before = self.pause.take().filter(|_| !worked);
        let pause = backoff::longer(before.map(|(_, pause, _)| pause));
        self.pause = Some((now + pause, pause, why));
    }

    /// What the VMs have got. Empty if it cannot be read.
    pub(super) fn status(&self) -> Vec<PacketVmStatus> {
        self.loaded.as_ref().and_then(|loaded| loaded.status().ok()).unwrap_or_default()
    }
}

impl Loaded {
    /// Whatever of it fails, the rest is done.
    ///
    /// # Errors
    /// The first one.
    fn update(&mut self, wanted: &[PacketVm], observed: &Observed) -> Result<(), Error> {
        let mut done = Ok(());
        let mut also = |result: Result<(), Error>| {
            if done.is_ok() {
                done = result;
            }
        };
        // The threads of those that have ended are no longer known to the scheduler either.
        let is_gone = |process: &Task| observed.vms.iter().all(|vm| vm.process != *process);
        let gone: Vec<Task> = self.vms.keys().copied().filter(is_gone).collect();
        let unwanted = |process: &Task| wanted.iter().all(|other| other.process != *process);
        for process in self.vms.keys().copied().filter(unwanted).collect::<Vec<_>>() {
            also(self.promise(process, None));
        }
        gone.iter().for_each(|process| drop(self.vms.remove(process)));
        let mut taps = BTreeMap::new();
        let mut threads = BTreeSet::new();
        for PacketVm { name, process, class, .. } in wanted {
            let Some(vm) = observed.vms.iter().find(|vm| vm.process == *process) else { continue };
            let number = match self.number(*process, name) {
                Ok(number) => number,
                Err(why) => {
                    also(Err(why));
                    continue;
                }
            };
            also(self.promise(*process, Some(*class)));
            taps.extend(vm.vm.nics.iter().filter(|nic| nic.ifindex != 0).map(|nic| (nic.ifindex, number)));
            let vcpus = vm.vcpus.iter().map(|task| (*task, Role::Vcpu));
            for (task, role) in vcpus.chain(vm.workers.iter().map(|task| (*task, Role::VhostWorker))) {
                if self.threads.contains(&task) {
                    threads.insert(task);
                    continue;
                }
                match self.scheduler.assign(&task, number, role) {
                    Ok(true) => drop(threads.insert(task)),
                    // It has ended meanwhile, and is not in the next observation.
                    Ok(false) => {}
                    Err(why) => also(Err(why)),
                }
            }
        }
        self.threads = threads;
        for ifindex in self.taps.keys().filter(|ifindex| !taps.contains_key(ifindex)) {
            also(self.scheduler.remove_tap(*ifindex));
        }
        for (ifindex, number) in
            taps.iter().filter(|(ifindex, number)| self.taps.get(ifindex) != Some(number))
        {
            also(self.scheduler.put_tap(*ifindex, *number));
        }
        self.taps = taps;
        done
    }

    fn number(&mut self, process: Task, name: &str) -> Result<u32, Error> {
        if let Some(known) = self.vms.get(&process) {
            return Ok(known.number);
        }
        // One that no other VM had, if there is one: what the scheduler keeps of a VM stays with its number.
        let free = |number: &u32| self.vms.values().all(|vm| vm.number != *number);
        let number =
            (self.unused..MAX_VMS).chain(0..self.unused).find(free).ok_or_else(|| Error::Refused {
                doing: format!("schedule {name} by deadlines"),
                reason: format!("{MAX_VMS} VMs are already: use class = \"packets\" for fewer VMs"),
            })?;
        let before = self.scheduler.vm_stats(number)?;
        self.unused = self.unused.max(number + 1);
        self.vms.insert(process, Numbered { number, name: name.to_owned(), class: None, before });
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
            let got = self.scheduler.vm_stats(vm.number)?.since(&vm.before);
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
