//! What keeps VMs from being quick, apart from what their threads say: qdiscs that delay their packets or limit the rate of these, and
//! threads of the VMM that copy the guest's memory elsewhere.

use crate::root::Root;
use crate::rtnl::{Queue, Rtnl};
use crate::task::Stat;
use std::collections::{BTreeMap, BTreeSet};
use teiji_model::host::Vm;
use teiji_model::usage::LimitUsage;

/// Qdiscs that delay packets whatever the load.
const DELAYING: [&str; 1] = ["netem"];
/// How QEMU's threads are called that copy memory for a migration, or for a snapshot while the VM runs (migration/migration.h; before QEMU 9.1:
/// migration/migration.c), if it gives its threads names (`-name debug-threads=on`).
const COPYING: [&str; 4] = ["mig/src/", "mig/snapshot", "live_migration", "bg_snapshot"];

/// The qdiscs of the host that delay packets or have held packets back, by device.
#[derive(Default)]
pub(crate) struct Qdiscs(BTreeMap<String, Vec<Queue>>);

impl Qdiscs {
    /// Those of this host now; none if these VMs have no NICs.
    pub(crate) fn now(root: &Root, vms: &[Vm]) -> Qdiscs {
        if !root.is_real() || vms.iter().all(|vm| vm.nics.is_empty()) {
            return Qdiscs::default();
        }
        let Ok(mut rtnl) = Rtnl::open() else { return Qdiscs::default() };
        let (Ok(queues), Ok(links)) = (rtnl.queues(), rtnl.links()) else { return Qdiscs::default() };
        Qdiscs::named(queues, links.into_iter().map(|link| (link.index, link.name)))
    }

    fn named(mut all: BTreeMap<u32, Vec<Queue>>, links: impl Iterator<Item = (u32, String)>) -> Qdiscs {
        let named = links.filter_map(|(index, name)| {
            let mut queues = all.remove(&index)?;
            queues.retain(|queue| queue.held_back > 0 || delays(queue));
            (!queues.is_empty()).then_some((name, queues))
        });
        Qdiscs(named.collect())
    }

    /// Those on the way of a VM's packets: which delay them (device and kind), and which limit their rate.
    pub(crate) fn of_vm(&self, root: &Root, vm: &Vm) -> (Vec<(String, String)>, Vec<LimitUsage>) {
        let (mut delaying, mut limits) = (Vec::new(), Vec::new());
        if self.0.is_empty() {
            return (delaying, limits);
        }
        let own: BTreeSet<&String> = vm.nics.iter().map(|nic| &nic.tap).collect();
        let ports = |bridge: &String| root.names(&format!("sys/class/net/{bridge}/brif"));
        let near: BTreeSet<String> = vm
            .nics
            .iter()
            .flat_map(|nic| nic.bridge.iter().flat_map(ports).chain([nic.tap.clone()]))
            .collect();
        for device in near {
            let Some(queues) = self.0.get(&device) else { continue };
            let shared = !own.contains(&device);
            // Other VMs' taps and containers' devices on the bridge delay only what these receive.
            if shared && !root.exists(&format!("sys/class/net/{device}/device")) {
                continue;
            }
            if let Some(queue) = queues.iter().find(|queue| delays(queue)) {
                delaying.push((device.clone(), queue.kind.clone()));
            }
            limits.extend(queues.iter().filter(|queue| queue.held_back > 0).map(|queue| LimitUsage {
                device: device.clone(),
                shared,
                kind: queue.kind.clone(),
                handle: queue.handle,
                held_back: queue.held_back,
                dropped: queue.dropped,
                waiting: queue.waiting,
            }));
        }
        (delaying, limits)
    }
}

fn delays(queue: &Queue) -> bool {
    DELAYING.contains(&queue.kind.as_str())
}

/// The threads of a VMM that copy the guest's memory. They are looked for when the VMM has more or fewer threads than before.
#[derive(Default)]
pub(crate) struct Copying {
    /// How many threads the VMM had.
    threads: Option<u64>,
    names: Vec<String>,
}

impl Copying {
    /// Looks for them; `stat` is that of the VMM.
    pub(crate) fn look(&mut self, root: &Root, pid: u32, stat: &Stat) {
        let threads = stat.number(20);
        if threads.is_none() || self.threads != threads {
            self.threads = threads;
            self.names = names(root, pid);
        }
    }

    /// Their names at the last look.
    pub(crate) fn names(&self) -> &[String] {
        &self.names
    }

    /// Lets the next look be one whatever the number of threads is.
    pub(crate) fn forget(&mut self) {
        self.threads = None;
    }
}

fn names(root: &Root, pid: u32) -> Vec<String> {
    let Some(tasks) = root.dir(&format!("proc/{pid}/task")) else { return Vec::new() };
    let name = |tid: u32| tasks.text(&format!("{tid}/comm")).map(|name| name.trim_end().to_owned());
    let copies = |name: &String| COPYING.iter().any(|prefix| name.starts_with(prefix));
    tasks.threads().into_iter().filter_map(name).filter(copies).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::path::Path;

    #[test]
    fn only_qdiscs_that_delay_or_have_held_packets_back_count() {
        let queue =
            |kind: &str, held_back| Queue { kind: kind.into(), handle: 1, waiting: 2, dropped: 3, held_back };
        let all = BTreeMap::from([
            (1, vec![queue("noqueue", 0)]),
            (2, vec![queue("tbf", 4), queue("netem", 0), queue("fq", 0)]),
            (9, vec![queue("tbf", 5)]),
        ]);
        let links = [(1, "lo".to_owned()), (2, "tap0".to_owned())];
        let qdiscs = Qdiscs::named(all, links.into_iter());
        assert_eq!(qdiscs.0.keys().collect::<Vec<_>>(), ["tap0"]);
        let kinds: Vec<&str> = qdiscs.0["tap0"].iter().map(|queue| queue.kind.as_str()).collect();
        assert_eq!(kinds, ["tbf", "netem"]);
    }

    /// A VMM with threads of these names.
    fn vmm(root: &Path, names: &[&str]) -> Stat {
        let _ = fs::remove_dir_all(root.join("proc"));
        for (tid, name) in (10..).zip(names) {
            let dir = root.join(format!("proc/10/task/{tid}"));
            fs::create_dir_all(&dir).unwrap();
            fs::write(dir.join("comm"), format!("{name}\n")).unwrap();
        }
        let fields = (4..20).map(|_| "0 ").collect::<String>();
        Stat::new(format!("10 (qemu) S {fields}{} 0 5", names.len()))
    }

    #[test]
    fn threads_that_copy_memory_are_looked_for_when_their_number_changes() {
        let dir = tempfile::tempdir().unwrap();
        let root = Root::new(dir.path());
        let mut copying = Copying::default();
        let mut look = |names: &[&str], forget| {
            let stat = vmm(dir.path(), names);
            if forget {
                copying.forget();
            }
            copying.look(&root, 10, &stat);
            copying.names().to_vec()
        };
        let none: [&str; 0] = [];
        assert_eq!(look(&["qemu", "CPU 0/KVM", "mig/dst/main"], false), none);
        let migrates = ["qemu", "CPU 0/KVM", "mig/src/main", "mig/src/send_0"];
        assert_eq!(look(&migrates, false), migrates[2..]);
        assert_eq!(look(&["qemu", "CPU 0/KVM", "live_migration"], false), ["live_migration"]);
        // As many threads as before: not before it is time.
        assert_eq!(look(&["qemu", "CPU 0/KVM", "worker"], false), ["live_migration"]);
        assert_eq!(look(&["qemu", "CPU 0/KVM", "worker"], true), none);
    }
}
