//! Carries out a plan so that the host is in the end either as before or as wanted, whatever happens meanwhile.
//!
//! ```text
//!                        all applied,
//!  none ──► applying ──► awaiting confirmation ──► committed ──► none      held.json has the originals
//!   ▲          │  └──────────────┼────────────────────▲  (where none is asked for)
//!   │          ▼                 ▼
//!   └───── undoing ◄─────────────┘   a step fails, nobody confirms in time, a rollback, a signal, a full disk,
//!                                    or the process ended and another command finds its journal
//!
//!  none ──► rolling back ──► committed ──► none        its process ended: the next command completes it
//! ```
//!
//! Files of the state directory. Each change of them is on the disk before anything that depends on it happens:
//!
//! | file | says |
//! | --- | --- |
//! | `lock` | `flock(2)`: only one process at a time changes settings; its text is the pid, for messages |
//! | `transaction` | the plan with all original values; then a line before each step begins, when all are applied, and at the commit. Exists exactly while a transaction is in progress |
//! | `held.json.next` | `held.json` after the commit, so that the commit is one appended line |
//! | `held.json` | the settings that teiji has changed, with the original values; the policy in force; which transactions ended last |
//!
//! Awaiting a confirmation is a lease that the journal records, not a held lock: whoever takes the lock in time may confirm
//! or roll back, and from the end of the lease on, whoever takes the lock first undoes it. That may be the process that
//! applied it, an agent, or the next command that changes something.
//!
//! The lines of a transaction alone decide what to do if its process has ended. Undoing depends only on the values
//! that are found, so it may be interrupted and started again at any instant, and it needs no space on the disk. After
//! a boot all of this is void but for the policy in force, because the kernel forgets every setting; a rollback that has
//! begun has ended that, too.
//!
//! | module | does |
//! | --- | --- |
//! | `apply` (here) | from plan to commit |
//! | `lease` | waits for a confirmation, without the lock |
//! | `recover` | handles what an ended process left behind |
//! | `undo` | restores values |
//! | `rollback`, `confirm`, `status` | the operations of that name |
//! | `in_force` | the policy that an agent keeps, and what is held of tasks and devices that are gone |
//! | `journal` | the files' format |
//! | `error` | why an operation failed, and the messages of one that succeeded |
//! | [`store`], [`clock`] | the disk and time |

pub mod clock;
mod confirm;
mod error;
mod in_force;
mod journal;
mod lease;
mod recover;
mod rollback;
mod status;
pub mod store;
mod undo;

pub use error::{Error, Failed, Failure, Message};
pub use in_force::ToKeep;
pub use rollback::{Rollback, RolledBack};

use clock::{Clock, SystemClock};
use error::what;
use journal::{Direction, Disturbed, Header, Journal, Line, VERSION};
use lease::LeaseEnd;
use std::any::Any;
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use store::{Directory, Store, TRANSACTION};
use teiji_model::plan::{Hold, Plan, Step};
use teiji_model::policy::KeptPolicy;
use teiji_model::resource::{Class, Resource, ResourceError, Value};

/// Where the state is kept unless the caller names another place.
pub const STATE_DIRECTORY: &str = "/var/lib/teiji";
/// How often a waiting process checks again.
const POLL: Duration = Duration::from_millis(50);
/// The shortest time for which the lock is tried: `status` takes it for an instant to see whether it is free.
const LOCK_TRY_MIN: Duration = Duration::from_millis(200);

/// The settings of a host. A write happens completely or not at all, even if its process is killed;
/// [`SettingsBackend::remove_leftovers`] removes leftovers of killed processes that are not settings.
pub trait SettingsBackend {
    /// What a setting is.
    ///
    /// # Errors
    /// If it is gone, or cannot be read.
    fn read(&self, setting: &Resource) -> Result<Value, ResourceError>;

    /// Changes a setting. The kernel may make something else of it: read it back.
    ///
    /// # Errors
    /// If it is gone, or the kernel refuses it.
    fn write(&self, setting: &Resource, value: &Value) -> Result<(), ResourceError>;

    /// How a resource is changed, journalled and undone.
    fn class(&self, resource: &Resource) -> Class {
        resource.kind().class()
    }

    /// Which other resources a change of this one may disturb, whether or not this kernel does so.
    fn disturbed_by(&self, _resource: &Resource) -> Vec<Resource> {
        Vec::new()
    }

