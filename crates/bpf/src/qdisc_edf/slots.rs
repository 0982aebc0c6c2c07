//! Links and their slots: the settings and state that a link's qdisc looks up, and how these are replaced.
//!
//! ```text
//!  free ──(state zeroed, settings written, named in `slots`)──► given to a link ◄──(init, destroy)──► a qdisc has it
//!   ▲                                                             │
//!   └────────────────(removed from `slots`)───────────────────────┘
//! ```
//! A slot has a ring of settings, and `current` says which of them are in use. The next place is written first, and
//! then `current`: programs see either the former or the new settings, never a mixture, even if the writer is killed.
//! A program that has looked up the former settings may continue to read them: their place is written again only by
//! the fourth change from now, and each writer waits for all programs ([`wait_for_programs`]) before it lets another
//! process write.
//!
//! Only one process at a time may call the functions that write (`pins::Pins::lock`).
use super::maps::{Map, wait_for_programs};
use super::pins::Pins;
use super::types;
use crate::Error;
use crate::object::{bytes_of, value_of};
use std::collections::BTreeSet;
use std::mem::offset_of;
use teiji_model::qdisc::MAX_LINKS;

/// Settings of a slot (`SETTINGS_PER_LINK` in `intf.h`; a test compares).
pub(super) const SETTINGS_PER_LINK: u32 = 4;

/// The links' maps.
pub(super) struct Slots {
    slots: Map,
    current: Map,
    settings: Map,
    states: Map,
}

impl Slots {
    /// Opens the pinned maps.
    pub(super) fn open(pins: &Pins) -> Result<Slots, Error> {
        let map = |name| Map::open(&pins.current(name), name);
        Ok(Slots {
            slots: map("slots")?,
            current: map("current")?,
            settings: map("settings")?,
            states: map("states")?,
        })
    }

    /// All links with their slots.
    pub(super) fn all(&self) -> Result<Vec<(types::link_key, u32)>, Error> {
        self.slots.entries()
    }

    /// A link's slot; `None` if it has none.
    pub(super) fn of(&self, key: &types::link_key) -> Result<Option<u32>, Error> {
        Ok(self.slots.get(bytes_of(key))?.map(|bytes| value_of(&bytes)))
    }

    /// A slot that no link and no qdisc has; `None` if all are taken.
    pub(super) fn free(&self) -> Result<Option<u32>, Error> {
        let taken: BTreeSet<u32> = self.all()?.into_iter().map(|(_, slot)| slot).collect();
        for slot in (0..MAX_LINKS as u32).filter(|slot| !taken.contains(slot)) {
            if self.owner(slot)? == 0 {
                return Ok(Some(slot));
            }
        }
        Ok(None)
    }

    /// The settings of a slot that are in use.
    pub(super) fn settings(&self, slot: u32) -> Result<types::link_settings, Error> {
        let at = slot * SETTINGS_PER_LINK + self.current(slot)?;
        Ok(value_of(&self.settings.get(&at.to_ne_bytes())?.unwrap_or_default()))
    }

    /// Replaces a slot's settings at once. The caller has to wait for the programs before it unlocks the pins.
    pub(super) fn put(&self, slot: u32, settings: &types::link_settings) -> Result<(), Error> {
        let next = (self.current(slot)? + 1) % SETTINGS_PER_LINK;
        let at = slot * SETTINGS_PER_LINK + next;
        self.settings.put(&at.to_ne_bytes(), bytes_of(settings))?;
        self.current.put(&slot.to_ne_bytes(), &next.to_ne_bytes())
    }

    /// Gives a free slot to a link. Packets that the slot's state still holds are freed.
    pub(super) fn assign(
        &self,
        slot: u32,
        key: &types::link_key,
        settings: &types::link_settings,
    ) -> Result<(), Error> {
        self.states.put(&slot.to_ne_bytes(), &self.states.zeros())?;
        self.put(slot, settings)?;
        self.slots.put(bytes_of(key), &slot.to_ne_bytes())
    }

    /// Takes the slots away from these links, unless a qdisc has them.
    pub(super) fn release(&self, links: &[(types::link_key, u32)]) -> Result<(), Error> {
        for (key, _) in links {
            self.slots.delete(bytes_of(key))?;
        }
        wait_for_programs();
        // A qdisc that was created meanwhile keeps its slot.
        for (key, slot) in links {
            if self.owner(*slot)? != 0 {
                self.slots.put(bytes_of(key), &slot.to_ne_bytes())?;
            }
        }
        Ok(())
    }

    /// The qdisc that has a slot; 0 if none does.
    pub(super) fn owner(&self, slot: u32) -> Result<u64, Error> {
        let bytes = self.states.get(&slot.to_ne_bytes())?.unwrap_or_default();
        Ok(value_of(bytes.get(offset_of!(types::link_state, owner)..).unwrap_or_default()))
    }

    /// The packet statistics of a slot.
    pub(super) fn stats(&self, slot: u32) -> Result<types::link_stats, Error> {
        let bytes = self.states.get(&slot.to_ne_bytes())?.unwrap_or_default();
        Ok(value_of(bytes.get(offset_of!(types::link_state, stats)..).unwrap_or_default()))
    }

    fn current(&self, slot: u32) -> Result<u32, Error> {
        let which: u32 = value_of(&self.current.get(&slot.to_ne_bytes())?.unwrap_or_default());
        Ok(which % SETTINGS_PER_LINK)
    }
}
