//! A long trace keeps memory flat: 10,000 events per second of simulated time, 15 minutes long, or `SOAK_HOURS` hours
//! (`make soak`: 24).
//!
//! What the trace does with events is done here, too: they are written to a recording and analysed, and a snapshot is taken
//! now and then. Calls begin and end, requests are dropped or never answered, packets look alike, VMs and threads come and
//! go and are named, events are lost.

mod common;

use common::*;
use std::time::{Duration, Instant};
use teiji_analysis::{Analyzer, Options};
use teiji_model::event::*;
use teiji_model::flow::Matching;
use teiji_model::recording::Writer;
use teiji_model::report::{Counters, MAX_VMS};
use teiji_model::stream::{Change, Changed};

const SECOND: u64 = 1_000_000_000;
/// Requests per second, of at most ten events each: 10,000 events.
const REQUESTS: u64 = 1_050;
/// One of so many requests is to a VM that is there for one second only, while the trace has room for another VM.
const VISITED: u64 = 20;
/// So many of these come each second: a trace has room for [`MAX_VMS`], and the report has a place for each of them. The
/// last of them come before the warm-up ends; later ones are counted.
const VISITORS: u64 = 3;
/// In this time, s, tables fill that entries leave only for want of room: no call ends, and each request meets a new
/// thread, so that there are more than twice as many of either as tables have room for (65,536): a hash table that is full,
/// and whose entries change, grows once more.
const WARM_UP: u64 = 500;
/// Most resident memory by then, kB.
const MOST: u64 = 150_000;
/// Most memory in use by then, kB: the short form.
const MOST_IN_USE: u64 = 80_000;
/// How much memory may grow after that in the short form, and in the long one after [`SETTLED`], kB: the allocator may keep the room
/// of the largest table (3 MB) when its index is replaced, which happens once in hours.
const GROWTH: u64 = 4_000;
/// How much it may grow in the long form until [`SETTLED`], kB: snapshots copy what is followed, and leave the allocator's memory in
/// pieces.
const FRAGMENTS: u64 = 30_000;
/// In this time, s, that comes to an end.
const SETTLED: u64 = 2 * 3600;

/// The memory of this process, kB.
fn resident_kb() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|l| l.strip_prefix("VmRSS:")).unwrap_or_default();
    line.split_whitespace().next().and_then(|kb| kb.parse().ok()).expect("the kernel tells VmRSS")
}

/// What of it is in use, kB. Not the resident memory: whether the allocator returns the memory of a freed report (as large as a
/// snapshot's) depends on where it lies, and evens out only after hours; and transparent huge pages may make returned memory
/// resident again.
fn in_use_kb() -> u64 {
    // SAFETY: it takes no pointer, and may be called at any time.
    let all = unsafe { libc::mallinfo2() };
    (all.uordblks + all.hblkhd) as u64 / 1024
}

fn noise(n: u64) -> u64 {
    let n = (n ^ n >> 33).wrapping_mul(0xff51_afd7_ed55_8ccd);
    (n ^ n >> 33).wrapping_mul(0xc4ce_b9fe_1a85_ec53) >> 8
}

/// The process id of a VM that comes in this second, and the index of its tap, if the trace has room for it.
fn visitor(number: u64, nth: u64) -> Option<(u32, u32)> {
    let before = number * VISITORS + nth;
    (before + 2 < MAX_VMS as u64).then_some((100_000 + before as u32, 1_000 + before as u32))
}

/// VMs come at the beginning of a second, with other process ids and taps each time, and end with it.
fn changes(number: u64) -> Vec<Change> {
    let came = |ts| move |(pid, tap)| Change { ts, what: Changed::Vm(Box::new(vm(pid, tap))) };
    let ended = |ts| move |(pid, _)| Change { ts, what: Changed::Ended { pid } };
    let visitors =
        || (0..VISITORS).map(|nth| visitor(number, nth).unwrap_or((99_000 + nth as u32, 900 + nth as u32)));
    let (begin, end) = (T + number * SECOND, T + (number + 1) * SECOND - 1);
    visitors().map(came(begin)).chain(visitors().map(ended(end))).collect()
}

