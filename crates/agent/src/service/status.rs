//! Status: what teiji has changed, what an agent does, and whether everything is in order. Changes nothing.

use super::{Error, Service};
use crate::daemon::client;
use teiji_model::status::{AgentStatus, LinksStatus, Status};

/// What teiji has changed, and whether everything is in order.
#[derive(Clone, Debug)]
pub struct StatusReport {
    /// What it has changed and is doing.
    pub status: Status,
    /// Links with channels.
    pub links: LinksStatus,
    /// What the agent does; `None` if there is none.
    pub agent: Option<AgentStatus>,
    /// Why an agent that is there does not answer.
    pub silent: Option<String>,
    /// The files of the policy in force, if no agent keeps it.
    pub unkept: Option<Vec<String>>,
    /// Whether everything is as teiji left it, and can be told. That no agent keeps the policy is no fault: settings stay as
    /// they were applied.
    pub ok: bool,
}

impl Service {
    /// What teiji has changed, the statistics of packets with deadlines, and what the agent does. What this process may not
    /// read, an agent tells. Changes nothing: what a killed teiji left is shown as it is.
    ///
    /// # Errors
    /// If the kernel does not tell its boot id.
    pub fn status(&self) -> Result<StatusReport, Error> {
        let engine = self.engine()?;
        let (mut status, mut links) = (engine.status_or_damage(), engine.backend().links());
        let mut unkept = None;
        let (agent, silent) = match self.ask_status() {
            Ok(full) => {
                if status.hidden.is_some() {
                    (status, links) = (full.status, full.links);
                }
                (Some(full.agent), None)
            }
            Err(client::Error::Absent(_)) => {
                // If the file is damaged, `status` says so.
                unkept = engine.policy().ok().flatten().map(|policy| policy.files());
                (None, None)
            }
            Err(client::Error::NotPermitted(_)) => (None, None),
            Err(error) => (None, Some(error.to_string())),
        };
        let unchanged = status.held.iter().all(|held| !held.changed);
        let finished = status.busy || status.transaction.as_ref().is_none_or(|t| t.can_be_confirmed());
        let agent_ok = silent.is_none() && agent.as_ref().is_none_or(|agent| agent.problems.is_empty());
        let ok = unchanged && finished && agent_ok && links.problem.is_none() && status.damaged.is_none();
        Ok(StatusReport { status, links, agent, silent, unkept, ok })
    }
}
