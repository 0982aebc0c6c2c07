//! `verify`: loads every BPF program of the product as the product does. Prints as JSON how many instructions of each
//! the kernel's verifier walked, or why the kernel refuses them.
//!
//! ```text
//! {"path_trace":{"programs":{"on_kvm_entry":312, …},"absent":["handle_rx", …]},
//!  "qdisc_edf":{"refused":"the kernel lacks BPF qdiscs: …"},"scx_vcpu":{"refused":"…"},"preempt_count":true}
//! ```
//! `absent` are targets that this kernel does not have; `preempt_count` says whether BPF programs can read the preemption count. The exit code is 0 whatever the kernel answers: the caller
//! knows what to expect of a kernel.

use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::Path;
use teiji_bpf::census::Probes;
use teiji_bpf::path_trace::{Setup, Tracer, has_preempt_count};
use teiji_bpf::qdisc_edf::{self, Edf};
use teiji_bpf::scx_vcpu::VcpuScheduler;
use teiji_bpf::{Error, Verified, hooks};
use teiji_model::flow::Watch;

/// Where the qdisc is pinned in the meantime.
const PINS: &str = "/tmp/bpf/verify";

fn main() {
    if let Err(error) = teiji_experiments::programs::mount_pins(Path::new(PINS)) {
        eprintln!("the qdisc cannot be pinned: {error:#}");
    }
    let all = json!({
        "path_trace": as_json(path_trace()),
        "census": as_json(census()),
        "qdisc_edf": as_json(qdisc_edf()),
        "scx_vcpu": as_json(scx_vcpu()),
        "preempt_count": match hooks::KernelTypes::load().and_then(|kernel| has_preempt_count(&kernel)) {
            Ok(has) => json!(has),
            Err(error) => json!(error.to_string()),
        },
    });
    println!("{all}");
}

/// The verifier's results for an object's programs, and the targets that this kernel does not have.
type Loaded = (Vec<Verified>, Vec<String>);

/// Attaches the probes, without a VM to trace.
fn path_trace() -> Result<Loaded, Error> {
    let setup = Setup { watch: &Watch::default(), vms: &[], guests: true, buffer_bytes: 1 << 16 };
    let tracer = Tracer::start(&setup)?;
    let absent = |h: &&hooks::Hook| h.found.is_none();
    let absent = tracer.hooks().iter().filter(absent).map(|h| h.target.clone()).collect();
    Ok((tracer.verified()?, absent))
}

/// Attaches the probes that count, without a thread to count.
fn census() -> Result<Loaded, Error> {
    let probes = Probes::start()?;
    Ok((probes.verified()?, probes.unseen()))
}

/// Registers the qdisc; no link has it.
fn qdisc_edf() -> Result<Loaded, Error> {
    let pins = Path::new(PINS);
    let (_, programs) = Edf::load(pins)?;
    qdisc_edf::unpin(pins)?;
    Ok((programs, Vec::new()))
}

/// Schedules the host for a moment.
fn scx_vcpu() -> Result<Loaded, Error> {
    let (_, programs) = VcpuScheduler::load()?;
    Ok((programs, Vec::new()))
}

fn as_json(loaded: Result<Loaded, Error>) -> Value {
    match loaded {
        Ok((programs, absent)) => {
            let programs: BTreeMap<String, u32> =
                programs.into_iter().map(|v| (v.program, v.instructions)).collect();
            json!({ "programs": programs, "absent": absent })
        }
        Err(error) => json!({ "refused": error.to_string() }),
    }
}
