//! All channels of a link together: the checks before anything is written, and the values that are written.
use super::shape::{self, Shapes};
use super::types;
use std::collections::BTreeMap;
use teiji_model::qdisc::{
    Channel, DeadlineQdisc, MAX_CHANNELS, MAX_DEADLINE, MAX_NAME, MAX_RATE, MAX_SLACK, MIN_FRAME, OVERHEAD,
    RATE_STEP, Scheduler, TIMER_ERROR,
};

/// Most bytes that are queued of best effort, and the same of real time.
const LIMIT_BYTES: u32 = 4 << 20;
/// Most packets that are queued of best effort, and the same of real time.
const LIMIT_PACKETS: u32 = 10_000;

/// What is written for a link under one generation.
pub(super) struct EncodedLink {
    pub(super) settings: types::link_settings,
    /// By the channel's name.
    pub(super) entries: BTreeMap<String, Vec<types::match_key>>,
}

/// A link's channels in the form of the kernel half. The error says what is wrong with them, and what would work.
pub(super) fn encode(d: &DeadlineQdisc, generation: u32) -> Result<EncodedLink, String> {
    if d.scheduler != Scheduler::Edf {
        return Err(format!("{} is not this qdisc's", d.scheduler));
    }
    for (what, rate) in [("its rate", d.rate), ("the most of all channels", d.realtime_max)] {
        if !rate.is_multiple_of(RATE_STEP) || rate > MAX_RATE {
            return Err(format!("{what} is not a multiple of {RATE_STEP} bit/s up to 1 Tbit/s"));
        }
    }
    if d.slack > MAX_SLACK {
        return Err("its slack is longer than 3600 s".into());
    }
    if d.channels.len() > MAX_CHANNELS {
        return Err(format!("it has {} channels; {MAX_CHANNELS} on all links is the most", d.channels.len()));
    }
    let mut shapes = Shapes::default();
    let mut entries = BTreeMap::new();
    let mut owners: BTreeMap<Vec<u8>, &str> = BTreeMap::new();
    for (name, channel) in &d.channels {
        let of = |why: String| format!("channel `{}`: {why}", teiji_model::text::printable(name));
        check(name, channel).map_err(of)?;
        let own = shape::entries(channel, generation).map_err(of)?;
        for (shape, key) in &own {
            shapes.add(*shape).map_err(of)?;
            if let Some(other) = owners.insert(crate::object::bytes_of(key).to_vec(), name) {
                let other = teiji_model::text::printable(other);
                return Err(of(format!("channel `{other}` has the same ends; make one of them narrower")));
            }
        }
        entries.insert(name.clone(), own.into_iter().map(|(_, key)| key).collect());
    }
    let burst: u64 = d.channels.values().map(|c| c.burst).sum();
    let (shapes, shape) = shapes.into_kernel();
    let settings = types::link_settings {
        rate: d.rate / 8,
        slack: d.slack,
        credit: TIMER_ERROR,
        rt_rate: d.realtime_max / 8,
        rt_burst: burst.min(u64::from(u32::MAX)),
        overhead: OVERHEAD,
        min_frame: MIN_FRAME,
        limit_bytes: LIMIT_BYTES,
        limit_packets: LIMIT_PACKETS,
        id: generation,
        shapes,
        shape,
        ..Default::default()
    };
    Ok(EncodedLink { settings, entries })
}

fn check(name: &str, c: &Channel) -> Result<(), String> {
    if name.is_empty() || name.len() > MAX_NAME || name.contains('\0') {
        return Err(format!("its name is not of 1 to {MAX_NAME} bytes"));
    }
    if c.deadline == 0 || c.deadline > MAX_DEADLINE {
        return Err("its deadline is not between 1 ns and 60 s".into());
    }
    if c.rate == 0 || !c.rate.is_multiple_of(RATE_STEP) || c.rate > MAX_RATE {
        return Err(format!("its rate is not a multiple of {RATE_STEP} bit/s up to 1 Tbit/s"));
    }
    if c.burst == 0 || c.burst > u64::from(u32::MAX) {
        return Err(
            "its burst is not between 1 byte and 4 GiB; the largest packet is the least that helps".into()
        );
    }
    Ok(())
}

/// The bytes of a channel's settings.
pub(super) fn channel_settings(c: &Channel, id: u32) -> types::channel_settings {
    types::channel_settings {
        deadline: c.deadline,
        rate: c.rate / 8,
        burst: c.burst,
        id,
        ..Default::default()
    }
}

/// The channels that a link's settings and matches describe; `name` returns the name of a channel's index.
pub(super) fn decode(
    settings: &types::link_settings,
    matches: &[(types::match_key, types::channel_settings)],
    mut name: impl FnMut(u32) -> Result<String, crate::Error>,
) -> Result<DeadlineQdisc, crate::Error> {
    let mut channels = BTreeMap::new();
    for (key, c) in matches.iter().filter(|(key, _)| key.link == settings.id) {
        let (from, to, proto) = shape::endpoints(key);
        let channel = Channel { from, to, proto, deadline: c.deadline, rate: c.rate * 8, burst: c.burst };
        channels.insert(name(c.id)?, channel);
    }
    Ok(DeadlineQdisc {
        scheduler: Scheduler::Edf,
        rate: settings.rate * 8,
        slack: settings.slack,
        realtime_max: settings.rt_rate * 8,
        channels,
    })
}

