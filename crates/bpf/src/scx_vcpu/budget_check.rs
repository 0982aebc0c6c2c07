//! Compares the account that scx_vcpu keeps of budgets (`deadline.bpf.h`) with what `control::admission::cpu` takes it to be. Needs root,
//! as loading programs does.

use super::{Figures, types};
use crate::object::{bytes_of, map, value_of};
use libbpf_rs::{MapCore, MapFlags, Object, ObjectBuilder, ProgramInput};
use proptest::prelude::*;

static OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/budget_check.bpf.o"));

/// Any time that a clock may have, ns.
const BEGIN: u64 = 1_000_000_000_000;
/// How late a turn ends at most, ns.
const LATE: u64 = 100_000;
const SLOTS: u64 = Figures::SLOTS_PER_PERIOD;
const VHOST_WORKER: u64 = 0;
const VCPU: u64 = 1;

/// What `turn` is given: `struct running` of `budget_check.bpf.c`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
struct Running {
    role: u64,
    woke: u64,
    now: u64,
    most: u64,
    needs: u64,
    late: u64,
    look: u64,
    ran: u64,
    released: u64,
    again: u64,
}

/// A VM, in the kernel.
struct Vm(Object);

impl Vm {
    fn new() -> Vm {
        crate::silence_libbpf();
        let open = ObjectBuilder::default().name("budget_check").unwrap().open_memory(OBJECT).unwrap();
        Vm(open.load().unwrap())
    }

    /// Begins anew with these promises, ns.
    fn promise(&mut self, budget: u64, period: u64) {
        self.promise_now(budget, period);
        let state = types::vm_state::default();
        map(&self.0, "states").unwrap().update(&0u32.to_ne_bytes(), bytes_of(&state), MapFlags::ANY).unwrap();
    }

    /// Changes the promises of a VM that runs.
    fn promise_now(&mut self, budget: u64, period: u64) {
        let settings = types::vm_settings { deadline: period, period, budget };
        map(&self.0, "vms").unwrap().update(&0u32.to_ne_bytes(), bytes_of(&settings), MapFlags::ANY).unwrap();
    }

    /// What a worker that wakes up then, and would use the CPU as long as it may, gets before others within a period.
    fn gets(&mut self, woke: u64, period: u64, late: u64) -> u64 {
        let (mut now, mut had) = (woke, 0);
        while now - woke < period {
            let needs = u64::MAX;
            let most = 10_000_000;
            let turn =
                self.turn(Running { role: VHOST_WORKER, woke, now, most, needs, late, ..Running::default() });
            had += turn.ran;
            now += if turn.ran > 0 { turn.ran } else { period / SLOTS };
        }
        had
    }

    fn turn(&mut self, of: Running) -> Running {
        let mut context = bytes_of(&of).to_vec();
        let program = self.0.progs_mut().find(|p| p.name() == "turn").unwrap();
        let input = ProgramInput { context_in: Some(&mut context), ..ProgramInput::default() };
        assert_eq!(program.test_run(input).unwrap().return_value, 0);
        value_of(&context)
    }
}

/// Whatever it had used before, and however late its turns were: what is owed is paid by then.
#[test]
fn a_vm_that_has_slept_has_its_budget() {
    const MS: u64 = 1_000_000;
    let mut vm = Vm::new();
    vm.promise(2 * MS, 10 * MS);
    assert_eq!(vm.gets(BEGIN, 10 * MS, 0), 2 * MS);
    // One turn too long by 50 ms: of 25 periods.
    vm.promise(2 * MS, 10 * MS);
    let most = vm.gets(BEGIN, MS, 50 * MS);
    assert!(most > 50 * MS, "{most}");
    assert_eq!(vm.gets(BEGIN + 60 * MS, 10 * MS, 0), 0, "it is owed");
    assert_eq!(vm.gets(BEGIN + 1000 * MS, 10 * MS, 0), 2 * MS, "it has slept");
    // With small debts time and again, each is paid after a while.
    for n in 1..20 {
        let had = vm.gets(BEGIN + (1000 + n * 40) * MS, 10 * MS, LATE);
        assert!((2 * MS..=2 * MS + LATE).contains(&had), "{had}");
    }
}

/// The slots of a longer period have smaller numbers.
#[test]
fn another_period_does_not_leave_a_debt() {
    const MS: u64 = 1_000_000;
    for period in [5, 20, 1000] {
        let mut vm = Vm::new();
        vm.promise(2 * MS, 10 * MS);
        vm.gets(BEGIN, 10 * MS, 4 * MS);
        vm.promise_now(2 * MS, period * MS);
        let begin = BEGIN + 100 * period * MS;
        for n in 0..5 {
            let had = vm.gets(begin + 3 * n * period * MS, period * MS, 0);
            assert!(n == 0 || had == 2 * MS, "{had} of the {n}th");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    /// Whenever a VM's threads wake up, and however many of their turns end late: what is released within any sixteen sixteenths of a
    /// period gets at most the budget, but for what one turn took too long.
    #[test]
    fn a_budget_is_exceeded_by_one_late_turn_at_most(
        budget in LATE..20_000_000,
        periods in 1..20_u64,
        most in Figures::MIN_SLICE..10_000_000,
        jobs in prop::collection::vec(
            (any::<bool>(), any::<bool>(), 0..3_000_u64, 0..2_000_u64, prop::collection::vec(0..=LATE, 1..4)), 1..40)
    ) {
        let width = (budget * periods).div_ceil(SLOTS);
        let mut vm = Vm::new();
        vm.promise(budget, width * SLOTS);
        let (mut now, mut had) = (BEGIN, Vec::new());
        // Thousandths: of a period without work, and of a budget that is needed.
        for (worker, look, sleeps, needs, lates) in jobs {
            now += sleeps * width * SLOTS / 1000;
            let woke = now;
            let role = if worker { VHOST_WORKER } else { VCPU };
            let (mut needs, mut lates) = (needs * budget / 1000, lates.into_iter().cycle());
            while needs > 0 && now - woke < 8 * SLOTS * width {
                let late = lates.next().unwrap_or(0);
                let look = look.into();
                let turn = vm.turn(Running { role, woke, now, most, needs, late, look, ..Running::default() });
                if turn.ran > 0 {
                    had.push((turn.released / width, turn.ran));
                }
                // By weight it gets nothing here. Nobody else uses the budget: there is some when it says so.
                if turn.ran > 0 {
                    prop_assert_eq!(turn.again, 0);
                    now += turn.ran;
                } else {
                    prop_assert!(turn.again > now && turn.again <= now + SLOTS * width, "{:?}", turn);
                    now = turn.again;
                    let then = vm.turn(Running { now, needs: 0, again: 0, ..turn });
                    // What is owed may leave less of half a small budget than is worth a turn, for another period.
                    if budget / 2 >= Figures::MIN_SLICE + LATE {
                        prop_assert_eq!(then.again, 0, "{:?}", turn);
                    }
                }
                needs = needs.saturating_sub(turn.ran);
            }
        }
        for first in had.iter().map(|(slot, _)| *slot) {
            for n in 1..6 {
                let in_it = had.iter().filter(|(slot, _)| (first..first + n * SLOTS).contains(slot));
                let got: u64 = in_it.map(|(_, ran)| ran).sum();
                prop_assert!(got <= n * budget + LATE, "{} of {} in {} periods: {:?}", got, budget, n, had);
            }
        }
    }
}
