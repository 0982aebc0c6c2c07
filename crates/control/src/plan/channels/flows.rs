//! The channels of one link: their endpoints, rates and bursts.

use super::super::Draft;
use super::super::names::shown;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use teiji_model::policy::{ChannelPolicy, Endpoint};
use teiji_model::qdisc::{Channel, MAX_NAME, MAX_SHAPES, MIN_FRAME, OVERHEAD, RATE_STEP, frame};

/// The channels in the form that the link's queue has, by name; their problems are recorded.
pub(super) fn channels(
    policies: &[&ChannelPolicy],
    mtu: u32,
    link: &str,
    draft: &mut Draft,
) -> BTreeMap<String, Channel> {
    let mut all = BTreeMap::new();
    let mut ends = HashMap::new();
    let mut shapes = BTreeSet::new();
    for policy in policies {
        let name = &policy.name;
        if name.value.len() > MAX_NAME {
            let message = format!(
                "the channel's name has {} bytes; give it one of at most {MAX_NAME}",
                name.value.len()
            );
            draft.problem(&name.location, message);
        }
        let channel = channel(policy, mtu);
        let least = u64::from(MIN_FRAME + OVERHEAD);
        if let Some(burst) = policy.burst.as_ref().filter(|burst| burst.value < least) {
            let message =
                format!("a burst of {}b is less than one frame: write \"{least}b\" or more", burst.value);
            draft.problem(&burst.location, message);
        }
        let key = (channel.from.clone(), channel.to.clone(), channel.proto);
        if let Some(first) = ends.insert(key, *policy) {
            let message = format!(
                "`{}` has the same endpoints and protocol as `{}` ({}), so their packets cannot be told apart: write \
                 one channel for both, or make their endpoints differ",
                shown(&name.value),
                shown(&first.name.value),
                first.name.location
            );
            draft.problem(&name.location, message);
        }
        let before = shapes.len();
        shapes.extend(self::shapes(&channel));
        if before <= MAX_SHAPES && shapes.len() > MAX_SHAPES {
            let message = format!(
                "with `{}` the channels of {link} have more than {MAX_SHAPES} kinds of endpoints (lengths of \
                 prefixes, with or without ports and protocol): give some of them endpoints of the same kind, or \
                 another link",
                shown(&name.value)
            );
            draft.problem(&name.location, message);
        }
        all.insert(name.value.clone(), channel);
    }
    all
}

fn channel(policy: &ChannelPolicy, mtu: u32) -> Channel {
    let burst = policy.burst.as_ref().map(|burst| burst.value);
    let end = |end: &Option<teiji_model::policy::Located<Endpoint>>| end.as_ref().map(|at| at.value.clone());
    Channel {
        from: end(&policy.from),
        to: end(&policy.to),
        proto: policy.proto.as_ref().map(|proto| proto.value),
        deadline: policy.deadline.value,
        rate: policy.min_rate.value.next_multiple_of(RATE_STEP),
        burst: burst.unwrap_or(2 * (u64::from(frame::full(mtu)) + u64::from(OVERHEAD))),
    }
    .normal()
}

/// The sets of fields that a channel compares: one, or one for each IP version if both endpoints are open.
fn shapes(channel: &Channel) -> impl Iterator<Item = (bool, [(u8, bool); 2], bool)> {
    let ends = [&channel.from, &channel.to];
    let versions = match ends.iter().find_map(|end| end.as_ref()) {
        Some(end) => vec![end.address.is_ipv4()],
        None => vec![true, false],
    };
    let fields = ends.map(|end| end.as_ref().map_or((0, false), |e| (e.prefix, e.port.is_some())));
    let proto = channel.proto.is_some();
    versions.into_iter().map(move |ipv4| (ipv4, fields, proto))
}
