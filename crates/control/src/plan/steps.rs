//! Which settings differ, and in which order they are changed.
//!
//! Returning steps come first: what a dropped line of the policy did may stand in the way of a new one. Forward:
//! settings of the host, groups, their weights, affinity, and scheduling with the real-time classes last; a thread
//! is taken out of `SCHED_DEADLINE` before its affinity is changed, which the kernel refuses otherwise (EBUSY,
//! `dl_task_check_affinity`). A link's queue comes last, after the segments that its guarantees rest on have become
//! smaller and before they become larger. Back: the other way round, but out of a real-time class first and into one
//! last.

use super::Want;
use std::cmp::Reverse;
use std::collections::BTreeSet;
use teiji_model::plan::{Held, Hold, Observed, Plan, Step};
use teiji_model::setting::{Scheduling, Setting, Value};
use teiji_model::text::printable;

/// Whether such a thread keeps ordinary ones from its CPU.
pub(super) fn real_time(scheduling: &Scheduling) -> bool {
    matches!(
        scheduling,
        Scheduling::Fifo { .. } | Scheduling::RoundRobin { .. } | Scheduling::Deadline { .. }
    )
}

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
    let mut steps = Vec::new();
    for (setting, hold) in held.settings.iter().filter(|(s, _)| !wanted.contains(s)) {
        // A task that is gone took its settings along.
        let Some(present) = observed.settings.get(setting) else { continue };
        if *present == hold.original {
            // Put back already; nothing is left to do and nothing to say.
        } else if *present == hold.value {
            steps.push(back(setting, hold));
        } else {
            let changed = changed(setting, hold, present);
            warnings.push(format!("{changed}; it is no longer in the policy and is left as it is"));
        }
    }
    steps.sort_by_key(|s| (real_time_value(&s.wanted), !real_time_value(&s.present), Reverse(rank(s))));

    let mut forward: Vec<Step> = Vec::new();
    for want in wants {
        let Some(present) = observed.settings.get(&want.setting) else { continue };
        if *present == want.wanted {
            continue;
        }
        if let Some(hold) = held.settings.get(&want.setting).filter(|h| h.value != *present) {
            warnings.push(changed(&want.setting, hold, present));
        }
        forward.push(Step {
            setting: want.setting.clone(),
            whose: want.whose.clone(),
            present: present.clone(),
            wanted: want.wanted.clone(),
            reason: want.reason.clone(),
            cost: want.cost.clone(),
        });
    }
    // Stable: within a rank as the policy has it. Segments that may become larger do so once the queue allows for them.
    forward.sort_by_key(|s| if larger_segments(s) { rank(s) + LAST } else { rank(s) });
    steps.append(&mut forward);

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

/// More than any [`rank`].
const LAST: u8 = 20;

fn larger_segments(step: &Step) -> bool {
    matches!((&step.present, &step.wanted), (Value::Bytes(present), Value::Bytes(wanted)) if wanted > present)
}

fn rank(step: &Step) -> u8 {
    match &step.setting {
        Setting::IrqCpus(_) => 0,
        Setting::CpuLatency(_) => 1,
        Setting::HaltPoll => 2,
        // The queue's guarantees rest on it.
        Setting::SegmentSize(_) => 2,
        Setting::Group(_) => 3,
        Setting::GroupWeight(_) => 4,
        Setting::GroupQuota(_) => 5,
        Setting::ThreadScheduling(_) if deadline(&step.present) && !deadline(&step.wanted) => 6,
        Setting::ThreadCpus(_) => 7,
        Setting::ThreadScheduling(_) if !real_time_value(&step.wanted) => 8,
        Setting::ThreadScheduling(_) => 9,
        Setting::Queue(_) => 10,
    }
}

fn real_time_value(value: &Value) -> bool {
    matches!(value, Value::Scheduling(s) if real_time(s))
}

fn deadline(value: &Value) -> bool {
    matches!(value, Value::Scheduling(Scheduling::Deadline { .. }))
}
