//! `sip`: runs the experiment `sip`; see README.md beside this file.

use anyhow::Result;
use clap::Parser;
use std::fmt::Write;
use std::process::ExitCode;
use std::time::Instant;
use teiji_experiments::sip::calls::{self, Agreement};
use teiji_experiments::sip::findings::{self, Claims, Shown};
use teiji_experiments::sip::{Counted, Extent, FULL, SHORT};
use teiji_experiments::summary::{self, Summary};
use teiji_experiments::tracing::Lab;
use teiji_experiments::{load, reporting, say};
use teiji_lab::Guest;

/// Compare SIP calls with sipp's own logs; provoke each finding of paper P0
#[derive(Parser)]
struct Args {
    #[command(flatten)]
    form: summary::Form,
    /// Parts to run: any of a, b, c
    #[arg(long, default_value = "abc")]
    parts: String,
}

/// The results.
#[derive(Default)]
struct Found {
    agreement: Option<Agreement>,
    shown: Vec<(Shown, Option<Counted>)>,
}

fn main() -> ExitCode {
    summary::exit("sip", run(&Args::parse()))
}

fn run(args: &Args) -> Result<bool> {
    let begun = Instant::now();
    let extent = if args.form.short { SHORT } else { FULL };
    let folder = summary::folder("sip")?;
    let lab = Lab::boot(&folder.join("lab"))?;
    let mut summary = Summary::new("sip", lab.mode(), lab.host.kernel());
    let guest = reporting::guest(&lab, "vm1")?;
    let reports = reporting::serve(&guest)?;
    let mut found = Found::default();
    // What fails in one part says nothing about the others.
    let done = |summary: &mut Summary, part: char, result: Result<()>| {
        if let Err(error) = result {
            summary.claim(false, &format!("part {part} was run to its end: {error:#}"));
        }
    };
    if args.parts.contains('a') {
        say(&format!("a. {} calls", extent.calls));
        // A short run may have other labs beside it, whose emulated CPUs would stand still.
        let turns = if args.form.short { None } else { Some(lab.host.take_turns()?) };
        let result = calls_part(&lab, &guest, &extent, &mut summary, &mut found);
        drop(turns);
        done(&mut summary, 'a', result);
    }
    if args.parts.contains('c') {
        say("c. the findings of the paper");
        let result = findings_part(&lab, &guest, &extent, &mut summary, &mut found);
        done(&mut summary, 'c', result);
    }
    if args.parts.contains('b') {
        say(&format!("b. {} echo requests", extent.echoes));
        let result = clock(&lab, &guest, &extent, &mut summary);
        done(&mut summary, 'b', result);
    }
    drop(reports);
    drop(guest);
    lab.host.power_off();
    summary.figure("seconds", begun.elapsed().as_secs())?;
    summary.rivals.insert("paper".into(), summary::paper(include_str!("paper.csv"))?);
    if let Some(a) = &found.agreement {
        summary::write(&folder.join("calls.csv"), &csv(a))?;
    }
    summary.conclude(&folder, &markdown(&found), args.form.keep.then_some("make experiment NAME=sip KEEP=1"))
}

/// Part a.
fn calls_part(
    lab: &Lab,
    guest: &Guest<'_>,
    extent: &Extent,
    summary: &mut Summary,
    found: &mut Found,
) -> Result<()> {
    let server = load::sip_server(&lab.host, guest)?;
    let a = calls::run(lab, guest, extent)?;
    drop(server);
    judge_calls(summary, &a, extent);
    summary.figure("calls", &a)?;
    found.agreement = Some(a);
    Ok(())
}

fn judge_calls(summary: &mut Summary, a: &Agreement, extent: &Extent) {
    let of = |share: f64| format!("{:.2} %", share * 100.0);
    summary.claim(
        a.calls as u64 == extent.calls && a.complete as f64 >= 0.99 * a.calls as f64,
        &format!("{} of {} calls complete, {} incomplete", a.complete, a.calls, a.incomplete),
    );
    summary.claim(
        a.sums_wrong == 0 && a.calls_wrong == 0 && a.unattributed <= 0.01,
        &format!(
            "stages add up to their requests, requests to their calls; {} unattributed",
            of(a.unattributed)
        ),
    );
    summary.claim(
        a.with_capture >= 0.99 && a.compared as f64 >= 0.99 * a.calls as f64,
        &format!(
            "{} of {} calls within 2 % of the capture at sipp's interface",
            of(a.with_capture),
            a.compared
        ),
    );
    // No claim: sipp's own clock is too coarse for calls as short as these.
    say(&format!(
        "within 2 % of sipp's response times (steps of {} ms, {} different values): {}; those within 2 % of the capture: {}; within \
         2 % of sipp's message log: {}",
        a.step_ms,
        a.distinct,
        of(a.with_response_times),
        of(a.response_times_with_capture),
        of(a.with_messages)
    ));
    let causality = a.violations == 0 && a.clock_error <= 5_000;
    summary.claim(
        causality,
        &format!(
            "SIP: no report before its cause in {} requests; the guest's clock is wrong by {} ns at most",
            a.divided, a.clock_error
        ),
    );
}

