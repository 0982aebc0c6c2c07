//! On which node threads run: `schedstat` says how long a thread has run in all, and `stat` on which CPU it is, or was last
//! (proc_pid_stat(5), Documentation/scheduler/sched-stats.rst). What it has run between two looks counts for the node of the second
//! one. So only a thread that moves in between is counted wrongly: what it ran before the move counts for the new node. Over many moves
//! in both directions these errors mostly cancel.

use crate::root::{Kept, Root, USUAL};
use crate::sys;
use crate::task::Stat;
use crate::usage::{FILES, OTHER_FILES};
use std::collections::BTreeMap;
use teiji_model::host::Vm;
use teiji_model::numa::{NumaHost, ThreadNodes, add};

/// The threads of VMs.
pub(super) struct Threads {
    /// By process id.
    vms: BTreeMap<u32, Vec<Watched>>,
    files: Files,
}

/// Files that stay open, as far as there may be so many.
struct Files {
    root: Root,
    /// How many more may stay open.
    left: u64,
    buffer: Box<[u8; USUAL]>,
}

struct Watched {
    place: ThreadNodes,
    /// Its directory.
    dir: String,
    schedstat: Option<Kept>,
    stat: Option<Kept>,
    /// How long it had run at the last look, ns.
    ran: Option<u64>,
}

impl Threads {
    /// The threads of these VMs, and how long they have run until now.
    pub(super) fn begin(root: &Root, vms: &[Vm]) -> Self {
        let left = sys::allow_open_files().map_or(FILES, |all| all.saturating_sub(OTHER_FILES));
        let mut files = Files { root: root.clone(), left, buffer: Box::new([0; USUAL]) };
        let mut all: BTreeMap<u32, Vec<Watched>> = vms.iter().map(|vm| (vm.pid, watched(vm))).collect();
        for thread in all.values_mut().flatten() {
            thread.ran = thread.has_run(&mut files);
        }
        Threads { vms: all, files }
    }

    /// Looks at all threads.
    pub(super) fn look(&mut self, host: &NumaHost) {
        for thread in self.vms.values_mut().flatten() {
            let Some(ran) = thread.has_run(&mut self.files) else { continue };
            let before = thread.ran.replace(ran);
            let new = before.map_or(0, |before| ran.saturating_sub(before));
            if new == 0 && thread.place.last.is_some() {
                // So it has not moved.
                continue;
            }
            let Some(node) = thread.cpu(&mut self.files).and_then(|cpu| host.node_of(cpu)) else { continue };
            let moved = thread.place.last.replace(node).is_some_and(|last| last != node);
            if new > 0 {
                add(&mut thread.place.ran, node, new);
                thread.place.uncertain += if moved { new } else { 0 };
            }
        }
    }

    /// The vCPUs of a VM, by index, and its vhost workers.
    pub(super) fn of(&self, pid: u32) -> (Vec<ThreadNodes>, Vec<ThreadNodes>) {
        let all = self.vms.get(&pid).into_iter().flatten().map(|thread| thread.place.clone());
        let (mut vcpus, workers): (Vec<_>, Vec<_>) = all.partition(|place| place.vcpu.is_some());
        vcpus.sort_unstable_by_key(|place| place.vcpu);
        (vcpus, workers)
    }
}

/// The threads of a VM.
fn watched(vm: &Vm) -> Vec<Watched> {
    let of_vmm = |tid: u32| format!("proc/{}/task/{tid}", vm.pid);
    let vcpus = vm.vcpus.iter().map(|vcpu| (vcpu.tid, Some(vcpu.index), &vcpu.cpus, of_vmm(vcpu.tid)));
    let workers = vm.workers.iter().map(|worker| {
        let tid = worker.tid;
        // A kernel thread is no thread of the VMM.
        let dir = if worker.kernel_thread { format!("proc/{tid}/task/{tid}") } else { of_vmm(tid) };
        (tid, None, &worker.cpus, dir)
    });
    let watched = |(tid, vcpu, cpus, dir): (u32, Option<u16>, &String, String)| {
        let allowed = cpus.parse().unwrap_or_default();
        let place = ThreadNodes { tid, vcpu, allowed, ..ThreadNodes::default() };
        Watched { place, dir, schedstat: None, stat: None, ran: None }
    };
    vcpus.chain(workers).map(watched).collect()
}

impl Watched {
    /// How long it has run, ns; `None` if it has ended.
    fn has_run(&mut self, files: &mut Files) -> Option<u64> {
        files.text(&mut self.schedstat, &self.dir, "schedstat")?.split_whitespace().next()?.parse().ok()
    }

    /// The CPU that it is on.
    fn cpu(&mut self, files: &mut Files) -> Option<u32> {
        Stat::new(files.text(&mut self.stat, &self.dir, "stat")?).last_cpu()
    }
}

impl Files {
    /// A file of a thread, which stays open in `slot` if it may. One that stays open is that of this thread, also if another one has its
    /// id meanwhile.
    fn text(&mut self, slot: &mut Option<Kept>, dir: &str, file: &str) -> Option<String> {
        if slot.is_none() {
            let kept = self.root.keep(&format!("{dir}/{file}"))?;
            if self.left == 0 {
                return Some(String::from_utf8_lossy(kept.bytes(&mut self.buffer)?).into_owned());
            }
            self.left -= 1;
            *slot = Some(kept);
        }
        Some(String::from_utf8_lossy(slot.as_ref()?.bytes(&mut self.buffer)?).into_owned())
    }
}
