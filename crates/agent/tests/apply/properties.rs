//! Plan and engine together, on hosts and with policies made up by chance.

use crate::common::{any_host, any_policy, observe_again};
use crate::sim::Sim;
use proptest::collection::vec;
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::time::Duration;
use teiji_agent::apply::{Error, Message, Rollback};
use teiji_control::plan::plan_with_classes;
use teiji_model::plan::{Held, Plan};
use teiji_model::qdisc::RootQdisc;
use teiji_model::resource::{Class, RESOURCE_KINDS, Resource, ResourceKind, Value};

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

fn any_classes() -> impl Strategy<Value = BTreeMap<ResourceKind, Class>> {
    let class =
        prop_oneof![6 => Just(Class::Atomic), 1 => Just(Class::Controlled), 1 => Just(Class::Operation)];
    vec(class, RESOURCE_KINDS.len()).prop_map(|classes| RESOURCE_KINDS.into_iter().zip(classes).collect())
}

/// What goes wrong with one policy: where the process is killed, which step fails, and which cannot be restored.
type Mishaps = (u64, prop::sample::Index, prop::sample::Index);

proptest! {
    #[test]
    fn an_applied_plan_is_enough_and_is_undone(
        observed in any_host(),
        policies in vec(any_policy(), 1..4),
        mishaps in vec(any::<Mishaps>(), 4),
        classes in any_classes(),
        resets_cpus in any::<bool>(),
    ) {
        let sim = Sim::new(observed.settings.values());
        *sim.0.online.borrow_mut() = observed.cpus.clone();
        sim.0.resets_cpus.set(resets_cpus);
        *sim.0.classes.borrow_mut() = classes.clone();
        let class = |resource: &Resource| classes[&resource.kind()];
        // An operation that cannot go back is left where it is.
        let sticks = |resource: &Resource| class(resource) != Class::Operation;
        for (policy, (kill, fails, stuck)) in policies.iter().zip(&mishaps) {
            let plan = |sim: &Sim| {
                let now = observe_again(&observed, &sim.settings());
                plan_with_classes(policy, &now, &sim.held(), &class)
            };
            let Ok(steps) = plan(&sim) else { continue };
            counts_on(&sim, &steps);
            // Whichever step fails, those before it are taken back.
            if !steps.steps.is_empty() {
                let before = sim.settings();
                *sim.0.fails.borrow_mut() = Some(fails.get(&steps.steps).setting.clone());
                let failed = sim.apply(&steps);
                prop_assert!(matches!(&failed, Err(Error::Undone { messages, .. }) if messages.is_empty()), "{:?}", failed);
                prop_assert_eq!((sim.settings(), sim.is_clean()), (before.clone(), true));
                // If one cannot be taken back, nothing that requires it is, and later everything.
                let stuck = stuck.get(&steps.steps);
                if sticks(&stuck.setting) {
                    *sim.0.fails.borrow_mut() = Some(fails.get(&steps.steps).setting.clone());
                    *sim.0.stuck.borrow_mut() = Some((stuck.setting.clone(), stuck.present.clone()));
                    let failed = sim.apply(&steps);
                    prop_assert!(matches!(&failed, Err(Error::Undone { .. } | Error::NotUndone { .. })), "{:?}", failed);
                    *sim.0.stuck.borrow_mut() = None;
                    let messages = sim.engine().recover(Duration::ZERO).unwrap();
                    prop_assert!(messages.iter().all(|message| matches!(message, Message::Undone { .. })), "{:?}", messages);
                    prop_assert_eq!((sim.settings(), sim.is_clean()), (before, true));
                }
                *sim.0.fails.borrow_mut() = None;
            }
            // Some processes are killed on the way, and the plan is made again.
            if sim.killed_at(kill % 60 + 1, |s| s.apply(&steps).map(drop)).is_none() {
                sim.engine().recover(Duration::ZERO).unwrap();
                let again = plan(&sim).unwrap();
                prop_assert!(again == steps || again.steps.is_empty());
                sim.apply(&again).unwrap();
            }
            // A controller goes on writing.
            if class(&Resource::HaltPoll) == Class::Controlled && sim.held().settings.contains_key(&Resource::HaltPoll) {
                sim.set(Resource::HaltPoll, Value::Nanoseconds(kill % 1000));
            }
            let after = plan(&sim);
            prop_assert_eq!(after.map(|p| p.steps), Ok(Vec::new()));
        }
        let held: Vec<_> = sim.held().settings.into_iter().filter(|(setting, _)| sticks(setting)).collect();
        if !held.is_empty() {
            let (setting, hold) = mishaps[3].2.get(&held);
            *sim.0.stuck.borrow_mut() = Some((setting.clone(), hold.original.clone()));
            let failed = sim.engine().rollback(&Rollback::default());
            prop_assert!(matches!(&failed, Ok(_) | Err(Error::Unrestored { .. })), "{:?}", failed);
            *sim.0.stuck.borrow_mut() = None;
        }
        let done = sim.engine().rollback(&Rollback::default()).unwrap();
        prop_assert!(done.messages.iter().all(|message| matches!(message, Message::RolledBack { .. })), "{:?}", done.messages);
        prop_assert_eq!(sim.settings(), observed.settings.values());
        prop_assert_eq!(sim.held(), Held::default());
        prop_assert!(sim.is_clean());
    }
}
