//! The limit on a control group's CPU time: `cpu.max`.

use super::{Access, Facts, cpu_controller, errors};
use crate::cgroup::Hierarchy;
use crate::root::Root;
use teiji_model::resource::{Quota, Resource, ResourceError, ResourceKind, Resources, Value};

const FILE: &str = "cpu.max";

pub(super) struct GroupQuota;

impl Access for GroupQuota {
    fn kind(&self) -> ResourceKind {
        ResourceKind::GroupQuota
    }

    fn observe(&self, facts: &Facts<'_>, found: &mut Resources) {
        for group in cpu_controller::groups(facts.vms) {
            let read = read(facts.root, facts.hierarchy, &group);
            found.record(Resource::GroupQuota(group), read);
        }
    }

    fn read(&self, root: &Root, resource: &Resource) -> Result<Value, ResourceError> {
        let Resource::GroupQuota(group) = resource else { return Err(errors::no_such_value()) };
        let hierarchy = Hierarchy::find(root);
        read(root, hierarchy.as_ref().map_err(|why| *why), group)
    }

    fn write(&self, root: &Root, resource: &Resource, value: &Value) -> Result<(), ResourceError> {
        let (Resource::GroupQuota(group), Value::Quota(quota)) = (resource, value) else {
            return Err(errors::no_such_value());
        };
        let text = match quota {
            None => format!("max {}", Quota::PERIOD_US),
            Some(Quota { quota_us, period_us }) => format!("{quota_us} {period_us}"),
        };
        cpu_controller::write(root, group, FILE, &text, quota.is_none())
    }
}

fn read(
    root: &Root,
    hierarchy: Result<&Hierarchy<'_>, &'static str>,
    group: &str,
) -> Result<Value, ResourceError> {
    let Some(text) = cpu_controller::read(root, hierarchy, group, FILE)? else {
        return Ok(Value::Quota(None));
    };
    parse(&text).map(Value::Quota).ok_or_else(|| errors::unexpected(&text))
}

/// `max 100000`, `50000 100000`: quota and period, µs.
fn parse(text: &str) -> Option<Option<Quota>> {
    let (quota, period) = text.split_once(' ')?;
    let period_us = period.parse().ok()?;
    match quota {
        "max" => Some(None),
        us => Some(Some(Quota { quota_us: us.parse().ok()?, period_us })),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_read_as_the_kernel_writes_them() {
        assert_eq!(parse("max 100000"), Some(None));
        let quota = Quota { quota_us: 150_000, period_us: 100_000 };
        assert_eq!(parse("150000 100000"), Some(Some(quota)));
        for wrong in ["", "max", "x 100000", "1000 x"] {
            assert_eq!(parse(wrong), None, "{wrong}");
        }
    }
}
