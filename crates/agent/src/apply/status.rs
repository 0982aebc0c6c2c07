//! Shows what teiji has changed and is doing, without changing anything.

use super::error::Error;
use super::journal::Direction;
use super::store::{LOCK, Store};
use super::{Clock, Engine, SettingsBackend};
use std::io::ErrorKind;
use teiji_model::resource::Class;
use teiji_model::status::{HeldStatus, Status, Unfinished};

impl<B: SettingsBackend, S: Store, C: Clock> Engine<B, S, C> {
    /// [`Engine::status`], but a file that cannot be read becomes part of the answer.
    pub fn status_or_damage(&self) -> Status {
        self.status().unwrap_or_else(|error| {
            let cause = std::error::Error::source(&error).map(|c| format!(": {c}")).unwrap_or_default();
            Status { damaged: Some(format!("{error}{cause}")), ..Status::default() }
        })
    }

    /// What teiji holds and does. Changes nothing; without root it says what it cannot see.
    ///
    /// # Errors
    /// If a file is damaged or cannot be read for another reason than permission.
    pub fn status(&self) -> Result<Status, Error> {
        let mut status = Status::default();
        match self.store.holder() {
            Ok(holder) => {
                status.busy = holder.is_some();
                status.pid = holder.flatten();
            }
            Err(e) if e.kind() == ErrorKind::PermissionDenied => {
                let dir = self.store.path(LOCK);
                let dir = dir.parent().unwrap_or(&dir).display();
                status.hidden =
                    Some(format!("only root may look into {dir}, so what teiji holds is not shown"));
                return Ok(status);
            }
            Err(e) => return Err(self.state("open", LOCK, e)),
        }
        // An apply that commits meanwhile moves from one file to the other: in this order it is always seen.
        if let Some(journal) = self.transaction()? {
            status.other_boot |= journal.header.boot != self.boot;
            let now = self.clock.since_boot().as_millis() as u64;
            status.transaction = (!status.other_boot).then(|| Unfinished {
                pid: journal.header.pid,
                time: journal.header.time,
                rollback: journal.header.direction != Direction::Forward,
                begun: journal.begun,
                applied: journal.applied,
                confirm_left: journal.until.map(|until| until.saturating_sub(now)),
                steps: journal.header.steps,
            });
        }
        let file = self.any_held_file()?;
        status.other_boot |= file.as_ref().is_some_and(|file| file.boot != self.boot);
        let held =
            file.filter(|file| file.boot == self.boot).map(|file| file.held.settings).unwrap_or_default();
        status.held = held
            .into_iter()
            .map(|(setting, hold)| {
                let present = self.backend.read(&setting);
                let atomic = self.backend.class(&setting) == Class::Atomic;
                let changed = atomic && present.as_ref().is_ok_and(|found| *found != hold.value);
                HeldStatus { setting, hold, present, changed }
            })
            .collect();
        Ok(status)
    }
}
