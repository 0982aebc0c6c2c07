//! Typed access to pinned maps.
use super::abi::{Abi, Access, Found, Writer};
use super::pins::Pins;
use crate::Error;
use crate::object::{bytes_of, value_of};
use libbpf_rs::{MapCore, MapFlags, MapHandle};
use std::ops::Deref;

/// A map that this process may read.
pub(crate) struct ReadMap {
    handle: MapHandle,
    name: &'static str,
}

/// A map that this process may also write.
pub(crate) struct WriteMap(ReadMap);

/// A map opened for reading or writing.
pub(crate) trait Open: Sized {
    /// The pinned map; `None` if only another version of it is pinned.
    fn open(pins: &Pins, abi: &Abi) -> Result<Option<Self>, Error>;
}

fn open(pins: &Pins, abi: &Abi, access: Access) -> Result<Option<ReadMap>, Error> {
    Ok(match abi.open(pins, access)? {
        Found::Map(handle) => Some(ReadMap { handle, name: abi.name }),
        Found::OtherVersion => None,
    })
}

impl Open for ReadMap {
    fn open(pins: &Pins, abi: &Abi) -> Result<Option<ReadMap>, Error> {
        open(pins, abi, Access::Read)
    }
}

impl Open for WriteMap {
    fn open(pins: &Pins, abi: &Abi) -> Result<Option<WriteMap>, Error> {
        debug_assert_ne!(abi.writer, Writer::Agent, "{}", abi.name);
        Ok(open(pins, abi, Access::Write)?.map(WriteMap))
    }
}

impl ReadMap {
    /// The value of a key; `None` if there is none.
    pub(crate) fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, Error> {
        self.handle
            .lookup(key, MapFlags::ANY)
            .map_err(|e| Error::kernel(format!("read the map {}", self.name), e))
    }

    /// The value of a key; all zeros if there is none.
    pub(crate) fn value<V: Copy + Default>(&self, key: u32) -> Result<V, Error> {
        Ok(value_of(&self.get(&key.to_ne_bytes())?.unwrap_or_default()))
    }

    /// All keys that are there now.
    pub(crate) fn keys<K: Copy + Default>(&self) -> Vec<K> {
        self.handle.keys().map(|key| value_of(&key)).collect()
    }

    /// All entries.
    pub(crate) fn entries<K: Copy + Default, V: Copy + Default>(&self) -> Result<Vec<(K, V)>, Error> {
        let mut all = Vec::new();
        for key in self.handle.keys() {
            if let Some(value) = self.get(&key)? {
                all.push((value_of(&key), value_of(&value)));
            }
        }
        Ok(all)
    }

    /// A value of zeros.
    pub(crate) fn zeros(&self) -> Vec<u8> {
        vec![0; self.handle.value_size() as usize]
    }
}

impl Deref for WriteMap {
    type Target = ReadMap;

    fn deref(&self) -> &ReadMap {
        &self.0
    }
}

impl AsRef<ReadMap> for ReadMap {
    fn as_ref(&self) -> &ReadMap {
        self
    }
}

impl AsRef<ReadMap> for WriteMap {
    fn as_ref(&self) -> &ReadMap {
        &self.0
    }
}

impl WriteMap {
    /// Sets the value of a key.
    pub(crate) fn put(&self, key: &[u8], value: &[u8]) -> Result<(), Error> {
        self.handle
            .update(key, value, MapFlags::ANY)
            .map_err(|e| Error::kernel(format!("write the map {}", self.name), e))
    }

    /// Sets the value of an index.
    pub(crate) fn put_value<V: Copy>(&self, key: u32, value: &V) -> Result<(), Error> {
        self.put(&key.to_ne_bytes(), bytes_of(value))
    }

    /// Removes an entry if it is there.
    pub(crate) fn delete(&self, key: &[u8]) -> Result<(), Error> {
        match self.handle.delete(key) {
            Err(e) if e.kind() == libbpf_rs::ErrorKind::NotFound => Ok(()),
            done => done.map_err(|e| Error::kernel(format!("remove from the map {}", self.name), e)),
        }
    }
}

/// Waits until no program uses values that were in the maps before this call.
///
/// Programs run under RCU, and membarrier(2) with this command returns after every present RCU reader has ended. Where
/// the kernel does not offer it (`nohz_full`), this waits for longer than a program can run.
pub(crate) fn wait_for_programs() {
    const MEMBARRIER_CMD_GLOBAL: libc::c_int = 1;
    // SAFETY: takes numbers only.
    let failed = unsafe { libc::syscall(libc::SYS_membarrier, MEMBARRIER_CMD_GLOBAL, 0, 0) };
    if failed != 0 {
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
}
