//! A summary of a policy in one line, and its overridden lines.

use super::plan::overridden;
use crate::terminal::Style;
use crate::units::count;
use teiji_model::policy::Policy;

/// The result of checking a policy without errors.
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
