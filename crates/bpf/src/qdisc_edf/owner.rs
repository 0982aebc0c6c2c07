//! The qdisc and its owner: the only agent that sends the heartbeat for it.
//!
//! ```text
//!           nothing pinned, or other programs that no link has
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
use super::{Edf, KIND, OBJECT, PinnedQdisc, SharedNumbers};
use crate::Error;
use crate::common::heartbeat::{HEARTBEAT, Heartbeat};
use crate::common::pins::{PATIENCE, Pins};
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
    shared: SharedNumbers,
    heartbeat: Arc<Heartbeat>,
    held: Vec<(OsString, OwnedFd)>,
    heartbeat_map: u32,
    programs: Programs,
}

/// Which programs a pinned qdisc has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Programs {
    /// Those of this build of teiji.
    Own,
    /// Those of another build, with the same maps: channels can be shown and changed.
    Compatible,
    /// Those of another release, with other maps: only the heartbeat can be sent.
    Incompatible,
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
    /// other programs that no link has. Sends one heartbeat.
    ///
    /// # Errors
    /// [`Error::Refused`] if another process is the owner; those of [`Edf::load`].
    pub fn acquire(folder: &Path) -> Result<QdiscOwner, Error> {
        let pins = Pins::new(folder, OBJECT);
        for _ in 0..TRIES {
            if !pins.are_there()? {
                Edf::load(folder)?;
            }
            let lock = pins.own()?;
            let pinned = PinnedQdisc::open(folder)?;
            let programs = match &pinned {
                PinnedQdisc::Usable(edf) if edf.has_own_programs()? => Programs::Own,
                PinnedQdisc::Usable(_) => Programs::Compatible,
                PinnedQdisc::OtherMaps(_) | PinnedQdisc::Absent => Programs::Incompatible,
            };
            let Some(shared) = pinned.shared() else { continue };
            // The folder may have been replaced after it was opened and before it was locked.
            if pins.are_of(&lock).map_err(|e| pins.failed("look into", &e))? != Some(true) {
                continue;
            }
            if programs != Programs::Own && shared.link_count() == 0 {
                unpin(folder)?;
                continue;
            }
            let heartbeat = Arc::new(Heartbeat::open(&pins.current(HEARTBEAT.pin_name()))?);
            heartbeat.send();
            let held = pins.names()?.into_iter().map(|name| Ok((name.clone(), open(&pins, &name)?)));
            let held = held.collect::<Result<Vec<_>, Error>>()?;
            let heartbeat_map = heartbeat_map_id(&pins)?;
            return Ok(QdiscOwner { pins, lock, shared, heartbeat, held, heartbeat_map, programs });
        }
        Err(Error::Refused {
            doing: format!("become the agent for {}", folder.display()),
            reason: "others replace what is pinned there all the time; end them".into(),
        })
    }

    /// For sending the heartbeat.
    pub fn heartbeat(&self) -> Arc<Heartbeat> {
        Arc::clone(&self.heartbeat)
    }

    /// Which programs the qdisc has.
    pub fn programs(&self) -> Programs {
        self.programs
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

/// Removes the pins of any release, if no link has the qdisc. The kind is no longer registered then.
///
/// # Errors
/// [`Error::Refused`] if a link has it; [`Error::Kernel`] if the file system refuses.
pub fn unpin(folder: &Path) -> Result<(), Error> {
    let pins = Pins::new(folder, OBJECT);
    if !pins.are_there()? {
        return Ok(());
    }
    let shared = SharedNumbers::open(&pins)?;
    let _lock = pins.lock_within(PATIENCE)?;
    if shared.link_count() > 0 {
        return Err(Error::Refused {
            doing: format!("remove the qdisc {KIND} from the kernel"),
            reason: "links have it; `teiji rollback` removes it from those".into(),
        });
    }
    pins.remove()
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
    let path = pins.current(HEARTBEAT.pin_name());
    let map = MapHandle::from_pinned_path(&path).and_then(|map| map.info());
    map.map(|map| map.info.id).map_err(|e| Error::kernel(format!("open {}", path.display()), e))
}
