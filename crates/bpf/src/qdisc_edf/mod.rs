//! Earliest deadline first on a link: the Rust half of `qdisc_edf.bpf.c`, which says how packets are chosen.
//!
//! ```text
//! Edf::load ── verify the programs, register the qdisc kind `teiji_edf`, pin both ──► Edf     (the agent)
//! Opened::of ── what is pinned ──► Edf                                                       (any process)
//! Edf::put_link ── settings and channels of a link, at once; then the caller makes it the root qdisc
//! Edf::beat ── at least every second; the kernel half falls back to FIFO 2 s after the last
//! unpin ── the kind is gone once no link has it
//! ```
//! Nothing of it lives in a process: whoever opens the pins sees and changes what others have written, and links go
//! on when all of them are gone.
//!
//! ## One change, one write
//! `link_settings.id` names a *generation* of a link's matches. [`Edf::put_link`] writes all matches under a new one
//! and the settings that name it last (`slots`), so that whoever is killed on the way leaves what was or what shall
//! be, and beside it matches that nothing names, which [`Edf::tidy`] removes. Writers exclude each other by flock(2)
//! on the folder of the pins.
//!
//! | module | does |
//! | --- | --- |
//! | `shape`, `link` | channels in the form of the kernel half, and back |
//! | `load` | verifies, registers and pins the programs |
//! | `keep` | one agent owns them, and pins again what somebody removes |
//! | `slots` | links: their settings, state and who has them |
//! | `maps` | the maps by their types |
//! | `netns` | which network namespace links are of |
//! | `pins` | the folder that keeps them |
//! | `pulse` | the agent's beat |
//! | `stats` | what has become of packets |
mod keep;
mod link;
mod load;
mod maps;
mod netns;
mod pins;
mod pulse;
mod shape;
mod slots;
mod stats;

/// Types shared with the C half, generated from the compiled object.
#[allow(missing_docs, unused, clippy::all, clippy::undocumented_unsafe_blocks, clippy::unwrap_used)]
mod skeleton {
    include!(concat!(env!("OUT_DIR"), "/qdisc_edf.skel.rs"));
}
use skeleton::types;

pub use keep::{Keep, Pinned};
pub use load::supported;
pub use pins::{PINS, unpin};
pub use pulse::Pulse;

use crate::Error;
use crate::object::{bytes_of, value_of};
use maps::{Map, Registry};
use pins::Pins;
use slots::Slots;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::Duration;
use teiji_model::queue::{Deadlines, MAX_CHANNELS, MAX_LINKS};
use teiji_model::status::{ChannelStats, LinkStats};

/// Name of the qdisc kind, as `tc qdisc` shows it.
pub const KIND: &str = "teiji_edf";
/// The longest time between two beats that is safe: half of what the kernel half bears.
pub const BEAT_EVERY: Duration = Duration::from_secs(1);
/// Without a beat for so long the kernel half sends without deadlines (`BEAT_LIMIT` in `intf.h`).
pub const BEAT_LIMIT: Duration = Duration::from_secs(2);

/// The pinned programs' settings and state.
pub struct Edf {
    pins: Pins,
    slots: Slots,
    matches: Map,
    channels: Map,
    labels: Map,
    registry: Registry,
    pulse: Pulse,
    netns: u64,
}

/// What is pinned in a folder.
pub enum Opened {
    /// Nothing.
    Absent,
    /// The qdisc of this very version.
    Current(Box<Edf>),
    /// That of another version of teiji, for which one can only beat.
    Other(Pulse),
}

