//! Who is named for the waits of threads, and what is told of vCPUs, in the kernel, on schedules made for it. The kernel half draws
//! its random numbers from a fixed start, so each run gives the same.

use super::{PROBED, clock, load_all, types};
use crate::object::bytes_of;
use libbpf_rs::{MapCore, MapFlags, Object, ProgramInput, RingBufferBuilder};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use teiji_model::event::{EventKind, Start, Waker};
use teiji_model::stage::ThreadState;

const IDLE: u32 = 0;
/// Traced threads: two vCPUs, and the vhost worker of the first.
const VCPU: u32 = 10;
const OTHER_VCPU: u32 = 11;
const WORKER: u32 = 12;
/// A vCPU whose states are told.
pub(super) const TOLD: u32 = 13;
/// A vhost worker of its VM.
pub(super) const TOLD_WORKER: u32 = 14;
/// Threads that nobody traces.
pub(super) const HOG: u32 = 1000;
pub(super) const TICK: u32 = 1001;
const NEIGHBOUR: u32 = 1002;

pub(super) const US: u64 = 1_000;
pub(super) const MS: u64 = 1_000_000;

/// As in check.bpf.c.
#[derive(Clone, Copy)]
pub(super) enum Happening {
    Preempted,
    WentToSleep,
    Woken,
    Migrated,
    PreemptedBy,
    Waited,
    Waking,
    Exits,
    Enters,
    Takes,
    Blocked,
    Slept,
    Signals,
    Written,
    Signalled,
    Accepted,
    Sends,
    SignalsSentFrames,
    BeginsRound,
    EntryTime,
    BeginsFirstRound,
    DeviceIrqBegins,
    DeviceIrqEnds,
    DeviceInterruptsVm,
    DeviceInterruptAccepted,
    Looks,
    HasRead,
    VmmSignals,
    VmmSends,
}

pub(super) struct Host {
    pub(super) object: Object,
    pub(super) now: u64,
}

impl Host {
    fn new() -> Host {
        Host::of(load_all(PROBED))
    }

    fn of(object: Object) -> Host {
        for tid in [VCPU, OTHER_VCPU, WORKER] {
            clock(&object, "meet", tid, tid);
        }
        Host { object, now: MS }
    }

    pub(super) fn happens(&self, what: Happening, cpu: u32, thread: u32, arg: u32) -> u32 {
        let words = [what as u32, cpu, thread, arg].map(u32::to_ne_bytes);
        let event = [&self.now.to_ne_bytes()[..], words.as_flattened()].concat();
        let program = self.object.progs_mut().find(|p| p.name() == "happen").unwrap();
        let input = ProgramInput { data_in: Some(&event), ..ProgramInput::default() };
        program.test_run(input).unwrap().return_value
    }

    /// `out` is runnable, and `next` gets its CPU.
    pub(super) fn preempts(&self, cpu: u32, out: u32, next: u32) {
        self.happens(Happening::Preempted, cpu, out, next);
    }

    pub(super) fn sleeps(&self, cpu: u32, out: u32, next: u32) {
        self.happens(Happening::WentToSleep, cpu, out, next);
    }

    pub(super) fn wakes(&self, cpu: u32, thread: u32) {
        self.happens(Happening::Woken, cpu, thread, 0);
    }

    /// Before it is woken, in the context of the waker.
    fn is_being_woken(&self, thread: u32, context: types::wake_context) {
        self.happens(Happening::Waking, 0, thread, context.0);
    }

    pub(super) fn passes(&mut self, ns: u64) {
        self.now += ns;
    }

    /// Who is named now for the waits of a thread since this was last asked.
    pub(super) fn named(&self, thread: u32) -> u32 {
        self.happens(Happening::PreemptedBy, 0, thread, 0)
    }

    /// How long a thread has waited in all, ns; less than 4 s.
    fn waited(&self, thread: u32) -> u64 {
        self.happens(Happening::Waited, 0, thread, 0).into()
    }
}

