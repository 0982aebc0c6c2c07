//! Measures accesses to memory between nodes: programs P and Q, latency, bandwidth ([`teiji_model::numa_bench`]).
//!
//! The thread that measures runs on one CPU of a node, and its memory is bound to a node before it is touched. Pages are those of the usual
//! size, not transparent huge pages, so that there is a page fault for each. A buffer of program P is a mapping; that of program Q is a file
//! in memory (memfd), whose pages the kernel writes.

use super::nodes;
use crate::root::Root;
use crate::sys::{self, Memory};
use nix::errno::Errno;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Instant;
use teiji_model::cpus::CpuSet;
use teiji_model::numa::Node;
use teiji_model::numa_bench::{NumaBench, Pair, Program, Run, Settings};

/// The size of a cache line, bytes.
const LINE: usize = 64;
/// Reads whose times are added up for a latency, and times that memory is read for a bandwidth.
const READS: usize = 2_000_000;
const SWEEPS: u32 = 3;
/// The buffer for latency and bandwidth is so many times as large as the caches, and between these sizes.
const TIMES_CACHE: u64 = 4;
const LARGE: std::ops::RangeInclusive<u64> = (64 << 20)..=(1 << 30);
/// At most this part of what a node has free is taken.
const PART: u64 = 4;
/// But so much in any case, bytes.
const LEAST: u64 = 1 << 20;

/// Why nothing was measured.
#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    /// The kernel refused.
    #[error("cannot {what}, so nothing can be measured")]
    System {
        /// What was tried.
        what: &'static str,
        /// The kernel's answer.
        #[source]
        source: Errno,
    },
    /// There is not enough memory.
    #[error(
        "node {node} has {free} MiB free, too little for a buffer of {wanted} MiB, which may be a quarter of it; choose smaller ones with --size"
    )]
    TooSmall {
        /// The node.
        node: u32,
        /// MiB.
        free: u64,
        /// MiB.
        wanted: u64,
    },
}

fn failed(what: &'static str) -> impl Fn(Errno) -> BenchError {
    move |source| BenchError::System { what, source }
}

/// The settings that suit this host: the paper's sizes and strides, and a buffer that is larger than the caches, if there is room.
pub fn usual_settings(root: &Root) -> Settings {
    let large =
        (cache(root) * TIMES_CACHE).clamp(*LARGE.start(), *LARGE.end()).min(room(&nodes::nodes(root)));
    let sizes = [16 << 20, 32 << 20].into_iter().chain(Some(large).filter(|large| *large > 32 << 20));
    Settings { sizes: sizes.collect(), strides: vec![64, 4], passes: 6, large }
}

/// How large a buffer may be on each node with memory, bytes.
fn room(nodes: &[Node]) -> u64 {
    let of_nodes = nodes.iter().filter(|node| node.memory > 0).map(|node| node.available / PART);
    of_nodes.min().unwrap_or(0).max(LEAST)
}

/// The size of the largest cache of CPU 0, bytes; 0 if it is not known.
fn cache(root: &Root) -> u64 {
    let dir = "sys/devices/system/cpu/cpu0/cache";
    let size = |name: &String| {
        let text = root.text(&format!("{dir}/{name}/size"))?;
        text.trim().strip_suffix('K')?.parse::<u64>().ok().map(|kib| kib << 10)
    };
    root.names(dir).iter().filter_map(size).max().unwrap_or(0)
}

/// Measures each pair of nodes. `progress` is told what comes next, and how many parts are done of how many.
///
/// # Errors
/// If the kernel refuses, or a node has too little memory.
pub fn bench(
    root: &Root,
    settings: &Settings,
    progress: &mut dyn FnMut(&str, usize, usize),
) -> Result<NumaBench, BenchError> {
    let nodes = nodes::nodes(root);
    let allowed = sys::affinity(thread()).map_err(failed("read the CPUs of this thread"))?;
    let has_cpu = |node: &&Node| node.cpus.iter().any(|cpu| allowed.contains(cpu));
    let from: Vec<&Node> = nodes.iter().filter(has_cpu).collect();
    let to: Vec<&Node> = nodes.iter().filter(|node| node.memory > 0).collect();
    let largest = settings.sizes.iter().copied().max().unwrap_or(0);
    let large = settings.large.min(room(&nodes));
    if let Some(small) = to.iter().find(|node| node.available / PART < largest) {
        let (node, free, wanted) = (small.id, small.available >> 20, largest >> 20);
        return Err(BenchError::TooSmall { node, free, wanted });
    }
    let mut found = NumaBench { cache: cache(root), large, ..NumaBench::default() };
    let pairs: Vec<(&Node, &Node)> = from.iter().flat_map(|f| to.iter().map(move |t| (*f, *t))).collect();
    for (done, (from, to)) in pairs.iter().enumerate() {
        progress(&format!("CPUs of node {}, memory of node {}", from.id, to.id), done, pairs.len());
        let measured = on_pair(from, to, &allowed, settings, nodes.len() > 1, &mut found);
        // Whatever happens, this thread goes back to the CPUs that it had.
        sys::set_affinity(thread(), &allowed).map_err(failed("go back to all CPUs"))?;
        measured?;
    }
    Ok(found)
}

