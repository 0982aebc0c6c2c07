//! The policy that is in force: the one that was applied last, and not rolled back since. It is part of `held.json`, so
//! that it is in force exactly when its changes are committed.
//!
//! A boot resets every setting, but the policy stays in force: an agent then applies it again. Which policy that is after a
//! boot that interrupted a transaction, the journal says: none after a rollback that has begun, whose policy may be what
//! has brought the host down; the new one after an apply that was committed.

use super::error::{Error, Message};
use super::journal::{Direction, HeldFile, Journal, line};
use super::store::{HELD, Store};
use super::{Clock, Engine, SettingsBackend};
use std::time::Duration;
use teiji_model::policy::KeptPolicy;
use teiji_model::resource::ResourceError;

/// What an agent has to keep.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ToKeep {
    /// What was recovered from.
    pub messages: Vec<Message>,
    /// For how long an apply can still be confirmed: until then nothing is to be changed.
    pub lease_left: Option<Duration>,
    /// The policy in force, unless an apply waits for its confirmation.
    pub policy: Option<KeptPolicy>,
    /// Whether `held.json` was written.
    pub written: bool,
}

impl<B: SettingsBackend, S: Store, C: Clock> Engine<B, S, C> {
    /// The policy in force. Changes nothing.
    ///
    /// # Errors
    /// If the file is damaged or cannot be read.
    pub fn policy(&self) -> Result<Option<KeptPolicy>, Error> {
        Ok(self.any_held_file()?.and_then(|file| file.policy))
    }

    /// What an agent has to keep now. Recovers from what an ended process left behind first, as that may end the policy, and
    /// forgets what is held of tasks and devices that are gone. All under one lock: the answer is of one instant, and an
    /// agent's [`Options::only_while`](super::Options::only_while) says whether it still holds when it changes something.
    ///
    /// # Errors
    /// [`Error::Busy`]; if a file is damaged, or cannot be read or written; if a setting cannot be restored.
    pub fn to_keep(&self) -> Result<ToKeep, Error> {
        let _lock = self.locked(Duration::ZERO)?;
        let messages = self.recover_locked()?;
        if let Some((_, left)) = self.awaiting()? {
            return Ok(ToKeep { messages, lease_left: Some(left), ..ToKeep::default() });
        }
        let policy = self.policy()?;
        let written = policy.is_some() && self.forget_gone()?;
        Ok(ToKeep { messages, lease_left: None, policy, written })
    }

    /// Forgets what is held of tasks and devices that are gone. Returns whether it has written the file. With the lock
    /// held, while no transaction is in progress.
    fn forget_gone(&self) -> Result<bool, Error> {
        let Some(mut file) = self.held_file()? else { return Ok(false) };
        let before = file.held.settings.len();
        let gone = |setting: &_| matches!(self.backend().read(setting), Err(ResourceError::Gone(_)));
        file.held.settings.retain(|setting, _| !gone(setting));
        let changed = file.held.settings.len() != before;
        if changed {
            self.write_held(&file)?;
        }
        Ok(changed)
    }

    /// Of a plan without any step. With the lock held.
    pub(super) fn put_in_force(&self, policy: Option<&KeptPolicy>) -> Result<(), Error> {
        let Some(policy) = policy else { return Ok(()) };
        let mut file = self.held_file()?.unwrap_or_else(|| HeldFile::none(&self.boot));
        if file
            .policy
            .as_ref()
            .is_some_and(|before| before.sources == policy.sources && before.vms == policy.vms)
        {
            return Ok(());
        }
        file.policy = Some(policy.clone());
        self.write_held(&file)
    }

    /// Of a rollback that has nothing to restore. With the lock held.
    pub(super) fn put_none_in_force(&self) -> Result<(), Error> {
        let Some(mut file) = self.held_file()? else { return Ok(()) };
        if file.policy.take().is_none() {
            return Ok(());
        }
        self.write_held(&file)
    }

    /// Forgets what was held before the host has booted, and ends the transaction that the boot has interrupted, if there is
    /// one. With the lock held.
    pub(super) fn forget_other_boot(&self, interrupted: Option<&Journal>) -> Result<(), Error> {
        let former = self.any_held_file()?.and_then(|file| file.policy);
        let (policy, last) = match interrupted {
            None => (former, String::new()),
            Some(journal) => {
                let policy = match (journal.header.direction, &journal.header.policy) {
                    (Direction::Back { .. }, _) => None,
                    (Direction::Forward, Some(new)) if self.committed(journal)? => Some(new.clone()),
                    (Direction::Forward, _) => former,
                };
                (policy, journal.header.id.clone())
            }
        };
        // Before the transaction is removed, and with its id: whoever is killed between the two decides the same again.
        match policy {
            Some(policy) => {
                self.write_held(&HeldFile { policy: Some(policy), last, ..HeldFile::none(&self.boot) })?;
            }
            None => self.store.remove(HELD).map_err(|e| self.state("remove", HELD, e))?,
        }
        if interrupted.is_some() { self.clear() } else { Ok(()) }
    }

    fn write_held(&self, file: &HeldFile) -> Result<(), Error> {
        self.store.write(HELD, &line(file)).map_err(|e| self.state("write", HELD, e))
    }
}
