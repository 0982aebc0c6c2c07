//! Plan and engine together, on hosts and with policies made up by chance.

use crate::common::{any_host, any_policy, observe_again};
use crate::sim::Sim;
use proptest::collection::vec;
use proptest::prelude::*;
use std::time::Duration;
use teiji_agent::apply::{Error, Rollback};
use teiji_control::plan::plan;
use teiji_model::plan::{Held, Plan};
use teiji_model::qdisc::RootQdisc;
use teiji_model::resource::{Resource, Value};

/// Notes of each new queue how large segments may be once the plan is carried out.
fn counts_on(sim: &Sim, plan: &Plan) {
    let after = |setting: &Resource| {
        let step = plan.steps.iter().find(|s| s.setting == *setting);
        step.map(|s| s.wanted.clone()).or_else(|| sim.settings().get(setting).cloned())
    };
    for step in &plan.steps {
        let (Resource::RootQdisc(device), Value::RootQdisc(RootQdisc::Deadline(_))) =
            (&step.setting, &step.wanted)
        else {
            continue;
        };
        let Some(Value::Bytes(size)) = after(&Resource::SegmentSize(device.clone())) else { continue };
        sim.count_on(device, &step.wanted, size);
    }
}

proptest! {
    #[test]
    fn an_applied_plan_is_enough_and_is_undone(observed in any_host(), policies in vec(any_policy(), 1..4), kill in vec(1..60u64, 4), fails in vec(any::<prop::sample::Index>(), 4)) {
        let sim = Sim::new(observed.settings.values());
        *sim.0.online.borrow_mut() = observed.cpus.clone();
        for ((policy, kill), fails) in policies.iter().zip(kill).zip(fails) {
            let now = observe_again(&observed, &sim.settings());
            let Ok(steps) = plan(policy, &now, &sim.held()) else { continue };
            counts_on(&sim, &steps);
            // Whichever step fails, those before it are taken back.
            if !steps.steps.is_empty() {
                let before = sim.settings();
                *sim.0.fails.borrow_mut() = Some(fails.get(&steps.steps).setting.clone());
                let failed = sim.apply(&steps);
                prop_assert!(matches!(&failed, Err(Error::Undone { messages, .. }) if messages.is_empty()), "{:?}", failed);
                prop_assert_eq!((sim.settings(), sim.is_clean()), (before, true));
            }
            // Some processes are killed on the way, and the plan is made again.
            if sim.killed_at(kill, |s| s.apply(&steps).map(drop)).is_none() {
                sim.engine().recover(Duration::ZERO).unwrap();
                let now = observe_again(&observed, &sim.settings());
                let again = plan(policy, &now, &sim.held()).unwrap();
                prop_assert!(again == steps || again.steps.is_empty());
                sim.apply(&again).unwrap();
            }
            let now = observe_again(&observed, &sim.settings());
            prop_assert_eq!(plan(policy, &now, &sim.held()).map(|p| p.steps), Ok(Vec::new()));
        }
        let done = sim.engine().rollback(&Rollback::default()).unwrap();
        prop_assert_eq!(done.messages, []);
        prop_assert_eq!(sim.settings(), observed.settings.values());
        prop_assert_eq!(sim.held(), Held::default());
        prop_assert!(sim.is_clean());
    }
}
