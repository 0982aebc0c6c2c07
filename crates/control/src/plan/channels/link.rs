//! One link with its channels: its rate, whether it can keep their deadlines, and the settings for that.

use super::super::names::shown;
use super::super::{Draft, ErrorReported, HostAndHeld, WantedSetting};
use super::{flows, frames};
use crate::admission::{self, Admission, Denied, Misfit, Refusal, hfsc};
use frames::Largest;
use std::collections::BTreeMap;
use teiji_model::observed::{LinkKind, ObservedLink};
use teiji_model::plan::{ChannelGuarantee, LinkGuarantee};
use teiji_model::policy::{Auto, ChannelPolicy, LinkPolicy, Located, SourceLocation};
use teiji_model::qdisc::frame;
use teiji_model::qdisc::{
    Channel, DeadlineQdisc, MAX_RATE, MIN_FRAME, OVERHEAD, RATE_STEP, RootQdisc, Scheduler, TIMER_ERROR,
};
use teiji_model::resource::{Resource, Value};
use teiji_model::text::duration;
use teiji_model::units::RATE;

/// The rate is lower than the device's speed by one part in this many, so that the device's own queue does not grow:
/// clocks of Ethernet differ by up to 100 ppm each (IEEE 802.3), and the host's own clock by about as much.
const MARGIN: u64 = 1000;
/// The longest packet takes at most one part in this many of the shortest deadline, if the size can be chosen.
const SHARE: u64 = 10;

/// A link and its channels.
pub(super) struct Group<'a> {
    pub device: &'a ObservedLink,
    /// The section of the link, if the policy has one.
    pub section: Option<&'a LinkPolicy>,
    /// Not empty.
    pub channels: &'a [&'a ChannelPolicy],
    /// Where the policy names the link.
    pub location: &'a SourceLocation,
    pub scheduler: Scheduler,
}

/// Adds the settings of the link and its guarantees, or the reason why there is no guarantee.
pub(super) fn collect(group: &Group<'_>, host: HostAndHeld<'_>, draft: &mut Draft) {
    let name = shown(&group.device.name);
    let before = draft.problems.len();
    let channels = flows::channels(group.channels, group.device.mtu, &name, draft);
    let rate = rate(group, draft);
    realtime_max(group, &channels, draft);
    let choices = frames::choices(group.device, group.section, host, draft);
    let (Ok(rate), Ok(choices)) = (rate, choices) else { return };
    if draft.problems.len() > before {
        return;
    }
    kind(group, draft);
    no_slack(group, draft);
    match choose(group, &channels, rate, &choices) {
        Ok((largest, admitted)) => {
            let queue = queue(group, &channels, rate, admitted.slack, largest);
            settings(group, queue, largest, choices.len() > 1, host, draft);
            draft.links.push(guarantee(group, &channels, rate, &admitted, largest));
        }
        Err((largest, denied)) => refused(group, largest, denied, draft),
    }
}

/// The rate of the link, bit/s.
fn rate(group: &Group<'_>, draft: &mut Draft) -> Result<u64, ErrorReported> {
    let name = shown(&group.device.name);
    let below = |speed: u64| ((speed - speed / MARGIN) / RATE_STEP * RATE_STEP).min(MAX_RATE);
    match (group.section.and_then(|s| s.rate.as_ref()), group.device.speed.filter(|speed| *speed > 0)) {
        (None, None) => {
            let message = format!(
                "{name} reports no speed: write its rate, as in rate = \"1gbit\" below [link.{name}]"
            );
            draft.problem(group.location, message);
            Err(ErrorReported)
        }
        (None, Some(speed)) => Ok(below(speed)),
        (Some(Located { value, location }), Some(speed)) if *value > speed => {
            let message = format!(
                "{name} reports a speed of only {}, so its own queue would grow and no delay could be guaranteed: \
                 write \"{}\" or less",
                RATE.write(speed),
                RATE.write(below(speed))
            );
            draft.problem(location, message);
            Err(ErrorReported)
        }
        (Some(Located { value, .. }), speed) => {
            if let Some(speed) = speed.filter(|speed| *value > below(*speed)) {
                draft.warnings.push(format!(
                    "`link.{name}.rate` leaves no margin for clocks that differ: the guarantees do not include waits \
                     in the queue of {name} itself; \"{}\" or less keeps that queue empty",
                    RATE.write(below(speed))
                ));
            }
            Ok(value / RATE_STEP * RATE_STEP)
        }
    }
}

