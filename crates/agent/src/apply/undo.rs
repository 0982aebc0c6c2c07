//! Restores values. Everything here depends only on the values that are found, so it may be interrupted at any instant
//! and started again. It writes a file in one case only: what is offline when a plan is undone is added to what is held,
//! because the journal, which has its original value, ends.

use super::error::{Failed, Note, what};
use super::journal::{Direction, HeldFile, Journal, line};
use super::store::HELD;
use super::{Clock, Engine, SettingsBackend, Store};
use teiji_model::plan::{Hold, Step};
use teiji_model::resource::dependency::{self, Change};
use teiji_model::resource::{Class, Resource, ResourceError, Value};

/// The result.
#[derive(Debug, Default)]
pub(super) struct UndoOutcome {
    /// How many settings were restored.
    pub restored: usize,
    /// Settings that are as they should be, or gone.
    pub done: Vec<Resource>,
    /// Settings that are switched off: they cannot be restored now.
    pub offline: Vec<Resource>,
    pub notes: Vec<Note>,
    pub failed: Vec<Failed>,
}

/// A resource that is to be restored.
struct Restore<'a> {
    step: &'a Step,
    target: &'a Value,
    /// The value that teiji set.
    made: &'a Value,
    /// Whether teiji has set such a value.
    ours: Box<dyn Fn(&Value) -> bool + 'a>,
}

impl Restore<'_> {
    fn change(&self) -> Change<'_> {
        Change { resource: &self.step.setting, from: self.made, to: self.target }
    }
}

impl<B: SettingsBackend, S: Store, C: Clock> Engine<B, S, C> {
    /// Undoes the steps of a transaction that have begun, in an order that follows all dependencies, else last step
    /// first.
    pub(super) fn undo(&self, journal: &Journal) -> UndoOutcome {
        let begun: Vec<(usize, &Step)> =
            journal.header.steps.iter().enumerate().take(journal.begun).rev().collect();
        let changes: Vec<Change<'_>> = begun.iter().map(|(_, step)| step.undoing()).collect();
        let order = dependency::order(&changes, |i| dependency::is_into_real_time(&changes[i]));
        let restores = order.into_iter().map(|i| {
            let (index, step) = begun[i];
            let ours: Box<dyn Fn(&Value) -> bool + '_> = Box::new(move |found| journal.ours(index, found));
            Restore { step, target: &step.present, made: &step.wanted, ours }
        });
        let mut outcome = self.restore_all(restores.collect());
        self.hold_offline(journal, &mut outcome);
        outcome
    }

    /// Adds what is offline to what is held. If that fails, it counts as failed, and the journal remains.
    fn hold_offline(&self, journal: &Journal, outcome: &mut UndoOutcome) {
        let steps = journal.header.steps.iter().filter(|step| outcome.offline.contains(&step.setting));
        let steps: Vec<&Step> = steps.collect();
        if steps.is_empty() {
            return;
        }
        let written = self.held_file().and_then(|file| {
            let mut file = file.unwrap_or_else(|| HeldFile::none(&self.boot));
            for step in &steps {
                let former = file.held.settings.remove(&step.setting);
                let hold = Hold {
                    whose: step.whose.clone(),
                    original: former.map_or_else(|| step.present.clone(), |hold| hold.original),
                    value: step.wanted.clone(),
                    since: journal.header.time,
                    reason: step.reason.clone(),
                };
                file.held.settings.insert(step.setting.clone(), hold);
            }
            self.store.write(HELD, &line(&file)).map_err(|e| self.state("write", HELD, e))
        });
        if let Err(why) = written {
            let why = ResourceError::Refused(format!("it is offline, and it could not be kept held: {why}"));
            outcome.failed.extend(steps.into_iter().map(|step| Failed::new(step, why.clone())));
        }
    }

    /// Takes the steps of a rollback, or those that are left, in their order.
    pub(super) fn roll_back(&self, journal: &Journal) -> UndoOutcome {
        let force = journal.header.direction == Direction::Back { force: true };
        let restores = journal.header.steps.iter().map(|step| {
            let ours: Box<dyn Fn(&Value) -> bool + '_> =
                Box::new(move |found| force || *found == step.present);
            Restore { step, target: &step.wanted, made: &step.present, ours }
        });
        self.restore_all(restores.collect())
    }

    /// All present values are read before any value is restored: restoring one may disturb another (before Linux 6.2 a
    /// move into another control group resets affinity), which would then look like a change by somebody else.
    fn restore_all(&self, restores: Vec<Restore<'_>>) -> UndoOutcome {
        let mut outcome = UndoOutcome::default();
        let judged: Vec<_> = restores
            .into_iter()
            .map(|restore| {
                let found = self.backend.read(&restore.step.setting);
                (restore, found)
            })
            .collect();
        let mut made: Vec<Change<'_>> = Vec::new();
        for (restore, found) in &judged {
            let before = outcome.restored;
            self.restore(restore, found, &made, &mut outcome);
            if outcome.restored > before {
                made.push(restore.change());
            }
        }
        // Settings that are right already, or gone, were not written, and may have left something behind.
        self.backend.remove_leftovers();
        outcome
    }

    /// Restores a resource, if its present value was set by teiji.
    fn restore(
        &self,
        restore: &Restore<'_>,
        judged: &Result<Value, ResourceError>,
        made: &[Change<'_>],
        outcome: &mut UndoOutcome,
    ) {
        let (step, target) = (restore.step, restore.target);
        let class = self.backend.class(&step.setting);
        let result = judged.clone().and_then(|judged| {
            let found = self.backend.read(&step.setting)?;
            // If a restored change may have disturbed this value, the value read before that decides.
            let whose = if dependency::disturbed(made, &restore.change()) { &judged } else { &found };
            let ours = class != Class::Atomic || *whose == *target || (restore.ours)(whose);
            if found == *target {
                return Ok(true);
            }
            if !ours {
                let what = what(&step.setting, &step.whose);
                outcome.notes.push(Note::Foreign { what, ours: restore.made.clone(), found });
                return Ok(false);
            }
            self.backend.write(&step.setting, target)?;
            let got = self.backend.read(&step.setting)?;
            // A controller that still runs may have changed it again, and an operation may go on for long.
            if got != *target && class == Class::Atomic {
                return Err(ResourceError::Refused(format!(
                    "should be {target} again, but the kernel made it {got}"
                )));
            }
            outcome.restored += 1;
            Ok(true)
        });
        match result {
            Ok(true) => outcome.done.push(step.setting.clone()),
            Ok(false) => {}
            Err(ResourceError::Gone(_)) => {
                outcome.done.push(step.setting.clone());
                outcome.notes.push(Note::Gone { what: what(&step.setting, &step.whose) });
            }
            Err(ResourceError::Offline(why)) => {
                outcome.offline.push(step.setting.clone());
                outcome.notes.push(Note::Offline { what: what(&step.setting, &step.whose), why });
            }
            Err(ResourceError::Refused(why)) if class == Class::Operation => {
                outcome.done.push(step.setting.clone());
                outcome.notes.push(Note::Stopped { what: what(&step.setting, &step.whose), why });
            }
            Err(why) => outcome.failed.push(Failed::new(step, why)),
        }
    }
}
