//! What the channels of a policy require of the links that they leave by.
//!
//! ```text
//! channels ── by link ──► rate, endpoints, bursts ── frames ──► admission ──► root qdisc wanted, delays guaranteed
//! ```
//!
//! | module | decides |
//! | --- | --- |
//! | here | which link a channel leaves by, and whether that can have deadlines |
//! | `flows` | whether a link's channels can be told apart, and their rates and bursts |
//! | `frames` | the largest packet that a deadline may have to wait for |
//! | `link` | the rate of a link, whether its deadlines can all be kept, and the settings for that |

mod flows;
mod frames;
mod link;

use super::names::{self, shown};
use super::{Draft, HostAndHeld};
use link::Group;
use teiji_model::observed::{DeadlineSupport, LinkKind, ObservedLink};
use teiji_model::policy::{ChannelPolicy, LinkPolicy, Located, Policy, SourceLocation};
use teiji_model::qdisc::{MAX_CHANNELS, MAX_LINKS, Scheduler};
use teiji_model::text::printable;

/// Adds the settings and guarantees that the channels require, and the problems.
pub(super) fn collect(policy: &Policy, host: HostAndHeld<'_>, draft: &mut Draft) {
    if let Some(first) = policy.channels.get(MAX_CHANNELS) {
        let count = policy.channels.len();
        let message = format!(
            "{count} channels are more than the limit of {MAX_CHANNELS} per host: combine some by prefixes"
        );
        return draft.problem(&first.name.location, message);
    }
    let groups = groups(policy, draft);
    for section in &policy.links {
        if !groups.iter().any(|(name, _, _)| name == &section.name.value) {
            without_effect(section, draft);
        }
    }
    let Some((_, _, first)) = groups.first() else { return };
    let scheduler = match scheduler(&host.observed.deadline_support, draft) {
        Ok(scheduler) => scheduler,
        // Reported only once: without it nothing else of the channels can be judged.
        Err(why) => return draft.problem(&first[0].name.location, why),
    };
    if let Some((name, location, _)) = groups.get(MAX_LINKS) {
        let message =
            format!("`{}` exceeds the limit of {MAX_LINKS} links with channels per host", shown(name));
        return draft.problem(location, message);
    }
    for (name, location, channels) in groups {
        let name = Located { value: name.to_owned(), location: location.clone() };
        let found = names::link(&name, host.observed).and_then(usable);
        match found {
            Ok(device) => {
                let section = policy.links.iter().find(|l| l.name.value == device.name);
                let group = Group { device, section, channels: &channels, location, scheduler };
                link::collect(&group, host, draft);
            }
            Err(message) => draft.problem(location, message),
        }
    }
}

/// What keeps deadlines on this host, once the preparations are done. Warns if it is not teiji's own qdisc.
///
/// # Errors
/// Why nothing can keep deadlines, and what to do about it.
fn scheduler(support: &DeadlineSupport, draft: &mut Draft) -> Result<Scheduler, String> {
    match support {
        DeadlineSupport::Edf => Ok(Scheduler::Edf),
        DeadlineSupport::NoAgent(start) => {
            draft.first.push(printable(start));
            Ok(Scheduler::Edf)
        }
        DeadlineSupport::Hfsc(missing) => {
            draft.warnings.push(format!(
                "this kernel has no BPF qdiscs ({missing}), so its own HFSC keeps the deadlines: it reserves each \
                 channel's burst within its deadline all the time, which admits fewer channels, and a change of \
                 channels loses the packets in the queue; Linux 6.16 or newer with CONFIG_NET_SCH_BPF avoids both"
            ));
            Ok(Scheduler::Hfsc)
        }
        DeadlineSupport::None(why) => Err(format!("deadlines cannot be kept: {why}")),
    }
}

/// The name of a link, where it is named first, and its channels.
type Named<'a> = (&'a str, &'a SourceLocation, Vec<&'a ChannelPolicy>);

/// The channels, grouped by the link that they leave by, in the order of the policy.
fn groups<'a>(policy: &'a Policy, draft: &mut Draft) -> Vec<Named<'a>> {
    let mut groups: Vec<Named<'a>> = Vec::new();
    for channel in &policy.channels {
        let (name, location) = match (&channel.link, &policy.links[..]) {
            (Some(link), _) => (&link.value, &link.location),
            (None, [only]) => (&only.name.value, &channel.name.location),
            (None, sections) => {
                let why = match sections.len() {
                    0 => "there is no [link.NAME] that it could leave by".to_owned(),
                    n => format!("it could leave by any of {n} links"),
                };
                let example = sections.first().map_or("eth0", |l| &l.name.value);
                let message = format!("{why}: write which, as in link = \"{}\"", shown(example));
                draft.problem(&channel.name.location, message);
                continue;
            }
        };
        match groups.iter_mut().find(|(known, _, _)| known == name) {
            Some((_, _, channels)) => channels.push(channel),
            None => groups.push((name, location, vec![channel])),
        }
    }
    groups
}

/// Whether channels can leave by this device.
fn usable(device: &ObservedLink) -> Result<&ObservedLink, String> {
    match device.kind {
        LinkKind::Bridge => Err(format!(
            "{} is a bridge, and what it forwards does not pass its own queue: name its uplink, the port that leads \
             out of the host",
            shown(&device.name)
        )),
        LinkKind::Nic | LinkKind::Bond | LinkKind::Tap | LinkKind::Virtual => Ok(device),
    }
}

/// Warns of keys of a link that have no effect without channels.
fn without_effect(section: &LinkPolicy, draft: &mut Draft) {
    let name = shown(&section.name.value);
    let keys = [
        ("rate", section.rate.is_some()),
        ("slack", section.slack.is_some()),
        ("max_packet", section.max_packet.is_some()),
        ("realtime_max", section.realtime_max.is_some()),
    ];
    for (key, _) in keys.into_iter().filter(|(_, written)| *written) {
        draft.warnings.push(format!("`link.{name}.{key}` has no effect: no channel leaves by {name}"));
    }
}
