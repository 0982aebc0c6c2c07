//! The parts of a plan that can be carried out without each other: those of each VM, each link, and the rest of the host.
//! A daemon that cannot carry out one of them still carries out the others.
//!
//! A part that would overwrite a setting that somebody else has changed since teiji set it is *foreign*: an operator who
//! applies a policy is shown that and decides; a daemon leaves the part as it is and reports it.

use super::names::shown;
use std::collections::BTreeMap;
use teiji_model::observed::{Observed, ObservedVm};
use teiji_model::plan::{Held, Plan, Step, own_group};
use teiji_model::resource::{Class, Owner, Resource};
use teiji_model::text::printable;

/// What a part of a plan is about.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Of {
    /// The host as a whole: CPUs, KVM, interrupts of no link.
    Host,
    /// A device, by its interface index.
    Link(u32),
    /// A VM, by its process id.
    Vm(u32),
}

/// Steps that belong together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    /// What it is about.
    pub of: Of,
    /// The same for people; printable.
    pub name: String,
    /// The steps, in the order of the plan; never empty.
    pub steps: Vec<Step>,
    /// The settings that somebody else has changed since teiji set them; printable.
    pub foreign: Vec<String>,
}

/// The parts of a plan. All steps of the plan are in exactly one of them.
pub fn parts(plan: &Plan, observed: &Observed, held: &Held) -> Vec<Part> {
    let mut parts: BTreeMap<Of, Part> = BTreeMap::new();
    for step in &plan.steps {
        let of = subject(&step.setting, observed);
        let part = parts.entry(of.clone()).or_insert_with(|| Part {
            name: name(&of, observed),
            of,
            steps: Vec::new(),
            foreign: Vec::new(),
        });
        if is_foreign(step, held) {
            part.foreign.push(printable(&format!("{} ({})", step.setting, step.whose)));
        }
        part.steps.push(step.clone());
    }
    parts.into_values().collect()
}

/// Whether somebody else has changed the setting since teiji set it. Other values of a setting that a controller writes,
/// or of an operation that is in progress, are teiji's own.
fn is_foreign(step: &Step, held: &Held) -> bool {
    let atomic = step.setting.kind().class() == Class::Atomic;
    atomic && held.settings.get(&step.setting).is_some_and(|hold| hold.value != step.present)
}

fn subject(resource: &Resource, observed: &Observed) -> Of {
    let vm =
        |is: &dyn Fn(&ObservedVm) -> bool| observed.vms.iter().find(|vm| is(vm)).map(|vm| Of::Vm(vm.vm.pid));
    let found = match resource.owner() {
        Owner::Host | Owner::Cpu(_) => None,
        Owner::Interrupt(irq) => {
            observed.links.iter().find(|link| link.irqs.contains(&irq)).map(|link| Of::Link(link.index))
        }
        Owner::Task(task) => {
            vm(&|vm| vm.process == task || vm.vcpus.contains(&task) || vm.workers.contains(&task))
        }
        Owner::Group(group) => vm(&|vm| {
            own_group(vm.vm.pid) == group || (!vm.group_shared && vm.group.as_deref() == Some(group))
        }),
        Owner::Device(device) => {
            let own = vm(&|vm| vm.vm.nics.iter().any(|nic| nic.ifindex != 0 && nic.ifindex == device.index));
            own.or(Some(Of::Link(device.index)))
        }
    };
    found.unwrap_or(Of::Host)
}

fn name(of: &Of, observed: &Observed) -> String {
    match of {
        Of::Host => "the host".to_owned(),
        Of::Link(index) => observed
            .links
            .iter()
            .find(|link| link.index == *index)
            .map_or_else(|| format!("interface {index}"), |link| shown(&link.name)),
        Of::Vm(pid) => observed
            .vms
            .iter()
            .find(|vm| vm.vm.pid == *pid)
            .map_or_else(|| format!("pid {pid}"), |vm| shown(&vm.vm.name)),
    }
}
