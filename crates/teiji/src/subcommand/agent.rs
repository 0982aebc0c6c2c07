//! `teiji agent`: keeps deadlines going. In the foreground; systemd runs it (dist/teiji-agent.service).

use super::apply::needs_root;
use super::signals;
use crate::args::State;
use anyhow::{Result, bail};
use teiji_agent::keeper;

/// Until SIGTERM or SIGINT, which is no failure.
pub(super) fn run(state: &State, made_up: bool) -> Result<()> {
    if made_up {
        bail!("what is below --root is not this machine, so there is nothing that an agent could keep");
    }
    needs_root("agent loads a queueing discipline into the kernel; what it does not need it gives up then")?;
    keeper::run(&state.dir, &state.pins, &*signals::stop_flag()?)?;
    Ok(())
}
