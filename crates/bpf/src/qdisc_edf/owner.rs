//! The qdisc and its owner: the only agent that sends the heartbeat for it.
//!
//! ```text
//!           nothing pinned, or another version's that no link has
//!  acquire ───────────────────► load, register, pin ──┐
//!    │ pinned                                         ▼
//!    └──────────► lock of the owner, on the folder of the pins itself ──► QdiscOwner ──► unpin
//!                   │ held by another: refused, with his pid               │ ▲
//!                                                      pins are removed by ▼ │ repin
//!                                                      somebody          orphan
//! ```
//! The owner holds a descriptor of each pin, including the link that registers the kind. So removing the pins ends
//! nothing: links keep their qdisc and its maps as long as the owner runs, no other agent can register the kind, and
//! the owner can pin the same maps again. Without pins no other process can see or change channels.
use super::maps;
use super::pins::Pins;
use super::{Edf, KIND, PinnedQdisc, SharedNumbers, unpin};
use crate::Error;
use libbpf_rs::{MapCore, MapHandle};
use nix::fcntl::Flock;
use std::ffi::{CString, OsString};
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

/// How often [`QdiscOwner::acquire`] tries if the pins are replaced meanwhile.
const TRIES: usize = 5;

/// The pinned qdisc, owned by this process.
pub struct QdiscOwner {
    pins: Pins,
    lock: Flock<File>,
    shared: Arc<SharedNumbers>,
    held: Vec<(OsString, OwnedFd)>,
    heartbeat_map: u32,
    current: bool,
}

/// What is in the folder of the pins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PinState {
    /// All maps of this process.
    Ours,
    /// Not all maps of this process, and none of another.
    Missing,
    /// Maps of another process.
    Others,
}

impl QdiscOwner {
    /// Becomes the owner of the qdisc pinned in `folder`. Loads and pins the qdisc first if there is none, or one of
    /// another version that no link has. Sends one heartbeat.
    ///
    /// # Errors
    /// [`Error::Refused`] if another process is the owner; those of [`Edf::load`].
    pub fn acquire(folder: &Path) -> Result<QdiscOwner, Error> {
        let pins = Pins::new(folder);
        for _ in 0..TRIES {
            if !pins.are_there()? {
                Edf::load(folder)?;
            }
            let lock = pins.own()?;
            let (shared, current) = match PinnedQdisc::open(folder)? {
                PinnedQdisc::Current(edf) => (edf.into_shared(), true),
                PinnedQdisc::Other(shared) => (shared, false),
                PinnedQdisc::Absent => continue,
            };
            // The folder may have been replaced after it was opened and before it was locked.
            if pins.are_of(&lock).map_err(|e| pins.failed("look into", &e))? != Some(true) {
                continue;
            }
            if !current && shared.link_count() == 0 {
                unpin(folder)?;
                continue;
            }
            shared.send_heartbeat();
            let held = pins.names()?.into_iter().map(|name| Ok((name.clone(), open(&pins, &name)?)));
            let held = held.collect::<Result<Vec<_>, Error>>()?;
            let heartbeat_map = heartbeat_map_id(&pins)?;
            return Ok(QdiscOwner { pins, lock, shared: Arc::new(shared), held, heartbeat_map, current });
        }
        Err(Error::Refused {
            doing: format!("become the agent for {}", folder.display()),
            reason: "others replace what is pinned there all the time; end them".into(),
        })
    }

    /// For sending the heartbeat.
    pub fn shared(&self) -> Arc<SharedNumbers> {
        Arc::clone(&self.shared)
    }

    /// Whether the qdisc is of exactly this version of teiji.
    pub fn is_current(&self) -> bool {
        self.current
    }

    /// How many links have the qdisc, of all network namespaces.
    pub fn link_count(&self) -> u64 {
        self.shared.link_count()
    }

