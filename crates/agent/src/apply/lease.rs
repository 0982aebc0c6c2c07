//! Waits for a confirmation without holding the lock: the journal says until when it may come.
//!
//! ```text
//!  applied, until T ──► confirm: takes the lock before T, commits
//!        │         └──► rollback: takes the lock before T, undoes
//!        └─────────────► from T on: whoever takes the lock first undoes: this process, an agent, the next command
//! ```
//! A confirmation counts once its transaction has ended, not when its line is in the journal: a disk that fails may have the
//! line withdrawn again. If its process has ended before that, this one completes it.
//!
//! Time is that of the clock since boot, which goes on while the machine is suspended, and which nobody sets.

use super::error::{Error, Failure};
use super::journal::{Direction, Journal};
use super::store::{LOCK, Store};
use super::{Clock, Engine, POLL, Progress, SettingsBackend};
use std::any::Any;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// How waiting for a confirmation has ended.
pub(super) enum LeaseEnd {
    /// Somebody has confirmed.
    Confirmed,
    /// Somebody else has undone the changes: by a rollback, or because nobody confirmed in time.
    Undone,
    /// It is this process that has to undo them; with the lock.
    Over(Failure, Box<dyn Any>),
    /// It cannot be read what has become of it.
    Unknown(Error),
}

/// What has become of a transaction that waits for a confirmation.
enum Fate {
    /// It is still there. `committing`: its journal has a commit line.
    Open { committing: bool },
    /// It is gone.
    Ended(LeaseEnd),
}

impl<B: SettingsBackend, S: Store, C: Clock> Engine<B, S, C> {
    /// Waits for the operator.
    pub(super) fn await_confirmation(
        &self,
        journal: &Journal,
        progress: &mut dyn FnMut(Progress<'_>),
        stop: &AtomicBool,
    ) -> LeaseEnd {
        loop {
            let committing = match self.became_of(journal) {
                Ok(Fate::Open { committing }) => committing,
                Ok(Fate::Ended(end)) => return end,
                Err(why) => return LeaseEnd::Unknown(why),
            };
            let left = self.left(journal);
            let within = journal.header.confirm_within.unwrap_or_default();
            let over = match left {
                None => Some(Failure::NotConfirmed(Duration::from_millis(within))),
                Some(_) if stop.load(Ordering::SeqCst) => Some(Failure::Stopped),
                Some(_) => None,
            };
            if over.is_some() || committing {
                match self.store.lock() {
                    // Somebody may have confirmed or undone it before the lock was taken.
                    Ok(Some(lock)) => match (self.fate_with_lock(journal), over) {
                        (Ok(Fate::Open { .. }), Some(why)) => return LeaseEnd::Over(why, lock),
                        (Ok(Fate::Open { .. }), None) => {}
                        (Ok(Fate::Ended(end)), _) => return end,
                        (Err(why), _) => return LeaseEnd::Unknown(why),
                    },
                    Ok(None) => {}
                    Err(source) => return LeaseEnd::Unknown(self.state("lock", LOCK, source)),
                }
            }
            progress(Progress::Waiting { left: left.unwrap_or_default() });
            self.clock.sleep(left.unwrap_or(POLL).min(POLL));
        }
    }

    /// What has become of a transaction.
    fn became_of(&self, journal: &Journal) -> Result<Fate, Error> {
        let is_this = |now: &Journal| now.header.id == journal.header.id;
        match self.transaction()?.filter(is_this) {
            Some(now) => Ok(Fate::Open { committing: now.committed }),
            None if self.held_file()?.is_some_and(|file| file.confirmed == journal.header.id) => {
                Ok(Fate::Ended(LeaseEnd::Confirmed))
            }
            None => Ok(Fate::Ended(LeaseEnd::Undone)),
        }
    }

    /// [`Engine::became_of`] with the lock held: completes a commit whose process has ended.
    fn fate_with_lock(&self, journal: &Journal) -> Result<Fate, Error> {
        let fate = self.became_of(journal)?;
        if matches!(fate, Fate::Open { committing: true })
            && let Some(now) = self.transaction()?
            && self.committed(&now)?
        {
            self.finish().map_err(|e| self.unfinished(e))?;
            return Ok(Fate::Ended(LeaseEnd::Confirmed));
        }
        Ok(fate)
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
