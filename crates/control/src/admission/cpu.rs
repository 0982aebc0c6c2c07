//! Whether one CPU can give VMs whose threads go by the deadlines of packets (`class = "packets"`) what they are promised.
//!
//! # Model
//! The scheduler (`bpf::scx_vcpu`) keeps these rules on a CPU:
//!
//! - A job of a thread has a release (its thread woke up, or a packet came for it) and an absolute deadline, d after that. A thread that
//!   is still awake then has another job. The job with the earliest deadline goes first, and preempts others.
//! - Jobs that are released within a sliding window of 15/16 of the period T get at most the runtime r. (The scheduler keeps account of
//!   sixteenths of a period.) A turn that its timer ends may take [`LATE`] longer. What a VM so gets beyond its runtime is taken off
//!   what it gets for later releases.
//! - Threads before others leave others a tenth of the CPU: after 45 ms, others have a *turn* of 5 ms, if they wait, which may end
//!   [`LATE`], too. Time that they run or nobody uses counts for them, too.
//!
//! So VM i is a sporadic task (r_i, d_i, p_i) with the minimum interarrival time p_i = 15/16 T_i. If all its threads are on this CPU,
//! one of them is ready here from a release until the job is done: a VM whose threads all sleep has no job. If others are elsewhere, a
//! thread here may become ready later than its release, up to the deadline: a release jitter of d_i.
//!
//! # The test
//! Suppose a job misses its absolute deadline D. Let s be the last instant before it at which no job with a deadline up to D was waiting
//! here (the start of the busy period). From s on the CPU runs only such jobs, except until it gives way (LATE) and in turns of
//! others. (Later preemptions cost nothing: what still runs then is one of these jobs.) All of them were released at or after s, or, of
//! VMs with threads elsewhere, at or after s − d_i. Each other VM may get LATE more than its runtimes, once, as it is taken off again.
//! The VM whose job this is does not: it is promised something only as long as it does not use its runtime up. With t = D − s, all
//! deadlines of VM j are kept if for all t ≥ d_j
//!
//! ```text
//! Σ_{d′_i ≤ t} ( LATE + r_i (⌊(t − d′_i) / p_i⌋ + 1) )  ≤  what the CPU gives within t
//! ```
//!
//! where the LATE of VM j itself is that until the CPU gives way, and d′_i is d_i, but 0 for a VM with threads elsewhere: the processor
//! demand criterion (Baruah, Mok and Rosier, Preemptively scheduling hard-real-time sporadic tasks on one processor, RTSS 1990) with
//! release jitter. The CPU gives t if no turn of others can come up, else nothing in the first 5 ms + LATE, and then 45 ms of each
//! 50 ms + LATE. If no VM has threads elsewhere and no turn can come up, the condition is also necessary: let all VMs be released at s,
//! as soon as something else has begun to run that does not give way, and as often as they may. (Where turns come up, whether one can
//! begin just then is not examined, so that more may be refused than has to be.)
//!
//! A turn comes up once threads before others have run for 45 ms more than nine times the rest of the time. Counted from the beginning
//! of a busy period (before the beginning of one that difference only falls), that is most if all VMs are released at its beginning and
//! then as often as they may be: so that is tried, as far as the difference can still grow.
//!
//! The left side is compared at few instants only, from the last one that matters downwards: at the instant until which the demand
//! keeps the CPU busy, nothing in between can fail (QPA: Zhang and Burns, Schedulability analysis for real-time systems with EDF
//! scheduling, IEEE Transactions on Computers 58(9), 2009).
//!
//! What else this assumes is in docs/policy.md, "Threads by the deadlines of packets".

