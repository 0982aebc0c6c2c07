//! `churn`: what runs in the lab host for the experiment `agent`; see `driver.rs` and `machine.rs`.

use anyhow::Result;
use clap::{Parser, Subcommand};
use std::path::PathBuf;
use teiji_experiments::agent::driver;
use teiji_experiments::agent::machine::{self, Machine};

/// Starts and stops VMs and links for the experiment `agent`
#[derive(Parser)]
struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand)]
enum What {
    /// Be a VM until standard input is closed
    Machine(Machine),
    /// Print the policy that the agent is to keep
    Policy {
        /// How many VMs it names that do not come and go
        #[arg(long)]
        resting: usize,
    },
    /// Start and stop VMs and links
    Run {
        /// How many
        #[arg(long)]
        count: usize,
        /// The agent's state directory
        #[arg(long)]
        state: PathBuf,
    },
    /// Run VMs of the policy, and measure the agent
    Rest {
        /// How many VMs
        #[arg(long)]
        vms: usize,
        /// How many taps each
        #[arg(long)]
        taps: usize,
        /// For how many seconds
        #[arg(long)]
        seconds: f64,
        /// Its process id
        #[arg(long)]
        agent: u32,
    },
}

fn main() -> Result<()> {
    match Args::parse().what {
        What::Machine(machine) => machine::run(&machine)?,
        What::Policy { resting } => print!("{}", driver::policy(resting)),
        What::Run { count, state } => println!("{}", serde_json::to_string(&driver::churn(count, &state)?)?),
        What::Rest { vms, taps, seconds, agent } => {
            println!("{}", serde_json::to_string(&driver::rest(vms, taps, seconds, agent)?)?);
        }
    }
    Ok(())
}
