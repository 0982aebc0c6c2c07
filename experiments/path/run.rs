//! `path`: runs the experiment `path`; see README.md beside this file.

use anyhow::Result;
use clap::Parser;
use std::path::Path;
use std::process::ExitCode;
use std::time::Instant;
use teiji_experiments::numbers::quantile;
use teiji_experiments::path::table::{self, Found};
use teiji_experiments::path::{Extent, FULL, MEMORY_KB, SHORT, accuracy, agrees, blame, flood, many_vms};
use teiji_experiments::summary::{self, Summary};
use teiji_experiments::tracing::Lab;
use teiji_experiments::{load, plot, programs, say};
use teiji_lab::{GuestSpec, Turns};
use teiji_model::finding::Cause;

/// Compare stages with an independent capture; check which stage is blamed under contention
#[derive(Parser)]
struct Args {
    #[command(flatten)]
    form: summary::Form,
    /// Parts to run: any of a, b, c, d
    #[arg(long, default_value = "abcd")]
    parts: String,
}

fn main() -> ExitCode {
    summary::exit("path", run(&Args::parse()))
}

fn run(args: &Args) -> Result<bool> {
    let begun = Instant::now();
    let extent = if args.form.short { SHORT } else { FULL };
    let folder = summary::folder("path")?;
    let mut found = Found::default();
    let mut summary = Summary::new("path", "local", "");
    if args.parts.contains('d') {
        flood_part(&mut found, &mut summary, &extent)?;
    }
    if args.parts.contains(['a', 'b', 'c']) {
        lab_parts(args, &folder, &mut found, &mut summary, &extent)?;
    }
    summary.figure("seconds", begun.elapsed().as_secs())?;
    // Other hardware and load: for the reader to compare.
    summary.rivals.insert("paper".into(), summary::paper(include_str!("paper.csv"))?);
    let report = table::markdown(&found);
    summary::write(&folder.join("requests.csv"), &table::requests_csv(&found))?;
    summary::write(&folder.join("stages.csv"), &table::stages_csv(&found))?;
    plot::differences(&folder.join("accuracy.svg"), &found.agreements)?;
    plot::stages(&folder.join("blame.svg"), &found.judged)?;
    summary.conclude(&folder, &report, args.form.keep.then_some("make experiment NAME=path KEEP=1"))
}

/// Part d, on this machine.
fn flood_part(found: &mut Found, summary: &mut Summary, extent: &Extent) -> Result<()> {
    say("d. a flood through this machine's own kernel");
    let flood = flood::run(&programs::folder()?, extent.flood)?;
    summary.kernel = flood.kernel.clone();
    summary.claim(
        flood.exact(),
        &format!(
            "flood: {} packets at {:.0}/s; {} events taken in and {} lost are every one of {} for {} packets, but for at most {} \
             skipped runs of probes",
            flood.sent,
            flood.rate,
            flood.events,
            flood.lost,
            flood.points * flood.on_tap + flood.dropped,
            flood.on_tap,
            flood.missed
        ),
    );
    summary.claim(
        flood.peak_kb < MEMORY_KB,
        &format!("flood: peak memory {} kB is below 100 MB", flood.peak_kb),
    );
    summary.figure("flood", &flood)?;
    found.flood = Some(flood);
    Ok(())
}

/// Parts a, b and c, in one boot of the lab.
fn lab_parts(
    args: &Args,
    folder: &Path,
    found: &mut Found,
    summary: &mut Summary,
    extent: &Extent,
) -> Result<()> {
    let lab = Lab::boot(&folder.join("lab"))?;
    summary.mode = lab.mode().into();
    summary.kernel = lab.host.kernel().into();
    let first = lab.host.guest(&load::placed("vm1"))?;
    let _echo = load::echo_server(&lab.host, &first)?;
    if args.parts.contains('a') {
        let _sip = load::sip_server(&lab.host, &first)?;
        let _turns = turns(args, &lab)?;
        for case in &accuracy::CASES {
            say(&format!("a. accuracy: {}", case.name));
            let a = accuracy::run(&lab, &first, case, extent)?;
            judge_accuracy(summary, &a);
            found.agreements.push(a);
        }
        summary.figure("accuracy", &found.agreements)?;
    }
    if args.parts.contains('b') {
        for s in &blame::SITUATIONS {
            say(&format!("b. blame: {}", s.what));
            // Busy loops of the lab host would keep this machine's programs from running.
            let _turns = if s.has_hogs() { None } else { turns(args, &lab)? };
            let mut right = 0;
            for run in 1..=extent.runs {
                let judged = blame::run(&lab, &first, s, run, extent)?;
                say(&format!(
                    "{run}: {} {}",
                    if judged.right { "right:" } else { "WRONG:" },
                    judged.sentence
                ));
                right += u32::from(judged.right);
                found.judged.push(judged);
            }
            summary.claim(
                right == extent.runs,
                &format!("{}: blamed rightly {right} of {} times", s.name, extent.runs),
            );
        }
        remedy(&lab, &first, found, summary, extent)?;
        summary.figure("blame", &found.judged)?;
    }
    if args.parts.contains('c') {
        say(&format!("c. {} VMs at once", extent.vms));
        let many_vms = many_vms(&lab, &first, extent)?;
        summary.claim(many_vms.vms as u32 == extent.vms, &format!("{} VMs traced at once", many_vms.vms));
        summary.claim(
            many_vms.lost == 0,
            &format!(
                "at up to {:.0} requests/s {} events lost of {}",
                many_vms.sustained_per_s, many_vms.lost, many_vms.events
            ),
        );
        let [_, answered, late] = many_vms.called;
        let complete = many_vms.requests[1];
        summary.claim(
            answered > 0 && agrees("complete", complete, answered..=answered + late, many_vms.excused).is_ok(),
            &format!(
                "of {answered} answered requests {complete} are complete; the recording shows why up to {} others are not",
                many_vms.excused
            ),
        );
        summary.claim(
            many_vms.left_out_otherwise == 0,
            &format!(
                "{} requests are left out for reasons other than lost events, stalls, skipped probes and polling guests",
                many_vms.left_out_otherwise
            ),
        );
        summary.claim(
            many_vms.skips_agree,
            &format!(
                "{} signals with a skipped probe by teiji, {} skipped runs of these probes by the kernel",
                many_vms.skipped_signals, many_vms.skipped_runs
            ),
        );
        summary.claim(
            many_vms.peak_kb < MEMORY_KB,
            &format!("peak memory {} kB is below 100 MB", many_vms.peak_kb),
        );
        summary.figure("many_vms", &many_vms)?;
        found.many_vms = Some(many_vms);
    }
    drop(_echo);
    drop(first);
    let Lab { host, .. } = lab;
    host.power_off();
    Ok(())
}

