//! A generated host: a tree of files that stands for `/`.
#![allow(dead_code, missing_docs, clippy::unwrap_used)] // each test file uses a part of it

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use teiji_host::Root;
use tempfile::TempDir;

pub struct FakeHost(TempDir);

impl FakeHost {
    pub fn new() -> Self {
        let host = FakeHost(tempfile::tempdir().unwrap());
        fs::create_dir_all(host.0.path().join("proc")).unwrap();
        host
    }

    pub fn root(&self) -> Root {
        Root::new(self.0.path())
    }

    pub fn file(&self, path: &str, contents: impl AsRef<[u8]>) {
        let path = self.0.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, contents).unwrap();
    }

    pub fn root_path(&self, path: &str) -> PathBuf {
        self.0.path().join(path)
    }

    pub fn text(&self, path: &str) -> String {
        fs::read_to_string(self.root_path(path)).unwrap()
    }

    pub fn link(&self, path: &str, target: &str) {
        let path = self.0.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        symlink(Path::new(target), path).unwrap();
    }

    pub fn thread(&self, dir: &str, comm: &str, cpus: &str, last: u32, flags: u64) {
        self.file(&format!("{dir}/comm"), format!("{comm}\n"));
        self.file(
            &format!("{dir}/status"),
            format!("Name:\t{comm}\nUid:\t0\t0\t0\t0\nVmRSS:\t   2048 kB\nCpus_allowed_list:\t{cpus}\n"),
        );
        let zeros = "0 ".repeat(29);
        self.stat(dir, &format!("1 ({comm}) S 1 1 1 0 -1 {flags} {zeros}{last} 0 0\n"));
    }

    /// The `stat` of a thread. If `dir` is its directory in `/proc` itself, the thread also is in its own `task`.
    pub fn stat(&self, dir: &str, stat: &str) {
        self.file(&format!("{dir}/stat"), stat);
        if let Some(id) = dir.strip_prefix("proc/").filter(|id| !id.contains('/')) {
            self.file(&format!("{dir}/task/{id}/stat"), stat);
        }
    }

    pub fn task(&self, pid: u32, tid: u32, comm: &str, cpus: &str, last: u32) {
        self.thread(&format!("proc/{pid}/task/{tid}"), comm, cpus, last, 0);
    }

    pub fn vmm(&self, pid: u32, cmdline: &str, fds: &[(u32, &str)]) {
        self.thread(&format!("proc/{pid}"), "qemu-system-x86", "0-3", 0, 0);
        self.task(pid, pid, "qemu-system-x86", "0-3", 0);
        self.file(&format!("proc/{pid}/cmdline"), cmdline.replace(' ', "\0"));
        for (fd, target) in fds {
            self.link(&format!("proc/{pid}/fd/{fd}"), target);
        }
    }

    pub fn tap(&self, pid: u32, fd: u32, name: &str, index: u32) {
        self.link(&format!("proc/{pid}/fd/{fd}"), "/dev/net/tun");
        self.file(&format!("proc/{pid}/fdinfo/{fd}"), format!("pos:\t0\nflags:\t0104002\niff:\t{name}\n"));
        self.file(&format!("sys/class/net/{name}/ifindex"), format!("{index}\n"));
    }
}

/// The open files of a VMM with two vCPUs.
pub const KVM: [(u32, &str); 3] =
    [(9, "anon_inode:kvm-vm"), (10, "anon_inode:kvm-vcpu:0"), (11, "anon_inode:kvm-vcpu:1")];
