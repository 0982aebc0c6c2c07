//! `vcpu-driver`: schedules the host with scx_vcpu while it runs, in the lab host.
//!
//! ```text
//! vcpu-driver NAME=DEADLINE_US,PERIOD_US,BUDGET_US ...    the real-time VMs, by their names
//! stats          on its standard input: answered with a line of JSON and one that says `answer` and which it is
//! ```
//! It says `scheduling`, and ends when its input ends or the kernel has returned to its own scheduler, which it says.
//! It does what an agent would do; VMs that start later are not found.

use anyhow::{Context, Result, bail};
use serde_json::json;
use std::io::BufRead;
use std::process::ExitCode;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;
use teiji_bpf::scx_vcpu::{Role, VcpuScheduler, VmSettings};
use teiji_host::{Root, task};

fn main() -> ExitCode {
    // What libbpf and the verifier say: TEIJI_LOG=libbpf=debug
    let filter = tracing_subscriber::EnvFilter::from_env("TEIJI_LOG");
    tracing_subscriber::fmt().with_env_filter(filter).with_ansi(false).with_writer(std::io::stderr).init();
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            println!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// A VM's name and what it is promised.
fn parse(word: &str) -> Result<(&str, VmSettings)> {
    let (name, times) = word.split_once('=').context("NAME=DEADLINE_US,PERIOD_US,BUDGET_US")?;
    let times = times.split(',').map(|us| Ok(Duration::from_micros(us.parse()?)));
    let [deadline, period, budget] = times.collect::<Result<Vec<_>>>()?[..] else {
        bail!("three times: {word}")
    };
    Ok((name, VmSettings { deadline, period, budget }))
}

fn run() -> Result<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let wanted = words.iter().map(|word| parse(word)).collect::<Result<Vec<_>>>()?;
    let (mut scheduler, verified) = VcpuScheduler::load()?;
    let vms = teiji_host::vms()?;
    for (number, (name, settings)) in (0u32..).zip(&wanted) {
        let vm = vms.iter().find(|vm| vm.name == *name).with_context(|| format!("no VM {name}"))?;
        scheduler.put_vm(number, settings)?;
        for nic in &vm.nics {
            scheduler.put_tap(nic.ifindex, number)?;
        }
        let vcpus = vm.vcpus.iter().map(|vcpu| (vcpu.tid, Role::Vcpu));
        for (tid, role) in vcpus.chain(vm.workers.iter().map(|worker| (worker.tid, Role::VhostWorker))) {
            let thread = task(&Root::default(), tid).with_context(|| format!("thread {tid} has ended"))?;
            scheduler.assign(&thread, number, role)?;
        }
    }
    let instructions: u32 = verified.iter().map(|v| v.instructions).sum();
    println!("scheduling, {instructions} instructions verified");
    let (send, lines) = channel();
    std::thread::spawn(move || {
        for line in std::io::stdin().lock().lines().map_while(Result::ok) {
            let _ = send.send(line);
        }
    });
    let mut answers = 0u32;
    loop {
        if let Some(teiji_bpf::scx_vcpu::Ended { why, .. }) = scheduler.ended()? {
            bail!("the kernel returned to its own scheduler: {why}");
        }
        match lines.recv_timeout(Duration::from_millis(100)) {
            Ok(_) => {
                answers += 1;
                println!("{}\nanswer {answers}", stats(&scheduler, wanted.len() as u32)?);
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return Ok(()),
        }
    }
}

fn stats(scheduler: &VcpuScheduler, vms: u32) -> Result<serde_json::Value> {
    let vm = |number| {
        let s = scheduler.vm_stats(number)?;
        Ok(json!({
            "packets": s.packets, "expired": s.expired, "exhausted": s.exhausted,
            "turns": s.turns, "overruns": s.overruns, "late_timers": s.late_timers,
            "before_others_ns": s.before_others.as_nanos() as u64, "by_weight_ns": s.by_weight.as_nanos() as u64,
        }))
    };
    let all = (0..vms).map(vm).collect::<Result<Vec<_>>>()?;
    let threads = scheduler
        .threads()?
        .into_iter()
        .map(|t| json!({ "id": t.id, "vm": t.vm, "vcpu": t.role == Role::Vcpu, "waits": t.waits }));
    Ok(json!({ "vms": all, "threads": threads.collect::<Vec<_>>() }))
}