/// All records in the buffer.
pub(super) fn records(object: &Object) -> Vec<(u64, EventKind)> {
    let all = Rc::new(RefCell::new(Vec::new()));
    let sink = Rc::clone(&all);
    let mut ring = RingBufferBuilder::new();
    let records = super::super::map(object, "records").unwrap();
    ring.add(&records, move |bytes: &[u8]| {
        let event = super::super::convert::item(bytes).unwrap().event;
        sink.borrow_mut().push((event.ts, event.kind));
        0
    })
    .unwrap();
    ring.build().unwrap().consume().unwrap();
    all.take()
}

/// What is told of the states of vCPUs: when, whose, which state, and the sum of its clock.
fn told(object: &Object) -> Vec<(u64, u32, ThreadState, u64)> {
    let state = |(ts, kind): (u64, EventKind)| match kind {
        EventKind::VcpuState(s) => Some((ts, s.vcpu, s.state, s.clock.total())),
        EventKind::Start(_) | EventKind::Wait(_) => None,
        other => panic!("{other:?}"),
    };
    records(object).into_iter().filter_map(state).collect()
}

/// When threads got a CPU, and how.
fn starts(object: &Object) -> Vec<(u64, Start)> {
    let start = |(ts, kind)| match kind {
        EventKind::Start(s) => Some((ts, s)),
        _ => None,
    };
    records(object).into_iter().filter_map(start).collect()
}

/// This thread, which wakes others in these tests.
fn this_thread() -> u32 {
    let link = std::fs::read_link("/proc/thread-self").unwrap();
    link.file_name().unwrap().to_str().unwrap().parse().unwrap()
}

/// A host on which vCPU 3 is one of a guest that reports events itself, and [`VCPU`] is not.
pub(super) fn telling() -> Host {
    telling_on(Host::new())
}

/// The host of [`telling`] on a kernel in which the write to a guest's ring cannot be probed.
pub(super) fn telling_without_writes() -> Host {
    telling_on(Host::of(load_all(&[])))
}

fn telling_on(host: Host) -> Host {
    clock(&host.object, "meet_vcpu", TOLD, 3);
    follow(&host, types::hint::HINT_STATES, false);
    host
}

/// Gives the VM 7 a hint; `devices`: there are VMs with NICs of the host.
pub(super) fn follow(host: &Host, hint: types::hint, devices: bool) {
    let name = host.object.maps().map(|m| m.name().to_string_lossy().into_owned());
    let name = name.into_iter().find(|name| name.ends_with(".bss.followed")).unwrap();
    let place = super::super::map(&host.object, &name).unwrap();
    let mut followed = Box::new(types::followed { devices: devices.into(), ..Default::default() });
    followed.hints[7] = hint.0 as u8;
    place.update(&0u32.to_ne_bytes(), bytes_of(followed.as_ref()), MapFlags::ANY).unwrap();
}

#[test]
fn the_states_of_a_vcpu_are_told_if_its_guest_reports() {
    let mut host = telling();
    for vcpu in [VCPU, TOLD] {
        // Sleeps, is woken while another thread has the CPU, waits, and gets it.
        host.preempts(0, IDLE, vcpu);
        host.passes(MS);
        host.sleeps(0, vcpu, HOG);
        host.passes(2 * MS);
        host.wakes(0, vcpu);
        host.passes(3 * MS);
        host.preempts(0, HOG, vcpu);
        host.passes(MS);
        host.preempts(0, vcpu, IDLE);
    }
    let told = told(&host.object);
    let begin = told[0].0;
    let states: Vec<_> = told.iter().map(|(ts, vcpu, state, _)| ((ts - begin) / MS, *vcpu, *state)).collect();
    use ThreadState::{Asleep, Guest, Ready};
    assert_eq!(states[..2], [(0, 3, Asleep), (2, 3, Ready)]);
    // A sleep that is no halt ends in host code; before the first one nothing is known of the thread but that it runs.
    assert_eq!(states[2..].iter().map(|s| (s.0, s.1)).collect::<Vec<_>>(), [(5, 3), (6, 3)]);
    assert!(matches!(states[2].2, Guest | ThreadState::Run) && states[3].2 == Ready, "{states:?}");
    // The clocks of two in a row add up to the time between them.
    for pair in told.windows(2) {
        assert_eq!(pair[1].3 - pair[0].3, pair[1].0 - pair[0].0, "{told:?}");
    }
}

