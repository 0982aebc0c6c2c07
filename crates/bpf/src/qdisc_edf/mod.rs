//! Earliest deadline first on a link: the Rust half of `qdisc_edf.bpf.c`, which says how packets are chosen.
//!
//! ```text
//! Edf::load ── verify the programs, register the qdisc kind `teiji_edf`, pin both ──► Edf     (the agent)
//! PinnedQdisc::open ── what is pinned ──► Edf                                                   (any process)
//! Edf::put_link ── settings and channels of a link, at once; then the caller makes it the root qdisc
//! QdiscOwner::heartbeat ── to send at least every second; the kernel half falls back to FIFO 2 s after the last one
//! unpin ── the kind is gone once no link has it
//! ```
//! No state lives in a process: every process that opens the pins sees and changes what others have written, and links
//! keep working when all these processes have ended.
//!
//! ## One change, one write
//! `link_settings.id` names a *generation* of a link's matches. [`Edf::put_link`] writes all matches under a new
//! generation, and last the settings that name it (`slots`). So a writer that is killed leaves the former channels or
//! the new ones, and perhaps matches that no settings name, which [`Edf::remove_leftovers`] removes. Writers exclude each other by
//! flock(2) on the folder of the pins.
//!
//! ## Releases
//! A release of teiji works with the programs that another one has loaded as long as they agree on every map
//! ([`crate::common::abi`]): it sends their heartbeat, and shows and changes channels. If they do not agree, it sends the
//! heartbeat only. Either way the programs are replaced by its own once no link has the qdisc.
//!
//! | module | does |
//! | --- | --- |
//! | `shape`, `link` | channels in the form of the kernel half, and back |
//! | `load` | verifies, registers and pins the programs |
//! | `owner` | one agent owns them, and pins again what somebody removes |
//! | `maps` | the maps: layouts, writers |
//! | `slots` | links: their settings and state, and which qdisc has them |
//! | `channels` | channels: their indices and names |
//! | `writer` | changes of links and channels, one process at a time |
//! | `stats` | packet statistics |
mod channels;
mod link;
mod load;
mod maps;
mod owner;
#[cfg(test)]
mod sent_check;
mod shape;
mod slots;
mod stats;
mod writer;

/// Types shared with the C half, generated from the compiled object.
#[allow(missing_docs, unused, clippy::all, clippy::undocumented_unsafe_blocks, clippy::unwrap_used)]
mod skeleton {
    include!(concat!(env!("OUT_DIR"), "/qdisc_edf.skel.rs"));
}
use skeleton::types;

pub use crate::common::heartbeat::Heartbeat;
pub use load::supported;
pub use owner::{PinState, Programs, QdiscOwner, unpin};

use crate::Error;
use crate::common::heartbeat::HeartbeatAge;
use crate::common::map::ReadMap;
use crate::common::netns;
use crate::common::number::Number;
use crate::common::pins::Pins;
use maps::Maps;
use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;
use teiji_model::qdisc::DeadlineQdisc;
use teiji_model::status::{ChannelStats, LinkStats};

/// The folder of the pins unless the caller names another one.
pub const PINS: &str = "/sys/fs/bpf/teiji";
/// Below it, the folder of the qdisc's pins.
const OBJECT: &str = "edf";
/// Name of the qdisc kind, as `tc qdisc` shows it.
pub const KIND: &str = "teiji_edf";
/// The longest safe time between two heartbeats: half of what the kernel half tolerates.
pub const HEARTBEAT_INTERVAL_MAX: Duration = Duration::from_secs(1);
/// After this time without a heartbeat the kernel half sends without deadlines.
pub const HEARTBEAT_TIMEOUT: Duration =
    Duration::from_nanos(types::heartbeat_time::HEARTBEAT_TIMEOUT.0 as u64);

/// The pinned programs' settings and state.
pub struct Edf {
    pins: Pins,
    maps: Maps<ReadMap>,
    shared: SharedNumbers,
    netns: u64,
}

/// What can be told of the programs of any release: the agent's heartbeat, and how many links use the qdisc.
pub struct SharedNumbers {
    heartbeat: HeartbeatAge,
    link_count: Number,
}

/// What is pinned in a folder.
pub enum PinnedQdisc {
    /// Nothing.
    Absent,
    /// The qdisc, of this or of another release whose maps are the same.
    Usable(Box<Edf>),
    /// The qdisc of a release with other maps: only the heartbeat can be sent.
    OtherMaps(SharedNumbers),
    /// Not all maps of the qdisc are there, or one is not teiji's, and why: only the heartbeat can be sent.
    Damaged(SharedNumbers, String),
}

impl PinnedQdisc {
    /// What is pinned in `folder`.
    ///
    /// # Errors
    /// [`Error::NotPermitted`] without the permission to open pins; [`Error::Kernel`] if the kernel refuses, or one of the two pins
    /// that the heartbeat needs is missing or is not teiji's.
    pub fn open(folder: &Path) -> Result<PinnedQdisc, Error> {
        crate::silence_libbpf();
        let pins = Pins::new(folder, OBJECT);
        if !pins.are_there()? {
            return Ok(PinnedQdisc::Absent);
        }
        let shared = SharedNumbers::open(&pins)?;
        Ok(match Maps::open(&pins) {
            Ok(None) => PinnedQdisc::OtherMaps(shared),
            Ok(Some(maps)) => {
                PinnedQdisc::Usable(Box::new(Edf { maps, shared, netns: netns::cookie()?, pins }))
            }
            Err(Error::NotPermitted) => return Err(Error::NotPermitted),
            Err(why) => PinnedQdisc::Damaged(shared, why.to_string()),
        })
    }
}

