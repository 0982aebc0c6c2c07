//! Earliest deadline first on a link: the Rust half of `qdisc_edf.bpf.c`, which says how packets are chosen.
//!
//! ```text
//! Edf::load ── verify the programs, register the qdisc kind `teiji_edf`, pin both ──► Edf     (the agent)
//! PinnedQdisc::open ── what is pinned ──► Edf                                                   (any process)
//! Edf::put_link ── settings and channels of a link, at once; then the caller makes it the root qdisc
//! Edf::send_heartbeat ── the heartbeat, at least every second; the kernel half falls back to FIFO 2 s after the last one
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
//! | module | does |
//! | --- | --- |
//! | `shape`, `link` | channels in the form of the kernel half, and back |
//! | `load` | verifies, registers and pins the programs |
//! | `owner` | one agent owns them, and pins again what somebody removes |
//! | `slots` | links: their settings and state, and which qdisc has them |
//! | `maps` | typed access to the maps |
//! | `netns` | the network namespace of links |
//! | `pins` | the folder that has the pins |
//! | `shared_numbers` | the agent's heartbeat, and how many links have the qdisc |
//! | `stats` | packet statistics |
mod link;
mod load;
mod maps;
mod netns;
mod owner;
mod pins;
mod shape;
mod shared_numbers;
mod slots;
mod stats;

/// Types shared with the C half, generated from the compiled object.
#[allow(missing_docs, unused, clippy::all, clippy::undocumented_unsafe_blocks, clippy::unwrap_used)]
mod skeleton {
    include!(concat!(env!("OUT_DIR"), "/qdisc_edf.skel.rs"));
}
use skeleton::types;

pub use load::supported;
pub use owner::{PinState, QdiscOwner};
pub use pins::{PINS, unpin};
pub use shared_numbers::SharedNumbers;

use crate::Error;
use crate::object::{bytes_of, value_of};
use maps::{Map, Registry};
use pins::Pins;
use slots::Slots;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::Duration;
use teiji_model::qdisc::{DeadlineQdisc, MAX_CHANNELS, MAX_LINKS};
use teiji_model::status::{ChannelStats, LinkStats};

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
    slots: Slots,
    matches: Map,
    channels: Map,
    labels: Map,
    registry: Registry,
    shared: SharedNumbers,
    netns: u64,
}

/// What is pinned in a folder.
pub enum PinnedQdisc {
    /// Nothing.
    Absent,
    /// The qdisc of exactly this version.
    Current(Box<Edf>),
    /// The qdisc of another version of teiji: only the heartbeat can be sent.
    Other(SharedNumbers),
}

impl PinnedQdisc {
    /// What is pinned in `folder`.
    ///
    /// # Errors
    /// [`Error::NotPermitted`] without the permission to open pins; [`Error::Kernel`] if the kernel refuses.
    pub fn open(folder: &Path) -> Result<PinnedQdisc, Error> {
        crate::silence_libbpf();
        let pins = Pins::new(folder);
        if !pins.are_there()? {
            return Ok(PinnedQdisc::Absent);
        }
        let registry = Registry(Map::open(&pins.current("registry"), "registry")?);
        if registry.read()?.version == load::version() {
            Edf::open(pins, registry).map(|edf| PinnedQdisc::Current(Box::new(edf)))
        } else {
            SharedNumbers::open(&pins).map(PinnedQdisc::Other)
        }
    }
}

impl Edf {
    fn open(pins: Pins, registry: Registry) -> Result<Edf, Error> {
        let map = |name| Map::open(&pins.current(name), name);
        Ok(Edf {
            slots: Slots::open(&pins)?,
            matches: map("matches")?,
            channels: map("channels")?,
            labels: map("labels")?,
            shared: SharedNumbers::open(&pins)?,
            netns: netns::cookie()?,
            registry,
            pins,
        })
    }

    /// Sends the heartbeat. To be called at least every [`HEARTBEAT_INTERVAL_MAX`].
    pub fn send_heartbeat(&self) {
        self.shared.send_heartbeat();
    }

    /// What a process needs that only sends the heartbeat.
    pub fn into_shared(self) -> SharedNumbers {
        self.shared
    }

