//! Restores everything that teiji has changed.
//!
//! Each setting is restored before those that depend on it, whichever was changed first ([`ordered`]): a thread may
//! run on all CPUs before it becomes `SCHED_DEADLINE` again, and `gso_max_size` grows after the queue that relies on
//! it is gone. Otherwise the last change is undone first. A setting that someone else has changed since stays held, so
//! that `force` can still restore it.

use super::error::{Error, Message};
use super::journal::Direction;
use super::store::Store;
use super::{Clock, Engine, SettingsBackend};
use std::cmp::Reverse;
use std::time::Duration;
use teiji_model::plan::{Hold, Step, ordered};
use teiji_model::resource::Resource;

/// How to roll back.
#[derive(Clone, Copy, Debug, Default)]
pub struct Rollback {
    /// Also restore what someone else has changed since.
    pub force: bool,
    /// How long to wait for another teiji to finish; zero: refuse at once.
    pub wait: Duration,
}

/// What a rollback did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RolledBack {
    /// How many settings were restored.
    pub restored: usize,
    /// What else happened, including the settings that were not restored.
    pub messages: Vec<Message>,
}

impl<B: SettingsBackend, S: Store, C: Clock> Engine<B, S, C> {
    /// Restores everything that teiji has changed. If it is killed, the next operation completes it.
    ///
    /// # Errors
    /// If a setting cannot be restored: the others are, and the next operation tries again.
    pub fn rollback(&self, options: &Rollback) -> Result<RolledBack, Error> {
        let _lock = self.locked(options.wait)?;
        let mut messages = self.recover_locked()?;
        if let Some((journal, _)) = self.awaiting()? {
            messages.push(Message::UndoneBeforeConfirmation { pid: journal.header.pid });
            messages.extend(self.end_lease(&journal)?);
        }
        let mut held: Vec<(Resource, Hold)> = self.held()?.settings.into_iter().collect();
        held.sort_by_key(|(setting, hold)| Reverse((hold.since, setting.clone())));
        let steps = ordered(held.into_iter().map(|(setting, hold)| step(setting, hold)).collect(), |_| ());
        if steps.is_empty() {
            self.put_none_in_force()?;
            return Ok(RolledBack { restored: 0, messages });
        }
        let mut journal = self.begin(Direction::Back { force: options.force }, &steps, None, None)?;
        let outcome = self.complete(&mut journal, false)?;
        messages.extend(outcome.messages);
        Ok(RolledBack { restored: outcome.restored, messages })
    }
}

fn step(setting: Resource, hold: Hold) -> Step {
    Step {
        setting,
        whose: hold.whose,
        present: hold.value,
        wanted: hold.original,
        reason: "rollback".to_owned(),
        cost: String::new(),
    }
}
