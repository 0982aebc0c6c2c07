//! Changes of links and channels. One process at a time makes them: the one that has a [`Writer`].
use super::maps::Maps;
use super::{Edf, KIND, link, types};
use crate::Error;
use crate::common::map::{WriteMap, wait_for_programs};
use crate::common::pins::Pins;
use crate::object::bytes_of;
use nix::fcntl::Flock;
use std::collections::BTreeMap;
use std::fs::File;
use teiji_model::qdisc::{DeadlineQdisc, MAX_CHANNELS, MAX_LINKS};

/// The maps of the pins in use, opened for writing, with the lock that keeps other writers out.
struct Writer {
    maps: Maps<WriteMap>,
    netns: u64,
    _lock: Flock<File>,
}

impl Writer {
    /// Waits until no other process writes.
    fn new(pins: &Pins, netns: u64) -> Result<Writer, Error> {
        let lock = pins.lock()?;
        let maps = Maps::open(pins)?.ok_or_else(|| Error::Refused {
            doing: format!("change channels of the qdisc {KIND}"),
            reason: "the agent that has been started meanwhile is of another version of teiji; try again"
                .into(),
        })?;
        Ok(Writer { maps, netns, _lock: lock })
    }

    fn key(&self, ifindex: u32) -> types::link_key {
        types::link_key { netns: self.netns, ifindex, ..Default::default() }
    }

    fn put_link(&self, ifindex: u32, wanted: &DeadlineQdisc) -> Result<(), Error> {
        let refuse = |reason| Error::Refused { doing: format!("set interface {ifindex}'s channels"), reason };
        let (maps, key) = (&self.maps, self.key(ifindex));
        let generation = maps.next_generation()?;
        let written = link::encode(wanted, generation).map_err(refuse)?;
        let own = maps.slot_of(&key)?;
        let Some(slot) = own.map_or_else(|| maps.free_slot(), |slot| Ok(Some(slot)))? else {
            return Err(refuse(format!(
                "{MAX_LINKS} links have channels, which is the most; take those of another away"
            )));
        };
        let before = own.map(|slot| maps.settings_of(slot)).transpose()?;
        let ids = maps.claim(before.map(|settings| settings.id), wanted)?.ok_or_else(|| {
            refuse(format!(
                "all links together would have more than {MAX_CHANNELS} channels, which is the most"
            ))
        })?;
        let done = self.write_matches(wanted, &written, &ids).and_then(|()| match own {
            Some(_) => maps.put_settings(slot, &written.settings),
            None => maps.assign(slot, &key, &written.settings),
        });
        // Removes the matches of the former generation, or of the new one if writing it failed.
        let tidied = maps.remove_unused_matches();
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
                self.maps.matches.put(bytes_of(key), bytes_of(&settings))?;
            }
        }
        Ok(())
    }
}

impl Edf {
    fn writer(&self) -> Result<Writer, Error> {
        Writer::new(&self.pins, self.netns)
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
        self.writer()?.put_link(ifindex, wanted)
    }

    /// Removes a link that no longer has the qdisc.
    ///
    /// # Errors
    /// [`Error::Refused`] if it has it; [`Error::Kernel`].
    pub fn remove_link(&self, ifindex: u32) -> Result<(), Error> {
        let writer = self.writer()?;
        let (maps, key) = (&writer.maps, writer.key(ifindex));
        if let Some(slot) = maps.slot_of(&key)? {
            if maps.owner(slot)? == 0 {
                maps.release(&[(key, slot)])?;
            }
            if maps.owner(slot)? != 0 {
                return Err(Error::Refused {
                    doing: format!("forget the channels of interface {ifindex}"),
                    reason: format!("it has the qdisc {KIND}"),
                });
            }
        }
        maps.remove_unused_matches()
    }

    /// Lets a link send queued packets as fast as the device accepts them, until [`Edf::put_link`] or [`Edf::remove_leftovers`].
    /// [`Edf::link`] does not show this.
    ///
    /// # Errors
    /// [`Error::Kernel`].
    pub fn disable_pacing(&self, ifindex: u32) -> Result<(), Error> {
        let writer = self.writer()?;
        let Some(slot) = writer.maps.slot_of(&writer.key(ifindex))? else { return Ok(()) };
        let settings = types::link_settings { unpaced: 1, ..writer.maps.settings_of(slot)? };
        writer.maps.put_settings(slot, &settings)?;
        wait_for_programs();
        Ok(())
    }

    /// Removes what killed writers and removed links left behind, and turns pacing on again.
    ///
    /// # Errors
    /// [`Error::Kernel`].
    pub fn remove_leftovers(&self) -> Result<(), Error> {
        let writer = self.writer()?;
        let maps = &writer.maps;
        let mut left = Vec::new();
        for (key, slot) in maps.links()? {
            let settings = maps.settings_of(slot)?;
            if maps.owner(slot)? == 0 {
                left.push((key, slot));
            } else if settings.unpaced != 0 {
                maps.put_settings(slot, &types::link_settings { unpaced: 0, ..settings })?;
            }
        }
        if !left.is_empty() {
            maps.release(&left)?;
        }
        maps.remove_unused_matches()
    }
}
