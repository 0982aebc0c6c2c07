//! `admission`: runs the experiment of that name; see README.md beside this file.

use anyhow::Result;
use clap::Parser;
use std::fmt::Write as _;
use std::process::ExitCode;
use std::time::Instant;
use teiji_experiments::admission::trial::{self, Found, Row};
use teiji_experiments::admission::{FULL, SHORT};
use teiji_experiments::numbers::{quantile, share};
use teiji_experiments::summary::{self, Summary};
use teiji_experiments::{plot, say};

/// A refusal counts as near if at most this many bytes were too many.
const NEAR: u128 = 100;

/// No admitted set of channels misses a deadline; nearly all refused sets do
#[derive(Parser)]
struct Args {
    #[command(flatten)]
    form: summary::Form,
    /// Seed; another one gives other sets and other traffic
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

fn main() -> ExitCode {
    summary::exit("admission", run(&Args::parse()))
}

fn run(args: &Args) -> Result<bool> {
    let begun = Instant::now();
    let extent = if args.form.short { SHORT } else { FULL };
    let folder = summary::folder("admission")?;
    // The link is simulated: no lab is started.
    let mut summary = Summary::new("admission", "simulated", "none");
    let threads = std::thread::available_parallelism().map_or(1, |n| n.get() as u64);
    say(&format!("{} sets of channels", extent.sets));
    let found = trial::run(&extent, args.seed, threads);
    judge(&found, &mut summary)?;
    summary.figure("seconds", begun.elapsed().as_secs())?;
    summary.figure("seed", args.seed)?;
    let report = table(&found);
    summary::write(&folder.join("sets.csv"), &csv(&found.rows))?;
    plot::tightness(&folder.join("tightness.svg"), &tightness(&found))?;
    summary.conclude(&folder, &report, args.form.keep.then_some("make experiment NAME=admission KEEP=1"))
}

fn judge(found: &Found, summary: &mut Summary) -> Result<()> {
    for wrong in found.wrong.iter().take(20) {
        say(wrong);
    }
    summary.claim(
        found.wrong.is_empty() && found.admitted > 0,
        &format!(
            "{} sets admitted: {} misses or delays above the guaranteed ones",
            found.admitted,
            found.wrong.len()
        ),
    );
    let missed = share(found.refused_that_missed as usize, found.refused as usize);
    summary.claim(
        missed >= 0.95,
        &format!("{} sets refused: {:.2} % miss in the worst traffic found", found.refused, missed * 100.0),
    );
    let tight = tightness(found);
    summary.figure("found", found)?;
    summary.figure("refused_that_missed_share", missed)?;
    summary.figure("tightness_p50", quantile(&tight, 0.5))?;
    summary.figure("tightness_max", quantile(&tight, 1.0))?;
    Ok(())
}

/// Of each admitted set, the ratio of the longest delay seen to the guaranteed delay.
fn tightness(found: &Found) -> Vec<f64> {
    found.rows.iter().filter_map(|r| r.tightness).collect()
}

fn table(found: &Found) -> String {
    let mut text = String::from(
        "| decision | sets | of them missed a deadline | excess of those that did not, bytes: median | most | packets sent |\n| \
         --- | --- | --- | --- | --- | --- |\n",
    );
    for decision in ["admitted", "deadline", "slack", "rate"] {
        let rows: Vec<&Row> = found.rows.iter().filter(|r| r.decision == decision).collect();
        let missed = rows.iter().filter(|r| r.missed > 0).count();
        let kept: Vec<f64> = rows.iter().filter(|r| r.missed == 0).map(|r| r.excess as f64).collect();
        let packets: u64 = rows.iter().map(|r| r.packets).sum();
        let of = |q: f64| {
            if decision == "admitted" || kept.is_empty() {
                "–".into()
            } else {
                format!("{:.0}", quantile(&kept, q))
            }
        };
        let name = if decision == "admitted" { decision.into() } else { format!("refused: {decision}") };
        // Writing to a String cannot fail.
        let _ = writeln!(
            text,
            "| {name} | {} | {missed} ({:.2} %) | {} | {} | {packets} |",
            rows.len(),
            share(missed, rows.len()) * 100.0,
            of(0.5),
            of(1.0),
        );
    }
    let near: Vec<&Row> =
        found.rows.iter().filter(|r| r.decision != "admitted" && r.excess <= NEAR).collect();
    let missed = near.iter().filter(|r| r.missed > 0).count();
    let _ = writeln!(
        text,
        "\nOf the {} sets refused for at most {NEAR} bytes, {missed} missed a deadline ({:.2} %).",
        near.len(),
        share(missed, near.len()) * 100.0
    );
    let tight = tightness(found);
    let loose: Vec<f64> = found.rows.iter().filter_map(|r| r.loosest).collect();
    let _ = writeln!(
        text,
        "\nThe longest delay seen over the one guaranteed, of the channel of each admitted set that came nearest: median {:.4}, \
         most {:.6}; of the one that stayed farthest: median {:.4}, 1st percentile {:.4}.",
        quantile(&tight, 0.5),
        quantile(&tight, 1.0),
        quantile(&loose, 0.5),
        quantile(&loose, 0.01)
    );
    text
}

fn csv(rows: &[Row]) -> String {
    let mut text = String::from("set,channels,decision,excess_bytes,packets,missed,tightness,loosest\n");
    for r in rows {
        let ratio = |r: Option<f64>| r.map_or(String::new(), |t| format!("{t:.6}"));
        let _ = writeln!(
            text,
            "{},{},{},{},{},{},{},{}",
            r.set,
            r.channels,
            r.decision,
            r.excess,
            r.packets,
            r.missed,
            ratio(r.tightness),
            ratio(r.loosest)
        );
    }
    text
}
