//! Confirms an apply that waits for it, from another process.
//!
//! The waiting process holds the lock, so `confirm` writes a file with the transaction's id for it, and watches the
//! transaction. If that process has ended, `confirm` takes the lock, and commits in its place if there is still time
//! and every setting is still as applied: the process may have ended while it was undoing.

use super::error::{Error, Message};
use super::journal::{Direction, Journal};
use super::store::{CONFIRMED, Store};
use super::{Clock, Engine, POLL, SettingsBackend};
use std::time::Duration;
use teiji_model::plan::Step;
use teiji_model::resource::Class;

impl<B: SettingsBackend, S: Store, C: Clock> Engine<B, S, C> {
    /// Confirms the transaction that waits for it, and returns once it is committed.
    ///
    /// # Errors
    /// If there is none, it is not applied yet, or it is too late.
    pub fn confirm(&self) -> Result<Vec<Message>, Error> {
        let Some(journal) = self.transaction()? else { return Err(Error::NothingToConfirm) };
        let mut left_word = false;
        loop {
            if let Some(_lock) = self.store.lock().map_err(|e| self.state("lock", super::store::LOCK, e))? {
                return self.confirm_locked(&journal);
            }
            let now = self.transaction()?;
            let waiting = now.filter(|now| now.header.id == journal.header.id);
            match waiting {
                Some(waiting) if !left_word => {
                    if waiting.until.is_none() || waiting.committed {
                        return Err(Error::NotAwaiting(journal.header.pid));
                    }
                    self.store
                        .write(CONFIRMED, journal.header.id.as_bytes())
                        .map_err(|e| self.state("write", CONFIRMED, e))?;
                    left_word = true;
                }
                Some(_) => {}
                None => return self.ended(&journal, Vec::new()),
            }
            self.clock.sleep(POLL);
        }
    }

    /// The same with the lock held, which means that the process that began the transaction has ended.
    fn confirm_locked(&self, seen: &Journal) -> Result<Vec<Message>, Error> {
        let found = self.transaction()?.filter(|now| now.header.id == seen.header.id);
        if let Some(mut journal) = found.filter(|journal| self.still_applied(journal)) {
            let held = self.held_after(&journal).map_err(|why| self.unconfirmed(why))?;
            if let Err(why) = self.commit(&mut journal, &held) {
                let _ = self.store.remove(super::store::HELD_NEXT);
                return Err(self.unconfirmed(why));
            }
            self.finish().map_err(|e| self.unfinished(e))?;
            return Ok(Vec::new());
        }
        let messages = self.recover_locked()?;
        self.ended(seen, messages)
    }

    /// Whether a transaction whose process has ended can be committed.
    fn still_applied(&self, journal: &Journal) -> bool {
        let header = &journal.header;
        let in_time = journal.until.is_some_and(|ms| self.clock.since_boot() < Duration::from_millis(ms));
        header.boot == self.boot
            && header.direction == Direction::Forward
            && journal.applied
            && !journal.committed
            && in_time
            && header.steps.iter().all(|step| self.is_applied(step))
    }

    fn is_applied(&self, step: &Step) -> bool {
        let found = self.backend.read(&step.setting);
        // A controller may have written another value, and an operation may still be in progress.
        found.is_ok_and(|found| found == step.wanted || self.backend.class(&step.setting) != Class::Atomic)
    }

    /// The outcome of a transaction that no longer exists.
    fn ended(&self, journal: &Journal, messages: Vec<Message>) -> Result<Vec<Message>, Error> {
        if self.held_file()?.is_some_and(|file| file.last == journal.header.id) {
            return Ok(messages);
        }
        // This process may have written the file after the other one had removed it.
        let _ = self.store.remove(CONFIRMED);
        Err(Error::TooLate(messages))
    }

    fn unconfirmed(&self, why: super::Failure) -> Error {
        self.state("commit to", super::store::HELD, std::io::Error::other(why))
    }
}
