//! The process that finds VMs that come, change or end while a trace runs. It keeps the privileges that finding VMs needs,
//! which the trace has given up, and only ever sends: it reads nothing from the trace, and nothing that a guest writes.
//!
//! ```text
//!  follower: a hint of the kernel, or time ─► look at all VMs ─► those that are new or have changed ──┐
//!                    ▲                             │                                                  ▼
//!                    └─────────────────────────────┘                    trace: the VM, and an open file of its process
//! ```
//! The open file shows the trace when the process has ended, and never belongs to a later process with the same id.

use super::following::{Following, essence};
use crate::companion::Companion;
use nix::cmsg_space;
use nix::errno::Errno;
use nix::sys::socket::{ControlMessage, ControlMessageOwned, MsgFlags, recvmsg, sendmsg};
use rustix::thread::CapabilitySet;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::time::{Duration, Instant};
use teiji_host::Root;
use teiji_host::guest::GuestAccess;
use teiji_host::kernel::Process;
use teiji_host::watch::{Hint, Watch};
use teiji_model::host::{Identity, Vm};

/// To look into the processes of other users, to read KVM's numbers of vCPUs in debugfs, and for process events.
const NEEDED: CapabilitySet =
    CapabilitySet::SYS_PTRACE.union(CapabilitySet::DAC_READ_SEARCH).union(CapabilitySet::NET_ADMIN);
/// A VMM sets a VM up step by step; so it is looked at again this long after the kernel has told of it.
const AFTER_HINT: [Duration; 5] = [
    Duration::from_millis(50),
    Duration::from_millis(250),
    Duration::from_millis(700),
    Duration::from_millis(1500),
    Duration::from_millis(4000),
];
/// How often to look without any hint; where the kernel gives none, and where it does.
const WITHOUT_HINTS: Duration = Duration::from_millis(1500);
const AT_REST: Duration = Duration::from_secs(30);
/// Looking takes at most a tenth of a CPU.
const REST: u32 = 9;
/// The longest description of a VM, bytes: one with 1,000 vCPUs has 20 kB.
const LONGEST: usize = 96 << 10;

/// The trace's side.
#[derive(Debug)]
pub(super) struct Follower {
    companion: Companion,
    buffer: Vec<u8>,
}

/// A VM that has come or changed, and its process.
pub(super) struct Found {
    pub(super) vm: Vm,
    pub(super) access: GuestAccess,
    pub(super) process: Process,
}

impl Follower {
    /// Starts the process. `there`: the VMs that the trace has begun with.
    pub(super) fn start(following: Following, there: &[Vm]) -> io::Result<Follower> {
        let there: Vec<Vm> = there.iter().map(essence).collect();
        let companion = Companion::start(c"teiji-follow", NEEDED, None, |socket| match socket {
            Ok(socket) => follow(following, there, &socket),
            Err(_) => 1,
        })?;
        Ok(Follower { companion, buffer: vec![0; LONGEST] })
    }

    /// The next VM that has come or changed, if there is one now.
    ///
    /// # Errors
    /// If the process has ended, or what it sends cannot be understood.
    pub(super) fn found(&mut self) -> io::Result<Option<Found>> {
        let socket = self.companion.socket()?.as_raw_fd();
        let mut control = cmsg_space!(RawFd);
        let mut bytes = [IoSliceMut::new(&mut self.buffer)];
        let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_CMSG_CLOEXEC;
        let (length, file) = match recvmsg::<()>(socket, &mut bytes, Some(&mut control), flags) {
            Ok(message) => (message.bytes, message.cmsgs()?.find_map(file_of)),
            Err(Errno::EAGAIN | Errno::EINTR) => return Ok(None),
            Err(e) => return Err(e.into()),
        };
        let file = match (length, file) {
            (0, _) => return Err(io::Error::other("the process that finds VMs has ended")),
            (_, Some(file)) => file,
            // There was no free descriptor for it: it is told again when it changes.
            (_, None) => return Ok(None),
        };
        let (vm, given, access): (Vm, _, _) =
            postcard::from_bytes(&self.buffer[..length]).map_err(io::Error::other)?;
        Ok(Some(Found { vm: Vm { given, ..vm }, access, process: Process::from(file) }))
    }
}

/// The file that came with a message.
#[allow(unsafe_code)]
fn file_of(message: ControlMessageOwned) -> Option<File> {
    let ControlMessageOwned::ScmRights(descriptors) = message else { return None };
    // SAFETY: the kernel has just made these descriptors for this process, and nothing else knows them.
    let mut owned = descriptors.into_iter().map(|fd| unsafe { OwnedFd::from_raw_fd(fd) });
    owned.next().map(File::from)
}

