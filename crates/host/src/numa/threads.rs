//! On which node threads run: `schedstat` says how long a thread has run in all, and `stat` on which CPU it is, or was last
//! (proc_pid_stat(5), Documentation/scheduler/sched-stats.rst). What it has run between two looks counts for the node of the second
//! one. So only a thread that moves in between is counted wrongly: what it ran before the move counts for the new node. Over many moves
//! in both directions these errors mostly cancel.

use crate::kept_files::{self, KeptFiles};
use crate::root::{Kept, Root, USUAL};
use crate::task::Stat;
use std::collections::BTreeMap;
use teiji_model::host::Vm;
use teiji_model::numa::{NumaHost, ThreadNodes, add};

/// The threads of VMs.
pub(super) struct Threads {
    /// By process id.
    vms: BTreeMap<u32, Vec<Watched>>,
    root: Root,
    /// How many more files may stay open.
    left: usize,
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
        let mut threads = Threads {
            vms: vms.iter().map(|vm| (vm.pid, watched(vm))).collect(),
            root: root.clone(),
            left: kept_files::most(),
            buffer: Box::new([0; USUAL]),
        };
        threads.each(|thread, files| thread.ran = thread.has_run(files));
        threads
    }

    /// Does something with each thread and its files.
    fn each(&mut self, mut with: impl FnMut(&mut Watched, &mut KeptFiles<'_>)) {
        let mut files = KeptFiles { root: &self.root, left: self.left, buffer: &mut self.buffer };
        self.vms.values_mut().flatten().for_each(|thread| with(thread, &mut files));
        self.left = files.left;
    }

    /// Looks at all threads.
    pub(super) fn look(&mut self, host: &NumaHost) {
        self.each(|thread, files| thread.look(host, files));
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
    fn look(&mut self, host: &NumaHost, files: &mut KeptFiles<'_>) {
        let Some(ran) = self.has_run(files) else { return };
        let before = self.ran.replace(ran);
        let new = before.map_or(0, |before| ran.saturating_sub(before));
        if new == 0 && self.place.last.is_some() {
            // So it has not moved.
            return;
        }
        let Some(node) = self.cpu(files).and_then(|cpu| host.node_of(cpu)) else { return };
        let moved = self.place.last.replace(node).is_some_and(|last| last != node);
        if new > 0 {
            add(&mut self.place.ran, node, new);
            self.place.uncertain += if moved { new } else { 0 };
        }
    }

    /// How long it has run, ns; `None` if it has ended.
    fn has_run(&mut self, files: &mut KeptFiles<'_>) -> Option<u64> {
        let text = files.text(&mut self.schedstat, || format!("{}/schedstat", self.dir))?;
        text.split_whitespace().next()?.parse().ok()
    }

    /// The CPU that it is on.
    fn cpu(&mut self, files: &mut KeptFiles<'_>) -> Option<u32> {
        let text = files.bytes(&mut self.stat, || format!("{}/stat", self.dir))?;
        // The name of a thread may be no UTF-8.
        Stat::new(String::from_utf8_lossy(text).into_owned()).last_cpu()
    }
}
