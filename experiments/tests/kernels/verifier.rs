//! Every BPF program on the kernel of a lab host. Also a part of `lab.rs`, which runs on the newest kernel.

use serde_json::Value;
use teiji_lab::{Kernel, LabHost};

/// Instructions of one program after which the verifier gives up (BPF_COMPLEXITY_LIMIT_INSNS).
const VERIFIER_LIMIT: u64 = 1_000_000;

fn at_least(version: &str, least: [u32; 2]) -> bool {
    let numbers: Vec<u32> = version.split('.').take(2).map(|n| n.parse().unwrap()).collect();
    numbers.as_slice() >= least.as_slice()
}

/// Every program whose target the kernel has is accepted. `least` is the minimum version of the kernel.
pub fn accepts_every_program(host: &LabHost, kernel: Kernel, least: [u32; 2]) {
    let version = host.kernel();
    assert!(at_least(version, least), "{version} is {}", kernel.name());
    // BPF qdiscs exist since Linux 6.16.
    let has_bpf_qdiscs = kernel == Kernel::Newest;
    assert_eq!(at_least(version, [6, 16]), has_bpf_qdiscs, "{version} is {}", kernel.name());
    let printed = host.run("/mnt/bin/verify").unwrap().ok().unwrap();
    let all: Value = serde_json::from_str(&printed).unwrap();
    eprintln!("instructions that the verifier of {version} walked: {printed}");
    // A distribution's kernel has its variables in its table of symbols.
    assert_eq!(all["preempt_count"], true, "{printed}");
    let mut expected = vec![("path_trace", 39)];
    if has_bpf_qdiscs {
        expected.push(("qdisc_edf", 5));
    } else {
        let why = all["qdisc_edf"]["refused"].as_str().unwrap();
        assert!(why.contains("lacks BPF qdiscs") && why.contains("Linux 6.16"), "{why}");
    }
    for (object, count) in expected {
        let programs = all[object]["programs"].as_object().unwrap_or_else(|| panic!("{object}: {printed}"));
        assert_eq!(all[object]["absent"], Value::Array(Vec::new()), "{object}");
        assert_eq!(programs.len(), count, "{object}: {printed}");
        for (name, walked) in programs {
            // A tenth of the limit, so that a kernel with a more thorough verifier still accepts the program.
            assert!(
                (1..VERIFIER_LIMIT / 10).contains(&walked.as_u64().unwrap()),
                "{object} {name}: {walked}"
            );
        }
    }
}
