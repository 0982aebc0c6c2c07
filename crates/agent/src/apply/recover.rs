//! Handles what an ended process left behind, and ends transactions.

use super::error::{Error, Failure, Message};
use super::journal::{Damage, Direction, HeldFile, Journal, Line, OLDEST, VERSION, line};
use super::store::{CONFIRMED, HELD, HELD_NEXT, Store, TRANSACTION};
use super::undo::UndoOutcome;
use super::{Clock, Engine, SettingsBackend};
use std::io;
use std::time::Duration;
use teiji_model::plan::Held;

impl<B: SettingsBackend, S: Store, C: Clock> Engine<B, S, C> {
    /// Undoes or completes the transaction that an ended process left behind, if there is one, and undoes an apply that
    /// nobody has confirmed in time. Every operation that changes settings does so first. Waits for at most this time for
    /// another teiji to finish.
    ///
    /// # Errors
    /// If another process is changing settings, a file is damaged, or a setting cannot be restored.
    pub fn recover(&self, wait: Duration) -> Result<Vec<Message>, Error> {
        let _lock = self.locked(wait)?;
        self.recover_locked()
    }

    /// What teiji holds, for a plan. Changes nothing.
    ///
    /// # Errors
    /// If the file is damaged or cannot be read.
    pub fn held(&self) -> Result<Held, Error> {
        Ok(self.held_file()?.map(|file| file.held).unwrap_or_default())
    }

    /// [`Engine::recover`] with the lock held.
    pub(super) fn recover_locked(&self) -> Result<Vec<Message>, Error> {
        let mut messages = Vec::new();
        if let Some(mut journal) = self.transaction()? {
            let pid = journal.header.pid;
            if journal.header.boot != self.boot {
                self.forget_other_boot(Some(&journal))?;
                messages.push(Message::OtherBoot);
            } else if self.committed(&journal)? {
                self.finish().map_err(|e| self.unfinished(e))?;
                messages.push(Message::Committed { pid });
            } else if self.left(&journal).is_some() {
                // It can still be confirmed.
            } else if journal.header.direction == Direction::Forward {
                let outcome = self.undo(&journal, true);
                // Once it waits for its confirmation, it has been interrupted only if its confirmation was.
                let waited = journal.applied && journal.until.is_some() && !journal.committed;
                messages.push(if waited { Message::NotConfirmed { pid } } else { Message::Undone { pid } });
                messages.extend(self.restored(outcome)?.messages);
                self.clear()?;
            } else {
                journal.withdraw();
                messages.push(Message::RolledBack { pid });
                messages.extend(self.complete(&mut journal, true)?.messages);
            }
        }
        let old = self.any_held_file()?.is_some_and(|file| file.boot != self.boot);
        if old {
            self.forget_other_boot(None)?;
            if !messages.contains(&Message::OtherBoot) {
                messages.push(Message::OtherBoot);
            }
        }
        // Removes what is left of VMs that have ended since.
        self.backend.remove_leftovers();
        Ok(messages)
    }

    /// Takes the remaining steps of a rollback, and ends it. `resumed`: another process has begun it.
    pub(super) fn complete(&self, journal: &mut Journal, resumed: bool) -> Result<UndoOutcome, Error> {
        let outcome = self.restored(self.roll_back(journal, resumed))?;
        let mut file = self.held_file()?.unwrap_or_else(|| HeldFile::none(&self.boot));
        file.version = VERSION;
        file.last = journal.header.id.clone();
        // An agent would otherwise change everything again.
        file.policy = None;
        for setting in &outcome.done {
            file.held.settings.remove(setting);
        }
        let committed = self.commit(journal, &file).map_err(|why| self.unfinished(io::Error::other(why)));
        committed.inspect_err(|_| {
            let _ = self.store.remove(HELD_NEXT);
        })?;
        self.finish().map_err(|e| self.unfinished(e))?;
        Ok(outcome)
    }

    /// The outcome, if everything was restored.
    pub(super) fn restored(&self, outcome: UndoOutcome) -> Result<UndoOutcome, Error> {
        if outcome.failed.is_empty() {
            return Ok(outcome);
        }
        let path = self.store.path(TRANSACTION);
        Err(Error::Unrestored { failed: outcome.failed, messages: outcome.messages, path })
    }

    /// Commits: after this nothing is undone.
    pub(super) fn commit(&self, journal: &mut Journal, held: &HeldFile) -> Result<(), Failure> {
        self.store
            .write(HELD_NEXT, &line(held))
            .map_err(|source| Failure::Journal { path: self.store.path(HELD_NEXT), source })?;
        self.append_line(journal, Line::Commit { commit: true })
    }

    /// Whether a transaction is committed. A commit line without `held.json.next`, and without it having become
    /// `held.json`, was withdrawn: the disk failed after it had taken the line.
    pub(super) fn committed(&self, journal: &Journal) -> Result<bool, Error> {
        let next = || self.store.read(HELD_NEXT).map_err(|e| self.state("read", HELD_NEXT, e));
        let last =
            || Ok::<_, Error>(self.any_held_file()?.is_some_and(|file| file.last == journal.header.id));
        Ok(journal.committed && (next()?.is_some() || last()?))
    }

    /// Puts the files of a committed transaction in order.
    pub(super) fn finish(&self) -> io::Result<()> {
        if self.store.read(HELD_NEXT)?.is_some() {
            self.store.rename(HELD_NEXT, HELD)?;
        }
        self.store.remove(CONFIRMED)?;
        self.store.remove(TRANSACTION)
    }

    /// Removes a transaction that is finished.
    pub(super) fn clear(&self) -> Result<(), Error> {
        for name in [HELD_NEXT, CONFIRMED, TRANSACTION] {
            self.store.remove(name).map_err(|e| self.state("remove", name, e))?;
        }
        Ok(())
    }

    /// The transaction in progress, if any.
    pub(super) fn transaction(&self) -> Result<Option<Journal>, Error> {
        let content = self.store.read(TRANSACTION).map_err(|e| self.state("read", TRANSACTION, e))?;
        let parse = |c: Vec<u8>| Journal::parse(&c, &self.boot).map_err(|d| self.damaged(TRANSACTION, d));
        content.map(parse).transpose()
    }

    /// `held.json`, unless it is of another boot.
    pub(super) fn held_file(&self) -> Result<Option<HeldFile>, Error> {
        Ok(self.any_held_file()?.filter(|file| file.boot == self.boot))
    }

    pub(super) fn any_held_file(&self) -> Result<Option<HeldFile>, Error> {
        let content = self.store.read(HELD).map_err(|e| self.state("read", HELD, e))?;
        content.map(|c| HeldFile::parse(&c).map_err(|d| self.damaged(HELD, d))).transpose()
    }

    fn damaged(&self, name: &str, damage: Damage) -> Error {
        let path = self.store.path(name);
        match damage {
            Damage::Line(line, why) => Error::Damaged { path, line, why },
            Damage::Version(found) => Error::Version { path, found, oldest: OLDEST, known: VERSION },
        }
    }
}
