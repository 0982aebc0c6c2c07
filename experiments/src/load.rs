//! Load and disturbance in the lab: servers in a guest, callers outside, and busy loops.
//!
//! Each has its own CPU of the lab host, so that a busy loop disturbs only one of them:
//!
//! | CPU | runs |
//! | --- | --- |
//! | [`CALLER_CPU`] | the callers in `peer`, and with them the softirqs of bridge and uplink |
//! | [`VHOST_CPU`] | the vhost worker |
//! | [`VCPU_CPU`] | the vCPU |
//! | 3 | teiji, the captures, the vhost worker of a second guest |

use anyhow::{Context, Result, ensure};
use serde::Deserialize;
use std::net::Ipv4Addr;
use std::ops::RangeInclusive;
use std::time::Duration;
use teiji_lab::{Child, Guest, GuestSpec, LabHost};
use teiji_model::flow::Matching;

/// CPU of the callers.
pub const CALLER_CPU: u32 = 0;
/// CPU of the vhost worker.
pub const VHOST_CPU: u32 = 1;
/// CPU of the vCPU.
pub const VCPU_CPU: u32 = 2;
/// How long a caller waits at the end for missing responses, s, or for one before the next request if it sends one at a time. It ends
/// as soon as there are none.
const LINGER_S: u32 = 20;
/// How sipp is called: without its watchdog, which ends it for good once it has stood still more than ten times for 3 s (or 120 times
/// for 0.5 s), as it does in an emulated guest on a busy machine.
pub const SIPP: &str = "sipp -nostdin -watchdog_interval 0";
/// The port of echo servers.
pub const ECHO_PORT: u16 = 7;

/// In an emulated machine, programs are first read over a network file system.
const START: Duration = Duration::from_secs(120);

/// Counts and times, ns, from `teiji-lab udp-load`.
#[derive(Clone, Copy, Debug, Deserialize)]
pub struct Figures {
    /// Requests sent.
    pub sent: u64,
    /// Requests answered [`in_time`].
    pub received: u64,
    /// Requests answered later, as when the guest stopped meanwhile.
    #[serde(default)]
    pub late: u64,
    /// Responses without a request, or repeated.
    #[serde(default)]
    pub strange: u64,
    /// Time from the first to the last request, s.
    pub seconds: f64,
    /// Median response time.
    pub p50_ns: u64,
    /// 99th percentile of the response time.
    pub p99_ns: u64,
    /// 99.9th percentile of the response time.
    #[serde(default)]
    pub p999_ns: u64,
}

impl Figures {
    /// How many requests a trace should see answered: it sees an answer before the caller does, so one that is late for the caller may
    /// be in time for the trace.
    pub fn answered(&self) -> RangeInclusive<u64> {
        self.received..=self.received + self.late
    }
}

/// A guest with one vCPU; its vCPU and its vhost worker each have a CPU of their own.
pub fn placed(name: &str) -> GuestSpec {
    GuestSpec { pins: vec![VCPU_CPU], vhost_cpu: Some(VHOST_CPU), ..GuestSpec::named(name) }
}

/// Starts an echo server in the guest and sends requests until the programs are in memory.
///
/// # Errors
/// If the server does not answer.
pub fn echo_server(host: &LabHost, guest: &Guest<'_>) -> Result<Child> {
    let server = guest.spawn(&format!("exec teiji-lab udp-echo --port {ECHO_PORT}"))?;
    server.wait_for("serving", START)?;
    echo(host, guest, 50.0, 50)?;
    Ok(server)
}

/// How long a trace waits for a response, which belongs to no request if it comes later.
pub fn in_time() -> Duration {
    Duration::from_nanos(teiji_analysis::request_ttl(Matching::None))
}

/// The command line of an echo client.
pub fn echo_command(guest: &Guest<'_>, rate: f64, count: u64) -> String {
    echo_command_to(guest.ip(), rate, count)
}

