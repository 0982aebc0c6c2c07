//! On which node threads run: `schedstat` says how long a thread has run in all, and `stat` on which CPU it is, or was last
//! (proc_pid_stat(5), Documentation/scheduler/sched-stats.rst). What it has run between two looks counts for the node of the second
//! one, so only what it ran in between before it moved is counted wrongly, and moves there and back cancel out.

use crate::root::{Kept, Root, USUAL};
use crate::sys;
use crate::task::Stat;
use std::collections::BTreeMap;
use teiji_model::host::Vm;
use teiji_model::numa::{NumaHost, ThreadPlacement, add};

/// The threads of VMs.
pub(super) struct Threads {
    root: Root,
    /// By process id.
    vms: BTreeMap<u32, Vec<Watched>>,
    buffer: Box<[u8; USUAL]>,
}

struct Watched {
    place: ThreadPlacement,
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
        // Two files of each thread stay open. If there may not be so many, the others are opened at each look.
        let _ = sys::allow_open_files();
        let mut buffer = Box::new([0; USUAL]);
        let mut all: BTreeMap<u32, Vec<Watched>> = vms.iter().map(|vm| (vm.pid, watched(vm))).collect();
        for thread in all.values_mut().flatten() {
            thread.ran = thread.has_run(root, &mut buffer);
        }
        Threads { root: root.clone(), vms: all, buffer }
    }

    /// Looks at all threads.
    pub(super) fn look(&mut self, host: &NumaHost) {
        for thread in self.vms.values_mut().flatten() {
            let Some(ran) = thread.has_run(&self.root, &mut self.buffer) else { continue };
            let before = thread.ran.replace(ran);
            let new = before.map_or(0, |before| ran.saturating_sub(before));
            if new == 0 && thread.place.last.is_some() {
                // So it has not moved.
                continue;
            }
            let cpu = thread.cpu(&self.root, &mut self.buffer);
            let Some(node) = cpu.and_then(|cpu| host.node_of(cpu)) else { continue };
            thread.place.last = Some(node);
            if new > 0 {
                add(&mut thread.place.ran, node, new);
            }
        }
    }

    /// The vCPUs of a VM, by index, and its vhost workers.
    pub(super) fn of(&self, pid: u32) -> (Vec<ThreadPlacement>, Vec<ThreadPlacement>) {
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
        let place = ThreadPlacement { tid, vcpu, allowed, ..ThreadPlacement::default() };
        Watched { place, dir, schedstat: None, stat: None, ran: None }
    };
    vcpus.chain(workers).map(watched).collect()
}

impl Watched {
    /// How long it has run, ns; `None` if it has ended.
    fn has_run(&mut self, root: &Root, buffer: &mut [u8; USUAL]) -> Option<u64> {
        let text = text(root, &mut self.schedstat, &self.dir, "schedstat", buffer)?;
        text.split_whitespace().next()?.parse().ok()
    }

    /// The CPU that it is on.
    fn cpu(&mut self, root: &Root, buffer: &mut [u8; USUAL]) -> Option<u32> {
        Stat::new(text(root, &mut self.stat, &self.dir, "stat", buffer)?).last_cpu()
    }
}

/// A file of a thread, which stays open in `slot` if it may. One that stays open is that of this thread, also if another one has
/// its id meanwhile.
fn text(
    root: &Root,
    slot: &mut Option<Kept>,
    dir: &str,
    file: &str,
    buffer: &mut [u8; USUAL],
) -> Option<String> {
    if slot.is_none() {
        *slot = root.keep(&format!("{dir}/{file}"));
    }
    let bytes = slot.as_ref()?.bytes(buffer)?;
    Some(String::from_utf8_lossy(bytes).into_owned())
}
