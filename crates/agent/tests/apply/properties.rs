//! Plan and engine together, on hosts and with policies made up by chance.

use crate::common::{any_host, any_policy, observe_again};
use crate::sim::Sim;
use proptest::collection::vec;
use proptest::prelude::*;
use std::time::Duration;
use teiji_agent::apply::Rollback;
use teiji_control::plan::plan;
use teiji_model::plan::Held;

proptest! {
    #[test]
    fn an_applied_plan_is_enough_and_is_undone(observed in any_host(), policies in vec(any_policy(), 1..4), kill in vec(1..60u64, 4)) {
        let sim = Sim::new(observed.settings.clone());
        for (policy, kill) in policies.iter().zip(kill) {
            let now = observe_again(&observed, &sim.settings());
            let Ok(steps) = plan(policy, &now, &sim.held()) else { continue };
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
        prop_assert_eq!(done.notes, []);
        prop_assert_eq!(sim.settings(), observed.settings);
        prop_assert_eq!(sim.held(), Held::default());
        prop_assert!(sim.is_clean());
    }
}
