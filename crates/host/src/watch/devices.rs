//! Network devices that appear, vanish, get another name or master, or gain or lose their carrier.
//!
//! rtnetlink also tells of each change of a device's address or statistics. So what matters of each device is remembered, and
//! only a change of that is a hint.

use super::{Hint, Subscription};
use crate::rtnl::{Link, link_of, messages};
use std::collections::HashMap;
use std::io;
use std::os::fd::BorrowedFd;

/// `RTMGRP_LINK` of linux/rtnetlink.h.
const LINK_GROUP: u32 = 1;
/// Most devices that are remembered. Of further ones each message is a hint.
const MOST: usize = 65_536;

/// What matters of a device: its name, master, and largest IP packet in bytes; whether it carries packets, as one that does not
/// has no speed and no queue.
type Known = (String, Option<u32>, u32, bool);

pub(super) struct Devices {
    socket: Subscription,
    /// Each device that a message was about, by index.
    known: HashMap<u32, Known>,
}

impl Devices {
    pub(super) fn open() -> io::Result<Devices> {
        Ok(Devices { socket: Subscription::open(None, LINK_GROUP)?, known: HashMap::new() })
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.socket.fd()
    }

    pub(super) fn read(&mut self, tell: &mut dyn FnMut(Hint)) {
        let known = &mut self.known;
        self.socket.read(&mut |message| match message {
            None => tell(Hint::Lost),
            Some(message) => {
                if messages(message).into_iter().any(|(kind, body)| matters(known, kind, body)) {
                    tell(Hint::Device);
                }
            }
        });
    }
}

/// Whether a message says anything that was not known. Those of a bridge about its ports (`AF_BRIDGE`) say what another
/// message says, too.
fn matters(known: &mut HashMap<u32, Known>, kind: u16, body: &[u8]) -> bool {
    let Some(link) = link_of(body).filter(|_| body.first() == Some(&(libc::AF_UNSPEC as u8))) else {
        return false;
    };
    match kind {
        libc::RTM_DELLINK => {
            known.remove(&link.index);
            true
        }
        libc::RTM_NEWLINK => is_new(known, link),
        _ => false,
    }
}

fn is_new(known: &mut HashMap<u32, Known>, link: Link) -> bool {
    if known.len() >= MOST {
        known.clear();
    }
    let now = (link.name, link.master, link.mtu, link.carries);
    known.insert(link.index, now.clone()).is_none_or(|before| before != now)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rtnl::attribute;

    #[test]
    fn only_what_a_plan_depends_on_is_a_hint() {
        let mut known = HashMap::new();
        let flags = std::cell::Cell::new(0u32);
        let mut told = |kind, family: u8, name: &[u8], master: u32| {
            let mut body = vec![0; 16];
            (body[0], body[4]) = (family, 7);
            body[8..12].copy_from_slice(&flags.get().to_ne_bytes());
            body.extend(attribute(3, name));
            body.extend(attribute(4, &1500u32.to_ne_bytes()));
            body.extend(attribute(10, &master.to_ne_bytes()));
            matters(&mut known, kind, &body)
        };
        let (new, gone) = (libc::RTM_NEWLINK, libc::RTM_DELLINK);
        assert!(told(new, 0, b"tap0\0", 1));
        assert!(!told(new, 0, b"tap0\0", 1), "a change of its address");
        flags.set(0x1);
        assert!(!told(new, 0, b"tap0\0", 1), "up, without a carrier");
        flags.set(0x1_0001);
        assert!(told(new, 0, b"tap0\0", 1), "its carrier comes");
        assert!(!told(new, 0, b"tap0\0", 1));
        flags.set(0x1);
        assert!(told(new, 0, b"tap0\0", 1), "its carrier goes");
        assert!(told(new, 0, b"tap0\0", 2), "the port of another bridge");
        assert!(!told(gone, 7, b"tap0\0", 2), "it leaves the bridge, which the next message says");
        assert!(told(new, 0, b"tap1\0", 2), "renamed");
        assert!(told(gone, 0, b"tap1\0", 2));
        assert!(told(new, 0, b"tap1\0", 2), "the index is used again");
        assert!(!matters(&mut known, new, &[0; 7]));
    }
}
