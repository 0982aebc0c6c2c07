//! c. The findings of the paper, each in a run that provokes it and in one without its cause.
//!
//! | finding of P0 | with the cause | without it |
//! | --- | --- | --- |
//! | 1. the packet waits in the socket, as the vCPU does not run | busy loops on the CPU of the reader's vCPU | no busy loops |
//! | 2. the vCPU does not run because the guest had halted | experiment `path`, part b: pings, which need no server | |
//! | 3. the proof by remedy | | the same run: the wait is gone |
//! | 4. packets pile up at the start of a load | calls begin at once on an idle host | calls come one by one |
//! | 5. three threads of the host are woken for each request | idle: worker, vCPU of the interrupt, vCPU of the reader | KVM polls |
//! | 6. the application creates a thread for each request | the server does | it has a pool |
//!
//! Shares and counts are compared, never absolute times: those depend on what else the machine does.

use super::{Counted, Extent, Server, TRACE};
use crate::load;
use crate::path::only;
use crate::reporting::{self, inside, place, traced, wake_shares, woken};
use crate::tracing::{Lab, Traced, requests};
use anyhow::{Context, Result};
use serde::Serialize;
use teiji_lab::Guest;
use teiji_model::finding::{Cause, Evidence, Finding};
use teiji_model::report::{GuestPart, Inside};
use teiji_model::stage::ThreadState;

/// How long KVM polls in the runs without halts: longer than the guest is idle between two requests, ns.
const POLLED: u64 = 200_000_000;
/// Busy loops on the CPU of the reader's vCPU.
const HOGS: u32 = 3;
/// Calls per second where they come one by one, and where they come at once.
const STEADY: f64 = 8.0;
/// See above.
const AT_ONCE: f64 = 1000.0;
/// Calls that come at once.
const STEP: u64 = 16;

/// sipp's server in a guest.
const SIPP: &str = "[s]ipp -sn uas";

/// What a run showed.
#[derive(Clone, Debug, Serialize)]
pub struct Shown {
    /// What was done.
    pub run: &'static str,
    /// Complete requests.
    pub complete: u64,
    /// The verdict, in one line.
    pub verdict: String,
    /// Causes that the report names, and the share of each.
    pub causes: Vec<(Cause, f64)>,
    /// Share of the time in the guest that packets waited in the socket while the reader's vCPU was asleep, and while it waited
    /// for a CPU.
    pub socket_asleep: f64,
    /// See above.
    pub socket_ready: f64,
    /// Shares of the response time in which the worker, and a vCPU, were asleep while a request waited for them.
    pub wake_shares: [f64; 2],
    /// Threads of the host that a request woke: mean.
    pub woken: f64,
    /// Packets that the guest got at once: mean, greatest.
    pub burst: (f64, u64),
    /// Packets behind each one taken off the tap: mean, greatest.
    pub depth: (f64, u64),
    /// Why packets came at once, of the largest burst of which that is known.
    pub burst_cause: Option<ThreadState>,
    /// Requests that a thread answered which was created for it, of those whose part in the guest is known.
    pub new_threads: (u64, u64),
    /// Reports of the guest that are missing.
    pub lost: u64,
    /// The evidence of the findings.
    #[serde(skip)]
    pub findings: Vec<Finding>,
}

impl Shown {
    /// Reads a trace of the VM.
    ///
    /// # Errors
    /// If the guest reported nothing.
    pub fn of(run: &'static str, traced: &Traced) -> Result<Shown> {
        let vm = only(&traced.report)?;
        let inside = inside(vm)?;
        let (joined, _) = requests(traced.recording.as_deref().context("no recording")?)?;
        let woken: Vec<f64> = joined.iter().map(|j| f64::from(woken(&j.request))).collect();
        let bursts = vm.bursts.clone().unwrap_or_default();
        let depth = vm.depth.unwrap_or_default();
        Ok(Shown {
            run,
            complete: vm.requests.complete,
            verdict: vm.line(),
            causes: vm.findings.iter().map(|f| (f.cause, f.share)).collect(),
            socket_asleep: of_socket(inside, ThreadState::Asleep),
            socket_ready: of_socket(inside, ThreadState::Ready),
            wake_shares: wake_shares(vm),
            woken: woken.iter().sum::<f64>() / woken.len().max(1) as f64,
            burst: (bursts.arrivals.mean, bursts.arrivals.max),
            depth: (depth.mean, depth.max),
            burst_cause: bursts.largest.iter().find_map(|burst| burst.state),
            new_threads: (inside.new_threads, inside.divided),
            lost: traced.report.guests.iter().map(|g| g.lost).sum(),
            findings: vm.findings.clone(),
        })
    }

