//! Which interrupts are those of NICs that VMs were given.
//!
//! VMs may also be given other devices, and a device gets its interrupts when the guest asks for them. So this is looked up while the
//! trace runs, when an interrupt has come; it needs no privileges.

use super::now;
use std::collections::{BTreeMap, HashMap};
use teiji_bpf::path_trace::OtherIrqs;
use teiji_host::Root;
use teiji_model::event::DeviceInterrupt;

/// See the module.
#[derive(Default)]
pub(super) struct NicIrqs {
    root: Root,
    /// Since when the VM is known to have such NICs, ns, and their addresses; by the VMM's process id.
    nics: BTreeMap<u32, (u64, Vec<String>)>,
    /// By VM and interrupt: whether it is that of such a NIC, and until when that is believed.
    known: HashMap<(u32, u32), (bool, u64)>,
    /// When the probes began to be detached, ns; `None` while they are attached.
    ended: Option<u64>,
    /// Where the kernel half reads which interrupts it need not tell.
    others: Option<OtherIrqs>,
}

impl NicIrqs {
    /// How long what was looked up is believed, ns.
    const BELIEVED: u64 = 100_000_000;
    /// Interrupts that are remembered.
    const MAX_KNOWN: usize = 1 << 14;

    pub(super) fn new(others: OtherIrqs) -> Self {
        NicIrqs { others: Some(others), ..NicIrqs::default() }
    }

    /// At `ts`, a VM has these NICs, and no others.
    pub(super) fn set(&mut self, ts: u64, pid: u32, nics: Vec<String>) {
        self.known.retain(|(vm, _), _| *vm != pid);
        if nics.is_empty() {
            self.nics.remove(&pid);
        } else {
            self.nics.entry(pid).or_insert((ts, Vec::new())).1 = nics;
        }
    }

    /// From `ts` on, the probes are detached.
    pub(super) fn end(&mut self, ts: u64) {
        self.ended = Some(ts);
    }

    /// Whether an interrupt at `ts` was that of a NIC that its VM was known to have been given, while all probes were attached.
    ///
    /// Others are not told: while the probes are attached and detached one after the other, who accepted an interrupt may be
    /// missed; and before, the analysis does not know the NIC.
    pub(super) fn has(&mut self, ts: u64, i: &DeviceInterrupt) -> bool {
        if self.ended.is_some_and(|ended| ts >= ended) {
            return false;
        }
        let Some((_, nics)) = self.nics.get(&i.vm).filter(|(since, _)| ts >= *since) else { return false };
        if let Some((is_nics, until)) = self.known.get(&(i.vm, i.irq))
            && ts < *until
        {
            return *is_nics;
        }
        if self.known.len() >= Self::MAX_KNOWN {
            self.known.clear();
        }
        let is_nics = nics.iter().any(|address| self.root.is_irq_of(address, i.irq));
        self.known.insert((i.vm, i.irq), (is_nics, ts.saturating_add(Self::BELIEVED)));
        if let Some(others) = self.others.as_ref().filter(|_| !is_nics) {
            others.set(i.irq, now().saturating_add(Self::BELIEVED));
        }
        is_nics
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use teiji_model::event::Delivery;

    #[test]
    fn interrupts_of_other_devices_and_vms_are_left_out() {
        let dir = std::env::temp_dir().join(format!("teiji-nic-irqs-{}", std::process::id()));
        let irqs = dir.join("sys/bus/pci/devices/0000:01:10.0/msi_irqs");
        fs::create_dir_all(&irqs).unwrap();
        fs::write(irqs.join("40"), "msix").unwrap();
        let mut nic_irqs = NicIrqs { root: Root::new(&dir), ..NicIrqs::default() };
        let interrupt = |vm, irq| DeviceInterrupt {
            began: 1,
            irq,
            delivery: Delivery::Accepted,
            vm,
            vcpu: 0,
            vector: 1,
            by_hardware: false,
        };
        let nics = || vec!["0000:01:10.0".to_owned()];
        nic_irqs.set(1, 7, nics());
        assert!(!nic_irqs.has(0, &interrupt(7, 40)), "told before the NIC was known");
        nic_irqs.set(2, 7, nics());
        let mut at = |ts| [(7, 40), (7, 41), (8, 40)].map(|(vm, irq)| nic_irqs.has(ts, &interrupt(vm, irq)));
        assert_eq!(at(1), [true, false, false]);
        // The guest asks for another one, and gives back the first.
        fs::rename(irqs.join("40"), irqs.join("41")).unwrap();
        assert_eq!(at(2), [true, false, false]);
        assert_eq!(at(1 + NicIrqs::BELIEVED), [false, true, false]);
        nic_irqs.end(2 + NicIrqs::BELIEVED);
        assert!(nic_irqs.has(1 + NicIrqs::BELIEVED, &interrupt(7, 41)));
        assert!(!nic_irqs.has(2 + NicIrqs::BELIEVED, &interrupt(7, 41)), "told while probes were detached");
        nic_irqs.set(3, 7, Vec::new());
        assert!(!nic_irqs.has(1 + NicIrqs::BELIEVED, &interrupt(7, 41)));
        fs::remove_dir_all(&dir).unwrap();
    }
}
