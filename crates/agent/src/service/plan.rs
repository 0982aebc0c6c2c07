//! Policy, plan, observe: what would be changed. Nothing here changes the host.

use super::{Error, Service};
use crate::observation;
use crate::policy::{self, Loaded};
use std::path::{Path, PathBuf};
use teiji_model::observation::Observation;
use teiji_model::plan::Plan;

impl Service {
    /// Reads a policy ([`policy::load`]); looks at nothing else.
    ///
    /// # Errors
    /// [`Error::Policy`].
    pub fn policy(files: &[PathBuf]) -> Result<Loaded, Error> {
        Ok(policy::load(files)?)
    }

    /// What would be changed to keep a policy, here or on the host that was observed in `host`. With `absent_ok`, VMs and
    /// links of the policy need not be there. Changes nothing.
    ///
    /// # Errors
    /// If there is no policy, the host cannot keep it, or the host cannot be observed.
    pub fn plan(&self, files: &[PathBuf], host: Option<&Path>, absent_ok: bool) -> Result<Plan, Error> {
        let loaded = policy::load(files)?;
        match host {
            Some(file) => Ok(policy::plan_for(&loaded, &observation::read(file)?, absent_ok)?),
            None => Ok(policy::plan(&loaded, &self.root, &self.engine()?, absent_ok)?),
        }
    }

    /// The state of this host and what teiji holds on it, for a plan on any machine: what `teiji observe` writes.
    /// [`Service::observed`] is the host alone. Changes nothing.
    ///
    /// # Errors
    /// If the host or the state cannot be read.
    pub fn observation(&self) -> Result<Observation, Error> {
        Ok(observation::capture(&self.root, &self.engine()?)?)
    }
}
