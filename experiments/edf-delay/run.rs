//! `edf-delay`: runs the experiment `edf-delay`; see README.md beside this file.

use anyhow::Result;
use clap::Parser;
use std::process::ExitCode;
use std::time::Instant;
use teiji_experiments::edf_delay::traffic::{self, Outcome};
use teiji_experiments::edf_delay::{Workload, demand, many, net, rivals, six, table};
use teiji_experiments::say;
use teiji_experiments::summary::{self, Summary};

/// Every packet of a channel within its deadline; comparison with other qdiscs
#[derive(Parser)]
struct Args {
    #[command(flatten)]
    form: summary::Form,
}

fn main() -> ExitCode {
    summary::exit("edf-delay", run(&Args::parse()))
}

fn run(args: &Args) -> Result<bool> {
    let begun = Instant::now();
    let folder = summary::folder("edf-delay")?;
    let host = net::boot(&folder.join("lab"), net::TIMED)?;
    let mut summary = Summary::new("edf-delay", "virtual", host.kernel());
    // 60 s of 32 channels that reserve 45 Mbit/s are 219,000 packets.
    let (ours, theirs) = if args.form.short { (4, 4) } else { (60, 6) };
    let mut outcomes: Vec<Outcome> = Vec::new();
    for workload in [six, many] {
        for qdisc in rivals::QDISCS {
            let own = qdisc == rivals::QDISCS[0];
            let workload: Workload =
                workload(if own && workload(1).channels.len() > 6 { ours } else { theirs });
            let outcome = traffic::run(&host, qdisc, &workload)?;
            say(&format!(
                "{}, {qdisc}: {} of {} late or lost, longest {:.2} of the deadline, best effort {:.1} %",
                workload.name,
                outcome.failed(),
                outcome.sent(),
                outcome.worst(),
                outcome.best_effort * 100.0
            ));
            if own {
                judge(&mut summary, &workload, &outcome);
            }
            outcomes.push(outcome);
        }
    }
    host.power_off();
    let (own, others): (Vec<_>, Vec<_>) = outcomes.iter().partition(|o| o.qdisc == rivals::QDISCS[0]);
    summary.figure("runs", &own)?;
    summary.figure("seconds", begun.elapsed().as_secs())?;
    summary.rivals.insert("qdiscs".into(), serde_json::to_value(&others)?);
    summary.rivals.insert("paper".into(), summary::paper(include_str!("paper.csv"))?);
    let report = table::markdown(&outcomes);
    summary::write(&folder.join("flows.csv"), &table::csv(&outcomes))?;
    table::picture(&folder.join("six.svg"), six(1).name, &outcomes)?;
    table::picture(&folder.join("many.svg"), many(1).name, &outcomes)?;
    summary.conclude(&folder, &report, args.form.keep.then_some("make experiment NAME=edf-delay KEEP=1"))
}

/// Judges the claims about teiji_edf.
fn judge(summary: &mut Summary, workload: &Workload, o: &Outcome) {
    let name = workload.name;
    summary.claim(
        o.failed() == 0 && o.sent() > 0,
        &format!(
            "{name}: each of {} packets arrived within its deadline (longest {:.2} of it; demand {:.2})",
            o.sent(),
            o.worst(),
            demand(&workload.channels)
        ),
    );
    let bounded = o.flows.iter().filter_map(|f| f.bound_us.map(|bound| f.max_us / bound)).fold(0.0, f64::max);
    summary.claim(
        bounded <= 1.0 && bounded > 0.0,
        &format!("{name}: each arrived within what `teiji plan` had guaranteed (longest {bounded:.2} of it)"),
    );
    let misses: u64 = o.flows.iter().filter_map(|f| f.misses).sum();
    let queued =
        o.flows.iter().filter_map(|f| f.queued_max_us.map(|q| q / f.deadline_us as f64)).fold(0.0, f64::max);
    summary.claim(
        misses == 0 && queued <= 1.0 && queued > 0.0,
        &format!("{name}: the qdisc counts {misses} misses, longest {queued:.2} of the deadline"),
    );
    let excess: u64 = o.flows.iter().filter_map(|f| f.excess).sum();
    summary.claim(excess == 0, &format!("{name}: {excess} packets exceeded their channel's rate"));
    summary.claim(
        o.best_effort >= 0.95,
        &format!("{name}: best effort got {:.1} % of what was left of the link", o.best_effort * 100.0),
    );
}
