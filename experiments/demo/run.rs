//! `make demo`: traces real SIP calls to a VM in four situations: undisturbed, with CPU hogs on the vCPU's CPU, with
//! the policy that teiji suggests against the hogs, and after the rollback of that policy.
//!
//! ```text
//! boot ─► VM with sipp's server ─► warm up ─► trace ─► hogs ─► trace ─► suggest, apply ─► trace ─► roll back ─► trace
//! ```
//! Writes to `target/demo/`: `report.html`, the policy `fix.toml`, and the recordings, which `teiji replay` reads
//! without root.

use anyhow::{Context, Result, bail};
use clap::Parser;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Instant;
use teiji_experiments::load::{self, VCPU_CPU};
use teiji_experiments::path::only;
use teiji_experiments::tracing::{Lab, Trace, Traced};
use teiji_experiments::{programs, say};
use teiji_model::report::VmReport;
use teiji_model::stage::{Stage, ThreadState};

/// Shows where the time of SIP calls to a VM goes, undisturbed and with CPU hogs, and what the suggested policy changes
#[derive(Parser)]
struct Args {
    /// Calls per second
    #[arg(long, default_value_t = 5.0)]
    rate: f64,
    /// Number of calls in each trace
    #[arg(long, default_value_t = 60)]
    calls: u64,
    /// Number of busy loops on the vCPU's CPU
    #[arg(long, default_value_t = 6)]
    hogs: u32,
}

/// The situations: name of the recording, label in the report.
const SITUATIONS: [(&str, &str); 4] = [
    ("undisturbed", "undisturbed"),
    ("hogs", "CPU hogs"),
    ("applied", "policy applied"),
    ("back", "rolled back"),
];
/// Options of `teiji trace`.
const TRACE: &str = "--vm sip1 --flow 'udp port 5060' --match sip";
/// Paths in the lab host: the suggested policy, and teiji's state.
const POLICY: &str = "/tmp/fix.toml";
const STATE: &str = "/tmp/teiji-state";

