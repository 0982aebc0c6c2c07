//! Keeps the policy in force while VMs, threads, devices and links come and go.
//!
//! ```text
//!  hint, SIGHUP, time ──► look ──► no policy in force ──► nothing
//!                          │        another teiji is changing settings, or waits for a confirmation ──► later
//!                          ▼
//!              observe ──► the sections that mean something ──► plan ──► parts ──► apply, all at once
//!                                                                 │       │      or, if that fails, one by one
//!                                                                 │       └── foreign: reported, left alone
//!                                                                 └── problems: reported, their sections left as they are
//! ```
//! A thread of its own does this, with the agent's privileges. If a write to the host hangs, this thread hangs; nothing
//! else does. Its state is what [`Reconciler::status`] shows, and may be asked for at any time.

use super::backoff::Failed;
use super::claim::Claim;
use super::schedule::Schedule;
use super::vcpus::Vcpus;
use crate::apply::clock::{Clock, SystemClock};
use crate::apply::store::{HELD, TRANSACTION};
use crate::apply::{self, Engine, Options};
use crate::backend::HostBackend;
use crate::{observation, policy};
use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::{Duration, Instant};
use teiji_control::plan::{Known, Of, Part, parts, possible, present};
use teiji_host::watch::{Hint, MAX_GROUPS, Watch};
use teiji_host::{Root, kernel, vm_threads};
use teiji_model::host::VmId;
use teiji_model::observed::{Observed, ObservedVm};
use teiji_model::plan::{Plan, Step};
use teiji_model::policy::KeptPolicy;
use teiji_model::resource::ResourceKind;
use teiji_model::status::AgentStatus;
use teiji_model::text::printable;

/// Hints are read at most so often: process events of a busy host are many.
const GATHER: Duration = Duration::from_millis(50);
/// The longest wait for hints.
const MAX_WAIT: Duration = Duration::from_secs(60);
/// How long a reload (SIGHUP) waits for a look.
const RELOAD_TIMEOUT: Duration = Duration::from_secs(60);
/// How long the process that waits for a confirmation may take to undo its changes itself.
const GRACE: Duration = Duration::from_millis(500);
/// How long a manager such as libvirt may take to set up a VM.
const YOUNG: Duration = Duration::from_secs(15);
/// A look that takes longer than this is a problem that the status shows.
const OVERDUE: Duration = Duration::from_secs(10);
/// After a write of its own the state directory is looked at again after this time.
const OWN_WRITE: Duration = Duration::from_secs(2);

/// Keeps the policy in force; shared by the thread that does so and those that ask about it.
pub(super) struct Reconciler {
    state: PathBuf,
    pins: PathBuf,
    claim: Arc<Claim>,
    begun: Instant,
    shared: Mutex<Shared>,
    vcpus: Mutex<Vcpus>,
    looked: Condvar,
    wake: UnixStream,
    woken: UnixStream,
    stop: AtomicBool,
}

#[derive(Default)]
struct Shared {
    status: AgentStatus,
    /// When the look that is in progress began.
    looking: Option<Instant>,
    /// The parts that could not be carried out when they were last tried.
    failed: BTreeMap<Of, Failed>,
    /// Why no link can have channels.
    no_qdisc: Option<String>,
    /// How many looks have begun and ended.
    begun: u64,
    ended: u64,
}

/// What a look found.
#[derive(Debug, Default)]
struct Look {
    /// The vCPU threads and vhost workers of each VM, by its process.
    threads: BTreeMap<u32, BTreeSet<u32>>,
    /// Control groups to watch.
    groups: BTreeSet<String>,
    /// The files of the policy in force, and since when it is; `None` if it could not be read.
    policy: Option<(Vec<String>, Option<u64>)>,
    changed: u64,
    absent: Vec<String>,
    problems: Vec<String>,
    /// For how long an apply can still be confirmed.
    lease_left: Option<Duration>,
    /// It is to be tried again soon.
    again: bool,
    /// The host was not compared with the policy: what was known of it still holds.
    unfinished: bool,
    /// Whether it has written the state itself, whatever came of that.
    written: bool,
    /// The parts that could not be carried out, those included that are not to be tried yet.
    failed: BTreeMap<Of, Failed>,
    /// Whether all parts, or some if it is `unfinished`, were carried out or tried.
    tried: bool,
}