/// The events of a second, in the order in which they are drained: every 10 ms, CPU by CPU.
fn second(number: u64) -> Vec<Event> {
    let mut h = History::default();
    for i in 0..REQUESTS {
        let n = number * REQUESTS + i;
        let (chance, t) = (noise(n) % 1000, number * SECOND + i * SECOND / REQUESTS);
        // One of a thousand packets looks like the one before.
        let fp = noise(n - u64::from(chance == 999)) | 1;
        // Calls of three requests that begin a second after each other.
        let (group, part) = (1 + n / (3 * REQUESTS) * REQUESTS + n % REQUESTS, n / REQUESTS % 3);
        let last = if number < WARM_UP { GroupRole::Within } else { GroupRole::Ends };
        let group_role = [GroupRole::Begins, GroupRole::Within, last][part as usize];
        let matching = |role| Some(Match { key: n, role, group, group_role });
        let first = h.0.len();
        match chance {
            0..20 => drop(h.request(t, fp, matching(Role::Request))),
            20..40 => drop(h.dropped(t, fp, NIC, matching(Role::Request))),
            // Not taken off the tap.
            40..45 => {
                h.request(t, fp, matching(Role::Request));
                h.0.truncate(first + 2);
            }
            _ => drop(h.request(t, fp, matching(Role::Request)).response(
                t + 60_000 + chance * 40_000,
                !fp,
                matching(Role::Final),
            )),
        }
        if let Some((pid, tap)) =
            visitor(number, i % VISITORS).filter(|_| (i / VISITORS).is_multiple_of(VISITED))
        {
            h.redirect(first, pid, tap);
        }
        // Later a new thread has the vCPU's CPU each tenth of a second.
        let each = if number < WARM_UP { 1 } else { REQUESTS / 10 };
        let tid = 1_000 + (n / each * each) as u32;
        if chance % 10 == 0 {
            for event in &mut h.0[first..] {
                if let EventKind::GuestEntry(entry) = &mut event.kind {
                    entry.preempted_by = tid;
                }
            }
        }
        if i % each == 0 {
            let comm = padded(&format!("worker {tid}"))[..16].try_into().expect("16 bytes");
            h.at(t, EventKind::ThreadName(ThreadName { tid, comm }));
        }
    }
    if number % 60 == 59 {
        let until = (number + 1) * SECOND;
        h.at(until, EventKind::Lost(Lost { since: T + until - 1_000_000, count: 3 }));
    }
    for (n, event) in h.0.iter_mut().enumerate() {
        event.cpu = (n % 8) as u16;
    }
    h.0.sort_by_key(|e| (e.ts / 10_000_000, e.cpu, e.ts));
    h.0
}

#[test]
fn memory_is_flat() {
    let hours: Option<u64> =
        std::env::var("SOAK_HOURS").ok().map(|h| h.parse().expect("SOAK_HOURS: a number"));
    let seconds = hours.map_or(900, |hours| hours * 3600);
    let (settling, most) = if hours.is_some() { (FRAGMENTS, MOST) } else { (GROWTH, MOST_IN_USE) };
    let meta = meta(Matching::Sip);
    let mut analyzer = Analyzer::new(&meta, Options { seed: 5, ..Options::default() });
    let mut recording = Writer::new(std::io::sink(), &meta).unwrap();
    let (mut events, mut joined, mut warm, mut settled) = (0u64, 0u64, 0, 0);
    let (begun, mut told) = (Instant::now(), Instant::now());
    for number in 0..seconds {
        for change in changes(number) {
            recording.change(&change).unwrap();
            analyzer.change(change);
        }
        for event in second(number) {
            recording.push(event).unwrap();
            analyzer.push(event, &mut |_| joined += 1);
            events += 1;
        }
        let counters = Counters { ended: T + (number + 1) * SECOND, events, ..Counters::default() };
        recording.sync(&counters).unwrap();
        // In the warm-up as well: a copy of all that is followed needs room.
        if number % 60 == 59 {
            let report = analyzer.snapshot(counters);
            let vms = 2 + (number + 1) * VISITORS;
            assert_eq!(report.vms.len() as u64 + report.not_followed, vms);
            assert_eq!(report.vms.len() as u64, vms.min(MAX_VMS as u64));
        }
        let now = if hours.is_some() { resident_kb() } else { in_use_kb() };
        if number == WARM_UP {
            warm = now;
            assert!(resident_kb() <= MOST, "{} kB resident", resident_kb());
            assert!(warm <= most, "{warm} kB with {MAX_VMS} VMs that have ended");
        }
        if number == SETTLED {
            settled = now;
        }
        assert!(
            (number < WARM_UP || now <= warm + settling) && (number < SETTLED || now <= settled + GROWTH),
            "{warm} kB after {WARM_UP} s, {settled} kB after {SETTLED} s, {now} kB after {number} s"
        );
        if told.elapsed() > Duration::from_secs(10) || number + 1 == seconds {
            told = Instant::now();
            println!(
                "{:.1} of {:.1} h: {events} events, {joined} requests, {now} kB, {:.0?}",
                (number + 1) as f64 / 3600.0,
                seconds as f64 / 3600.0,
                begun.elapsed()
            );
        }
    }
    assert!(events / seconds >= 10_000, "{} events per second", events / seconds);
    let report =
        analyzer.finish(Counters { ended: T + seconds * SECOND, events, ..Counters::default() }, &mut |_| ());
    let requests = report.vms[0].requests;
    let of_visitors: u64 = report.vms[2..].iter().map(|vm| vm.requests.complete).sum();
    assert!(requests.complete > requests.seen * 9 / 10, "{requests:?}");
    assert!(requests.complete + of_visitors >= joined, "{requests:?}, {of_visitors}, {joined}");
    assert!(report.vms[2..].iter().all(|vm| vm.requests.complete > 0), "a VM without a request");
    println!("{requests:?}, {} late", report.late);
}
