//! How long it takes to say where VMs should be: 1,000 VMs on 16 nodes, of which most are on other nodes than their memory and many nodes
//! are full. SPECIFICATION 3.10.

use criterion::{Criterion, criterion_group, criterion_main};
use std::collections::BTreeMap;
use std::hint::black_box;
use teiji_control::placement::place;
use teiji_model::placement::{Demand, NodeCapacity, VmDemand};

const GIB: u64 = 1 << 30;

/// Numbers that look random and are the same each time.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % limit
    }
}

fn host(nodes: u32, vms: usize) -> Demand {
    let mut numbers = Numbers(1);
    let mut demand = Demand::default();
    for from in 0..nodes {
        for to in 0..nodes {
            // Four nodes in a socket.
            let times = if from == to {
                1.0
            } else if from / 4 == to / 4 {
                1.2
            } else {
                2.1
            };
            demand.slowdown.insert((from, to), times);
        }
    }
    for n in 0..vms {
        let node = |numbers: &mut Numbers| numbers.below(nodes.into()) as u32;
        let gib = 1 + numbers.below(16);
        let (a, b, on, nic) =
            (node(&mut numbers), node(&mut numbers), node(&mut numbers), node(&mut numbers));
        let mut memory = BTreeMap::from([(a, gib * GIB / 2)]);
        *memory.entry(b).or_default() += gib * GIB / 2;
        let cpus = numbers.below(20) as f64 / 10.0;
        demand.vms.push(VmDemand {
            name: format!("vm{n}"),
            vcpus: 2,
            cpus,
            threads: BTreeMap::from([(on, 1.0)]),
            memory,
            memory_bound: 0.5,
            nic: Some(nic),
            worker_cpus: cpus / 10.0,
            ..VmDemand::default()
        });
    }
    for id in 0..nodes {
        let has: u64 = demand.vms.iter().filter_map(|vm| vm.memory.get(&id)).sum();
        // A twentieth is free.
        demand.nodes.push(NodeCapacity { id, cpus: 64, memory: has + has / 20, huge: BTreeMap::new() });
    }
    demand
}

fn bench(c: &mut Criterion) {
    let demand = host(16, 1000);
    let advice = place(&demand);
    println!(
        "{:.1} CPUs lost before, {:.1} after {} moves",
        advice.lost_before,
        advice.lost_after,
        advice.moves.len()
    );
    let mut group = c.benchmark_group("placement");
    group.sample_size(10);
    group.bench_function("1000 VMs on 16 nodes", |b| b.iter(|| place(black_box(&demand))));
    group.finish();
}

criterion_group!(benches, bench);
criterion_main!(benches);
