//! Two network namespaces joined by a pair of veth devices: `outside` has 10.213.0.1 and fd13::1, `inside` .2 and ::2.

use nix::sched::{CloneFlags, setns};
use std::fs::File;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Removed when it is dropped, with all devices in them. One test at a time has them, as probes see those of all.
pub struct Namespaces {
    names: [String; 2],
    _alone: MutexGuard<'static, ()>,
}

fn ip(arguments: &str) {
    let output = Command::new("ip").args(arguments.split_whitespace()).output().unwrap();
    assert!(output.status.success(), "ip {arguments}: {}", String::from_utf8_lossy(&output.stderr));
}

impl Namespaces {
    pub fn new() -> Namespaces {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        static ALONE: Mutex<()> = Mutex::new(());
        let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let names = ["a", "b"].map(|end| format!("teiji-{}-{number}{end}", std::process::id()));
        for name in &names {
            ip(&format!("netns add {name}"));
        }
        let made = Namespaces { names, _alone: alone };
        let [a, b] = &made.names;
        ip(&format!("link add veth0 netns {a} type veth peer name veth0 netns {b}"));
        for (name, host) in made.names.iter().zip([1, 2]) {
            ip(&format!("-n {name} addr add 10.213.0.{host}/24 dev veth0"));
            ip(&format!("-n {name} addr add fd13::{host}/64 dev veth0 nodad"));
            ip(&format!("-n {name} link set lo up"));
            ip(&format!("-n {name} link set veth0 up"));
        }
        made
    }

    /// Runs `f` in a thread in one of them.
    pub fn run<T: Send>(&self, inside: bool, f: impl FnOnce() -> T + Send) -> T {
        std::thread::scope(|scope| {
            scope
                .spawn(|| {
                    self.enter(inside);
                    f()
                })
                .join()
                .unwrap()
        })
    }

    /// Moves the calling thread there.
    pub fn enter(&self, inside: bool) {
        let namespace = File::open(format!("/run/netns/{}", self.names[usize::from(inside)])).unwrap();
        setns(namespace, CloneFlags::CLONE_NEWNET).unwrap();
    }
}

impl Drop for Namespaces {
    fn drop(&mut self) {
        for name in &self.names {
            let _ = Command::new("ip").args(["netns", "del", name]).output();
        }
    }
}
