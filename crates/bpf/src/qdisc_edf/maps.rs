//! Typed access to the maps.
use super::types;
use crate::Error;
use crate::object::{bytes_of, value_of};
use libbpf_rs::{MapCore, MapFlags, MapHandle};
use std::path::Path;

/// The maps that processes write, by their names.
pub(super) const NAMES: [&str; 10] = [
    "slots",
    "current",
    "settings",
    "states",
    "matches",
    "channels",
    "labels",
    "registry",
    "heartbeat",
    "users",
];

/// The pin of the heartbeat's map: agents of other versions open it, so it keeps the name that it had first.
pub(super) const HEARTBEAT_PIN: &str = "beat";

/// The name of a map's pin.
pub(super) fn pin_of(map: &'static str) -> &'static str {
    if map == "heartbeat" { HEARTBEAT_PIN } else { map }
}

/// A map with its name, for messages.
pub(super) struct Map {
    handle: MapHandle,
    name: &'static str,
}

impl Map {
    /// The map pinned at `path`.
    pub(super) fn open(path: &Path, name: &'static str) -> Result<Map, Error> {
        let handle = MapHandle::from_pinned_path(path)
            .map_err(|e| Error::kernel(format!("open {}", path.display()), e))?;
        Ok(Map { handle, name })
    }

    pub(super) fn put(&self, key: &[u8], value: &[u8]) -> Result<(), Error> {
        self.handle
            .update(key, value, MapFlags::ANY)
            .map_err(|e| Error::kernel(format!("write the map {}", self.name), e))
    }

    pub(super) fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, Error> {
        self.handle
            .lookup(key, MapFlags::ANY)
            .map_err(|e| Error::kernel(format!("read the map {}", self.name), e))
    }

    /// Removes an entry if it is there.
    pub(super) fn delete(&self, key: &[u8]) -> Result<(), Error> {
        match self.handle.delete(key) {
            Err(e) if e.kind() == libbpf_rs::ErrorKind::NotFound => Ok(()),
            done => done.map_err(|e| Error::kernel(format!("remove from the map {}", self.name), e)),
        }
    }

    /// All keys that are there now.
    pub(super) fn keys<K: Copy + Default>(&self) -> Vec<K> {
        self.handle.keys().map(|key| value_of(&key)).collect()
    }

    /// All entries.
    pub(super) fn entries<K: Copy + Default, V: Copy + Default>(&self) -> Result<Vec<(K, V)>, Error> {
        let mut all = Vec::new();
        for key in self.handle.keys() {
            if let Some(value) = self.get(&key)? {
                all.push((value_of(&key), value_of(&value)));
            }
        }
        Ok(all)
    }

    /// A value of zeros.
    pub(super) fn zeros(&self) -> Vec<u8> {
        vec![0; self.handle.value_size() as usize]
    }
}

/// The one element of `registry`.
pub(super) struct Registry(pub(super) Map);

impl Registry {
    pub(super) fn read(&self) -> Result<types::registry, Error> {
        Ok(value_of(&self.0.get(&0u32.to_ne_bytes())?.unwrap_or_default()))
    }

    pub(super) fn write(&self, value: &types::registry) -> Result<(), Error> {
        self.0.put(&0u32.to_ne_bytes(), bytes_of(value))
    }
}

/// Waits until no program uses values that were in the maps before this call.
///
/// Programs run under RCU, and membarrier(2) with this command returns after every present RCU reader has ended. Where
/// the kernel does not offer it (`nohz_full`), this waits for longer than a program can run.
pub(super) fn wait_for_programs() {
    const MEMBARRIER_CMD_GLOBAL: libc::c_int = 1;
    // SAFETY: takes numbers only.
    let failed = unsafe { libc::syscall(libc::SYS_membarrier, MEMBARRIER_CMD_GLOBAL, 0, 0) };
    if failed != 0 {
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
}
