//! `apply`: runs the experiment `apply`; see README.md beside this file.

use anyhow::Result;
use clap::Parser;
use std::process::ExitCode;
use std::time::Instant;
use teiji_experiments::apply::kills::{self, Kills, Vanishings};
use teiji_experiments::apply::test_host::{self, TestHost};
use teiji_experiments::apply::{FULL, SHORT, seed};
use teiji_experiments::summary::{self, Summary};
use teiji_experiments::tracing::Lab;
use teiji_experiments::{plot, say};

/// Whenever teiji is killed, every setting of the host ends as it was or as the policy asks
#[derive(Parser)]
struct Args {
    #[command(flatten)]
    form: summary::Form,
    /// Applies to kill; as many rollbacks are killed too
    #[arg(long, default_value_t = FULL.kills, conflicts_with = "short")]
    rounds: u32,
    /// Seed of the random moments [default: another one each time]
    #[arg(long)]
    seed: Option<u64>,
}

fn main() -> ExitCode {
    summary::exit("apply", run(&Args::parse()))
}

fn run(args: &Args) -> Result<bool> {
    let begun = Instant::now();
    let (rounds, vanish) =
        if args.form.short { (SHORT.kills, SHORT.vanish) } else { (args.rounds, FULL.vanish) };
    let seed = args.seed.unwrap_or_else(seed);
    let folder = summary::folder("apply")?;
    let lab = test_host::boot(&folder.join("lab"))?;
    let guest = lab.host.guest(&test_host::guest())?;
    let test_host = TestHost::prepare(&lab, &guest)?;
    say(&format!("{rounds} applies and {rounds} rollbacks are killed; seed {seed}"));
    let kills = kills::run(&test_host, rounds, seed)?;
    say(&format!(
        "VMs are killed while a policy is applied to them, until {vanish} applies were not committed"
    ));
    let rounds_vanished = kills::vanish(&test_host, vanish, seed)?;
    let vanished = Vanishings::of(&rounds_vanished);
    let mut summary = Summary::new("apply", lab.mode(), lab.host.kernel());
    judge(&mut summary, &kills, rounds);
    judge_vanished(&mut summary, &vanished, vanish);
    drop(guest);
    let Lab { host, .. } = lab;
    host.power_off();
    summary.figure("kills", &kills)?;
    summary.figure("vanished", &vanished)?;
    summary.figure("seconds", begun.elapsed().as_secs())?;
    let report = format!(
        "{}\nVMs killed while they were applied to: {}. The apply undid itself {} times, was killed as well and undone by the \
         recovery {} times, was committed already and rolled back {} times; what remained was restored {} times.\n",
        kills.markdown(),
        vanished.rounds,
        vanished.undone,
        vanished.recovered,
        vanished.committed,
        vanished.well
    );
    summary::write(&folder.join("rounds.csv"), &kills.csv())?;
    plot::kills(&folder.join("kills.svg"), &kills)?;
    print!("{}", kills.failures());
    for round in rounds_vanished.iter().filter(|r| !r.well()) {
        println!("{round:?}");
    }
    let command =
        format!("cargo run -p teiji-experiments --bin apply -- --rounds {rounds} --seed {seed} --keep");
    summary.conclude(&folder, &report, args.form.keep.then_some(command.as_str()))
}

fn judge(summary: &mut Summary, kills: &Kills, wanted: u32) {
    for (kind, c) in kills.counts() {
        summary.claim(
            c.well == c.rounds && c.kills == wanted,
            &format!(
                "{kind}: after {} of {} rounds with {} kills every setting was as it should be",
                c.well, c.rounds, c.kills
            ),
        );
        summary.claim(
            c.between > 0 && c.recovery_kills > 0 && c.at_work * 2 > c.kills,
            &format!(
                "{kind}: {} kills met it at work, {} of them with some settings changed and others not; {} met the \
                 recovery",
                c.at_work, c.between, c.recovery_kills
            ),
        );
    }
}

fn judge_vanished(summary: &mut Summary, v: &Vanishings, wanted: u32) {
    summary.claim(
        v.well == v.rounds && v.undone + v.recovered == wanted,
        &format!("after {} of {} kills of the VM what remains was as it should be", v.well, v.rounds),
    );
    summary.claim(
        v.undone > 0 && v.recovered > 0 && v.said_gone > 0,
        &format!(
            "{} applies undid themselves, {} were killed as well; {} times it was said what is gone",
            v.undone, v.recovered, v.said_gone
        ),
    );
}
