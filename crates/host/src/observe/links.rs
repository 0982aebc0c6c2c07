//! NICs that packets leave the host by, and their interrupts.
//!
//! A NIC is a network device with a piece of hardware (physical or emulated) behind it, which taps, bridges, bonds
//! and lo do not have. Its interrupts are the device's message-signalled ones; those of a virtio NIC are its bus
//! device's. A device without such interrupts is looked for by its name in `/proc/interrupts`.

use crate::root::Root;
use std::collections::BTreeSet;
use teiji_model::plan::{LinkKind, ObservedLink};

/// NICs with their interrupts, by name; those without interrupts are left out.
pub(super) fn links(root: &Root) -> Vec<ObservedLink> {
    let mut names = root.names("sys/class/net");
    names.sort_unstable();
    let link = |name: String| {
        let irqs = irqs(root, &name);
        (!irqs.is_empty()).then_some(ObservedLink {
            name,
            index: 0,
            kind: LinkKind::Nic,
            irqs,
            speed: None,
            mtu: 1500,
            guests: false,
        })
    };
    names.into_iter().filter_map(link).collect()
}

fn irqs(root: &Root, name: &str) -> Vec<u32> {
    let device = format!("sys/class/net/{name}/device");
    let Some(target) = root.link(&device) else { return Vec::new() };
    let bus = target.rsplit('/').next().unwrap_or_default();
    let mut irqs = root.numbers(&format!("{device}/msi_irqs"));
    if irqs.is_empty() && is_virtio(root, &device) {
        // the kernel resolves `device` before it goes up, so that this is the PCI device
        irqs = root.numbers(&format!("{device}/../msi_irqs"));
    }
    if irqs.is_empty() {
        irqs = by_name(&root.text("proc/interrupts").unwrap_or_default(), name, bus);
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
