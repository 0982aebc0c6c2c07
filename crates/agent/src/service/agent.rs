//! The agent: the daemon that keeps deadlines and the policy in force.

use super::{Error, Service};
use crate::apply::STATE_DIRECTORY;
use crate::daemon::client::{self, ask};
use crate::daemon::protocol::{Answer, FullStatus, Order};
use crate::daemon::{self, Places};
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;

/// The socket of the agent whose state directory is the default.
const SOCKET: &str = "/run/teiji/agent.sock";

impl Service {
    /// Keeps deadlines and the policy in force until `stop` is set; `reload` makes it compare the host with the policy at
    /// once.
    ///
    /// # Errors
    /// If it is not permitted to, or can no longer do so; see [`Error::lasts`].
    pub fn run_daemon(&self, stop: &AtomicBool, reload: &AtomicBool) -> Result<(), Error> {
        self.real("an agent works only on the machine that the kernel runs on: start it without --root")?;
        Self::needs_root(
            "agent loads a queueing discipline into the kernel and changes settings to keep the policy",
        )?;
        let places = Places { state: &self.state, pins: &self.pins, socket: &self.socket() };
        Ok(daemon::run(places, stop, reload)?)
    }

    /// The part of the agent that clients talk to. The agent starts it.
    ///
    /// # Errors
    /// If somebody else has started it.
    pub fn run_front() -> std::io::Result<()> {
        daemon::front::run()
    }

    /// What the agent of this host does, and what teiji has changed. Needs an agent, but no root.
    ///
    /// # Errors
    /// If there is none, or it does not answer.
    pub fn ask_status(&self) -> Result<FullStatus, client::Error> {
        match ask(&self.socket(), &Order::Status, client::STATUS_WITHIN)? {
            Answer::Status(status) => Ok(*status),
            Answer::Done(_) => Ok(FullStatus::default()),
        }
    }

    /// The socket of the agent that keeps its state in this service's state directory.
    fn socket(&self) -> PathBuf {
        if self.state == Path::new(STATE_DIRECTORY) { SOCKET.into() } else { self.state.join("agent.sock") }
    }
}