    /// How long ago the last heartbeat was; `None` if there was none.
    pub fn heartbeat_age(&self) -> Option<Duration> {
        self.shared.heartbeat_age()
    }

    /// How many links have the qdisc, of all network namespaces.
    pub fn link_count(&self) -> u64 {
        self.shared.link_count()
    }

    /// Sets the settings and channels of a link, all of them at once. The link has the qdisc or is about to get it.
    /// Channels whose names do not change keep their token buckets and statistics; queued packets keep their deadlines.
    ///
    /// `wanted` has to be normalised ([`teiji_model::qdisc::Channel::normal`]) for [`Edf::link`] to return the same.
    /// Links are those of the network namespace of the thread that opened this.
    ///
    /// # Errors
    /// [`Error::Refused`] if the kernel half cannot keep them; [`Error::Kernel`]. Nothing has changed then.
    pub fn put_link(&self, ifindex: u32, wanted: &DeadlineQdisc) -> Result<(), Error> {
        let refuse = |reason| Error::Refused { doing: format!("set interface {ifindex}'s channels"), reason };
        let _lock = self.pins.lock()?;
        let generation = self.next_generation()?;
        let written = link::encode(wanted, generation).map_err(refuse)?;
        let own = self.slots.of(&self.key(ifindex))?;
        let Some(slot) = own.map_or_else(|| self.slots.free(), |slot| Ok(Some(slot)))? else {
            return Err(refuse(format!(
                "{MAX_LINKS} links have channels, which is the most; take those of another away"
            )));
        };
        let ids = self.claim(ifindex, wanted)?.ok_or_else(|| {
            refuse(format!(
                "all links together would have more than {MAX_CHANNELS} channels, which is the most"
            ))
        })?;
        let done = self.write_matches(wanted, &written, &ids).and_then(|()| match own {
            Some(_) => self.slots.put(slot, &written.settings),
            None => self.slots.assign(slot, &self.key(ifindex), &written.settings),
        });
        // Removes the matches of the former generation, or of the new one if writing it failed.
        let tidied = self.remove_unused_matches();
        done.and(tidied)
    }

    fn write_matches(
        &self,
        wanted: &DeadlineQdisc,
        written: &link::EncodedLink,
        ids: &BTreeMap<String, u32>,
    ) -> Result<(), Error> {
        for (name, channel) in &wanted.channels {
            let settings = link::channel_settings(channel, ids[name]);
            for key in &written.entries[name] {
                self.matches.put(bytes_of(key), bytes_of(&settings))?;
            }
        }
        Ok(())
    }

    /// The settings and channels of a link, as the kernel half has them; `None` if it has none.
    ///
    /// # Errors
    /// [`Error::Kernel`].
    pub fn link(&self, ifindex: u32) -> Result<Option<DeadlineQdisc>, Error> {
        let Some(settings) = self.settings_of(ifindex)? else { return Ok(None) };
        link::decode(&settings, &self.matches.entries()?, |id| self.name(id)).map(Some)
    }

    /// Removes a link that no longer has the qdisc.
    ///
    /// # Errors
    /// [`Error::Refused`] if it has it; [`Error::Kernel`].
    pub fn remove_link(&self, ifindex: u32) -> Result<(), Error> {
        let _lock = self.pins.lock()?;
        if let Some(slot) = self.slots.of(&self.key(ifindex))? {
            if self.slots.owner(slot)? == 0 {
                self.slots.release(&[(self.key(ifindex), slot)])?;
            }
            if self.slots.owner(slot)? != 0 {
                return Err(Error::Refused {
                    doing: format!("forget the channels of interface {ifindex}"),
                    reason: format!("it has the qdisc {KIND}"),
                });
            }
        }
        self.remove_unused_matches()
    }