/// Part b.
fn clock(lab: &Lab, guest: &Guest<'_>, extent: &Extent, summary: &mut Summary) -> Result<()> {
    let server = load::echo_server(&lab.host, guest)?;
    let (inside, error, lost) = calls::causality(lab, guest, extent.echoes)?;
    drop(server);
    let packets = 2 * (inside.divided + inside.violations);
    summary.claim(
        inside.violations == 0 && error <= 5_000 && packets >= 2 * extent.echoes / 101 * 100,
        &format!(
            "echo: no report before its cause in {packets} packets ({} violations, {} not divided because of the clock, {lost} \
             reports lost); clock wrong by {error} ns at most",
            inside.violations, inside.clock_unknown
        ),
    );
    summary.figure("clock_packets", packets)?;
    summary.figure("clock_error_ns", error)
}

/// Part c.
fn findings_part(
    lab: &Lab,
    guest: &Guest<'_>,
    extent: &Extent,
    summary: &mut Summary,
    found: &mut Found,
) -> Result<()> {
    let judge = |summary: &mut Summary, claims: Claims| {
        claims.into_iter().for_each(|(holds, what)| summary.claim(holds, &what));
    };
    let server = load::sip_server(&lab.host, guest)?;
    let [idle, polled, contended] = findings::idle_polled_contended(lab, guest, extent)?;
    judge(summary, findings::judge_idle(&idle, &polled, &contended));
    found.shown.extend([idle, polled, contended].map(|shown| (shown, None)));
    let [step, paced] = findings::step_and_paced(lab, guest, extent)?;
    judge(summary, findings::judge_step(&step, &paced));
    found.shown.extend([step, paced].map(|shown| (shown, None)));
    drop(server);
    let [thread, pool] = findings::threads_and_pool(lab, guest, extent.of_finding)?;
    judge(summary, findings::judge_threads(&thread, &pool));
    found.shown.extend([thread, pool].map(|(shown, counted)| (shown, Some(counted))));
    summary.figure("findings", found.shown.iter().map(|(shown, _)| shown).collect::<Vec<_>>())
}

// Writing to a String cannot fail, here and below.

fn markdown(found: &Found) -> String {
    let mut t = String::new();
    if let Some(a) = &found.agreement {
        let _ = writeln!(
            t,
            "## a. Calls\n\n{} calls, {} compared: median {:.1} ms, 99 % {:.1} ms. {} requests sent again, {} copies in the capture.\n\n\
             | compared with | within 2 % | off, median | off, 99 % |\n| --- | --- | --- | --- |",
            a.calls, a.compared, a.total_ms[0], a.total_ms[1], a.sent_again.requests, a.repeated
        );
        let rows = [
            ("capture at sipp's interface", a.with_capture),
            ("sipp's message log", a.with_messages),
            ("sipp's response times", a.with_response_times),
        ];
        for ((what, share), off) in rows.into_iter().zip(a.off_ms) {
            let _ = writeln!(t, "| {what} | {:.2} % | {:.3} ms | {:.3} ms |", share * 100.0, off[0], off[1]);
        }
        let _ = writeln!(
            t,
            "\nsipp's response times have steps of {} ms, and are within 2 % of the capture at its own interface for {:.2} % of the \
             calls.",
            a.step_ms,
            a.response_times_with_capture * 100.0
        );
        let _ = writeln!(
            t,
            "\n| message | calls | sent again | after the INVITE, median |\n| --- | --- | --- | --- |"
        );
        for (message, calls, copies, ms) in &a.messages {
            let _ = writeln!(t, "| {} | {calls} | {copies} | {ms:.2} ms |", message.name());
        }
    }
    if !found.shown.is_empty() {
        let _ = writeln!(
            t,
            "\n## c. Findings\n\n| run | requests | asleep in the socket | waiting for a CPU in the socket | threads woken | asleep \
             meanwhile | at once, mean | most | on the tap, mean | most | by a new thread | findings |\n\
             | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |"
        );
    }
    for (s, _) in &found.shown {
        let causes: Vec<String> =
            s.causes.iter().map(|(c, share)| format!("{} {:.0} %", c.name(), share * 100.0)).collect();
        let _ = writeln!(
            t,
            "| {} | {} | {:.1} % | {:.1} % | {:.2} | {:.1} % | {:.2} | {} | {:.2} | {} | {} of {} | {} |",
            s.run,
            s.complete,
            s.socket_asleep * 100.0,
            s.socket_ready * 100.0,
            s.woken,
            s.wake_shares.iter().sum::<f64>() * 100.0,
            s.burst.0,
            s.burst.1,
            s.depth.0,
            s.depth.1,
            s.new_threads.0,
            s.new_threads.1,
            causes.join(", ")
        );
    }
    t
}

fn csv(a: &Agreement) -> String {
    let mut t = String::from("start_ns,teiji_ns,capture_ns,message_log_ns,response_time_ns\n");
    for c in &a.all {
        let _ = writeln!(t, "{},{},{},{},{}", c.start, c.teiji, c.capture, c.messages, c.response_times);
    }
    t
}