fn on_pair(
    from: &Node,
    to: &Node,
    allowed: &CpuSet,
    settings: &Settings,
    bind: bool,
    found: &mut NumaBench,
) -> Result<(), BenchError> {
    // The last one: interrupts often go to the first.
    let cpu: CpuSet = from.cpus.iter().filter(|cpu| allowed.contains(*cpu)).last().into_iter().collect();
    sys::set_affinity(thread(), &cpu).map_err(failed("run on a CPU of each node"))?;
    let node = bind.then_some(to.id);
    let large = memory(found.large, node)?;
    let (latency, bandwidth) = (latency(&large), bandwidth(&large));
    found.pairs.push(Pair { from: from.id, to: to.id, latency, bandwidth });
    drop(large);
    for (size, stride) in
        settings.sizes.iter().flat_map(|size| settings.strides.iter().map(|stride| (*size, *stride)))
    {
        for program in [Program::P, Program::Q] {
            // The kernel's writes are dear, whatever the memory: those of the first stride tell.
            if program == Program::Q && Some(&stride) != settings.strides.first() {
                continue;
            }
            let mut run = Run {
                program,
                from: from.id,
                to: to.id,
                size,
                stride,
                writes: size / stride,
                passes: Vec::new(),
                faults: (0, 0),
            };
            match program {
                Program::P => program_p(&memory(size, node)?, settings.passes, &mut run),
                Program::Q => program_q(size, node, settings.passes, &mut run)?,
            }
            found.runs.push(run);
        }
    }
    Ok(())
}

/// This thread.
fn thread() -> u32 {
    nix::unistd::gettid().as_raw().unsigned_abs()
}

/// Memory that nothing was written to, on this node.
fn memory(size: u64, node: Option<u32>) -> Result<Memory, BenchError> {
    let size = usize::try_from(size).map_err(|_| failed("get memory")(Errno::ENOMEM))?;
    let memory = Memory::new(size).map_err(failed("get memory"))?;
    if let Some(node) = node {
        memory.bind(node).map_err(failed("bind memory to a node"))?;
    }
    Ok(memory)
}

/// Times each pass, and counts the page faults of the first one and of the others.
fn passes(
    run: &mut Run,
    count: u32,
    mut pass: impl FnMut() -> Result<(), BenchError>,
) -> Result<(), BenchError> {
    for n in 0..count {
        let (faults, begun) = (sys::page_faults(), Instant::now());
        pass()?;
        let ns = begun.elapsed().as_nanos().min(u64::MAX.into()) as u64;
        let new = sys::page_faults().saturating_sub(faults);
        run.passes.push(ns);
        *(if n == 0 { &mut run.faults.0 } else { &mut run.faults.1 }) += new;
    }
    Ok(())
}

fn program_p(memory: &Memory, count: u32, run: &mut Run) {
    let step = (run.stride / 4).max(1) as usize;
    let words = memory.words();
    let mut value = 0;
    let done = passes(run, count, || {
        value += 1;
        // Atomic, so that each write is one of 4 bytes.
        words.iter().step_by(step).for_each(|word| word.store(value, Ordering::Relaxed));
        Ok(())
    });
    debug_assert!(done.is_ok());
}

fn program_q(size: u64, node: Option<u32>, count: u32, run: &mut Run) -> Result<(), BenchError> {
    let file = sys::file_in_memory(size).map_err(failed("make a file in memory"))?;
    // The pages of the file come from the node that it is bound to, whoever touches them first: here the kernel, outside the first pass,
    // as in the paper.
    let bytes = usize::try_from(size).map_err(|_| failed("get memory")(Errno::ENOMEM))?;
    let mapped = Memory::of_file(&file, bytes).map_err(failed("map a file"))?;
    if let Some(node) = node {
        mapped.bind(node).map_err(failed("bind memory to a node"))?;
    }
    rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, size)
        .map_err(|error| failed("get memory for a file")(Errno::from_raw(error.raw_os_error())))?;
    let mut value = 0u32;
    let stride = run.stride.max(4);
    passes(run, count, || {
        value += 1;
        let mut at = 0;
        while at + 4 <= size {
            rustix::io::pwrite(file.as_fd(), &value.to_ne_bytes(), at).map_err(|error| {
                failed("write to a file in memory")(Errno::from_raw(error.raw_os_error()))
            })?;
            at += stride;
        }
        Ok(())
    })
}

