//! Samples of counters.

use super::*;
use crate::census::{Activity, Census};
use crate::usage::{
    CpuUsage, GroupUsage, HostThread, ObservedVms, RateLimit, Role as ThreadRole, RunState, Sample, TapUsage,
    ThreadUsage, VmUsage,
};
use std::collections::BTreeMap;

pub(super) fn observed() -> ObservedVms {
    ObservedVms { vms: meta().vms, selected: vec![7], uncounted: vec!["calls".into()] }
}

fn rate_limit() -> RateLimit {
    let (device, kind) = ("tap0".into(), "tbf".into());
    RateLimit { device, ifindex: 5, kind, handle: 0x8001_0000, overlimits: 70_000, drops: 5, queued: 3 }
}

/// The counters at the second `n`.
pub(super) fn sample(n: u64) -> Sample {
    let thread = |role, ran| ThreadUsage {
        role,
        started: 70,
        ran: n * ran,
        guest: n * ran / 2,
        waited: n * 1_234_567,
        starts: n * 100,
        state: RunState::Asleep,
        cpu: 1,
        group: "/machine.slice/machine-qemu-1-sip1.scope/libvirt/vcpu0".into(),
        census: (role == ThreadRole::Worker).then(|| {
            let tx = Activity { count: n * 40, ns: n * 2_000_000 };
            Box::new(Census { tx, ..Census::default() })
        }),
    };
    let group = GroupUsage {
        path: "/machine.slice/machine-qemu-1-sip1.scope".into(),
        throttled: n * 5,
        frozen: false,
        quota: Some(200),
    };
    let usage = VmUsage {
        at: n * 1_000_000_000 + 5,
        threads: [(8, thread(ThreadRole::Vcpu(0), 250_000_000)), (9, thread(ThreadRole::Worker, 3_000_000))]
            .into(),
        groups: vec![group],
        quotas_seen: true,
        polled: Some(n * 7),
        major_faults: Some(3),
        taps: [("tap0".to_owned(), TapUsage { taken: n * 1000, dropped: n })].into(),
        delaying: vec![("tap0".into(), "netem".into())],
    };
    let host = |tid| HostThread {
        pid: 7,
        started: 70,
        name: format!("CPU {tid}/KVM"),
        unit: Some("machine-qemu-1-sip1.scope".into()),
        ran: n * 250_000_000,
        cpu: 1,
    };
    Sample {
        at: n * 1_000_000_000,
        ends: n == 1,
        vms: [(7, usage)].into(),
        cpus: [(1, CpuUsage { total: n * 1_000_000_000, interrupts: n * 5, stolen: n })].into(),
        threads: if n == 1 { [(8, host(0)), (9, host(1))].into() } else { BTreeMap::new() },
        rate_limits: if n == 1 { [(7, vec![rate_limit()])].into() } else { BTreeMap::new() },
        migrations: if n == 1 { [(7, vec!["mig/src/main".into()])].into() } else { BTreeMap::new() },
    }
}

/// What older readers skip is there, and is lost alone.
#[test]
fn what_versions_8_and_9_have() {
    let mut w = Writer::new(Vec::new(), &meta()).unwrap();
    w.observed(&observed()).unwrap();
    w.sample(&sample(1)).unwrap();
    w.sample(&sample(2)).unwrap();
    let mut file = w.finish(&Counters::default()).unwrap();
    let samples = |file: &[u8]| -> Vec<Sample> {
        let mut reader = Reader::new(file).unwrap();
        let items = std::iter::from_fn(|| reader.next().unwrap());
        items.filter_map(|item| if let Item::Sample(sample) = item { Some(*sample) } else { None }).collect()
    };
    assert_eq!(samples(&file), [sample(1), sample(2)]);
    file[8..16].copy_from_slice(&preamble(8, 3));
    let older = |n| Sample { rate_limits: BTreeMap::new(), migrations: BTreeMap::new(), ..sample(n) };
    assert_eq!(samples(&file), [older(1), older(2)]);
}

#[test]
fn what_a_vm_has_too_much_of_is_refused() {
    let refused = |change: &dyn Fn(&mut Sample)| {
        let mut sample = sample(1);
        change(&mut sample);
        Writer::new(Vec::new(), &meta()).unwrap().sample(&sample).is_err()
    };
    let limits = |n| move |sample: &mut Sample| drop(sample.rate_limits.insert(7, vec![rate_limit(); n]));
    let threads =
        |n| move |sample: &mut Sample| drop(sample.migrations.insert(7, vec!["mig/src/main".into(); n]));
    assert!(!refused(&limits(16)) && refused(&limits(17)));
    assert!(!refused(&threads(8)) && refused(&threads(9)));
}