/// The same to another address of a guest.
fn echo_command_to(address: Ipv4Addr, rate: f64, count: u64) -> String {
    format!(
        "ip netns exec peer taskset -c {CALLER_CPU} teiji-lab udp-load --to {}:{ECHO_PORT} --rate {rate} --count {count} \
         --linger {LINGER_S} --in-time {} --json",
        address,
        in_time().as_secs_f64()
    )
}

/// Sends `count` requests at `rate` per second.
///
/// # Errors
/// If the load cannot be run.
pub fn echo(host: &LabHost, guest: &Guest<'_>, rate: f64, count: u64) -> Result<Figures> {
    figures(&host.run(&echo_command(guest, rate, count))?.ok()?)
}

/// Sends `count` requests one after the other, at `rate` per second at most.
///
/// # Errors
/// If the load cannot be run.
pub fn echo_one_by_one(host: &LabHost, guest: &Guest<'_>, rate: f64, count: u64) -> Result<Figures> {
    figures(&host.run(&format!("{} --outstanding 1", echo_command(guest, rate, count)))?.ok()?)
}

/// The same by the guest's virtual function ([`GuestSpec::vf`]), each when the one before has been answered.
///
/// # Errors
/// If the load cannot be run.
pub fn echo_by_vf(host: &LabHost, guest: &Guest<'_>, rate: f64, count: u64) -> Result<Figures> {
    let one_by_one = format!("{} --outstanding 1", echo_command_to(guest.vf_ip(), rate, count));
    figures(&host.run(&one_by_one)?.ok()?)
}

/// Parses the output of an echo client.
///
/// # Errors
/// If it cannot be parsed.
pub fn figures(text: &str) -> Result<Figures> {
    serde_json::from_str(text).with_context(|| format!("the load printed {text:?}"))
}

/// Pings the guest `count` times.
///
/// # Errors
/// If no ping is answered.
pub fn ping(host: &LabHost, guest: &Guest<'_>, rate: f64, count: u64) -> Result<()> {
    let ping = format!(
        "ip netns exec peer taskset -c {CALLER_CPU} ping -q -W 2 -i {} -c {count} {}",
        1.0 / rate.max(0.001),
        guest.ip()
    );
    host.run(&ping)?.ok()?;
    Ok(())
}

/// Starts sipp's server in the guest and calls it until the programs are in memory.
///
/// # Errors
/// If the server does not start.
pub fn sip_server(host: &LabHost, guest: &Guest<'_>) -> Result<Child> {
    let server = guest.spawn(&format!("exec {SIPP} -sn uas -i {} -p 5060 >/dev/null", guest.ip()))?;
    guest
        .run_for("until grep -q ':13C4 ' /proc/net/udp; do sleep 0.2; done", START)?
        .ok()
        .context("the SIP server did not start")?;
    // The first calls take seconds, and some fail.
    call(host, guest, 5.0, 10)?;
    call(host, guest, 10.0, 20)?;
    Ok(server)
}

/// The command line of a SIP caller: INVITE, ACK, BYE, without media. Its exit code is 0 if every call succeeded.
pub fn call_command(guest: &Guest<'_>, rate: f64, calls: u64) -> String {
    caller(guest, rate, calls, "")
}

fn caller(guest: &Guest<'_>, rate: f64, calls: u64, options: &str) -> String {
    format!(
        "cd /tmp; ip netns exec peer taskset -c {CALLER_CPU} {SIPP} -sn uac {}:5060 -i 10.77.0.1 -r {rate} -m {calls} -d 0 \
         -timeout 120 {options} >/dev/null",
        guest.ip()
    )
}

/// Makes `calls` calls one after the other; returns whether all succeeded. However slow the machine is, no request waits for
/// another one in the server.
///
/// # Errors
/// If the lab host does not answer.
pub fn call_one_by_one(host: &LabHost, guest: &Guest<'_>, calls: u64) -> Result<bool> {
    call_at_most(host, guest, 20.0, calls, 1)
}