    /// Lets a link send queued packets as fast as the device accepts them, until [`Edf::put_link`] or [`Edf::remove_leftovers`].
    /// [`Edf::link`] does not show this.
    ///
    /// # Errors
    /// [`Error::Kernel`].
    pub fn disable_pacing(&self, ifindex: u32) -> Result<(), Error> {
        let _lock = self.pins.lock()?;
        let Some(slot) = self.slots.of(&self.key(ifindex))? else { return Ok(()) };
        let settings = types::link_settings { unpaced: 1, ..self.slots.settings(slot)? };
        self.slots.put(slot, &settings)?;
        maps::wait_for_programs();
        Ok(())
    }

    /// Whether a link has the qdisc of these programs.
    ///
    /// # Errors
    /// [`Error::Kernel`].
    pub fn has(&self, ifindex: u32) -> Result<bool, Error> {
        let slot = self.slots.of(&self.key(ifindex))?;
        slot.map_or(Ok(false), |slot| Ok(self.slots.owner(slot)? != 0))
    }

    /// Links of this network namespace that have the qdisc, by their indices.
    ///
    /// # Errors
    /// [`Error::Kernel`].
    pub fn links(&self) -> Result<Vec<u32>, Error> {
        let mut links = Vec::new();
        for (key, slot) in self.slots.all()? {
            if key.netns == self.netns && self.slots.owner(slot)? != 0 {
                links.push(key.ifindex);
            }
        }
        links.sort_unstable();
        Ok(links)
    }

    /// Removes what killed writers and removed links left behind, and turns pacing on again.
    ///
    /// # Errors
    /// [`Error::Kernel`].
    pub fn remove_leftovers(&self) -> Result<(), Error> {
        let _lock = self.pins.lock()?;
        let mut left = Vec::new();
        for (key, slot) in self.slots.all()? {
            let settings = self.slots.settings(slot)?;
            if self.slots.owner(slot)? == 0 {
                left.push((key, slot));
            } else if settings.unpaced != 0 {
                self.slots.put(slot, &types::link_settings { unpaced: 0, ..settings })?;
            }
        }
        if !left.is_empty() {
            self.slots.release(&left)?;
        }
        self.remove_unused_matches()
    }

    /// Packet statistics of a link's channels, by name, since each was added.
    ///
    /// # Errors
    /// [`Error::Kernel`].
    pub fn channel_stats(&self, ifindex: u32) -> Result<BTreeMap<String, ChannelStats>, Error> {
        let Some(settings) = self.settings_of(ifindex)? else { return Ok(BTreeMap::new()) };
        let mut all = BTreeMap::new();
        for id in self.ids_of(|generation| generation == settings.id)? {
            let bytes = self.channels.get(&id.to_ne_bytes())?.unwrap_or_default();
            let state: types::channel_state = value_of(&bytes);
            all.insert(self.name(id)?, ChannelStats::from(&state.stats));
        }
        Ok(all)
    }

    /// Packet statistics of a link since it got its first channels; `None` if it has none.
    ///
    /// # Errors
    /// [`Error::Kernel`].
    pub fn link_stats(&self, ifindex: u32) -> Result<Option<LinkStats>, Error> {
        let Some(slot) = self.slots.of(&self.key(ifindex))? else { return Ok(None) };
        Ok(Some(LinkStats::from(&self.slots.stats(slot)?)))
    }

    fn key(&self, ifindex: u32) -> types::link_key {
        types::link_key { netns: self.netns, ifindex, ..Default::default() }
    }

    fn settings_of(&self, ifindex: u32) -> Result<Option<types::link_settings>, Error> {
        self.slots.of(&self.key(ifindex))?.map(|slot| self.slots.settings(slot)).transpose()
    }

    fn name(&self, id: u32) -> Result<String, Error> {
        let bytes = self.labels.get(&id.to_ne_bytes())?.unwrap_or_default();
        let mut label = link::label("");
        label.name.iter_mut().zip(bytes).for_each(|(to, from)| *to = from);
        Ok(link::name(&label))
    }

    /// The number of a generation that no settings name.
    fn next_generation(&self) -> Result<u32, Error> {
        let mut registry = self.registry.read()?;
        let used = self.generations()?;
        let unused = |g: &u32| *g != 0 && !used.contains(g);
        registry.generation =
            (1..).map(|n| registry.generation.wrapping_add(n)).find(unused).unwrap_or_default();
        self.registry.write(&registry)?;
        Ok(registry.generation)
    }

