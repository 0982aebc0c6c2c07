//! Notices when somebody removes or replaces what the agent has pinned.
//!
//! Links keep their qdisc and the maps, and the heartbeat in these continues, so no deadline is missed. But commands
//! find no channels any more. The agent holds everything that was pinned and pins it again if the folder is free:
//! channels that nobody can change or remove are of no use, and `teiji rollback` is the way to remove them. If the
//! folder has pins of another process, the agent says so and continues for the links that have its own qdisc.

use super::Error;
use std::path::Path;
use teiji_bpf::qdisc_edf::{PinState, QdiscOwner};
use teiji_model::text;

/// Checks whether commands find the pins of this agent.
pub(super) struct PinWatch<'a> {
    pins: &'a Path,
    /// The problem that was reported last.
    problem: Option<String>,
}

impl<'a> PinWatch<'a> {
    pub(super) fn new(pins: &'a Path) -> PinWatch<'a> {
        PinWatch { pins, problem: None }
    }

    pub(super) fn check(&mut self, owner: &mut QdiscOwner) -> Result<(), Error> {
        let pins = self.pins.display();
        let meanwhile = "deadlines of present channels are kept, but no command can see or change them";
        let problem = match owner.pin_state() {
            Ok(PinState::Ours) => None,
            Ok(PinState::Missing) => match owner.repin() {
                Ok(()) => {
                    tracing::warn!(
                        "somebody removed what the agent had pinned in {pins}: it is pinned again, and channels are as \
                         they were; `teiji rollback` removes them"
                    );
                    None
                }
                Err(error) => Some(format!(
                    "what the agent had pinned in {pins} is gone: {meanwhile}; {error}; it tries again"
                )),
            },
            Ok(PinState::Others) if owner.link_count() == 0 => {
                return Err(Error::Replaced(self.pins.to_owned()));
            }
            Ok(PinState::Others) => Some(format!(
                "{pins} has the pins of another process: {meanwhile} ({}); end that process, remove its pins, and \
                 this agent pins its own again",
                text::count(owner.link_count(), "link")
            )),
            Err(error) => Some(format!("it is not known whether commands find the channels: {error}")),
        };
        if problem != self.problem {
            match &problem {
                Some(text) => tracing::error!("{text}"),
                None => tracing::info!("commands find the channels in {pins} again"),
            }
            self.problem = problem;
        }
        Ok(())
    }
}
