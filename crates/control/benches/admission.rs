//! The time of an admission: 1,000 channels that fit; 1,000 that do not fit by one byte each, so that a refusal finds
//! many remedies and has to compare them; and 1,000 that are far from fitting.

use criterion::{Criterion, criterion_group, criterion_main};
use std::hint::black_box;
use teiji_control::admission::{ChannelSpec, Denied, LinkSpec, admit};
use teiji_model::policy::Auto;

const LINK: LinkSpec = LinkSpec {
    rate: 10_000_000_000,
    max_frame: 1514,
    overhead: 24,
    ring_bytes: 30_000,
    timer_error: 50_000,
    slack: Auto::Auto,
};

/// Deadlines from 4 to 24 ms, all different, unordered.
fn channels(burst: u64) -> Vec<ChannelSpec> {
    (0..1000_u64)
        .map(|i| ChannelSpec {
            name: format!("c{i}"),
            deadline: 4_000_000 + i * 7919 % 1000 * 20_011,
            rate: 9_000_000,
            burst,
            max_packet: 1514,
        })
        .collect()
}

fn admission(c: &mut Criterion) {
    let (fit, far) = (channels(3_076), channels(20_000));
    // One byte more for each than is admitted.
    let near = (3_076..20_000).map(channels).find(|c| admit(&LINK, c).is_err()).unwrap_or_default();
    for refused in [&near, &far] {
        assert!(matches!(admit(&LINK, refused), Err(Denied::Refused(_))));
    }
    let mut group = c.benchmark_group("admit 1,000 channels");
    group.bench_function("admitted", |b| b.iter(|| admit(&LINK, black_box(&fit))));
    group.bench_function("refused by a byte each", |b| b.iter(|| admit(&LINK, black_box(&near))));
    group.bench_function("refused by far", |b| b.iter(|| admit(&LINK, black_box(&far))));
    group.finish();
}

criterion_group!(benches, admission);
criterion_main!(benches);
