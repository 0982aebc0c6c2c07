//! The qdisc's pinned maps: who writes which, and what they have.
//!
//! | map | keys | values | writer |
//! | --- | --- | --- | --- |
//! | `slots` | link | number of its slot | settings |
//! | `current` | slot | which of its settings are in use | settings |
//! | `settings` | slot, and which | settings of the link | settings |
//! | `matches` | fields of packets | settings of their channel | settings |
//! | `labels` | channel | its name | settings |
//! | `registry` | 0 | numbers that were used last | settings |
//! | `states` | slot | queues, pacing, flows, statistics | programs |
//! | `channels` | channel | token bucket, statistics | programs |
//! | `users` | 0 | how many links have the qdisc | programs |
//! | `heartbeat` | 0 | time of the agent's last heartbeat | agent |
//! | `wire_free` | slot | when the wire will have sent what it was given | programs |
//!
//! `wire_free` is not pinned, as no process reads it: so releases that do not have it work with the programs of those that do,
//! and the other way round.
//!
//! [`Writer`] says what these three writers are.
use super::types;
use crate::Error;
use crate::common::abi::{Abi, Writer};
use crate::common::heartbeat::HEARTBEAT;
use crate::common::map::Open;
use crate::common::pins::Pins;
use libbpf_rs::MapType;
use teiji_model::qdisc::{MAX_CHANNELS, MAX_LINKS};

/// Settings of a slot (`SETTINGS_PER_LINK` in `intf.h`; a test compares).
pub(super) const SETTINGS_PER_LINK: u32 = 4;
/// Two IP versions, and two generations while a link is changed (`MAX_MATCHES` in `intf.h`).
const MAX_MATCHES: usize = 4 * MAX_CHANNELS;

const SLOTS: Abi = Abi::new::<types::link_key, u32>(
    "slots",
    MapType::Hash,
    MAX_LINKS,
    Writer::Settings,
    ["link_key", "u32"],
);
const CURRENT: Abi = array::<u32>("current", MAX_LINKS, Writer::Settings, "u32");
const SETTINGS: Abi = array::<types::link_settings>(
    "settings",
    MAX_LINKS * SETTINGS_PER_LINK as usize,
    Writer::Settings,
    "link_settings",
);
const STATES: Abi = array::<types::link_state>("states", MAX_LINKS, Writer::Programs, "link_state");
const MATCHES: Abi = Abi::new::<types::match_key, types::channel_settings>(
    "matches",
    MapType::Hash,
    MAX_MATCHES,
    Writer::Settings,
    ["match_key", "channel_settings"],
);
const CHANNELS: Abi =
    array::<types::channel_state>("channels", MAX_CHANNELS, Writer::Programs, "channel_state");
const LABELS: Abi = array::<types::label>("labels", MAX_CHANNELS, Writer::Settings, "label");
const REGISTRY: Abi = array::<types::registry>("registry", 1, Writer::Settings, "registry");
/// There is one version of this map for ever, so that an agent can tell whether the programs of another release are in use.
pub(super) const USERS: Abi = array::<u64>("users", 1, Writer::Programs, "u64");

/// All of them.
pub(super) const ALL: [Abi; 10] =
    [SLOTS, CURRENT, SETTINGS, STATES, MATCHES, CHANNELS, LABELS, REGISTRY, USERS, HEARTBEAT];

const fn array<V>(name: &'static str, entries: usize, writer: Writer, value: &'static str) -> Abi {
    Abi::new::<u32, V>(name, MapType::Array, entries, writer, ["u32", value])
}

/// Those with settings and state, for reading or for writing.
pub(super) struct Maps<M> {
    pub(super) slots: M,
    pub(super) current: M,
    pub(super) settings: M,
    pub(super) states: M,
    pub(super) matches: M,
    pub(super) channels: M,
    pub(super) labels: M,
    pub(super) registry: M,
}

impl<M: Open> Maps<M> {
    /// Opens the pins in use; `None` if one of the maps is there in another version only.
    pub(super) fn open(pins: &Pins) -> Result<Option<Maps<M>>, Error> {
        let open = |abi: &Abi| M::open(pins, abi);
        let (Some(slots), Some(current), Some(settings), Some(states)) =
            (open(&SLOTS)?, open(&CURRENT)?, open(&SETTINGS)?, open(&STATES)?)
        else {
            return Ok(None);
        };
        let (Some(matches), Some(channels), Some(labels), Some(registry)) =
            (open(&MATCHES)?, open(&CHANNELS)?, open(&LABELS)?, open(&REGISTRY)?)
        else {
            return Ok(None);
        };
        Ok(Some(Maps { slots, current, settings, states, matches, channels, labels, registry }))
    }
}
