//! `teiji plan`: what a policy would change, or why there is no plan.

use crate::args::Plan as Arguments;
use crate::{output, style};
use anyhow::Result;
use teiji_agent::policy;
use teiji_agent::service::{Error, Service};
use teiji_render::json;
use teiji_render::text::plan::{problems, table};
use teiji_render::units;

/// Plans and prints the plan; changes nothing.
pub(super) fn run(args: &Arguments, service: &Service) -> Result<()> {
    let plan = service.plan(&args.policy.files, args.host.as_deref(), args.absent_ok).map_err(explain)?;
    if args.print.json {
        return output::json(&json::Plan::new(&plan));
    }
    output::stdout(&table(&plan, &style::stdout()))
}

/// The problems of a policy, each with the line that it is in.
pub(super) fn explain(error: Error) -> anyhow::Error {
    match error {
        Error::Policy(policy::Error::Wrong { problems: all, sources }) => {
            let what = units::count(all.len() as u64, "problem");
            anyhow::anyhow!("{what}, so nothing is changed\n{}", problems(&all, &sources).trim_end())
        }
        other => other.into(),
    }
}
