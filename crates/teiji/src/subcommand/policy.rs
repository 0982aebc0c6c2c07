//! `teiji policy`: checks a policy by itself, or prints what may be in one.

use super::plan;
use crate::args::Policy;
use crate::output;
use anyhow::Result;
use teiji_agent::policy::load;
use teiji_policy::schema;
use teiji_render::units;

pub(super) fn run(what: &Policy) -> Result<()> {
    match what {
        Policy::Schema => output::stdout(&(schema().trim_end().to_owned() + "\n")),
        Policy::Check(named) => {
            let loaded = load(named.file.as_deref()).map_err(plan::explain)?;
            let policy = &loaded.policy;
            let parts = [
                (policy.vms.len(), "VM"),
                (policy.links.len(), "link"),
                (policy.channels.len(), "channel"),
                (policy.vfs.len(), "virtual function"),
            ];
            let parts: Vec<String> = parts.iter().map(|(n, what)| units::count(*n as u64, what)).collect();
            output::stdout(&format!(
                "{} read, nothing wrong: {}; `teiji plan` says whether this host can keep it\n",
                units::count(loaded.sources.len() as u64, "file"),
                parts.join(", ")
            ))
        }
    }
}
