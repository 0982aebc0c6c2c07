//! Tells when something on the host has changed that a plan depends on, so that a daemon need not look at the whole
//! host again and again. Changes nothing, and reads little: what has changed is found by an observation.
//!
//! | source | module | tells |
//! | --- | --- | --- |
//! | rtnetlink, group `RTNLGRP_LINK` | `devices` | network devices that appear, vanish, get another name or master, or gain or lose their carrier |
//! | uevents of `/dev/kvm` (`kvm_uevent_notify_change` in virt/kvm/kvm_main.c) | `machines` | VMs that a process has created or destroyed |
//! | process events (drivers/connector/cn_proc.c) | `processes` | threads that start, end, or get a name |
//! | inotify on control groups | `groups` | groups that are made or removed |
//! | inotify on a folder | `files` | files that another process has written |
//!
//! All of them are hints: a kernel may lack a source ([`Watch::open`] says which), and a queue that overflows loses
//! events ([`Hint::Lost`]). So whoever uses them also observes the host at longer intervals.
//!
//! Only the kernel's own messages count: any process may send a message to a netlink socket whose address it guesses.

mod devices;
mod files;
mod groups;
mod machines;
mod processes;

use devices::Devices;
use files::Files;
use groups::Groups;
pub use groups::MAX_GROUPS;
use machines::Machines;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{MsgFlags, NetlinkAddr, bind, recvfrom, setsockopt, sockopt};
use processes::Processes;
use rustix::net::{AddressFamily, Protocol, SocketFlags, SocketType, socket_with};
use std::collections::BTreeSet;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

/// Something that may have changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Hint {
    /// A network device has appeared, vanished, got another name or master, or gained or lost its carrier.
    Device,
    /// A process has created or destroyed a KVM virtual machine.
    Machine {
        /// Its process id.
        pid: u32,
    },
    /// A process has got or lost a thread, or one of its threads another name; [`crate::vm_threads`] says which it has.
    Threads {
        /// Its process id.
        pid: u32,
    },
    /// A process has ended.
    Ended {
        /// Its process id.
        pid: u32,
    },
    /// The kernel has started a thread of its own: it may be a vhost worker (before Linux 6.4).
    KernelThread {
        /// Its id.
        pid: u32,
    },
    /// A control group that is watched has got or lost a group below it.
    Group,
    /// A file that is watched was written or removed.
    File,
    /// Events were lost: anything may have changed.
    Lost,
}

/// The sources of hints.
pub struct Watch {
    devices: Option<Devices>,
    machines: Option<Machines>,
    processes: Option<Processes>,
    groups: Option<Groups>,
    files: Option<Files>,
}

impl Watch {
    /// Opens all sources that this kernel has and this process may use. Returns the sources that are missing, each with the
    /// reason. Process events need `CAP_NET_ADMIN`.
    pub fn open() -> (Watch, Vec<String>) {
        let mut missing = Vec::new();
        let mut kept = |what: &str, why: io::Error| missing.push(format!("{what}: {why}"));
        let watch = Watch {
            devices: Devices::open().map_err(|e| kept("network devices by rtnetlink", e)).ok(),
            machines: Machines::open().map_err(|e| kept("KVM virtual machines by uevents", e)).ok(),
            processes: Processes::open()
                .map_err(|e| kept("threads by process events (CONFIG_PROC_EVENTS)", e))
                .ok(),
            groups: Groups::open().map_err(|e| kept("control groups by inotify", e)).ok(),
            files: None,
        };
        (watch, missing)
    }

