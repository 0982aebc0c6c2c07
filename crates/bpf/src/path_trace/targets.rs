//! Whose packets and threads are followed: the maps that say so, at the start of a trace and while VMs, threads and
//! taps come and go.
//!
//! ```text
//!  start ─► prepare: clocks of the vCPUs that are there        (before the programs are attached: nobody else writes)
//!  set   ─► a VM as it is now: its taps, addresses, vCPUs ◄──┐ (the kernel half makes the clocks of later threads
//!    │ └────────────── the VM has changed ───────────────────┘  when it meets them)
//!    └─► a map is full: as before
//!  remove ─► the VM has ended
//! ```
//! The kernel half removes threads and processes by itself when they end, before their ids can be used again.

use super::types::{self, hint, thread_state};
use super::{bytes_of, map};
use crate::Error;
use libbpf_rs::{MapCore, MapFlags, MapHandle, Object};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use teiji_model::flow::{End, Net};
use teiji_model::guest::Secret;
use teiji_model::host::{DataPlane, Nic, Vm};

/// The maps, and what is in them.
pub(super) struct Targets {
    taps: MapHandle,
    macs: MapHandle,
    vms: MapHandle,
    vcpus: MapHandle,
    vcpu_indices: MapHandle,
    guests: MapHandle,
    /// By tap queue.
    of_queues: [MapHandle; 4],
    place: MapHandle,
    followed: Box<types::followed>,
    /// By process id.
    now: BTreeMap<u32, Vm>,
    /// Of the guests that report events themselves, by process id.
    secrets: BTreeMap<u32, Secret>,
}

impl Targets {
    /// The maps of a loaded object, for these VMs.
    ///
    /// # Errors
    /// [`Error::Kernel`] if a map cannot be written.
    pub(super) fn prepare(object: &Object, vms: &[Vm]) -> Result<Targets, Error> {
        let section = |ending: &str| {
            let name = object.maps().map(|m| m.name().to_string_lossy().into_owned());
            name.into_iter().find(|name| name.ends_with(ending)).unwrap_or_else(|| ending.to_owned())
        };
        let mut targets = Targets {
            taps: map(object, "taps")?,
            macs: map(object, "macs")?,
            vms: map(object, "vms")?,
            vcpus: map(object, "vcpus")?,
            vcpu_indices: map(object, "vcpu_indices")?,
            guests: map(object, "guests")?,
            of_queues: [
                map(object, "workers")?,
                map(object, "senders")?,
                map(object, "served")?,
                map(object, "target_vcpus")?,
            ],
            place: map(object, &section(".bss.followed"))?,
            followed: Box::default(),
            now: BTreeMap::new(),
            secrets: BTreeMap::new(),
        };
        targets.clocks(object, &section(".bss"), vms)?;
        for vm in vms {
            targets.set(vm)?;
        }
        Ok(targets)
    }

    /// Gives the vCPUs that are there clocks.
    fn clocks(&self, object: &Object, place: &str, vms: &[Vm]) -> Result<(), Error> {
        let clocks = map(object, "thread_clocks")?;
        let mut lookup = Lookup::default();
        let unknown = thread_state::STATE_UNKNOWN.0 as u8;
        for vm in vms {
            for vcpu in &vm.vcpus {
                let own = types::clock_ref { index: lookup.add(vcpu.tid), generation: 1 };
                let clock = types::clock {
                    state: unknown,
                    resume: unknown,
                    actor: types::actor::ACTOR_VCPU.0 as u8,
                    vm: vm.pid,
                    vcpu: vcpu.kvm_id.unwrap_or(types::unknown::VCPU_UNKNOWN.0),
                    index: vcpu.index.into(),
                    own,
                    tid: vcpu.tid,
                    ..Default::default()
                };
                put(&clocks, "thread_clocks", &own.index.to_ne_bytes(), bytes_of(&clock))?;
                // If KVM's number is not known now, the next guest entry of the vCPU shows it.
                if let Some(id) = vcpu.kvm_id {
                    let key = types::vcpu_key { vm: vm.pid, vcpu: id };
                    put(&self.vcpus, "vcpus", bytes_of(&key), bytes_of(&own))?;
                }
            }
        }
        let collisions = map(object, "collisions")?;
        for (tid, index) in &lookup.collisions {
            put(&collisions, "collisions", &tid.to_ne_bytes(), &index.to_ne_bytes())?;
        }
        put(&map(object, place)?, place, &0u32.to_ne_bytes(), bytes_of(lookup.image.as_ref()))
    }