#[test]
fn samples_are_read_as_they_were_and_take_little() {
    let mut w = Writer::new(Vec::new(), &meta()).unwrap();
    w.observed(&observed()).unwrap();
    let mut lengths = Vec::new();
    let samples: Vec<Sample> = (1..=10).map(sample).collect();
    for sample in &samples {
        let before = w.written();
        w.sample(sample).unwrap();
        lengths.push(w.written() - before);
    }
    let mut file = w.finish(&Counters::default()).unwrap();
    let wanted: Vec<Item> = [Item::Observed(observed())]
        .into_iter()
        .chain(samples.iter().map(|sample| Item::Sample(Box::new(sample.clone()))))
        .collect();
    assert_eq!(all(&file).0, wanted);
    let plain = postcard::to_stdvec(&samples[9]).unwrap().len();
    assert!(lengths[9] * 2 < plain, "{lengths:?} of {plain} bytes");
    // Of many VMs a sample is longer than the part of the one before that LZ4 can refer to.
    let many = |n| {
        let one = sample(n).vms.remove(&7).unwrap();
        Sample { vms: (0..200).map(|pid| (pid, one.clone())).collect(), ..sample(n) }
    };
    let mut w = Writer::new(Vec::new(), &meta()).unwrap();
    w.sample(&many(2)).unwrap();
    let before = w.written();
    w.sample(&many(3)).unwrap();
    let plain = postcard::to_stdvec(&many(3)).unwrap().len();
    assert!((w.written() - before) * 2 < plain, "{} of {plain} bytes", w.written() - before);
    // A former reader skips them.
    assert_eq!(file[10..12], 3u16.to_le_bytes());
    file[8..16].copy_from_slice(&preamble(7, 3));
    assert_eq!(all(&file).0, []);
}

#[test]
fn a_sample_that_lies_about_its_length_is_refused() {
    let plain = postcard::to_stdvec(&sample(1)).unwrap();
    let of = |len: u32, block: &[u8]| {
        let payload = [&len.to_le_bytes()[..], block].concat();
        let header = postcard::to_stdvec(&meta()).unwrap();
        fuzz(&forged(&[(HEADER, header), (SAMPLE, payload)]))
    };
    let block = lz4_flex::block::compress(&plain);
    let len = plain.len() as u32;
    assert!(matches!(of(len, &block), Err(Error::Truncated { .. })), "only the End frame is missing");
    assert!(matches!(of(MAX_SAMPLE + 1, &block), Err(Error::TooLarge { .. })));
    assert!(matches!(of(len - 1, &block), Err(Error::Malformed { .. })));
    assert!(matches!(of(len + 1, &block), Err(Error::Malformed { .. })));
    assert!(matches!(of(len, &block[..block.len() - 1]), Err(Error::Malformed { .. })));
    assert!(matches!(of(len, &[]), Err(Error::Malformed { .. })));
    // A dictionary that is not there.
    let with = lz4_flex::block::compress_with_dict(&plain, &plain);
    assert!(matches!(of(len, &with), Err(Error::Malformed { .. })));
    // As many zeros as fit.
    let zeros = lz4_flex::block::compress(&vec![0; MAX_SAMPLE as usize]);
    assert!(matches!(of(MAX_SAMPLE, &zeros), Err(Error::Malformed { .. })));
    let long = Sample {
        threads: [(1, HostThread { pid: 1, started: 1, name: "x".repeat(257), unit: None, ran: 1, cpu: 1 })]
            .into(),
        ..Sample::default()
    };
    let late = Sample { at: u64::MAX, ..Sample::default() };
    for sample in [long, late] {
        let mut w = Writer::new(Vec::new(), &meta()).unwrap();
        assert!(matches!(w.sample(&sample), Err(Error::Malformed { .. })));
    }
}

#[test]
fn what_could_not_be_counted_has_a_limit() {
    // Each VM is told of all.
    for uncounted in [vec![String::new(); 65], vec!["x".repeat(100_000)]] {
        let mut w = Writer::new(Vec::new(), &meta()).unwrap();
        let observed = ObservedVms { uncounted, ..observed() };
        assert!(matches!(w.observed(&observed), Err(Error::Malformed { .. })));
    }
}