/// Checks the limit on the rate of all channels together.
fn realtime_max(group: &Group<'_>, channels: &BTreeMap<String, Channel>, draft: &mut Draft) {
    let Some(Located { value: most, location }) = group.section.and_then(|s| s.realtime_max.as_ref()) else {
        return;
    };
    let sum = channels.values().fold(0_u64, |sum, c| sum.saturating_add(c.rate));
    if sum > most / RATE_STEP * RATE_STEP {
        let message = format!(
            "the channels of {} are guaranteed {} together, more than `realtime_max`: raise it, or lower their \
             min_rate",
            shown(&group.device.name),
            RATE.write(sum)
        );
        draft.problem(location, message);
    }
}

/// Warns of what the kind of device means for the guarantees.
fn kind(group: &Group<'_>, draft: &mut Draft) {
    let name = shown(&group.device.name);
    match group.device.kind {
        LinkKind::Bond => draft.warnings.push(format!(
            "{name} is a bond, and one flow leaves by one of its devices: the guarantees hold only if each of them \
             sends at the link's rate"
        )),
        LinkKind::Virtual => draft.warnings.push(format!(
            "{name} is a virtual device: the guarantees do not include other packets of the device below it"
        )),
        LinkKind::Nic | LinkKind::Tap | LinkKind::Bridge => {}
    }
}

/// Warns that a slack in the policy has no effect with HFSC.
fn no_slack(group: &Group<'_>, draft: &mut Draft) {
    let written = group.section.and_then(|s| s.slack.as_ref());
    if group.scheduler == Scheduler::Hfsc && written.is_some_and(|at| at.value != Auto::Auto) {
        let name = shown(&group.device.name);
        draft.warnings.push(format!(
            "`link.{name}.slack` has no effect: HFSC sends packets that are due before best effort"
        ));
    }
}

/// The largest packet size with which the channels are admitted and do not wait long for such a packet; if there is
/// none, the smallest.
fn choose<'l>(
    group: &Group<'_>,
    channels: &BTreeMap<String, Channel>,
    rate: u64,
    choices: &'l [Largest],
) -> Result<(&'l Largest, Admission), (Option<&'l Largest>, Denied)> {
    let mtu = group.device.mtu;
    let shortest = channels.values().map(|c| c.deadline).min().unwrap_or(0);
    let mut last = Err((None, Denied::Malformed(String::new())));
    for largest in choices {
        let on_wire = largest.on_wire(mtu);
        last = match admit(group, channels, rate, on_wire) {
            Ok(admission) => Ok((largest, admission)),
            Err(denied) => Err((Some(largest), denied)),
        };
        // Both sides are ns × bit/s: bits times 10⁹.
        let takes = framed(on_wire) * 8_000_000_000 * u128::from(SHARE);
        if last.is_ok() && takes <= u128::from(shortest) * u128::from(rate) {
            break;
        }
    }
    last
}

/// With the overhead of the last frame, bytes.
fn framed(on_wire: u32) -> u128 {
    u128::from(on_wire) + u128::from(OVERHEAD)
}

fn admit(
    group: &Group<'_>,
    channels: &BTreeMap<String, Channel>,
    rate: u64,
    largest: u32,
) -> Result<Admission, Denied> {
    let link = link_spec(group, rate, largest);
    let channels: Vec<_> = channels.iter().map(|(name, c)| channel_spec(group, &link, name, c)).collect();
    match group.scheduler {
        Scheduler::Edf => admission::admit(&link, &channels),
        Scheduler::Hfsc => hfsc::admit(&link, &channels),
    }
}

