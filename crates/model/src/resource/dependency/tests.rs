use super::*;
use crate::qdisc::Device;
use crate::resource::Quota;
use proptest::prelude::*;

/// A change that owns its resource and values.
type Owned = (Resource, Value, Value);

fn changes(all: &[Owned]) -> Vec<Change<'_>> {
    all.iter().map(|(resource, from, to)| Change { resource, from, to }).collect()
}

fn back(all: &[Owned]) -> Vec<Owned> {
    all.iter().rev().map(|(r, from, to)| (r.clone(), to.clone(), from.clone())).collect()
}

/// The reason for each pair of changes that is in the wrong order.
fn wrong(all: &[Owned], order: &[usize]) -> Vec<&'static str> {
    let all = changes(all);
    let later = |i: usize| order[i + 1..].iter();
    let pairs = (0..order.len()).flat_map(|i| later(i).map(move |j| (i, *j)));
    pairs.filter_map(|(i, j)| violation(&all[order[i]], &all[j])).collect()
}

fn thread(id: u32) -> Task {
    Task { id, started: 1 }
}

fn fifo(id: u32, from: u8, to: u8) -> Owned {
    let of = |priority| match priority {
        0 => Value::Scheduling(Scheduling::Other { nice: 0 }),
        priority => Value::Scheduling(Scheduling::Fifo { priority }),
    };
    (Resource::ThreadScheduling(thread(id)), of(from), of(to))
}

/// A worker above a vCPU that is always busy has to stay above it at every instant.
#[test]
fn a_worker_is_above_its_vcpu_whatever_becomes_of_their_priorities() {
    for (vcpu, worker, vcpu_first) in [
        (fifo(1, 50, 10), fifo(2, 51, 11), true),
        (fifo(1, 10, 50), fifo(2, 11, 51), false),
        (fifo(1, 0, 10), fifo(2, 0, 11), false),
        (fifo(1, 10, 0), fifo(2, 11, 0), true),
    ] {
        for all in [[vcpu.clone(), worker.clone()], [worker.clone(), vcpu.clone()]] {
            let first = order(&changes(&all), |_| ())[0];
            assert_eq!(all[first] == vcpu, vcpu_first, "{all:?}");
        }
    }
}

#[test]
fn affinity_comes_after_groups_both_ways() {
    let group = |from: &str, to: &str| {
        (Resource::Group(thread(1)), Value::Group(from.into()), Value::Group(to.into()))
    };
    let cpus = (Resource::ThreadCpus(thread(2)), Value::Bytes(0), Value::Bytes(1));
    for moved in [group("/a", "/teiji/vm-1"), group("/teiji/vm-1", "/a")] {
        assert_eq!(order(&changes(&[cpus.clone(), moved]), |_| ()), [1, 0]);
    }
}

#[test]
fn what_depends_on_nothing_stays_as_preferred() {
    let all: Vec<Owned> =
        (0..9).map(|n| (Resource::IrqCpus(n), Value::Weight(0), Value::Weight(1))).collect();
    assert_eq!(order(&changes(&all), |_| ()), [0, 1, 2, 3, 4, 5, 6, 7, 8]);
    assert_eq!(order(&changes(&all), |i| i % 3), [0, 3, 6, 1, 4, 7, 2, 5, 8]);
    assert_eq!(order(&[], |_| ()), [0usize; 0]);
}

#[test]
fn a_circle_is_broken_and_loses_nothing() {
    let moved = |id, from: &str, to: &str| {
        (Resource::Group(thread(id)), Value::Group(from.into()), Value::Group(to.into()))
    };
    let weight = |group: &str| (Resource::GroupWeight(group.into()), Value::Weight(1), Value::Weight(2));
    let all = [moved(1, "/g", "/h"), moved(2, "/h", "/g"), weight("/g"), weight("/h")];
    let mut order = order(&changes(&all), |_| ());
    order.sort_unstable();
    assert_eq!(order, [0, 1, 2, 3]);
}

fn any_scheduling() -> impl Strategy<Value = Value> {
    let class = prop_oneof![
        Just(Scheduling::Other { nice: 0 }),
        Just(Scheduling::Idle),
        (1..4u8).prop_map(|priority| Scheduling::Fifo { priority }),
        (1..4u8).prop_map(|priority| Scheduling::RoundRobin { priority }),
        Just(Scheduling::Deadline { runtime: 1, deadline: 2, period: 2 }),
    ];
    class.prop_map(Value::Scheduling)
}

/// Changes of a few threads, devices and groups, so that many depend on one another; each resource occurs once. Every
/// process has its own group, as in every plan, so there is no circle.
fn any_changes() -> impl Strategy<Value = Vec<Owned>> {
    let cpus = |n: u32| Value::Cpus([n].into_iter().collect());
    let device = |n: u32| Device { name: format!("eth{n}"), index: n };
    let own = |n: u32| format!("/teiji/vm-{n}");
    let two = |from: Value, to: Value, turned: bool| if turned { (to, from) } else { (from, to) };
    let one = (0..8u32, 0..4u32, any::<bool>(), any_scheduling(), any_scheduling(), 1..5u32, 1..5u32)
        .prop_map(move |(kind, n, turned, class, other, a, b)| {
            let (resource, (from, to)) = match kind {
                0 => (Resource::ThreadCpus(thread(n)), (cpus(a), cpus(b))),
                1 | 2 => (Resource::ThreadScheduling(thread(n)), (class, other)),
                3 => (Resource::SegmentSize(device(n)), (Value::Bytes(a), Value::Bytes(b))),
                4 => (Resource::RootQdisc(device(n)), (Value::Weight(a), Value::Weight(b))),
                5 => (
                    Resource::Group(thread(n)),
                    two(Value::Group("/user".into()), Value::Group(own(n)), turned),
                ),
                6 => (Resource::GroupWeight(own(n)), (Value::Weight(a), Value::Weight(b))),
                _ => {
                    let quota = |n: u32| Value::Quota(Some(Quota { quota_us: n.into(), period_us: 1 }));
                    (Resource::GroupQuota(own(n)), (quota(a), quota(b)))
                }
            };
            (resource, from, to)
        });
    proptest::collection::vec(one, 0..40).prop_map(|all| {
        let mut seen = std::collections::BTreeSet::new();
        all.into_iter().filter(|(resource, ..)| seen.insert(resource.clone())).collect()
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    /// For any dependencies: forward, after a failure at any step, and all the way back.
    #[test]
    fn every_order_obeys_every_dependency(all in any_changes(), done in any::<prop::sample::Index>()) {
        let order = super::order(&changes(&all), |i| i % 3);
        prop_assert_eq!(order.len(), all.len());
        prop_assert_eq!(wrong(&all, &order), Vec::<&str>::new());
        let taken: Vec<Owned> = order.iter().map(|i| all[*i].clone()).collect();
        for part in [&taken[..done.index(taken.len() + 1)], &taken[..]] {
            let undone = back(part);
            let order = super::order(&changes(&undone), |_| ());
            prop_assert_eq!(order.len(), part.len());
            prop_assert_eq!(wrong(&undone, &order), Vec::<&str>::new());
        }
    }
}
