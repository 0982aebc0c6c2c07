//! Waits for a confirmation without holding the lock: the journal says until when it may come.
//!
//! ```text
//!  applied, until T ──► confirm: takes the lock before T, commits
//!        │         └──► rollback: takes the lock before T, undoes
//!        └─────────────► from T on: whoever takes the lock first undoes: this process, an agent, the next command
//! ```
//! Time is that of the clock since boot, which goes on while the machine is suspended, and which nobody sets.

use super::error::{Error, Failure};
use super::journal::{Direction, Journal};
use super::store::{LOCK, Store};
use super::{Clock, Engine, POLL, Progress, SettingsBackend};
use std::any::Any;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// How waiting for a confirmation has ended.
pub(super) enum Lease {
    /// Somebody has confirmed.
    Confirmed,
    /// Somebody else has undone the changes: by a rollback, or because nobody confirmed in time.
    Undone,
    /// It is this process that has to undo them; with the lock.
    Over(Failure, Box<dyn Any>),
    /// It cannot be read what has become of it.
    Unknown(Error),
}

impl<B: SettingsBackend, S: Store, C: Clock> Engine<B, S, C> {
    /// Waits for the operator.
    pub(super) fn await_confirmation(
        &self,
        journal: &Journal,
        progress: &mut dyn FnMut(Progress<'_>),
        stop: &AtomicBool,
    ) -> Lease {
        loop {
            match self.became_of(journal) {
                Ok(None) => {}
                Ok(Some(end)) => return end,
                Err(why) => return Lease::Unknown(why),
            }
            let left = self.left(journal);
            let within = journal.header.confirm_within.unwrap_or_default();
            let over = match left {
                None => Some(Failure::NotConfirmed(Duration::from_millis(within))),
                Some(_) if stop.load(Ordering::SeqCst) => Some(Failure::Stopped),
                Some(_) => None,
            };
            if let Some(why) = over {
                match self.store.lock() {
                    // Somebody may have confirmed or undone it before the lock was taken.
                    Ok(Some(lock)) => match self.became_of(journal) {
                        Ok(None) => return Lease::Over(why, lock),
                        Ok(Some(end)) => return end,
                        Err(why) => return Lease::Unknown(why),
                    },
                    Ok(None) => {}
                    Err(source) => return Lease::Unknown(self.state("lock", LOCK, source)),
                }
            }
            progress(Progress::Waiting { left: left.unwrap_or_default() });
            self.clock.sleep(left.unwrap_or(POLL).min(POLL));
        }
    }

    /// How a transaction has ended; `None` if it still waits.
    fn became_of(&self, journal: &Journal) -> Result<Option<Lease>, Error> {
        let is_this = |now: &Journal| now.header.id == journal.header.id;
        match self.transaction()?.filter(is_this) {
            Some(now) if now.committed => Ok(Some(Lease::Confirmed)),
            Some(_) => Ok(None),
            None if self.held_file()?.is_some_and(|file| file.confirmed == journal.header.id) => {
                Ok(Some(Lease::Confirmed))
            }
            None => Ok(Some(Lease::Undone)),
        }
    }

    /// How much time is left to confirm a transaction; `None` if it does not wait for a confirmation (any more).
    pub(super) fn left(&self, journal: &Journal) -> Option<Duration> {
        let applied = journal.applied && !journal.committed && journal.header.direction == Direction::Forward;
        let until = journal.until.filter(|_| applied && journal.header.boot == self.boot)?;
        let left = Duration::from_millis(until).saturating_sub(self.clock.since_boot());
        (!left.is_zero()).then_some(left)
    }

    /// The transaction that can be confirmed, and for how long. Changes nothing and needs no lock.
    pub(super) fn awaiting(&self) -> Result<Option<(Journal, Duration)>, Error> {
        let journal = self.transaction()?;
        Ok(journal.and_then(|journal| self.left(&journal).map(|left| (journal, left))))
    }

    /// Undoes a transaction that waits for a confirmation. With the lock held.
    pub(super) fn end_lease(&self, journal: &Journal) -> Result<Vec<super::Message>, Error> {
        let outcome = self.undo(journal, true);
        let messages = self.restored(outcome)?.messages;
        // A confirmation that was killed may have left more than the transaction.
        self.clear()?;
        Ok(messages)
    }
}
