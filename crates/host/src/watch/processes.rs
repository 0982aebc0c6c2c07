//! Threads that start, end, or get another name: the kernel's process events (linux/cn_proc.h).
//!
//! The kernel makes these events for all processes once anybody listens. Since Linux 6.6 a listener can say which
//! events it wants; older kernels ignore such a request. So it is sent after the plain one, which asks for all events
//! (`cn_proc_mcast_ctl` in drivers/connector/cn_proc.c): the last request counts.

use super::{Hint, Subscription};
use crate::rtnl::u32_at;
use rustix::net::netlink::CONNECTOR;
use std::io;
use std::os::fd::BorrowedFd;

/// `CN_IDX_PROC` and `CN_VAL_PROC` of linux/connector.h; the index is also the number of the group.
const PROC: u32 = 1;
/// `PROC_CN_MCAST_LISTEN` and `PROC_CN_MCAST_IGNORE`.
const LISTEN: u32 = 1;
const IGNORE: u32 = 2;
/// Kinds of events.
const FORK: u32 = 0x1;
const COMM: u32 = 0x200;
const EXIT: u32 = 0x8000_0000;
/// Sizes of `struct nlmsghdr` and `struct cn_msg`, and the place of the event's data in `struct proc_event`.
const HEADER: usize = 16;
const CONNECTOR_HEADER: usize = 20;
const DATA: usize = 16;
/// `NLMSG_DONE`, which connector messages have as their type.
const DONE: u16 = 3;
/// The kernel thread that starts all others.
const KTHREADD: u32 = 2;

pub(super) struct Processes(Subscription);

impl Processes {
    pub(super) fn open() -> io::Result<Processes> {
        let socket = Subscription::open(Some(CONNECTOR), 1 << (PROC - 1))?;
        let wanted = FORK | COMM | EXIT;
        socket.send(&request(&LISTEN.to_ne_bytes()))?;
        socket.send(&request(&[LISTEN.to_ne_bytes(), wanted.to_ne_bytes()].concat()))?;
        Ok(Processes(socket))
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.0.fd()
    }

    pub(super) fn read(&self, tell: &mut dyn FnMut(Hint)) {
        self.0.read(&mut |message| match message {
            None => tell(Hint::Lost),
            Some(message) => {
                if let Some(hint) = hint_of(message) {
                    tell(hint);
                }
            }
        });
    }
}

impl Drop for Processes {
    /// Kernels before 6.6 count listeners by these requests alone, and make events while the count is not 0.
    fn drop(&mut self) {
        let _ = self.0.send(&request(&IGNORE.to_ne_bytes()));
    }
}

/// A netlink message with a connector message for the process events.
fn request(data: &[u8]) -> Vec<u8> {
    let mut message = Vec::new();
    message.extend(((HEADER + CONNECTOR_HEADER + data.len()) as u32).to_ne_bytes());
    message.extend(DONE.to_ne_bytes());
    message.extend([0; 2]); // flags
    message.extend([0; 4]); // sequence number
    message.extend(std::process::id().to_ne_bytes());
    message.extend(PROC.to_ne_bytes());
    message.extend(PROC.to_ne_bytes());
    message.extend([0; 8]); // sequence number, acknowledgement
    message.extend((data.len() as u16).to_ne_bytes());
    message.extend([0; 2]); // flags
    message.extend(data);
    message
}

/// What an event means.
fn hint_of(message: &[u8]) -> Option<Hint> {
    let connector = message.get(HEADER..)?;
    if (u32_at(connector, 0)?, u32_at(connector, 4)?) != (PROC, PROC) {
        return None;
    }
    let event = connector.get(CONNECTOR_HEADER..)?;
    let data = |n: usize| u32_at(event, DATA + 4 * n);
    match u32_at(event, 0)? {
        // parent_pid, parent_tgid, child_pid, child_tgid. The parent of a thread is that of its process; only ids of
        // the same process tell that it is a thread.
        FORK => match (data(1)?, data(2)?, data(3)?) {
            (KTHREADD, child, _) => Some(Hint::KernelThread { pid: child }),
            (_, child, process) if child != process => Some(Hint::Threads { pid: process }),
            _ => None,
        },
        // process_pid, process_tgid, comm
        COMM => Some(Hint::Threads { pid: data(1)? }),
        // process_pid, process_tgid, ...
        EXIT => match (data(0)?, data(1)?) {
            (thread, process) if thread == process => Some(Hint::Ended { pid: process }),
            (_, process) => Some(Hint::Threads { pid: process }),
        },
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(what: u32, data: &[u32]) -> Vec<u8> {
        let head = [what.to_ne_bytes(), [0; 4], [0; 4], [0; 4]].concat();
        let data: Vec<u8> = data.iter().flat_map(|n| n.to_ne_bytes()).collect();
        request(&[head, data].concat())
    }

    /// With the kernel of this machine; those before 6.6 tell of everything. Needs root.
    #[test]
    fn only_the_wanted_events_come() {
        const EXEC: u32 = 0x2;
        let release = crate::kernel::release();
        let mut numbers = release.split(['.', '-']).map_while(|n| n.parse::<u32>().ok());
        let version = (numbers.next().unwrap(), numbers.next().unwrap());
        let Ok(processes) = Processes::open() else { return };
        // The requests are obeyed when they are sent.
        processes.read(&mut |_| ());
        let ended = std::process::Command::new("true").spawn().unwrap();
        let pid = ended.id();
        assert!(ended.wait_with_output().unwrap().status.success());
        let mut kinds = std::collections::BTreeSet::new();
        // The kernel wakes who waits for the process before it tells of the end (`do_exit()`): the event may not be there yet.
        for _ in 0..60_000 {
            processes.0.read(&mut |message| {
                let event = message.and_then(|m| m.get(HEADER + CONNECTOR_HEADER..)).unwrap_or_default();
                if u32_at(event, DATA + 4) == Some(pid) || u32_at(event, DATA + 12) == Some(pid) {
                    kinds.extend(u32_at(event, 0));
                }
            });
            if kinds.is_empty() || kinds.contains(&EXIT) {
                break;
            }
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        // Without CONFIG_PROC_EVENTS nothing comes.
        if !kinds.is_empty() {
            assert!(kinds.contains(&EXIT), "{kinds:x?}");
            assert_eq!(kinds.contains(&EXEC), version < (6, 6), "{release}: {kinds:x?}");
        }
    }

    #[test]
    fn events_become_hints() {
        let hint = |what, data: &[u32]| hint_of(&event(what, data));
        assert_eq!(hint(FORK, &[10, 10, 11, 11]), None, "a process");
        assert_eq!(hint(FORK, &[1, 1, 12, 10]), Some(Hint::Threads { pid: 10 }));
        assert_eq!(hint(FORK, &[2, 2, 13, 13]), Some(Hint::KernelThread { pid: 13 }));
        assert_eq!(hint(COMM, &[12, 10, 0, 0, 0, 0]), Some(Hint::Threads { pid: 10 }));
        assert_eq!(hint(EXIT, &[10, 10, 0, 0]), Some(Hint::Ended { pid: 10 }));
        assert_eq!(hint(EXIT, &[12, 10, 0, 0]), Some(Hint::Threads { pid: 10 }));
        assert_eq!(hint(0, &[0]), None, "the answer to a request");
        let whole = event(FORK, &[1, 1, 12, 10]);
        assert!((0..whole.len()).all(|cut| hint_of(&whole[..cut]).is_none()));
    }
}