    /// Removes leftovers of interrupted writes and of tasks that have ended, as far as they are not settings. Called
    /// with the lock held. Errors are ignored: it is called again later.
    fn remove_leftovers(&self);
}

/// Changes settings of a host and remembers what they were.
pub struct Engine<B, S = Directory, C = SystemClock> {
    backend: B,
    store: S,
    clock: C,
    boot: String,
}

/// How to apply a plan.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Undo everything unless the operator confirms within this time after the last step.
    pub confirm_within: Option<Duration>,
    /// How long to wait for another teiji to finish; zero: refuse at once.
    pub wait: Duration,
    /// The policy that the plan was made for. Once the plan is committed it is *in force*: an agent keeps it as the host
    /// changes, until another one is applied or everything is rolled back.
    pub policy: Option<KeptPolicy>,
    /// Refuse unless this policy is in force: somebody may have applied another one, or rolled back, since the plan was made.
    pub only_while: Option<KeptPolicy>,
}

/// What `apply` is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress<'a> {
    /// A step begins.
    Step {
        /// From 0.
        index: usize,
        /// How many there are.
        of: usize,
        /// The step.
        step: &'a Step,
    },
    /// Everything is applied; waits for the confirmation.
    Waiting {
        /// How much time is left.
        left: Duration,
    },
    /// Something failed; what was done is being undone.
    Undoing,
}

/// What `apply` did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Applied {
    /// Settings changed.
    pub changed: usize,
    /// What else happened.
    pub messages: Vec<Message>,
}

impl<B: SettingsBackend> Engine<B> {
    /// An engine for this host that keeps its state in `directory`.
    ///
    /// # Errors
    /// If the kernel does not tell its boot id.
    pub fn open(directory: &Path, backend: B) -> Result<Self, Error> {
        let boot = teiji_host::kernel::boot_id();
        let boot = boot.map_err(|(path, source)| Error::State { what: "read", path, source })?;
        Ok(Engine::with(backend, Directory::new(directory), SystemClock, &boot))
    }
}

impl<B: SettingsBackend, S: Store, C: Clock> Engine<B, S, C> {
    /// An engine that uses these.
    pub fn with(backend: B, store: S, clock: C, boot: &str) -> Self {
        Engine { backend, store, clock, boot: boot.to_owned() }
    }

    /// The boot id of the host.
    pub fn boot(&self) -> &str {
        &self.boot
    }

    /// The settings that it changes.
    pub fn backend(&self) -> &B {
        &self.backend
    }

