//! Which change comes before which. Plan, undo and rollback all obey these dependencies by calling [`order`].
//!
//! A [`Dependency`] says that changes of one sort come before changes of another sort that have the same [`Tie`]. It
//! depends on the change only, not on who makes it or whether it goes forward or back. So undo and rollback obey the
//! same table: a thread leaves `SCHED_DEADLINE` before it is pinned, and is allowed on all CPUs before it returns to
//! `SCHED_DEADLINE`.
//!
//! Most dependencies would also hold if a rollback just reversed the order. But if one change disturbs the result of
//! another (a move into another control group may reset affinity), the reverse order is wrong.

use super::{Resource, Scheduling, Task, Value};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};

/// A change of a resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Change<'a> {
    /// The resource.
    pub resource: &'a Resource,
    /// The value before.
    pub from: &'a Value,
    /// The value after.
    pub to: &'a Value,
}

/// What two changes have in common that depend on each other.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Tie<'a> {
    /// The host.
    Host,
    /// A thread.
    Thread(Task),
    /// A network device, by its index.
    Device(u32),
    /// A control group.
    Group(&'a str),
}

/// Changes with a tie of `first` come before those with the same tie of `then`.
#[derive(Debug)]
pub struct Dependency {
    /// What would go wrong otherwise.
    pub why: &'static str,
    /// The tie of a change that has to come first; `None` for other changes.
    pub first: for<'a> fn(&Change<'a>) -> Option<Tie<'a>>,
    /// The tie of a change that has to come later; `None` for other changes.
    pub then: for<'a> fn(&Change<'a>) -> Option<Tie<'a>>,
    /// Whether the first change may also change the resource of the other.
    pub disturbs: bool,
}

/// Changes of a lower level come before those of a higher one.
#[derive(Debug)]
pub struct Levels {
    /// What would go wrong otherwise.
    pub why: &'static str,
    /// The level of a change; `None` for changes without a level.
    pub of: fn(&Change<'_>) -> Option<u16>,
}

/// All dependencies.
pub static DEPENDENCIES: [Dependency; 7] = [
    Dependency {
        why: "a thread of SCHED_DEADLINE must be allowed on all CPUs (EBUSY, dl_task_check_affinity()); one of another \
              real-time class would use CPUs that it is about to leave",
        first: leaves_real_time,
        then: affinity,
        disturbs: false,
    },
    Dependency {
        why: "a thread that is not allowed on all CPUs cannot enter SCHED_DEADLINE (EPERM, __sched_setscheduler()); \
              a thread of another real-time class would use the wrong CPUs",
        first: affinity,
        then: enters_real_time,
        disturbs: false,
    },
    Dependency {
        why: "the guarantees of a link's queue depend on the size of segments: it is lowered before the queue is set",
        first: |c| segment_size(c, |from, to| to < from),
        then: root_qdisc,
        disturbs: false,
    },
    Dependency {
        why: "the guarantees of a link's queue depend on the size of segments: it is raised after the queue is removed",
        first: root_qdisc,
        then: |c| segment_size(c, |from, to| to > from),
        disturbs: false,
    },
    Dependency {
        why: "a group of teiji's own is made when a VM enters it, and has weight and quota from then on",
        first: entered_group,
        then: weight_or_quota,
        disturbs: false,
    },
    Dependency {
        why: "a group of teiji's own is removed when the VM leaves it, and weight and quota with it",
        first: weight_or_quota,
        then: left_group,
        disturbs: false,
    },
    Dependency {
        why: "before Linux 6.2 a thread that is moved into a group may run on all CPUs of that group (cpuset_attach())",
        first: moved,
        then: |c| matches!(c.resource, Resource::ThreadCpus(_)).then_some(Tie::Host),
        disturbs: true,
    },
];

/// All levels.
pub static LEVELS: [Levels; 1] = [Levels {
    why: "a VM's vhost worker has a higher priority than its vCPUs, which could otherwise starve it: the highest \
          priority is given first and taken last, and priorities are lowered before others are raised",
    of: priority,
}];

fn scheduling(change: &Change<'_>) -> Option<(Task, Scheduling, Scheduling)> {
    match (change.resource, change.from, change.to) {
        (Resource::ThreadScheduling(task), Value::Scheduling(from), Value::Scheduling(to)) => {
            Some((*task, *from, *to))
        }
        _ => None,
    }
}

/// A change out of the real-time classes, or from `SCHED_DEADLINE` to `SCHED_FIFO` or `SCHED_RR`.
fn leaves_real_time<'a>(change: &Change<'a>) -> Option<Tie<'a>> {
    let (task, from, to) = scheduling(change)?;
    let leaves = if from.is_sched_deadline() {
        !to.is_sched_deadline()
    } else {
        from.is_real_time() && !to.is_real_time()
    };
    leaves.then_some(Tie::Thread(task))
}