impl Reconciler {
    /// # Errors
    /// If no socket can be made.
    pub(super) fn new(state: &Path, pins: &Path, claim: Arc<Claim>) -> std::io::Result<Reconciler> {
        let (wake, woken) = UnixStream::pair()?;
        wake.set_nonblocking(true)?;
        woken.set_nonblocking(true)?;
        let status = AgentStatus {
            teiji: env!("CARGO_PKG_VERSION").into(),
            pid: std::process::id(),
            started: kernel::unix_time(),
            ..AgentStatus::default()
        };
        Ok(Reconciler {
            state: state.to_owned(),
            pins: pins.to_owned(),
            claim,
            begun: Instant::now(),
            shared: Mutex::new(Shared { status, ..Shared::default() }),
            vcpus: Mutex::default(),
            looked: Condvar::new(),
            wake,
            woken,
            stop: AtomicBool::new(false),
        })
    }

    /// The engine that changes settings of this host.
    ///
    /// # Errors
    /// If the kernel does not tell its boot id.
    pub(super) fn engine(&self) -> Result<Engine<HostBackend>, apply::Error> {
        Engine::open(&self.state, HostBackend::new(Root::default(), &self.pins, &self.state))
    }

    fn vcpus(&self) -> MutexGuard<'_, Vcpus> {
        self.vcpus.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// `None`: somebody else has it, as a look that loads the scheduler.
    fn vcpus_now(&self) -> Option<MutexGuard<'_, Vcpus>> {
        match self.vcpus.try_lock() {
            Ok(vcpus) => Some(vcpus),
            Err(TryLockError::Poisoned(vcpus)) => Some(vcpus.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// Looks at the host soon if the kernel has ended the scheduler of VMs' threads.
    pub(super) fn check_vcpus(&self) {
        // While a look has it, that look finds out.
        if self.vcpus_now().is_some_and(|vcpus| vcpus.ended().is_some()) {
            self.wake();
        }
    }

    fn shared(&self) -> MutexGuard<'_, Shared> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What it does.
    pub(super) fn status(&self) -> AgentStatus {
        let mut shared = self.shared();
        // While a look has it, what was read before counts.
        if let Some(vcpus) = self.vcpus_now() {
            shared.status.packet_vms = vcpus.status();
        }
        let mut status = shared.status.clone();
        status.problems.extend(shared.no_qdisc.clone());
        if let Some(since) = shared.looking.map(|begun| begun.elapsed()).filter(|since| *since > OVERDUE) {
            status.problems.push(format!(
                "the agent has been busy comparing the host with the policy for {} s: a write to the host may hang; \
                 deadlines are kept meanwhile",
                since.as_secs()
            ));
        }
        status
    }

    /// Looks at the host now; returns what is not as it should be.
    ///
    /// # Errors
    /// If that takes too long.
    pub(super) fn reconcile_now(&self) -> Result<Vec<String>, String> {
        if self.stop.load(Ordering::SeqCst) {
            return Err("the agent ends, so it does not compare the host with the policy any more".into());
        }
        let mut shared = self.shared();
        // Whoever asks may have removed the cause.
        shared.failed.values_mut().for_each(Failed::due);
        drop(shared);
        self.vcpus().asked();
        let shared = self.shared();
        // A look that is in progress may have begun before what the caller has in mind.
        let wanted = shared.begun + 1;
        drop(shared);
        self.wake();
        let (shared, over) = self
            .looked
            .wait_timeout_while(self.shared(), RELOAD_TIMEOUT, |shared| shared.ended < wanted)
            .unwrap_or_else(PoisonError::into_inner);
        if over.timed_out() {
            return Err(format!(
                "the agent has not compared the host with the policy within {} s",
                RELOAD_TIMEOUT.as_secs()
            ));
        }
        Ok(shared.status.problems.clone())
    }

    /// Why no link can have channels, if that is not the kernel's age. A change is looked at soon.
    pub(super) fn no_qdisc(&self, why: Option<&str>) {
        let mut shared = self.shared();
        if shared.no_qdisc.as_deref() != why {
            shared.no_qdisc = why.map(printable);
            drop(shared);
            self.wake();
        }
    }

    /// Looks at the host soon.
    pub(super) fn wake(&self) {
        // If the buffer is full, it will wake up.
        let _ = (&self.wake).write(&[0]);
    }

    /// Lets [`Reconciler::run`] return.
    pub(super) fn stop(&self) {
        self.stop.store(true, Ordering::SeqCst);
        self.wake();
    }

    /// Reconciles until [`Reconciler::stop`].
    pub(super) fn run(&self) {
        let (mut watch, missing) = Watch::open();
        for what in &missing {
            tracing::warn!(
                "the kernel does not tell of {what}; the agent looks at the host more often instead"
            );
        }
        let mut schedule = Schedule::new(!missing.is_empty());
        self.shared().status.blind = missing.iter().map(|what| printable(what)).collect();
        let now = || self.begun.elapsed();
        // Whether what is told of the files of the state directory is the work of this thread.
        let mut own = false;
        // The threads of VMs at the last look.
        let mut threads = BTreeMap::new();
        while !self.stop.load(Ordering::SeqCst) {
            let left = schedule.due().saturating_sub(now());
            if !left.is_zero() {
                let woken = match watch.wait(left.min(MAX_WAIT), self.woken.as_fd()) {
                    Ok(woken) => woken,
                    Err(error) => {
                        tracing::error!("cannot wait for changes of the host: {error}");
                        std::thread::sleep(MAX_WAIT.min(left));
                        false
                    }
                };
                if woken {
                    while matches!((&self.woken).read(&mut [0; 64]), Ok(1..)) {}
                    schedule.now(now());
                } else {
                    std::thread::sleep(GATHER);
                }
            }
            // The folder may not be there yet, and somebody may replace it.
            if watch.follow_files(&self.state, &[TRANSACTION, HELD]).unwrap_or(false) {
                schedule.now(now());
            }
            for hint in watch.hints() {
                if hint == Hint::File && std::mem::take(&mut own) {
                    // Somebody else may have written at the same time, as several writes are told as one.
                    schedule.at(now() + OWN_WRITE);
                    continue;
                }
                schedule.hint(now(), hint, &|hint| concerns_vm(hint, &threads));
            }
            if schedule.due() > now() {
                continue;
            }
            let (begun, cpu) = (now(), kernel::cpu_time());
            {
                let mut shared = self.shared();
                shared.begun += 1;
                shared.looking = Some(Instant::now());
            }
            let mut look = catch_unwind(AssertUnwindSafe(|| self.look())).unwrap_or_else(|_| Look {
                problems: vec![
                    "the agent failed while it compared the host with the policy: see its log".into(),
                ],
                again: true,
                ..Look::default()
            });
            own = look.written;
            watch.follow_groups(&look.groups);
            let vms = look.threads.keys().copied().collect();
            schedule.looked(begun, now(), kernel::cpu_time().saturating_sub(cpu), vms, look.again);
            threads = std::mem::take(&mut look.threads);
            if let Some(left) = look.lease_left {
                schedule.at(now() + left + GRACE);
            }
            look.failed.values().for_each(|failed| schedule.at(failed.until));
            if let Some(due) = self.vcpus().due() {
                schedule.at(due.saturating_duration_since(self.begun));
            }
            self.show(look, now() - begun);
        }
    }

    /// Publishes what a look found, and logs what is new of it.
    fn show(&self, look: Look, took: Duration) {
        let mut shared = self.shared();
        for problem in look.problems.iter().filter(|p| !shared.status.problems.contains(p)) {
            tracing::warn!("{problem}; see `teiji status`");
        }
        let well = look.problems.is_empty() && look.failed.is_empty() && !look.unfinished;
        if well && !shared.status.problems.is_empty() {
            tracing::info!("the host is as the policy asks for again");
        }
        if look.changed > 0 {
            tracing::info!("{} settings changed to keep the policy", look.changed);
        }
        let status = &mut shared.status;
        status.policy_unknown = look.policy.is_none();
        if let Some((files, since)) = look.policy {
            (status.policy, status.policy_since) = (files, since);
        }
        status.looks += 1;
        status.looked = Some(kernel::unix_time());
        status.look_ms = u64::try_from(took.as_millis()).unwrap_or(u64::MAX);
        status.changed += look.changed;
        if !look.unfinished {
            status.absent = look.absent;
            status.problems = look.problems;
        }
        match (look.tried, look.unfinished) {
            (true, false) => shared.failed = look.failed,
            (true, true) => shared.failed.extend(look.failed),
            (false, _) => {}
        }
        shared.looking = None;
        shared.ended = shared.begun;
        drop(shared);
        self.looked.notify_all();
    }

    /// Compares the host with the policy in force, and changes what is not as it asks for.
    fn look(&self) -> Look {
        let mut look = Look::default();
        if let Err(why) = self.try_look(&mut look) {
            look.problems.push(printable(&why));
            look.again = true;
        }
        look
    }

    fn try_look(&self, look: &mut Look) -> Result<(), String> {
        self.vcpus().see_whether_it_ended(Instant::now());
        match self.claim.is_ours() {
            Ok(true) => {}
            Ok(false) => {
                self.vcpus().unload("another agent keeps the policy");
                let state = self.state.display();
                return Err(format!(
                    "another agent keeps {state}: this one only sends its heartbeat until that one ends"
                ));
            }
            Err(error) => return Err(format!("cannot use {}: {error}", self.state.display())),
        }
        let engine = self.engine().map_err(|e| explained(&e))?;
        let to_keep = engine.to_keep();
        // Recovering may have ended it. It is shown also if nothing can be changed now.
        let shown = engine.policy().map_err(|e| explained(&e))?;
        look.policy =
            Some(shown.map_or_else(Default::default, |policy| (policy.files(), Some(policy.since))));
        let to_keep = match to_keep {
            Ok(to_keep) => to_keep,
            Err(apply::Error::Busy(_)) => return later(look),
            Err(error) => return Err(explained(&error)),
        };
        to_keep.messages.iter().for_each(|message| tracing::warn!("{message}"));
        look.written = to_keep.written;
        if to_keep.lease_left.is_some() {
            (look.lease_left, look.unfinished) = (to_keep.lease_left, true);
            return Ok(());
        }
        let Some(kept) = to_keep.policy else {
            look.problems.extend(self.vcpus().keep(&[], &Observed::default(), Instant::now()));
            return Ok(());
        };
        let loaded =
            policy::of_kept(kept.clone()).map_err(|e| format!("the policy in force cannot be read: {e}"))?;
        let seen = observation::capture(&Root::default(), &engine).map_err(|e| e.to_string())?;
        let observed = &seen.observed;
        look.threads = observed.vms.iter().map(|vm| (vm.vm.pid, threads_of(vm))).collect();
        look.groups = groups_of(&observed.vms);
        let known = Known { vms: &kept.vms, boot: engine.boot() };
        let wanted = present(&loaded.policy, observed, Some(known));
        look.absent = wanted.absent;
        let made = possible(&wanted.policy, observed, &seen.held);
        // The others are kept all the same.
        look.problems.extend(made.problems.iter().map(|problem| printable(&problem.to_string())));
        look.again |= !made.problems.is_empty();
        look.problems.extend(self.vcpus().keep(&made.plan.packet_vms, observed, Instant::now()));
        let mut changes = Changes { engine: &engine, whole: &made.plan, newcomers: wanted.newcomers, kept };
        self.carry_out(&mut changes, observed, &seen.held, look)
    }

    /// How a part has failed, if it is not to be tried again yet.
    fn waits(&self, part: &Part) -> Option<Failed> {
        let now = self.begun.elapsed();
        self.shared().failed.get(&part.of).filter(|failed| failed.waits(&part.steps, now)).cloned()
    }

    /// A part could not be carried out.
    fn failed(&self, part: &Part, why: &str, look: &mut Look) {
        let before = self.shared().failed.get(&part.of).cloned();
        let failed = Failed::new(before.as_ref(), why, &part.steps, self.begun.elapsed());
        if !failed.told {
            tracing::debug!("{}: {why}; the agent tries it again", part.name);
        }
        look.fails(part, failed);
    }

    /// Carries out the parts of a plan that can be.
    fn carry_out(
        &self,
        changes: &mut Changes<'_>,
        observed: &Observed,
        held: &teiji_model::plan::Held,
        look: &mut Look,
    ) -> Result<(), String> {
        look.tried = true;
        let whole = changes.whole;
        let mut possible = Vec::new();
        let since_boot = SystemClock.since_boot();
        for part in parts(whole, observed, held) {
            if !part.foreign.is_empty() && !is_young(&part.of, observed, since_boot) {
                look.problems.push(format!(
                    "{}: left as it is, because somebody else has changed {}; `teiji apply` sets it again; to accept \
                     what they have set, change the policy and apply it",
                    part.name,
                    part.foreign.join(", ")
                ));
            } else if let Some(failed) = self.waits(&part) {
                look.fails(&part, failed);
            } else if !whole.first.is_empty() && has_channels(&part) {
                look.problems.push(printable(&format!("{}: {}", part.name, whole.first.join("; "))));
                look.again = true;
            } else {
                possible.push(part);
            }
        }
        if possible.is_empty() {
            return Ok(());
        }
        look.written = true;
        let all: BTreeSet<usize> = (0..possible.len()).collect();
        match changes.make(&possible, &all) {
            Ok(changed) => look.changed += changed,
            Err(Failure::Busy) => return later(look),
            Err(Failure::Failed(why)) if possible.len() == 1 => self.failed(&possible[0], &why, look),
            // One of them cannot be carried out, and everything has been undone.
            Err(Failure::Failed(_)) => {
                for (index, part) in possible.iter().enumerate() {
                    match changes.make(&possible, &BTreeSet::from([index])) {
                        Ok(changed) => look.changed += changed,
                        Err(Failure::Busy) => return later(look),
                        Err(Failure::Failed(why)) => self.failed(part, &why, look),
                    }
                }
            }
        }
        Ok(())
    }
}

impl Look {
    /// A part is not as the policy asks for, because this failed.
    fn fails(&mut self, part: &Part, failed: Failed) {
        if failed.told {
            self.problems.push(printable(&format!("{}: {}", part.name, failed.why)));
        }
        self.failed.insert(part.of.clone(), failed);
    }
}

/// Another teiji changes settings: that is no problem, and is over soon.
fn later(look: &mut Look) -> Result<(), String> {
    (look.again, look.unfinished) = (true, true);
    Ok(())
}

/// Steps that keep their order in the plan.
fn steps_of(whole: &Plan, parts: &[Part], wanted: &BTreeSet<usize>) -> Vec<Step> {
    let mut of: BTreeMap<&teiji_model::resource::Resource, usize> = BTreeMap::new();
    for (index, part) in parts.iter().enumerate() {
        of.extend(part.steps.iter().map(|step| (&step.setting, index)));
    }
    let is_wanted = |step: &&Step| of.get(&step.setting).is_some_and(|index| wanted.contains(index));
    whole.steps.iter().filter(is_wanted).cloned().collect()
}

enum Failure {
    /// Somebody else changes settings, or has changed which policy is in force.
    Busy,
    Failed(String),
}

/// What is to be changed for the policy in force.
struct Changes<'a> {
    engine: &'a Engine<HostBackend>,
    whole: &'a Plan,
    /// The VMs that came after the policy was applied, by process id: with its first settings each becomes the one that its
    /// section means.
    newcomers: BTreeMap<u32, (String, VmId)>,
    kept: KeptPolicy,
}

impl Changes<'_> {
    /// Takes the steps of the wanted ones of these parts, unless another policy is in force by now. Returns how many
    /// settings were changed.
    fn make(&mut self, parts: &[Part], wanted: &BTreeSet<usize>) -> Result<u64, Failure> {
        let plan = Plan { steps: steps_of(self.whole, parts, wanted), ..Plan::default() };
        let mut now = self.kept.clone();
        for index in wanted {
            let Of::Vm(pid) = parts[*index].of else { continue };
            now.vms.extend(self.newcomers.get(&pid).cloned());
        }
        let policy = (now != self.kept).then(|| now.clone());
        let options = Options { only_while: Some(self.kept.clone()), policy, ..Options::default() };
        match self.engine.apply(&plan, &options, &mut |_| {}, &AtomicBool::new(false)) {
            Ok(applied) => {
                self.kept = now;
                for message in &applied.messages {
                    tracing::warn!("{message}");
                }
                Ok(applied.changed as u64)
            }
            Err(apply::Error::Busy(_) | apply::Error::Awaiting { .. } | apply::Error::OtherPolicy) => {
                Err(Failure::Busy)
            }
            Err(error) => Err(Failure::Failed(explained(&error))),
        }
    }
}