/// ns for a read whose address is that which the one before has read. The lines are in a random order, so that the CPU cannot fetch them
/// before.
fn latency(memory: &Memory) -> f64 {
    let words = memory.words();
    let step = LINE / 4;
    let lines = words.len() / step;
    if lines < 2 {
        return 0.0;
    }
    // A cycle through all lines (Sattolo's algorithm): first each line leads to itself.
    (0..lines).for_each(|line| words[line * step].store(line as u32, Ordering::Relaxed));
    let mut numbers = 0x9e37_79b9_7f4a_7c15u64;
    for line in (1..lines).rev() {
        numbers ^= numbers << 13;
        numbers ^= numbers >> 7;
        numbers ^= numbers << 17;
        let other = (numbers % line as u64) as usize;
        let (a, b) = (&words[line * step], &words[other * step]);
        let of_a = a.load(Ordering::Relaxed);
        a.store(b.load(Ordering::Relaxed), Ordering::Relaxed);
        b.store(of_a, Ordering::Relaxed);
    }
    let mut at = 0usize;
    let begun = Instant::now();
    for _ in 0..READS {
        at = words[at * step].load(Ordering::Relaxed) as usize;
    }
    let ns = begun.elapsed().as_nanos() as f64 / READS as f64;
    std::hint::black_box(at);
    ns
}

/// Bytes/s of a CPU that reads memory in order: the best of some times.
fn bandwidth(memory: &Memory) -> f64 {
    let words: &[AtomicU32] = memory.words();
    let mut best = 0.0f64;
    for _ in 0..SWEEPS {
        let begun = Instant::now();
        // One word of each line: the whole line is fetched.
        let sum = words
            .iter()
            .step_by(LINE / 4)
            .fold(0u32, |sum, word| sum.wrapping_add(word.load(Ordering::Relaxed)));
        std::hint::black_box(sum);
        let seconds = begun.elapsed().as_secs_f64();
        best = best.max(size_of_val(words) as f64 / seconds.max(1e-9));
    }
    best
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZE: u64 = 8 << 20;

    fn measured(settings: &Settings) -> NumaBench {
        let mut said = Vec::new();
        let found =
            bench(&Root::default(), settings, &mut |what, done, all| said.push((what.to_owned(), done, all)));
        let found = found.unwrap();
        assert_eq!(said.len(), found.pairs.len());
        found
    }

    /// What must hold on any machine, however busy: counts, not times.
    #[test]
    fn each_page_is_touched_for_the_first_time_once() {
        let settings = Settings { sizes: vec![SIZE], strides: vec![64, 4], passes: 4, large: SIZE };
        let before = sys::affinity(thread()).unwrap();
        let found = measured(&settings);
        assert_eq!(sys::affinity(thread()).unwrap(), before);
        assert!(found.pairs.iter().all(|pair| pair.latency > 0.0 && pair.bandwidth > 0.0), "{found:?}");
        let pages = SIZE / 4096;
        for run in &found.runs {
            assert_eq!((run.passes.len(), run.writes), (4, SIZE / run.stride), "{run:?}");
            assert!(run.passes.iter().all(|ns| *ns > 0));
            let (first, later) = run.faults;
            match run.program {
                // A fault or two are those of the program itself.
                Program::P => assert!(first >= pages && first < pages + 50 && later < 50, "{run:?}"),
                Program::Q => assert!(first < 50 && later < 50, "{run:?}"),
            }
        }
        let of =
            |program, stride| found.runs.iter().any(|run| run.program == program && run.stride == stride);
        assert!(of(Program::P, 64) && of(Program::P, 4) && of(Program::Q, 64) && !of(Program::Q, 4));
    }

    #[test]
    fn a_node_with_too_little_memory_is_named() {
        let settings = Settings { sizes: vec![1 << 60], strides: vec![64], passes: 2, large: SIZE };
        let error = bench(&Root::default(), &settings, &mut |_, _, _| ()).unwrap_err().to_string();
        assert!(error.starts_with("node 0 has ") && error.contains("too little for a buffer of"), "{error}");
    }

    #[test]
    fn buffers_fit_a_small_host() {
        let dir = tempfile::tempdir().unwrap();
        let file = |path: &str, text: &str| {
            let path = dir.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        file("sys/devices/system/cpu/cpu0/cache/index3/size", "32768K\n");
        file("sys/devices/system/node/online", "0-1\n");
        let settings = |free: &str| {
            file(
                "sys/devices/system/node/node0/meminfo",
                "Node 0 MemTotal: 900 kB\nNode 0 MemFree: 8000000 kB\n",
            );
            file(
                "sys/devices/system/node/node1/meminfo",
                &format!("Node 1 MemTotal: 900 kB\nNode 1 MemFree: {free} kB\n"),
            );
            let Settings { sizes, large, .. } = usual_settings(&Root::new(dir.path()));
            (sizes.into_iter().map(|size| size >> 20).collect::<Vec<_>>(), large >> 20)
        };
        assert_eq!(settings("8000000"), (vec![16, 32, 128], 128));
        assert_eq!(settings("409600"), (vec![16, 32, 100], 100));
        assert_eq!(settings("102400"), (vec![16, 32], 25));
        assert_eq!(settings("0"), (vec![16, 32], 1));
    }

    #[test]
    fn reads_go_through_all_lines() {
        let memory = Memory::new(LINE * 100).unwrap();
        assert!(latency(&memory) > 0.0);
        let step = LINE / 4;
        let (mut at, mut seen) = (0usize, std::collections::BTreeSet::new());
        while seen.insert(at) {
            at = memory.words()[at * step].load(Ordering::Relaxed) as usize;
        }
        assert_eq!((seen.len(), at), (100, 0));
    }
}
