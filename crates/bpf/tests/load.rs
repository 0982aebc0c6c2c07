//! Loads and attaches the probes on the kernel that the test runs on, as far as it has the hooks.
#![allow(clippy::unwrap_used)]

use std::path::{Path, PathBuf};
use teiji_bpf::path_trace::{self, Setup, Tracer};
use teiji_bpf::qdisc_edf::{Edf, HEARTBEAT_TIMEOUT, PinnedQdisc, unpin};
use teiji_model::flow::Watch;

/// Needs root: the tests of this project run as root, here or in the lab.
#[test]
fn probes_load_on_this_kernel() {
    let hooks = path_trace::hooks().expect("hooks");
    for h in &hooks {
        println!("{:8} {:32} {:?}", h.kind, h.target, h.found);
    }
    let watch = Watch::default();
    let mut tracer = Tracer::start(&Setup { watch: &watch, vms: &[], guests: true, buffer_bytes: 1 << 20 })
        .unwrap_or_else(|e| panic!("{e}"));
    tracer.drain(&mut |_| {}).expect("drain");
    assert_eq!(tracer.counts().expect("counts").lost.iter().sum::<u64>(), 0);
    let loaded = tracer.hooks().iter().filter(|h| h.found.is_some()).count();
    let verified = tracer.verified().expect("verified");
    assert!(loaded > 0 && verified.len() == loaded, "{verified:?}");
    assert!(verified.iter().all(|v| v.instructions > 0), "{verified:?}");
    tracer.stop();
}

#[test]
fn probes_that_count_load_or_say_what_is_missing() {
    match teiji_bpf::census::Probes::start() {
        Ok(mut probes) => {
            assert!(!probes.verified().unwrap().is_empty());
            probes.follow(&[], 0).unwrap();
            assert_eq!(probes.read(1, || 0), None);
        }
        Err(e) => assert!(e.to_string().contains("kvm"), "{e}"),
    }
}

/// With settings that exclude every packet the verifier would skip nearly all of the code, and take what it refuses in a
/// trace.
#[test]
fn the_trial_has_the_kernel_look_at_what_a_trace_loads() {
    let tried = path_trace::try_load().unwrap_or_else(|e| panic!("{e}"));
    let watch = Watch::default();
    let tracer =
        Tracer::start(&Setup { watch: &watch, vms: &[], guests: true, buffer_bytes: 1 << 16 }).unwrap();
    for traced in tracer.verified().unwrap() {
        let trial = tried.iter().find(|t| t.program == traced.program);
        let verified = trial.map_or(0, |t| t.instructions);
        assert!(verified >= traced.instructions, "{traced:?}, tried {trial:?}");
    }
}

/// Either the kernel takes the deadline qdisc, or the error says what is missing and what would do.
#[test]
fn the_deadline_qdisc_loads_or_says_what_is_missing() {
    let has_bpf_qdiscs = teiji_bpf::hooks::KernelTypes::load().unwrap().has_struct_ops("Qdisc_ops");
    let dir = tempfile::tempdir().unwrap();
    let mounted = has_bpf_qdiscs.then(|| Mounted::new(dir.path()));
    let pins = dir.path().join("pins");
    match Edf::load(&pins) {
        Ok((edf, verified)) => {
            assert!(has_bpf_qdiscs);
            eprintln!("{verified:?}");
            assert_eq!(verified.len(), 5);
            assert_eq!((edf.link_count(), edf.links().unwrap()), (0, Vec::new()));
            assert!(edf.heartbeat_age().unwrap() < HEARTBEAT_TIMEOUT);
            // Whoever comes second finds what is there.
            assert!(Edf::load(&pins).err().unwrap().to_string().contains("already has a pinned qdisc"));
            assert!(matches!(PinnedQdisc::open(&pins), Ok(PinnedQdisc::Usable(_))));
            unpin(&pins).unwrap();
            assert!(matches!(PinnedQdisc::open(&pins), Ok(PinnedQdisc::Absent)));
        }
        Err(error) => {
            assert!(!has_bpf_qdiscs, "{error}");
            let message = error.to_string();
            assert!(message.contains("lacks BPF qdiscs") && message.contains("6.16"), "{message}");
        }
    }
    drop(mounted);
}

/// A BPF file system that is there for as long as this.
struct Mounted(PathBuf);

impl Mounted {
    fn new(path: &Path) -> Mounted {
        let nothing = Option::<&str>::None;
        nix::mount::mount(Some("bpf"), path, Some("bpf"), nix::mount::MsFlags::empty(), nothing).unwrap();
        Mounted(path.to_owned())
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = nix::mount::umount(&self.0);
    }
}
