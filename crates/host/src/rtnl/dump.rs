//! Reads a list that the kernel returns in several messages, completely or not at all.
//!
//! The listed objects may change meanwhile, so that one is missing from the list or in it twice. For some lists the
//! kernel reports this by a flag in a message (`NLM_F_DUMP_INTR`): for that of devices (`rtnl_dump_ifinfo()`,
//! net/core/rtnetlink.c), but not for qdiscs: there it continues at an index of its table, and the entries after a deleted
//! device move down by one (`tc_dump_qdisc()`, net/sched/sch_api.c). A socket whose buffer is full loses messages
//! (`ENOBUFS`, or `NLMSG_OVERRUN`). So a list whose changes are not reported is read until two in a row have the same
//! entries.

use super::message::{DUMP_INTR, each, errno_of};
use nix::errno::Errno;

/// How many times a list is requested.
const ATTEMPTS: usize = 16;

/// Where lists are requested.
pub(super) trait Wire {
    /// Whether the kernel reports that the list has changed while it was read.
    fn reports_changes(&self) -> bool;

    /// Requests the list; returns the sequence number of the request.
    fn ask(&mut self) -> nix::Result<u32>;

    /// The next datagram.
    fn receive(&mut self) -> nix::Result<Vec<u8>>;

    /// Discards the remaining messages of the lists requested so far.
    fn renew(&mut self) -> nix::Result<()>;
}

/// The bodies of the messages of a list.
///
/// # Errors
/// The kernel's error; `EINTR` if the list changed, `ENOBUFS` if messages were lost, in every attempt.
pub(super) fn whole(wire: &mut impl Wire) -> nix::Result<Vec<Vec<u8>>> {
    let mut why = Errno::EINTR;
    let mut before = None;
    for _ in 0..ATTEMPTS {
        match once(wire) {
            Ok(list) if wire.reports_changes() => return Ok(list),
            Ok(list) => {
                let things: Vec<Vec<u8>> = list.iter().map(|body| thing(body).to_vec()).collect();
                if before.as_ref() == Some(&things) {
                    return Ok(list);
                }
                (before, why) = (Some(things), Errno::EINTR);
            }
            Err(Errno::EINTR) => why = Errno::EINTR,
            Err(Errno::ENOBUFS) => {
                why = Errno::ENOBUFS;
                wire.renew()?;
            }
            result => return result,
        }
    }
    Err(why)
}

/// The part of an entry that identifies its object: `struct tcmsg` without its last field `tcm_info`. For a qdisc that
/// field is a reference count (`tc_fill_qdisc()`), and the attributes have counters: these change all the time.
fn thing(body: &[u8]) -> &[u8] {
    body.get(..size_of::<[u32; 4]>()).unwrap_or(body)
}

