//! Apply, confirm, rollback: what changes the host, and what restores it.

use super::{Error, Service};
use crate::apply::{Applied, Engine, Message, Options, Progress, Rollback, RolledBack};
use crate::backend::HostBackend;
use crate::{observation, policy};
use std::path::PathBuf;
use std::sync::atomic::AtomicBool;
use std::time::Duration;
use teiji_model::plan::Plan;
use teiji_model::policy::KeptPolicy;

/// A plan that can be carried out.
pub struct PreparedPlan {
    engine: Engine<HostBackend>,
    plan: Plan,
    policy: KeptPolicy,
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
        let options = Options { policy: Some(self.policy.clone()), ..options.clone() };
        Ok(self.engine.apply(&self.plan, &options, progress, stop)?)
    }
}

impl Service {
    /// Recovers from a teiji that was killed, reports that by `tell`, and plans the changes that a policy needs.
    ///
    /// # Errors
    /// As [`Service::plan`]; if this process may not change anything; [`Error::First`].
    pub fn prepare(
        &self,
        files: &[PathBuf],
        wait: Duration,
        absent_ok: bool,
        tell: &mut dyn FnMut(&[Message]),
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
        let seen = observation::capture(&self.root, &engine)?;
        let plan = policy::plan_for(&loaded, &seen, absent_ok)?;
        if !plan.first.is_empty() {
            return Err(Error::First(plan.first));
        }
        let policy = policy::kept(loaded, &seen.observed, engine.boot());
        Ok(PreparedPlan { engine, plan, policy })
    }

    /// Confirms the apply that waits for it.
    ///
    /// # Errors
    /// If no apply waits, or it is too late.
    pub fn confirm(&self) -> Result<Vec<Message>, Error> {
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
    pub fn recover_from_kill(&self, wait: Duration) -> Result<Vec<Message>, Error> {
        Self::needs_root(CHANGES_BACK)?;
        Ok(self.engine()?.recover(wait)?)
    }
}

/// Why root is needed to restore settings.
const CHANGES_BACK: &str = "rollback changes threads, interrupts, control groups and qdiscs";