    /// Follows a VM as it is now, whether or not it was followed before.
    ///
    /// # Errors
    /// [`Error::Kernel`] if a map cannot be written, as when too many taps are followed. It is followed as before then, or not at
    /// all if it was not.
    pub(super) fn set(&mut self, vm: &Vm) -> Result<(), Error> {
        let former = self.now.get(&vm.pid).cloned();
        let done = self.change(vm);
        if done.is_err() {
            // What was there has room again.
            let _ = match former {
                Some(former) => self.change(&former),
                None => self.remove(vm.pid),
            };
        }
        done
    }

    /// Follows a VM as [`Targets::set`] does, but in part if it fails.
    fn change(&mut self, vm: &Vm) -> Result<(), Error> {
        let former = self.now.insert(vm.pid, vm.clone());
        for nic in former.iter().flat_map(|vm| &vm.nics) {
            if !vm.nics.iter().any(|now| (now.ifindex, now.mac) == (nic.ifindex, nic.mac)) {
                self.forget(nic);
            }
        }
        let pid = vm.pid.to_ne_bytes();
        put(&self.vms, "vms", &pid, &pid)?;
        self.hint(vm.pid, hint::HINT_VM);
        if vm.nics.iter().any(|nic| nic.data_plane == DataPlane::Userspace) {
            self.hint(vm.pid, hint::HINT_SERVED);
        }
        if !vm.given.is_empty() {
            self.hint(vm.pid, hint::HINT_DEVICES);
        }
        for vcpu in &vm.vcpus {
            if let Some(id) = vcpu.kvm_id {
                let key = types::vcpu_key { vm: vm.pid, vcpu: id };
                let index = u32::from(vcpu.index).to_ne_bytes();
                put(&self.vcpu_indices, "vcpu_indices", bytes_of(&key), &index)?;
            }
        }
        // A tap of another network namespace has no index here.
        for nic in vm.nics.iter().filter(|nic| nic.ifindex != 0) {
            let tap = types::traced_tap { vm: vm.pid, kind: kind(nic).0 };
            put(&self.taps, "taps", &nic.ifindex.to_ne_bytes(), bytes_of(&tap))?;
            self.hint(nic.ifindex, hint::HINT_TAP);
            if let Some(mac) = nic.mac {
                put(&self.macs, "macs", bytes_of(&address(mac)), &nic.ifindex.to_ne_bytes())?;
                self.hint(u16::from_be_bytes([mac[4], mac[5]]).into(), hint::HINT_MAC);
            }
        }
        self.give_secret(vm)?;
        self.announce()
    }

    /// Gives the taps of a VM whose guest reports events itself the secret of that guest.
    fn give_secret(&mut self, vm: &Vm) -> Result<(), Error> {
        let Some(secret) = self.secrets.get(&vm.pid) else { return Ok(()) };
        let words = types::guest_secret { words: secret.0 };
        for nic in vm.nics.iter().filter(|nic| nic.ifindex != 0) {
            put(&self.guests, "guests", &nic.ifindex.to_ne_bytes(), bytes_of(&words))?;
            self.hint(nic.ifindex, hint::HINT_GUEST);
        }
        Ok(())
    }

    /// Marks the VMs whose guests report events themselves, and no others: a mark that stays would cost records.
    fn tell_states(&mut self) {
        let (mark, slots) = (hint::HINT_STATES.0 as u8, self.followed.hints.len());
        self.followed.hints.iter_mut().for_each(|hints| *hints &= !mark);
        for pid in self.secrets.keys() {
            self.followed.hints[*pid as usize % slots] |= mark;
        }
    }

    /// Follows a VM no longer.
    ///
    /// # Errors
    /// [`Error::Kernel`] if a map cannot be written.
    pub(super) fn remove(&mut self, pid: u32) -> Result<(), Error> {
        let Some(vm) = self.now.remove(&pid) else { return Ok(()) };
        self.secrets.remove(&pid);
        let _ = self.vms.delete(&pid.to_ne_bytes());
        vm.nics.iter().for_each(|nic| self.forget(nic));
        for id in vm.vcpus.iter().filter_map(|vcpu| vcpu.kvm_id) {
            let _ = self.vcpu_indices.delete(bytes_of(&types::vcpu_key { vm: pid, vcpu: id }));
        }
        self.announce()
    }