    /// Whether the pins in the folder are those of this process. Needs no capability.
    ///
    /// # Errors
    /// If the folder cannot be looked into.
    pub fn pin_state(&self) -> Result<PinState, Error> {
        match self.pins.are_of(&self.lock).map_err(|e| self.pins.failed("look into", &e))? {
            None => Ok(PinState::Missing),
            Some(false) => Ok(PinState::Others),
            Some(true) => {
                let there = |(name, _): &(OsString, OwnedFd)| self.pins.has(name);
                let whole =
                    self.held.iter().all(there) && heartbeat_map_id(&self.pins)? == self.heartbeat_map;
                Ok(if whole { PinState::Ours } else { PinState::Missing })
            }
        }
    }

    /// Pins the maps of this process again after somebody has removed some or all of the pins. Needs no capability, but
    /// the process has to be the user who owns the folder.
    ///
    /// # Errors
    /// [`Error::Refused`] if the folder has another process's pins, or is in no BPF file system; [`Error::Kernel`].
    pub fn repin(&mut self) -> Result<(), Error> {
        if self.pin_state()? == PinState::Missing && self.pins.are_there()? {
            self.pins.retire().map_err(|e| self.pins.failed("clear", &e))?;
        }
        let _lock = self.pins.prepare()?;
        for (name, fd) in &self.held {
            pin(&self.pins, name, fd)?;
        }
        // Locked before the folder gets its name, so that no other process can become the owner.
        let lock = self.pins.own_new()?;
        self.pins.adopt()?;
        self.lock = lock;
        Ok(())
    }

    /// Removes the pins, and with them the kind; see [`unpin`]. Leaves pins of other processes alone.
    ///
    /// # Errors
    /// [`Error::Refused`] if a link has the qdisc; [`Error::Kernel`].
    pub fn unpin(self) -> Result<(), Error> {
        match self.pin_state()? {
            PinState::Others => Ok(()),
            PinState::Missing if self.link_count() > 0 => Err(Error::Refused {
                doing: format!("remove the qdisc {KIND} from the kernel"),
                reason: "links have it; `teiji rollback` removes it from those".into(),
            }),
            PinState::Ours | PinState::Missing => unpin(self.pins.folder()),
        }
    }
}

/// Opens a pin of any kind.
fn open(pins: &Pins, name: &OsString) -> Result<OwnedFd, Error> {
    let path = pins.current(name);
    let failed = |e: io::Error| pins.failed("open a pin of", &e);
    let c_path = CString::new(path.as_os_str().as_bytes()).map_err(|e| failed(e.into()))?;
    // SAFETY: the string ends with a zero and is there until the call returns.
    let fd = unsafe { libbpf_sys::bpf_obj_get(c_path.as_ptr()) };
    if fd < 0 {
        return Err(failed(io::Error::from_raw_os_error(-fd)));
    }
    // SAFETY: a new descriptor that nothing else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Makes a pin of any kind in the folder of the new pins.
fn pin(pins: &Pins, name: &OsString, fd: &OwnedFd) -> Result<(), Error> {
    let path = pins.new_one(name);
    let failed = |e: io::Error| pins.failed("pin a map in", &e);
    let c_path = CString::new(path.as_os_str().as_bytes()).map_err(|e| failed(e.into()))?;
    // SAFETY: the string ends with a zero and is there until the call returns; the descriptor is open.
    match unsafe { libbpf_sys::bpf_obj_pin(fd.as_raw_fd(), c_path.as_ptr()) } {
        0 => Ok(()),
        e => Err(failed(io::Error::from_raw_os_error(-e))),
    }
}

/// The kernel's id of the map with the heartbeat; each map has a different id.
fn heartbeat_map_id(pins: &Pins) -> Result<u32, Error> {
    let path = pins.current(maps::HEARTBEAT_PIN);
    let map = MapHandle::from_pinned_path(&path).and_then(|map| map.info());
    map.map(|map| map.info.id).map_err(|e| Error::kernel(format!("open {}", path.display()), e))
}