/// The life of the process; returns its exit code.
fn follow(following: Following, there: Vec<Vm>, socket: &OwnedFd) -> i32 {
    let (watch, missing) = Watch::open();
    let unhinted = if missing.is_empty() { AT_REST } else { WITHOUT_HINTS };
    let mut seen = Seen { root: Root::default(), following, told: BTreeMap::new() };
    // As the trace has begun with them: what has changed since then is told.
    seen.told = there.into_iter().map(|vm| (vm.pid, (None, vm))).collect();
    let mut schedule = Schedule { due: vec![Instant::now()], not_before: Instant::now(), unhinted };
    let mut watch = watch;
    loop {
        match watch.wait(schedule.wait(Instant::now()), socket.as_fd()) {
            // The trace never sends: it has ended.
            Ok(true) | Err(_) => return 0,
            Ok(false) => {}
        }
        let hinted = watch.hints().iter().any(|hint| match hint {
            Hint::Machine { .. } | Hint::Device | Hint::Lost => true,
            Hint::Ended { .. } | Hint::Threads { .. } => false,
            Hint::KernelThread { .. } | Hint::Group | Hint::File => false,
        });
        let now = Instant::now();
        if hinted {
            schedule.hint(now);
        }
        if schedule.is_due(now) {
            if seen.look(socket).is_err() {
                return 0;
            }
            schedule.looked(now, Instant::now());
        }
    }
}

/// When to look.
struct Schedule {
    due: Vec<Instant>,
    not_before: Instant,
    unhinted: Duration,
}

impl Schedule {
    fn hint(&mut self, now: Instant) {
        // Those that are due sooner stay: hints that keep coming must not put off every look.
        let first = self.due.iter().copied().filter(|due| *due < now + AFTER_HINT[0]).min();
        self.due = AFTER_HINT.iter().map(|after| now + *after).chain(first).collect();
    }

    fn next(&self) -> Option<Instant> {
        self.due.iter().min().map(|due| (*due).max(self.not_before))
    }

    fn wait(&self, now: Instant) -> Duration {
        self.next().map_or(self.unhinted, |due| due.saturating_duration_since(now))
    }

    fn is_due(&self, now: Instant) -> bool {
        self.next().is_some_and(|due| due <= now)
    }

    /// A look was begun at `begun`, and has ended.
    fn looked(&mut self, begun: Instant, ended: Instant) {
        self.due.retain(|due| *due > begun);
        self.not_before = ended + (ended - begun) * REST;
        if self.due.is_empty() {
            self.due.push(ended + self.unhinted);
        }
    }
}

/// What the trace knows.
struct Seen {
    root: Root,
    following: Following,
    /// By process id: when it was started, if that is known, and the VM.
    told: BTreeMap<u32, (Option<u64>, Vm)>,
}

impl Seen {
    /// Tells the trace of the VMs that are new or have changed.
    ///
    /// # Errors
    /// If the trace has ended.
    fn look(&mut self, socket: &OwnedFd) -> io::Result<()> {
        let Ok(found) = self.root.identified_vms() else { return Ok(()) };
        self.following.keep(&found);
        self.told.retain(|pid, (started, _)| {
            found.iter().any(|(vm, id)| vm.pid == *pid && (started.is_none() || *started == id.started))
        });
        for (vm, identity) in &found {
            if self.following.includes(vm, identity) {
                self.tell(socket, essence(vm), identity)?;
            }
        }
        Ok(())
    }

    fn tell(&mut self, socket: &OwnedFd, vm: Vm, identity: &Identity) -> io::Result<()> {
        if let Some((started, known)) = self.told.get_mut(&vm.pid)
            && *known == vm
        {
            *started = identity.started;
            return Ok(());
        }
        // Opened before the time of the start is read again: so it belongs to the process that was found.
        let process = Process::of(vm.pid);
        let (Some(file), true) = (process.file(), self.root.started(vm.pid) == identity.started) else {
            return Ok(());
        };
        let Ok(bytes) = postcard::to_stdvec(&(&vm, &vm.given, self.root.guest_access(vm.pid))) else {
            return Ok(());
        };
        if bytes.len() <= LONGEST {
            let descriptors = [file.as_raw_fd()];
            let rights = [ControlMessage::ScmRights(&descriptors)];
            match sendmsg::<()>(
                socket.as_raw_fd(),
                &[IoSlice::new(&bytes)],
                &rights,
                MsgFlags::MSG_NOSIGNAL,
                None,
            ) {
                // Too long for the socket: this VM is not followed.
                Ok(_) | Err(Errno::EMSGSIZE) => {}
                Err(e) => return Err(e.into()),
            }
        }
        self.told.insert(vm.pid, (identity.started, vm));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hints_lead_to_looks_soon_and_again_and_never_to_looking_all_the_time() {
        let begin = Instant::now();
        let mut schedule = Schedule { due: vec![begin], not_before: begin, unhinted: AT_REST };
        assert!(schedule.is_due(begin));
        schedule.looked(begin, begin + Duration::from_millis(10));
        assert_eq!(schedule.wait(begin), AT_REST + Duration::from_millis(10));
        // Hints that keep coming: looks of 10 ms take a tenth of the time.
        let (mut now, mut looks) = (begin + Duration::from_secs(1), 0);
        for _ in 0..100_000 {
            schedule.hint(now);
            if schedule.is_due(now) {
                schedule.looked(now, now + Duration::from_millis(10));
                looks += 1;
            }
            now += Duration::from_micros(100);
        }
        assert!((90..=101).contains(&looks), "{looks} in 10 s");
        // After the last one, the VM is looked at until it is set up.
        let (last, mut later) = (now, 0);
        while schedule.wait(now) < Duration::from_secs(10) {
            now += schedule.wait(now);
            schedule.looked(now, now + Duration::from_millis(1));
            later += 1;
        }
        assert!(later >= AFTER_HINT.len() && now - last >= Duration::from_secs(3), "{later}");
    }
}
