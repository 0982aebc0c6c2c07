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
    ran: u64,
    released: u64,
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
        let settings = types::vm_settings { deadline: period, period, budget };
        let first = 0u32.to_ne_bytes();
        map(&self.0, "vms").unwrap().update(&first, bytes_of(&settings), MapFlags::ANY).unwrap();
        let state = types::vm_state::default();
        map(&self.0, "states").unwrap().update(&first, bytes_of(&state), MapFlags::ANY).unwrap();
    }

    fn turn(&mut self, of: Running) -> Running {
        let mut context = bytes_of(&of).to_vec();
        let program = self.0.progs_mut().find(|p| p.name() == "turn").unwrap();
        let input = ProgramInput { context_in: Some(&mut context), ..ProgramInput::default() };
        assert_eq!(program.test_run(input).unwrap().return_value, 0);
        value_of(&context)
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
            (any::<bool>(), 0..3_000_u64, 0..2_000_u64, prop::collection::vec(0..=LATE, 1..4)), 1..40)
    ) {
        let width = (budget * periods).next_multiple_of(SLOTS) / SLOTS;
        let mut vm = Vm::new();
        vm.promise(budget, width * SLOTS);
        let (mut now, mut had) = (BEGIN, Vec::new());
        // Thousandths: of a period without work, and of a budget that is needed.
        for (worker, sleeps, needs, lates) in jobs {
            now += sleeps * width * SLOTS / 1000;
            let woke = now;
            let role = if worker { VHOST_WORKER } else { VCPU };
            let (mut needs, mut lates) = (needs * budget / 1000, lates.into_iter().cycle());
            while needs > 0 && now - woke < 8 * SLOTS * width {
                let late = lates.next().unwrap_or(0);
                let turn = vm.turn(Running { role, woke, now, most, needs, late, ..Running::default() });
                if turn.ran > 0 {
                    had.push((turn.released / width, turn.ran));
                }
                // By weight it gets nothing here.
                now += if turn.ran > 0 { turn.ran } else { width };
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
