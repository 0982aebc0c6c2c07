//! The teiji command.

use std::io::Write;
use std::process::ExitCode;

fn main() -> ExitCode {
    let args = <teiji::args::Args as clap::Parser>::parse();
    match teiji::command::run(&args) {
        Ok(code) => code,
        Err(error) if teiji::output::reader_left(&error) => ExitCode::SUCCESS,
        Err(error) => {
            let code = if error.is::<teiji::args::Usage>() { 2 } else { 1 };
            let text = teiji::terminal::printable_lines(&format!("{error:#}"));
            let _ = writeln!(std::io::stderr(), "teiji: {text}");
            ExitCode::from(code)
        }
    }
}