/// Makes `calls` calls, `rate` per second and `at_once` at the same time at most; returns whether all succeeded.
///
/// # Errors
/// If the lab host does not answer.
pub fn call_at_most(host: &LabHost, guest: &Guest<'_>, rate: f64, calls: u64, at_once: u32) -> Result<bool> {
    Ok(host.run(&caller(guest, rate, calls, &format!("-l {at_once}")))?.code == 0)
}

/// Makes `calls` calls at `rate` per second; returns whether all succeeded.
///
/// # Errors
/// If the lab host does not answer.
pub fn call(host: &LabHost, guest: &Guest<'_>, rate: f64, calls: u64) -> Result<bool> {
    Ok(host.run(&call_command(guest, rate, calls))?.code == 0)
}

/// Keeps a CPU busy with `threads` threads until the value is dropped.
///
/// # Errors
/// If the program does not start.
pub fn hogs(host: &LabHost, cpu: u32, threads: u32) -> Result<Child> {
    let hogs = host.spawn(&format!("exec teiji-lab hog --cpu {cpu} --threads {threads}"))?;
    hogs.wait_for("busy", START)?;
    Ok(hogs)
}

/// Setting of how long KVM polls for a halted vCPU.
const POLLING: &str = "/sys/module/kvm/parameters/halt_poll_ns";

/// Restores KVM's former polling time when dropped.
pub struct Polling<'h> {
    host: &'h LabHost,
    before: String,
}

/// Sets how long KVM polls, ns, before it lets a halted vCPU sleep.
///
/// # Errors
/// If the lab host's kernel refuses.
pub fn polling(host: &LabHost, ns: u64) -> Result<Polling<'_>> {
    let before = host.run(&format!("cat {POLLING}"))?.ok()?;
    host.run(&format!("echo {ns} > {POLLING}"))?.ok()?;
    Ok(Polling { host, before })
}

impl Drop for Polling<'_> {
    fn drop(&mut self) {
        // If this fails, the lab host ends soon anyway.
        let _ = self.host.run(&format!("echo {} > {POLLING}", self.before));
    }
}

/// Delays the wake-up of an idle CPU by 5 ms to 15 ms if it is woken for a vCPU, until the value is dropped. It stands for a deep
/// C-state, which an emulated CPU does not have (and which takes less).
///
/// # Errors
/// If bpftrace does not begin.
pub fn slow_idle(host: &LabHost) -> Result<Child> {
    // The waker leaves the thread in a list of the idle CPU and interrupts it (`ttwu_queue_wakelist()`, kernel/sched/core.c);
    // the CPU takes it from there, which is when it can run. The verifier accepts no longer loop in one program than this.
    const STALL: &str = "
        kprobe:sched_ttwu_pending {
            $thread = (struct task_struct *)(arg0 - offsetof(struct task_struct, wake_entry));
            if ($thread->comm == \"CPU 0/KVM\") {
                $i = 0;
                while ($i < 4000) { $i++; @now[cpu] = nsecs; }
            }
        }";
    const STALLS: usize = 4;
    let program = STALL.repeat(STALLS);
    let program = format!("{program} interval:ms:500 {{ printf(\"slow\\n\"); }} END {{ clear(@now); }}");
    let bpftrace = host.spawn(&format!("exec bpftrace -e '{program}' 2>&1"))?;
    bpftrace.wait_for("slow", START)?;
    Ok(bpftrace)
}

/// Where [`StalledWorker`] stalls vhost's worker.
#[derive(Clone, Copy, Debug)]
pub enum StallAt {
    /// After it has written packets to the guest's ring. The kernel runs the fexit program first that was attached last: to
    /// stall the worker before teiji's, bpftrace has to begin after the trace.
    Written,
    /// Before it looks whether the guest wants an interrupt for them.
    Notify,
}

/// bpftrace, which stalls a worker each time it hands packets to a guest, and counts how often the guest wanted no interrupt and
/// its vCPU was entered meanwhile.
pub struct StalledWorker<'h> {
    host: &'h LabHost,
    bpftrace: Child,
}

