//! Identifies threads and processes so that they are not mistaken for later ones with the same id.
//!
//! A thread is identified by its id and the tick at which it started. The kernel reuses an id only after it has used
//! all others, so the time between reading the start time and the system call that follows is too short for an id to
//! be reused.

use crate::privilege;
use crate::root::{self, Dir, Root};
use std::os::unix::fs::MetadataExt;
use teiji_model::resource::{ResourceError, Task};

/// `PF_EXITING` of `include/linux/sched.h`: the thread is ending. When its process is moved into another control group,
/// it stays where it is, without an error (`cgroup_migrate_add_task`).
const PF_EXITING: u64 = 0x4;
/// `PF_KTHREAD`: the task is a kernel thread.
const PF_KTHREAD: u64 = 0x0020_0000;

/// The thread or process that has this id now; `None` if there is none, or only one that is ending, or has ended and
/// has not been waited for. `/proc/<id>` is there for threads too, though `/proc` does not list them (proc(5)).
pub fn task(root: &Root, id: u32) -> Option<Task> {
    // Not `/proc/<id>/stat`: for that the kernel adds up the times of all threads of the process (`do_task_stat()`).
    root.text(&format!("proc/{id}/task/{id}/stat")).map(Stat)?.task(id)
}

/// The process of root or nobody that leads its process group, and whose command line has these arguments, one after the other;
/// `None` if there is none, or several. A process that it has forked has the same command line.
pub fn process_with(arguments: &[&[u8]]) -> Option<Task> {
    let root = Root::default();
    let wanted: Vec<u8> = arguments.iter().flat_map(|word| word.iter().copied().chain([0])).collect();
    let has_them = |id: u32| {
        let owner = std::fs::metadata(root.path(&format!("proc/{id}"))).map(|found| found.uid());
        if !owner.is_ok_and(|uid| uid == 0 || uid == privilege::NOBODY) {
            return false;
        }
        let pid = nix::unistd::Pid::from_raw(id as i32);
        if nix::unistd::getpgid(Some(pid)) != Ok(pid) {
            return false;
        }
        let line = std::fs::read(root.path(&format!("proc/{id}/cmdline"))).unwrap_or_default();
        // Each word ends with a 0, so they begin after one.
        line.windows(wanted.len() + 1).any(|part| part[0] == 0 && part[1..] == wanted[..])
    };
    let ids = root::list(&root.path("proc")).unwrap_or_default().into_iter();
    let mut found = ids.filter_map(|name| name.parse().ok()).filter(|id| has_them(*id));
    let only = found.next().filter(|_| found.next().is_none())?;
    task(&root, only)
}

/// Ok if the thread is still the same one.
pub(crate) fn alive(root: &Root, wanted: Task) -> Result<(), ResourceError> {
    match task(root, wanted.id) {
        Some(found) if found == wanted => Ok(()),
        _ => Err(gone(wanted)),
    }
}

/// The error for a thread that is not there any more.
pub(crate) fn gone(task: Task) -> ResourceError {
    ResourceError::Gone(format!("thread {}", task.id))
}

/// `/proc/<id>/stat`.
pub(crate) struct Stat(String);

impl Stat {
    /// Of this text.
    pub(crate) fn new(text: String) -> Self {
        Stat(text)
    }

    pub(crate) fn read(root: &Root, id: u32) -> Option<Self> {
        root.text(&format!("proc/{id}/stat")).map(Stat)
    }

    /// That of a thread; `tasks` is the directory of its process's threads.
    pub(crate) fn of_thread(tasks: &Dir, tid: u32) -> Option<Self> {
        tasks.text(&format!("{tid}/stat")).map(Stat)
    }

    /// What tells it from later ones with the same id; `None` if it is ending, as [`task`] says.
    pub(crate) fn task(&self, id: u32) -> Option<Task> {
        (!self.ending()).then(|| Some(Task { id, started: self.number(22)? })).flatten()
    }

    /// Its name, as in `comm`. Anyone may choose it.
    pub(crate) fn name(&self) -> Option<&str> {
        Some(self.0.split_once('(')?.1.rsplit_once(')')?.0)
    }

    /// Whether it is a kernel thread.
    pub(crate) fn is_kernel_thread(&self) -> bool {
        self.number::<u64>(9).is_some_and(|flags| flags & PF_KTHREAD != 0)
    }

    /// The CPU that it last ran on.
    pub(crate) fn last_cpu(&self) -> Option<u32> {
        self.number(39)
    }

    /// Whether it is ending, or has ended and has not been waited for.
    pub(crate) fn ending(&self) -> bool {
        self.field(3).is_none_or(|state| matches!(state, "Z" | "X" | "x"))
            || self.number::<u64>(9).is_some_and(|flags| flags & PF_EXITING != 0)
    }

    /// A field by its number in proc_pid_stat(5), from 3. The name, field 2, may contain anything: fields are
    /// counted from the last `)`, which closes it.
    pub(crate) fn field(&self, number: usize) -> Option<&str> {
        self.0.rsplit_once(')')?.1.split_whitespace().nth(number.checked_sub(3)?)
    }

    /// A field that is a number.
    pub(crate) fn number<T: std::str::FromStr>(&self, number: usize) -> Option<T> {
        self.field(number)?.parse().ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_cannot_forge_fields() {
        let stat = Stat("5 (a) S 1 2) R 9 8".to_owned());
        assert_eq!((stat.field(3), stat.number(4)), (Some("R"), Some(9)));
        assert_eq!(stat.number::<u64>(22), None);
        assert_eq!(stat.name(), Some("a) S 1 2"));
        assert_eq!(Stat("5 (CPU 0/KVM) S 1".to_owned()).name(), Some("CPU 0/KVM"));
        assert_eq!(Stat("5 (".to_owned()).name(), None);
    }

    /// The other file named `stat` has the times of all its threads, which the kernel adds up for each read.
    #[test]
    fn a_thread_is_told_by_the_file_of_its_own() {
        let dir = tempfile::tempdir().unwrap();
        let own = dir.path().join("proc/5/task/5");
        std::fs::create_dir_all(&own).unwrap();
        std::fs::write(own.join("stat"), format!("5 (a) S {}7 0", "0 ".repeat(18))).unwrap();
        let root = Root::new(dir.path());
        assert_eq!(task(&root, 5), Some(Task { id: 5, started: 7 }));
        assert_eq!(root.reads(), 1);
    }

    #[test]
    fn who_is_on_the_way_out_is_told() {
        let ending = |state: &str, flags: u64| Stat(format!("5 (a) {state} 1 1 1 0 -1 {flags} 0")).ending();
        assert!(!ending("S", 0x40_0000) && !ending("R", 0x1));
        assert!(ending("Z", 0) && ending("X", 0) && ending("R", 0x40_0004));
    }
}
