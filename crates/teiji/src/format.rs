//! Prints a report in the requested format.

use crate::args::{Format, ReportArgs, Usage};
use crate::{output, style};
use anyhow::Result;
use std::io::{self, IsTerminal, Write};
use teiji_agent::service::advice;
use teiji_model::observed::Observed;
use teiji_model::report::{Joined, Report};
use teiji_model::text::duration;
use teiji_render::html::Shown;
use teiji_render::terminal::{Style, printable};
use teiji_render::{html, perfetto, text};

/// The requests that are stored for formats that show every request.
pub struct Kept {
    wanted: bool,
    requests: Vec<Joined>,
    left_out: u64,
    /// How many spans of threads these have, and of how many requests the threads are left out.
    spans: usize,
    without_threads: u64,
}

impl Kept {
    /// The greatest number of requests that are stored.
    pub const MOST: usize = 100_000;
    /// The greatest number of spans of threads that are stored: 80 MB.
    const MOST_SPANS: usize = 2_000_000;

    /// Stores requests if the format shows them.
    pub fn new(format: Format) -> Self {
        Kept {
            wanted: format == Format::Perfetto,
            requests: Vec::new(),
            left_out: 0,
            spans: 0,
            without_threads: 0,
        }
    }

    /// Stores a request; above [`Kept::MOST`] requests are only counted.
    pub fn keep(&mut self, joined: &Joined) {
        if !self.wanted {
        } else if self.requests.len() < Self::MOST {
            let mut joined = joined.clone();
            let threads = joined.request.threads.iter().flat_map(|threads| &threads.threads);
            let spans: usize = threads.map(|thread| 1 + thread.spans.len() + 2 * thread.starts.len()).sum();
            if self.spans + spans > Self::MOST_SPANS {
                joined.request.threads = None;
                self.without_threads += 1;
            } else {
                self.spans += spans;
            }
            self.requests.push(joined);
        } else {
            self.left_out += 1;
        }
    }
}

/// Checks that the requested format can be printed.
///
/// # Errors
/// [`Usage`] if binary output would go to a terminal.
pub fn check(args: &ReportArgs) -> Result<()> {
    if args.format() == Format::Perfetto && args.out.is_none() && io::stdout().is_terminal() {
        let text = "a Perfetto trace is binary and standard output is a terminal: give --out FILE";
        return Err(Usage(text.to_owned()).into());
    }
    Ok(())
}

/// Checks that reports can be printed in this format while the trace runs.
///
/// # Errors
/// [`Usage`] if it is not one of text and JSON.
pub fn check_every(args: &ReportArgs) -> Result<()> {
    if args.suggest || !matches!(args.format(), Format::Text | Format::Json) {
        let text = "--every prints text or JSON: leave out --suggest and other formats, or --every";
        return Err(Usage(text.to_owned()).into());
    }
    Ok(())
}

/// Prints the report of a trace that goes on, to standard output: as text with the time that has passed, or as a line of
/// JSON.
///
/// # Errors
/// If it cannot be written.
pub fn snapshot(args: &ReportArgs, report: &Report) -> Result<()> {
    let text = if args.format() == Format::Json {
        serde_json::to_string(report)? + "\n"
    } else {
        let passed = report.counters.ended.saturating_sub(report.meta.started);
        let style = style::stdout();
        let text = text::report(report, &advice::of(report), &style);
        format!("== after {} ==\n{text}\n", duration(passed as f64))
    };
    output::stdout(&text)
}

/// Prints the reports, each with its label, to the destination `to`.
///
/// # Errors
/// If they cannot be written.
pub fn print(
    args: &ReportArgs,
    to: output::Destination,
    reports: &[(String, Report)],
    kept: &Kept,
) -> Result<()> {
    let content = |w: &mut dyn Write| match args.format() {
        Format::Text => {
            let style = if args.out.is_some() { style::file() } else { style::stdout() };
            w.write_all(in_text(reports, &style).as_bytes())
        }
        Format::Json => {
            match reports {
                [(_, report)] => serde_json::to_writer_pretty(&mut *w, report)?,
                several => serde_json::to_writer_pretty(&mut *w, several)?,
            }
            w.write_all(b"\n")
        }
        Format::Perfetto => match reports {
            [(_, report), ..] => perfetto::write(w, &report.meta, &kept.requests),
            [] => Ok(()),
        },
        Format::Html => w.write_all(in_html(reports).as_bytes()),
    };
    if kept.left_out > 0 {
        let _ = writeln!(
            io::stderr(),
            "teiji: the first {} requests are in the trace, {} more are left out",
            kept.requests.len(),
            kept.left_out
        );
    }
    if kept.without_threads > 0 {
        let _ = writeln!(
            io::stderr(),
            "teiji: the threads of {} requests are left out of the trace, as there is no room for more",
            kept.without_threads
        );
    }
    to.write(&content, || in_text(reports, &style::stdout()))
}

/// Prints a policy that would help, and the report as text to standard error. `observed` is the traced host, if this is
/// it.
///
/// # Errors
/// If the policy cannot be written.
pub fn suggest(report: &Report, observed: Option<&Observed>) -> Result<()> {
    // The policy was requested, so an error of the report does not matter.
    let _ = io::stderr().write_all(text::report(report, &advice::of(report), &style::stderr()).as_bytes());
    output::stdout(&advice::as_policy(report, observed))
}

fn in_text(reports: &[(String, Report)], style: &Style) -> String {
    let one = |(label, report): &(String, Report)| {
        let heading = if label.is_empty() { String::new() } else { format!("== {} ==\n", printable(label)) };
        heading + &text::report(report, &advice::of(report), style)
    };
    reports.iter().map(one).collect::<Vec<_>>().join("\n")
}

fn in_html(reports: &[(String, Report)]) -> String {
    let advice: Vec<_> = reports.iter().map(|(_, report)| advice::of(report)).collect();
    let shown: Vec<Shown<'_>> = reports
        .iter()
        .zip(&advice)
        .map(|((label, report), advice)| Shown { label, report, advice })
        .collect();
    html::page("teiji report", &shown)
}
