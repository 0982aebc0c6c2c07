//! Restores values. Everything here depends only on the values that are found, so it may be interrupted at any instant
//! and started again. It writes a file in one case only: what is offline when a plan is undone is added to what is held,
//! because the journal, which has its original value, ends.
//!
//! A resource stays as it is while one that has to be restored before it could not be: the dependencies hold whatever
//! fails. It is reported as failed, and the next operation takes it up again.
//!
//! Restoring one resource may disturb another: before Linux 6.2 a move into another control group resets affinity. All
//! present values are therefore read before any is restored, and decide whose a value is; what was disturbed is
//! written again.

use super::error::{Failed, Message, what};
use super::journal::{Direction, Disturbed, HeldFile, Journal, line};
use super::store::HELD;
use super::{Clock, Engine, SettingsBackend, Store};
use std::collections::BTreeMap;
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
    pub messages: Vec<Message>,
    pub failed: Vec<Failed>,
}

/// A resource that is to be restored.
struct Restore<'a> {
    setting: &'a Resource,
    whose: &'a str,
    target: &'a Value,
    /// The value that teiji set.
    made: &'a Value,
    /// Whether teiji has set such a value.
    ours: Box<dyn Fn(&Value) -> bool + 'a>,
    /// Whether no step changes it, but one may have disturbed it.
    only_disturbed: bool,
    /// Whether a process may have ended between the change that disturbs it and the write that mends that.
    may_be_reset: bool,
}

impl<'a> Restore<'a> {
    fn change(&self) -> Change<'a> {
        Change { resource: self.setting, from: self.made, to: self.target }
    }

    /// A resource that a step may have disturbed.
    fn of_disturbed(disturbed: &'a Disturbed, step: &'a Step, may_be_reset: bool) -> Self {
        let value = &disturbed.value;
        let ours: Box<dyn Fn(&Value) -> bool + 'a> = Box::new(move |found| found == value);
        let (setting, whose) = (&disturbed.setting, step.whose.as_str());
        Restore { setting, whose, target: value, made: value, ours, only_disturbed: true, may_be_reset }
    }

    fn what(&self) -> String {
        what(self.setting, self.whose)
    }

    /// Whether a value is what an interrupted move has made of that of teiji: it allows more CPUs.
    fn is_reset(&self, found: &Value) -> bool {
        let wider = |than: &Value| match (found, than) {
            (Value::Cpus(found), Value::Cpus(than)) => found != than && than.without(found).is_empty(),
            _ => false,
        };
        self.may_be_reset && wider(self.made)
    }
}

/// What came of one.
enum Restored {
    /// It was written, and is as it should be.
    Written,
    /// It is as it should be, or belongs to somebody else, or is gone.
    Left,
    /// It is not as it should be.
    Not,
}

