//! `teiji policy`: checks a policy on its own, or prints the schema of policies.

use super::plan;
use crate::args::Policy;
use crate::{output, style};
use anyhow::Result;
use teiji_agent::service::Service;
use teiji_render::text::policy::checked;

/// Prints the result of the check, or the schema.
pub(super) fn run(what: &Policy) -> Result<()> {
    match what {
        Policy::Schema => output::stdout(&(teiji_policy::schema().trim_end().to_owned() + "\n")),
        Policy::Check(named) => {
            let loaded = Service::policy(&named.files).map_err(plan::explain)?;
            output::stdout(&checked(&loaded.policy, loaded.sources.len(), &style::stdout()))
        }
    }
}
