//! `edf-cost`: runs the experiment `edf-cost`; see README.md beside this file.

use anyhow::Result;
use clap::Parser;
use std::process::ExitCode;
use std::time::Instant;
use teiji_experiments::edf_cost::{BACKLOGGED, CHANNELS, FREE, bench, table};
use teiji_experiments::edf_delay::net;
use teiji_experiments::summary::{self, Summary};

/// What a packet costs in the qdisc, compared with other qdiscs
#[derive(Parser)]
struct Args {
    #[command(flatten)]
    form: summary::Form,
}

fn main() -> ExitCode {
    summary::exit("edf-cost", run(&Args::parse()))
}

fn run(args: &Args) -> Result<bool> {
    let begun = Instant::now();
    let folder = summary::folder("edf-cost")?;
    let host = net::boot(&folder.join("lab"), net::TIMED)?;
    let mut summary = Summary::new("edf-cost", "virtual", host.kernel());
    let (rounds, windows) = if args.form.short { (1, 3) } else { (4, 3) };
    let mut samples = Vec::new();
    let mut report = String::new();
    for case in [FREE, BACKLOGGED] {
        let taken = bench::run(&host, &case, rounds, windows)?;
        let costs = bench::costs(&taken);
        report += &(table::markdown(&case, &costs) + "\n");
        let name = case.name.split(' ').next().unwrap_or_default();
        table::picture(&folder.join(format!("{name}.svg")), &case, &costs)?;
        judge(&mut summary, case == FREE, case.name, &costs);
        let (own, others): (Vec<_>, Vec<_>) = costs.into_iter().partition(|c| c.qdisc == "teiji_edf");
        summary.figure(case.name, &own)?;
        summary.rivals.insert(case.name.into(), serde_json::to_value(&others)?);
        samples.push((case, taken));
    }
    host.power_off();
    summary.figure("seconds", begun.elapsed().as_secs())?;
    summary::write(&folder.join("windows.csv"), &table::csv(&samples))?;
    summary.conclude(&folder, &report, args.form.keep.then_some("make experiment NAME=edf-cost KEEP=1"))
}

/// Judges the claims about teiji_edf.
fn judge(summary: &mut Summary, main: bool, case: &str, costs: &[bench::Cost]) {
    let of = |qdisc: &str, n: u64| bench::least(costs, qdisc, n);
    for n in CHANNELS {
        let (own, hfsc, fq) = (of("teiji_edf", n), of("hfsc", n), of("fq", n));
        summary.claim(
            own > 0.0 && own <= hfsc,
            &format!("{case}, {n} channels: {own:.0} ns, HFSC {hfsc:.0} ns"),
        );
        if main {
            let hashed = bench::with(costs, "hfsc", "flower", n);
            summary.claim(
                own <= hashed,
                &format!("{case}, {n} channels: {own:.0} ns, HFSC with flower {hashed:.0} ns"),
            );
            let most = 1.5 * fq;
            summary.claim(own <= most, &format!("{case}, {n} channels: {own:.0} ns, 1.5 × fq {most:.0} ns"));
        }
    }
    let growth = of("teiji_edf", CHANNELS[2]) / of("teiji_edf", CHANNELS[0]) - 1.0;
    summary.claim(
        growth <= 0.3,
        &format!("{case}: {:.0} % more with 1,000 channels than with one", growth * 100.0),
    );
}
