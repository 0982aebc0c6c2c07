//! `cost`: the driver of experiment `overhead`. Runs in the lab host and prints the samples as JSON.

use anyhow::Result;
use clap::Parser;
use teiji_experiments::overhead::driver::{self, Amount};

/// Measure what the probes add to packets, context switches, exits and requests
#[derive(Parser)]
struct Args {
    #[command(flatten)]
    amount: Amount,
}

fn main() -> Result<()> {
    println!("{}", serde_json::to_string(&driver::run(&Args::parse().amount)?)?);
    Ok(())
}