/// One attempt, with the errors of [`whole`].
fn once(wire: &mut impl Wire) -> nix::Result<Vec<Vec<u8>>> {
    let asked = wire.ask()?;
    let mut found = Vec::new();
    let mut interrupted = false;
    loop {
        let datagram = wire.receive()?;
        let mut ended = false;
        for message in each(&datagram).into_iter().filter(|m| m.sequence == asked) {
            interrupted |= message.flags & DUMP_INTR != 0;
            match i32::from(message.kind) {
                libc::NLMSG_DONE => ended = true,
                libc::NLMSG_OVERRUN => return Err(Errno::ENOBUFS),
                libc::NLMSG_NOOP => {}
                libc::NLMSG_ERROR => {
                    errno_of(message.body)?;
                    ended = true;
                }
                _ => found.push(message.body.to_vec()),
            }
        }
        if ended {
            // The rest of an interrupted list has been read, so that the next one begins with its own messages.
            return if interrupted { Err(Errno::EINTR) } else { Ok(found) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const QDISC: i32 = libc::RTM_NEWQDISC as i32;

    /// The kernel's answers to the requests, in order; later requests get the last answer again.
    struct Script {
        answers: Vec<Vec<nix::Result<Vec<u8>>>>,
        asked: usize,
        read: usize,
        renewed: usize,
        reports_changes: bool,
    }

    impl Script {
        fn new(answers: Vec<Vec<nix::Result<Vec<u8>>>>) -> Self {
            Script { answers, asked: 0, read: 0, renewed: 0, reports_changes: false }
        }
    }

    impl Wire for Script {
        fn reports_changes(&self) -> bool {
            self.reports_changes
        }

        fn ask(&mut self) -> nix::Result<u32> {
            (self.asked, self.read) = (self.asked + 1, 0);
            Ok(7)
        }

        fn receive(&mut self) -> nix::Result<Vec<u8>> {
            let answer = &self.answers[(self.asked - 1).min(self.answers.len() - 1)];
            self.read += 1;
            answer[self.read - 1].clone()
        }

        fn renew(&mut self) -> nix::Result<()> {
            self.renewed += 1;
            Ok(())
        }
    }

    fn message(kind: i32, flags: u16, sequence: u32, body: &[u8]) -> Vec<u8> {
        let mut m = (16 + body.len() as u32).to_ne_bytes().to_vec();
        m.extend((kind as u16).to_ne_bytes());
        m.extend(flags.to_ne_bytes());
        m.extend(sequence.to_ne_bytes());
        m.extend([0; 4]);
        m.extend(body);
        m
    }

    fn one(name: &[u8; 4], flags: u16) -> nix::Result<Vec<u8>> {
        Ok(message(QDISC, flags, 7, name))
    }

    fn done(flags: u16) -> nix::Result<Vec<u8>> {
        Ok(message(libc::NLMSG_DONE, flags, 7, &[0; 4]))
    }

    #[test]
    fn an_interrupted_list_is_asked_for_again() {
        // Reported in the middle, and at the end, where the kernel reports it if nothing more is listed.
        for broken in
            [vec![one(b"eth0", DUMP_INTR), one(b"eth1", 0), done(0)], vec![one(b"eth0", 0), done(DUMP_INTR)]]
        {
            let mut wire = Script::new(vec![broken, vec![one(b"eth0", 0), one(b"eth1", 0), done(0)]]);
            assert_eq!(whole(&mut wire), Ok(vec![b"eth0".to_vec(), b"eth1".to_vec()]));
            assert_eq!((wire.asked, wire.read, wire.renewed), (3, 3, 0));
        }
    }

    #[test]
    fn a_list_whose_changes_are_reported_is_read_once() {
        let list = vec![one(b"eth0", 0), one(b"eth1", 0), done(0)];
        let broken = vec![one(b"eth0", 0), one(b"eth1", DUMP_INTR), done(0)];
        for (answers, asked) in [(vec![list.clone()], 1), (vec![broken, list], 2)] {
            let mut wire = Script { reports_changes: true, ..Script::new(answers) };
            assert_eq!(whole(&mut wire), Ok(vec![b"eth0".to_vec(), b"eth1".to_vec()]));
            assert_eq!(wire.asked, asked);
        }
    }

    /// A device before it in the table was deleted meanwhile, which the kernel does not report for qdiscs.
    #[test]
    fn what_one_list_lacks_is_in_the_next() {
        let whole_list = || vec![one(b"eth1", 0), one(b"eth2", 0), done(0)];
        let lacking = vec![one(b"eth0", 0), one(b"eth2", 0), done(0)];
        let mut wire = Script::new(vec![lacking, whole_list()]);
        assert_eq!(whole(&mut wire), Ok(vec![b"eth1".to_vec(), b"eth2".to_vec()]));
        assert_eq!(wire.asked, 3);
        let mut changing =
            Script::new((0..20u8).map(|i| vec![one(&[b'e', b't', b'h', i], 0), done(0)]).collect());
        assert_eq!((whole(&mut changing), changing.asked), (Err(Errno::EINTR), ATTEMPTS));
    }

    #[test]
    fn a_list_that_never_stays_the_same_is_an_error() {
        let mut wire = Script::new(vec![vec![one(b"eth0", DUMP_INTR), done(0)]]);
        assert_eq!((whole(&mut wire), wire.asked), (Err(Errno::EINTR), ATTEMPTS));
    }

    #[test]
    fn lost_messages_are_asked_for_again_by_another_socket() {
        let overrun = Ok(message(libc::NLMSG_OVERRUN, 0, 7, &[]));
        for lost in [vec![one(b"eth0", 0), Err(Errno::ENOBUFS)], vec![overrun]] {
            let mut wire = Script::new(vec![lost.clone(), vec![one(b"eth1", 0), done(0)]]);
            assert_eq!(whole(&mut wire), Ok(vec![b"eth1".to_vec()]));
            assert_eq!((wire.asked, wire.renewed), (3, 1));
            assert_eq!(whole(&mut Script::new(vec![lost])), Err(Errno::ENOBUFS));
        }
    }

    #[test]
    fn answers_to_others_and_refusals() {
        let other = Ok(message(QDISC, DUMP_INTR, 6, b"old "));
        let mut wire = Script::new(vec![vec![other, one(b"eth0", 0), done(0)]]);
        assert_eq!((whole(&mut wire), wire.asked), (Ok(vec![b"eth0".to_vec()]), 2));
        let refusal = Ok(message(libc::NLMSG_ERROR, 0, 7, &(-libc::EPERM).to_ne_bytes()));
        let mut wire = Script::new(vec![vec![refusal]]);
        assert_eq!((whole(&mut wire), wire.asked), (Err(Errno::EPERM), 1));
    }

    /// The reference count of a qdisc changes all the time on a host whose filters change.
    #[test]
    fn a_list_in_which_only_counters_change_is_whole() {
        let qdisc = |info: u8, counter: u8| {
            let mut body = [1; 24];
            (body[16], body[20]) = (info, counter);
            Ok(message(QDISC, 0, 7, &body))
        };
        let mut wire = Script::new((0..20u8).map(|i| vec![qdisc(i, 0), qdisc(2, i), done(0)]).collect());
        assert_eq!(whole(&mut wire).unwrap().len(), 2);
        assert_eq!(wire.asked, 2);
    }
}
