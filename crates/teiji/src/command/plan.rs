//! `teiji plan`: what would be changed to keep a policy, or why it cannot be kept.

use crate::args::Plan as Arguments;
use crate::terminal::{Style, Tone, printable, shorten, wrap};
use crate::text::guarantees;
use crate::{output, units};
use anyhow::Result;
use serde::Serialize;
use std::fmt::Write;
use teiji_agent::apply::Engine;
use teiji_agent::machine::Machine;
use teiji_agent::observation;
use teiji_agent::policy::{self, Error};
use teiji_host::Root;
use teiji_model::plan::{Plan, Step};
use teiji_model::policy::units::DURATION;
use teiji_model::policy::{Problem, Source};
use teiji_model::resource::Value;

/// Longest part of a policy's line that is shown under a problem.
const SHOWN: usize = 80;

/// What `--json` prints.
#[derive(Serialize)]
struct Json<'a> {
    schema: u32,
    #[serde(flatten)]
    plan: &'a Plan,
}

pub(super) fn run(args: &Arguments, root: &Root) -> Result<()> {
    let loaded = policy::load(args.policy.file.as_deref()).map_err(explain)?;
    let plan = match &args.host {
        Some(file) => policy::plan_for(&loaded, &observation::read(file).map_err(explain)?),
        None => {
            let machine = Machine::new(root.clone(), &args.state.pins, &args.state.dir);
            policy::plan(&loaded, root, &Engine::open(&args.state.dir, machine)?)
        }
    };
    let plan = plan.map_err(explain)?;
    if args.print.json {
        let json = Json { schema: 1, plan: &plan };
        return output::stdout(&(serde_json::to_string_pretty(&json)? + "\n"));
    }
    output::stdout(&table(&plan, &Style::stdout()))
}

/// What is wrong with a policy, with the lines that it is in.
pub(super) fn explain(error: Error) -> anyhow::Error {
    match error {
        Error::Wrong { problems: all, sources } => {
            let what = units::count(all.len() as u64, "problem");
            anyhow::anyhow!("{what}, so nothing is changed\n{}", problems(&all, &sources).trim_end())
        }
        other => other.into(),
    }
}

/// Each problem under its place, with the line of the policy and a mark where it is.
pub fn problems(problems: &[Problem], sources: &[Source]) -> String {
    let mut out = String::new();
    for problem in problems {
        let place = &problem.place;
        // Writing to a String cannot fail.
        let _ = writeln!(out, "{}", printable(&problem.to_string()));
        let source = sources.iter().find(|s| s.name == place.file);
        let Some(line) = source.and_then(|s| s.text.lines().nth(place.line.checked_sub(1)?)) else {
            continue;
        };
        let (before, shown) = (place.column.saturating_sub(1), printable(&shorten(line, SHOWN)));
        if before < SHOWN && !shown.trim().is_empty() {
            // What is before the mark may have become longer: tabs are shown as escapes.
            let before = printable(&line.chars().take(before).collect::<String>()).chars().count();
            let _ = writeln!(out, "  {shown}\n  {:before$}^", "");
        }
    }
    out
}

/// The plan as text of at most 100 columns.
pub fn table(plan: &Plan, style: &Style) -> String {
    let mut out = String::new();
    for what in &plan.first {
        for (i, line) in wrap(&style.ascii(&printable(what)), 93).iter().enumerate() {
            let head = if i == 0 { "first  " } else { "       " };
            out += &format!("{}{line}\n", style.paint(Tone::Bad, head));
        }
    }
    for (i, step) in plan.steps.iter().enumerate() {
        out += &self::step(&format!("{:>3}", i + 1), step, style);
        // What several steps in a row have in common is said once.
        let next = plan.steps.get(i + 1);
        if next.is_none_or(|next| (&next.reason, &next.cost) != (&step.reason, &step.cost)) {
            out += &because(step, style);
        }
    }
    if !out.is_empty() {
        out.push('\n');
    }
    for link in &plan.links {
        out += &(guarantees::link(link, style) + "\n");
    }
    for warning in &plan.warnings {
        for (i, line) in wrap(&style.ascii(&printable(warning)), 91).iter().enumerate() {
            let head = if i == 0 { "warning: " } else { "         " };
            out += &format!("{}{line}\n", style.paint(Tone::Bad, head));
        }
    }
    out + &match plan.steps.len() {
        0 if !plan.first.is_empty() => "nothing to change beside that\n".to_owned(),
        0 => "nothing to change: the host is as the policy asks\n".to_owned(),
        n => format!(
            "{} to take; `teiji apply` takes them, or none if one fails\n",
            units::count(n as u64, "step")
        ),
    }
}

/// One step: whose, what, from and to.
pub(super) fn step(mark: &str, step: &Step, style: &Style) -> String {
    let text =
        |value: &dyn std::fmt::Display, width| shorten(&style.ascii(&printable(&value.to_string())), width);
    let (whose, what) = (text(&step.whose, 24), text(&step.setting, 30));
    let arrow = style.ascii("→");
    let (mut present, mut wanted) = (text(&step.present, 30), text(&step.wanted, 40));
    if let (Value::Nanoseconds(from), Value::Nanoseconds(to)) = (&step.present, &step.wanted)
        && present == wanted
    {
        // Three digits do not tell them apart.
        (present, wanted) = (DURATION.write(*from), DURATION.write(*to));
    }
    let change = format!("{present} {arrow} {wanted}");
    let mut out = format!("{mark}  {}  {what:<30}", style.paint(Tone::Strong, &format!("{whose:<24}")));
    let width = 3 + 2 + 24 + 2 + 30 + 2;
    if width + change.chars().count() <= 100 {
        out += &format!("  {change}\n");
    } else {
        out = out.trim_end().to_owned() + &format!("\n       {change}\n");
    }
    out
}

/// Why, and at which cost.
fn because(step: &Step, style: &Style) -> String {
    let mut out = String::new();
    let because = match step.cost.as_str() {
        "" => format!("because of {}", step.reason),
        cost => format!("because of {}; cost: {cost}", step.reason),
    };
    for line in wrap(&style.ascii(&printable(&because)), 93) {
        out += &format!("       {}\n", style.paint(Tone::Faint, &line));
    }
    out
}