    /// Carries out a plan: all of it, or nothing.
    ///
    /// `stop` ends it early, with everything undone. A panic of `progress` leaves what a killed process leaves.
    ///
    /// # Errors
    /// If anything fails; [`Error`] says what the host is like then.
    pub fn apply(
        &self,
        plan: &Plan,
        options: &Options,
        progress: &mut dyn FnMut(Progress<'_>),
        stop: &AtomicBool,
    ) -> Result<Applied, Error> {
        let mut lock = Some(self.locked(options.wait)?);
        let mut messages = self.recover_locked()?;
        if let Some((journal, left)) = self.awaiting()? {
            return Err(Error::Awaiting { pid: journal.header.pid, left });
        }
        if options.only_while.is_some() && self.policy()? != options.only_while {
            return Err(Error::OtherPolicy);
        }
        self.unchanged(plan)?;
        if plan.steps.is_empty() {
            self.put_in_force(options.policy.as_ref())?;
            return Ok(Applied { changed: 0, messages });
        }
        let policy = options.policy.clone();
        let mut journal = self.begin(Direction::Forward, &plan.steps, options.confirm_within, policy)?;
        let mut run = self.run(&mut journal, progress, stop);
        if run.is_ok() && journal.until.is_some() {
            drop(lock.take());
            match self.await_confirmation(&journal, progress, stop) {
                LeaseEnd::Over(why, retaken) => {
                    lock = Some(retaken);
                    run = Err(why);
                }
                LeaseEnd::Confirmed => return Ok(Applied { changed: plan.steps.len(), messages }),
                LeaseEnd::Undone => return Err(Error::UndoneByAnother),
                LeaseEnd::Unknown(why @ Error::Unfinished { .. }) => return Err(why),
                LeaseEnd::Unknown(why) => return Err(Error::FateUnknown(Box::new(why))),
            }
        }
        let committed = run.and_then(|()| {
            let held = self.held_after(&journal)?;
            self.commit(&mut journal, &held)
        });
        if let Err(why) = committed {
            progress(Progress::Undoing);
            let why = Box::new(why);
            // Withdraws a commit whose line may be on the disk although the write returned an error.
            let _ = self.store.remove(store::HELD_NEXT);
            let outcome = self.undo(&journal, false);
            messages.extend(outcome.messages);
            let path = self.store.path(TRANSACTION);
            if !outcome.failed.is_empty() {
                return Err(Error::NotUndone { why, failed: outcome.failed, messages, path });
            }
            // A journal that cannot be removed does no harm: the next command finds everything restored.
            let _ = self.clear();
            return Err(Error::Undone { why, messages });
        }
        self.finish().map_err(|e| self.unfinished(e))?;
        drop(lock);
        Ok(Applied { changed: plan.steps.len(), messages })
    }

    /// Takes the lock, waiting up to `wait` for it.
    fn locked(&self, wait: Duration) -> Result<Box<dyn Any>, Error> {
        let until = self.clock.since_boot() + wait.max(LOCK_TRY_MIN);
        loop {
            if let Some(lock) = self.store.lock().map_err(|e| self.state("lock", store::LOCK, e))? {
                return Ok(lock);
            }
            if self.clock.since_boot() >= until {
                return Err(Error::Busy(self.store.holder().ok().flatten().flatten()));
            }
            self.clock.sleep(POLL);
        }
    }

    /// Refuses a plan if the present values are not those that it starts from.
    fn unchanged(&self, plan: &Plan) -> Result<(), Error> {
        for step in &plan.steps {
            let what = || what(&step.setting, &step.whose);
            match self.backend.read(&step.setting) {
                Ok(found) if found == step.present => {}
                // Its controller may have written it, and an operation may still be in progress.
                Ok(_) if self.backend.class(&step.setting) != Class::Atomic => {}
                Ok(found) => {
                    return Err(Error::Changed { what: what(), planned: step.present.clone(), found });
                }
                Err(why) => return Err(Error::Unreadable { what: what(), why }),
            }
        }
        Ok(())
    }

    /// Writes the header: from here on there is a transaction.
    fn begin(
        &self,
        direction: Direction,
        steps: &[Step],
        confirm: Option<Duration>,
        policy: Option<KeptPolicy>,
    ) -> Result<Journal, Error> {
        let pid = std::process::id();
        let header = Header {
            version: VERSION,
            boot: self.boot.clone(),
            id: format!("{pid}-{}", self.clock.since_boot().as_nanos()),
            pid,
            time: self.clock.unix(),
            direction,
            confirm_within: confirm.map(|t| t.as_millis() as u64),
            steps: steps.to_vec(),
            policy,
            disturbed: self.disturbed(steps),
        };
        let journal = Journal::new(header);
        if let Err(source) = self.store.write(TRANSACTION, &journal::line(&journal.header)) {
            // The file may exist all the same; it has no effect, as no step has begun.
            let _ = self.store.remove(TRANSACTION);
            return Err(self.state("write", TRANSACTION, source));
        }
        Ok(journal)
    }

    /// The resources that the steps may disturb, with their present values. One that cannot be read is gone, or is
    /// none that a change could disturb.
    fn disturbed(&self, steps: &[Step]) -> Vec<Disturbed> {
        let of = |(step, one): (usize, &Step)| {
            let all = self.backend.disturbed_by(&one.setting).into_iter();
            all.filter_map(move |setting| {
                Some(Disturbed { step, value: self.backend.read(&setting).ok()?, setting })
            })
        };
        steps.iter().enumerate().flat_map(of).collect()
    }

    /// Appends a line to the journal.
    fn append_line(&self, journal: &mut Journal, line: Line) -> Result<(), Failure> {
        let text = journal::line(&line);
        let failure = |source| Failure::Journal { path: self.store.path(TRANSACTION), source };
        self.store.append(TRANSACTION, journal.length, &text).map_err(failure)?;
        journal.length += text.len() as u64;
        journal.take(line).map_err(|e| failure(io::Error::other(e)))
    }

    /// Takes the steps and reads each value back.
    fn run(
        &self,
        journal: &mut Journal,
        progress: &mut dyn FnMut(Progress<'_>),
        stop: &AtomicBool,
    ) -> Result<(), Failure> {
        let steps = journal.header.steps.clone();
        for (index, step) in steps.iter().enumerate() {
            if stop.load(Ordering::SeqCst) {
                return Err(Failure::Stopped);
            }
            progress(Progress::Step { index, of: steps.len(), step });
            self.append_line(journal, Line::Do { step: index })?;
            let (what, wanted) = (what(&step.setting, &step.whose), step.wanted.clone());
            let around = self.around(journal, index);
            let got =
                self.backend.write(&step.setting, &wanted).and_then(|()| self.backend.read(&step.setting));
            match got {
                Ok(got) if got == wanted => self.mend(&around, &step.whose)?,
                // A controller may change the wanted value at once, and an operation may still be in progress.
                Ok(_) if self.backend.class(&step.setting) != Class::Atomic => {}
                Ok(got) => {
                    // Recorded for the case that this process is killed; if that fails, this process still knows it.
                    let _ = self.append_line(journal, Line::Done { step: index, value: got.clone() });
                    if !journal.ours(index, &got) {
                        journal.made.push((index, got.clone()));
                    }
                    return Err(Failure::Mismatch { what, wanted, got });
                }
                Err(why) => return Err(Failure::Step { what, wanted, why }),
            }
        }
        let within = journal.header.confirm_within;
        let until = within.map(|ms| (self.clock.since_boot().as_millis() as u64).saturating_add(ms));
        self.append_line(journal, Line::Applied { applied: true, until })
    }

    /// The present values of what a step may disturb.
    fn around(&self, journal: &Journal, index: usize) -> Vec<(Resource, Value)> {
        let all = journal.header.disturbed.iter().filter(|d| d.step == index);
        all.filter_map(|d| Some((d.setting.clone(), self.backend.read(&d.setting).ok()?))).collect()
    }

    /// Writes again what a step has disturbed.
    fn mend(&self, around: &[(Resource, Value)], whose: &str) -> Result<(), Failure> {
        for (setting, value) in around {
            let (what, wanted) = (what(setting, whose), value.clone());
            let write = || self.backend.write(setting, value).and_then(|()| self.backend.read(setting));
            let got = self
                .backend
                .read(setting)
                .and_then(|found| if found == *value { Ok(found) } else { write() });
            match got {
                Ok(got) if got == *value => {}
                Err(ResourceError::Gone(_)) => {}
                Ok(got) => return Err(Failure::Mismatch { what, wanted, got }),
                Err(why) => return Err(Failure::Step { what, wanted, why }),
            }
        }
        Ok(())
    }

    /// The content of `held.json` once this plan is committed. Settings that are gone, or that someone has restored,
    /// are forgotten; a controlled resource or an operation only when a step returns it.
    fn held_after(&self, journal: &Journal) -> Result<journal::HeldFile, Failure> {
        let path = || self.store.path(store::HELD);
        let mut file = self
            .held_file()
            .map_err(|e| Failure::Journal { path: path(), source: io::Error::other(e.to_string()) })?
            .unwrap_or_else(|| journal::HeldFile::none(&self.boot));
        file.version = VERSION;
        file.last = journal.header.id.clone();
        if let Some(policy) = &journal.header.policy {
            file.policy = Some(policy.clone());
        }
        let held = &mut file.held.settings;
        for step in &journal.header.steps {
            let original =
                held.remove(&step.setting).map_or_else(|| step.present.clone(), |hold| hold.original);
            let atomic = self.backend.class(&step.setting) == Class::Atomic;
            if if atomic { original != step.wanted } else { !step.returns() } {
                let hold = Hold {
                    whose: step.whose.clone(),
                    original,
                    value: step.wanted.clone(),
                    since: self.clock.unix(),
                    reason: step.reason.clone(),
                };
                held.insert(step.setting.clone(), hold);
            }
        }
        held.retain(|setting, hold| match self.backend.read(setting) {
            Err(ResourceError::Gone(_)) => false,
            // That a controller is at the original for an instant means nothing.
            Ok(found) => found != hold.original || self.backend.class(setting) != Class::Atomic,
            Err(_) => true,
        });
        Ok(file)
    }

    fn state(&self, what: &'static str, name: &str, source: io::Error) -> Error {
        Error::State { what, path: self.store.path(name), source }
    }

    fn unfinished(&self, source: io::Error) -> Error {
        Error::Unfinished { path: self.store.path(TRANSACTION), source }
    }
}
