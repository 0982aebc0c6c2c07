//! The NICs among the PCI devices that were given to a VM (VFIO).
//!
//! ```text
//! /proc/PID/fd ─► /dev/vfio/N ───────────────► the devices of IOMMU group N ─┐
//!             └─► /dev/vfio/devices/vfioN ───► that device (iommufd)         ├─► device ─► physfn ─► PF, number of the VF
//! command line ─► -device vfio-pci,host=… ───────────────────────────────────┘
//! ```
//! What is open counts first: devices that were added to a VM that runs are not on its command line. A group whose devices are
//! not all the VM's has those that the command line names, if it names some.

use crate::cmdline::CommandLine;
use crate::root::Root;
use std::collections::BTreeSet;
use teiji_model::host::{GivenNic, VirtualFunction};

/// What a VMM has open of VFIO.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Vfio {
    /// Groups of the IOMMU.
    pub groups: BTreeSet<u32>,
    /// Devices by their number, of VMMs that use iommufd.
    pub devices: BTreeSet<u32>,
}

impl Vfio {
    /// A file that is open; returns whether it is one of VFIO.
    pub(crate) fn note(&mut self, file: &str) -> bool {
        let Some(name) = file.strip_prefix("/dev/vfio/") else { return false };
        if let Some(number) = name.strip_prefix("devices/vfio") {
            self.devices.extend(number.parse::<u32>().ok());
        } else {
            self.groups.extend(name.parse::<u32>().ok());
        }
        true
    }
}

/// The NICs that a VM was given, by address.
pub(crate) fn given(root: &Root, open: &Vfio, line: &CommandLine) -> Vec<GivenNic> {
    let named = line.given_devices();
    let mut all: BTreeSet<String> = named.iter().filter(|at| is_address(at)).cloned().collect();
    for group in &open.groups {
        let mut of_group = root.names(&format!("sys/kernel/iommu_groups/{group}/devices"));
        of_group
            .retain(|at| is_address(at) && driver(root, at).is_some_and(|driver| driver.contains("vfio")));
        if !of_group.iter().any(|at| named.contains(at)) {
            all.extend(of_group);
        }
    }
    for number in &open.devices {
        let device = root.link(&format!("sys/class/vfio-dev/vfio{number}/device"));
        all.extend(device.as_deref().and_then(last).filter(|at| is_address(at)).map(str::to_owned));
    }
    all.into_iter().filter_map(|at| nic(root, at)).collect()
}

impl Root {
    /// Whether this interrupt of the host (MSI, MSI-X) is at present one of the device with this PCI address.
    pub fn is_irq_of(&self, address: &str, irq: u32) -> bool {
        is_address(address) && self.exists(&format!("sys/bus/pci/devices/{address}/msi_irqs/{irq}"))
    }
}

/// Whether a name is the address of a PCI device, such as `0000:01:10.0`.
fn is_address(name: &str) -> bool {
    name.matches(':').count() == 2 && name.chars().all(|c| c.is_ascii_hexdigit() || matches!(c, ':' | '.'))
}

fn last(path: &str) -> Option<&str> {
    path.rsplit('/').next()
}

/// The driver that a device has: `vfio-pci`, or that of its vendor for VFIO, such as `mlx5_vfio_pci`.
fn driver(root: &Root, at: &str) -> Option<String> {
    let link = root.link(&format!("sys/bus/pci/devices/{at}/driver"))?;
    last(&link).map(str::to_owned)
}

/// The device with this address, if it is a NIC.
fn nic(root: &Root, address: String) -> Option<GivenNic> {
    let file = |name: &str| root.text(&format!("sys/bus/pci/devices/{address}/{name}"));
    let number = |name: &str| u16::from_str_radix(file(name)?.trim().strip_prefix("0x")?, 16).ok();
    // The class of network controllers is 02; other devices that were given to the VM are no NICs.
    if !file("class")?.starts_with("0x02") {
        return None;
    }
    let (vendor, device) = (number("vendor").unwrap_or(0), number("device").unwrap_or(0));
    let function = function(root, &address);
    Some(GivenNic { address, vendor, device, function })
}

/// Which virtual function it is, if it is one.
fn function(root: &Root, address: &str) -> Option<VirtualFunction> {
    let physical = root.link(&format!("sys/bus/pci/devices/{address}/physfn"))?;
    let physical = last(&physical).filter(|at| is_address(at))?;
    let of_physical = format!("sys/bus/pci/devices/{physical}");
    let number = root.names(&of_physical).into_iter().find_map(|name| {
        let number = name.strip_prefix("virtfn")?.parse().ok()?;
        let target = root.link(&format!("{of_physical}/{name}"))?;
        (last(&target) == Some(address)).then_some(number)
    })?;
    // None if the physical function is itself given away, or in another network namespace.
    let link = root.names(&format!("{of_physical}/net")).into_iter().min();
    Some(VirtualFunction { physical: physical.to_owned(), link, number })
}