/// The scheduler divides a period into so many parts (`SLOTS_PER_PERIOD` of scx_vcpu).
pub const PERIOD_PARTS: u64 = 16;
/// The longest turn of others, ns (`MAX_OWED`).
pub const TURN: u64 = 5_000_000;
/// Threads before others run for at most so many times as long as others (`EDF_PER_OTHERS`).
pub const PER_OTHERS: u64 = 9;
/// What is left of a runtime is not used if it is less, ns (`MIN_SLICE`).
pub const MIN_SLICE: u64 = 50_000;
/// How long it may take until a thread with the earliest deadline has the CPU, or a turn ends whose time is up, ns: until the timer
/// fires, the kernel gives way, and changes threads. An assumption about the host.
pub const LATE: u64 = 100_000;

/// So many instants are compared at most.
const MOST: usize = 1 << 17;

/// What a VM on the CPU is promised; times in ns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CpuShare {
    /// CPU time in each period, in all; 1 to the deadline.
    pub runtime: u64,
    /// From a release until the job is done; the runtime to the period.
    pub deadline: u64,
    /// See `runtime`; at least [`PERIOD_PARTS`].
    pub period: u64,
    /// Whether it has threads on other CPUs, too, which may hold back a job that was released until its deadline.
    pub elsewhere: bool,
}

/// Why these promises cannot be kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Overload {
    /// They need more of the CPU, in the long run, than it gives them: thousandths of it.
    Rate {
        /// What they need, rounded up.
        needed: u64,
        /// What they can get, rounded down: what turns of others leave.
        given: u64,
    },
    /// They need more by an instant than the CPU gives.
    Deadline {
        /// The last such instant, as the time after a moment at which all of them are released, ns.
        at: u64,
        /// What they need by then, with [`LATE`], ns.
        needed: u64,
        /// What they get by then, ns.
        given: u64,
        /// Deadlines that are at least so long, ns, are kept nevertheless.
        kept_from: u64,
    },
    /// Their periods and deadlines differ by so much that too many instants would have to be compared.
    Undecided,
}

/// A sporadic task, ns.
#[derive(Clone, Copy)]
struct Task {
    runtime: i128,
    /// From when something can be ready until it is due.
    deadline: i128,
    /// The least time between releases.
    apart: i128,
    /// How long after its release something can become ready.
    jitter: i128,
}

impl Task {
    fn of(share: &CpuShare) -> Task {
        let apart = share.period / PERIOD_PARTS * (PERIOD_PARTS - 1);
        let deadline = i128::from(share.deadline);
        let jitter = if share.elsewhere { deadline } else { 0 };
        Task {
            runtime: share.runtime.into(),
            deadline: deadline - jitter,
            apart: apart.max(1).into(),
            jitter,
        }
    }

    /// What is released and due within `t`, at most, and what is late.
    fn due_within(&self, t: i128) -> i128 {
        let releases = |since: i128| self.runtime * (since / self.apart + 1);
        if t < self.deadline { 0 } else { i128::from(LATE) + releases(t - self.deadline) }
    }

    /// The part of a CPU that it needs, in units of 10⁻⁹, rounded up.
    fn rate(&self) -> i128 {
        (self.runtime * BILLION + self.apart - 1) / self.apart
    }
}

const BILLION: i128 = 1_000_000_000;

/// Time that a CPU gives threads that go before others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Supply {
    All,
    /// Between turns of others, one of which begins at once.
    BetweenTurns,
}

impl Supply {
    const OFF: i128 = (TURN + LATE) as i128;
    const ON: i128 = (TURN * PER_OTHERS) as i128;
    /// What is given in the long run where turns come up, in units of 10⁻⁹ of a CPU, rounded down.
    const RATE: i128 = Self::ON * BILLION / (Self::OFF + Self::ON);

    /// Within `t`, at least.
    fn within(self, t: i128) -> i128 {
        match self {
            Supply::All => t,
            Supply::BetweenTurns => {
                let round = Self::OFF + Self::ON;
                t / round * Self::ON + (t % round - Self::OFF).max(0)
            }
        }
    }

    /// How long it takes until so much was given (1 or more).
    fn until(self, time: i128) -> i128 {
        match self {
            Supply::All => time,
            Supply::BetweenTurns => {
                let rounds = (time - 1) / Self::ON;
                rounds * (Self::OFF + Self::ON) + Self::OFF + (time - rounds * Self::ON)
            }
        }
    }
}

