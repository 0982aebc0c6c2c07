use super::*;
use std::os::unix::net::UnixStream;
use std::process::Command;
use std::time::Instant;

/// Long on any machine: the tests do not depend on the exact time.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Whether the hint comes; others may come as well.
fn told(watch: &mut Watch, wanted: Hint) -> bool {
    let (quiet, _other) = UnixStream::pair().unwrap();
    let begun = Instant::now();
    while begun.elapsed() < TIMEOUT {
        watch.wait(Duration::from_millis(200), quiet.as_fd()).unwrap();
        if watch.hints().contains(&wanted) {
            return true;
        }
    }
    false
}

/// Whether `missing` names a source. It must not be missing for another reason than a kernel that lacks it.
fn lacks(missing: &[String], what: &str) -> bool {
    missing.iter().any(|text| text.starts_with(what) && !text.contains("ermitted"))
}

/// With the kernel of this machine. Needs root, as process events do.
#[test]
fn the_kernel_tells_of_threads_and_devices() {
    let (mut watch, missing) = Watch::open();
    if !lacks(&missing, "threads") {
        let mut child = Command::new("sleep").arg("1000").spawn().unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(told(&mut watch, Hint::Ended { pid: child.id() }), "{missing:?}");
        let own = std::process::id();
        let thread = std::thread::Builder::new().name("watched".into()).spawn(|| ()).unwrap();
        thread.join().unwrap();
        assert!(told(&mut watch, Hint::Threads { pid: own }), "{missing:?}");
    }
    assert!(!missing.iter().any(|text| text.starts_with("network devices")), "{missing:?}");
}

/// A message that another process sends to the socket is none of the kernel.
#[test]
fn other_processes_cannot_make_hints() {
    let ours = Subscription::open(Some(rustix::net::netlink::KOBJECT_UEVENT), 1).unwrap();
    let address: NetlinkAddr = nix::sys::socket::getsockname(ours.0.as_raw_fd()).unwrap();
    let theirs = Subscription::open(Some(rustix::net::netlink::KOBJECT_UEVENT), 0).unwrap();
    let forged = b"change@/devices/virtual/misc/kvm\0EVENT=create\0PID=1\0";
    let sent = nix::sys::socket::sendto(
        theirs.0.as_raw_fd(),
        forged,
        &NetlinkAddr::new(address.pid(), 0),
        MsgFlags::empty(),
    );
    let mut got = 0;
    Machines::of(ours).read(&mut |hint| got += usize::from(hint == Hint::Machine { pid: 1 }));
    // Without the privilege to send such messages the kernel refuses already.
    assert!(got == 0, "{sent:?}");
}

#[test]
fn waiting_ends_when_the_other_descriptor_has_something() {
    use std::io::Write;
    let (watch, _) = Watch::open();
    let (one, mut other) = UnixStream::pair().unwrap();
    assert!(!watch.wait(Duration::ZERO, one.as_fd()).unwrap());
    other.write_all(b"x").unwrap();
    let begun = Instant::now();
    while !watch.wait(TIMEOUT, one.as_fd()).unwrap() {
        assert!(begun.elapsed() < TIMEOUT);
    }
}
