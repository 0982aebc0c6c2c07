//! Interrupts: which are a NIC's, and how often each has come to each CPU (`/proc/interrupts`, kernel/irq/proc.c).

use crate::root::Root;
use std::cell::OnceCell;
use std::collections::{BTreeMap, BTreeSet};

/// How often each interrupt has come to each CPU: pairs of CPU and count, by number.
pub(crate) type Counts = BTreeMap<u32, Vec<(u32, u64)>>;

/// The text of `/proc/interrupts`, which is read once, and only if a device needs it.
pub(crate) struct Interrupts<'a> {
    root: &'a Root,
    text: OnceCell<String>,
}

impl<'a> Interrupts<'a> {
    pub(crate) fn new(root: &'a Root) -> Self {
        Interrupts { root, text: OnceCell::new() }
    }

    pub(crate) fn text(&self) -> &str {
        self.text.get_or_init(|| self.root.text("proc/interrupts").unwrap_or_default())
    }
}

/// The interrupts of a NIC: the message-signalled ones of its device; those of a virtio NIC are its bus device's. A NIC without such
/// interrupts is looked for by its name in `/proc/interrupts`.
pub(crate) fn of_nic(root: &Root, name: &str, interrupts: &Interrupts<'_>) -> Vec<u32> {
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

/// The text of `/proc/interrupts`: its first line names the CPUs that are online, and each other line has a count for each.
pub(crate) fn counts(text: &str) -> Counts {
    let mut lines = text.lines();
    let cpus: Vec<u32> = lines
        .next()
        .unwrap_or_default()
        .split_whitespace()
        .filter_map(|word| word.strip_prefix("CPU")?.parse().ok())
        .collect();
    let line = |line: &str| {
        let (irq, rest) = line.split_once(':')?;
        let counts = rest.split_whitespace().map_while(|word| word.parse().ok());
        Some((irq.trim().parse().ok()?, cpus.iter().copied().zip(counts).collect()))
    };
    lines.filter_map(line).collect()
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

    #[test]
    fn counts_belong_to_the_cpus_of_the_first_line() {
        let text = "           CPU0       CPU3\n  8:          1          2  IO-APIC   8-edge      rtc0\n\
                    NMI:          7          0   Non-maskable interrupts\n 40:          5          6 PCI-MSIX 3 eth1\n";
        let wanted = super::Counts::from([(8, vec![(0, 1), (3, 2)]), (40, vec![(0, 5), (3, 6)])]);
        assert_eq!(super::counts(text), wanted);
        assert_eq!(super::counts(""), super::Counts::new());
    }
}
