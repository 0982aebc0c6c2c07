//! What `teiji diagnose --replay` makes of recordings, also of those that were not made by `--record`.
#![allow(clippy::unwrap_used, missing_docs)]

use std::collections::BTreeMap;
use std::path::PathBuf;
use teiji_agent::service::Service;
use teiji_model::host::{Vcpu, Vm};
use teiji_model::recording::Writer;
use teiji_model::report::{Counters, Meta};
use teiji_model::usage::{CpuUsage, ObservedVms, Role, RunState, Sample, ThreadUsage, VmUsage};

const S: u64 = 1_000_000_000;

fn vm(name: &str, pid: u32) -> Vm {
    let vcpu = Vcpu { index: 0, kvm_id: None, tid: pid + 1, cpus: "0".into(), last_cpu: 0 };
    Vm { name: name.into(), pid, vcpus: vec![vcpu], ..Vm::default() }
}

/// Two VMs, of which the first was asked for.
fn observed() -> ObservedVms {
    ObservedVms { vms: vec![vm("a", 10), vm("b", 20)], selected: vec![10], uncounted: Vec::new() }
}

/// At the second `n`; the vCPU of each VM has run half of the time.
fn sample(n: u64, ends: bool) -> Sample {
    let usage = |pid: u32| {
        let thread = ThreadUsage {
            role: Role::Vcpu(0),
            started: 5,
            ran: n * S / 2,
            guest: n * S / 2,
            waited: 0,
            starts: n,
            state: RunState::Asleep,
            cpu: 0,
            group: String::new(),
            census: None,
        };
        (pid, VmUsage { at: n * S, threads: [(pid + 1, thread)].into(), ..VmUsage::default() })
    };
    Sample { at: n * S, ends, vms: [10, 20].map(usage).into(), ..Sample::default() }
}

/// A recording, removed with the value.
struct Recording(tempfile::TempDir);

impl Recording {
    fn of(write: impl FnOnce(&mut Writer<Vec<u8>>)) -> Self {
        let mut writer = Writer::new(Vec::new(), &Meta::default()).unwrap();
        write(&mut writer);
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("r"), writer.finish(&Counters::default()).unwrap()).unwrap();
        Recording(dir)
    }

    fn file(&self) -> PathBuf {
        self.0.path().join("r")
    }

    /// Of each observation its length and VMs, s; and the error at the end.
    fn replay(&self, names: &[&str]) -> (Vec<(u64, Vec<String>)>, Option<String>) {
        let names: Vec<String> = names.iter().map(|&name| name.to_owned()).collect();
        let mut told = Vec::new();
        let result = Service::replay_diagnosis(&self.file(), &names, false, &mut |diagnosis| {
            let vms = diagnosis.vms.iter().map(|vm| vm.name.clone()).collect();
            told.push((diagnosis.length / S, vms));
        });
        (told, result.err().map(|error| error.to_string()))
    }
}

#[test]
fn observations_follow_each_other_and_an_unfinished_one_is_left_out() {
    let recording = Recording::of(|w| {
        w.observed(&observed()).unwrap();
        for (n, ends) in [(1, true), (2, false), (4, true), (5, false), (9, true), (10, false)] {
            w.sample(&sample(n, ends)).unwrap();
        }
    });
    let a = || vec!["a".to_owned()];
    assert_eq!(recording.replay(&[]), (vec![(3, a()), (5, a())], None));
    let (both, b) = (vec!["b".to_owned(), "a".to_owned()], vec!["b".to_owned()]);
    assert_eq!(recording.replay(&["b", "pid:10"]).0, [(3, both.clone()), (5, both)]);
    assert_eq!(recording.replay(&["pid:20"]).0, [(3, b.clone()), (5, b)]);
    let (_, error) = recording.replay(&["a", "\u{1b}x"]);
    assert_eq!(error.unwrap(), "the recording has no VM `\\u{1b}x`");
}

#[test]
fn other_vms_begin_an_observation_of_their_own() {
    let recording = Recording::of(|w| {
        w.sample(&sample(1, true)).unwrap();
        w.observed(&observed()).unwrap();
        w.sample(&sample(2, true)).unwrap();
        w.sample(&sample(3, true)).unwrap();
        w.observed(&ObservedVms { vms: vec![vm("c", 10)], selected: vec![10], uncounted: Vec::new() })
            .unwrap();
        w.sample(&sample(7, true)).unwrap();
        w.sample(&sample(9, true)).unwrap();
    });
    let (told, error) = recording.replay(&[]);
    assert_eq!((told, error), (vec![(1, vec!["a".to_owned()]), (2, vec!["c".to_owned()])], None));
}

#[test]
fn a_recording_of_a_trace_is_refused() {
    let error = Recording::of(|_| ()).replay(&[]).1.unwrap();
    assert!(error.contains("no counters") && error.contains("teiji replay"), "{error}");
}

/// It takes some kB in the file, and would take much more memory.
#[test]
fn an_observation_that_claims_too_much_is_refused() {
    let cpus: BTreeMap<u32, CpuUsage> = (0..65_536).map(|cpu| (cpu, CpuUsage::default())).collect();
    let recording = Recording::of(|w| {
        w.observed(&observed()).unwrap();
        for n in 1..40 {
            w.sample(&Sample { cpus: cpus.clone(), ..sample(n, n == 1) }).unwrap();
        }
    });
    let error = recording.replay(&[]).1.unwrap();
    assert!(error.contains("cannot replay"), "{error}");
}