/// A change into the real-time classes, or from `SCHED_FIFO` or `SCHED_RR` to `SCHED_DEADLINE`.
fn enters_real_time<'a>(change: &Change<'a>) -> Option<Tie<'a>> {
    let (task, from, to) = scheduling(change)?;
    let enters = if to.is_sched_deadline() {
        !from.is_sched_deadline()
    } else {
        to.is_real_time() && !from.is_real_time()
    };
    enters.then_some(Tie::Thread(task))
}

fn affinity<'a>(change: &Change<'a>) -> Option<Tie<'a>> {
    match change.resource {
        Resource::ThreadCpus(task) => Some(Tie::Thread(*task)),
        _ => None,
    }
}

fn root_qdisc<'a>(change: &Change<'a>) -> Option<Tie<'a>> {
    match change.resource {
        Resource::RootQdisc(device) => Some(Tie::Device(device.index)),
        _ => None,
    }
}

fn segment_size<'a>(change: &Change<'a>, is: fn(u32, u32) -> bool) -> Option<Tie<'a>> {
    match (change.resource, change.from, change.to) {
        (Resource::SegmentSize(device), Value::Bytes(from), Value::Bytes(to)) if is(*from, *to) => {
            Some(Tie::Device(device.index))
        }
        _ => None,
    }
}

fn weight_or_quota<'a>(change: &Change<'a>) -> Option<Tie<'a>> {
    match change.resource {
        Resource::GroupWeight(group) | Resource::GroupQuota(group) => Some(Tie::Group(group)),
        _ => None,
    }
}

fn entered_group<'a>(change: &Change<'a>) -> Option<Tie<'a>> {
    match (change.resource, change.to) {
        (Resource::Group(_), Value::Group(group)) => Some(Tie::Group(group)),
        _ => None,
    }
}

fn left_group<'a>(change: &Change<'a>) -> Option<Tie<'a>> {
    match (change.resource, change.from) {
        (Resource::Group(_), Value::Group(group)) => Some(Tie::Group(group)),
        _ => None,
    }
}

fn moved<'a>(change: &Change<'a>) -> Option<Tie<'a>> {
    matches!(change.resource, Resource::Group(_)).then_some(Tie::Host)
}

/// Lowered priorities come first, from the lowest up; then raised ones, from the highest down.
fn priority(change: &Change<'_>) -> Option<u16> {
    let (_, from, to) = scheduling(change)?;
    let (from, to) = (u16::from(from.priority()), u16::from(to.priority()));
    match from.cmp(&to) {
        std::cmp::Ordering::Greater => Some(from),
        std::cmp::Ordering::Less => Some(1000 - to),
        std::cmp::Ordering::Equal => None,
    }
}

/// Whether a change gives a thread a real-time class. Such changes come last among changes that do not depend on one
/// another, as other threads may first have to leave the CPUs that the thread will use.
pub fn is_into_real_time(change: &Change<'_>) -> bool {
    enters_real_time(change).is_some()
}