fn main() -> ExitCode {
    match run(&Args::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("demo: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: &Args) -> Result<()> {
    let begun = Instant::now();
    let folder = programs::project().join("target/demo");
    if folder.exists() {
        std::fs::remove_dir_all(&folder).with_context(|| format!("cannot empty {}", folder.display()))?;
    }
    let programs = programs::folder()?;
    let traced = trace_all(&folder, args)?;
    let recordings = traced.iter().map(recording).collect::<Result<Vec<_>>>()?;
    for (file, (_, label)) in recordings.iter().zip(SITUATIONS) {
        println!("\n=== {label} ===\n");
        replay(&programs, &[file], &[])?;
    }
    let html = folder.join("report.html");
    let out = html.to_string_lossy().into_owned();
    let labels = SITUATIONS.iter().flat_map(|(_, label)| ["--label", label]);
    let options: Vec<&str> = labels.chain(["--format", "html", "--out", &out]).collect();
    replay(&programs, &recordings, &options)?;
    let vms = traced.iter().map(|t| only(&t.report)).collect::<Result<Vec<_>>>()?;
    println!("{}", table(&vms));
    println!("report:      {}", html.display());
    println!("policy:      {}", folder.join("fix.toml").display());
    for file in &recordings {
        println!("recording:   {}  (`teiji replay` reads it without root)", file.display());
    }
    say(&format!("{} s in all; everything is powered off", begun.elapsed().as_secs()));
    Ok(())
}

/// Boots the lab, traces each situation and powers off.
fn trace_all(folder: &Path, args: &Args) -> Result<Vec<Traced>> {
    let lab = Lab::boot(folder)?;
    let guest = lab.host.guest(&load::placed("sip1"))?;
    say("starting sipp's server in the VM, and calling it until its programs are in memory");
    let server = load::sip_server(&lab.host, &guest)?;
    let calls = format!("{} calls at {:.0}/s", args.calls, args.rate);
    let trace = |(file, label): (&str, &str)| -> Result<Traced> {
        say(&format!("{label}: teiji trace {TRACE}; {calls}"));
        let trace = Trace::start(&lab, file, TRACE, true)?;
        load::call(&lab.host, &guest, args.rate, args.calls)?;
        trace.stop()
    };
    let teiji = |arguments: &str| -> Result<String> {
        say(&format!("teiji {arguments}"));
        Ok(lab.host.run(&format!("/mnt/bin/teiji {arguments}"))?.ok()?)
    };

    let mut traced = vec![trace(SITUATIONS[0])?];
    say(&format!("{} busy loops on the vCPU's CPU, from here on", args.hogs));
    let hogs = load::hogs(&lab.host, VCPU_CPU, args.hogs)?;
    traced.push(trace(SITUATIONS[1])?);

    let policy = teiji("replay /tmp/hogs.teiji --suggest")?;
    println!("\n{policy}\n");
    std::fs::write(folder.join("fix.toml"), &policy).context("cannot write the policy")?;
    lab.host.run(&format!("cp /mnt/out/fix.toml {POLICY}"))?.ok()?;
    println!("{}", teiji(&format!("apply {POLICY} --state {STATE}"))?);
    traced.push(trace(SITUATIONS[2])?);

    teiji(&format!("rollback --state {STATE}"))?;
    traced.push(trace(SITUATIONS[3])?);
    drop(hogs);

    drop(server);
    drop(guest);
    let Lab { host, .. } = lab;
    host.power_off();
    Ok(traced)
}

fn recording(traced: &Traced) -> Result<PathBuf> {
    traced
        .recording
        .clone()
        .with_context(|| format!("a recording is missing; teiji said: {}", traced.printed))
}

/// Runs `teiji replay` on this machine.
fn replay(programs: &Path, files: &[impl AsRef<Path>], options: &[&str]) -> Result<()> {
    let mut command = Command::new(programs.join("teiji"));
    command.arg("replay").args(files.iter().map(AsRef::as_ref)).args(options);
    if !command.status().context("cannot run teiji")?.success() {
        bail!("teiji replay failed: see its message above");
    }
    Ok(())
}

/// The situations side by side, and the effect of the policy.
fn table(vms: &[&VmReport]) -> String {
    let ms = |ns: f64| format!("{:.2} ms", ns / 1e6);
    let mut rows = vec![row("", SITUATIONS.iter().map(|(_, label)| (*label).to_owned()))];
    rows.push("-".repeat(rows[0].chars().count()));
    let mut add = |name: &str, of: &dyn Fn(&VmReport) -> Option<f64>| {
        rows.push(row(name, vms.iter().map(|vm| of(vm).map_or("-".to_owned(), ms))));
    };
    add("response time, median", &|vm| vm.total.map(|t| t.p50 as f64));
    add("response time, 99 %", &|vm| vm.total.map(|t| t.p99 as f64));
    add("call, median", &|vm| vm.groups.as_ref().map(|g| g.total.p50 as f64));
    add("waiting for a CPU, mean", &|vm| Some(ready(vm)));
    let blamed = |vm: &VmReport| vm.blamed_stage().map_or("-".to_owned(), |s| s.name().to_owned());
    rows.push(row("blamed stage", vms.iter().map(|vm| blamed(vm))));
    let share = |vm: &VmReport| format!("{:.0} %", vm.blamed().map_or(0.0, |f| f.share) * 100.0);
    rows.push(row("its cause's share", vms.iter().map(|vm| share(vm))));
    let mut text = format!("\n{}\n\n", rows.join("\n"));
    for ((_, label), vm) in SITUATIONS.iter().zip(vms) {
        text += &format!("{label}: {}\n", vm.line());
    }
    let p99 = |n: usize| vms.get(n).and_then(|vm| vm.total).map(|t| t.p99 as f64);
    if let (Some(hogs), Some(applied), Some(back)) = (p99(1), p99(2), p99(3)) {
        let times = |ratio: f64| format!("{ratio:.1} times");
        text += &format!(
            "\nthe policy made the 99th percentile {} shorter; its rollback made it {} longer again\n",
            times(hogs / applied),
            times(back / applied)
        );
    }
    text
}

fn row(name: &str, values: impl Iterator<Item = String>) -> String {
    values.fold(format!("{name:<24}"), |row, value| row + &format!("{value:>17}"))
}

/// Mean time for which a request waited until the vCPU got a CPU, ns.
fn ready(vm: &VmReport) -> f64 {
    vm.stages
        .iter()
        .filter(|s| matches!(s.stage, Stage::VcpuWake | Stage::Guest))
        .flat_map(|s| &s.parts)
        .filter(|p| p.state == ThreadState::Ready)
        .map(|p| p.mean)
        .sum()
}
