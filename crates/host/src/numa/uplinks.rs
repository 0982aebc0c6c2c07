//! The NICs of the host by which the packets of VMs leave: those below the bridge, or below the macvtap, through bonds and VLANs;
//! and devices that were given to VMs. Their nodes are those of their PCI devices.

use crate::interrupts::{self, Counts, Interrupts, counts};
use crate::root::Root;
use std::collections::{BTreeMap, BTreeSet};
use teiji_model::host::{DataPlane, Nic, Vm};
use teiji_model::numa::{ByNode, NicNodes, NumaHost, Uplink, add};

/// How many devices may be one above the other.
const DEPTH: usize = 6;

/// The NICs that VMs use, and how often each interrupt had come to each CPU.
pub(super) struct Uplinks {
    /// Of each VM, by process id: its NICs, and their uplinks.
    vms: BTreeMap<u32, Vec<(String, Vec<String>)>>,
    /// By name.
    uplinks: BTreeMap<String, OfUplink>,
    counts: Counts,
}

struct OfUplink {
    node: Option<u32>,
    irqs: Vec<u32>,
}

impl Uplinks {
    pub(super) fn begin(root: &Root, vms: &[Vm]) -> Self {
        let interrupts = Interrupts::new(root);
        let (mut uplinks, mut all) = (BTreeMap::new(), BTreeMap::new());
        // What is below a bridge, which many taps have in common.
        let mut below = BTreeMap::new();
        for vm in vms {
            let of_nic = |nic: &Nic| {
                let names = if nic.data_plane == DataPlane::Passthrough {
                    vec![nic.tap.clone()]
                } else {
                    below.entry(top(nic).to_owned()).or_insert_with(|| descended(root, top(nic))).clone()
                };
                for name in &names {
                    uplinks.entry(name.clone()).or_insert_with(|| match nic.data_plane {
                        DataPlane::Passthrough => given(root, name),
                        _ => of_host(root, name, &interrupts),
                    });
                }
                (nic.tap.clone(), names)
            };
            all.insert(vm.pid, vm.nics.iter().map(of_nic).collect());
        }
        let counts = if uplinks.is_empty() { Counts::new() } else { counts(interrupts.text()) };
        Uplinks { vms: all, uplinks, counts }
    }

    /// The NICs of each VM, by process id.
    pub(super) fn end(&self, root: &Root, host: &NumaHost) -> BTreeMap<u32, Vec<NicNodes>> {
        let now = match self.uplinks.is_empty() {
            true => Counts::new(),
            false => counts(&root.text("proc/interrupts").unwrap_or_default()),
        };
        let uplink = |name: &String| {
            let OfUplink { node, irqs } = self.uplinks.get(name)?;
            let mut interrupts = ByNode::new();
            for irq in irqs {
                let before: BTreeMap<u32, u64> =
                    self.counts.get(irq).into_iter().flatten().copied().collect();
                for (cpu, count) in now.get(irq).into_iter().flatten() {
                    let new = count.saturating_sub(before.get(cpu).copied().unwrap_or(0));
                    if let Some(node) = host.node_of(*cpu).filter(|_| new > 0) {
                        add(&mut interrupts, node, new);
                    }
                }
            }
            Some(Uplink { name: name.clone(), node: *node, interrupts })
        };
        let placed = |(name, names): &(String, Vec<String>)| NicNodes {
            name: name.clone(),
            uplinks: names.iter().filter_map(uplink).collect(),
        };
        self.vms.iter().map(|(pid, nics)| (*pid, nics.iter().map(placed).collect())).collect()
    }
}

/// The device from which on a VM's NIC is followed downwards; empty if it is not in this network namespace.
fn top(nic: &Nic) -> &str {
    if nic.ifindex == 0 { "" } else { nic.bridge.as_ref().unwrap_or(&nic.tap) }
}

/// The NICs of the host below a device.
fn descended(root: &Root, top: &str) -> Vec<String> {
    let mut found = BTreeSet::new();
    if !top.is_empty() {
        descend(root, top, DEPTH, &mut found);
    }
    found.into_iter().collect()
}

/// The devices of the kernel's list of lower devices (`lower_*`) that have hardware.
fn descend(root: &Root, name: &str, depth: usize, found: &mut BTreeSet<String>) {
    if root.exists(&format!("sys/class/net/{name}/device")) {
        found.insert(name.to_owned());
    } else if depth > 0 {
        for file in root.names(&format!("sys/class/net/{name}")) {
            if let Some(lower) = file.strip_prefix("lower_") {
                descend(root, lower, depth - 1, found);
            }
        }
    }
}

fn of_host(root: &Root, name: &str, interrupts: &Interrupts<'_>) -> OfUplink {
    let device = format!("sys/class/net/{name}/device");
    // A virtio device is below its PCI device.
    let node = node_of(root, &device).or_else(|| node_of(root, &format!("{device}/..")));
    OfUplink { node, irqs: interrupts::of_nic(root, name, interrupts) }
}

fn given(root: &Root, address: &str) -> OfUplink {
    let device = format!("sys/bus/pci/devices/{address}");
    OfUplink { node: node_of(root, &device), irqs: root.numbers(&format!("{device}/msi_irqs")) }
}

/// `None` for -1: the firmware does not say.
fn node_of(root: &Root, device: &str) -> Option<u32> {
    u32::try_from(root.number(&format!("{device}/numa_node"))?).ok()
}
