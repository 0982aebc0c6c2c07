//! What NICs and their drivers count of the packets that they lose. No probe sees such a packet: the kernel did not have it
//! yet, or no longer.

use crate::root::Root;
use teiji_model::event::{NicCounter, NicLoss};

/// Most NICs whose counters are read: each takes six files at every look.
const MAX_NICS: usize = 64;

/// The counters of the host's NICs, as they were when they were last read.
///
/// A NIC is a network device with hardware, or with a hypervisor's imitation of it, behind it: what has a `device` in sysfs.
/// NICs that come later are not read.
pub struct NicCounters {
    root: Root,
    nics: Vec<Nic>,
}

struct Nic {
    name: String,
    ifindex: u32,
    /// `None` where a counter could not be read.
    last: [Option<u64>; NicCounter::ALL.len()],
}

impl NicCounters {
    /// Reads the counters of the NICs in the network namespace of this process.
    pub fn of_host() -> Self {
        NicCounters::of(Root::default())
    }

    fn of(root: Root) -> Self {
        let is_nic = |name: &String| root.exists(&format!("sys/class/net/{name}/device"));
        let names = root.names("sys/class/net").into_iter().filter(is_nic).take(MAX_NICS);
        let nic =
            |name: String| Some(Nic { ifindex: ifindex(&root, &name)?, last: read(&root, &name), name });
        let nics = names.filter_map(nic).collect();
        NicCounters { root, nics }
    }

    /// What was lost since the counters were last read. A counter that is lower than before was reset by its driver, and a
    /// device that has another index than before is another one: both are read from there on.
    pub fn losses(&mut self) -> Vec<NicLoss> {
        let mut losses = Vec::new();
        for nic in &mut self.nics {
            let Some(index) = ifindex(&self.root, &nic.name) else { continue };
            let now = read(&self.root, &nic.name);
            if index == nic.ifindex {
                let counters = NicCounter::ALL.into_iter().zip(nic.last.iter().zip(&now));
                losses.extend(counters.filter_map(|(counter, (before, now))| {
                    let packets = (*now)?.checked_sub((*before)?).filter(|&grown| grown > 0)?;
                    Some(NicLoss { ifindex: index, counter, packets })
                }));
            }
            (nic.ifindex, nic.last) = (index, now);
        }
        losses
    }
}

fn ifindex(root: &Root, name: &str) -> Option<u32> {
    root.number(&format!("sys/class/net/{name}/ifindex")).and_then(|index| u32::try_from(index).ok())
}

fn read(root: &Root, nic: &str) -> [Option<u64>; NicCounter::ALL.len()] {
    NicCounter::ALL.map(|counter| root.number(&format!("sys/class/net/{nic}/statistics/{}", counter.name())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    /// A host with the NIC `eth0` and the bridge `br0`, and what sets the NIC's index and two counters.
    fn host() -> (tempfile::TempDir, impl Fn(u32, u64, u64)) {
        let dir = tempfile::tempdir().unwrap();
        let net = dir.path().join("sys/class/net");
        fs::create_dir_all(net.join("eth0/device")).unwrap();
        let set = move |device: &str, index: u32, missed: u64, dropped: u64| {
            let device = net.join(device);
            fs::create_dir_all(device.join("statistics")).unwrap();
            fs::write(device.join("ifindex"), format!("{index}\n")).unwrap();
            for (name, value) in [("rx_missed_errors", missed), ("tx_dropped", dropped)] {
                fs::write(device.join("statistics").join(name), format!("{value}\n")).unwrap();
            }
        };
        set("eth0", 2, 5, 7);
        set("br0", 3, 5, 7);
        (dir, move |index, missed, dropped| {
            set("eth0", index, missed, dropped);
            set("br0", 3, missed + 90, dropped + 90);
        })
    }

    #[test]
    fn what_a_nic_has_lost_since_the_last_look_is_told_once() {
        let (dir, set) = host();
        let mut counters = NicCounters::of(Root::new(dir.path()));
        assert_eq!(counters.losses(), [], "nothing was lost yet");
        set(2, 9, 8);
        let loss = |counter, packets| NicLoss { ifindex: 2, counter, packets };
        assert_eq!(counters.losses(), [loss(NicCounter::RxMissedErrors, 4), loss(NicCounter::TxDropped, 1)]);
        assert_eq!(counters.losses(), []);
    }

    #[test]
    fn a_counter_that_was_reset_and_another_nic_of_the_name_begin_anew() {
        let (dir, set) = host();
        let mut counters = NicCounters::of(Root::new(dir.path()));
        set(2, 1, 7);
        assert_eq!(counters.losses(), [], "the driver has reset its counter");
        set(2, 2, 7);
        assert_eq!(counters.losses().len(), 1);
        set(8, 100, 100);
        assert_eq!(counters.losses(), [], "another device");
        set(8, 101, 100);
        assert_eq!(counters.losses().iter().map(|l| (l.ifindex, l.packets)).collect::<Vec<_>>(), [(8, 1)]);
        fs::remove_dir_all(dir.path().join("sys/class/net/eth0")).unwrap();
        assert_eq!(counters.losses(), [], "it is gone");
    }
}
