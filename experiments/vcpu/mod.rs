//! The experiment `vcpu`: a guest's response time beside other work on its CPU, under different schedulers; see README.md beside this file.
//!
//! ```text
//!  peer: caller ─ uplink ─ bridge ─ tap ─► vhost worker ┐ CPU 2, with the load
//!                                          vCPU         ┘
//! ```

use crate::load::{self, Figures};
use crate::tracing::Lab;
use anyhow::{Context, Result, ensure};
use serde::Serialize;
use std::path::Path;
use std::time::{Duration, Instant};
use teiji_lab::{Child, Guest, GuestSpec, LabHost};

/// The CPU that all share.
pub const CPU: u32 = load::VCPU_CPU;
/// Most requests per second; one at a time.
const RATE: f64 = 30.0;
/// Deadline, period and runtime that teiji is to keep, µs. The runtime has room for several requests, of milliseconds of CPU time each, and is
/// less than 15 % of the CPU, so that the other work keeps 90 % of what it has by default, although a busy guest runs ahead of it for half
/// of the runtime while no packet waits.
const PROMISED: &str = "vm1=5000,134000,20000";
/// Guests that make load.
const OTHERS: u32 = 4;
const START: Duration = Duration::from_secs(120);
/// Where the other scheduler of sched_ext is in the lab host.
const BPFLAND: &str = "/tmp/scx_bpfland";

/// What else the CPU has to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Load {
    /// Nothing.
    Nothing,
    /// Four busy loops.
    Loops,
    /// Six threads that run for 2 ms and sleep for 4 ms.
    Sleepers,
    /// Four busy loops, and the guest itself has one.
    BusyGuest,
}

/// A load, and who makes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Situation {
    /// What.
    pub load: Load,
    /// Other guests rather than processes of the host.
    pub by_guests: bool,
}

/// All of them; the first one has no load.
pub const SITUATIONS: [Situation; 7] = [
    Situation { load: Load::Nothing, by_guests: false },
    Situation { load: Load::Loops, by_guests: false },
    Situation { load: Load::Sleepers, by_guests: false },
    Situation { load: Load::BusyGuest, by_guests: false },
    Situation { load: Load::Loops, by_guests: true },
    Situation { load: Load::Sleepers, by_guests: true },
    Situation { load: Load::BusyGuest, by_guests: true },
];

impl Situation {
    /// For people.
    pub fn text(self) -> &'static str {
        match (self.load, self.by_guests) {
            (Load::Nothing, _) => "nothing",
            (Load::Loops, false) => "4 busy loops",
            (Load::Loops, true) => "4 guests with a busy loop each",
            (Load::Sleepers, false) => "6 threads, 2 ms run, 4 ms sleep",
            (Load::Sleepers, true) => "6 threads in 3 guests, 2 ms run, 4 ms sleep",
            (Load::BusyGuest, false) => "4 busy loops, and the guest is busy itself",
            (Load::BusyGuest, true) => "4 guests with a busy loop each, and the guest is busy itself",
        }
    }
}

/// Who schedules.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Scheduler {
    /// scx_vcpu.
    Teiji,
    /// The kernel's default.
    Default,
    /// The guest's threads are SCHED_FIFO: the vCPU 10, its worker 11.
    Fifo,
    /// scx_bpfland.
    Bpfland,
}

impl Scheduler {
    /// For people.
    pub fn text(self) -> &'static str {
        match self {
            Scheduler::Teiji => "scx_vcpu",
            Scheduler::Default => "default",
            Scheduler::Fifo => "SCHED_FIFO",
            Scheduler::Bpfland => "scx_bpfland",
        }
    }
}

/// How much is measured.
#[derive(Clone, Copy, Debug)]
pub struct Extent {
    /// Windows of each scheduler in each situation, taken in turns.
    pub rounds: u32,
    /// Requests in a window.
    pub requests: u64,
}

/// The whole experiment.
pub const FULL: Extent = Extent { rounds: 3, requests: 400 };
/// The short form.
pub const SHORT: Extent = Extent { rounds: 1, requests: 60 };

