//! Which settings differ, and in which order they are changed.
//!
//! The order obeys the dependencies ([`teiji_model::resource::dependency`]). Of steps that do not depend on one
//! another, returning ones come first, as the effect of a removed line of the policy may conflict with a new one;
//! real-time classes come last.

use super::WantedSetting;
use std::collections::{BTreeMap, BTreeSet};
use teiji_model::plan::{Held, Hold, Observed, Plan, Step, ordered};
use teiji_model::resource::{RESOURCE_KINDS, Resource, Value};
use teiji_model::text::printable;

/// The value after the plan of a setting that the policy does not name; `None` if it cannot be read.
pub(super) fn unwanted<'a>(setting: &Resource, observed: &'a Observed, held: &'a Held) -> Option<&'a Value> {
    let present = observed.settings.get(setting)?;
    match held.settings.get(setting) {
        Some(hold) if hold.value == *present => Some(&hold.original),
        _ => Some(present),
    }
}

/// The plan, if every wanted setting can be read.
pub(super) fn steps_to_take(
    wants: &[WantedSetting],
    mut warnings: Vec<String>,
    observed: &Observed,
    held: &Held,
) -> Plan {
    let wanted: BTreeSet<&Resource> = wants.iter().map(|w| &w.setting).collect();
    let (mut returning, mut forward) = (Vec::new(), Vec::new());
    for (setting, hold) in held.settings.iter().filter(|(s, _)| !wanted.contains(s)) {
        // A task that has ended has no settings any more.
        let Some((setting, present)) = observed.settings.get_named(setting) else { continue };
        if *present == hold.original {
            // Already restored: there is nothing to do and nothing to report.
        } else if *present == hold.value {
            returning.push(restoring_step(setting, hold));
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
        forward.push(step);
    }
    // Steps of one kind stay in the order of the policy.
    let all: Vec<(bool, Step)> =
        returning.into_iter().map(|s| (false, s)).chain(forward.into_iter().map(|s| (true, s))).collect();
    let steps = in_order(all);

    for manager in &observed.managers {
        if steps.iter().any(|s| manager.touches.contains(&s.setting.kind())) {
            warnings.push(format!("{}: {}", manager.name, manager.advice));
        }
    }
    Plan { steps, warnings: warnings.iter().map(|w| printable(w)).collect(), ..Plan::default() }
}

/// Returning steps (`false`) are in the reverse order of kinds, forward steps in the order of kinds.
fn in_order(all: Vec<(bool, Step)>) -> Vec<Step> {
    let rank = |(forward, step): &(bool, Step)| {
        let rank = step.setting.kind().rank();
        (*forward, if *forward { rank } else { RESOURCE_KINDS.len() - rank })
    };
    let ranks: BTreeMap<Resource, (bool, usize)> =
        all.iter().map(|one| (one.1.setting.clone(), rank(one))).collect();
    ordered(all.into_iter().map(|(_, step)| step).collect(), |step| ranks.get(&step.setting).copied())
}

fn changed(setting: &Resource, hold: &Hold, present: &Value) -> String {
    format!("{setting} ({}) was changed by someone else from {} to {present}", hold.whose, hold.value)
}

fn restoring_step(setting: &Resource, hold: &Hold) -> Step {
    Step {
        setting: setting.clone(),
        whose: hold.whose.clone(),
        present: hold.value.clone(),
        wanted: hold.original.clone(),
        reason: "no longer in the policy".to_owned(),
        cost: String::new(),
    }
}