/// The order of `changes` that obeys all dependencies, as indices. Of the changes that may come next, the one with the
/// lowest preference does; of equal ones the first. If changes depend on each other in a circle, which does not occur
/// in plans, these are ordered by preference.
pub fn order<P: Ord + Copy>(changes: &[Change<'_>], preference: impl Fn(usize) -> P) -> Vec<usize> {
    let graph = Graph::new(changes);
    let mut waits_for = graph.waits_for;
    let mut ready = BinaryHeap::new();
    let mut left: BTreeSet<(P, usize)> = (0..changes.len()).map(|i| (preference(i), i)).collect();
    // Nodes after the changes stand for dependencies, not changes: they are passed as soon as nothing comes before them.
    let mut passed: Vec<usize> = (0..waits_for.len()).filter(|node| waits_for[*node] == 0).collect();
    let mut order = Vec::with_capacity(changes.len());
    loop {
        while let Some(node) = passed.pop() {
            if node < changes.len() {
                ready.push(Reverse((preference(node), node)));
                continue;
            }
            for next in &graph.before[node] {
                waits_for[*next] -= 1;
                if waits_for[*next] == 0 {
                    passed.push(*next);
                }
            }
        }
        let next = match ready.pop() {
            Some(Reverse(next)) if left.remove(&next) => next.1,
            Some(_) => continue,
            None => match left.pop_first() {
                Some((_, stuck)) => stuck,
                None => return order,
            },
        };
        order.push(next);
        for node in &graph.before[next] {
            waits_for[*node] = waits_for[*node].saturating_sub(1);
            if waits_for[*node] == 0 {
                passed.push(*node);
            }
        }
    }
}

/// The changes, then a node for each dependency between some of them, so that n changes before m others need n + m
/// edges.
struct Graph {
    /// The nodes that come after each node.
    before: Vec<Vec<usize>>,
    /// How many nodes have to come before each node.
    waits_for: Vec<usize>,
}

impl Graph {
    fn new(changes: &[Change<'_>]) -> Graph {
        let mut graph = Graph { before: vec![Vec::new(); changes.len()], waits_for: vec![0; changes.len()] };
        for dependency in &DEPENDENCIES {
            let mut ties: BTreeMap<Tie<'_>, (Vec<usize>, Vec<usize>)> = BTreeMap::new();
            for (i, change) in changes.iter().enumerate() {
                if let Some(tie) = (dependency.first)(change) {
                    ties.entry(tie).or_default().0.push(i);
                }
                if let Some(tie) = (dependency.then)(change) {
                    ties.entry(tie).or_default().1.push(i);
                }
            }
            ties.into_values().for_each(|(first, then)| graph.join(&first, &then));
        }
        for levels in &LEVELS {
            let mut all: BTreeMap<u16, Vec<usize>> = BTreeMap::new();
            for (i, change) in changes.iter().enumerate() {
                if let Some(level) = (levels.of)(change) {
                    all.entry(level).or_default().push(i);
                }
            }
            let all: Vec<Vec<usize>> = all.into_values().collect();
            all.windows(2).for_each(|pair| graph.join(&pair[0], &pair[1]));
        }
        graph
    }

    fn join(&mut self, first: &[usize], then: &[usize]) {
        if first.is_empty() || then.is_empty() {
            return;
        }
        let dependency = self.before.len();
        self.before.push(then.to_vec());
        self.waits_for.push(first.len());
        first.iter().for_each(|i| self.before[*i].push(dependency));
        then.iter().for_each(|i| self.waits_for[*i] += 1);
    }
}

/// Why the second of two changes has to come first; `None` if it need not.
pub fn violation(earlier: &Change<'_>, later: &Change<'_>) -> Option<&'static str> {
    let tied = |d: &&Dependency| {
        let first = (d.first)(later);
        first.is_some() && first == (d.then)(earlier)
    };
    let above = |l: &&Levels| (l.of)(earlier).zip((l.of)(later)).is_some_and(|(e, l)| l < e);
    let dependency = DEPENDENCIES.iter().find(tied).map(|d| d.why);
    dependency.or_else(|| LEVELS.iter().find(above).map(|l| l.why))
}

/// Whether a change may not be made while the change `missing` is not, because that has to come first. One that has to
/// come first only because it disturbs the other need not be made at all.
pub fn requires(change: &Change<'_>, missing: &Change<'_>) -> bool {
    let tied = |d: &Dependency| {
        let first = (d.first)(missing);
        !d.disturbs && first.is_some() && first == (d.then)(change)
    };
    let below = |l: &Levels| (l.of)(missing).zip((l.of)(change)).is_some_and(|(missing, c)| missing < c);
    DEPENDENCIES.iter().any(tied) || LEVELS.iter().any(below)
}

/// Whether one of the changes `made` may also have changed the resource of `change`.
pub fn disturbed(made: &[Change<'_>], change: &Change<'_>) -> bool {
    DEPENDENCIES.iter().filter(|d| d.disturbs).any(|d| {
        let tie = (d.then)(change);
        tie.is_some() && made.iter().any(|made| (d.first)(made) == tie)
    })
}

#[cfg(test)]
mod tests;
