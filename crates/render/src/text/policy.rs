//! What a policy has in it, in a line, and which lines of it do not hold.

use super::plan::overridden;
use crate::terminal::Style;
use crate::units::count;
use teiji_model::policy::Policy;

/// A policy in which nothing is wrong.
pub fn checked(policy: &Policy, files: usize, style: &Style) -> String {
    let parts = [
        (policy.vms.len(), "VM"),
        (policy.links.len(), "link"),
        (policy.channels.len(), "channel"),
        (policy.vfs.len(), "virtual function"),
    ];
    let parts: Vec<String> = parts.iter().map(|(n, what)| count(*n as u64, what)).collect();
    format!(
        "{}{} read, nothing wrong: {}; `teiji plan` says whether this host can keep it\n",
        overridden(&policy.overridden, style),
        count(files as u64, "file"),
        parts.join(", ")
    )
}
