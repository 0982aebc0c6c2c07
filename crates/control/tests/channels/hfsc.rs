//! Channels on a kernel without BPF qdiscs, which HFSC keeps.

use super::*;
use teiji_control::admission::curve;

fn old(mut observed: Observed) -> Observed {
    observed.deadline_support = DeadlineSupport::Hfsc("its BTF has no Qdisc_ops\u{1b}".into());
    observed
}

#[test]
fn hfsc_is_the_queue_of_older_kernels() {
    let plan = ok(&channels(vec![sip()]), &old(one()));
    let queue = queue(&plan);
    assert_eq!((queue.scheduler, queue.slack, queue.realtime_max), (Scheduler::Hfsc, 0, 0));
    let [warning] = &plan.warnings[..] else { panic!("{:?}", plan.warnings) };
    assert!(warning.contains("no BPF qdiscs (its BTF has no Qdisc_ops\\u{1b})"), "{warning}");
    assert!(warning.contains("admits fewer channels") && warning.contains("Linux 6.16"), "{warning}");
    assert_eq!(plan.steps[1].wanted.to_string(), "HFSC, 1 channel, 999mbit");
    // The time of the frame and of the timer is subtracted: 32,786 bytes in frames take 283.6 µs.
    let sip = &queue.channels["sip"];
    let frame = teiji_model::qdisc::frame::on_wire(32_786, 1500) + 24;
    let off = (u64::from(frame) * 8_000).div_ceil(999) + 100_000;
    assert_eq!(sip.deadline, (3 * MS - off) / 1000 * 1000);
    assert_eq!(plan.links[0].channels[0].deadline, 3 * MS);
    assert_eq!(plan.links[0].channels[0].bound, sip.deadline + off);
    assert!(curve::of(sip).is_some());
}

#[test]
fn slack_says_nothing_to_hfsc() {
    let mut policy = channels(vec![sip()]);
    policy.links[0].slack = Some(at(Auto::Auto, 3));
    assert_eq!(ok(&policy, &old(one())).warnings.len(), 1);
    policy.links[0].slack = Some(at(Auto::Nanoseconds(MS), 3));
    let plan = ok(&policy, &old(one()));
    assert!(plan.warnings[1].contains("`link.eth0.slack` has no effect"), "{:?}", plan.warnings);
    assert_eq!(queue(&plan).slack, 0);
}

#[test]
fn hfsc_refuses_where_edf_does_not() {
    // Each has 100 kB within 20 ms: 40 Mbit/s are reserved for 1 Mbit/s. The last one has half the time.
    let mut policy = channels(
        (0..26_u16)
            .map(|i| ChannelPolicy {
                burst: Some(at(100_000, 9)),
                ..channel(&format!("c{i}"), 20 + 5 * usize::from(i), i + 1, 30 * MS, MBIT)
            })
            .collect(),
    );
    policy.channels[25].deadline.value = 20 * MS;
    assert_eq!(queue(&ok(&policy, &one())).scheduler, Scheduler::Edf);
    assert!(plan(&policy, &old(one()), &Held::default()).is_ok());
    policy.channels.iter_mut().take(25).for_each(|c| c.deadline.value = 20_500_000);
    refused(
        &policy,
        &old(one()),
        "146:1",
        &[
            "eth0: HFSC reserves each channel's burst within its deadline all the time, and that is ",
            "more than the link sends (26 channels: `c25`, ",
            "the channels would fit with ",
            "a link of ",
        ],
    );
    refused(
        &channels(vec![channel("a", 20, 1, 90_000, MBIT)]),
        &old(one()),
        "21:1",
        &["eth0: the deadlines cannot all be kept: within 90.0 µs", "a deadline of "],
    );
}

#[test]
fn a_change_under_hfsc_loses_what_waits() {
    let mut observed = old(one());
    for step in ok(&channels(vec![sip()]), &observed).steps {
        observed.settings.insert(step.setting, step.wanted);
    }
    let steps = ok(&channels(vec![sip(), channel("b", 30, 7, 9 * MS, MBIT)]), &observed).steps;
    let step = steps.iter().find(|s| matches!(s.setting, Resource::RootQdisc(_))).unwrap();
    assert_eq!(step.cost, "channels: 1 new; packets in the queue are lost; the link sends at most 999mbit");
}