/// What was counted while a worker was stalled.
#[derive(Clone, Debug)]
pub struct Stalls {
    /// Requests sent.
    pub sent: u64,
    /// Requests answered: see [`Figures::answered`].
    pub answered: RangeInclusive<u64>,
    /// Signals during which it was stalled, and for which the guest wanted no interrupt.
    pub suppressed: u64,
}

/// A test needs at least as many stalls during which the vCPU entered its guest.
const OFTEN: u64 = 10;

/// Stalls the worker of `guest` from now on.
///
/// # Errors
/// If bpftrace does not begin.
pub fn stall_worker<'h>(host: &'h LabHost, guest: &Guest<'_>, at: StallAt) -> Result<StalledWorker<'h>> {
    // 4,000 rounds take some 100 µs on a fast machine, milliseconds in an emulated one. (bpftrace bounds loops by rounds.)
    const PROGRAM: &str = "
        kprobe:handle_rx { @receives[tid] = 1; }
        kretprobe:handle_rx { delete(@receives[tid]); }
        PROBE /@receives[tid]/ {
            @begun[tid] = nsecs;
            $i = 0;
            while ($i < 4000) { $i++; @now[tid] = nsecs; }
        }
        tracepoint:kvm:kvm_entry { @entered[pid] = nsecs; }
        kretprobe:vhost_notify* /@receives[tid]/ {
            if ((retval & 0xff) == 0) {
                @suppressed++;
                if (@entered[VMM] > @begun[tid]) {
                    @entered_meanwhile++;
                    if (@entered_meanwhile == OFTEN) { printf(\"often enough\\n\"); }
                }
            }
        }
        interval:ms:500 { printf(\"stalling\\n\"); }
        END { clear(@begun); clear(@now); clear(@entered); clear(@receives); }";
    let probe = match at {
        StallAt::Written => "fexit:vhost:vhost_add_used_n",
        StallAt::Notify => "kprobe:vhost_notify*",
    };
    let (vmm, often) = (guest.pid().to_string(), OFTEN.to_string());
    let program = PROGRAM.replace("PROBE", probe).replace("VMM", &vmm).replace("OFTEN", &often);
    let bpftrace = host.spawn(&format!("exec bpftrace -e '{program}' 2>&1"))?;
    bpftrace.wait_for("stalling", START)?;
    Ok(StalledWorker { host, bpftrace })
}

impl StalledWorker<'_> {
    /// Calls `load` until it stalled often enough. How often a guest wants no interrupt depends on how busy the machine is.
    ///
    /// # Errors
    /// If `load` or bpftrace fails, or 20,000 requests were not enough.
    pub fn until_often_enough(self, mut load: impl FnMut() -> Result<Figures>) -> Result<Stalls> {
        let [mut sent, mut in_time, mut ever] = [0; 3];
        loop {
            let figures = load()?;
            ensure!(figures.strange == 0, "{figures:?}");
            let answered = figures.answered();
            (sent, in_time, ever) = (sent + figures.sent, in_time + answered.start(), ever + answered.end());
            if self.bpftrace.wait_for("often enough", Duration::from_secs(1)).is_ok() || sent >= 20_000 {
                break;
            }
        }
        self.host.run(&format!("kill -INT {}", self.bpftrace.id()?))?.ok()?;
        let counted = self.bpftrace.wait()?.ok()?;
        let count = |name: &str| -> u64 {
            let figure = counted.split(&format!("@{name}: ")).nth(1).and_then(|rest| rest.lines().next());
            figure.and_then(|n| n.parse().ok()).unwrap_or(0)
        };
        let stalls = Stalls { sent, answered: in_time..=ever, suppressed: count("suppressed") };
        let entered = count("entered_meanwhile");
        eprintln!("{stalls:?}, {entered} times the vCPU was entered meanwhile");
        ensure!(entered >= OFTEN, "the worker was not stalled at the place in question: {counted}");
        Ok(stalls)
    }
}
