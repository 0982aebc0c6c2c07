//! The cgroup v2 hierarchy: where it is mounted, which group a process is in, and which other processes are
//! (Documentation/admin-guide/cgroup-v2.rst).
//!
//! Groups are named by their path below the mount, as in `/proc/<pid>/cgroup`: `/machine.slice/x.scope`, `/` being
//! the root group.

use crate::root::Root;
use crate::task::Stat;
use std::cell::OnceCell;
use std::collections::BTreeSet;

/// Groups that teiji makes are below this one.
pub(crate) const OWN: &str = "/teiji";

/// The hierarchy of a host.
pub(crate) struct Hierarchy<'a> {
    root: &'a Root,
    /// Where it is mounted, relative to the root, without `/` at either end.
    mount: String,
    /// Whether it has the CPU controller; set at the first query.
    has_cpu: OnceCell<bool>,
}

impl<'a> Hierarchy<'a> {
    /// The one that is mounted.
    ///
    /// # Errors
    /// Why there is none, for people.
    pub(crate) fn find(root: &'a Root) -> Result<Self, &'static str> {
        let mounts = root.text("proc/self/mountinfo").unwrap_or_default();
        let mut partial = false;
        for line in mounts.lines() {
            // proc_pid_mountinfo(5): … root, mount point, options, optional fields, `-`, type, …
            let Some((before, after)) = line.split_once(" - ") else { continue };
            let mut fields = before.split(' ').skip(3);
            let (Some(top), Some(point)) = (fields.next(), fields.next()) else { continue };
            match (after.split(' ').next(), top) {
                (Some("cgroup2"), "/") => {
                    let mount = unescape(point).trim_matches('/').to_owned();
                    return Ok(Hierarchy { root, mount, has_cpu: OnceCell::new() });
                }
                (Some("cgroup2"), _) => partial = true,
                _ => {}
            }
        }
        Err(match partial {
            true => {
                "only a part of the cgroup v2 hierarchy is mounted, as in a container; run teiji on the host itself"
            }
            false => {
                "cgroup v2 is not mounted; mount -t cgroup2 none /sys/fs/cgroup, or boot with \
                 systemd.unified_cgroup_hierarchy=1"
            }
        })
    }

    /// A file of a group, relative to the root.
    pub(crate) fn path(&self, group: &str, file: &str) -> String {
        let group = group.trim_matches('/');
        let between = if group.is_empty() { "" } else { "/" };
        format!("{}/{group}{between}{file}", self.mount)
    }

    /// Whether there is such a group.
    pub(crate) fn exists(&self, group: &str) -> bool {
        self.root.exists(&self.path(group, "cgroup.procs"))
    }

    /// Whether groups of this hierarchy can control CPU time at all.
    pub(crate) fn has_cpu(&self) -> bool {
        *self.has_cpu.get_or_init(|| {
            let all = self.root.text(&self.path("/", "cgroup.controllers")).unwrap_or_default();
            all.split_whitespace().any(|c| c == "cpu")
        })
    }

    /// The groups that the threads of a process are in; more than one for a VM that libvirt started. Empty if the
    /// process is gone.
    ///
    /// A thread that is ending when its process is moved stays where it is, and is listed until the kernel has released it.
    /// So if there are several groups, those of such threads do not count.
    pub(crate) fn of_threads(&self, pid: u32) -> BTreeSet<String> {
        let Some(tasks) = self.root.dir(&format!("proc/{pid}/task")) else { return BTreeSet::new() };
        let group = |tid: u32| Some((tid, group_in(&tasks.text(&format!("{tid}/cgroup"))?)?));
        let mut threads: Vec<(u32, String)> = tasks.threads().into_iter().filter_map(group).collect();
        if threads.windows(2).any(|two| two[0].1 != two[1].1) {
            // Asked after its group was read: who is not ending now was not when the process was moved, and moved with it.
            let stays = |tid| Stat::of_thread(&tasks, tid).is_some_and(|stat| !stat.ending());
            threads.retain(|(tid, _)| stays(*tid));
        }
        threads.into_iter().map(|(_, group)| group).collect()
    }

    /// The processes in a group and in those below it; `None` if they cannot be listed.
    pub(crate) fn members(&self, group: &str) -> Option<BTreeSet<u32>> {
        let text = self.root.text(&self.path(group, "cgroup.procs"))?;
        let mut all: BTreeSet<u32> = text.split_whitespace().filter_map(|pid| pid.parse().ok()).collect();
        for name in self.children(group) {
            // A threaded group does not list its processes (EOPNOTSUPP); the nearest group above it that is not
            // threaded does. A group that has just been removed has none.
            all.extend(self.members(&format!("{}/{name}", group.trim_end_matches('/'))).unwrap_or_default());
        }
        Some(all)
    }

    /// Names of the groups just below one.
    pub(crate) fn children(&self, group: &str) -> Vec<String> {
        let dir = self.path(group, "");
        let mut names = self.root.names(&dir);
        names.retain(|name| self.root.exists(&format!("{dir}/{name}/cgroup.procs")));
        names
    }

    /// A file of the nearest group, from `group` upwards, that has this file, without surrounding blanks.
    pub(crate) fn nearest(&self, group: &str, file: &str) -> Option<String> {
        let mut group = group;
        loop {
            if let Some(text) = self.root.text(&self.path(group, file)) {
                return Some(text.trim().to_owned());
            }
            group = parent(group)?;
        }
    }
}

/// The number after a key in a flat keyed file, such as `cpu.stat`; 0 if there is none.
pub(crate) fn value(text: &str, key: &str) -> u64 {
    let line = text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(' '));
    line.and_then(|number| number.trim().parse().ok()).unwrap_or(0)
}