/// Between two records exits are taken to be spread evenly; a long one is not. Its clock is read meanwhile, as for each signal
/// of another CPU.
#[test]
fn a_long_exit_is_told_with_its_beginning() {
    let mut host = telling();
    for vcpu in [VCPU, TOLD] {
        host.happens(Happening::Enters, 0, vcpu, 0);
        for exit in [10 * US, 20 * US, 5 * MS, 10 * US] {
            host.passes(100 * US);
            host.happens(Happening::Exits, 0, vcpu, 0);
            for _ in 0..5 {
                host.passes(exit / 5);
                host.waited(vcpu);
            }
            host.happens(Happening::Enters, 0, vcpu, 0);
        }
    }
    let told = told(&host.object);
    let begin = told[0].0;
    let states: Vec<_> = told.iter().map(|(ts, vcpu, state, _)| ((ts - begin) / US, *vcpu, *state)).collect();
    use ThreadState::{Guest, Run};
    assert_eq!(states, [(0, 3, Guest), (330, 3, Run), (5330, 3, Guest)]);
    for pair in told.windows(2) {
        assert_eq!(pair[1].3 - pair[0].3, pair[1].0 - pair[0].0, "{told:?}");
    }
}

/// A worker that blocks for a page of the guest, while it copies packets there, has not been idle: who waits behind it would be
/// told that it had to be woken. Its wait for a CPU is one all the same; and if it sleeps without having signalled, it is idle.
#[test]
fn a_worker_that_blocks_while_it_holds_packets_is_at_work() {
    let mut host = telling();
    clock(&host.object, "meet_worker", TOLD_WORKER, 0);
    host.happens(Happening::Takes, 0, TOLD_WORKER, 0);
    for (how, slept, waited) in [(Happening::Blocked, 0, 3 * MS), (Happening::WentToSleep, 2 * MS, 6 * MS)] {
        host.passes(MS);
        host.happens(how, 0, TOLD_WORKER, HOG);
        host.passes(2 * MS);
        host.wakes(0, TOLD_WORKER);
        host.passes(3 * MS);
        host.preempts(0, HOG, TOLD_WORKER);
        assert_eq!(u64::from(host.happens(Happening::Slept, 0, TOLD_WORKER, 0)), slept);
        assert_eq!(host.waited(TOLD_WORKER), waited);
    }
}

/// A vCPU that has left guest mode 100 µs after it entered.
fn exited() -> Host {
    let mut host = telling();
    host.happens(Happening::Enters, 0, TOLD, 0);
    host.passes(100 * US);
    host.happens(Happening::Exits, 0, TOLD, 0);
    host
}

/// What is told of vCPUs, in order: how many µs after the first, and the state.
fn states(object: &Object) -> Vec<(u64, ThreadState)> {
    let told = told(object);
    told.iter().map(|(ts, _, state, _)| ((ts - told[0].0) / US, *state)).collect()
}

/// One that began with a wait for the CPU was told with that.
#[test]
fn a_long_exit_after_a_wait_is_told_once() {
    let mut host = exited();
    host.passes(100 * US);
    host.preempts(0, TOLD, HOG);
    host.passes(2 * MS);
    host.preempts(0, HOG, TOLD);
    host.passes(3 * MS);
    host.happens(Happening::Enters, 0, TOLD, 0);
    use ThreadState::{Guest, Ready, Run};
    assert_eq!(states(&host.object), [(0, Ready), (2000, Run), (5000, Guest)]);
}

/// As one that ends with the entry.
#[test]
fn a_long_exit_that_a_wait_ends_is_told_with_its_beginning() {
    let mut host = exited();
    host.passes(3 * MS);
    host.preempts(0, TOLD, HOG);
    assert_eq!(states(&host.object), [(0, ThreadState::Run), (3000, ThreadState::Ready)]);
}

