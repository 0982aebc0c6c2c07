//! `capture`: records the packets of an interface with the kernel's own time stamps.
//!
//! It is the independent reference for the stages that teiji reports, so the kernel stamps packets where they pass
//! (`PACKET_TIMESTAMP` of a TPACKET_V3 ring, CLOCK_REALTIME), not user space. The stamps are software stamps, not those
//! of hardware. The file is a pcap with nanoseconds; the difference between its clock and CLOCK_MONOTONIC is printed to
//! standard output, for comparison with stamps of `bpf_ktime_get_ns`.

use std::{
    fs::File,
    io::{self, BufWriter, Write},
    os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd},
    path::Path,
    sync::atomic::{AtomicBool, AtomicU32, Ordering, fence},
    time::{Duration, Instant},
};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use serde::Serialize;

use super::pcap;
use crate::error::{Doing, Result};

const BLOCK: usize = 1 << 20;
const BLOCKS: usize = 32;
/// How long a packet stays in a block that is not full, at most, ms. It is long, so that the capture seldom takes a CPU
/// away from what it measures.
const RETIRE_MS: u32 = 500;
/// How long it may take at the end until the kernel has handed over the last block. An emulated CPU may stand still meanwhile.
const HAND_OVER_LIMIT: Duration = Duration::from_secs(60);

/// The result of a capture.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Counts {
    /// Packets written to the file.
    pub packets: u64,
    /// Packets that the kernel dropped for lack of room.
    pub dropped: u64,
    /// CLOCK_REALTIME minus CLOCK_MONOTONIC at the end, ns.
    pub realtime_minus_monotonic_ns: i64,
    /// By how much that may be wrong, ns.
    pub difference_error_ns: i64,
}

static STOP: AtomicBool = AtomicBool::new(false);

extern "C" fn stop(_: i32) {
    STOP.store(true, Ordering::Relaxed);
}

/// Captures the first `snap` bytes of every packet of `interface` to `file`, for `length` or until SIGINT or SIGTERM.
///
/// # Errors
/// Without CAP_NET_RAW, if there is no such interface, if the file cannot be written, or if the kernel does not hand over all
/// packets.
pub fn run(interface: &str, file: &Path, snap: u32, length: Option<Duration>) -> Result<Counts> {
    for signal in [nix::sys::signal::SIGINT, nix::sys::signal::SIGTERM] {
        // SAFETY: the handler only stores to an atomic.
        unsafe { nix::sys::signal::signal(signal, nix::sys::signal::SigHandler::Handler(stop)) }
            .doing(|| "handle signals".into())?;
    }
    let write = || format!("write {}", file.display());
    let mut out = BufWriter::with_capacity(1 << 20, File::create(file).doing(write)?);
    pcap::begin(&mut out, snap).doing(write)?;
    let ring =
        Ring::open(interface).doing(|| format!("capture on {interface} (root, and does it exist?)"))?;
    println!("capturing {interface}");
    let end = length.map(|l| Instant::now() + l);
    let mut packets = 0;
    let mut next = 0;
    // What the kernel had counted when the capture had to end, and when that was.
    let mut at_end: Option<(Statistics, Instant)> = None;
    let statistics = || ring.statistics().doing(|| "ask for the kernel's counts of packets".into());
    let mut dropped = loop {
        while let Some(block) = ring.ready(next) {
            packets += ring.write(block, snap as usize, &mut out).doing(write)?;
            ring.give_back(block);
            next = (next + 1) % BLOCKS;
        }
        if let Some((counted, since)) = &at_end {
            if packets >= counted.put {
                break counted.dropped;
            }
            if since.elapsed() >= HAND_OVER_LIMIT {
                let why = format!(
                    "the kernel has not handed over {} of {} packets within {HAND_OVER_LIMIT:?}",
                    counted.put - packets,
                    counted.put
                );
                return Err(io::Error::new(io::ErrorKind::TimedOut, why))
                    .doing(|| format!("complete the capture on {interface}"));
            }
        } else if STOP.load(Ordering::Relaxed) || end.is_some_and(|e| Instant::now() >= e) {
            // The last of them are in a block that the kernel hands over when it retires it.
            at_end = Some((statistics()?, Instant::now()));
            continue;
        }
        ring.wait(RETIRE_MS);
    };
    out.flush().doing(write)?;
    dropped += statistics()?.dropped;
    let (difference_error_ns, realtime_minus_monotonic_ns) = super::clock_difference();
    Ok(Counts { packets, dropped, realtime_minus_monotonic_ns, difference_error_ns })
}