impl<B: SettingsBackend, S: Store, C: Clock> Engine<B, S, C> {
    /// Undoes the steps of a transaction that have begun, in an order that follows all dependencies, else last step
    /// first. `resumed`: its process has ended, and another may have begun to undo it.
    pub(super) fn undo(&self, journal: &Journal, resumed: bool) -> UndoOutcome {
        let begun = journal.header.steps.iter().enumerate().take(journal.begun).rev();
        let restores = begun.map(|(index, step)| {
            let ours: Box<dyn Fn(&Value) -> bool + '_> = Box::new(move |found| journal.ours(index, found));
            let (target, made) = (&step.present, &step.wanted);
            let (setting, whose) = (&step.setting, step.whose.as_str());
            Restore { setting, whose, target, made, ours, only_disturbed: false, may_be_reset: false }
        });
        let restores = self.with_disturbed(restores.collect(), journal, journal.begun, resumed);
        let changes: Vec<Change<'_>> = restores.iter().map(Restore::change).collect();
        let order = dependency::order(&changes, |i| dependency::is_into_real_time(&changes[i]));
        let mut outcome = self.restore_all(&restores, &order);
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
            outcome.failed.extend(
                steps
                    .into_iter()
                    .map(|step| Failed { what: what(&step.setting, &step.whose), why: why.clone() }),
            );
        }
    }

    /// Takes the steps of a rollback, or those that are left, in their order. `resumed`: another process has begun it.
    pub(super) fn roll_back(&self, journal: &Journal, resumed: bool) -> UndoOutcome {
        let force = journal.header.direction == Direction::Back { force: true };
        let steps = &journal.header.steps;
        let restores = steps.iter().map(|step| {
            let ours: Box<dyn Fn(&Value) -> bool + '_> =
                Box::new(move |found| force || *found == step.present);
            let (target, made) = (&step.wanted, &step.present);
            let (setting, whose) = (&step.setting, step.whose.as_str());
            Restore { setting, whose, target, made, ours, only_disturbed: false, may_be_reset: false }
        });
        let restores = self.with_disturbed(restores.collect(), journal, steps.len(), resumed);
        let changes: Vec<Change<'_>> = restores.iter().map(Restore::change).collect();
        let order = dependency::order(&changes, |i| i);
        self.restore_all(&restores, &order)
    }

    /// Adds the resources that the first `begun` steps may have disturbed, and says which resources may have been left
    /// disturbed: the process ended in such a step, or after it had restored the resource that the step changes.
    fn with_disturbed<'a>(
        &self,
        mut restores: Vec<Restore<'a>>,
        journal: &'a Journal,
        begun: usize,
        resumed: bool,
    ) -> Vec<Restore<'a>> {
        let places: BTreeMap<&Resource, usize> =
            restores.iter().enumerate().map(|(place, restore)| (restore.setting, place)).collect();
        let mut only_disturbed: BTreeMap<&Resource, (&Disturbed, &Step, bool)> = BTreeMap::new();
        let mut reset = Vec::new();
        let forward = journal.header.direction == Direction::Forward;
        let back: Vec<bool> = journal
            .header
            .steps
            .iter()
            .enumerate()
            .take(begun)
            .map(|(index, step)| {
                let target = if forward { &step.present } else { &step.wanted };
                let disturbs = journal.header.disturbed.iter().any(|d| d.step == index);
                resumed && disturbs && self.backend.read(&step.setting).as_ref() == Ok(target)
            })
            .collect();
        for disturbed in journal.header.disturbed.iter().filter(|d| d.step < begun) {
            let Some(step) = journal.header.steps.get(disturbed.step) else { continue };
            let within = forward && disturbed.step + 1 == journal.begun && !journal.applied;
            let may_be_reset = within || back[disturbed.step];
            match places.get(&disturbed.setting) {
                Some(place) if may_be_reset => reset.push(*place),
                Some(_) => {}
                None => {
                    let seen = only_disturbed.entry(&disturbed.setting).or_insert((disturbed, step, false));
                    seen.2 |= may_be_reset;
                }
            }
        }
        reset.into_iter().for_each(|place| restores[place].may_be_reset = true);
        let restore = |(disturbed, step, reset)| Restore::of_disturbed(disturbed, step, reset);
        restores.extend(only_disturbed.into_values().map(restore));
        restores
    }

    /// Restores all, in this order.
    fn restore_all(&self, restores: &[Restore<'_>], order: &[usize]) -> UndoOutcome {
        let mut outcome = UndoOutcome::default();
        let judged: Vec<_> = restores.iter().map(|r| self.backend.read(r.setting)).collect();
        // A write that failed may have had its effect on others.
        let mut tried: Vec<Change<'_>> = Vec::new();
        let mut failed: Vec<&Restore<'_>> = Vec::new();
        for i in order {
            let restore = &restores[*i];
            let change = restore.change();
            let waits_for =
                failed.iter().find(|failed| dependency::requires(&change, &failed.change())).copied();
            let disturbed = dependency::disturbed(&tried, &change);
            match self.restore(restore, &judged[*i], disturbed, waits_for, &mut outcome) {
                Restored::Written => tried.push(change),
                Restored::Left => {}
                Restored::Not => {
                    tried.push(change);
                    failed.push(restore);
                }
            }
        }
        // Settings that are right already, or gone, were not written, and may have left something behind.
        self.backend.remove_leftovers();
        outcome
    }

    /// Restores a resource, if its present value was set by teiji. `judged` is its value before anything was restored.
    fn restore(
        &self,
        restore: &Restore<'_>,
        judged: &Result<Value, ResourceError>,
        disturbed: bool,
        waits_for: Option<&Restore<'_>>,
        outcome: &mut UndoOutcome,
    ) -> Restored {
        let class = self.backend.class(restore.setting);
        let fail = |why, outcome: &mut UndoOutcome| {
            outcome.failed.push(Failed { what: restore.what(), why });
            Restored::Not
        };
        let gone = |outcome: &mut UndoOutcome| {
            if !restore.only_disturbed {
                outcome.done.push(restore.setting.clone());
                outcome.messages.push(Message::Gone { what: restore.what() });
            }
            Restored::Left
        };
        let offline = |why, outcome: &mut UndoOutcome| {
            if !restore.only_disturbed {
                outcome.offline.push(restore.setting.clone());
                outcome.messages.push(Message::Offline { what: restore.what(), why });
            }
            Restored::Left
        };
        let read = judged.clone().and_then(|judged| Ok((judged, self.backend.read(restore.setting)?)));
        let (judged, found) = match read {
            Ok(values) => values,
            Err(ResourceError::Gone(_)) => return gone(outcome),
            Err(ResourceError::Offline(why)) => return offline(why, outcome),
            Err(_) if restore.only_disturbed => return Restored::Left,
            Err(why) => return fail(why, outcome),
        };
        // If a restored change may have disturbed this value, the value read before that decides.
        let deciding = if disturbed { &judged } else { &found };
        let reset = restore.is_reset(deciding);
        let ours = *deciding == *restore.target
            || (restore.ours)(deciding)
            || reset
            || (class != Class::Atomic && !restore.only_disturbed);
        if !ours && !restore.only_disturbed {
            let (what, ours) = (restore.what(), restore.made.clone());
            outcome.messages.push(Message::Foreign { what, ours, found: deciding.clone() });
        }
        // What somebody else has chosen stays, also where a restored change has disturbed it.
        let target = if ours { restore.target } else { deciding };
        let settled = |outcome: &mut UndoOutcome| {
            if ours && !restore.only_disturbed {
                outcome.done.push(restore.setting.clone());
            }
        };
        if found == *target {
            settled(outcome);
            return Restored::Left;
        }
        if let Some(first) = waits_for.filter(|_| ours && !restore.only_disturbed) {
            // It stays as teiji has set it, also where a restored change has disturbed it.
            let stays = if reset { restore.made } else { deciding };
            if found != *stays
                && let Err(why) = self.backend.write(restore.setting, stays)
            {
                return fail(why, outcome);
            }
            return fail(ResourceError::Refused(format!("it waits for {}", first.what())), outcome);
        }
        let written =
            self.backend.write(restore.setting, target).and_then(|()| self.backend.read(restore.setting));
        match written {
            // A controller that still runs may have changed it again, and an operation may go on for long.
            Ok(got) if got == *target || class != Class::Atomic => {
                settled(outcome);
                outcome.restored += usize::from(ours && !restore.only_disturbed);
                Restored::Written
            }
            Ok(got) => {
                let why = format!("should be {target} again, but the kernel made it {got}");
                fail(ResourceError::Refused(why), outcome)
            }
            // What is gone may be the place that it should return to.
            Err(ResourceError::Gone(_))
                if matches!(self.backend.read(restore.setting), Err(ResourceError::Gone(_))) =>
            {
                gone(outcome)
            }
            Err(ResourceError::Offline(why)) => offline(why, outcome),
            Err(ResourceError::Refused(why)) if class == Class::Operation => {
                settled(outcome);
                outcome.messages.push(Message::Stopped { what: restore.what(), why });
                Restored::Not
            }
            Err(why) => fail(why, outcome),
        }
    }
}
