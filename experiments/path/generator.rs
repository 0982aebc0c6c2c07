//! `flood`: sends packets through a bridge to a tap of the local kernel while teiji traces the tap.
//!
//! ```text
//!  sender ─ send0 ══veth══ port0 ─ br0 ─ tap0 ─ reader
//! ```
//! All devices are in a network namespace of their own, which is removed with them when this program ends, however it
//! ends. sysfs is mounted anew in a mount namespace of its own, because it shows the devices of the namespace in which
//! it was mounted. Needs root.

use anyhow::{Context, Result, bail};
use clap::Parser;
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use teiji_experiments::path::flood::Flood;
use teiji_model::report::Report;

/// Sends packets through a bridge to a tap while teiji traces it
#[derive(Parser)]
struct Args {
    /// Packets per second
    #[arg(long, default_value_t = 200_000.0)]
    rate: f64,
    /// Number of packets
    #[arg(long, default_value_t = 2_000_000)]
    count: u64,
    /// The teiji program to run
    #[arg(long)]
    teiji: PathBuf,
}

/// Packets handed to the kernel in one call.
const BATCH: usize = 64;
/// Size of a frame: Ethernet, IPv4, UDP, a number of 8 bytes, padding.
const FRAME: usize = 60;
/// Destination port of the packets; teiji follows no other.
const PORT: u16 = 9;

