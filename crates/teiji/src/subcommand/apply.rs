//! `teiji apply`: shows the plan and carries it out.

use super::messages::{print_line, print_messages};
use super::{plan, signals};
use crate::args::{Apply, Usage};
use crate::{output, style};
use anyhow::Result;
use std::io::{BufRead, IsTerminal, Write};
use std::time::Duration;
use teiji_agent::apply::{Options, Progress};
use teiji_agent::service::Service;
use teiji_render::{text, units};

/// Plans, shows the plan, and carries it out.
pub(super) fn run(args: &Apply, service: &Service) -> Result<()> {
    if let Some(file) = &args.host {
        return Err(Usage(format!(
            "apply changes the host that it runs on, so it takes no --host: `teiji plan --host {}` shows what it would \
             do there; run `teiji apply` on that host",
            file.display()
        ))
        .into());
    }
    let wait = args.wait.unwrap_or_default();
    let prepared = service
        .prepare(&args.policy.files, wait, args.absent_ok, &mut |messages| print_messages(messages))
        .map_err(plan::explain)?;
    let (plan, style) = (prepared.plan(), style::stdout());
    let stop = signals::stop_flag()?;
    let options = Options { confirm_within: args.confirm_within, wait, ..Options::default() };
    if plan.steps.is_empty() {
        // The policy is in force from now on, although it changes nothing yet.
        print_messages(&prepared.apply(&options, &mut |_| {}, &stop)?.messages);
        if args.confirm_within.is_some() {
            print_line(
                "no setting changes, so there is nothing to confirm: the policy is in force from now on",
            );
        }
        return output::stdout(&text::plan::table(plan, &style));
    }
    for warning in &plan.warnings {
        print_line(&format!("warning: {warning}"));
    }
    let mut waiting = Waiting::new(service);
    let applied = prepared.apply(
        &options,
        &mut |progress| match progress {
            Progress::Step { index, of, step } => {
                let width = of.to_string().len();
                let line = text::plan::step(&format!("{:>width$}/{of}", index + 1), step, &style);
                // The apply must not end halfway because nobody reads the output any more.
                let _ = output::stdout(&line);
            }
            Progress::Waiting { left } => waiting.show(left),
            Progress::Undoing => {
                waiting.clear();
                print_line("undoing the changes");
            }
        },
        &stop,
    );
    waiting.clear();
    let applied = applied?;
    print_messages(&applied.messages);
    print_line(&format!(
        "done: {} changed; `teiji rollback` restores them",
        units::count(applied.changed as u64, "setting")
    ));
    Ok(())
}

/// The countdown on standard error, and Enter on the terminal as a confirmation.
struct Waiting<'a> {
    service: &'a Service,
    begun: bool,
    last: Option<u64>,
    terminal: bool,
}

impl<'a> Waiting<'a> {
    fn new(service: &'a Service) -> Self {
        Waiting { service, begun: false, last: None, terminal: std::io::stderr().is_terminal() }
    }

    fn show(&mut self, left: Duration) {
        let seconds = left.as_secs_f64().ceil() as u64;
        if !self.begun {
            self.begun = true;
            self.listen();
        }
        // On a terminal every second; otherwise every ten seconds, so that logs stay short.
        let due = match self.last {
            None => true,
            Some(last) if self.terminal => seconds < last,
            Some(last) => last.saturating_sub(seconds) >= 10,
        };
        if !due {
            return;
        }
        self.last = Some(seconds);
        let how = if std::io::stdin().is_terminal() {
            "Enter or `teiji confirm` keeps"
        } else {
            "`teiji confirm` keeps"
        };
        let text = format!("applied; {how} it, Ctrl-C or {} undoes it", units::count(seconds, "more second"));
        let mut stderr = std::io::stderr();
        let _ = if self.terminal { write!(stderr, "\r{text}   ") } else { writeln!(stderr, "{text}") };
    }

    /// Treats Enter as `teiji confirm`, if standard input is a terminal. The thread ends with the process.
    fn listen(&self) {
        if !std::io::stdin().is_terminal() {
            return;
        }
        let service = self.service.clone();
        std::thread::spawn(move || {
            let mut line = String::new();
            if std::io::stdin().lock().read_line(&mut line).is_ok_and(|n| n > 0) {
                // The waiting thread reports the result.
                let _ = service.confirm();
            }
        });
    }

    fn clear(&mut self) {
        if self.terminal && self.last.take().is_some() {
            let _ = write!(std::io::stderr(), "\r{:79}\r", "");
        }
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.clear();
    }
}
