//! Policy, plan, apply, confirm, rollback, status, and the agent.

use super::{Error, Service};
use crate::apply::{self, Applied, Engine, Note, Options, Progress, Rollback, RolledBack};
use crate::backend::HostBackend;
use crate::policy::{self, Loaded};
use crate::{daemon, observation};
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::time::Duration;
use teiji_model::observation::Observation;
use teiji_model::plan::Plan;
use teiji_model::status::{LinksStatus, Status, Unfinished};

/// What teiji has changed, and whether everything is in order.
#[derive(Clone, Debug)]
pub struct StatusReport {
    /// What it has changed and is doing.
    pub status: Status,
    /// Links with channels.
    pub links: LinksStatus,
    /// What was recovered after a teiji that was killed.
    pub notes: Vec<Note>,
    /// Whether everything is as teiji left it.
    pub ok: bool,
}

/// A plan that can be carried out.
pub struct PreparedPlan {
    engine: Engine<HostBackend>,
    plan: Plan,
}

impl PreparedPlan {
    /// What would be done.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// Carries it out.
    ///
    /// # Errors
    /// Why it was undone, or could not be.
    pub fn apply(
        &self,
        options: &Options,
        progress: &mut dyn FnMut(Progress<'_>),
        stop: &AtomicBool,
    ) -> Result<Applied, Error> {
        Ok(self.engine.apply(&self.plan, options, progress, stop)?)
    }
}

impl Service {
    /// Reads a policy ([`policy::load`]); looks at nothing else.
    ///
    /// # Errors
    /// [`Error::Policy`].
    pub fn policy(files: &[PathBuf]) -> Result<Loaded, Error> {
        Ok(policy::load(files)?)
    }

    /// What would be changed to keep a policy, here or on the host that was observed in `host`. Changes nothing.
    ///
    /// # Errors
    /// If there is no policy, the host cannot keep it, or the host cannot be observed.
    pub fn plan(&self, files: &[PathBuf], host: Option<&Path>) -> Result<Plan, Error> {
        let loaded = policy::load(files)?;
        match host {
            Some(file) => Ok(policy::plan_for(&loaded, &observation::read(file)?)?),
            None => Ok(policy::plan(&loaded, &self.root, &self.engine()?)?),
        }
    }

    /// The state of this host, for a plan on any machine. Changes nothing.
    ///
    /// # Errors
    /// If the host or the state cannot be read.
    pub fn observe(&self) -> Result<Observation, Error> {
        Ok(observation::capture(&self.root, &self.engine()?)?)
    }

    /// Recovers from a teiji that was killed, reports that by `tell`, and plans the changes that a policy needs.
    ///
    /// # Errors
    /// As [`Service::plan`]; if this process may not change anything; [`Error::First`].
    pub fn prepare(
        &self,
        files: &[PathBuf],
        wait: Duration,
        tell: &mut dyn FnMut(&[Note]),
    ) -> Result<PreparedPlan, Error> {
        let loaded = policy::load(files)?;
        self.real(
            "what is below --root is not this machine, so it cannot be changed; `teiji plan` reads it",
        )?;
        Self::needs_root(
            "apply changes threads, interrupts, control groups and qdiscs; `teiji plan` shows what it would do",
        )?;
        let engine = self.engine()?;
        // First, so that the plan starts from the recovered state of the host.
        tell(&engine.recover(wait)?);
        let plan = policy::plan(&loaded, &self.root, &engine)?;
        if plan.first.is_empty() { Ok(PreparedPlan { engine, plan }) } else { Err(Error::First(plan.first)) }
    }

    /// Confirms the apply that waits for it.
    ///
    /// # Errors
    /// If no apply waits, or it is too late.
    pub fn confirm(&self) -> Result<Vec<Note>, Error> {
        Self::needs_root("confirm writes to the state directory")?;
        Ok(self.engine()?.confirm()?)
    }

    /// Restores everything that teiji has changed.
    ///
    /// # Errors
    /// If something cannot be restored.
    pub fn rollback(&self, how: &Rollback) -> Result<RolledBack, Error> {
        Self::needs_root(CHANGES_BACK)?;
        Ok(self.engine()?.rollback(how)?)
    }

    /// Recovers from a teiji that was killed.
    ///
    /// # Errors
    /// If something cannot be restored.
    pub fn recover_from_kill(&self, wait: Duration) -> Result<Vec<Note>, Error> {
        Self::needs_root(CHANGES_BACK)?;
        Ok(self.engine()?.recover(wait)?)
    }

    /// What teiji has changed, and the statistics of packets with deadlines. Recovers from a teiji that was killed,
    /// unless its apply can still be confirmed.
    ///
    /// # Errors
    /// If recovery fails.
    pub fn status(&self) -> Result<StatusReport, Error> {
        let engine = self.engine()?;
        let mut status = engine.status_or_damage();
        let mut notes = Vec::new();
        let orphan = |t: &Unfinished| !(t.applied && t.confirm_left.is_some_and(|ms| ms > 0));
        if !status.busy && status.transaction.as_ref().is_some_and(orphan) {
            match engine.recover(Duration::ZERO) {
                Ok(all) => {
                    notes = all;
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
        Ok(StatusReport { status, links, notes, ok })
    }

    /// Keeps deadlines until `stop` is set.
    ///
    /// # Errors
    /// If it is not permitted to, or can no longer do so; see [`Error::lasts`].
    pub fn run_daemon(&self, stop: &AtomicBool) -> Result<(), Error> {
        self.real("an agent works only on the machine that the kernel runs on: start it without --root")?;
        Self::needs_root(
            "agent loads a queueing discipline into the kernel; it then gives up the privileges that it does not need",
        )?;
        Ok(daemon::run(&self.state, &self.pins, stop)?)
    }
}

/// Why root is needed to restore settings.
const CHANGES_BACK: &str = "rollback changes threads, interrupts, control groups and qdiscs";
