//! Whether a VMM copies its guest's memory, for a live migration or a snapshot: by the names of its threads.

use crate::root::Root;
use crate::task::Stat;
use std::collections::BTreeMap;
use teiji_model::usage::MOST_COPY_THREADS;

/// How the names of QEMU's threads begin that copy memory (migration/migration.h; before QEMU 9.1 migration/migration.c), if it gives its threads
/// names (`-name debug-threads=on`). On the host from which a VM migrates; those of a snapshot while the VM runs; and on the host to
/// which it migrates, if it runs there already (post-copy).
const NAMES: [&str; 9] = [
    "mig/src/main",
    "mig/src/send_",
    "mig/src/return",
    "mig/src/tls",
    "live_migration",
    "mig/snapshot",
    "bg_snapshot",
    "mig/dst/fault",
    "mig/dst/listen",
];
/// Threads of a VMM whose names are read; more are left out.
const MAX_THREADS: usize = 1024;

/// The threads of a VMM that copy the guest's memory.
#[derive(Default)]
pub(crate) struct CopyThreads {
    thread_count: Option<u64>,
    /// All threads; those that copy memory have names.
    threads: BTreeMap<u32, Option<String>>,
}

impl CopyThreads {
    /// Looks for them; `stat` is that of the VMM. Threads are only listed if there were some, or their number has changed, and only the names of
    /// new ones are read.
    pub(crate) fn look(&mut self, root: &Root, pid: u32, stat: &Stat) {
        // num_threads
        let count = stat.number(20);
        if count.is_some() && count == self.thread_count && self.names().next().is_none() {
            return;
        }
        self.thread_count = count;
        let tasks = root.dir(&format!("proc/{pid}/task"));
        let mut threads = BTreeMap::new();
        for tid in tasks.iter().flat_map(|tasks| tasks.threads()).take(MAX_THREADS) {
            let known = self.threads.remove(&tid);
            let name = known.unwrap_or_else(|| {
                let name = tasks.as_ref()?.text(&format!("{tid}/comm"))?.trim_end().to_owned();
                NAMES.iter().any(|start| name.starts_with(start)).then_some(name)
            });
            threads.insert(tid, name);
        }
        self.threads = threads;
    }

    /// Their names at the last look, at most [`MOST_COPY_THREADS`]. Untrusted text.
    pub(crate) fn names(&self) -> impl Iterator<Item = &String> {
        self.threads.values().flatten().take(MOST_COPY_THREADS)
    }

    /// The next look reads all names again.
    pub(crate) fn forget(&mut self) {
        *self = CopyThreads::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::path::Path;

    /// A VMM with threads of these ids and names.
    fn vmm(root: &Path, threads: &[(u32, &str)]) -> Stat {
        let _ = fs::remove_dir_all(root.join("proc"));
        for (tid, name) in threads {
            let dir = root.join(format!("proc/10/task/{tid}"));
            fs::create_dir_all(&dir).unwrap();
            fs::write(dir.join("comm"), format!("{name}\n")).unwrap();
        }
        let fields = (4..20).map(|_| "0 ").collect::<String>();
        Stat::new(format!("10 (qemu) S {fields}{} 0 5", threads.len()))
    }

    #[test]
    fn threads_that_copy_memory_are_found_and_missed() {
        let dir = tempfile::tempdir().unwrap();
        let root = Root::new(dir.path());
        let mut copying = CopyThreads::default();
        let mut look = |threads: &[(u32, &str)], forget| {
            let stat = vmm(dir.path(), threads);
            if forget {
                copying.forget();
            }
            copying.look(&root, 10, &stat);
            copying.names().cloned().collect::<Vec<_>>()
        };
        let none: [&str; 0] = [];
        // An incoming VM that does not run yet.
        assert_eq!(look(&[(10, "qemu"), (11, "CPU 0/KVM"), (12, "mig/src/recv_0")], false), none);
        let migrates = [(10, "qemu"), (11, "CPU 0/KVM"), (13, "mig/src/main"), (14, "mig/src/send_0")];
        assert_eq!(look(&migrates, false), ["mig/src/main", "mig/src/send_0"]);
        // Its end is seen, although there are as many threads as before.
        assert_eq!(look(&[(10, "qemu"), (11, "CPU 0/KVM"), (15, "worker"), (16, "worker")], false), none);
        // As many threads as before, and none copied memory: not before it is time.
        let again = [(10, "qemu"), (11, "CPU 0/KVM"), (15, "worker"), (17, "live_migration")];
        assert_eq!(look(&again, false), none);
        assert_eq!(look(&again, true), ["live_migration"]);
        let many: Vec<(u32, &str)> = (10..40).map(|tid| (tid, "mig/src/main")).collect();
        assert_eq!(look(&many, false).len(), MOST_COPY_THREADS);
    }
}