/// Whether a CPU keeps the deadlines of all these VMs, if their threads that may run on it may run on no other one. Each is taken to use
/// all of its runtime there.
///
/// # Errors
/// Why not, at the latest instant at which it does not.
pub fn admit(shares: &[CpuShare]) -> Result<(), Overload> {
    let tasks: Vec<Task> = shares.iter().map(Task::of).collect();
    let rate: i128 = tasks.iter().map(Task::rate).sum();
    if rate >= Supply::RATE {
        let thousandths = |billionths: i128| u64::try_from(billionths / 1_000_000).unwrap_or(u64::MAX);
        return Err(Overload::Rate { needed: thousandths(rate + 999_999), given: thousandths(Supply::RATE) });
    }
    let supply = if has_turns(&tasks, rate) { Supply::BetweenTurns } else { Supply::All };
    let Some(first) = shares.iter().map(|share| i128::from(share.deadline)).min() else { return Ok(()) };
    let demand = |t: i128| tasks.iter().map(|task| task.due_within(t)).sum::<i128>();
    // The last instant below t that is due.
    let due_before = |t: i128| {
        let last = |task: &Task| task.deadline + (t - 1 - task.deadline) / task.apart * task.apart;
        tasks.iter().filter(|task| task.deadline < t).map(last).max()
    };
    // From here on the demand, at most rate · t + Σ (r + LATE), is less than what the CPU gives.
    let all: i128 = tasks.iter().map(|task| task.runtime + i128::from(LATE)).sum();
    let end = (all + Supply::OFF) * BILLION / (Supply::RATE - rate) + 1;
    let mut t = end.max(first);
    for _ in 0..MOST {
        let (needed, given) = (demand(t), supply.within(t));
        if needed > given {
            let ns = |time: i128| u64::try_from(time).unwrap_or(u64::MAX);
            let kept_from = ns(supply.until(needed));
            return Err(Overload::Deadline { at: ns(t), needed: ns(needed), given: ns(given), kept_from });
        }
        if t == first {
            return Ok(());
        }
        let busy_until = supply.until(needed);
        let next = if busy_until < t { busy_until } else { due_before(t).unwrap_or(first) };
        // Not below: no job is due within less than the shortest deadline, but d′ = 0 would count there.
        t = next.max(first);
    }
    Err(Overload::Undecided)
}