/// The link, for admission control.
fn link_spec(group: &Group<'_>, rate: u64, largest: u32) -> admission::LinkSpec {
    admission::LinkSpec {
        rate,
        max_frame: largest.max(MIN_FRAME),
        overhead: OVERHEAD,
        // The queue hands over one packet at a time. After an idle time the next one leaves up to TIMER_ERROR before the
        // wire has sent the one before, so the device then holds that much more. This is in `timer_error`, once, together with
        // timers that are late: the wire is at most TIMER_ERROR behind the instants at which a queue without either would have
        // sent (next_free <= wire_free <= next_free + credit in sent.bpf.h; a late timer delays only what the wire is not
        // still busy with). `sent_check.rs` in `bpf::qdisc_edf` tests this.
        ring_bytes: 0,
        timer_error: TIMER_ERROR,
        slack: group.section.and_then(|s| s.slack.as_ref()).map_or(Auto::Auto, |slack| slack.value),
    }
}

/// A channel, for admission control.
fn channel_spec(
    group: &Group<'_>,
    link: &admission::LinkSpec,
    name: &str,
    c: &Channel,
) -> admission::ChannelSpec {
    let frame = u64::from(frame::full(group.device.mtu).clamp(MIN_FRAME, link.max_frame));
    admission::ChannelSpec {
        name: name.to_owned(),
        deadline: c.deadline,
        rate: c.rate,
        burst: c.burst,
        max_packet: u32::try_from(frame.min(c.burst.saturating_sub(OVERHEAD.into()))).unwrap_or(u32::MAX),
    }
}

/// Reports why the channels do not fit, at the place in the policy that the misfit is about.
fn refused(group: &Group<'_>, largest: Option<&Largest>, denied: Denied, draft: &mut Draft) {
    let name = shown(&group.device.name);
    let why = largest.map(|l| l.why.as_str()).filter(|why| !why.is_empty());
    match denied {
        Denied::Malformed(message) => draft.problem(group.location, format!("{name}: {message}")),
        Denied::Refused(refusal) => {
            let location = refusal_place(group, &refusal);
            let why = match (why, refusal.misfit) {
                (Some(why), Misfit::Deadline | Misfit::Curves | Misfit::Slack { .. }) => format!(" ({why})"),
                _ => String::new(),
            };
            draft.problem(location, format!("{name}: {refusal}{why}"));
        }
    }
}

fn refusal_place<'a>(group: &Group<'a>, refusal: &Refusal) -> &'a SourceLocation {
    let named = |name: &String| group.channels.iter().find(|c| c.name.value == *name);
    // The channel whose deadline is the reported instant.
    let tightest = refusal.offending.last().and_then(named);
    match refusal.misfit {
        Misfit::Slack { .. } => group.section.and_then(|s| s.slack.as_ref()).map(|slack| &slack.location),
        Misfit::Rate => group.section.and_then(|s| s.rate.as_ref()).map(|rate| &rate.location),
        // Or the channel that reserves most.
        Misfit::Deadline | Misfit::Curves => tightest.map(|c| &c.deadline.location),
    }
    .unwrap_or(group.location)
}

/// The queue that keeps the channels, which were admitted.
fn queue(
    group: &Group<'_>,
    channels: &BTreeMap<String, Channel>,
    rate: u64,
    slack: u64,
    largest: &Largest,
) -> DeadlineQdisc {
    let most = group.section.and_then(|s| s.realtime_max.as_ref()).map_or(0, |at| at.value);
    let (mut channels, mut realtime_max) = (channels.clone(), most / RATE_STEP * RATE_STEP);
    if group.scheduler == Scheduler::Hfsc {
        let link = link_spec(group, rate, largest.on_wire(group.device.mtu));
        for (name, c) in &mut channels {
            c.deadline = hfsc::within(&link, &channel_spec(group, &link, name, c)).unwrap_or(c.deadline);
        }
        // It was checked that the channels together do not exceed it, and each is limited to its own rate.
        realtime_max = 0;
    }
    DeadlineQdisc { scheduler: group.scheduler, rate, slack, realtime_max, channels }
}