/// Each start of a thread is told with the times from the CPU that it lost to the CPU that it got, and who woke it.
#[test]
fn the_starts_of_threads_are_told_with_who_woke_them() {
    let mut host = telling();
    clock(&host.object, "meet_worker", TOLD_WORKER, 0);
    let begin = host.now;
    for thread in [TOLD, TOLD_WORKER, VCPU, WORKER] {
        host.now = begin;
        host.preempts(0, IDLE, thread);
        host.passes(MS);
        // Woken before it sleeps: it does not sleep for that.
        host.is_being_woken(thread, types::wake_context::CONTEXT_THREAD);
        host.sleeps(0, thread, HOG);
        host.passes(2 * MS);
        host.is_being_woken(thread, types::wake_context::CONTEXT_THREAD);
        host.passes(MS);
        // Only the first is the cause.
        host.is_being_woken(thread, types::wake_context::CONTEXT_INTERRUPT);
        host.wakes(0, thread);
        host.passes(3 * MS);
        host.preempts(0, HOG, thread);
        host.passes(MS);
        // Preempted; then it sleeps, and nobody is seen to wake it.
        host.preempts(0, thread, HOG);
        host.passes(MS);
        host.preempts(0, HOG, thread);
        host.passes(MS);
        host.sleeps(0, thread, HOG);
        host.passes(MS);
        host.preempts(0, HOG, thread);
    }
    let start = |tid, vcpu, left: u64, slept, woken: Option<u64>, nth| Start {
        tid,
        vm: 7,
        vcpu,
        left: begin + left * MS,
        slept,
        woken: woken.map(|ms| begin + ms * MS),
        waker: if woken.is_some() { Waker::Thread(this_thread()) } else { Waker::Unknown },
        nth,
    };
    let told = starts(&host.object);
    let at = |ms: u64| begin + ms * MS;
    assert_eq!(
        told,
        [
            (at(7), start(TOLD, Some(3), 1, true, Some(3), 1)),
            // That it was preempted is told by its states.
            (at(11), start(TOLD, Some(3), 10, true, None, 2)),
            (at(7), start(TOLD_WORKER, None, 1, true, Some(3), 1)),
            (at(9), start(TOLD_WORKER, None, 8, false, None, 2)),
            (at(11), start(TOLD_WORKER, None, 10, true, None, 3)),
        ]
    );
}

/// As for states; what has no place is missing in the numbers.
#[test]
fn starts_take_no_room_from_other_records() {
    let mut host = telling();
    clock(&host.object, "meet_worker", TOLD_WORKER, 0);
    let cycles = |host: &mut Host, n: u32| {
        for _ in 0..n {
            host.passes(US);
            host.sleeps(0, TOLD_WORKER, HOG);
            host.is_being_woken(TOLD_WORKER, types::wake_context::CONTEXT_INTERRUPT);
            host.passes(US);
            host.preempts(0, HOG, TOLD_WORKER);
        }
    };
    cycles(&mut host, 100);
    let first = starts(&host.object);
    // Of 4,096 bytes; a record takes 64 with its head.
    assert!((28..=33).contains(&first.len()), "{}", first.len());
    let mut sum = first.len();
    for _ in 0..60 {
        cycles(&mut host, 20);
        sum += starts(&host.object).len();
    }
    assert_eq!(sum, first.len() + 1024 - 100);
    host.passes(100 * MS);
    cycles(&mut host, 1);
    assert_eq!(starts(&host.object).iter().map(|(_, s)| s.nth).collect::<Vec<_>>(), [1301]);
    host.passes(US);
    host.sleeps(0, TOLD_WORKER, HOG);
    host.is_being_woken(TOLD_WORKER, types::wake_context::CONTEXT_INTERRUPT);
    host.preempts(0, HOG, TOLD_WORKER);
    assert_eq!(starts(&host.object)[0].1.waker, Waker::Interrupt);
}

