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
//! Only one process at a time has maps that it may write (`writer::Writer`).
use super::maps::{Maps, SETTINGS_PER_LINK};
use super::types;
use crate::Error;
use crate::common::map::{ReadMap, WriteMap, wait_for_programs};
use crate::object::{bytes_of, value_of};
use std::collections::BTreeSet;
use std::mem::offset_of;
use teiji_model::qdisc::MAX_LINKS;

impl<M: AsRef<ReadMap>> Maps<M> {
    /// All links with their slots.
    pub(super) fn links(&self) -> Result<Vec<(types::link_key, u32)>, Error> {
        self.slots.as_ref().entries()
    }

    /// A link's slot; `None` if it has none.
    pub(super) fn slot_of(&self, key: &types::link_key) -> Result<Option<u32>, Error> {
        Ok(self.slots.as_ref().get(bytes_of(key))?.map(|bytes| value_of(&bytes)))
    }

    /// A slot that no link and no qdisc has; `None` if all are taken.
    pub(super) fn free_slot(&self) -> Result<Option<u32>, Error> {
        let taken: BTreeSet<u32> = self.links()?.into_iter().map(|(_, slot)| slot).collect();
        for slot in (0..MAX_LINKS as u32).filter(|slot| !taken.contains(slot)) {
            if self.owner(slot)? == 0 {
                return Ok(Some(slot));
            }
        }
        Ok(None)
    }

    /// The settings of a slot that are in use.
    pub(super) fn settings_of(&self, slot: u32) -> Result<types::link_settings, Error> {
        self.settings.as_ref().value(slot * SETTINGS_PER_LINK + self.current_of(slot)?)
    }

    /// The qdisc that has a slot; 0 if none does.
    pub(super) fn owner(&self, slot: u32) -> Result<u64, Error> {
        let bytes = self.states.as_ref().get(&slot.to_ne_bytes())?.unwrap_or_default();
        Ok(value_of(bytes.get(offset_of!(types::link_state, owner)..).unwrap_or_default()))
    }

    /// The packet statistics of a slot.
    pub(super) fn stats(&self, slot: u32) -> Result<types::link_stats, Error> {
        let bytes = self.states.as_ref().get(&slot.to_ne_bytes())?.unwrap_or_default();
        Ok(value_of(bytes.get(offset_of!(types::link_state, stats)..).unwrap_or_default()))
    }

    fn current_of(&self, slot: u32) -> Result<u32, Error> {
        Ok(self.current.as_ref().value::<u32>(slot)? % SETTINGS_PER_LINK)
    }
}

impl Maps<WriteMap> {
    /// Replaces a slot's settings at once. The caller has to wait for the programs before it unlocks the pins.
    pub(super) fn put_settings(&self, slot: u32, settings: &types::link_settings) -> Result<(), Error> {
        let next = (self.current_of(slot)? + 1) % SETTINGS_PER_LINK;
        self.settings.put_value(slot * SETTINGS_PER_LINK + next, settings)?;
        self.current.put_value(slot, &next)
    }

    /// Gives a free slot to a link. Packets that the slot's state still holds are freed.
    pub(super) fn assign(
        &self,
        slot: u32,
        key: &types::link_key,
        settings: &types::link_settings,
    ) -> Result<(), Error> {
        self.states.put(&slot.to_ne_bytes(), &self.states.zeros())?;
        self.put_settings(slot, settings)?;
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
}