/// Adds the settings that the guarantees are based on.
fn settings(
    group: &Group<'_>,
    queue: DeadlineQdisc,
    largest: &Largest,
    chosen: bool,
    host: HostAndHeld<'_>,
    draft: &mut Draft,
) {
    let device = group.device.device();
    let first = format!("channel.{}", shown(&group.channels[0].name.value));
    let reason = match group.channels.len() {
        1 => first,
        2 => format!("{first} and 1 other"),
        n => format!("{first} and {} others", n - 1),
    };
    let mut want = |setting: Resource, wanted: Value, cost: String| {
        let whose = shown(&device.name);
        let location = group.location.clone();
        draft.wants.push(WantedSetting { setting, wanted, whose, reason: reason.clone(), location, cost });
    };
    if let Some(segment) = largest.segment {
        let takes = framed(largest.on_wire(group.device.mtu)) * 8_000_000_000 / u128::from(queue.rate.max(1));
        let takes = duration(takes as f64);
        let cost = if chosen {
            format!(
                "TCP hands over smaller segments, of which one takes {takes} on the wire: more CPU time per byte"
            )
        } else {
            format!("TCP hands over segments of at most {segment} bytes: more CPU time per byte")
        };
        want(Resource::SegmentSize(device.clone()), Value::Bytes(segment), cost);
    }
    let setting = Resource::RootQdisc(device.clone());
    let cost = cost(host.observed.settings.get(&setting), &queue);
    want(setting, Value::RootQdisc(RootQdisc::Deadline(Box::new(queue))), cost);
}

/// The cost of the change of the queue; between two of teiji's own, what the change is.
fn cost(present: Option<&Value>, wanted: &DeadlineQdisc) -> String {
    let at_most = format!("the link sends at most {}", RATE.write(wanted.rate));
    let present = match present {
        Some(Value::RootQdisc(RootQdisc::Deadline(present))) if present.scheduler == wanted.scheduler => {
            present
        }
        _ => return format!("packets in the old queue may be lost; {at_most}"),
    };
    let new = wanted.channels.keys().filter(|name| !present.channels.contains_key(*name)).count();
    let gone = present.channels.keys().filter(|name| !wanted.channels.contains_key(*name)).count();
    let differs = |(name, c): &(&String, &Channel)| present.channels.get(*name).is_some_and(|p| p != *c);
    let other = wanted.channels.iter().filter(differs).count();
    let counts = [(new, "new"), (other, "changed"), (gone, "removed")];
    let counts = counts.iter().filter(|(n, _)| *n > 0).map(|(n, what)| format!("{n} {what}"));
    match counts.collect::<Vec<_>>().join(", ") {
        none if none.is_empty() => format!("no channel changes; {at_most}"),
        counts => {
            let lost = match wanted.scheduler {
                Scheduler::Edf => "no packet is lost",
                Scheduler::Hfsc => "packets in the queue are lost",
            };
            format!("channels: {counts}; {lost}; {at_most}")
        }
    }
}

fn guarantee(
    group: &Group<'_>,
    channels: &BTreeMap<String, Channel>,
    rate: u64,
    admitted: &Admission,
    largest: &Largest,
) -> LinkGuarantee {
    // The guarantees are in the order of the map.
    let channel = |((name, c), guarantee): ((&String, &Channel), &admission::Guarantee)| ChannelGuarantee {
        name: name.clone(),
        rate: c.rate,
        burst: c.burst,
        deadline: c.deadline,
        bound: guarantee.delay,
        from_kick: None,
    };
    LinkGuarantee {
        link: group.device.name.clone(),
        scheduler: group.scheduler,
        rate,
        slack: admitted.slack,
        largest: largest.frame,
        reserved: admitted.reserved_rate,
        channels: channels.iter().zip(&admitted.guarantees).map(channel).collect(),
    }
}
