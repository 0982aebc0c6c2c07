//! A control group's share of CPU time relative to its siblings: `cpu.weight`.

use super::{Access, Facts, cpu_controller, errors};
use crate::cgroup::Hierarchy;
use crate::root::Root;
use teiji_model::resource::{Resource, ResourceError, ResourceKind, Resources, Value};

const FILE: &str = "cpu.weight";
/// The kernel's default.
const DEFAULT: u32 = 100;

pub(super) struct GroupWeight;

impl Access for GroupWeight {
    fn kind(&self) -> ResourceKind {
        ResourceKind::GroupWeight
    }

    fn observe(&self, facts: &Facts<'_>, found: &mut Resources) {
        for group in cpu_controller::groups(facts.vms) {
            let read = read(facts.root, facts.hierarchy, &group);
            found.record(Resource::GroupWeight(group), read);
        }
    }

    fn read(&self, root: &Root, resource: &Resource) -> Result<Value, ResourceError> {
        let Resource::GroupWeight(group) = resource else { return Err(errors::no_such_value()) };
        let hierarchy = Hierarchy::find(root);
        read(root, hierarchy.as_ref().map_err(|why| *why), group)
    }

    fn write(&self, root: &Root, resource: &Resource, value: &Value) -> Result<(), ResourceError> {
        let (Resource::GroupWeight(group), Value::Weight(weight)) = (resource, value) else {
            return Err(errors::no_such_value());
        };
        cpu_controller::write(root, group, FILE, &weight.to_string(), *weight == DEFAULT)
    }
}

/// The weight, 1 to 10,000.
fn read(
    root: &Root,
    hierarchy: Result<&Hierarchy<'_>, &'static str>,
    group: &str,
) -> Result<Value, ResourceError> {
    match cpu_controller::read(root, hierarchy, group, FILE)? {
        None => Ok(Value::Weight(DEFAULT)),
        Some(text) => text.parse().map(Value::Weight).map_err(|_| errors::unexpected(&text)),
    }
}