    /// Watches these files of the folder that has this name now. Returns whether that is another one than before, whose files
    /// may have changed unnoticed.
    ///
    /// # Errors
    /// If there is no such folder.
    pub fn follow_files(&mut self, folder: &Path, names: &'static [&'static str]) -> io::Result<bool> {
        let anew = self.files.as_ref().is_none_or(|files| !files.is_of(folder));
        if anew {
            self.files = None;
            self.files = Some(Files::open(folder, names)?);
        }
        Ok(anew)
    }

    /// Watches these control groups, paths below the cgroup v2 mount, instead of those before.
    pub fn follow_groups(&mut self, wanted: &BTreeSet<String>) {
        if let Some(groups) = &mut self.groups {
            groups.follow(wanted);
        }
    }

    /// Waits until a source has something to tell, `other` can be read, or the time is over. Returns whether `other` can
    /// be read.
    ///
    /// # Errors
    /// If the kernel cannot wait.
    pub fn wait(&self, timeout: Duration, other: BorrowedFd<'_>) -> io::Result<bool> {
        let sources = [
            self.devices.as_ref().map(Devices::fd),
            self.machines.as_ref().map(Machines::fd),
            self.processes.as_ref().map(Processes::fd),
            self.groups.as_ref().map(Groups::fd),
            self.files.as_ref().map(Files::fd),
        ];
        let mut fds: Vec<PollFd<'_>> = sources
            .into_iter()
            .flatten()
            .chain([other])
            .map(|fd| PollFd::new(fd, PollFlags::POLLIN))
            .collect();
        // Rounded up: a wait that ends early would be repeated.
        let ms = timeout.as_millis().saturating_add(1).min(i32::MAX as u128) as i32;
        match poll(&mut fds, PollTimeout::try_from(ms).unwrap_or(PollTimeout::MAX)) {
            Ok(_) | Err(Errno::EINTR) => {}
            Err(e) => return Err(e.into()),
        }
        Ok(fds.last().and_then(PollFd::any).unwrap_or(false))
    }

    /// What the sources have told since the last call, each hint once.
    pub fn hints(&mut self) -> BTreeSet<Hint> {
        let mut hints = BTreeSet::new();
        let tell = &mut |hint| {
            hints.insert(hint);
        };
        if let Some(devices) = &mut self.devices {
            devices.read(tell);
        }
        if let Some(machines) = &self.machines {
            machines.read(tell);
        }
        if let Some(processes) = &self.processes {
            processes.read(tell);
        }
        if let Some(groups) = &mut self.groups {
            groups.read(tell);
        }
        if let Some(files) = &mut self.files {
            files.read(tell);
        }
        hints
    }
}

/// How many bytes of messages may wait: those of about 5,000 events, whose bookkeeping counts as well.
const RECEIVE_BUFFER: usize = 4 << 20;
/// The longest message of any source: uevents have at most 2 KiB of text (`UEVENT_BUFFER_SIZE`), and a description of a
/// network device is below 8 KiB.
const LONGEST: usize = 32 << 10;
/// Most messages that are read at once: a storm of events does not keep the caller from its work.
const BATCH: usize = 20_000;

/// A netlink socket that gets what the kernel sends to a group.
struct Subscription(OwnedFd);

impl Subscription {
    /// `groups` is a bit mask; without a protocol it is rtnetlink (`NETLINK_ROUTE` is 0).
    fn open(protocol: Option<Protocol>, groups: u32) -> io::Result<Subscription> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, protocol)?;
        // Without the privilege to exceed the host's limit, the limit.
        let _ = setsockopt(&socket, sockopt::RcvBufForce, &RECEIVE_BUFFER)
            .or_else(|_| setsockopt(&socket, sockopt::RcvBuf, &RECEIVE_BUFFER));
        bind(socket.as_raw_fd(), &NetlinkAddr::new(0, groups))?;
        Ok(Subscription(socket))
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }

    /// Hands on each message of the kernel; `None` if messages were lost.
    fn read(&self, each: &mut dyn FnMut(Option<&[u8]>)) {
        let mut buffer = [0; LONGEST];
        for _ in 0..BATCH {
            match recvfrom::<NetlinkAddr>(self.0.as_raw_fd(), &mut buffer) {
                Ok((length, from)) => {
                    if from.is_some_and(|from| from.pid() == 0) {
                        each(Some(&buffer[..length.min(LONGEST)]));
                    }
                }
                Err(Errno::EINTR) => {}
                Err(Errno::ENOBUFS) => each(None),
                // Nothing more to read, or the socket fails: the caller also looks without hints.
                Err(_) => return,
            }
        }
        each(None);
    }

    fn send(&self, message: &[u8]) -> io::Result<()> {
        nix::sys::socket::sendto(self.0.as_raw_fd(), message, &NetlinkAddr::new(0, 0), MsgFlags::empty())?;
        Ok(())
    }
}

#[cfg(test)]
mod tests;
