//! Whether the verifier of a lab host's kernel accepts every BPF program: runs the program `verify` (`experiments/kernels`)
//! there.

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use teiji_lab::{Kernel, LabHost};

/// Instructions of one program after which the verifier gives up (BPF_COMPLEXITY_LIMIT_INSNS).
const VERIFIER_LIMIT: u64 = 1_000_000;

/// Checks that every program whose target the kernel has is accepted, and that the kernel is the one meant: at least version
/// `least`.
///
/// # Errors
/// If one is not accepted, takes more than a twentieth of what the verifier allows, or is absent; or if it is another kernel.
pub fn accepts_every_program(host: &LabHost, kernel: Kernel, least: [u32; 2]) -> Result<()> {
    let version = host.kernel();
    ensure!(at_least(version, least), "{version} is {}", kernel.name());
    ensure!(at_least(version, [6, 19]) == (kernel == Kernel::Newest), "{version} is {}", kernel.name());
    // The other modules whose functions are probed are loaded by then.
    let printed = host.run("modprobe vfio-pci && /mnt/bin/verify")?.ok()?;
    let all: Value = serde_json::from_str(&printed)?;
    eprintln!("instructions that the verifier of {version} processed: {printed}");
    // A distribution's kernel has its variables in its table of symbols.
    ensure!(all["preempt_count"] == true, "{printed}");
    let mut expected = vec![("path_trace", 40), ("census", 8)];
    // Since Linux 6.19 sched_ext has the functions that are used; the lab has no kernel between 6.12 and its newest one.
    let newer = [
        ("qdisc_edf", 5, "lacks BPF qdiscs", "Linux 6.16"),
        ("scx_vcpu", 15, "lacks sched_ext as of Linux 6.19", "CONFIG_SCHED_CLASS_EXT"),
    ];
    for (object, count, lacking, cure) in newer {
        if kernel == Kernel::Newest {
            expected.push((object, count));
        } else {
            let why = all[object]["refused"].as_str().with_context(|| format!("{object} is not refused"))?;
            ensure!(why.contains(lacking) && why.contains(cure), "{why}");
        }
    }
    for (object, count) in expected {
        let programs = all[object]["programs"].as_object().with_context(|| format!("{object}: {printed}"))?;
        ensure!(all[object]["absent"] == Value::Array(Vec::new()), "{object}: {printed}");
        ensure!(programs.len() == count, "{object}: {printed}");
        for (name, processed) in programs {
            // A twentieth of the limit: a kernel with a more thorough verifier still accepts the program, and what the verifier
            // processes takes most of the time in which a trace starts.
            let within = processed.as_u64().is_some_and(|n| (1..VERIFIER_LIMIT / 20).contains(&n));
            ensure!(within, "{object} {name}: {processed}");
        }
    }
    accepts_the_guests_programs(host)
}

/// The same for the programs of `teiji-guest`, which run in guests with such a kernel: each is loaded and attached.
fn accepts_the_guests_programs(host: &LabHost) -> Result<()> {
    let printed = host.run("/mnt/bin/teiji-guest check --json")?.ok()?;
    let report: Value = serde_json::from_str(&printed)?;
    let hooks = report["hooks"].as_array().with_context(|| printed.clone())?;
    ensure!(hooks.len() >= 20 && report["can_follow"] == true, "{printed}");
    let missing: Vec<&str> = hooks
        .iter()
        .filter(|hook| hook["present"] == false)
        .filter_map(|hook| hook["name"].as_str())
        .collect();
    ensure!(missing.is_empty(), "{missing:?}: {printed}");
    Ok(())
}

fn at_least(version: &str, least: [u32; 2]) -> bool {
    let numbers: Vec<u32> = version.split('.').take(2).map_while(|n| n.parse().ok()).collect();
    numbers.as_slice() >= least.as_slice()
}
