//! Confirms an apply that waits for it.
//!
//! Any process may do so: it takes the lock, and commits if there is still time and nothing has been undone. The process
//! that applied sees that in the files.

use super::error::{Error, Message};
use super::journal::Journal;
use super::store::{HELD, HELD_NEXT, LOCK, Store};
use super::{Clock, Engine, POLL, SettingsBackend};
use std::time::Duration;
use teiji_model::plan::Step;
use teiji_model::resource::Class;

/// How long another command may have the lock meanwhile.
const CONFIRM_LOCK_TIMEOUT: Duration = Duration::from_secs(2);

impl<B: SettingsBackend, S: Store, C: Clock> Engine<B, S, C> {
    /// Confirms the transaction that waits for it: its changes stay.
    ///
    /// # Errors
    /// If there is none, it is not applied yet, or it is too late.
    pub fn confirm(&self) -> Result<Vec<Message>, Error> {
        let Some(seen) = self.transaction()? else { return Err(Error::NothingToConfirm) };
        let begun = self.clock.since_boot();
        let _lock = loop {
            if let Some(lock) = self.store.lock().map_err(|e| self.state("lock", LOCK, e))? {
                break lock;
            }
            let now = self.transaction()?.filter(|now| now.header.id == seen.header.id);
            // Its process is still applying it, or undoes it.
            if now.is_some_and(|now| now.until.is_none() && !now.committed) {
                return Err(Error::NotAwaiting(seen.header.pid));
            }
            if self.clock.since_boot() > begun + CONFIRM_LOCK_TIMEOUT {
                return Err(Error::Busy(self.store.holder().ok().flatten().flatten()));
            }
            self.clock.sleep(POLL);
        };
        let found = self.transaction()?.filter(|now| now.header.id == seen.header.id);
        if let Some(mut journal) = found.filter(|now| self.left(now).is_some() && self.nothing_undone(now)) {
            let mut held = self.held_after(&journal).map_err(|why| self.unconfirmed(why))?;
            held.confirmed = journal.header.id.clone();
            if let Err(why) = self.commit(&mut journal, &held) {
                let _ = self.store.remove(HELD_NEXT);
                return Err(self.unconfirmed(why));
            }
            self.finish().map_err(|e| self.unfinished(e))?;
            return Ok(Vec::new());
        }
        let mut messages = self.recover_locked()?;
        if let Some((journal, _)) = self.awaiting()?.filter(|(now, _)| now.header.id == seen.header.id) {
            messages.extend(self.end_lease(&journal)?);
        }
        self.ended(&seen, messages)
    }

    /// Whether no step has been undone: its process may have ended while it did so. A value that somebody else has set
    /// does not count, nor does what is gone with its task.
    fn nothing_undone(&self, journal: &Journal) -> bool {
        journal.header.steps.iter().all(|step| !self.is_undone(step))
    }

    fn is_undone(&self, step: &Step) -> bool {
        let atomic = self.backend.class(&step.setting) == Class::Atomic;
        let found = self.backend.read(&step.setting);
        atomic && step.present != step.wanted && found.is_ok_and(|found| found == step.present)
    }

    /// The outcome of a transaction that no longer exists.
    fn ended(&self, journal: &Journal, messages: Vec<Message>) -> Result<Vec<Message>, Error> {
        if self
            .held_file()?
            .is_some_and(|file| file.last == journal.header.id || file.confirmed == journal.header.id)
        {
            return Ok(messages);
        }
        Err(Error::TooLate(messages))
    }

    fn unconfirmed(&self, why: super::Failure) -> Error {
        self.state("commit to", HELD, std::io::Error::other(why))
    }
}
