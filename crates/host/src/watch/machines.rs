//! VMs that a process has created or destroyed: KVM tells so by a uevent of its device.

use super::{Hint, Subscription};
use rustix::net::netlink::KOBJECT_UEVENT;
use std::io;
use std::os::fd::BorrowedFd;

/// The group of the kernel's own uevents; udev's are another.
const KERNEL_GROUP: u32 = 1;

pub(super) struct Machines(Subscription);

impl Machines {
    pub(super) fn open() -> io::Result<Machines> {
        Ok(Machines(Subscription::open(Some(KOBJECT_UEVENT), KERNEL_GROUP)?))
    }

    #[cfg(test)]
    pub(super) fn of(socket: Subscription) -> Machines {
        Machines(socket)
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.0.fd()
    }

    pub(super) fn read(&self, tell: &mut dyn FnMut(Hint)) {
        self.0.read(&mut |message| match message {
            None => tell(Hint::Lost),
            Some(message) => {
                if let Some(pid) = process_of(message) {
                    tell(Hint::Machine { pid });
                }
            }
        });
    }
}

/// The process that a uevent of KVM is about: `change@/devices/virtual/misc/kvm`, then variables, among them `EVENT`
/// (`create`, `destroy`) and `PID`, each ended by a zero byte.
fn process_of(message: &[u8]) -> Option<u32> {
    let mut parts = message.split(|byte| *byte == 0);
    parts.next().filter(|head| head.ends_with(b"/misc/kvm"))?;
    let (mut event, mut pid) = (false, None);
    for part in parts {
        event |= part == b"EVENT=create" || part == b"EVENT=destroy";
        if let Some(number) = part.strip_prefix(b"PID=") {
            pid = std::str::from_utf8(number).ok().and_then(|n| n.parse().ok());
        }
    }
    pid.filter(|_| event)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_process_of_a_machine_is_found() {
        let text = |text: &str| process_of(text.replace('|', "\0").as_bytes());
        let kvm = "change@/devices/virtual/misc/kvm|ACTION=change|SUBSYSTEM=misc|CREATED=1|COUNT=1";
        assert_eq!(text(&format!("{kvm}|EVENT=create|PID=4711|STATS_PATH=/sys|")), Some(4711));
        assert_eq!(text(&format!("{kvm}|EVENT=destroy|PID=1")), Some(1));
        assert_eq!(text(&format!("{kvm}|PID=1")), None);
        assert_eq!(text(&format!("{kvm}|EVENT=create|PID=x")), None);
        assert_eq!(text("add@/devices/virtual/net/tap0|EVENT=create|PID=1"), None);
        assert_eq!(text(""), None);
    }
}