/// The group of the cgroup v2 hierarchy in the text of a `/proc/<pid>/cgroup`.
pub(crate) fn group_in(text: &str) -> Option<String> {
    text.lines().find_map(|l| l.strip_prefix("0::")).map(str::to_owned)
}

/// The group above; `None` for the root.
pub(crate) fn parent(group: &str) -> Option<&str> {
    match group.rsplit_once('/')? {
        (_, "") => None,
        ("", _) => Some("/"),
        (above, _) => Some(above),
    }
}

/// Whether `group` is one that teiji made, or would make.
pub(crate) fn is_own(group: &str) -> bool {
    group.strip_prefix(OWN).is_some_and(|rest| rest.len() > 1 && rest.starts_with('/'))
}

/// Whether a path names a group: from `/`, each part a name. Any other path could lead out of the mount.
pub(crate) fn is_group(path: &str) -> bool {
    let name = |part: &str| !matches!(part, "" | "." | "..") && !part.contains(['\0', '\n']);
    path == "/" || path.strip_prefix('/').is_some_and(|rest| rest.split('/').all(name))
}

/// The deepest group that all of these are in or below. For libvirt's VMs that is the scope: the groups between it and
/// the threads have no siblings to share CPU time with.
pub(crate) fn common(groups: &BTreeSet<String>) -> Option<String> {
    let (first, last) = (groups.first()?, groups.last()?);
    // The set is sorted, so a prefix that its first and last element share is shared by all.
    let parts = first.split('/').zip(last.split('/')).take_while(|(a, b)| a == b).map(|(a, _)| a);
    let path = parts.collect::<Vec<_>>().join("/");
    let path = path.strip_suffix(".scope/libvirt").map(|scope| format!("{scope}.scope")).unwrap_or(path);
    Some(if path.is_empty() { "/".to_owned() } else { path })
}

/// mountinfo writes blanks, tabs, newlines and backslashes as octal.
fn unescape(text: &str) -> String {
    text.replace("\\040", " ").replace("\\011", "\t").replace("\\012", "\n").replace("\\134", "\\")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(groups: &[&str]) -> BTreeSet<String> {
        groups.iter().map(|g| (*g).to_owned()).collect()
    }

    #[test]
    fn what_threads_have_in_common() {
        let scope = "/machine.slice/machine-qemu\\x2d1\\x2da.scope";
        let of = |part: &str| format!("{scope}/libvirt/{part}");
        assert_eq!(common(&set(&[&of("emulator"), &of("vcpu0"), &of("vcpu1")])).as_deref(), Some(scope));
        assert_eq!(common(&set(&["/a/b"])).as_deref(), Some("/a/b"));
        assert_eq!(common(&set(&["/a/bc", "/a/bd"])).as_deref(), Some("/a"));
        assert_eq!(common(&set(&["/a", "/b"])).as_deref(), Some("/"));
        assert_eq!(common(&set(&["/"])).as_deref(), Some("/"));
        assert_eq!(common(&set(&[])), None);
    }

    #[test]
    fn a_thread_that_is_ending_was_not_moved_with_its_process() {
        let dir = tempfile::tempdir().unwrap();
        let root = Root::new(dir.path());
        let hierarchy = Hierarchy { root: &root, mount: String::new(), has_cpu: OnceCell::new() };
        let thread = |tid: u32, group: &str, flags: u64| {
            let own = dir.path().join(format!("proc/5/task/{tid}"));
            std::fs::create_dir_all(&own).unwrap();
            std::fs::write(own.join("cgroup"), format!("0::{group}\n")).unwrap();
            std::fs::write(own.join("stat"), format!("{tid} (a) S 1 1 1 0 -1 {flags} 0")).unwrap();
        };
        let ending = 0x4;
        thread(5, "/new", 0);
        thread(6, "/old", ending);
        thread(7, "/new", 0);
        assert_eq!(hierarchy.of_threads(5), set(&["/new"]));
        thread(6, "/old", 0);
        assert_eq!(hierarchy.of_threads(5), set(&["/new", "/old"]), "nobody has moved the process");
        // Its stat has gone since its group was read.
        std::fs::remove_file(dir.path().join("proc/5/task/6/stat")).unwrap();
        assert_eq!(hierarchy.of_threads(5), set(&["/new"]));
        for (tid, group) in [(5, "/new"), (6, "/old"), (7, "/new")] {
            thread(tid, group, ending);
        }
        assert_eq!(hierarchy.of_threads(5), set(&[]), "the process is going");
    }

    #[test]
    fn what_is_no_group_is_told() {
        for good in ["/", "/a", "/a/b.scope", "/x..y"] {
            assert!(is_group(good), "{good}");
        }
        for bad in ["", "a", "/..", "/a/../b", "/a/..", "/a//b", "/a/", "/./a", "/a\nb"] {
            assert!(!is_group(bad), "{bad}");
        }
        assert!(is_own("/teiji/vm-1") && !is_own("/teiji") && !is_own("/teiji/") && !is_own("/teiji2/a"));
    }

    #[test]
    fn parents() {
        assert_eq!((parent("/a/b"), parent("/a"), parent("/")), (Some("/a"), Some("/"), None));
    }
}
