//! Channels: their indices, names, and the generations of their matches.
use super::maps::Maps;
use super::{link, types};
use crate::Error;
use crate::common::map::{ReadMap, WriteMap, wait_for_programs};
use crate::object::bytes_of;
use std::collections::{BTreeMap, BTreeSet};
use teiji_model::qdisc::{DeadlineQdisc, MAX_CHANNELS};

impl<M: AsRef<ReadMap>> Maps<M> {
    /// The name of a channel.
    pub(super) fn name(&self, id: u32) -> Result<String, Error> {
        let bytes = self.labels.as_ref().get(&id.to_ne_bytes())?.unwrap_or_default();
        let mut label = link::label("");
        label.name.iter_mut().zip(bytes).for_each(|(to, from)| *to = from);
        Ok(link::name(&label))
    }

    /// Generations that settings name.
    pub(super) fn generations(&self) -> Result<BTreeSet<u32>, Error> {
        self.links()?.into_iter().map(|(_, slot)| Ok(self.settings_of(slot)?.id)).collect()
    }

    /// Indices of the channels of some generations.
    pub(super) fn ids_of(&self, wanted: impl Fn(u32) -> bool) -> Result<BTreeSet<u32>, Error> {
        let all = self.matches.as_ref().entries::<types::match_key, types::channel_settings>()?;
        Ok(all.into_iter().filter(|(key, _)| wanted(key.link)).map(|(_, c)| c.id).collect())
    }
}

impl Maps<WriteMap> {
    /// The number of a generation that no settings name.
    pub(super) fn next_generation(&self) -> Result<u32, Error> {
        let mut registry: types::registry = self.registry.value(0)?;
        let used = self.generations()?;
        let unused = |g: &u32| *g != 0 && !used.contains(g);
        registry.generation =
            (1..).map(|n| registry.generation.wrapping_add(n)).find(unused).unwrap_or_default();
        self.registry.put_value(0, &registry)?;
        Ok(registry.generation)
    }

    /// An index for each channel of a link: its present one, of the generation `own`, or a new one with zeroed state. New
    /// indices are taken in turn, so that the packets of a removed channel have long left the queue when its index is used
    /// again. `None` if there are not enough.
    pub(super) fn claim(
        &self,
        own: Option<u32>,
        wanted: &DeadlineQdisc,
    ) -> Result<Option<BTreeMap<String, u32>>, Error> {
        let mut present = BTreeMap::new();
        for id in self.ids_of(|generation| Some(generation) == own)? {
            present.insert(self.name(id)?, id);
        }
        let used = self.generations()?;
        let taken = self.ids_of(|generation| used.contains(&generation))?;
        let mut registry: types::registry = self.registry.value(0)?;
        let n = MAX_CHANNELS as u32;
        let start = registry.channel;
        let mut free = (1..=n).map(|i| (start + i) % n).filter(|id| !taken.contains(id));
        let mut ids = BTreeMap::new();
        for name in wanted.channels.keys() {
            let id = match present.get(name) {
                Some(id) => *id,
                None => {
                    let Some(id) = free.next() else { return Ok(None) };
                    self.channels.put_value(id, &types::channel_state::default())?;
                    self.labels.put_value(id, &link::label(name))?;
                    registry.channel = id;
                    id
                }
            };
            ids.insert(name.clone(), id);
        }
        self.registry.put_value(0, &registry)?;
        Ok(Some(ids))
    }

    /// Removes matches that no settings name.
    pub(super) fn remove_unused_matches(&self) -> Result<(), Error> {
        wait_for_programs();
        let used = self.generations()?;
        let unnamed = |key: &types::match_key| !used.contains(&key.link);
        self.matches
            .keys::<types::match_key>()
            .iter()
            .filter(|key| unnamed(key))
            .try_for_each(|key| self.matches.delete(bytes_of(key)))
    }
}
