//! The formats of `--json`, except that of reports, which is [`Report`](teiji_model::report::Report).
//!
//! Each has a version number that is incremented when a field changes its meaning or is removed (docs/decisions/0010).

use crate::text::vms::doubt;
use serde::Serialize;
use teiji_model::host::{self, GivenNic, Identity, Requirement};
use teiji_model::{diagnosis, numa, numa_bench, placement, plan, status};

/// `teiji plan --json`.
#[derive(Debug, Serialize)]
pub struct Plan<'a> {
    schema: u32,
    #[serde(flatten)]
    plan: &'a plan::Plan,
}

impl<'a> Plan<'a> {
    /// A plan.
    pub fn new(plan: &'a plan::Plan) -> Self {
        Plan { schema: 1, plan }
    }
}

/// `teiji status --json`.
#[derive(Debug, Serialize)]
pub struct Status<'a> {
    schema: u32,
    #[serde(flatten)]
    status: &'a status::Status,
    /// Links with channels.
    #[serde(rename = "deadlines")]
    links: &'a status::LinksStatus,
    /// What the agent does; `None` if there is none, or it does not answer.
    agent: Option<&'a status::AgentStatus>,
    /// Why an agent that is there does not answer.
    silent: Option<&'a str>,
    /// The files of the policy in force, if no agent keeps it.
    unkept: Option<&'a [String]>,
}

impl<'a> Status<'a> {
    /// What teiji holds, links with channels, and what the agent does.
    pub fn new(
        status: &'a status::Status,
        links: &'a status::LinksStatus,
        agent: Option<&'a status::AgentStatus>,
        silent: Option<&'a str>,
        unkept: Option<&'a [String]>,
    ) -> Self {
        Status { schema: 1, status, links, agent, silent, unkept }
    }
}

/// `teiji traces --json`.
#[derive(Debug, Serialize)]
pub struct Traces<'a> {
    schema: u32,
    traces: &'a [status::TraceStatus],
}

impl<'a> Traces<'a> {
    /// The traces of an agent.
    pub fn new(traces: &'a [status::TraceStatus]) -> Self {
        Traces { schema: 1, traces }
    }
}

/// `teiji doctor --json`.
#[derive(Debug, Serialize)]
pub struct Doctor<'a> {
    schema: u32,
    works: bool,
    #[serde(rename = "capabilities")]
    requirements: &'a [Requirement],
}

impl<'a> Doctor<'a> {
    /// What a host can do, and whether VMs can be traced.
    pub fn new(requirements: &'a [Requirement], works: bool) -> Self {
        Doctor { schema: 1, works, requirements }
    }
}

/// `teiji diagnose --json`.
#[derive(Debug, Serialize)]
pub struct Diagnosis<'a> {
    schema: u32,
    #[serde(flatten)]
    diagnosis: &'a diagnosis::Diagnosis,
}

impl<'a> Diagnosis<'a> {
    /// What is wrong with VMs.
    pub fn new(diagnosis: &'a diagnosis::Diagnosis) -> Self {
        Diagnosis { schema: 1, diagnosis }
    }
}

/// `teiji numa show --json`.
#[derive(Debug, Serialize)]
pub struct Numa<'a> {
    schema: u32,
    #[serde(flatten)]
    host: &'a numa::NumaHost,
}

impl<'a> Numa<'a> {
    /// Where VMs are on a host.
    pub fn new(host: &'a numa::NumaHost) -> Self {
        Numa { schema: 1, host }
    }
}

/// `teiji numa advise --json`.
#[derive(Debug, Serialize)]
pub struct NumaAdvice<'a> {
    schema: u32,
    #[serde(flatten)]
    advice: &'a placement::Advice,
}

impl<'a> NumaAdvice<'a> {
    /// Where VMs should be.
    pub fn new(advice: &'a placement::Advice) -> Self {
        NumaAdvice { schema: 1, advice }
    }
}

/// `teiji numa bench --json`.
#[derive(Debug, Serialize)]
pub struct NumaBench<'a> {
    schema: u32,
    #[serde(flatten)]
    measured: &'a numa_bench::NumaBench,
}

impl<'a> NumaBench<'a> {
    /// What was measured.
    pub fn new(measured: &'a numa_bench::NumaBench) -> Self {
        NumaBench { schema: 1, measured }
    }
}

/// `teiji vms --json`.
#[derive(Debug, Serialize)]
pub struct Vms<'a> {
    schema: u32,
    vms: Vec<Vm<'a>>,
}

/// A VM of [`Vms`].
#[derive(Debug, Serialize)]
struct Vm<'a> {
    #[serde(flatten)]
    vm: &'a host::Vm,
    /// More about the NICs that it was given.
    given: &'a [GivenNic],
    identity: &'a Identity,
    /// Why its name cannot be relied on; `None` if it can.
    doubt: Option<String>,
}

impl<'a> Vms<'a> {
    /// VMs, and the origin of their names.
    pub fn new(vms: &'a [(host::Vm, Identity)]) -> Self {
        let vm = |(vm, identity): &'a (host::Vm, Identity)| Vm {
            vm,
            given: &vm.given,
            identity,
            doubt: doubt(vm, identity),
        };
        let vms = vms.iter().map(vm);
        Vms { schema: 1, vms: vms.collect() }
    }
}