/// Whether a turn of others can come up; also if that would take too long to find out, as that only refuses more.
fn has_turns(tasks: &[Task], rate: i128) -> bool {
    let (per, of) = (i128::from(PER_OTHERS), i128::from(PER_OTHERS + 1));
    let turn = per * i128::from(TURN) - i128::from(MIN_SLICE);
    // Of what was released up to the jitter before, all can be ready at first.
    let at_first = |task: &Task| task.jitter / task.apart + 1;
    let late = i128::from(LATE);
    let all: i128 = tasks.iter().map(|task| task.runtime * (at_first(task) + 1) + late).sum();
    // By then no more than rate · t + `all` can have run, and others are owed nothing.
    let end = of * all * BILLION / (per * BILLION - of * rate).max(1) + 1;
    let mut next: Vec<i128> = tasks.iter().map(|task| at_first(task) * task.apart - task.jitter).collect();
    let (mut now, mut ran) = (0, 0);
    let mut waits: i128 = tasks.iter().map(|task| at_first(task) * task.runtime + late).sum();
    for _ in 0..MOST {
        let Some(first) = next.iter().copied().min().filter(|first| *first <= end) else { break };
        let runs = i128::min(waits, first - now);
        ran += runs;
        // What ran less nine times the rest.
        if of * ran - per * (now + runs) >= turn {
            return true;
        }
        (now, waits) = (first, waits - runs);
        for (task, next) in tasks.iter().zip(&mut next).filter(|(_, next)| **next == first) {
            waits += task.runtime;
            *next += task.apart;
        }
    }
    next.iter().any(|next| *next <= end) || of * (ran + waits) - per * (now + waits) >= turn
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The unit of the simulation, ns.
    const STEP: u64 = LATE;

    /// Values that are multiples of it, also the time between releases: up to 8 VMs.
    fn shares(elsewhere: bool) -> impl Strategy<Value = Vec<CpuShare>> {
        let elsewhere = any::<bool>().prop_map(move |is| is && elsewhere);
        let share =
            (1..60_u64, 0..200_u64, 1..12_u64, elsewhere).prop_map(|(runtime, more, parts, elsewhere)| {
                let period = PERIOD_PARTS * parts * STEP;
                let runtime = (runtime * STEP).min(period);
                CpuShare { runtime, deadline: (runtime + more * STEP).min(period), period, elsewhere }
            });
        proptest::collection::vec(share, 1..8)
    }

    /// Something that was released.
    struct Job {
        vm: usize,
        /// By which it goes.
        deadline: u64,
        /// It is to be done by then: the deadline, counted from when it was ready.
        promised: u64,
        left: u64,
    }

    /// What happens to VMs that nothing is known of.
    trait World {
        /// How much later than it may be the next thing is released, ns.
        fn pause(&mut self) -> u64;
        /// How much later than its release something is ready whose VM has threads elsewhere, ns; at most so much.
        fn jitter(&mut self, most: u64) -> u64;
        /// Whether the last turn of a job ends [`LATE`].
        fn late(&mut self) -> bool;
        /// Whether the CPU gives the step from `now` on.
        fn gives(&self, now: u64) -> bool;
    }

    /// Everything as early as it may be, and as long as it may take. Whether turns come up.
    struct Worst(bool);

    impl World for Worst {
        fn pause(&mut self) -> u64 {
            0
        }

        fn jitter(&mut self, _: u64) -> u64 {
            0
        }

        fn late(&mut self) -> bool {
            true
        }

        fn gives(&self, now: u64) -> bool {
            !self.0 || between_turns(now)
        }
    }

    /// Whether the promise to the VM with this index is broken by `end`, on a CPU that begins to give way after [`LATE`]; the earliest
    /// deadline goes first.
    fn is_broken(shares: &[CpuShare], victim: usize, end: u64, world: &mut impl World) -> bool {
        let mut releases: Vec<u64> = shares.iter().map(|_| world.pause()).collect();
        // What each VM has had beyond its runtime.
        let mut beyond = vec![0; shares.len()];
        // When it is ready.
        let mut to_come: Vec<(u64, Job)> = Vec::new();
        let mut jobs: Vec<Job> = Vec::new();
        let mut given = 0;
        for now in (0..=end).step_by(STEP as usize) {
            for (vm, share) in shares.iter().enumerate().filter(|(vm, _)| releases[*vm] == now) {
                let later = if share.elsewhere { world.jitter(share.deadline) } else { 0 };
                let deadline = now + share.deadline;
                // A VM that does not use its runtime up is not ended by the timer.
                let over = if vm != victim && world.late() { LATE } else { 0 };
                let left = share.runtime + over - std::mem::replace(&mut beyond[vm], over);
                to_come.push((now + later, Job { vm, deadline, promised: deadline + later, left }));
            }
            for (vm, share) in shares.iter().enumerate() {
                if releases[vm] == now {
                    releases[vm] += share.period / PERIOD_PARTS * (PERIOD_PARTS - 1) + world.pause();
                }
            }
            let (ready, others) = to_come.into_iter().partition(|(at, _)| *at == now);
            to_come = others;
            jobs.extend::<Vec<Job>>(Vec::<(u64, Job)>::into_iter(ready).map(|(_, job)| job).collect());
            if jobs.iter().any(|job| job.vm == victim && job.promised <= now) {
                return true;
            }
            let gives = world.gives(now);
            given += u64::from(gives);
            if gives
                && given > 1
                && let Some(first) = jobs.iter_mut().filter(|job| job.left > 0).min_by_key(|job| job.deadline)
            {
                first.left -= STEP;
            }
            jobs.retain(|job| job.left > 0);
        }
        false
    }

    fn misses(shares: &[CpuShare], end: u64, with_turns: bool) -> bool {
        (0..shares.len()).any(|victim| is_broken(shares, victim, end, &mut Worst(with_turns)))
    }

    fn turns(shares: &[CpuShare]) -> bool {
        let tasks: Vec<Task> = shares.iter().map(Task::of).collect();
        has_turns(&tasks, tasks.iter().map(Task::rate).sum())
    }

    /// Whether the CPU gives the step from `now` on, if turns can come up.
    fn between_turns(now: u64) -> bool {
        now % (TURN * (PER_OTHERS + 1) + LATE) >= TURN + LATE
    }

    proptest! {
        /// All that are released at once and as often as they may be miss a deadline if and only if the set is refused.
        #[test]
        fn what_is_refused_is_missed_and_what_is_admitted_is_kept(shares in shares(false)) {
            let with_turns = turns(&shares);
            match admit(&shares) {
                Err(Overload::Deadline { at, needed, given, .. }) => {
                    prop_assert!(needed > given);
                    prop_assert!(misses(&shares, at, with_turns), "{shares:?} {at}");
                }
                Err(Overload::Rate { needed, given }) => prop_assert!(needed > given),
                Err(Overload::Undecided) => prop_assert!(false),
                Ok(()) => prop_assert!(!misses(&shares, 2_000 * STEP, with_turns), "{shares:?}"),
            }
        }

        /// Whenever things are released, whenever those of VMs with threads elsewhere get ready, and whatever is late. If not all are
        /// kept, those with longer deadlines are.
        #[test]
        fn what_is_promised_is_kept_whenever_it_is_released(
            shares in shares(true),
            pauses in proptest::collection::vec(0..40_u64, 64),
            jitters in proptest::collection::vec(0..1000_u64, 64),
            lates in any::<u64>(),
            phase in 0..500_u64,
        ) {
            let kept_from = match admit(&shares) {
                Ok(()) => 0,
                Err(Overload::Deadline { kept_from, .. }) => kept_from,
                Err(_) => u64::MAX,
            };
            let with_turns = turns(&shares);
            let mut world = Drawn { pauses, jitters, lates, phase, with_turns, n: 0 };
            for (victim, share) in shares.iter().enumerate().filter(|(_, share)| share.deadline >= kept_from) {
                let broken = is_broken(&shares, victim, 2_000 * STEP, &mut world);
                prop_assert!(!broken, "{share:?} of {shares:?}");
            }
        }
    }

    struct Drawn {
        /// Steps.
        pauses: Vec<u64>,
        /// Thousandths of the most.
        jitters: Vec<u64>,
        /// Bits.
        lates: u64,
        phase: u64,
        with_turns: bool,
        n: usize,
    }

    impl World for Drawn {
        fn pause(&mut self) -> u64 {
            self.n += 1;
            self.pauses[self.n % self.pauses.len()] * STEP
        }

        fn jitter(&mut self, most: u64) -> u64 {
            self.n += 1;
            self.jitters[self.n % self.jitters.len()] * (most / STEP) / 1000 * STEP
        }

        fn late(&mut self) -> bool {
            self.n += 1;
            self.lates >> (self.n % 64) & 1 == 1
        }

        fn gives(&self, now: u64) -> bool {
            !self.with_turns || between_turns(now + self.phase * STEP)
        }
    }

    const MS: u64 = 1_000_000;

    fn share(runtime: u64, deadline: u64, period: u64) -> CpuShare {
        CpuShare { runtime, deadline, period, elsewhere: false }
    }

    /// One that has threads elsewhere may be in the way at any time; the longer deadline is kept nevertheless.
    #[test]
    fn a_vm_with_threads_elsewhere_may_come_at_its_deadline() {
        let elsewhere = CpuShare { elsewhere: true, ..share(2 * MS, 50 * MS, 100 * MS) };
        let by =
            Err(Overload::Deadline { at: 5 * MS, needed: 5_200_000, given: 5 * MS, kept_from: 5_200_000 });
        assert_eq!(admit(&[share(3 * MS, 5 * MS, 100 * MS), elsewhere]), by);
        assert_eq!(admit(&[share(3 * MS, 5 * MS + 2 * LATE, 100 * MS), elsewhere]), Ok(()));
        // Also if all have threads elsewhere.
        let ten = [CpuShare { elsewhere: true, ..share(5 * MS, 5 * MS, 100 * MS) }; 10];
        let Err(Overload::Deadline { needed, given, .. }) = admit(&ten) else { panic!("{:?}", admit(&ten)) };
        assert!(needed >= 51_000_000 && needed > given);
        let two = [5 * MS, 55 * MS / 10].map(|d| CpuShare { elsewhere: true, ..share(3 * MS, d, 100 * MS) });
        assert!(matches!(admit(&two), Err(Overload::Deadline { kept_from: 6_200_000, .. })));
        // One deadline is between two at which something is due.
        let between = CpuShare { elsewhere: true, ..share(25 * MS / 10, 53 * MS / 10, 100 * MS) };
        let by = admit(&[share(3 * MS, 5 * MS, 100 * MS), between]);
        assert!(matches!(by, Err(Overload::Deadline { kept_from: 5_700_000, .. })), "{by:?}");
    }

    #[test]
    fn the_demand_is_compared_with_the_time() {
        // 0.1 + 2 + 0.1 + 2.8 = 5 ms, and 1 ns more is too much.
        let two =
            |more| [share(2 * MS, 2 * MS + LATE, 100 * MS), share(28 * MS / 10 + more, 5 * MS, 100 * MS)];
        assert_eq!(admit(&two(0)), Ok(()));
        let by =
            Overload::Deadline { at: 5_000_000, needed: 5_000_001, given: 5_000_000, kept_from: 5_000_001 };
        assert_eq!(admit(&two(1)), Err(by));
        assert_eq!(admit(&[]), Ok(()));
    }

    #[test]
    fn a_sixteenth_of_the_period_is_taken_off() {
        // Of 16 ms 15 count: 13.5 ms of these are nine tenths, and a turn of others may end late.
        assert_eq!(
            admit(&[share(135 * MS / 10, 16 * MS, 16 * MS)]),
            Err(Overload::Rate { needed: 900, given: 898 })
        );
        assert_eq!(admit(&[share(13 * MS, 16 * MS, 16 * MS)]), Ok(()));
    }

    #[test]
    fn where_a_turn_of_others_can_come_up_it_is_in_the_way() {
        // Two that use 80 ms of 200 each: after 45 ms others have 5 ms.
        let long = |deadline| [share(80 * MS, deadline, 200 * MS), share(80 * MS, deadline, 200 * MS)];
        assert!(turns(&long(200 * MS)));
        // 160.2 ms in rounds of 45 of 50.1 ms: three and 25.2 ms.
        let needs = 3 * (50 * MS + LATE) + (5 * MS + LATE) + 25 * MS + 2 * LATE;
        assert_eq!(admit(&long(needs)), Ok(()));
        assert!(matches!(admit(&long(needs - 1)), Err(Overload::Deadline { .. })));
        assert!(!turns(&[share(2 * MS, 5 * MS, 10 * MS), share(2 * MS, 5 * MS, 10 * MS)]));
    }

    /// Whatever the values of a policy.
    #[test]
    fn extreme_values_are_decided() {
        const LONGEST: u64 = 9_223_372_036_000_000_000;
        for shares in [
            vec![share(1, 1, 16); 64],
            vec![share(LONGEST, LONGEST, LONGEST); 64],
            vec![share(100_000, 100_000, 100_000), share(LONGEST / 3, LONGEST, LONGEST)],
            vec![share(100_000, LONGEST, LONGEST); 64],
            vec![share(100_000, 1_000_000, 1_000_000), share(LONGEST / 3, LONGEST, LONGEST)],
        ] {
            let _ = admit(&shares);
        }
    }
}
