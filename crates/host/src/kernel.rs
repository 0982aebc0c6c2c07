//! Information of the running kernel about itself and single threads: names, the boot, the time, devices by index, and whether
//! a process is still the same as before.

use crate::Root;
use crate::task::task;
use nix::sys::stat::{fstat, stat};
use nix::time::{ClockId, clock_gettime};
use nix::unistd::{SysconfVar, sysconf};
use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use teiji_model::resource::Task;

/// The file with the id of this boot.
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// The host's name; empty if it cannot be read.
pub fn name() -> String {
    kernel_setting(&Root::default(), "hostname")
}

/// The kernel's release, as `uname -r` prints it; empty if it cannot be read.
pub fn release() -> String {
    Root::default().release()
}

impl Root {
    /// The kernel's release; empty if it cannot be read.
    pub(crate) fn release(&self) -> String {
        kernel_setting(self, "osrelease")
    }
}

fn kernel_setting(root: &Root, file: &str) -> String {
    let text = root.text(&format!("proc/sys/kernel/{file}"));
    text.map(|text| text.trim().to_owned()).unwrap_or_default()
}

/// The name of the scheduler of sched_ext that is in use; `None` if there is none.
pub fn sched_ext_scheduler() -> Option<String> {
    let root = Root::default();
    let state = root.text("sys/kernel/sched_ext/state")?;
    (state.trim() != "disabled")
        .then(|| root.text("sys/kernel/sched_ext/root/ops").unwrap_or_default().trim().to_owned())
}

/// The program of this process: a name that stays valid when its file is replaced, as an upgrade does.
pub fn own_program() -> &'static Path {
    Path::new("/proc/self/exe")
}

/// The id of this boot, which differs from that of every other boot.
///
/// # Errors
/// The file that cannot be read, and why not.
pub fn boot_id() -> Result<String, (PathBuf, io::Error)> {
    let read = std::fs::read_to_string(BOOT_ID);
    read.map(|text| text.trim().to_owned()).map_err(|why| (PathBuf::from(BOOT_ID), why))
}

/// Network devices of this network namespace by interface index, ascending.
pub fn devices() -> Vec<(u32, String)> {
    let root = Root::default();
    let index = |name: &String| root.number(&format!("sys/class/net/{name}/ifindex"));
    let names = root.names("sys/class/net").into_iter();
    let mut all: Vec<_> = names.filter_map(|name| Some((u32::try_from(index(&name)?).ok()?, name))).collect();
    all.sort();
    all
}

/// Seconds since 1970; 0 if the clock is set to an earlier time.
pub fn unix_time() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

/// CPU time that this thread has used so far; 0 if the kernel does not tell.
pub fn cpu_time() -> Duration {
    clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).map_or(Duration::ZERO, Duration::from)
}

/// How long after the boot a process or thread was started; `None` if the kernel does not tell the length of its ticks.
pub fn started(task: Task) -> Option<Duration> {
    let per_second = sysconf(SysconfVar::CLK_TCK).ok().flatten().and_then(|n| u64::try_from(n).ok())?;
    (per_second > 0).then(|| Duration::from_nanos(task.started.saturating_mul(1_000_000_000 / per_second)))
}

/// A thread's name, at most 15 bytes, if the thread is still there. Untrusted.
pub fn thread_name(tid: u32) -> Option<Vec<u8>> {
    let name = Root::default().bytes(&format!("proc/{tid}/comm"))?;
    Some(name.into_iter().take(15).take_while(|&b| b != b'\n').collect())
}

/// Whether the links of an open folder name this process's open files, as `/dev/stdout` and `/proc/self/fd/1` do. It has to be
/// that folder itself: a path proves nothing, as whoever owns a folder on the way may have replaced it since, and in a mount
/// namespace of his own anybody may have a `/dev`.
pub fn names_own_files(folder: &impl AsFd) -> bool {
    let Ok(folder) = fstat(folder) else { return false };
    let is_it = |path| stat(path).is_ok_and(|it| (it.st_dev, it.st_ino) == (folder.st_dev, folder.st_ino));
    ["/dev", "/proc/self/fd", "/proc/thread-self/fd"].into_iter().any(is_it)
}

/// A process that is watched. An open file of its folder in `/proc` fails once the process has ended, and never refers
/// to a later process with the same id.
#[derive(Debug)]
pub struct Process(Option<File>);

impl Process {
    /// The process with this id, if there is one.
    pub fn of(pid: u32) -> Process {
        Process(File::open(format!("/proc/{pid}/comm")).ok())
    }

    /// The open file, which can be handed to another process; `None` if there was no such process.
    pub fn file(&self) -> Option<&File> {
        self.0.as_ref()
    }

    /// Whether the process still exists.
    pub fn there(&self) -> bool {
        self.0.as_ref().is_some_and(|file| file.read_at(&mut [0; 1], 0).is_ok())
    }
}

/// A process whose file another process has opened.
impl From<File> for Process {
    fn from(file: File) -> Process {
        Process(Some(file))
    }
}

impl Root {
    /// When a process was started, in clock ticks since boot; `None` if it has ended.
    pub fn started(&self, pid: u32) -> Option<u64> {
        task(self, pid).map(|task| task.started)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_there_until_it_ends() {
        let mut child = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
        let process = Process::of(child.id());
        assert!(process.there());
        assert_eq!(thread_name(std::process::id()).map(|name| name.len() <= 15), Some(true));
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(!process.there());
        assert!(!Process::of(u32::MAX).there() && thread_name(u32::MAX).is_none());
    }

    #[test]
    fn the_kernel_tells_its_release_and_boot() {
        assert!(release().contains('.') && boot_id().unwrap().len() == 36);
        assert!(devices().iter().any(|(index, name)| *index == 1 && name == "lo"));
    }
}