/// Whatever a guest does: other records keep half of the buffer, and one vCPU has so many of these in 67 ms.
#[test]
fn states_take_no_room_from_other_records() {
    let mut host = telling();
    let changes = |host: &mut Host, pairs: u32| {
        for _ in 0..pairs {
            host.passes(US);
            host.preempts(0, TOLD, HOG);
            host.passes(US);
            host.preempts(0, HOG, TOLD);
        }
    };
    changes(&mut host, 100);
    // The buffer of these tests has 4,096 bytes; a record takes 80 with its head.
    let first = told(&host.object).len();
    assert!((20..=27).contains(&first), "{first}");
    let mut sum = first;
    for _ in 0..120 {
        changes(&mut host, 10);
        sum += told(&host.object).len();
    }
    // Of 1,024 (STATES_AT_ONCE), the first 200 are used up, also those that had no place.
    assert_eq!(sum, first + 1024 - 200);
    host.passes(100 * MS);
    changes(&mut host, 1);
    assert_eq!(told(&host.object).len(), 2);
}

/// How often each thread was named, as a share.
#[derive(Default)]
struct Names(BTreeMap<u32, u32>);

impl Names {
    fn add(&mut self, tid: u32) {
        *self.0.entry(tid).or_default() += 1;
    }

    /// Asserts that these were named as often as they should be.
    #[track_caller]
    fn are(&self, expected: &[(u32, f64)]) {
        let all: u32 = self.0.values().sum();
        for (tid, share) in expected {
            let named = f64::from(self.0.get(tid).copied().unwrap_or(0)) / f64::from(all);
            assert!(
                (named - share).abs() < 0.03,
                "{tid}: {named:.3} of {all}, should be {share:.3}: {:?}",
                self.0
            );
        }
    }
}

#[test]
fn a_worker_that_runs_briefly_is_not_named_for_what_a_hog_did() {
    let mut host = Host::new();
    let mut names = Names::default();
    host.sleeps(0, VCPU, WORKER);
    host.sleeps(0, WORKER, HOG);
    for _ in 0..2000 {
        host.wakes(0, VCPU);
        host.passes(9 * MS);
        // The packet wakes the worker, which shares the CPU.
        host.wakes(0, WORKER);
        host.passes(10 * US);
        host.preempts(0, HOG, WORKER);
        host.passes(50 * US);
        host.sleeps(0, WORKER, VCPU);
        names.add(host.named(VCPU));
        host.passes(100 * US);
        host.sleeps(0, VCPU, HOG);
        host.passes(MS);
    }
    names.are(&[(HOG, 9010.0 / 9060.0), (WORKER, 50.0 / 9060.0)]);
}

#[test]
fn two_threads_that_wait_for_one_cpu_each_have_their_own_names() {
    let mut host = Host::new();
    let (mut of_one, mut of_other) = (Names::default(), Names::default());
    host.preempts(0, OTHER_VCPU, VCPU);
    for _ in 0..2000 {
        host.passes(MS);
        host.preempts(0, VCPU, HOG);
        host.passes(5 * MS);
        host.preempts(0, HOG, OTHER_VCPU);
        of_other.add(host.named(OTHER_VCPU));
        host.passes(3 * MS);
        host.preempts(0, OTHER_VCPU, VCPU);
        of_one.add(host.named(VCPU));
    }
    of_one.are(&[(HOG, 5.0 / 8.0), (OTHER_VCPU, 3.0 / 8.0)]);
    of_other.are(&[(HOG, 5.0 / 6.0), (VCPU, 1.0 / 6.0)]);
}

#[test]
fn nobody_is_named_for_a_wait_on_an_idle_cpu() {
    let mut host = Host::new();
    let mut names = Names::default();
    for _ in 0..1000 {
        host.passes(10 * MS);
        // Throttled by cpu.max: it is runnable, and its CPU is idle.
        host.preempts(0, VCPU, IDLE);
        host.passes(40 * MS);
        host.preempts(0, IDLE, TICK);
        host.passes(5 * US);
        host.sleeps(0, TICK, IDLE);
        host.passes(50 * MS);
        host.preempts(0, IDLE, VCPU);
        names.add(host.named(VCPU));
    }
    names.are(&[(IDLE, 1.0), (TICK, 0.0)]);
}

