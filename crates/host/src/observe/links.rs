//! Network devices that packets leave the host by, their interrupts, and whether guests' packets leave by them.
//!
//! A NIC is a network device with a piece of hardware (physical or emulated) behind it, which taps, bridges, bonds
//! and lo do not have.
//!
//! Guests' packets leave by taps, by the ports of a bridge that has a tap, and by the devices below such ports: the
//! NICs of a bond, the NIC below a VLAN. All taps count, whichever process they belong to: what a process says about
//! its descriptors proves nothing, as a tap of another network namespace may have the same name.

use crate::interrupts::{self, Interrupts};
use crate::net;
use crate::resource::Devices;
use crate::root::Root;
use crate::rtnl::Link;
use std::collections::BTreeSet;
use teiji_model::observed::{LinkKind, ObservedLink};

/// `ARPHRD_ETHER` of linux/if_arp.h.
const ETHERNET: u64 = 1;
/// The value that a device reports for an unknown speed (`SPEED_UNKNOWN`) if its driver treats that as a number.
const UNKNOWN: u64 = 0xffff_ffff;
/// How many stacked devices are followed up to a bridge: slave, bond, VLAN, bridge, and some more.
const DEPTH: usize = 6;

/// Ethernet devices, by name: from the kernel's list of them, or from sysfs if the kernel was not asked.
pub(super) fn links(root: &Root, devices: &Devices) -> Vec<ObservedLink> {
    let mut all = match devices.links() {
        Some(listed) => listed.values().filter_map(|link| Ethernet::listed(root, devices, link)).collect(),
        None => root
            .names("sys/class/net")
            .into_iter()
            .filter_map(|name| Ethernet::found(root, name))
            .collect::<Vec<_>>(),
    };
    all.sort_unstable_by(|a, b| a.name.cmp(&b.name));
    let mut guests = Guests::default();
    for tap in all.iter().filter(|device| device.kind == LinkKind::Tap) {
        guests.bridges.extend(tap.master.clone());
        guests.taps.insert(tap.name.clone());
    }
    let interrupts = Interrupts::new(root);
    all.into_iter().map(|device| device.observed(root, &guests, &interrupts)).collect()
}

/// An Ethernet device.
struct Ethernet {
    name: String,
    index: u32,
    kind: LinkKind,
    mtu: u32,
    master: Option<String>,
}

impl Ethernet {
    /// `None` if it is no Ethernet device.
    fn listed(root: &Root, devices: &Devices, link: &Link) -> Option<Self> {
        if link.name == "lo" || u64::from(link.hardware) != ETHERNET {
            return None;
        }
        let kind = match link.kind.as_str() {
            "tun" => LinkKind::Tap,
            "bridge" => LinkKind::Bridge,
            "bond" => LinkKind::Bond,
            _ if root.exists(&format!("sys/class/net/{}/device", link.name)) => LinkKind::Nic,
            _ => LinkKind::Virtual,
        };
        let master = devices.master_of(link).map(str::to_owned);
        Some(Ethernet { name: link.name.clone(), index: link.index, kind, mtu: link.mtu, master })
    }

    /// `None` if it is no Ethernet device, or has vanished.
    fn found(root: &Root, name: String) -> Option<Self> {
        let number = |file: &str| root.number(&format!("sys/class/net/{name}/{file}"));
        if name == "lo" || number("type") != Some(ETHERNET) {
            return None;
        }
        let index = Some(net::ifindex(root, &name)).filter(|index| *index > 0)?;
        let mtu = number("mtu").and_then(|mtu| mtu.try_into().ok())?;
        Some(Ethernet { index, kind: kind(root, &name), mtu, master: net::master(root, &name), name })
    }

    fn observed(self, root: &Root, guests: &Guests, interrupts: &Interrupts<'_>) -> ObservedLink {
        let Ethernet { name, index, kind, mtu, .. } = self;
        let speed = || root.number(&format!("sys/class/net/{name}/speed"));
        // The speed that a virtual device reports (a tap: 10 Mbit/s) is not a real rate.
        let speed = matches!(kind, LinkKind::Nic | LinkKind::Bond).then(speed).flatten();
        ObservedLink {
            irqs: if kind == LinkKind::Tap {
                Vec::new()
            } else {
                interrupts::of_nic(root, &name, interrupts)
            },
            guests: guests.leave_by(root, &name, DEPTH),
            speed: speed.filter(|mbit| (1..UNKNOWN).contains(mbit)).map(|mbit| mbit * 1_000_000),
            index,
            kind,
            mtu,
            name,
        }
    }
}

fn kind(root: &Root, name: &str) -> LinkKind {
    let has = |file: &str| root.exists(&format!("sys/class/net/{name}/{file}"));
    if has("bridge") {
        LinkKind::Bridge
    } else if has("bonding") {
        LinkKind::Bond
    } else if has("tun_flags") {
        LinkKind::Tap
    } else if has("device") {
        LinkKind::Nic
    } else {
        LinkKind::Virtual
    }
}

/// Taps, and bridges that have one.
#[derive(Default)]
struct Guests {
    taps: BTreeSet<String>,
    bridges: BTreeSet<String>,
}

impl Guests {
    /// Whether guests' packets leave by this device.
    fn leave_by(&self, root: &Root, name: &str, depth: usize) -> bool {
        if self.taps.contains(name) {
            return true;
        }
        let above = root.names(&format!("sys/class/net/{name}"));
        let above = above.iter().filter_map(|file| file.strip_prefix("upper_").map(str::to_owned));
        above.chain(net::master(root, name)).any(|upper| {
            self.bridges.contains(&upper) || (depth > 0 && self.leave_by(root, &upper, depth - 1))
        })
    }
}
