//! On which node threads run: `schedstat` says how long a thread has run in all, and `stat` on which CPU it is, or was last
//! (proc_pid_stat(5), Documentation/scheduler/sched-stats.rst).
//!
//! What a thread ran between two looks that found it on one node counts there. If the second look found it on another node:
//!
//! - If it slept at the first look, all of it counts for the node where it is: where it woke up.
//! - If it could run at the first look, the time is divided. The kernel adds to the run time of a thread at ticks of its CPU and when it leaves
//!   the CPU, which may be late (a CPU of `nohz_full` has a tick a second, one that a hypervisor lets stand still has none). So what is
//!   more than the time between the looks ran before the first one, on the former node. Of the rest, half counts for each.

use crate::kept_files::{self, KeptFiles};
use crate::root::{Kept, Root, USUAL};
use crate::task::Stat;
use crate::usage::now;
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
    /// How long it had run at the last look, ns, and when that was.
    ran: Option<u64>,
    looked: u64,
    /// Whether it ran then, or could.
    runs: bool,
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
        Watched { place, dir, schedstat: None, stat: None, ran: None, looked: now(), runs: false }
    };
    vcpus.chain(workers).map(watched).collect()
}

impl Watched {
    fn look(&mut self, host: &NumaHost, files: &mut KeptFiles<'_>) {
        let Some(ran) = self.has_run(files) else { return };
        let at = now();
        let between = at.saturating_sub(std::mem::replace(&mut self.looked, at));
        let before = self.ran.replace(ran);
        let new = before.map_or(0, |before| ran.saturating_sub(before));
        let Some((cpu, runs)) = self.state(files) else { return };
        let ran_before = std::mem::replace(&mut self.runs, runs);
        let Some(node) = host.node_of(cpu) else { return };
        let former = self.place.last.replace(node).unwrap_or(node);
        let here = if former != node && ran_before { new.min(between) / 2 } else { new };
        for (node, ran) in [(node, here), (former, new - here)] {
            if ran > 0 {
                add(&mut self.place.ran, node, ran);
            }
        }
        if former != node {
            self.place.uncertain = self.place.uncertain.saturating_add(here);
        }
    }

    /// How long it has run, ns; `None` if it has ended.
    fn has_run(&mut self, files: &mut KeptFiles<'_>) -> Option<u64> {
        let text = files.text(&mut self.schedstat, || format!("{}/schedstat", self.dir))?;
        text.split_whitespace().next()?.parse().ok()
    }

    /// The CPU that it is on, or was last, and whether it runs, or could.
    fn state(&mut self, files: &mut KeptFiles<'_>) -> Option<(u32, bool)> {
        let text = files.bytes(&mut self.stat, || format!("{}/stat", self.dir))?;
        // The name of a thread may be no UTF-8.
        let stat = Stat::new(String::from_utf8_lossy(text).into_owned());
        Some((stat.last_cpu()?, stat.field(3) == Some("R")))
    }
}
