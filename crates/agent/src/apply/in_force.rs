//! The policy that is in force: the one that was applied last, and not rolled back since. It is part of `held.json`, so
//! that it is in force exactly when its changes are committed.
//!
//! A boot resets every setting, but the policy stays in force: an agent then applies it again.

use super::error::Error;
use super::journal::{HeldFile, line};
use super::store::{HELD, Store};
use super::{Clock, Engine, SettingsBackend};
use std::time::Duration;
use teiji_model::policy::KeptPolicy;
use teiji_model::resource::ResourceError;

impl<B: SettingsBackend, S: Store, C: Clock> Engine<B, S, C> {
    /// The policy in force. Changes nothing.
    ///
    /// # Errors
    /// If the file is damaged or cannot be read.
    pub fn policy(&self) -> Result<Option<KeptPolicy>, Error> {
        Ok(self.any_held_file()?.and_then(|file| file.policy))
    }

    /// Forgets what is held of tasks and devices that are gone, and removes the leftovers of VMs that have ended. Does
    /// nothing while a transaction is in progress. Returns whether it has written the file.
    ///
    /// # Errors
    /// [`Error::Busy`]; if a file is damaged, or cannot be read or written.
    pub fn forget_gone(&self) -> Result<bool, Error> {
        let _lock = self.locked(Duration::ZERO)?;
        if self.transaction()?.is_some() {
            return Ok(false);
        }
        let mut written = false;
        if let Some(mut file) = self.held_file()? {
            let before = file.held.settings.len();
            file.held
                .settings
                .retain(|setting, _| !matches!(self.backend().read(setting), Err(ResourceError::Gone(_))));
            if file.held.settings.len() != before {
                self.write_held(&file)?;
                written = true;
            }
        }
        self.backend().remove_leftovers();
        Ok(written)
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

    /// Forgets what was held before the host has booted. With the lock held.
    pub(super) fn forget_other_boot(&self) -> Result<(), Error> {
        match self.any_held_file()?.and_then(|file| file.policy) {
            Some(policy) => self.write_held(&HeldFile { policy: Some(policy), ..HeldFile::none(&self.boot) }),
            None => self.store.remove(HELD).map_err(|e| self.state("remove", HELD, e)),
        }
    }

    fn write_held(&self, file: &HeldFile) -> Result<(), Error> {
        self.store.write(HELD, &line(file)).map_err(|e| self.state("write", HELD, e))
    }
}
