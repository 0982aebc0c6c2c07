//! Which settings differ, and in which order they are changed.
//!
//! The order obeys the dependencies ([`teiji_model::resource::dependency`]). Of steps that do not depend on one
//! another, returning ones come first, as the effect of a removed line of the policy may conflict with a new one;
//! real-time classes come last.

use super::{HostAndHeld, Rest, WantedSetting};
use std::collections::{BTreeMap, BTreeSet};
use teiji_model::plan::{Hold, NO_LONGER_IN_POLICY, Plan, Step, ordered};
use teiji_model::resource::{Class, RESOURCE_KINDS, Resource, Value};
use teiji_model::text::printable;

/// The value after the plan of a setting that the policy does not name; `None` if it cannot be read.
pub(super) fn unwanted<'a>(setting: &Resource, host: HostAndHeld<'a>) -> Option<&'a Value> {
    let present = host.observed.settings.get(setting)?;
    match host.held.settings.get(setting).filter(|_| host.rest == Rest::Returns) {
        Some(hold) if hold.value == *present || !is_atomic(setting, host) => Some(&hold.original),
        _ => Some(present),
    }
}

/// Whether a value that teiji has not set is somebody else's. That of another resource may be its controller's, or a
/// stage of an operation.
fn is_atomic(setting: &Resource, host: HostAndHeld<'_>) -> bool {
    (host.class)(setting) == Class::Atomic
}

/// The plan, if every wanted setting can be read.
pub(super) fn steps_to_take(
    wants: &[WantedSetting],
    mut warnings: Vec<String>,
    host: HostAndHeld<'_>,
) -> Plan {
    let HostAndHeld { observed, held, .. } = host;
    let wanted: BTreeSet<&Resource> = wants.iter().map(|w| &w.setting).collect();
    let (mut returning, mut forward) = (Vec::new(), Vec::new());
    let is_rest = |setting: &Resource| host.rest == Rest::Returns && !wanted.contains(setting);
    for (setting, hold) in held.settings.iter().filter(|(s, _)| is_rest(s)) {
        // A task that has ended has no settings any more.
        let Some((setting, present)) = observed.settings.get_named(setting) else { continue };
        if !is_atomic(setting, host) {
            // Also if it is at the original for an instant: it is held until a step returns it.
            returning.push(restoring_step(setting, present, hold));
        } else if *present == hold.original {
            // Already restored: there is nothing to do and nothing to report.
        } else if *present == hold.value {
            returning.push(restoring_step(setting, present, hold));
        } else {
            let changed = changed(setting, hold, present);
            warnings.push(format!("{changed}; it is no longer in the policy and is left as it is"));
        }
    }

    for want in wants {
        let Some(present) = observed.settings.get(&want.setting) else { continue };
        let hold = held.settings.get(&want.setting);
        let taken = if is_atomic(&want.setting, host) {
            *present == want.wanted
        } else {
            // Whatever its controller has written since, or how far the operation is.
            hold.is_some_and(|hold| hold.value == want.wanted)
        };
        if taken {
            continue;
        }
        if let Some(hold) = hold.filter(|h| h.value != *present && is_atomic(&want.setting, host)) {
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

fn restoring_step(setting: &Resource, present: &Value, hold: &Hold) -> Step {
    Step {
        setting: setting.clone(),
        whose: hold.whose.clone(),
        present: present.clone(),
        wanted: hold.original.clone(),
        reason: NO_LONGER_IN_POLICY.to_owned(),
        cost: String::new(),
    }
}