    /// The evidence that a cause was seen in a part of the guest's time; `None` without a finding of it.
    pub fn evidence(&self, cause: Cause, part: GuestPart) -> Option<&Evidence> {
        let finding = self.findings.iter().find(|f| f.cause == cause)?;
        finding.evidence.iter().find(|e| e.part == Some(part))
    }
}

/// The share of the time in the guest that packets waited in the socket while the vCPU was in a state.
fn of_socket(inside: &Inside, state: ThreadState) -> f64 {
    let part = inside.parts.iter().find(|p| p.part == GuestPart::SocketWait);
    let states = part.into_iter().flat_map(|p| &p.states).filter(|s| s.state == Some(state));
    states.map(|s| s.time_share).sum()
}

/// A run in which calls come one by one, beside so many busy loops on the CPU of the reader's vCPU. These begin once the guest
/// reports: beside them it may take longer to attach its probes than the host waits.
fn steady(lab: &Lab, guest: &Guest<'_>, run: &'static str, calls: u64, hogs: u32) -> Result<Shown> {
    let load = || {
        let _hogs = (hogs > 0).then(|| load::hogs(&lab.host, reporting::READER_CPU, hogs)).transpose()?;
        load::call(&lab.host, guest, STEADY, calls)
    };
    let (traced, _) = traced(lab, run, TRACE, load)?;
    Shown::of(run, &traced)
}

/// Findings 1, 3 and 5: idle, polled, beside busy loops. sipp's server is running.
///
/// # Errors
/// If a tool fails.
pub fn idle_polled_contended(lab: &Lab, guest: &Guest<'_>, extent: &Extent) -> Result<[Shown; 3]> {
    place(guest, SIPP, "1")?;
    let idle = {
        let _polling = load::polling(&lab.host, 0)?;
        steady(lab, guest, "idle", extent.of_finding, 0)?
    };
    let contended = {
        let _polling = load::polling(&lab.host, 0)?;
        steady(lab, guest, "contended", extent.of_finding, HOGS)?
    };
    let polled = {
        let _polling = load::polling(&lab.host, POLLED)?;
        steady(lab, guest, "polled", extent.of_finding, 0)?
    };
    place(guest, SIPP, "0,1")?;
    Ok([idle, polled, contended])
}

/// Finding 4: calls that come at once on an idle host, and as many that come one by one.
///
/// # Errors
/// If a tool fails.
pub fn step_and_paced(lab: &Lab, guest: &Guest<'_>, extent: &Extent) -> Result<[Shown; 2]> {
    let _polling = load::polling(&lab.host, 0)?;
    let (step, ()) = traced(lab, "step", TRACE, || {
        // The clock of a worker, which says what it did while a burst waited, begins with the first packet that it takes.
        load::call(&lab.host, guest, 1.0, 1)?;
        for _ in 0..extent.of_finding.div_ceil(STEP) {
            load::call(&lab.host, guest, AT_ONCE, STEP)?;
        }
        Ok(())
    })?;
    let step = Shown::of("step", &step)?;
    // Not at a rate: calls would come at once to a guest that has stood still.
    let (paced, _) =
        traced(lab, "paced", TRACE, || load::call_one_by_one(&lab.host, guest, extent.of_finding))?;
    Ok([step, Shown::of("paced", &paced)?])
}

/// Finding 6: a server that creates a thread for each request, and one with a pool; with what each counted.
///
/// # Errors
/// If a tool fails.
pub fn threads_and_pool(lab: &Lab, guest: &Guest<'_>, calls: u64) -> Result<[(Shown, Counted); 2]> {
    let of = |run: &'static str| -> Result<(Shown, Counted)> {
        let server = Server::start(&lab.host, guest, run)?;
        place(guest, "[s]erver.py", "1")?;
        // A server that is slower than the calls come in would show its queue.
        let traced = traced(lab, run, TRACE, || load::call_one_by_one(&lab.host, guest, calls));
        let shown = traced.and_then(|(traced, _)| Shown::of(run, &traced));
        let counted = server.stop()?;
        Ok((shown?, counted))
    };
    Ok([of("thread")?, of("pool")?])
}