    /// The guest of a VM reports events itself from now on: its packets get prints with this secret; `None`: no longer.
    ///
    /// # Errors
    /// [`Error::Kernel`] if a map cannot be written.
    pub(super) fn set_guest(&mut self, pid: u32, secret: Option<&Secret>) -> Result<(), Error> {
        let Some(vm) = self.now.get(&pid).cloned() else { return Ok(()) };
        match secret {
            Some(secret) => drop(self.secrets.insert(pid, *secret)),
            None => {
                self.secrets.remove(&pid);
                vm.nics.iter().for_each(|nic| drop(self.guests.delete(&nic.ifindex.to_ne_bytes())));
            }
        }
        self.give_secret(&vm)?;
        self.announce()
    }

    /// Follows no connection of TCP whose end at the guest is this one.
    ///
    /// # Errors
    /// [`Error::Kernel`] if there are too many, or they cannot be written.
    pub(super) fn leave_out(&mut self, end: SocketAddr) -> Result<(), Error> {
        if !add_end(&mut self.followed, end) {
            return Err(Error::Kernel {
                doing: format!("leave out the connection to {end}"),
                reason: "there are too many".into(),
            });
        }
        self.announce()
    }

    /// Removes a tap, unless another VM that is followed has it now. What is not there need not be removed.
    fn forget(&self, nic: &Nic) {
        let others = || self.now.values().flat_map(|vm| &vm.nics);
        if nic.ifindex != 0 && !others().any(|other| other.ifindex == nic.ifindex) {
            let _ = self.taps.delete(&nic.ifindex.to_ne_bytes());
            let _ = self.guests.delete(&nic.ifindex.to_ne_bytes());
            for queue in 0..nic.queues.max(1) {
                let key = types::tap_queue { ifindex: nic.ifindex, queue };
                self.of_queues.iter().for_each(|map| drop(map.delete(bytes_of(&key))));
            }
        }
        if let Some(mac) = nic.mac
            && !others().any(|other| other.mac == nic.mac)
        {
            let _ = self.macs.delete(bytes_of(&address(mac)));
        }
    }

    /// Marks that something with this number is followed. Marks stay: they only say that a look is worth while.
    fn hint(&mut self, number: u32, what: hint) {
        let slots = self.followed.hints.len();
        self.followed.hints[number as usize % slots] |= what.0 as u8;
    }

    /// Lets the kernel half know of hints. It reads them while they are written; all but those of [`Targets::tell_states`]
    /// only ever grow.
    fn announce(&mut self) -> Result<(), Error> {
        self.tell_states();
        self.followed.by_mac = by_mac(self.now.values()).into();
        self.followed.macvtaps =
            self.now.values().flat_map(|vm| &vm.nics).any(|nic| nic.data_plane.is_macvtap()).into();
        self.followed.devices = self.now.values().any(|vm| !vm.given.is_empty()).into();
        put(&self.place, "followed", &0u32.to_ne_bytes(), bytes_of(self.followed.as_ref()))
    }
}

/// Whether the guests' packets can be recognised by MAC address everywhere on the host: all taps are ports of a bridge
/// or macvtaps (the host does not route for them) and every address is known.
fn by_mac<'a>(vms: impl Iterator<Item = &'a Vm>) -> bool {
    let mut nics = vms.flat_map(|v| &v.nics).filter(|n| n.ifindex != 0).peekable();
    nics.peek().is_some()
        && nics.all(|n| (n.bridge.is_some() || n.data_plane.is_macvtap()) && n.mac.is_some())
}

fn kind(nic: &Nic) -> types::tap_kind {
    if nic.data_plane.is_macvtap() { types::tap_kind::TAP_MACVTAP } else { types::tap_kind::TAP_OF_TUN }
}

/// Adds an end on which a guest reports; returns whether there is room.
pub(super) fn add_end(followed: &mut types::followed, end: SocketAddr) -> bool {
    let Some(free) = followed.ends.get_mut(usize::from(followed.reporting)) else { return false };
    let addr = Net { end: End::Any, addr: end.ip(), prefix: u8::MAX }.words().0;
    let version = if end.is_ipv4() { 4 } else { 6 };
    *free = types::tcp_end { addr, port: end.port(), version, ..Default::default() };
    followed.reporting += 1;
    true
}

