//! Packets that NICs, their drivers and the kernel's device layer discard, by the counters of the NICs. Most of these packets are
//! seen by no probe: the kernel does not have them yet, or no longer.

use crate::root::{Dir, Root};
use teiji_model::event::{NicCounter, NicLoss};

/// At most this many NICs are read. Each takes six small files, every time.
const MAX_NICS: usize = 64;

/// The counters of the host's NICs, as they were when they were last read.
///
/// A NIC is a network device with hardware, or with a hypervisor's imitation of it, behind it: what has a `device` in sysfs.
/// NICs that come later are not read. A NIC is the same one after it was given another name.
pub struct NicCounters {
    nics: Vec<Nic>,
    left_out: usize,
}

struct Nic {
    /// Its directory in sysfs, opened: so it needs no privileges later, and stays the same device's.
    dir: Dir,
    ifindex: u32,
    /// `None` where a counter could not be read.
    last: [Option<u64>; NicCounter::ALL.len()],
}

impl NicCounters {
    /// Reads the counters of the NICs in the network namespace of this process's `/sys`.
    pub fn of_host() -> Self {
        NicCounters::of(&Root::default())
    }

    fn of(root: &Root) -> Self {
        let mut names = root.names("sys/class/net");
        names.retain(|name| root.exists(&format!("sys/class/net/{name}/device")));
        // Virtual functions last: they may be many, and their losses may also be counted by the physical function, or seen by the VM
        // that has them.
        names.sort_by_cached_key(|name| {
            (root.exists(&format!("sys/class/net/{name}/device/physfn")), name.clone())
        });
        let left_out = names.len().saturating_sub(MAX_NICS);
        names.truncate(MAX_NICS);
        let nic = |name: String| {
            let dir = root.dir(&format!("sys/class/net/{name}"))?;
            let ifindex = dir.text("ifindex")?.trim().parse().ok()?;
            Some(Nic { ifindex, last: read(&dir), dir })
        };
        NicCounters { nics: names.into_iter().filter_map(nic).collect(), left_out }
    }

    /// How many NICs are not read, as there are too many.
    pub fn left_out(&self) -> usize {
        self.left_out
    }

    /// What was discarded since the counters were last read. A counter that is lower than before was reset by its driver, and
    /// is read from there on.
    pub fn losses(&mut self) -> Vec<NicLoss> {
        let mut losses = Vec::new();
        for nic in &mut self.nics {
            let now = read(&nic.dir);
            let counters = NicCounter::ALL.into_iter().zip(nic.last.iter().zip(&now));
            losses.extend(counters.filter_map(|(counter, (before, now))| {
                let packets = (*now)?.checked_sub((*before)?).filter(|&grown| grown > 0)?;
                Some(NicLoss { ifindex: nic.ifindex, counter, packets })
            }));
            nic.last = now;
        }
        losses
    }
}

fn read(nic: &Dir) -> [Option<u64>; NicCounter::ALL.len()] {
    NicCounter::ALL.map(|counter| nic.text(&format!("statistics/{}", counter.name()))?.trim().parse().ok())
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
        let mut counters = NicCounters::of(&Root::new(dir.path()));
        assert_eq!(counters.losses(), [], "nothing was lost yet");
        set(2, 9, 8);
        let loss = |counter, packets| NicLoss { ifindex: 2, counter, packets };
        assert_eq!(counters.losses(), [loss(NicCounter::RxMissedErrors, 4), loss(NicCounter::TxDropped, 1)]);
        assert_eq!(counters.losses(), []);
    }

    #[test]
    fn a_counter_that_was_reset_begins_anew() {
        let (dir, set) = host();
        let mut counters = NicCounters::of(&Root::new(dir.path()));
        set(2, 1, 7);
        assert_eq!(counters.losses(), [], "the driver has reset its counter");
        set(2, 2, 7);
        assert_eq!(counters.losses().len(), 1);
    }

    #[test]
    fn a_nic_is_the_same_one_with_another_name_and_another_device_of_its_name_is_not() {
        let (dir, set) = host();
        let net = dir.path().join("sys/class/net");
        let mut counters = NicCounters::of(&Root::new(dir.path()));
        fs::rename(net.join("eth0"), net.join("wan0")).unwrap();
        set(8, 100, 100); // a bridge
        assert_eq!(counters.losses(), []);
        fs::write(net.join("wan0/statistics/rx_missed_errors"), "6\n").unwrap();
        set(8, 200, 200);
        assert_eq!(counters.losses().iter().map(|l| (l.ifindex, l.packets)).collect::<Vec<_>>(), [(2, 1)]);
        fs::remove_dir_all(net.join("wan0")).unwrap();
        assert_eq!(counters.losses(), [], "it is gone");
    }

    #[test]
    fn of_too_many_nics_virtual_functions_are_left_out() {
        let dir = tempfile::tempdir().unwrap();
        let net = dir.path().join("sys/class/net");
        for n in 0..70 {
            let nic = net.join(format!("eth{n:02}"));
            fs::create_dir_all(nic.join(if n == 69 { "device" } else { "device/physfn" })).unwrap();
            fs::create_dir_all(nic.join("statistics")).unwrap();
            fs::write(nic.join("ifindex"), format!("{n}\n")).unwrap();
            fs::write(nic.join("statistics/rx_errors"), "0\n").unwrap();
        }
        let mut counters = NicCounters::of(&Root::new(dir.path()));
        assert_eq!(counters.left_out(), 6);
        fs::write(net.join("eth69/statistics/rx_errors"), "1\n").unwrap();
        assert_eq!(counters.losses(), [NicLoss { ifindex: 69, counter: NicCounter::RxErrors, packets: 1 }]);
    }
}