/// What has to hold of the runs, in words, and whether it does.
pub type Claims = Vec<(bool, String)>;

/// See the table of the module: findings 1, 3 and 5.
pub fn judge_idle(idle: &Shown, polled: &Shown, contended: &Shown) -> Claims {
    let ready = contended.evidence(Cause::VcpuWaitsForCpu, GuestPart::SocketWait);
    let not = |shown: &Shown, cause| shown.causes.iter().all(|(c, _)| *c != cause);
    let per_cent = |share: f64| format!("{:.1} %", share * 100.0);
    vec![
        (
            ready.is_some() && not(idle, Cause::VcpuWaitsForCpu),
            format!(
                "1. beside busy loops: vcpu_waits_for_cpu, seen in socket_wait ({} of the guest's time); not without them ({})",
                per_cent(contended.socket_ready),
                per_cent(idle.socket_ready)
            ),
        ),
        (
            polled.socket_asleep < idle.socket_asleep / 3.0,
            format!(
                "3. asleep while the packet is in the socket: {} of the guest's time, with polling {}",
                per_cent(idle.socket_asleep),
                per_cent(polled.socket_asleep)
            ),
        ),
        (
            idle.woken > 2.0 && polled.woken < 1.5 && polled.wake_shares[1] < idle.wake_shares[1] / 3.0,
            format!(
                "5. threads of the host woken for a request: {:.2}, for {} (worker) and {} (vCPUs) of its time; with polling {:.2}, \
                 for {} and {}",
                idle.woken,
                per_cent(idle.wake_shares[0]),
                per_cent(idle.wake_shares[1]),
                polled.woken,
                per_cent(polled.wake_shares[0]),
                per_cent(polled.wake_shares[1])
            ),
        ),
    ]
}

/// Finding 4. The largest burst is that of the load's start; the mean is also of the messages after it, which come one by one. How
/// many packets there are in a burst beyond the first is compared by the means, as one stop of the machine makes one large burst.
pub fn judge_step(step: &Shown, paced: &Shown) -> Claims {
    vec![(
        step.burst.1 > paced.burst.1
            && step.burst.0 - 1.0 > 2.0 * (paced.burst.0 - 1.0)
            && step.depth.0 > 2.0 * paced.depth.0
            && step.burst_cause.is_some(),
        format!(
            "4. calls at once: packets per burst {:.2} on average, {} at most ({:?}), behind each on the tap {:.2}, {} at most; one by \
             one: {:.2}, {}, {:.2}, {}",
            step.burst.0,
            step.burst.1,
            step.burst_cause,
            step.depth.0,
            step.depth.1,
            paced.burst.0,
            paced.burst.1,
            paced.depth.0,
            paced.depth.1
        ),
    )]
}

/// Finding 6. Each request that is divided was answered by a thread of its own, as the server counted, or none was.
pub fn judge_threads(thread: &(Shown, Counted), pool: &(Shown, Counted)) -> Claims {
    let ((shown, counted), (of_pool, counted_of_pool)) = (thread, pool);
    let (created, divided) = shown.new_threads;
    let found = |shown: &Shown| shown.causes.iter().any(|(c, _)| *c == Cause::ThreadPerRequest);
    vec![
        (
            created <= counted.threads && created + shown.lost >= divided && divided > 0,
            format!(
                "6. a thread for each request: {created} of {divided} requests (the server created {} for {}, 10 warm-up calls \
                 included)",
                counted.threads, counted.answered
            ),
        ),
        (
            of_pool.new_threads.0 == 0 && of_pool.new_threads.1 > 0 && counted_of_pool.threads == 0,
            format!("6. a pool: {} of {} requests", of_pool.new_threads.0, of_pool.new_threads.1),
        ),
        (
            found(shown) && !found(of_pool),
            format!(
                "6. thread_per_request is a finding with a thread for each request ({}), and not with a pool",
                shown
                    .findings
                    .iter()
                    .find(|f| f.cause == Cause::ThreadPerRequest)
                    .map_or("no".to_owned(), |f| format!("{:.1} %", f.share * 100.0))
            ),
        ),
    ]
}
