//! `teiji-guest`: the command. It parses arguments and prints; the rest is in the library.
use anyhow::{Context, Result};
use clap::{Parser, Subcommand};
use signal_hook::consts::{SIGINT, SIGTERM};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use teiji_guest::check::Report;
use teiji_guest::guest_trace::{Kernel, symbols::Symbols};
use teiji_guest::{privilege, serve};
use teiji_model::guest::PORT;

/// Follows packets inside this virtual machine for the teiji of its host
#[derive(Parser)]
#[command(version, arg_required_else_help = true)]
struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Wait for the host, and tell it what packets do in this machine
    ///
    /// Nothing is loaded into the kernel while no host asks. The host is known by its address on vsock. Over TCP both prove
    /// that they know a token, which is not sent. What follows is neither encrypted nor protected, so use a network that only
    /// the host and its guests are on.
    Serve {
        /// Port of vsock to listen on
        #[arg(long, value_name = "N", default_value_t = PORT, conflicts_with = "no_vsock")]
        vsock_port: u32,
        /// Do not listen on vsock
        #[arg(long)]
        no_vsock: bool,
        /// Address of TCP to listen on
        #[arg(long, value_name = "ADDR:PORT", requires = "token_file")]
        tcp: Option<SocketAddr>,
        /// File with the token that hosts have to know over TCP; only its owner may be able to read it
        #[arg(long, value_name = "F", requires = "tcp")]
        token_file: Option<PathBuf>,
    },
    /// Say what this kernel offers, and what is not seen without the rest
    ///
    /// Ends with 1 if requests cannot be followed.
    Check {
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
}

fn main() -> ExitCode {
    let done = match Args::parse().command {
        Command::Serve { vsock_port, no_vsock, tcp, token_file } => {
            let options =
                serve::Options { vsock: (!no_vsock).then_some(vsock_port), tcp: tcp.zip(token_file) };
            wait_for_hosts(&options).map(|()| true)
        }
        Command::Check { json } => check(json),
    };
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("teiji-guest: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn wait_for_hosts(options: &serve::Options) -> Result<()> {
    let (listeners, shared) = serve::prepare(options)?;
    for listener in &listeners {
        eprintln!("teiji-guest: waiting for the host on {listener}");
    }
    for missing in shared.kernel.missing() {
        eprintln!("teiji-guest: this kernel lacks {}: {}", missing.hook, missing.without);
    }
    let signalled = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        signal_hook::flag::register(signal, Arc::clone(&signalled)).context("cannot handle signals")?;
    }
    std::thread::scope(|scope| {
        scope.spawn(|| serve::serve(&listeners, &shared));
        while !signalled.load(Ordering::Relaxed) {
            // A signal ends the sleep of the thread that it comes to, which may be another one.
            std::thread::sleep(std::time::Duration::from_millis(200));
        }
        shared.ends.store(true, Ordering::Relaxed);
    });
    Ok(())
}

fn check(json: bool) -> Result<bool> {
    let symbols = Symbols::read();
    privilege::give_up()?;
    let report = Report::of(&Kernel::look(&symbols)?);
    if json {
        println!("{}", serde_json::to_string_pretty(&report)?);
    } else {
        print!("{report}");
    }
    Ok(report.can_follow)
}