impl Opened {
    /// What is pinned in `folder`.
    ///
    /// # Errors
    /// [`Error::NotPermitted`] without the right to look; [`Error::Kernel`] if the kernel refuses.
    pub fn of(folder: &Path) -> Result<Opened, Error> {
        crate::quiet();
        let pins = Pins::new(folder);
        if !pins.are_there()? {
            return Ok(Opened::Absent);
        }
        let registry = Registry(Map::open(&pins.current("registry"), "registry")?);
        if registry.read()?.version == load::version() {
            Edf::open(pins, registry).map(|edf| Opened::Current(Box::new(edf)))
        } else {
            Pulse::open(&pins).map(Opened::Other)
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
            pulse: Pulse::open(&pins)?,
            netns: netns::cookie()?,
            registry,
            pins,
        })
    }

    /// Says that this process lives. To be called at least every [`BEAT_EVERY`].
    pub fn beat(&self) {
        self.pulse.beat();
    }

    /// What is left for a process that only beats.
    pub fn into_pulse(self) -> Pulse {
        self.pulse
    }

    /// How long ago the last beat was; `None` if there was none.
    pub fn beaten(&self) -> Option<Duration> {
        self.pulse.beaten()
    }

    /// How many links have the qdisc, of all network namespaces.
    pub fn users(&self) -> u64 {
        self.pulse.users()
    }

    /// Makes these the settings and channels of a link, all of them at once, whether it has the qdisc or is about to
    /// get it. Channels whose names stay keep their token buckets and statistics, and queued packets their deadlines.
    ///
    /// `wanted` has to be normal ([`teiji_model::queue::Channel::normal`]) for [`Edf::link`] to return the same.
    /// Links are those of the network namespace of the thread that opened this.
    ///
    /// # Errors
    /// [`Error::Refused`] if the kernel half cannot keep them; [`Error::Kernel`]. Nothing has changed then.
    pub fn put_link(&self, ifindex: u32, wanted: &Deadlines) -> Result<(), Error> {
        let refuse = |reason| Error::Refused { doing: format!("set interface {ifindex}'s channels"), reason };
        let _lock = self.pins.lock()?;
        let generation = self.next_generation()?;
        let written = link::written(wanted, generation).map_err(refuse)?;
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
            None => self.slots.give(slot, &self.key(ifindex), &written.settings),
        });
        // The former generation's, or if that failed the new one's.
        let tidied = self.collect();
        done.and(tidied)
    }

    fn write_matches(
        &self,
        wanted: &Deadlines,
        written: &link::Written,
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
    pub fn link(&self, ifindex: u32) -> Result<Option<Deadlines>, Error> {
        let Some(settings) = self.settings_of(ifindex)? else { return Ok(None) };
        link::read(&settings, &self.matches.entries()?, |id| self.name(id)).map(Some)
    }

    /// Lets go of a link that does not have the qdisc any more.
    ///
    /// # Errors
    /// [`Error::Refused`] if it has it; [`Error::Kernel`].
    pub fn remove_link(&self, ifindex: u32) -> Result<(), Error> {
        let _lock = self.pins.lock()?;
        if let Some(slot) = self.slots.of(&self.key(ifindex))? {
            if self.slots.owner(slot)? == 0 {
                self.slots.take(&[(self.key(ifindex), slot)])?;
            }
            if self.slots.owner(slot)? != 0 {
                return Err(Error::Refused {
                    doing: format!("forget the channels of interface {ifindex}"),
                    reason: format!("it has the qdisc {KIND}"),
                });
            }
        }
        self.collect()
    }

    /// Lets a link send whatever is queued as fast as the device takes it, until [`Edf::put_link`] or [`Edf::tidy`].
    /// It does not show in [`Edf::link`].
    ///
    /// # Errors
    /// [`Error::Kernel`].
    pub fn unpace(&self, ifindex: u32) -> Result<(), Error> {
        let _lock = self.pins.lock()?;
        let Some(slot) = self.slots.of(&self.key(ifindex))? else { return Ok(()) };
        let settings = types::link_settings { unpaced: 1, ..self.slots.settings(slot)? };
        self.slots.put(slot, &settings)?;
        maps::wait_for_programs();
        Ok(())
    }

    /// Whether a link has the qdisc, and by these programs.
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

    /// Removes what writers that were killed, and links that are gone, left behind; links keep their pace again.
    ///
    /// # Errors
    /// [`Error::Kernel`].
    pub fn tidy(&self) -> Result<(), Error> {
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
            self.slots.take(&left)?;
        }
        self.collect()
    }

    /// What has become of the packets of a link's channels, by their names, since these were added.
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

    /// What has become of all packets of a link since its first channels; `None` if it has none.
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

    /// A number that no matches are written under.
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

    /// An index for each channel: the one that it has, or a new one, with its state zeroed. Indices go round, so that
    /// a packet of a channel that was removed has long left the queue when its index is used again. `None` if there
    /// are not enough.
    fn claim(&self, ifindex: u32, wanted: &Deadlines) -> Result<Option<BTreeMap<String, u32>>, Error> {
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
    fn collect(&self) -> Result<(), Error> {
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
        assert_eq!(size_of::<types::label>(), teiji_model::queue::MAX_NAME + 1);
        assert!(maps::NAMES.iter().all(|name| object.maps().any(|m| m.name() == *name)));
    }

    #[test]
    fn where_nothing_is_pinned_nothing_is_found_and_nothing_can_be_pinned_elsewhere() {
        let dir = tempfile::tempdir().unwrap();
        assert!(matches!(Opened::of(dir.path()), Ok(Opened::Absent)));
        assert!(Pulse::of(dir.path()).unwrap().is_none());
        unpin(dir.path()).unwrap();
        let error = Pins::new(&dir.path().join("teiji")).prepare().unwrap_err().to_string();
        assert!(error.contains("mount -t bpf bpf /sys/fs/bpf"), "{error}");
    }
}
