//! The qdisc and its owner: the only agent that sends the heartbeat for it.
//!
//! ```text
//!           nothing pinned, or other programs or an incomplete set that no link has
//!  acquire ───────────────────► load, register, pin ──┐
//!    ├── incomplete, and no heartbeat can be sent for the links that may have it: refused, with what to do
//!    │ pinned                                         ▼
//!    └──────────► lock of the owner, on the folder of the pins itself ──► QdiscOwner ──► unpin
//!                   │ held by another for 2 s: refused, with its pid       │ ▲
//!                                                      pins are removed by ▼ │ repin
//!                                                      somebody          orphan
//! ```
//! The owner holds a descriptor of each pin, including the link that registers the kind. So removing the pins ends
//! nothing: links keep their qdisc and its maps as long as the owner runs, no other agent can register the kind, and
//! the owner can pin the same maps again. Without pins no other process can see or change channels.
use super::load::REGISTERED;
use super::maps::USERS;
use super::{Edf, KIND, OBJECT, PinnedQdisc, SharedNumbers};
use crate::Error;
use crate::common::heartbeat::{HEARTBEAT, Heartbeat};
use crate::common::number::Number;
use crate::common::pins::{HANDOVER, PATIENCE, Pins};
use libbpf_rs::{MapCore, MapHandle};
use nix::fcntl::Flock;
use std::ffi::{CString, OsString};
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

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
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Programs {
    /// Those of this build of teiji.
    Own,
    /// Those of another build, with the same maps: channels can be shown and changed.
    Compatible,
    /// Those of another release, with other maps: only the heartbeat can be sent.
    Incompatible,
    /// Some of their pins are gone or are not teiji's, and why; those that the heartbeat needs are there.
    Damaged(String),
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
    /// [`Error::Refused`] if another process stays the owner for 2 s; [`Error::Damaged`] if the pins that the heartbeat needs are not
    /// there, and links may have the qdisc; those of [`Edf::load`].
    pub fn acquire(folder: &Path) -> Result<QdiscOwner, Error> {
        let pins = Pins::new(folder, OBJECT);
        let until = Instant::now() + HANDOVER;
        for _ in 0..TRIES {
            if !pins.are_there()? {
                Edf::load(folder)?;
            }
            let lock = pins.own(until)?;
            let pinned = PinnedQdisc::open(folder);
            // The folder may have been replaced after it was opened and before it was locked.
            if pins.are_of(&lock).map_err(|e| pins.failed("look into", &e))? != Some(true) {
                continue;
            }
            let (programs, shared) = match pinned {
                Ok(PinnedQdisc::Absent) => continue,
                Ok(PinnedQdisc::Usable(edf)) => (programs_of(&pins, &edf)?, edf.shared),
                Ok(PinnedQdisc::OtherMaps(shared)) => (Programs::Incompatible, shared),
                Ok(PinnedQdisc::Damaged(shared, why)) => (Programs::Damaged(why), shared),
                Err(Error::NotPermitted) => return Err(Error::NotPermitted),
                Err(why) => {
                    if links_of(&pins).is_ok_and(|links| links.get() == 0) {
                        unpin(folder)?;
                        continue;
                    }
                    return Err(damaged(&pins, &why));
                }
            };
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
    pub fn programs(&self) -> &Programs {
        &self.programs
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
    /// [`Error::Refused`] if the folder has another process's pins; [`Error::NoBpfFileSystem`]; [`Error::Kernel`].
    pub fn repin(&mut self) -> Result<(), Error> {
        // What is left of the pins stays in use until the new ones are complete.
        let _lock = self.pins.prepare_if(|| Ok(self.pin_state()? == PinState::Missing))?;
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

/// Removes the pins of any release, if no link has the qdisc; whatever else of them is missing. The kind is no longer
/// registered then.
///
/// # Errors
/// [`Error::Refused`] if a link has it; [`Error::Damaged`] if the pins do not tell whether one has it; [`Error::Kernel`] if the
/// file system refuses.
pub fn unpin(folder: &Path) -> Result<(), Error> {
    let pins = Pins::new(folder, OBJECT);
    if !pins.are_there()? {
        return Ok(());
    }
    let links = links_of(&pins).map_err(|why| match why {
        Error::NotPermitted => why,
        why => damaged(&pins, &why),
    })?;
    let _lock = pins.lock_within(PATIENCE)?;
    if links.get() > 0 {
        return Err(Error::Refused {
            doing: format!("remove the qdisc {KIND} from the kernel"),
            reason: "links have it; `teiji rollback` removes it from those".into(),
        });
    }
    pins.remove()
}

/// How many links have the qdisc.
fn links_of(pins: &Pins) -> Result<Number, Error> {
    Number::open(pins, &USERS)
}

fn damaged(pins: &Pins, why: &Error) -> Error {
    Error::Damaged { folder: pins.in_use(), why: why.to_string() }
}

/// Which programs these are. A set without the pin that keeps the kind registered works for the links that have it only.
fn programs_of(pins: &Pins, edf: &Edf) -> Result<Programs, Error> {
    if !pins.has(&REGISTERED.into()) {
        let pin = pins.current(REGISTERED);
        return Ok(Programs::Damaged(format!("{} is missing, so no further link can get it", pin.display())));
    }
    Ok(if edf.has_own_programs()? { Programs::Own } else { Programs::Compatible })
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

#[cfg(test)]
mod tests {
    use super::super::{load, maps};
    use super::*;
    use crate::common::mounted::Mounted;
    use libbpf_rs::MapFlags;
    use std::fs;
    use std::os::fd::AsFd;

    /// Pins all that the qdisc has but its programs, as if this many links had it; the kernel need not have BPF qdiscs.
    fn pin_maps(pins: &Pins, links: u64) {
        let _lock = pins.prepare().unwrap();
        let object = load::open().unwrap();
        for abi in maps::ALL {
            let like = object.maps().find(|map| map.name() == abi.name).unwrap();
            let mapped = [USERS.name, HEARTBEAT.name].contains(&abi.name);
            let options = libbpf_sys::bpf_map_create_opts {
                sz: size_of::<libbpf_sys::bpf_map_create_opts>() as _,
                map_flags: if mapped { libbpf_sys::BPF_F_MMAPABLE } else { 0 },
                ..Default::default()
            };
            let (key, value) = (like.key_size(), like.value_size());
            let map =
                MapHandle::create(like.map_type(), Some(abi.name), key, value, like.max_entries(), &options);
            let mut map = map.unwrap();
            map.pin(pins.new_one(abi.pin_name())).unwrap();
            if abi.name == USERS.name {
                map.update(&0u32.to_ne_bytes(), &links.to_ne_bytes(), MapFlags::ANY).unwrap();
                // In place of the link, which is only looked for.
                let users = map.as_fd().try_clone_to_owned().unwrap();
                pin(pins, &REGISTERED.into(), &users).unwrap();
            }
        }
        pins.adopt().unwrap();
    }

    /// What becomes of an agent that starts when somebody has removed this pin while none ran.
    fn without(name: Option<&str>, links: u64) -> (Mounted, Result<Programs, Error>) {
        let mounted = Mounted::new();
        let pins = mounted.pins();
        pin_maps(&pins, links);
        if let Some(name) = name {
            fs::remove_file(pins.current(name)).unwrap();
        }
        let programs = QdiscOwner::acquire(pins.folder()).map(|owner| owner.programs().clone());
        (mounted, programs)
    }

    #[test]
    fn links_are_kept_going_if_a_pin_is_missing_that_the_heartbeat_does_not_need() {
        assert_eq!(without(None, 1).1.unwrap(), Programs::Compatible);
        for name in [REGISTERED, "slots", "registry"] {
            let (_mounted, programs) = without(Some(name), 1);
            match programs.unwrap() {
                Programs::Damaged(why) => assert!(why.contains(&format!("{name} is missing")), "{why}"),
                other => panic!("{name}: {other:?}"),
            }
        }
    }

    #[test]
    fn without_a_pin_that_the_heartbeat_needs_it_says_what_to_do_and_removes_nothing() {
        for name in [HEARTBEAT.pin_name().as_str(), "users"] {
            let (mounted, programs) = without(Some(name), 1);
            let why = programs.unwrap_err();
            assert!(matches!(why, Error::Damaged { .. }), "{why}");
            let said = why.to_string();
            assert!(said.contains(&format!("edf/{name}")) && said.contains("rollback --force"), "{said}");
            assert!(said.contains(&format!("rm -r {}", mounted.pins().in_use().display())), "{said}");
            assert!(unpin(mounted.pins().folder()).is_err() && mounted.pins().has(&"slots".into()));
        }
    }

    /// They are retired, and the qdisc is loaded anew if the kernel has BPF qdiscs.
    #[test]
    fn what_is_left_of_pins_that_no_link_needs_is_replaced() {
        for name in [REGISTERED, "slots", HEARTBEAT.pin_name().as_str()] {
            let (mounted, programs) = without(Some(name), 0);
            match load::supported() {
                Ok(()) => assert_eq!(programs.unwrap(), Programs::Own, "{name}"),
                Err(_) => {
                    assert!(matches!(programs, Err(Error::Missing { .. })), "{name}: {programs:?}");
                    assert!(!mounted.pins().are_there().unwrap(), "{name}");
                }
            }
        }
        let mounted = Mounted::new();
        pin_maps(&mounted.pins(), 0);
        fs::remove_file(mounted.pins().current("slots")).unwrap();
        unpin(mounted.pins().folder()).unwrap();
        assert!(!mounted.pins().are_there().unwrap());
    }

    /// An agent that is started while the one before it still ends becomes the owner.
    #[test]
    fn the_owner_before_has_time_to_end() {
        let mounted = Mounted::new();
        let pins = mounted.pins();
        pin_maps(&pins, 1);
        let former = pins.own(Instant::now()).unwrap();
        let ends = std::thread::spawn(move || {
            std::thread::sleep(HANDOVER / 40);
            drop(former);
        });
        QdiscOwner::acquire(pins.folder()).unwrap();
        ends.join().unwrap();
    }

    /// An agent that cannot pin its maps again, or is killed meanwhile, leaves in use what was left of the pins, or the
    /// complete new set.
    #[test]
    fn what_is_left_of_the_pins_stays_in_use_until_all_of_them_are_there() {
        let mounted = Mounted::new();
        let pins = mounted.pins();
        pin_maps(&pins, 1);
        let mut owner = QdiscOwner::acquire(pins.folder()).unwrap();
        fs::remove_file(pins.current("slots")).unwrap();
        let writer = pins.lock().unwrap();
        assert!(owner.repin().unwrap_err().to_string().contains("has held the lock"));
        assert!(pins.has(&REGISTERED.into()) && pins.has(&HEARTBEAT.pin_name().into()));
        drop(writer);
        // The state that an agent leaves which is killed before the new pins are complete.
        drop(pins.prepare_if(|| Ok(true)).unwrap());
        pin(&pins, &REGISTERED.into(), &owner.held[0].1).unwrap();
        assert!(pins.has(&REGISTERED.into()) && pins.has(&HEARTBEAT.pin_name().into()));
        owner.repin().unwrap();
        assert_eq!(owner.pin_state().unwrap(), PinState::Ours);
        assert!(pins.has(&"slots".into()) && !pins.new_one("slots").exists());
        let why = owner.repin().unwrap_err().to_string();
        assert!(why.contains("already has pins"), "{why}");
        // All are gone.
        fs::remove_dir_all(pins.in_use()).unwrap();
        owner.repin().unwrap();
        assert_eq!(owner.pin_state().unwrap(), PinState::Ours);
    }
}