/// A name as it is stored in the map `labels`.
pub(super) fn label(name: &str) -> types::label {
    let mut label = types::label { name: [0; MAX_NAME + 1] };
    label.name[..name.len()].copy_from_slice(name.as_bytes());
    label
}

/// The name in a label.
pub(super) fn name(label: &types::label) -> String {
    let end = label.name.iter().position(|b| *b == 0).unwrap_or(label.name.len());
    String::from_utf8_lossy(&label.name[..end]).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use teiji_model::policy::Endpoint;

    fn endpoint() -> impl Strategy<Value = Option<Endpoint>> {
        let port = || proptest::option::of(any::<u16>());
        // A few addresses, so that channels of one link collide now and then.
        let v4 = (0u32..4, 0u8..=32, port()).prop_map(|(n, prefix, port)| {
            let bits = (0x0a00_0000 | n).checked_shr(32 - u32::from(prefix)).unwrap_or(0);
            let address = bits.checked_shl(32 - u32::from(prefix)).unwrap_or(0);
            Endpoint { address: std::net::Ipv4Addr::from(address).into(), prefix, port }
        });
        proptest::option::of(v4)
    }

    fn deadlines() -> impl Strategy<Value = DeadlineQdisc> {
        let channel = (
            endpoint(),
            endpoint(),
            proptest::option::of(any::<u8>()),
            1..=MAX_SLACK,
            1u64..1_000_000,
            1u64..100_000,
        )
            .prop_map(|(from, to, proto, deadline, rate, burst)| {
                Channel { from, to, proto, deadline, rate: rate * 8, burst }.normal()
            });
        let channels = proptest::collection::btree_map("[a-zé]{1,20}", channel, 0..6);
        (channels, 0u64..1_000_000, 0..=MAX_SLACK, 0u64..1000).prop_map(|(channels, rate, slack, most)| {
            DeadlineQdisc {
                scheduler: Scheduler::Edf,
                rate: rate * 8,
                slack,
                realtime_max: most * 8,
                channels,
            }
        })
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_back(wanted in deadlines()) {
            let Ok(w) = encode(&wanted, 9) else { return Ok(()) };
            let mut matches = Vec::new();
            let mut labels = Vec::new();
            for (name, keys) in &w.entries {
                let id = labels.len() as u32;
                labels.push(label(name));
                matches.extend(keys.iter().map(|k| (*k, channel_settings(&wanted.channels[name], id))));
            }
            // Others' are not mistaken for its own.
            matches.push((types::match_key { link: 8, ..matches.first().map(|m| m.0).unwrap_or_default() }, Default::default()));
            let got = decode(&w.settings, &matches, |id| Ok(name(&labels[id as usize]))).unwrap();
            prop_assert_eq!(got, wanted);
        }
    }

    fn one() -> DeadlineQdisc {
        let to = Some(Endpoint { address: [10, 0, 0, 2].into(), prefix: 32, port: Some(5060) });
        let c = Channel { from: None, to, proto: Some(17), deadline: 1, rate: 8, burst: 1 };
        DeadlineQdisc {
            scheduler: Scheduler::Edf,
            rate: 8000,
            slack: 0,
            realtime_max: 0,
            channels: BTreeMap::from([("a".into(), c)]),
        }
    }

    #[test]
    fn what_the_kernel_half_cannot_keep_is_refused() {
        assert!(encode(&one(), 1).is_ok());
        let refused = |change: &dyn Fn(&mut DeadlineQdisc), why: &str| {
            let mut d = one();
            change(&mut d);
            let message = encode(&d, 1).err().unwrap();
            assert!(message.contains(why), "{message}");
        };
        refused(&|d| d.scheduler = Scheduler::Hfsc, "HFSC");
        refused(&|d| d.rate = 9, "multiple of 8");
        refused(&|d| d.realtime_max = MAX_RATE + 8, "1 Tbit/s");
        refused(&|d| d.slack = MAX_SLACK + 1, "3600 s");
        refused(&|d| d.channels.get_mut("a").unwrap().rate = 0, "rate");
        refused(&|d| d.channels.get_mut("a").unwrap().deadline = 0, "deadline");
        refused(&|d| d.channels.get_mut("a").unwrap().burst = 1 << 32, "burst");
        refused(
            &|d| {
                let a = d.channels["a"].clone();
                d.channels.insert("b".into(), a);
            },
            "channel `a` has the same",
        );
        refused(
            &|d| {
                let a = d.channels["a"].clone();
                d.channels.insert("x".repeat(64), a);
            },
            "name",
        );
    }
}
