//! The teiji command.

use std::io::Write;
use std::process::ExitCode;

fn main() -> ExitCode {
    let args = <teiji::args::Args as clap::Parser>::parse();
    use teiji::args::Command;
    let level = match args.command {
        // An agent runs in the background, so it logs what it does; systemd adds the time.
        Command::Agent(_) | Command::Front => "info",
        // Which VMs come, and which guests report; of `top` this is printed when it ends.
        Command::Trace(_) | Command::Top(_) => "warn,teiji_agent::trace=info",
        _ => "warn",
    };
    let filter = tracing_subscriber::EnvFilter::try_from_env("TEIJI_LOG").unwrap_or_else(|_| level.into());
    // The library would use colour for any destination, including files and the journal.
    let colour = teiji::style::stderr().colour;
    // If nobody reads the log, the library would panic because it cannot report that.
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_ansi(colour).log_internal_errors(false);
    log.with_writer(|| teiji::screen::Log).without_time().init();
    tracing::debug!("teiji {}", env!("CARGO_PKG_VERSION"));
    match teiji::subcommand::run(&args) {
        Ok(code) => code,
        Err(error) if teiji::output::reader_closed(&error) => ExitCode::SUCCESS,
        Err(error) => {
            let code = if error.is::<teiji::args::Usage>() { 2 } else { 1 };
            let text = teiji_render::terminal::printable_lines(&format!("{error:#}"));
            let _ = writeln!(std::io::stderr(), "teiji: {text}");
            ExitCode::from(code)
        }
    }
}