fn main() -> ExitCode {
    match run(&Args::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("flood: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: &Args) -> Result<()> {
    isolate()?;
    let tap = make_tap("tap0")?;
    ip("link add br0 type bridge forward_delay 0 stp_state 0 mcast_snooping 0")?;
    ip("link add port0 type veth peer name send0")?;
    ip("link set tap0 master br0 up")?;
    ip("link set port0 master br0 up")?;
    ip("link set send0 up")?;
    ip("link set br0 up")?;
    // The bridge forwards shortly after its ports are up.
    std::thread::sleep(Duration::from_millis(300));

    let folder = Folder::make()?;
    let report = folder.0.join("report.json");
    let mut teiji = start_teiji(&args.teiji, &report)?;
    let before = on_tap()?;
    let stop = Arc::new(AtomicBool::new(false));
    let reader = std::thread::spawn({
        let stop = stop.clone();
        // The tap and its counters are removed when its file is closed.
        move || (drain(&tap, &stop), tap)
    });
    let (sent, seconds) = send("send0", args.rate, args.count)?;
    std::thread::sleep(Duration::from_millis(500));
    wait_for_rest()?;
    stop.store(true, Ordering::Relaxed);
    let (drained, _tap) = reader.join().map_err(|_| anyhow::anyhow!("the tap's reader failed"))?;
    let after = wait_for_rest()?;
    let (on_tap, dropped) = (after.0 - before.0, after.1 - before.1);
    let peak_kb = end_teiji(&mut teiji)?;
    let report: Report = serde_json::from_reader(File::open(&report).context("teiji left no report")?)?;
    let flood = Flood {
        kernel: report.meta.kernel,
        asked: args.rate,
        rate: sent as f64 / seconds.max(1e-9),
        sent,
        on_tap,
        dropped,
        drained,
        events: report.counters.events,
        lost: report.counters.lost.iter().sum(),
        missed: report.counters.missed,
        peak_kb,
        points: 0,
    };
    println!("{}", serde_json::to_string(&flood)?);
    Ok(())
}

/// A temporary folder, removed when the value is dropped.
struct Folder(PathBuf);

impl Folder {
    fn make() -> Result<Folder> {
        let path = std::env::temp_dir().join(format!("teiji-flood-{}", std::process::id()));
        std::fs::create_dir(&path).with_context(|| format!("cannot make {}", path.display()))?;
        Ok(Folder(path))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // If it remains: it is small, and among the temporary files.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Enters new namespaces for network and mounts.
fn isolate() -> Result<()> {
    unshare(CloneFlags::CLONE_NEWNET | CloneFlags::CLONE_NEWNS)
        .context("cannot make namespaces (is this root?), so there is nowhere to put devices")?;
    mount(None::<&str>, "/", None::<&str>, MsFlags::MS_REC | MsFlags::MS_PRIVATE, None::<&str>)
        .context("cannot keep mounts private")?;
    mount(Some("sysfs"), "/sys", Some("sysfs"), MsFlags::empty(), None::<&str>)
        .context("cannot mount sysfs for the new network namespace")?;
    // No packets but the flood's: neighbour discovery is not needed here.
    for which in ["all", "default"] {
        let _ = std::fs::write(format!("/proc/sys/net/ipv6/conf/{which}/disable_ipv6"), "1");
    }
    Ok(())
}

fn ip(arguments: &str) -> Result<()> {
    let status =
        Command::new("ip").args(arguments.split(' ')).status().context("cannot run ip (iproute2)")?;
    if !status.success() {
        bail!("`ip {arguments}` failed");
    }
    Ok(())
}

/// Creates a tap; it is removed when the file is closed.
fn make_tap(name: &str) -> Result<File> {
    let file = File::options()
        .read(true)
        .write(true)
        .custom_flags(libc::O_NONBLOCK)
        .open("/dev/net/tun")
        .context("cannot open /dev/net/tun, so no tap can be made (modprobe tun)")?;
    let mut request = [0u8; size_of::<libc::ifreq>()];
    request[..name.len()].copy_from_slice(name.as_bytes());
    let flags = (libc::IFF_TAP | libc::IFF_NO_PI) as u16;
    request[libc::IFNAMSIZ..libc::IFNAMSIZ + 2].copy_from_slice(&flags.to_ne_bytes());
    // SAFETY: TUNSETIFF reads and writes one ifreq, which `request` has the size of.
    let done = unsafe { libc::ioctl(file.as_raw_fd(), libc::TUNSETIFF, request.as_mut_ptr()) };
    if done < 0 {
        return Err(std::io::Error::last_os_error()).context("cannot make a tap");
    }
    Ok(file)
}

/// Reads the tap until `stop` is set; returns the number of the flood's packets.
fn drain(mut tap: &File, stop: &AtomicBool) -> u64 {
    let mut frame = [0; 2048];
    let mut count = 0;
    loop {
        match tap.read(&mut frame) {
            Ok(FRAME) => count += 1,
            Ok(_) => {}
            Err(_) if stop.load(Ordering::Relaxed) => return count,
            // Nothing to read: about 20 packets arrive during the pause, and the tap holds 1000.
            Err(_) => std::thread::sleep(Duration::from_micros(100)),
        }
    }
}

/// Packets handed to the tap, including dropped ones; and the dropped ones.
fn on_tap() -> Result<(u64, u64)> {
    let read = |counter: &str| -> Result<u64> {
        let path = format!("/sys/class/net/tap0/statistics/{counter}");
        let text = std::fs::read_to_string(&path).with_context(|| format!("cannot read {path}"))?;
        text.trim().parse().with_context(|| format!("{path} is no number"))
    };
    let dropped = read("tx_dropped")?;
    Ok((read("tx_packets")? + dropped, dropped))
}

/// [`on_tap`], when it has not changed for 0.2 s: on a busy machine, packets that were sent come to the tap later.
fn wait_for_rest() -> Result<(u64, u64)> {
    let mut last = on_tap()?;
    loop {
        std::thread::sleep(Duration::from_millis(200));
        let now = on_tap()?;
        if now == last {
            return Ok(now);
        }
        last = now;
    }
}

/// Starts teiji and waits until it traces.
fn start_teiji(program: &Path, report: &Path) -> Result<Child> {
    let mut command = Command::new(program);
    command
        .args([
            "trace",
            "--tap",
            "tap0",
            "--match",
            "none",
            "--flow",
            &format!("udp port {PORT}"),
            "--json",
            "--out",
        ])
        .arg(report)
        .stdin(Stdio::null())
        .stderr(Stdio::piped());
    // SAFETY: prctl only makes a system call and is safe after fork.
    unsafe {
        command.pre_exec(|| match libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) {
            0 => Ok(()),
            _ => Err(std::io::Error::last_os_error()),
        });
    }
    let mut child = command.spawn().with_context(|| format!("cannot run {}", program.display()))?;
    let stderr = child.stderr.take().context("teiji has no standard error")?;
    let (sender, receiver) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        for line in BufReader::new(stderr).lines().map_while(Result::ok) {
            if !line.starts_with("tracing,") {
                eprintln!("{line}");
            }
            // The receiver waits for the first line only.
            let _ = sender.send(line.starts_with("tracing,"));
        }
    });
    let until = Instant::now() + Duration::from_secs(60);
    while let Ok(tracing) = receiver.recv_timeout(until.saturating_duration_since(Instant::now())) {
        if tracing {
            return Ok(child);
        }
    }
    let _ = child.kill();
    let _ = child.wait();
    bail!("teiji did not begin to trace")
}

/// Ends teiji with SIGINT; returns its peak memory, kB.
fn end_teiji(child: &mut Child) -> Result<u64> {
    let pid = child.id() as libc::pid_t;
    let mut status = 0;
    // SAFETY: all zeros are a valid rusage.
    let mut usage = unsafe { std::mem::zeroed::<libc::rusage>() };
    // SAFETY: no memory is involved; the child has not been waited for, so its process id is still its own.
    unsafe { libc::kill(pid, libc::SIGINT) };
    // SAFETY: both pointers are to live values of the types that wait4 writes.
    let waited = unsafe { libc::wait4(pid, &raw mut status, 0, &raw mut usage) };
    if waited != pid {
        bail!("teiji could not be waited for: {}", std::io::Error::last_os_error());
    }
    if !libc::WIFEXITED(status) || libc::WEXITSTATUS(status) != 0 {
        bail!("teiji failed (status {status:#x})");
    }
    Ok(usage.ru_maxrss as u64)
}

/// Numbered frames to send.
struct Frames {
    frames: Vec<[u8; FRAME]>,
}

impl Frames {
    fn new() -> Frames {
        let mut frame = [0; FRAME];
        frame[..6].copy_from_slice(&[0x52, 0x54, 0, 0x77, 9, 2]);
        frame[6..12].copy_from_slice(&[0x52, 0x54, 0, 0x77, 9, 1]);
        frame[12..14].copy_from_slice(&[8, 0]);
        let length = (FRAME - 14) as u16;
        frame[14..34].copy_from_slice(&[
            0x45,
            0,
            (length >> 8) as u8,
            length as u8,
            0,
            0,
            0x40,
            0,
            64,
            17,
            0,
            0,
            10,
            99,
            0,
            1,
            10,
            99,
            0,
            2,
        ]);
        frame[34..36].copy_from_slice(&1024u16.to_be_bytes());
        frame[36..38].copy_from_slice(&PORT.to_be_bytes());
        frame[38..40].copy_from_slice(&(length - 20).to_be_bytes());
        Frames { frames: vec![frame; BATCH] }
    }

    /// Gives frame `i` a number: payload, IP identification and checksums.
    fn number(&mut self, i: usize, n: u64) {
        let frame = &mut self.frames[i];
        frame[18..20].copy_from_slice(&(n as u16).to_be_bytes());
        frame[24..26].fill(0);
        let header = checksum(&frame[14..34], 0);
        frame[24..26].copy_from_slice(&header.to_be_bytes());
        frame[40..42].fill(0);
        frame[42..50].copy_from_slice(&n.to_be_bytes());
        // The pseudo-header: addresses, protocol, length.
        let pseudo = 10 * 512 + 99 * 2 + 1 + 2 + 17 + (FRAME - 34) as u32;
        let sum = checksum(&frame[34..], pseudo);
        frame[40..42].copy_from_slice(&if sum == 0 { 0xffff } else { sum }.to_be_bytes());
    }
}

/// The Internet checksum of `bytes` (of even length), with `start` added.
fn checksum(bytes: &[u8], start: u32) -> u16 {
    let mut sum = start + bytes.chunks_exact(2).map(|c| u32::from(c[0]) << 8 | u32::from(c[1])).sum::<u32>();
    while sum >> 16 != 0 {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

/// Sends `count` frames from `device` at `rate` per second; returns how many were sent, and in how many seconds.
fn send(device: &str, rate: f64, count: u64) -> Result<(u64, f64)> {
    let socket = open_packet_socket(device)?;
    let mut frames = Frames::new();
    let begun = Instant::now();
    let mut sent = 0;
    while sent < count {
        let due = Duration::from_secs_f64(sent as f64 / rate);
        if let Some(rest) = due.checked_sub(begun.elapsed()) {
            std::thread::sleep(rest);
        }
        let batch = BATCH.min((count - sent) as usize);
        for i in 0..batch {
            frames.number(i, sent + i as u64);
        }
        sent += send_batch(&socket, &mut frames.frames[..batch])? as u64;
    }
    Ok((sent, begun.elapsed().as_secs_f64()))
}

fn open_packet_socket(device: &str) -> Result<OwnedFd> {
    let index = nix::net::if_::if_nametoindex(device).with_context(|| format!("there is no {device}"))?;
    // SAFETY: no memory is involved.
    let fd = unsafe { libc::socket(libc::AF_PACKET, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0) };
    if fd < 0 {
        return Err(std::io::Error::last_os_error()).context("cannot open a packet socket");
    }
    // SAFETY: the call above has just created this descriptor, and nothing else owns it.
    let socket = unsafe { OwnedFd::from_raw_fd(fd) };
    let address = libc::sockaddr_ll {
        sll_family: libc::AF_PACKET as u16,
        sll_protocol: 0,
        sll_ifindex: index as i32,
        sll_hatype: 0,
        sll_pkttype: 0,
        sll_halen: 0,
        sll_addr: [0; 8],
    };
    // SAFETY: `address` is a complete sockaddr_ll and outlives the call.
    let bound =
        unsafe { libc::bind(fd, (&raw const address).cast(), size_of_val(&address) as libc::socklen_t) };
    if bound < 0 {
        return Err(std::io::Error::last_os_error()).with_context(|| format!("cannot send from {device}"));
    }
    Ok(socket)
}

/// Sends all of `frames`; returns how many the kernel accepted.
fn send_batch(socket: &OwnedFd, frames: &mut [[u8; FRAME]]) -> Result<usize> {
    let mut parts: Vec<libc::iovec> =
        frames.iter_mut().map(|f| libc::iovec { iov_base: f.as_mut_ptr().cast(), iov_len: FRAME }).collect();
    let mut messages: Vec<libc::mmsghdr> = parts
        .iter_mut()
        .map(|part| {
            // SAFETY: all zeros are a valid, empty message header.
            let mut m = unsafe { std::mem::zeroed::<libc::mmsghdr>() };
            m.msg_hdr.msg_iov = part;
            m.msg_hdr.msg_iovlen = 1;
            m
        })
        .collect();
    // SAFETY: the headers, the parts they point to, and the frames those point to outlive the call.
    let taken =
        unsafe { libc::sendmmsg(socket.as_raw_fd(), messages.as_mut_ptr(), messages.len() as u32, 0) };
    if taken >= 0 {
        return Ok(taken as usize);
    }
    let error = std::io::Error::last_os_error();
    match error.raw_os_error() {
        Some(libc::ENOBUFS | libc::EAGAIN | libc::EINTR) => Ok(0),
        _ => Err(error).context("cannot send"),
    }
}
