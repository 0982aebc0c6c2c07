//! `teiji observe`: what this host is like, for `teiji plan --host` on any machine.

use super::plan;
use crate::args::State;
use crate::output;
use anyhow::Result;
use teiji_agent::apply::Engine;
use teiji_agent::machine::Machine;
use teiji_agent::observation;
use teiji_host::Root;

/// Prints it as JSON; changes nothing.
pub(super) fn run(state: &State, root: &Root) -> Result<()> {
    let engine = Engine::open(&state.dir, Machine::new(root.clone(), &state.pins, &state.dir))?;
    let host = observation::take(root, &engine).map_err(plan::explain)?;
    output::stdout(&(serde_json::to_string_pretty(&host)? + "\n"))
}