    /// Generations that settings name.
    fn generations(&self) -> Result<BTreeSet<u32>, Error> {
        self.slots.all()?.into_iter().map(|(_, slot)| Ok(self.slots.settings(slot)?.id)).collect()
    }

    /// Indices of the channels of some generations.
    fn ids_of(&self, wanted: impl Fn(u32) -> bool) -> Result<BTreeSet<u32>, Error> {
        let all = self.matches.entries::<types::match_key, types::channel_settings>()?;
        Ok(all.into_iter().filter(|(key, _)| wanted(key.link)).map(|(_, c)| c.id).collect())
    }

    /// An index for each channel: its present one, or a new one with zeroed state. New indices are taken in turn, so
    /// that the packets of a removed channel have long left the queue when its index is used again. `None` if there are
    /// not enough.
    fn claim(&self, ifindex: u32, wanted: &DeadlineQdisc) -> Result<Option<BTreeMap<String, u32>>, Error> {
        let own = self.settings_of(ifindex)?.map(|settings| settings.id);
        let mut present = BTreeMap::new();
        for id in self.ids_of(|generation| Some(generation) == own)? {
            present.insert(self.name(id)?, id);
        }
        let used = self.generations()?;
        let taken = self.ids_of(|generation| used.contains(&generation))?;
        let mut registry = self.registry.read()?;
        let n = MAX_CHANNELS as u32;
        let start = registry.channel;
        let mut free = (1..=n).map(|i| (start + i) % n).filter(|id| !taken.contains(id));
        let mut ids = BTreeMap::new();
        for name in wanted.channels.keys() {
            let id = match present.get(name) {
                Some(id) => *id,
                None => {
                    let Some(id) = free.next() else { return Ok(None) };
                    let state = types::channel_state::default();
                    self.channels.put(&id.to_ne_bytes(), bytes_of(&state))?;
                    self.labels.put(&id.to_ne_bytes(), bytes_of(&link::label(name)))?;
                    registry.channel = id;
                    id
                }
            };
            ids.insert(name.clone(), id);
        }
        self.registry.write(&registry)?;
        Ok(Some(ids))
    }

    /// Removes matches that no settings name.
    fn remove_unused_matches(&self) -> Result<(), Error> {
        maps::wait_for_programs();
        let used = self.generations()?;
        let unnamed = |key: &types::match_key| !used.contains(&key.link);
        self.matches
            .keys::<types::match_key>()
            .iter()
            .filter(|key| unnamed(key))
            .try_for_each(|key| self.matches.delete(bytes_of(key)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bounds_are_those_of_the_kernel_half() {
        let object = load::open().unwrap();
        let bound = |name: &str| object.maps().find(|m| m.name() == name).unwrap().max_entries() as usize;
        assert_eq!((bound("channels"), bound("labels")), (MAX_CHANNELS, MAX_CHANNELS));
        // Two IP versions, two generations.
        assert_eq!(bound("matches"), 4 * MAX_CHANNELS);
        assert_eq!((bound("slots"), bound("current"), bound("states")), (MAX_LINKS, MAX_LINKS, MAX_LINKS));
        assert_eq!(bound("settings"), MAX_LINKS * slots::SETTINGS_PER_LINK as usize);
        assert_eq!(size_of::<types::label>(), teiji_model::qdisc::MAX_NAME + 1);
        assert!(maps::NAMES.iter().all(|name| object.maps().any(|m| m.name() == *name)));
    }

    #[test]
    fn where_nothing_is_pinned_nothing_is_found_and_nothing_can_be_pinned_elsewhere() {
        let dir = tempfile::tempdir().unwrap();
        assert!(matches!(PinnedQdisc::open(dir.path()), Ok(PinnedQdisc::Absent)));
        assert!(SharedNumbers::of(dir.path()).unwrap().is_none());
        unpin(dir.path()).unwrap();
        let error = Pins::new(&dir.path().join("teiji")).prepare().unwrap_err().to_string();
        assert!(error.contains("mount -t bpf bpf /sys/fs/bpf"), "{error}");
    }
}