#[test]
fn a_thread_that_is_moved_waits_for_the_threads_of_both_cpus() {
    let mut host = Host::new();
    let mut names = Names::default();
    host.sleeps(0, VCPU, HOG);
    host.sleeps(1, IDLE, NEIGHBOUR);
    for _ in 0..2000 {
        let before = host.waited(VCPU);
        host.wakes(0, VCPU);
        host.passes(MS);
        host.happens(Happening::Migrated, 1, VCPU, 0);
        host.passes(4 * MS);
        // What runs on the first CPU now keeps nobody from it.
        host.preempts(0, HOG, TICK);
        host.passes(5 * MS);
        host.preempts(0, TICK, HOG);
        host.preempts(1, NEIGHBOUR, VCPU);
        names.add(host.named(VCPU));
        assert_eq!(host.waited(VCPU) - before, 10 * MS);
        host.passes(100 * US);
        host.sleeps(1, VCPU, NEIGHBOUR);
        if host.waited(VCPU) > 3000 * MS {
            host = Host::new();
            host.sleeps(0, VCPU, HOG);
            host.sleeps(1, IDLE, NEIGHBOUR);
        }
    }
    names.are(&[(HOG, 0.1), (NEIGHBOUR, 0.9), (TICK, 0.0)]);
}

/// A stage may have many waits: each counts by its length.
#[test]
fn of_several_waits_the_last_one_is_not_named_for_all() {
    let mut host = Host::new();
    let mut names = Names::default();
    for _ in 0..2000 {
        host.preempts(0, VCPU, HOG);
        host.passes(12 * MS);
        host.preempts(0, HOG, VCPU);
        host.passes(3 * MS);
        host.preempts(0, VCPU, TICK);
        host.passes(3 * MS);
        host.preempts(0, TICK, VCPU);
        host.passes(MS);
        names.add(host.named(VCPU));
    }
    names.are(&[(HOG, 0.8), (TICK, 0.2)]);
}

/// A reading in the middle of a wait divides it: each part has the names of its own time.
#[test]
fn a_reading_within_a_wait_begins_anew() {
    let mut host = Host::new();
    let (mut first, mut second) = (Names::default(), Names::default());
    for _ in 0..200 {
        host.preempts(0, VCPU, HOG);
        host.passes(12 * MS);
        first.add(host.named(VCPU));
        host.preempts(0, HOG, TICK);
        host.passes(MS);
        host.preempts(0, TICK, VCPU);
        second.add(host.named(VCPU));
        host.passes(MS);
    }
    first.are(&[(HOG, 1.0)]);
    second.are(&[(TICK, 1.0)]);
}

/// More threads wait than are told who has the CPU; and a place is free again once its thread has a CPU.
#[test]
fn who_has_no_place_on_the_list_names_nobody() {
    const WAITING: u32 = 20;
    let mut host = Host::new();
    let tids: Vec<u32> = (2000..2000 + WAITING).collect();
    for tid in &tids {
        clock(&host.object, "meet", *tid, 0);
        host.sleeps(0, *tid, HOG);
    }
    for _ in 0..50 {
        tids.iter().for_each(|tid| host.wakes(0, *tid));
        host.passes(MS);
        host.preempts(0, HOG, TICK);
        host.passes(3 * MS);
        // Each gets another CPU, which needs no look at the first.
        tids.iter().for_each(|tid| host.preempts(1, IDLE, *tid));
        let named: Vec<u32> = tids.iter().map(|tid| host.named(*tid)).collect();
        assert_eq!(named.iter().filter(|name| **name != IDLE).count(), 8, "{named:?}");
        tids.iter().for_each(|tid| host.sleeps(1, *tid, IDLE));
        host.preempts(0, TICK, HOG);
        // Later requests have nobody in mind any more.
        tids.iter().for_each(|tid| assert_eq!(host.waited(*tid) % (4 * MS), 0));
    }
}
