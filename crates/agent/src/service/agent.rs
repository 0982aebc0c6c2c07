//! The agent: the daemon that keeps deadlines and the policy in force.

use super::{Error, Service};
use crate::apply::STATE_DIRECTORY;
use crate::daemon::client::{self, ask};
use crate::daemon::detached::{TraceOrder, Traces};
use crate::daemon::protocol::{Answer, FullStatus, Order, Refusal};
use crate::daemon::{self, Places, Signals};
use crate::trace::{Replayed, Shown};
use std::path::{Path, PathBuf};
use teiji_model::report::Joined;
use teiji_model::status::TraceStatus;

/// The socket of the agent whose state directory is the default.
const SOCKET: &str = "/run/teiji/agent.sock";

impl Service {
    /// Keeps deadlines and the policy in force until signals ask for its end.
    ///
    /// # Errors
    /// If it is not permitted to, or can no longer do so.
    pub fn run_daemon(&self, signals: Signals<'_>) -> Result<(), Error> {
        self.real("an agent works only on the machine that the kernel runs on: start it without --root")?;
        Self::needs_root(
            "agent loads a queueing discipline into the kernel and changes settings to keep the policy",
        )?;
        let places = Places { state: &self.state, pins: &self.pins, socket: &self.socket() };
        Ok(daemon::run(places, signals)?)
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
            _ => Err(unexpected()),
        }
    }

    /// Has the agent start a trace; returns its number.
    ///
    /// # Errors
    /// If there is no agent, or it refuses.
    pub fn start_trace(&self, order: TraceOrder) -> Result<u32, client::Error> {
        match ask(&self.socket(), &Order::Trace(order), client::CHANGE_WITHIN)? {
            Answer::Started(number) => Ok(number),
            _ => Err(unexpected()),
        }
    }

    /// The traces that the agent runs or has run.
    ///
    /// # Errors
    /// If there is no agent, or it does not answer.
    pub fn traces(&self) -> Result<Vec<TraceStatus>, client::Error> {
        match ask(&self.socket(), &Order::Traces, client::STATUS_WITHIN)? {
            Answer::Traces(all) => Ok(all),
            _ => Err(unexpected()),
        }
    }

    /// Ends a trace of the agent, which then completes its recording.
    ///
    /// # Errors
    /// If there is no agent, or it refuses.
    pub fn stop_trace(&self, number: u32) -> Result<(), client::Error> {
        self.have_done(&Order::StopTrace(number))
    }

    /// Removes a trace of the agent that has ended, with its recording.
    ///
    /// # Errors
    /// If there is no agent, or it refuses.
    pub fn remove_trace(&self, number: u32) -> Result<(), client::Error> {
        self.have_done(&Order::RemoveTrace(number))
    }

    fn have_done(&self, order: &Order) -> Result<(), client::Error> {
        match ask(&self.socket(), order, client::CHANGE_WITHIN)? {
            Answer::Done => Ok(()),
            _ => Err(unexpected()),
        }
    }

    /// The report of a trace of the agent: so far, if it still runs. Needs root, but no agent.
    ///
    /// # Errors
    /// [`Error::NoRecording`]; if the recording cannot be read.
    pub fn trace_report(
        &self,
        number: u32,
        shown: Shown,
        joined: &mut dyn FnMut(&Joined),
    ) -> Result<Replayed, Error> {
        Self::needs_root("recordings of the agent belong to root")?;
        let (file, _) = Traces::of(&self.state).recording(number).map_err(Error::NoRecording)?;
        Self::replay_unfinished(&file, shown, joined)
    }

    /// The socket of the agent that keeps its state in this service's state directory.
    fn socket(&self) -> PathBuf {
        if self.state == Path::new(STATE_DIRECTORY) { SOCKET.into() } else { self.state.join("agent.sock") }
    }
}

/// An answer to something else.
fn unexpected() -> client::Error {
    client::Error::Refused(Refusal::Unexpected)
}
