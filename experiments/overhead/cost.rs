//! `cost`: the driver of experiment `overhead`, in the lab host. Prints the samples as JSON.

use anyhow::Result;
use clap::Parser;
use teiji_experiments::overhead::driver::{self, Amount};

/// Time what the probes add to packets, context switches and exits
#[derive(Parser)]
struct Args {
    #[command(flatten)]
    amount: Amount,
}

fn main() -> Result<()> {
    println!("{}", serde_json::to_string(&driver::run(&Args::parse().amount)?)?);
    Ok(())
}