/// What the kernel has done with the packets of a ring since it was asked last.
#[derive(Clone, Copy)]
struct Statistics {
    /// Packets that it has put into the ring.
    put: u64,
    /// Packets that it has dropped for lack of room.
    dropped: u64,
}

/// A mapped TPACKET_V3 ring; see the kernel's `Documentation/networking/packet_mmap.rst`.
struct Ring {
    socket: OwnedFd,
    map: *mut u8,
}

impl Ring {
    fn open(interface: &str) -> nix::Result<Ring> {
        let index = nix::net::if_::if_nametoindex(interface)?;
        // SAFETY: no memory is involved.
        let fd = unsafe { libc::socket(libc::AF_PACKET, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0) };
        let fd = nix::Error::result(fd)?;
        // SAFETY: the call has just made this descriptor, so nothing else owns it.
        let socket = unsafe { OwnedFd::from_raw_fd(fd) };
        let option = |name, value: *const libc::c_void, size: usize| {
            // SAFETY: `value` points to `size` bytes that outlive the call.
            let r = unsafe { libc::setsockopt(fd, libc::SOL_PACKET, name, value, size as libc::socklen_t) };
            nix::Error::result(r).map(drop)
        };
        let version = libc::tpacket_versions::TPACKET_V3 as libc::c_int;
        option(libc::PACKET_VERSION, (&raw const version).cast(), size_of_val(&version))?;
        // The kernel stamps packets where they enter the stack only while a socket requests stamps. The ring's own
        // option does not count as such a request: without this, the stamp is that of copying into the ring.
        nix::sys::socket::setsockopt(&socket, nix::sys::socket::sockopt::ReceiveTimestampns, &true)?;
        let stamp = libc::SOF_TIMESTAMPING_SOFTWARE as libc::c_int;
        option(libc::PACKET_TIMESTAMP, (&raw const stamp).cast(), size_of_val(&stamp))?;
        let request = libc::tpacket_req3 {
            tp_block_size: BLOCK as u32,
            tp_block_nr: BLOCKS as u32,
            tp_frame_size: 2048,
            tp_frame_nr: (BLOCK / 2048 * BLOCKS) as u32,
            tp_retire_blk_tov: RETIRE_MS,
            tp_sizeof_priv: 0,
            tp_feature_req_word: 0,
        };
        option(libc::PACKET_RX_RING, (&raw const request).cast(), size_of_val(&request))?;
        // SAFETY: a new mapping; it replaces nothing.
        let map = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                BLOCK * BLOCKS,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                fd,
                0,
            )
        };
        if map == libc::MAP_FAILED {
            return Err(nix::Error::last());
        }
        let ring = Ring { socket, map: map.cast() };
        // Bound last: before this the socket has no protocol, so no packet comes or is counted.
        let address = libc::sockaddr_ll {
            sll_family: libc::AF_PACKET as u16,
            sll_protocol: (libc::ETH_P_ALL as u16).to_be(),
            sll_ifindex: index as i32,
            sll_hatype: 0,
            sll_pkttype: 0,
            sll_halen: 0,
            sll_addr: [0; 8],
        };
        // SAFETY: `address` is a complete sockaddr_ll and outlives the call.
        let r =
            unsafe { libc::bind(fd, (&raw const address).cast(), size_of_val(&address) as libc::socklen_t) };
        nix::Error::result(r)?;
        Ok(ring)
    }

    fn block(&self, n: usize) -> *mut libc::tpacket_block_desc {
        // SAFETY: n < BLOCKS, so the pointer stays in the mapping; blocks are page-aligned.
        unsafe { self.map.add(n * BLOCK).cast() }
    }

    fn status(&self, block: *mut libc::tpacket_block_desc) -> &AtomicU32 {
        // SAFETY: `block` is in the mapping, which lives as long as `self`; the kernel writes the aligned word
        // concurrently, which an atomic allows.
        unsafe { AtomicU32::from_ptr(&raw mut (*block).hdr.bh1.block_status) }
    }

    /// Block `n`, if the kernel has handed it over.
    fn ready(&self, n: usize) -> Option<*mut libc::tpacket_block_desc> {
        let block = self.block(n);
        let ours = self.status(block).load(Ordering::Acquire) & libc::TP_STATUS_USER != 0;
        ours.then_some(block)
    }

    fn give_back(&self, block: *mut libc::tpacket_block_desc) {
        fence(Ordering::Release);
        self.status(block).store(libc::TP_STATUS_KERNEL, Ordering::Release);
    }

    fn write(
        &self,
        block: *mut libc::tpacket_block_desc,
        snap: usize,
        out: &mut impl Write,
    ) -> std::io::Result<u64> {
        // SAFETY: the kernel has handed the block over and does not touch it until it is given back.
        let (count, first) = unsafe { ((*block).hdr.bh1.num_pkts, (*block).hdr.bh1.offset_to_first_pkt) };
        let mut at = block.cast::<u8>().wrapping_add(first as usize);
        for _ in 0..count {
            // SAFETY: the kernel writes `count` packet headers into the block, each aligned to 16 bytes, followed by
            // the address at the aligned header size, and the frame at tp_mac with tp_snaplen bytes.
            unsafe {
                let header = &*at.cast::<libc::tpacket3_hdr>();
                let address = &*at
                    .add(size_of::<libc::tpacket3_hdr>().next_multiple_of(16))
                    .cast::<libc::sockaddr_ll>();
                let kept = (header.tp_snaplen as usize).min(snap);
                let frame = std::slice::from_raw_parts(at.add(header.tp_mac as usize), kept);
                pcap::packet(
                    out,
                    &pcap::Packet {
                        seconds: header.tp_sec,
                        nanoseconds: header.tp_nsec,
                        direction: address.sll_pkttype,
                        ifindex: address.sll_ifindex as u32,
                        frame,
                        length: header.tp_len,
                    },
                )?;
                at = at.add(header.tp_next_offset as usize);
            }
        }
        Ok(u64::from(count))
    }

    fn wait(&self, ms: u32) {
        let mut fds = [PollFd::new(self.socket.as_fd(), PollFlags::POLLIN)];
        // A signal or the timeout ends it: the caller checks in any case.
        let _ = poll(&mut fds, PollTimeout::from(ms.min(1000) as u16));
    }

    /// The kernel begins to count anew each time.
    fn statistics(&self) -> nix::Result<Statistics> {
        let mut stats = libc::tpacket_stats_v3 { tp_packets: 0, tp_drops: 0, tp_freeze_q_cnt: 0 };
        let mut size = size_of_val(&stats) as libc::socklen_t;
        // SAFETY: `stats` and `size` outlive the call, and `size` is the size of `stats`.
        let r = unsafe {
            libc::getsockopt(
                self.socket.as_raw_fd(),
                libc::SOL_PACKET,
                libc::PACKET_STATISTICS,
                (&raw mut stats).cast(),
                &raw mut size,
            )
        };
        nix::Error::result(r)?;
        // The kernel adds those that it dropped to the packets.
        let put = stats.tp_packets.wrapping_sub(stats.tp_drops);
        Ok(Statistics { put: u64::from(put), dropped: u64::from(stats.tp_drops) })
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // SAFETY: `open` has made the mapping with this size, and nothing refers to it any more.
        unsafe { libc::munmap(self.map.cast(), BLOCK * BLOCKS) };
    }
}