/// One window.
#[derive(Clone, Debug, Serialize)]
pub struct Window {
    /// What else the CPU had to do.
    pub situation: Situation,
    /// Who scheduled.
    pub scheduler: Scheduler,
    /// Requests sent.
    pub sent: u64,
    /// Requests answered in time.
    pub answered: u64,
    /// Median, 99th and 99.9th percentile of the response time, ms.
    pub ms: [f64; 3],
    /// CPU time of each thread of the load, CPUs.
    pub load_cpus: Vec<f64>,
}

/// The lab with its guests.
pub struct Setup<'l> {
    host: &'l LabHost,
    guest: Guest<'l>,
    _server: Child,
    others: Vec<Guest<'l>>,
    has_bpfland: bool,
}

impl<'l> Setup<'l> {
    /// Boots the guests; `bpfland`: the program scx_bpfland, if it is there.
    ///
    /// # Errors
    /// If one does not boot.
    pub fn boot(lab: &'l Lab, bpfland: Option<&Path>) -> Result<Setup<'l>> {
        let host = &lab.host;
        let spec = GuestSpec { pins: vec![CPU], vhost_cpu: Some(CPU), ..GuestSpec::named("vm1") };
        let guest = host.guest(&spec)?;
        let server = load::echo_server(host, &guest)?;
        let other = |n: u32| {
            let spec = GuestSpec { pins: vec![CPU], mem_mb: 384, ..GuestSpec::named(&format!("other{n}")) };
            host.guest(&spec)
        };
        let others = (1..=OTHERS).map(other).collect::<Result<Vec<_>, _>>()?;
        if let Some(program) = bpfland {
            host.put(BPFLAND, &std::fs::read(program)?)?;
            // It looks for the kernel's configuration there.
            let configuration =
                "mkdir -p /boot; cp /usr/lib/modules/$(uname -r)/config /boot/config-$(uname -r)";
            host.run(&format!("chmod +x {BPFLAND}; {configuration}"))?.ok()?;
        }
        Ok(Setup { host, guest, _server: server, others, has_bpfland: bpfland.is_some() })
    }

    /// Those that can be compared here, ours first.
    pub fn schedulers(&self) -> Vec<Scheduler> {
        let mut all = vec![Scheduler::Teiji, Scheduler::Default, Scheduler::Fifo];
        all.extend(self.has_bpfland.then_some(Scheduler::Bpfland));
        all
    }

    /// All windows of a situation.
    ///
    /// # Errors
    /// If a program fails, or a scheduler of sched_ext ends.
    pub fn measure(&self, situation: Situation, extent: &Extent) -> Result<Vec<Window>> {
        let _load = self.start(situation)?;
        let threads = self.threads(situation)?;
        let mut windows = Vec::new();
        for _ in 0..extent.rounds {
            for scheduler in self.schedulers() {
                let on = self.schedule(scheduler)?;
                let window = self.window(situation, scheduler, &threads, extent.requests);
                on.end(self)?;
                windows.push(window?);
            }
        }
        Ok(windows)
    }

    fn start(&self, situation: Situation) -> Result<Vec<Child>> {
        let hog = |threads: u32, more: &str, cpu: u32| {
            format!("exec teiji-lab hog --cpu {cpu} --threads {threads} {more}")
        };
        let of_host = |sh: String| self.host.spawn(&sh);
        let (threads, more, guests) = match situation.load {
            Load::Nothing => return Ok(Vec::new()),
            Load::Loops | Load::BusyGuest => (4, "", self.others.len()),
            Load::Sleepers => (6, "--run 2 --sleep 4", 3),
        };
        let mut load = if situation.by_guests {
            let each = threads / guests as u32;
            let in_guest = |guest: &Guest<'_>| guest.spawn(&hog(each.max(1), more, 0));
            self.others[..guests].iter().map(in_guest).collect::<Result<Vec<_>, _>>()?
        } else {
            vec![of_host(hog(threads, more, CPU))?]
        };
        if situation.load == Load::BusyGuest {
            load.push(self.guest.spawn(&hog(1, "", 0))?);
        }
        for child in &load {
            child.wait_for("busy", START)?;
        }
        Ok(load)
    }

    /// The threads that make the load: what shares the CPU with the guest. Not the guest's own.
    fn threads(&self, situation: Situation) -> Result<Vec<u32>> {
        if situation.by_guests {
            return Ok(self.others.iter().flat_map(Guest::vcpu_tids).collect());
        }
        let list = self.host.run(
            "for p in $(pgrep -x teiji-lab); do grep -q hog /proc/$p/cmdline && ls /proc/$p/task | grep -vx $p; done; true",
        )?;
        let all = list.ok()?.lines().map(str::parse).collect::<Result<Vec<u32>, _>>()?;
        Ok(all)
    }

    fn window(
        &self,
        situation: Situation,
        scheduler: Scheduler,
        threads: &[u32],
        requests: u64,
    ) -> Result<Window> {
        load::echo_one_by_one(self.host, &self.guest, RATE, 5)?;
        let (before, begun) = (self.used(threads)?, Instant::now());
        let Figures { sent, received, p50_ns, p99_ns, p999_ns, .. } =
            load::echo_one_by_one(self.host, &self.guest, RATE, requests)?;
        let (after, seconds) = (self.used(threads)?, begun.elapsed().as_secs_f64());
        let load_cpus = after.iter().zip(before).map(|(after, before)| (after - before) / seconds).collect();
        let ms = [p50_ns, p99_ns, p999_ns].map(|ns| ns as f64 / 1e6);
        Ok(Window { situation, scheduler, sent, answered: received, ms, load_cpus })
    }

    /// CPU time of threads, s.
    fn used(&self, threads: &[u32]) -> Result<Vec<f64>> {
        let files: Vec<String> = threads.iter().map(|tid| format!("/proc/{tid}/schedstat")).collect();
        if files.is_empty() {
            return Ok(Vec::new());
        }
        let text = self.host.run(&format!("cat {}", files.join(" ")))?.ok()?;
        let ns =
            |line: &str| line.split(' ').next().and_then(|ns| ns.parse::<f64>().ok()).context("schedstat");
        text.lines().map(|line| Ok(ns(line)? / 1e9)).collect()
    }

    fn schedule(&self, scheduler: Scheduler) -> Result<On> {
        let on = match scheduler {
            Scheduler::Default => return Ok(On::Default),
            Scheduler::Fifo => {
                self.class("-f", 10)?;
                return Ok(On::Fifo);
            }
            Scheduler::Teiji => {
                let driver = self.host.spawn(&format!("exec /mnt/bin/vcpu-driver {PROMISED}"))?;
                driver.wait_for("scheduling", START)?;
                On::Teiji(driver)
            }
            Scheduler::Bpfland => On::Bpfland(self.host.spawn(&format!("exec {BPFLAND} 2>&1"))?),
        };
        self.until("enabled")?;
        Ok(on)
    }

    /// Gives the guest's vCPU a class of the kernel with this priority, and its worker with the next one (0: both with 0).
    fn class(&self, class: &str, priority: u32) -> Result<()> {
        let of_worker = if priority == 0 { 0 } else { priority + 1 };
        let vcpus = self.guest.vcpu_tids().into_iter().map(|tid| (tid, priority));
        let workers = self.guest.vhost_tids().into_iter().map(|tid| (tid, of_worker));
        for (tid, priority) in vcpus.chain(workers) {
            self.host.run(&format!("chrt {class} -p {priority} {tid}"))?.ok()?;
        }
        Ok(())
    }

    /// Waits until sched_ext is in this state.
    fn until(&self, state: &str) -> Result<()> {
        let wait = format!(
            "for i in $(seq 600); do [ \"$(cat /sys/kernel/sched_ext/state)\" != {state} ] || exit 0; sleep 0.1; done; exit 1"
        );
        self.host.run(&wait)?.ok().with_context(|| format!("sched_ext is not {state}"))?;
        Ok(())
    }
}

/// What schedules now.
enum On {
    Default,
    Fifo,
    Teiji(Child),
    Bpfland(Child),
}

impl On {
    fn end(self, setup: &Setup<'_>) -> Result<()> {
        let child = match self {
            On::Default => return Ok(()),
            On::Fifo => return setup.class("-o", 0),
            On::Teiji(driver) => {
                ensure!(!driver.ended(), "the kernel has ended scx_vcpu: {}", driver.wait()?.text());
                driver.close_input()?;
                driver
            }
            On::Bpfland(program) => {
                setup.host.run(&format!("kill -INT {}", program.id()?))?.ok()?;
                program
            }
        };
        child.wait()?;
        setup.until("disabled")
    }
}
