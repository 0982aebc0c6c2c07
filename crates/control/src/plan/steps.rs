//! Which settings differ, and in which order they are changed.
//!
//! Returning steps come first: what a dropped line of the policy did may stand in the way of a new one. Forward:
//! settings of the host, groups, their weights, affinity, and scheduling with the real-time classes last; then links'
//! queues. Why so, and the exceptions: [`Step::turn`].

use super::Want;
use std::collections::BTreeSet;
use teiji_model::plan::{Held, Hold, Observed, Plan, Step};
use teiji_model::setting::{Setting, Value};
use teiji_model::text::printable;

/// What a setting that the policy does not name is after the plan; `None` if it cannot be read.
pub(super) fn unwanted<'a>(setting: &Setting, observed: &'a Observed, held: &'a Held) -> Option<&'a Value> {
    let present = observed.settings.get(setting)?;
    match held.settings.get(setting) {
        Some(hold) if hold.value == *present => Some(&hold.original),
        _ => Some(present),
    }
}

/// The plan; every wanted setting can be read.
pub(super) fn between(wants: &[Want], mut warnings: Vec<String>, observed: &Observed, held: &Held) -> Plan {
    let wanted: BTreeSet<&Setting> = wants.iter().map(|w| &w.setting).collect();
    let mut turns: Vec<((u8, u8), Step)> = Vec::new();
    for (setting, hold) in held.settings.iter().filter(|(s, _)| !wanted.contains(s)) {
        // A task that is gone took its settings along.
        let Some(present) = observed.settings.get(setting) else { continue };
        if *present == hold.original {
            // Put back already; nothing is left to do and nothing to say.
        } else if *present == hold.value {
            let step = back(setting, hold);
            turns.push((step.turn(true), step));
        } else {
            let changed = changed(setting, hold, present);
            warnings.push(format!("{changed}; it is no longer in the policy and is left as it is"));
        }
    }

    for want in wants {
        let Some(present) = observed.settings.get(&want.setting) else { continue };
        if *present == want.wanted {
            continue;
        }
        if let Some(hold) = held.settings.get(&want.setting).filter(|h| h.value != *present) {
            warnings.push(changed(&want.setting, hold, present));
        }
        let step = Step {
            setting: want.setting.clone(),
            whose: want.whose.clone(),
            present: present.clone(),
            wanted: want.wanted.clone(),
            reason: want.reason.clone(),
            cost: want.cost.clone(),
        };
        turns.push((step.turn(false), step));
    }
    // Stable: those of the same turn as the policy has them.
    turns.sort_by_key(|(turn, _)| *turn);
    let steps: Vec<Step> = turns.into_iter().map(|(_, step)| step).collect();

    for manager in &observed.managers {
        if steps.iter().any(|s| manager.touches.contains(&s.setting.kind())) {
            warnings.push(format!("{}: {}", manager.name, manager.advice));
        }
    }
    Plan { steps, warnings: warnings.iter().map(|w| printable(w)).collect(), ..Plan::default() }
}

fn changed(setting: &Setting, hold: &Hold, present: &Value) -> String {
    format!("{setting} ({}) was changed by someone else from {} to {present}", hold.whose, hold.value)
}

fn back(setting: &Setting, hold: &Hold) -> Step {
    Step {
        setting: setting.clone(),
        whose: hold.whose.clone(),
        present: hold.value.clone(),
        wanted: hold.original.clone(),
        reason: "no longer in the policy".to_owned(),
        cost: String::new(),
    }
}
