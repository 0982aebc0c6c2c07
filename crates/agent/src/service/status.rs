//! Status: what teiji has changed, and whether everything is in order.

use super::{Error, Service};
use crate::apply::{self, Message};
use std::time::Duration;
use teiji_model::status::{LinksStatus, Status, Unfinished};

/// What teiji has changed, and whether everything is in order.
#[derive(Clone, Debug)]
pub struct StatusReport {
    /// What it has changed and is doing.
    pub status: Status,
    /// Links with channels.
    pub links: LinksStatus,
    /// What was recovered after a teiji that was killed.
    pub messages: Vec<Message>,
    /// Whether everything is as teiji left it.
    pub ok: bool,
}

impl Service {
    /// What teiji has changed, and the statistics of packets with deadlines. Recovers from a teiji that was killed,
    /// unless its apply can still be confirmed.
    ///
    /// # Errors
    /// If recovery fails.
    pub fn status(&self) -> Result<StatusReport, Error> {
        let engine = self.engine()?;
        let mut status = engine.status_or_damage();
        let mut messages = Vec::new();
        let orphan = |t: &Unfinished| !t.can_be_confirmed();
        if !status.busy && status.transaction.as_ref().is_some_and(orphan) {
            match engine.recover(Duration::ZERO) {
                Ok(all) => {
                    messages = all;
                    status = engine.status_or_damage();
                }
                // Another process does it, or this one is not root: the status shows what is there.
                Err(apply::Error::Busy(_) | apply::Error::State { .. }) => {}
                Err(error) => return Err(error.into()),
            }
        }
        let links = engine.backend().links();
        let held = status.held.iter().all(|h| !h.changed) && (status.transaction.is_none() || status.busy);
        let ok = held && links.problem.is_none() && status.damaged.is_none();
        Ok(StatusReport { status, links, messages, ok })
    }
}
