//! Network devices that packets leave the host by, their interrupts, and whether guests' packets leave by them.
//!
//! A NIC is a network device with a piece of hardware (physical or emulated) behind it, which taps, bridges, bonds
//! and lo do not have. Its interrupts are the device's message-signalled ones; those of a virtio NIC are its bus
//! device's. A device without such interrupts is looked for by its name in `/proc/interrupts`.
//!
//! Guests' packets leave by taps, by the ports of a bridge that has a tap, and by the devices below such ports: the
//! NICs of a bond, the NIC below a VLAN. All taps count, whichever process they belong to: what a process says about
//! its descriptors proves nothing, as a tap of another network namespace may have the same name.

use crate::net;
use crate::resource::Devices;
use crate::root::Root;
use crate::rtnl::Link;
use std::cell::OnceCell;
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
            irqs: if kind == LinkKind::Tap { Vec::new() } else { irqs(root, &name, interrupts) },
            guests: guests.leave_by(root, &name, DEPTH),
            speed: speed.filter(|mbit| (1..UNKNOWN).contains(mbit)).map(|mbit| mbit * 1_000_000),
            index,
            kind,
            mtu,
            name,
        }
    }
}

/// The text of `/proc/interrupts`, which is read once, and only if a device needs it.
struct Interrupts<'a> {
    root: &'a Root,
    text: OnceCell<String>,
}

impl<'a> Interrupts<'a> {
    fn new(root: &'a Root) -> Self {
        Interrupts { root, text: OnceCell::new() }
    }

    fn text(&self) -> &str {
        self.text.get_or_init(|| self.root.text("proc/interrupts").unwrap_or_default())
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

fn irqs(root: &Root, name: &str, interrupts: &Interrupts<'_>) -> Vec<u32> {
    let device = format!("sys/class/net/{name}/device");
    let Some(target) = root.link(&device) else { return Vec::new() };
    let bus = target.rsplit('/').next().unwrap_or_default();
    let mut irqs = root.numbers(&format!("{device}/msi_irqs"));
    if irqs.is_empty() && is_virtio(root, &device) {
        // the kernel resolves `device` before `..`, so this is the PCI device
        irqs = root.numbers(&format!("{device}/../msi_irqs"));
    }
    if irqs.is_empty() {
        irqs = by_name(interrupts.text(), name, bus);
    }
    // A vector that the driver does not use has no directory.
    irqs.retain(|irq| root.exists(&format!("proc/irq/{irq}/smp_affinity_list")));
    irqs
}

fn is_virtio(root: &Root, device: &str) -> bool {
    root.link(&format!("{device}/subsystem")).is_some_and(|bus| bus.ends_with("/virtio"))
}

/// Interrupts in the text of `/proc/interrupts` whose handlers are called after the NIC or its bus device: `eth0`,
/// `eth0-TxRx-3`, `virtio2-input.0`, `mlx5_comp3@pci:0000:3b:00.0`.
fn by_name(interrupts: &str, name: &str, bus: &str) -> Vec<u32> {
    let is_of = |word: &str, key: &str| {
        !key.is_empty()
            && (word == key
                || word.strip_prefix(key).is_some_and(|rest| rest.starts_with(['-', '.', ':', '@']))
                || word.strip_suffix(key).is_some_and(|rest| rest.ends_with("@pci:")))
    };
    let found = interrupts.lines().filter_map(|line| {
        let (irq, rest) = line.split_once(':')?;
        let irq = irq.trim().parse().ok()?;
        let handlers = rest.split_whitespace().map(|word| word.trim_end_matches(','));
        let mut handlers = handlers.skip_while(|word| word.bytes().all(|b| b.is_ascii_digit()));
        handlers.any(|word| is_of(word, name) || is_of(word, bus)).then_some(irq)
    });
    found.collect::<BTreeSet<u32>>().into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::by_name;

    const INTERRUPTS: &str = "           CPU0       CPU1
  8:          0          0  IO-APIC   8-edge      rtc0
 16:          7          0  IO-APIC  16-fasteoi   uhci_hcd:usb1, eth1
 38:          0       8790 PCI-MSIX-0000:00:03.0   1-edge      virtio2-input.0
 39:       5183          0 PCI-MSIX-0000:00:03.0   2-edge      virtio20-output.0
 40:          0          0 PCI-MSIX-0000:3b:00.0   3-edge      mlx5_comp3@pci:0000:3b:00.0
 41:          0          0 PCI-MSI 524288-edge      eth0-TxRx-0
NMI:          0          0   Non-maskable interrupts
";

    #[test]
    fn interrupts_by_name() {
        assert_eq!(by_name(INTERRUPTS, "eth0", "0000:01:00.0"), [41]);
        assert_eq!(by_name(INTERRUPTS, "eth1", "0000:02:00.0"), [16]);
        assert_eq!(by_name(INTERRUPTS, "ens3", "virtio2"), [38]);
        assert_eq!(by_name(INTERRUPTS, "ens4", "0000:3b:00.0"), [40]);
        assert!(by_name(INTERRUPTS, "eth", "").is_empty());
    }
}