fn address(addr: [u8; 6]) -> types::mac {
    types::mac { addr, ..Default::default() }
}

fn put(map: &MapHandle, name: &str, key: &[u8], value: &[u8]) -> Result<(), Error> {
    map.update(key, value, MapFlags::ANY).map_err(|e| Error::kernel(format!("fill the map {name}"), e))
}

/// Which thread has which clock: the tables that `clock_of()` of the kernel half reads.
#[derive(Default)]
struct Lookup {
    image: Box<types::lookup>,
    /// Threads whose place is taken by another thread, and the indices of their clocks.
    collisions: Vec<(u32, u32)>,
}

impl Lookup {
    /// The index of the clock that a thread gets.
    fn add(&mut self, tid: u32) -> u32 {
        let index = self.image.used;
        self.image.used += 1;
        let slots = self.image.by_tid.len();
        let slot = &mut self.image.by_tid[tid as usize % slots];
        if *slot == 0 {
            *slot = u64::from(tid) << 32 | u64::from(index);
        } else {
            self.collisions.push((tid, index));
        }
        index
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_thread_has_a_clock_of_its_own() {
        let mut lookup = Lookup::default();
        let tids = [7, 65536 + 7, 8, 2 * 65536 + 7];
        assert_eq!(tids.map(|t| lookup.add(t)), [0, 1, 2, 3]);
        assert_eq!((lookup.image.by_tid[7], lookup.image.by_tid[8]), (7 << 32, 8 << 32 | 2));
        assert_eq!(lookup.collisions, [(65536 + 7, 1), (2 * 65536 + 7, 3)]);
        assert_eq!(lookup.image.used, 4);
    }

    fn vm(pid: u32, taps: &[u32]) -> Vm {
        let nic = |tap: &u32| Nic {
            tap: format!("tap{tap}"),
            ifindex: *tap,
            mac: Some([2, 0, 0, 0, 0, *tap as u8]),
            bridge: None,
            data_plane: DataPlane::VhostNet,
            queues: 1,
        };
        Vm {
            name: String::new(),
            pid,
            vcpus: Vec::new(),
            workers: Vec::new(),
            nics: taps.iter().map(nic).collect(),
            memory: None,
            memory_nodes: Vec::new(),
            given: Vec::new(),
        }
    }

    /// The keys of a map, as numbers.
    fn keys(map: &MapHandle) -> Vec<u32> {
        let mut keys: Vec<u32> =
            map.keys().map(|key| u32::from_ne_bytes(key[..4].try_into().unwrap())).collect();
        keys.sort_unstable();
        keys
    }

    /// Needs root, to make the maps.
    #[test]
    fn a_vm_that_does_not_fit_leaves_nothing_and_one_that_has_changed_stays_as_it_was() {
        let mut object = super::super::open(&crate::hooks::KernelTypes::load().unwrap()).unwrap();
        object.progs_mut().for_each(|mut program| program.set_autoload(false));
        object.maps_mut().find(|map| map.name() == "taps").unwrap().set_max_entries(3).unwrap();
        let object = object.load().unwrap();
        let mut targets = Targets::prepare(&object, &[vm(10, &[1, 2])]).unwrap();
        let as_before = |targets: &Targets| {
            assert_eq!((keys(&targets.vms), keys(&targets.taps)), (vec![10], vec![1, 2]));
            assert_eq!((targets.macs.keys().count(), targets.now.len()), (2, 1));
            assert_eq!(targets.now[&10], vm(10, &[1, 2]));
        };
        as_before(&targets);
        assert!(targets.set(&vm(11, &[3, 4])).is_err());
        as_before(&targets);
        assert!(targets.set(&vm(10, &[1, 3, 4, 5])).is_err());
        as_before(&targets);
        targets.set(&vm(11, &[3])).unwrap();
        assert_eq!(keys(&targets.taps), [1, 2, 3]);
    }

    #[test]
    fn the_sections_of_the_object_have_the_size_of_their_types() {
        let object = super::super::open(&crate::hooks::KernelTypes::load().unwrap()).unwrap();
        for (ending, size) in
            [(".bss", size_of::<types::lookup>()), (".bss.followed", size_of::<types::followed>())]
        {
            let bss = object.maps().find(|m| m.name().to_string_lossy().ends_with(ending)).unwrap();
            assert_eq!(bss.initial_value().unwrap().len(), size, "{ending}");
        }
    }
}
