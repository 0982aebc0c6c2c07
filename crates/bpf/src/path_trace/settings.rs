//! The operator's request, in the form that the kernel half reads.
use super::types::{self, direction, end, hint, matching, thread_state};
use super::{Setup, bytes_of, map};
use crate::Error;
use libbpf_rs::{MapCore, MapFlags, Object};
use std::net::IpAddr;
use teiji_model::flow::{Direction, End, Flow, Matching, Proto};
use teiji_model::host::Vm;

/// Writes the settings into the image of the object's constants. `hand_over`: the hand-over of packets to a driver is
/// probed before packet sockets take their copies.
///
/// # Errors
/// [`Error::Kernel`] if the kernel provides no random numbers.
pub(super) fn fill(image: &mut [u8], setup: &Setup<'_>, hand_over: bool) -> Result<(), Error> {
    let mut settings = types::settings { hand_over: hand_over.into(), ..settings(setup) };
    keep_secret(&mut settings)?;
    let bytes = bytes_of(&settings);
    // `settings` is the first constant of the object; its size is checked by a test
    image[..bytes.len()].copy_from_slice(bytes);
    Ok(())
}

/// Fills in secret random numbers from the kernel.
fn keep_secret(settings: &mut types::settings) -> Result<(), Error> {
    for word in settings.secret.iter_mut().flatten() {
        *word = getrandom::u64().map_err(|e| Error::Kernel {
            doing: "get random numbers, without which guests could aim at collisions of packets".into(),
            reason: e.to_string(),
        })?;
    }
    Ok(())
}

fn settings(setup: &Setup<'_>) -> types::settings {
    let flow: &Flow = &setup.watch.flow;
    let mut s = types::settings {
        version: flow.version.unwrap_or(0),
        proto: match flow.proto {
            None => 0,
            Some(Proto::Icmp) => 1,
            Some(Proto::Tcp) => 6,
            Some(Proto::Udp) => 17,
        },
        nets: flow.nets.len().min(Flow::MAX_NETS) as u8,
        ports: flow.ports.len().min(Flow::MAX_PORTS) as u8,
        directions: match setup.watch.direction {
            Direction::In => direction::DIR_IN.0,
            Direction::Out => direction::DIR_OUT.0,
            Direction::Both => direction::DIR_IN.0 | direction::DIR_OUT.0,
        } as u8,
        matching: match setup.watch.matching {
            Matching::None => matching::MATCH_NONE.0,
            Matching::Echo => matching::MATCH_ECHO.0,
            Matching::Sip => matching::MATCH_SIP.0,
        } as u8,
        by_mac: by_mac(setup.vms).into(),
        ..Default::default()
    };
    for (slot, net) in s.net.iter_mut().zip(&flow.nets) {
        (slot.addr, slot.mask) = prefix(net.addr, net.prefix);
        slot.end = end_of(net.end);
        slot.version = if net.addr.is_ipv4() { 4 } else { 6 };
    }
    for (slot, port) in s.port.iter_mut().zip(&flow.ports) {
        slot.port = port.port;
        slot.end = end_of(port.end);
    }
    s
}

/// Whether the guests' packets can be recognised by MAC address everywhere on the host: all taps are ports of a bridge
/// (the host does not route for them) and every address is known.
fn by_mac(vms: &[Vm]) -> bool {
    let mut nics = vms.iter().flat_map(|v| &v.nics).peekable();
    nics.peek().is_some() && nics.all(|n| n.bridge.is_some() && n.mac.is_some())
}

fn end_of(e: End) -> u8 {
    (match e {
        End::Any => end::END_ANY,
        End::Src => end::END_SRC,
        End::Dst => end::END_DST,
    })
    .0 as u8
}

/// Address and mask in network order, as in a packet.
fn prefix(addr: IpAddr, bits: u8) -> ([u32; 4], [u32; 4]) {
    let (octets, width) = match addr {
        IpAddr::V4(a) => {
            let mut o = [0u8; 16];
            o[..4].copy_from_slice(&a.octets());
            (o, 32)
        }
        IpAddr::V6(a) => (a.octets(), 128),
    };
    let bits = usize::from(bits).min(width);
    let (mut a, mut m) = ([0u32; 4], [0u32; 4]);
    for i in 0..4 {
        let word =
            u32::from_be_bytes([octets[4 * i], octets[4 * i + 1], octets[4 * i + 2], octets[4 * i + 3]]);
        let here = bits.saturating_sub(32 * i).min(32);
        let mask = if here == 0 { 0 } else { u32::MAX << (32 - here) };
        a[i] = (word & mask).to_be();
        m[i] = mask.to_be();
    }
    (a, m)
}

