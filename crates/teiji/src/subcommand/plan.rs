//! `teiji plan`: what would be changed to keep a policy, or why it cannot be kept.

use crate::args::Plan as Arguments;
use crate::{output, terminal};
use anyhow::Result;
use serde::Serialize;
use teiji_agent::apply::Engine;
use teiji_agent::machine::Machine;
use teiji_agent::observation;
use teiji_agent::policy::{self, Error};
use teiji_host::Root;
use teiji_model::plan::Plan;
use teiji_render::text::plan::{problems, table};
use teiji_render::units;

/// What `--json` prints.
#[derive(Serialize)]
struct Json<'a> {
    schema: u32,
    #[serde(flatten)]
    plan: &'a Plan,
}

pub(super) fn run(args: &Arguments, root: &Root) -> Result<()> {
    let loaded = policy::load(args.policy.file.as_deref()).map_err(explain)?;
    let plan = match &args.host {
        Some(file) => policy::plan_for(&loaded, &observation::read(file).map_err(explain)?),
        None => {
            let machine = Machine::new(root.clone(), &args.state.pins, &args.state.dir);
            policy::plan(&loaded, root, &Engine::open(&args.state.dir, machine)?)
        }
    };
    let plan = plan.map_err(explain)?;
    if args.print.json {
        let json = Json { schema: 1, plan: &plan };
        return output::stdout(&(serde_json::to_string_pretty(&json)? + "\n"));
    }
    output::stdout(&table(&plan, &terminal::stdout()))
}

/// What is wrong with a policy, with the lines that it is in.
pub(super) fn explain(error: Error) -> anyhow::Error {
    match error {
        Error::Wrong { problems: all, sources } => {
            let what = units::count(all.len() as u64, "problem");
            anyhow::anyhow!("{what}, so nothing is changed\n{}", problems(&all, &sources).trim_end())
        }
        other => other.into(),
    }
}
