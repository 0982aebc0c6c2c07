//! A summary of a policy in one line, and its overridden lines.

use super::plan::overridden;
use crate::terminal::Style;
use crate::units::count;
use teiji_model::policy::{HostPolicy, Policy};

/// The result of checking a policy without errors.
pub fn checked(policy: &Policy, files: usize, style: &Style) -> String {
    let parts = [
        (policy.vms.len(), "VM"),
        (policy.links.len(), "link"),
        (policy.channels.len(), "channel"),
        (policy.vfs.len(), "virtual function"),
    ];
    let parts = parts.iter().filter(|(n, _)| *n > 0).map(|(n, what)| count(*n as u64, what));
    let parts: Vec<String> = parts.collect();
    let covered = match parts.is_empty() {
        false => parts.join(", "),
        true if policy.host != HostPolicy::default() || !policy.direct.is_empty() => "only [host]".to_owned(),
        true => "no setting".to_owned(),
    };
    format!(
        "{}{} read, nothing wrong: {covered}; `teiji plan` says whether this host can keep it\n",
        overridden(&policy.overridden, style),
        count(files as u64, "file")
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use teiji_model::policy::{Located, SourceLocation, VfPolicy};

    #[test]
    fn only_what_a_policy_has_is_counted() {
        let location = SourceLocation { file: "p.toml".into(), line: 1, column: 1 };
        let shown = |policy: &Policy| checked(policy, 1, &Style::PLAIN);
        assert!(shown(&Policy::default()).starts_with("1 file read, nothing wrong: no setting; "));
        let users = Some(Located { value: vec!["root".to_owned()], location: location.clone() });
        let host = HostPolicy { vm_users: users, ..HostPolicy::default() };
        let mut policy = Policy { host, ..Policy::default() };
        assert!(shown(&policy).starts_with("1 file read, nothing wrong: only [host]; "));
        policy.vfs.push(VfPolicy {
            link: Located { value: "eth1".into(), location: location.clone() },
            index: Located { value: 3, location },
            hard: None,
            weight: None,
        });
        assert!(shown(&policy).starts_with("1 file read, nothing wrong: 1 virtual function; "));
    }
}