/// Whether a VM has been started so recently that its manager may still be setting it up: libvirt moves and pins the
/// threads of a VM after it has made them. Such changes are no decision of somebody against the policy.
fn is_young(of: &Of, observed: &Observed, since_boot: Duration) -> bool {
    let Of::Vm(pid) = of else { return false };
    let Some(vm) = observed.vms.iter().find(|vm| vm.vm.pid == *pid) else { return false };
    kernel::started(vm.process).is_some_and(|started| since_boot.saturating_sub(started) < YOUNG)
}

/// Whether a part needs the qdisc of a link.
fn has_channels(part: &Part) -> bool {
    let kinds = [ResourceKind::RootQdisc, ResourceKind::SegmentSize];
    matches!(part.of, Of::Link(_)) && part.steps.iter().any(|step| kinds.contains(&step.setting.kind()))
}

/// The groups of VMs and those above them, where libvirt and systemd make further ones.
fn groups_of(vms: &[ObservedVm]) -> BTreeSet<String> {
    let mut groups = BTreeSet::from(["/".to_owned(), "/machine.slice".to_owned(), "/machine".to_owned()]);
    for group in vms.iter().filter_map(|vm| vm.group.as_deref()) {
        groups.insert(group.to_owned());
        if let Some((above, _)) = group.rsplit_once('/').filter(|(above, _)| !above.is_empty()) {
            groups.insert(above.to_owned());
        }
        if groups.len() >= MAX_GROUPS {
            break;
        }
    }
    groups
}

/// The vCPU threads and vhost workers of a VM, but for workers that are kernel threads, as [`vm_threads`] tells them.
fn threads_of(vm: &ObservedVm) -> BTreeSet<u32> {
    let workers = vm.vm.workers.iter().filter(|worker| !worker.kernel_thread).map(|worker| worker.tid);
    vm.vm.vcpus.iter().map(|vcpu| vcpu.tid).chain(workers).collect()
}

/// Whether a hint about threads tells of vCPU threads or vhost workers that were not there at the last look, or of the end of
/// some that were.
fn concerns_vm(hint: Hint, known: &BTreeMap<u32, BTreeSet<u32>>) -> bool {
    match hint {
        Hint::KernelThread { pid } => {
            kernel::thread_name(pid).is_some_and(|name| name.starts_with(b"vhost-"))
        }
        Hint::Threads { pid } => known.get(&pid).is_none_or(|before| vm_threads(pid) != *before),
        _ => true,
    }
}

/// An error with its cause.
fn explained(error: &apply::Error) -> String {
    match std::error::Error::source(error) {
        Some(cause) => format!("{error}: {cause}"),
        None => error.to_string(),
    }
}
