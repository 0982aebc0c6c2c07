//! What a plan would change, or why there is no plan.

use super::guarantees;
use crate::terminal::{Style, Tone, columns, pad, printable, shorten, wrap};
use crate::units;
use std::fmt::Write;
use teiji_model::plan::{Asked, Plan, Step};
use teiji_model::policy::{Line, Overridden, Problem, Source, SourceLocation};
use teiji_model::resource::Value;
use teiji_model::units::DURATION;

/// Columns of the longest part of a policy's line that is shown below a problem.
const SHOWN: usize = 80;

/// Each problem with its place, the line of the policy and a mark below it.
pub fn problems(problems: &[Problem], sources: &[Source]) -> String {
    let mut out = String::new();
    for problem in problems {
        let location = &problem.location;
        // Writing to a String cannot fail.
        let _ = writeln!(out, "{}", printable(&problem.to_string()));
        let source = sources.iter().find(|s| s.name == location.file);
        let Some(line) = source.and_then(|s| s.text.lines().nth(location.line.checked_sub(1)?)) else {
            continue;
        };
        // In columns: tabs are shown as escapes, and some characters are wide.
        let before: String = line.chars().take(location.column.saturating_sub(1)).collect();
        let (before, shown) = (columns(&printable(&before)), shorten(&printable(line), SHOWN));
        if before < SHOWN && !shown.trim().is_empty() {
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
        // Text that successive steps have in common is printed once.
        let next = plan.steps.get(i + 1);
        if next.is_none_or(|next| (&next.reason, &next.cost) != (&step.reason, &step.cost)) {
            out += &reason(step, plan.asked.get(&step.reason), style);
        }
    }
    if !out.is_empty() {
        out.push('\n');
    }
    out += &overridden(&plan.overridden, style);
    for link in &plan.links {
        out += &(guarantees::link(link, style) + "\n");
    }
    for vm in &plan.packet_vms {
        let text = guarantees::packet_vm(&vm.name, &vm.class);
        out += &format!("{}\n", style.paint(Tone::Strong, &style.ascii(&printable(&text))));
        for text in guarantees::of_packet_vm(vm) {
            for line in wrap(&style.ascii(&printable(&text)), 96) {
                out += &format!("  {line}\n");
            }
        }
        out.push('\n');
    }
    for warning in &plan.warnings {
        for (i, line) in wrap(&style.ascii(&printable(warning)), 91).iter().enumerate() {
            let head = if i == 0 { "warning: " } else { "         " };
            out += &format!("{}{line}\n", style.paint(Tone::Bad, head));
        }
    }
    out + &match plan.steps.len() {
        0 if !plan.first.is_empty() => "nothing else to change\n".to_owned(),
        0 => "nothing to change: the host is as the policy asks\n".to_owned(),
        n => format!(
            "{} to take; `teiji apply` takes them, or none if one fails\n",
            units::count(n as u64, "step")
        ),
    }
}

/// One step: what it belongs to, the setting, the present and the wanted value.
pub fn step(mark: &str, step: &Step, style: &Style) -> String {
    let text =
        |value: &dyn std::fmt::Display, width| shorten(&style.ascii(&printable(&value.to_string())), width);
    let (whose, what) = (text(&step.whose, 24), text(&step.setting, 30));
    let arrow = style.ascii("→");
    let (mut present, mut wanted) = (text(&step.present, 30), text(&step.wanted, 40));
    if let (Value::Nanoseconds(from), Value::Nanoseconds(to)) = (&step.present, &step.wanted)
        && present == wanted
    {
        // Three digits do not distinguish them.
        (present, wanted) = (DURATION.write(*from), DURATION.write(*to));
    }
    let change = format!("{present} {arrow} {wanted}");
    let mut out = format!("{mark}  {}  {}", style.paint(Tone::Strong, &pad(&whose, 24)), pad(&what, 30));
    let width = 3 + 2 + 24 + 2 + 30 + 2;
    if width + columns(&change) <= 100 {
        out += &format!("  {change}\n");
    } else {
        out = out.trim_end().to_owned() + &format!("\n       {change}\n");
    }
    out
}

/// Why a step is taken, where the policy says so, and what it costs.
fn reason(step: &Step, asked: Option<&Asked>, style: &Style) -> String {
    let mut out = String::new();
    let at = |location: &SourceLocation| format!("({}:{})", location.file, location.line);
    let mut lines = vec![match asked {
        Some(asked) => format!("{} {}", step.reason, at(&asked.location)),
        None => step.reason.clone(),
    }];
    lines.extend(
        asked.iter().flat_map(|a| &a.with).map(|line| format!("{} {}", line.key, at(&line.location))),
    );
    let last = lines.pop().unwrap_or_default();
    let lines = if lines.is_empty() { last } else { format!("{} and {last}", lines.join(", ")) };
    let why = if step.returns() { lines } else { format!("because of {lines}") };
    let reason = match step.cost.as_str() {
        "" => why,
        cost => format!("{why}; cost: {cost}"),
    };
    for line in wrap(&style.ascii(&printable(&reason)), 93) {
        out += &format!("       {}\n", style.paint(Tone::Faint, &line));
    }
    out
}

/// Lines that several files write differently, and which one applies; empty if there is none.
pub fn overridden(all: &[Overridden], style: &Style) -> String {
    let mut out = String::new();
    let line = |line: &Line| format!("{} ({}:{})", line.text, line.location.file, line.location.line);
    for one in all {
        let over: Vec<String> = one.over.iter().map(line).collect();
        let text = format!("[{}] {} applies; overridden: {}", one.section, line(&one.holds), over.join(", "));
        for (i, line) in wrap(&style.ascii(&printable(&text)), 92).iter().enumerate() {
            let head = if i == 0 { "policy: " } else { "        " };
            out += &format!("{}{line}\n", style.paint(Tone::Faint, head));
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use teiji_model::policy::KeyLocation;

    #[test]
    fn every_line_that_decides_a_value_is_named() {
        let at = |file: &str, line| SourceLocation { file: file.into(), line, column: 1 };
        let with = |key: &str, file, line| KeyLocation { key: key.into(), location: at(file, line) };
        let step = Step {
            setting: teiji_model::resource::Resource::HaltPoll,
            whose: String::new(),
            present: Value::Nanoseconds(1),
            wanted: Value::Nanoseconds(2),
            reason: "vm.sip1.class".into(),
            cost: String::new(),
        };
        let text = |with| reason(&step, Some(&Asked { location: at("a", 2), with }), &Style::PLAIN);
        assert_eq!(text(Vec::new()), "       because of vm.sip1.class (a:2)\n");
        let one = vec![with("priority", "b", 2)];
        assert_eq!(text(one), "       because of vm.sip1.class (a:2) and priority (b:2)\n");
        let two = vec![with("runtime", "b", 2), with("period", "c", 3)];
        assert_eq!(text(two), "       because of vm.sip1.class (a:2), runtime (b:2) and period (c:3)\n");
        let returning = Step { reason: teiji_model::plan::NO_LONGER_IN_POLICY.into(), ..step };
        assert_eq!(reason(&returning, None, &Style::PLAIN), "       no longer in the policy\n");
    }

    #[test]
    fn the_line_that_applies_is_named_with_those_that_do_not() {
        let line = |text: &str, file: &str, line| Line {
            text: text.into(),
            location: SourceLocation { file: file.into(), line, column: 1 },
        };
        let all = [Overridden {
            section: "vm.sip1".into(),
            holds: line("class = \"fair\"", "20-site.toml", 3),
            over: vec![
                line("class = \"realtime\"", "10-base.toml", 2),
                line("priority = 20", "10-base.toml", 4),
            ],
        }];
        let text = "policy: [vm.sip1] class = \"fair\" (20-site.toml:3) applies; overridden: class = \"realtime\"\n        \
                    (10-base.toml:2), priority = 20 (10-base.toml:4)\n";
        assert_eq!(overridden(&all, &Style::PLAIN), text);
        assert_eq!(overridden(&[], &Style::PLAIN), "");
    }
}