/// Shows that the idle guest's wake-up is a cause: without it, its part of the time disappears.
fn remedy(
    lab: &Lab,
    guest: &teiji_lab::Guest<'_>,
    found: &mut Found,
    summary: &mut Summary,
    extent: &Extent,
) -> Result<()> {
    say(&format!("b. control: {}", blame::REMEDY.what));
    let idle: Vec<f64> =
        found.judged.iter().filter(|j| j.situation == "idle").map(blame::Judged::asleep_us).collect();
    let idle = quantile(&idle, 0.5);
    let polled = blame::run(lab, guest, &blame::REMEDY, 1, extent)?;
    say(&polled.sentence);
    let now = polled.asleep_us();
    summary.claim(
        now <= idle / 3.0,
        &format!("idle: polling takes the wake-up's part of a typical request from {idle:.0} to {now:.0} µs"),
    );
    let found_of = |j: &blame::Judged| j.report.findings.iter().any(|f| f.cause == Cause::VcpuWakeUp);
    summary.claim(
        found.judged.iter().filter(|j| j.situation == "idle").all(found_of) && !found_of(&polled),
        "idle: the finding `vcpu_wake_up` is there, and not with polling",
    );
    summary.figure("idle_asleep_us", idle)?;
    summary.figure("idle_polled_asleep_us", now)?;
    found.judged.push(polled);
    Ok(())
}

/// A short run may have other labs beside it, whose emulated CPUs would stand still.
fn turns(args: &Args, lab: &Lab) -> Result<Option<Turns>> {
    Ok(if args.form.short { None } else { Some(lab.host.take_turns()?) })
}

fn many_vms(lab: &Lab, first: &teiji_lab::Guest<'_>, extent: &Extent) -> Result<many_vms::ManyVms> {
    let others: Vec<_> = (2..=extent.vms)
        .map(|n| lab.host.guest(&GuestSpec::named(&format!("vm{n}"))))
        .collect::<Result<_, _>>()?;
    let servers: Vec<_> = others.iter().map(|g| load::echo_server(&lab.host, g)).collect::<Result<_>>()?;
    let all: Vec<_> = std::iter::once(first).chain(&others).collect();
    let many_vms = many_vms::run(lab, &all, extent)?;
    drop(servers);
    Ok(many_vms)
}

fn judge_accuracy(summary: &mut Summary, a: &accuracy::Agreement) {
    let case = a.case;
    summary.claim(
        a.agree_share >= 0.99,
        &format!(
            "{case}: {:.2} % of {} requests within 2 % or 50 µs of the capture (99th percentile {:.1} µs off)",
            a.agree_share * 100.0,
            a.matched,
            a.off_p99_us
        ),
    );
    summary.claim(
        a.not_between == 0,
        &format!(
            "{case}: {} of {} not between the captures inside and outside (typically {:.0} µs apart)",
            a.not_between, a.matched, a.around_p50_us
        ),
    );
    summary.claim(
        a.divided_wrongly == 0,
        &format!(
            "{case}: {} of {} not divided at the tap as by the capture there",
            a.divided_wrongly, a.matched
        ),
    );
    summary.claim(
        a.sums_wrong == 0 && a.unattributed <= 0.01,
        &format!("{case}: stages add up, {:.3} % unattributed", a.unattributed * 100.0),
    );
    summary.claim(
        a.matched_share >= 0.999 && a.lost == 0 && a.capture_dropped == 0,
        &format!(
            "{case}: {} of {} answered requests followed ({:?} seen, complete, incomplete, ambiguous, unanswered), {} events \
             lost",
            a.matched, a.answered, a.counts, a.lost
        ),
    );
}
