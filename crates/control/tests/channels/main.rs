//! How a plan handles channels: the queue and segments that it wants, its guarantees, and why it refuses.
#![allow(clippy::unwrap_used)]

#[path = "../common/mod.rs"]
mod common;
mod granted;
mod hfsc;
mod refused;

use common::{at, channel, host, link, nic};
use proptest::prelude::*;
use proptest::test_runner::{TestCaseError, TestRunner};
use teiji_control::plan::plan;
use teiji_model::observed::{DeadlineSupport, LinkKind, Observed, ObservedLink};
use teiji_model::plan::{Held, Hold, LinkGuarantee, Plan};
use teiji_model::policy::{Auto, ChannelPolicy, Endpoint, LinkPolicy, Policy, Problem};
use teiji_model::qdisc::{DeadlineQdisc, Device, MAX_CHANNELS, MAX_NAME, MAX_SHAPES, RootQdisc, Scheduler};
use teiji_model::resource::{Resource, ResourceError, Value};

const MS: u64 = 1_000_000;
const MBIT: u64 = 1_000_000;

/// eth0 with 1 Gbit/s and an MTU of 1,500, used by the host only.
fn one() -> Observed {
    host("0-3", Vec::new(), vec![nic("eth0", Vec::new())])
}

fn with(change: impl FnOnce(&mut ObservedLink)) -> Observed {
    let mut link = nic("eth0", Vec::new());
    change(&mut link);
    host("0-3", Vec::new(), vec![link])
}

fn channels(channels: Vec<ChannelPolicy>) -> Policy {
    Policy { links: vec![link("eth0", 1)], channels, ..Policy::default() }
}

/// A SIP channel of 2 Mbit/s within 3 ms, on lines 20 to 22.
fn sip() -> ChannelPolicy {
    channel("sip", 20, 5060, 3 * MS, 2 * MBIT)
}

fn ok(policy: &Policy, observed: &Observed) -> Plan {
    plan(policy, observed, &Held::default()).unwrap_or_else(|e| panic!("{e:#?}"))
}

#[track_caller]
fn refused(policy: &Policy, observed: &Observed, location: &str, parts: &[&str]) {
    let problems = plan(policy, observed, &Held::default()).expect_err("should have been refused");
    let text: Vec<String> = problems.iter().map(Problem::to_string).collect();
    assert_eq!(text.len(), 1, "{text:#?}");
    assert!(text[0].starts_with(&format!("p.toml:{location}: ")), "{location}: {text:#?}");
    for part in parts {
        assert!(text[0].contains(part), "{part:?} is not in: {}", text[0]);
    }
    assert!(!text[0].chars().any(char::is_control), "{text:?}");
}

/// The wanted queue, of the only step for a queue.
fn queue(plan: &Plan) -> DeadlineQdisc {
    let wanted = plan.steps.iter().filter_map(|s| match &s.wanted {
        Value::RootQdisc(RootQdisc::Deadline(d)) => Some((**d).clone()),
        _ => None,
    });
    let [only] = &wanted.collect::<Vec<_>>()[..] else { panic!("{:#?}", plan.steps) };
    only.clone()
}

fn segment(plan: &Plan) -> Option<u32> {
    plan.steps.iter().find_map(|s| match s.wanted {
        Value::Bytes(bytes) => Some(bytes),
        _ => None,
    })
}

/// For any policy and host: admitted channels are guaranteed in time, and the wanted queue is one that can keep them;
/// other channels are refused with a reason and its place. Both cases occur.
#[test]
fn admitted_channels_are_guaranteed() {
    let (mut admitted, mut refused, mut none) = (0, 0, 0);
    let counts = std::cell::RefCell::new((&mut admitted, &mut refused, &mut none));
    let mut runner =
        TestRunner::new(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() });
    let hosts = (common::any_host(), proptest::bool::weighted(0.3)).prop_map(|(mut host, old)| {
        if old {
            host.deadline_support = DeadlineSupport::Hfsc("its BTF has no Qdisc_ops".into());
        }
        host
    });
    let run = runner.run(&(hosts, common::any_channels()), |(observed, policy)| {
        let mut counts = counts.borrow_mut();
        match plan(&policy, &observed, &Held::default()) {
            Err(problems) => {
                prop_assert!(!problems.is_empty());
                prop_assert!(problems.iter().all(|p| p.location.file == "p.toml" && !p.message.is_empty()));
                *counts.1 += 1;
            }
            Ok(plan) => {
                let guaranteed: usize = plan.links.iter().map(|l| l.channels.len()).sum();
                prop_assert_eq!(guaranteed, policy.channels.len());
                plan.links.iter().try_for_each(|link| kept(link, &plan, &observed))?;
                *(if guaranteed > 0 { &mut *counts.0 } else { &mut *counts.2 }) += 1;
            }
        }
        Ok(())
    });
    run.unwrap();
    let all = admitted + refused + none;
    assert!(admitted * 10 > all && refused * 10 > all, "{admitted} admitted, {refused} refused of {all}");
}

/// Whether the link's wanted queue has the settings of the guarantee, within the limits of the device.
fn kept(link: &LinkGuarantee, plan: &Plan, observed: &Observed) -> Result<(), TestCaseError> {
    prop_assert!(link.channels.iter().all(|c| 0 < c.bound && c.bound <= c.deadline), "{:?}", link);
    prop_assert!(link.reserved <= link.rate && link.rate.is_multiple_of(8));
    prop_assert_eq!(link.channels.iter().map(|c| c.rate).sum::<u64>(), link.reserved);
    let device = observed.links.iter().find(|l| l.name == link.link).unwrap();
    prop_assert!(device.speed.is_none_or(|speed| link.rate <= speed));
    prop_assert!(link.largest >= device.mtu + 14);
    let wanted = plan.steps.iter().find(|s| s.setting == Resource::RootQdisc(device.device()));
    let Some(Value::RootQdisc(RootQdisc::Deadline(queue))) = wanted.map(|s| &s.wanted) else {
        return Err(TestCaseError::fail(format!("no queue for {link:?}")));
    };
    prop_assert_eq!((queue.rate, queue.slack), (link.rate, link.slack));
    let expected = match observed.deadline_support {
        DeadlineSupport::Hfsc(_) => Scheduler::Hfsc,
        _ => Scheduler::Edf,
    };
    prop_assert_eq!((queue.scheduler, link.scheduler), (expected, expected));
    prop_assert!(queue.realtime_max == 0 || queue.realtime_max >= link.reserved);
    Ok(())
}