impl SharedNumbers {
    fn open(pins: &Pins) -> Result<SharedNumbers, Error> {
        Ok(SharedNumbers {
            heartbeat: HeartbeatAge::open(pins)?,
            link_count: Number::open(pins, &maps::USERS)?,
        })
    }

    /// How many links have the qdisc, of all network namespaces.
    pub fn link_count(&self) -> u64 {
        self.link_count.get()
    }
}

impl Edf {
    /// How long ago the last heartbeat was; `None` if there was none.
    pub fn heartbeat_age(&self) -> Option<Duration> {
        self.shared.heartbeat.get()
    }

    /// How many links have the qdisc, of all network namespaces.
    pub fn link_count(&self) -> u64 {
        self.shared.link_count()
    }

    /// Whether the programs are those of this build of teiji.
    fn has_own_programs(&self) -> Result<bool, Error> {
        Ok(self.maps.registry.value::<types::registry>(0)?.programs == load::fingerprint())
    }

    /// The settings and channels of a link, as the kernel half has them; `None` if it has none.
    ///
    /// # Errors
    /// [`Error::Kernel`].
    pub fn link(&self, ifindex: u32) -> Result<Option<DeadlineQdisc>, Error> {
        let Some(settings) = self.settings_of(ifindex)? else { return Ok(None) };
        link::decode(&settings, &self.maps.matches.entries()?, |id| self.maps.name(id)).map(Some)
    }

    /// Whether a link has the qdisc of these programs.
    ///
    /// # Errors
    /// [`Error::Kernel`].
    pub fn has(&self, ifindex: u32) -> Result<bool, Error> {
        let slot = self.maps.slot_of(&self.key(ifindex))?;
        slot.map_or(Ok(false), |slot| Ok(self.maps.owner(slot)? != 0))
    }

    /// Links of this network namespace that have the qdisc, by their indices.
    ///
    /// # Errors
    /// [`Error::Kernel`].
    pub fn links(&self) -> Result<Vec<u32>, Error> {
        let mut links = Vec::new();
        for (key, slot) in self.maps.links()? {
            if key.netns == self.netns && self.maps.owner(slot)? != 0 {
                links.push(key.ifindex);
            }
        }
        links.sort_unstable();
        Ok(links)
    }

    /// Packet statistics of a link's channels, by name, since each was added.
    ///
    /// # Errors
    /// [`Error::Kernel`].
    pub fn channel_stats(&self, ifindex: u32) -> Result<BTreeMap<String, ChannelStats>, Error> {
        let Some(settings) = self.settings_of(ifindex)? else { return Ok(BTreeMap::new()) };
        let mut all = BTreeMap::new();
        for id in self.maps.ids_of(|generation| generation == settings.id)? {
            let state: types::channel_state = self.maps.channels.value(id)?;
            all.insert(self.maps.name(id)?, ChannelStats::from(&state.stats));
        }
        Ok(all)
    }

    /// Packet statistics of a link since it got its first channels; `None` if it has none.
    ///
    /// # Errors
    /// [`Error::Kernel`].
    pub fn link_stats(&self, ifindex: u32) -> Result<Option<LinkStats>, Error> {
        let Some(slot) = self.maps.slot_of(&self.key(ifindex))? else { return Ok(None) };
        Ok(Some(LinkStats::from(&self.maps.stats(slot)?)))
    }

    fn key(&self, ifindex: u32) -> types::link_key {
        types::link_key { netns: self.netns, ifindex, ..Default::default() }
    }

    fn settings_of(&self, ifindex: u32) -> Result<Option<types::link_settings>, Error> {
        self.maps.slot_of(&self.key(ifindex))?.map(|slot| self.maps.settings_of(slot)).transpose()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::common::abi::{Abi, Writer, layouts};

    /// The layouts of the maps of the object are those that their versions stand for: a map that differs needs another
    /// version.
    #[test]
    fn each_map_has_the_layout_of_its_version() {
        let object = load::open().unwrap();
        for abi in maps::ALL {
            let map = object.maps().find(|m| m.name() == abi.name).unwrap();
            assert!(
                abi.is_of(map.map_type(), map.key_size(), map.value_size(), map.max_entries()),
                "{abi:?}"
            );
            // The verifier refuses programs that write what a process writes. (The kernel maps nothing for writing that has
            // this flag.)
            let only_processes = map.map_flags() & libbpf_sys::BPF_F_RDONLY_PROG != 0;
            assert_eq!(only_processes, abi.writer == Writer::Settings, "{abi:?}");
        }
        let now = layouts(load::OBJECT, &maps::ALL);
        assert_eq!(now, include_str!("layouts.txt"), "now they are:\n{now}");
    }

    #[test]
    fn names_fit() {
        assert_eq!(size_of::<types::label>(), teiji_model::qdisc::MAX_NAME + 1);
        let pins: std::collections::BTreeSet<String> = maps::ALL.iter().map(Abi::pin_name).collect();
        assert_eq!(pins.len(), maps::ALL.len());
    }

    #[test]
    fn where_nothing_is_pinned_nothing_is_found_and_nothing_can_be_pinned_elsewhere() {
        let dir = tempfile::tempdir().unwrap();
        assert!(matches!(PinnedQdisc::open(dir.path()), Ok(PinnedQdisc::Absent)));
        unpin(dir.path()).unwrap();
        let error = Pins::new(&dir.path().join("teiji"), OBJECT).prepare().unwrap_err().to_string();
        assert!(error.contains("mount -t bpf bpf /sys/fs/bpf"), "{error}");
    }
}
