//! Putting values back. Everything here goes by the values that are found, so that it may be ended at any
//! instant and begun again; it writes no file.

use super::error::{Failed, Note, what};
use super::journal::{Direction, Journal};
use super::{Clock, Engine, Host, Store};
use teiji_model::plan::Step;
use teiji_model::setting::{Setting, SettingError, Value};

/// What came of it.
#[derive(Debug, Default)]
pub(super) struct Outcome {
    /// How many settings were put back.
    pub restored: usize,
    /// Settings that are as they should be, or gone.
    pub settled: Vec<Setting>,
    pub notes: Vec<Note>,
    pub failed: Vec<Failed>,
}

impl<H: Host, S: Store, C: Clock> Engine<H, S, C> {
    /// Undoes the steps of a transaction that have begun, the last first: each then finds the host as its step left it,
    /// so that an order that the kernel took forward it takes back as well.
    pub(super) fn undo(&self, journal: &Journal) -> Outcome {
        let mut outcome = Outcome::default();
        for (i, step) in journal.header.steps.iter().enumerate().take(journal.begun).rev() {
            self.put(step, &step.present, &step.wanted, |found| journal.ours(i, found), &mut outcome);
        }
        // What is as it should be, or gone, was not written, and may have left something behind.
        self.host.tidy();
        outcome
    }

    /// Does the steps of a rollback, or what is left to do of them.
    pub(super) fn roll_back(&self, journal: &Journal) -> Outcome {
        let force = journal.header.direction == Direction::Back { force: true };
        let mut outcome = Outcome::default();
        for step in &journal.header.steps {
            let ours = |found: &Value| force || *found == step.present;
            self.put(step, &step.wanted, &step.present, ours, &mut outcome);
        }
        self.host.tidy();
        outcome
    }

    /// Makes a setting `target`, if what it is at present is ours.
    fn put(
        &self,
        step: &Step,
        target: &Value,
        made: &Value,
        ours: impl FnOnce(&Value) -> bool,
        outcome: &mut Outcome,
    ) {
        let result = self.host.read(&step.setting).and_then(|found| {
            if found == *target {
                return Ok(true);
            }
            if !ours(&found) {
                let what = what(&step.setting, &step.whose);
                outcome.notes.push(Note::Foreign { what, ours: made.clone(), found });
                return Ok(false);
            }
            self.host.write(&step.setting, target)?;
            let got = self.host.read(&step.setting)?;
            if got != *target {
                return Err(SettingError::Refused(format!(
                    "should be {target} again, but the kernel made it {got}"
                )));
            }
            outcome.restored += 1;
            Ok(true)
        });
        match result {
            Ok(true) => outcome.settled.push(step.setting.clone()),
            Ok(false) => {}
            Err(SettingError::Gone(_)) => {
                outcome.settled.push(step.setting.clone());
                outcome.notes.push(Note::Gone { what: what(&step.setting, &step.whose) });
            }
            Err(why) => outcome.failed.push(Failed::new(step, why)),
        }
    }
}