/// Fills the maps that say whose packets and threads to follow.
pub(super) fn fill_maps(object: &Object, setup: &Setup<'_>) -> Result<(), Error> {
    let put = |name: &str, key: &[u8], value: &[u8]| -> Result<(), Error> {
        map(object, name)?
            .update(key, value, MapFlags::ANY)
            .map_err(|e| Error::kernel(format!("fill the map {name}"), e))
    };
    let mut lookup = Lookup::default();
    for vm in setup.vms {
        let pid = vm.pid.to_ne_bytes();
        lookup.hint(vm.pid, hint::HINT_VM);
        put("vms", &pid, &pid)?;
        // A tap of another network namespace has no index here.
        for nic in vm.nics.iter().filter(|nic| nic.ifindex != 0) {
            lookup.hint(nic.ifindex, hint::HINT_TAP);
            put("taps", &nic.ifindex.to_ne_bytes(), &pid)?;
            if let Some(addr) = nic.mac {
                lookup.hint(u16::from_be_bytes([addr[4], addr[5]]).into(), hint::HINT_MAC);
                put(
                    "macs",
                    bytes_of(&types::mac { addr, ..Default::default() }),
                    &nic.ifindex.to_ne_bytes(),
                )?;
            }
        }
        for vcpu in &vm.vcpus {
            let unknown = thread_state::STATE_UNKNOWN.0 as u8;
            let clock = types::clock {
                state: unknown,
                resume: unknown,
                actor: types::actor::ACTOR_VCPU.0 as u8,
                vm: vm.pid,
                vcpu: vcpu.kvm_id.unwrap_or(types::unknown::VCPU_UNKNOWN.0),
                index: vcpu.index.into(),
                ..Default::default()
            };
            let index = lookup.add(vcpu.tid);
            put("thread_clocks", &index.to_ne_bytes(), bytes_of(&clock))?;
            // If KVM's number is not known now, the next guest entry of the vCPU shows it.
            if let Some(id) = vcpu.kvm_id {
                let key = types::vcpu_key { vm: vm.pid, vcpu: id };
                put("vcpus", bytes_of(&key), &vcpu.tid.to_ne_bytes())?;
            }
        }
    }
    for (tid, index) in &lookup.collisions {
        put("collisions", &tid.to_ne_bytes(), &index.to_ne_bytes())?;
    }
    let name = object.maps().map(|m| m.name().to_string_lossy().into_owned()).find(|n| n.ends_with(".bss"));
    put(name.as_deref().unwrap_or(".bss"), &0u32.to_ne_bytes(), bytes_of(lookup.image.as_ref()))
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

    /// Marks that something with this number is traced.
    fn hint(&mut self, number: u32, what: hint) {
        let slots = self.image.hints.len();
        self.image.hints[number as usize % slots] |= what.0 as u8;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;

    #[test]
    fn prefixes_lie_in_network_order() {
        let (a, m) = prefix(IpAddr::V4(Ipv4Addr::new(10, 1, 2, 3)), 16);
        assert_eq!(a[0].to_ne_bytes(), [10, 1, 0, 0]);
        assert_eq!(m[0].to_ne_bytes(), [255, 255, 0, 0]);
        assert_eq!((a[1], m[1]), (0, 0));
        let (a, m) = prefix("2001:db8::1".parse().unwrap(), 33);
        assert_eq!(a[0].to_ne_bytes(), [0x20, 1, 0x0d, 0xb8]);
        assert_eq!(m[0], u32::MAX);
        assert_eq!(m[1].to_ne_bytes(), [0x80, 0, 0, 0]);
        assert_eq!(prefix("::".parse().unwrap(), 0).1, [0; 4]);
    }

    #[test]
    fn every_thread_has_a_clock_of_its_own() {
        let mut lookup = Lookup::default();
        let tids = [7, 65536 + 7, 8, 2 * 65536 + 7];
        assert_eq!(tids.map(|t| lookup.add(t)), [0, 1, 2, 3]);
        assert_eq!((lookup.image.by_tid[7], lookup.image.by_tid[8]), (7 << 32, 8 << 32 | 2));
        assert_eq!(lookup.collisions, [(65536 + 7, 1), (2 * 65536 + 7, 3)]);
        assert_eq!(lookup.image.used, 4);
    }

    #[test]
    fn hints_of_several_kinds_share_a_place() {
        let mut lookup = Lookup::default();
        lookup.hint(65536 + 9, hint::HINT_TAP);
        lookup.hint(9, hint::HINT_VM);
        assert_eq!(u32::from(lookup.image.hints[9]), hint::HINT_TAP.0 | hint::HINT_VM.0);
        assert_eq!(lookup.image.hints.iter().filter(|h| **h != 0).count(), 1);
    }

    #[test]
    fn the_places_of_threads_are_all_that_the_object_has_beside_its_maps() {
        let object = super::super::open().unwrap();
        let bss = object.maps().find(|m| m.name().to_string_lossy().ends_with(".bss")).unwrap();
        assert_eq!(bss.initial_value().unwrap().len(), size_of::<types::lookup>());
    }

    #[test]
    fn settings_are_the_objects_first_constant() {
        let object = super::super::open().unwrap();
        let rodata = object.maps().find(|m| m.name().to_string_lossy().ends_with(".rodata")).unwrap();
        assert_eq!(rodata.initial_value().unwrap().len(), size_of::<types::rodata>());
        assert_eq!(std::mem::offset_of!(types::rodata, settings), 0);
    }
}
