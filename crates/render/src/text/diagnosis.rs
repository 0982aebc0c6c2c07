//! What is wrong with VMs, by the kernel's counters.

use crate::table::{Cell, Table};
use crate::terminal::{Style, Tone, printable, shorten};
use crate::text::{WIDTH, beside, labelled, wrap};
use crate::units::{duration, percent};
use teiji_model::census::{Activity, Census};
use teiji_model::diagnosis::{Bin, Diagnosis, Fault, ThreadTime, Times, VmDiagnosis, share};
use teiji_model::finding::{Confidence, PolicyLine};

/// The greatest number of columns of what happened over time, and the fewest parts of the time that show it.
const COLUMNS: usize = 60;
const FEWEST: usize = 4;

/// The result as text of at most 100 columns.
pub fn text(diagnosis: &Diagnosis, style: &Style) -> String {
    let mut lines = Vec::new();
    if diagnosis.vms.is_empty() {
        lines.push("no VM ran during the whole observation".to_owned());
    }
    for vm in &diagnosis.vms {
        if !lines.is_empty() {
            lines.push(String::new());
        }
        lines.extend(section(vm, diagnosis.length, style));
    }
    lines.iter().map(|line| format!("{}\n", style.ascii(line).trim_end())).collect()
}

fn section(vm: &VmDiagnosis, length: u64, style: &Style) -> Vec<String> {
    let name = shorten(&printable(&vm.name), 40);
    let mut lines =
        vec![format!("{}  pid {}, {}", style.paint(Tone::Strong, &name), vm.pid, duration(length as f64))];
    let tone = if vm.is_well() { Tone::Good } else { Tone::Bad };
    lines.push(style.paint(tone, &format!("=> {}", printable(&vm.headline))));
    for fault in &vm.faults {
        lines.push(String::new());
        lines.extend(of_fault(fault, vm, style));
    }
    lines.push(String::new());
    lines.extend(times(&vm.threads, style));
    lines.extend(counted(&vm.threads, style));
    lines.extend(over_time(&vm.series, style));
    let vcpus = vm.threads.iter().filter(|time| time.times.guest > 0).map(|time| time.times.length).sum();
    // Less would be shown as 0 %.
    if let Some(polled) = vm.polled.filter(|polled| share(*polled, vcpus) >= 0.005) {
        let text = format!("{} of its vCPUs' time, part of `host`", percent(share(polled, vcpus)));
        lines.extend(labelled("polling", &text, style));
    }
    for text in &vm.unseen {
        lines.extend(labelled("not seen", &printable(text), style));
    }
    lines
}

fn of_fault(fault: &Fault, vm: &VmDiagnosis, style: &Style) -> Vec<String> {
    let confidence = match fault.confidence {
        Confidence::High => "high",
        Confidence::Medium => "medium",
        Confidence::Low => "low",
    };
    let share = fault.share.map(|share| format!(": {}", percent(share))).unwrap_or_default();
    let head = format!("{}{share} ({confidence} confidence)", fault.title);
    let mut lines = vec![style.paint(Tone::Strong, &head)];
    for evidence in &fault.evidence {
        lines.extend(labelled("evidence", &printable(evidence), style));
    }
    if !fault.neighbours.is_empty() {
        let each = fault.neighbours.iter().map(|n| format!("{} {}", printable(&n.name), percent(n.share)));
        let text = format!("{} of these CPUs' time", each.collect::<Vec<_>>().join(", "));
        lines.extend(labelled("on the CPU", &text, style));
    }
    for doubt in &fault.doubts {
        lines.extend(labelled("doubt", doubt, style));
    }
    lines.extend(labelled("meaning", &fault.explanation, style));
    let policy = |line: &PolicyLine| match line.section.as_str() {
        "vm" => format!("[vm.{}] {} = {}: ", printable(&vm.name), line.key, line.value),
        section => format!("[{section}] {} = {}: ", line.key, line.value),
    };
    let lines_of_policy: String = fault.remedy.lines.iter().map(policy).collect();
    lines.extend(labelled("remedy", &format!("{lines_of_policy}{}", fault.remedy.text), style));
    lines
}

/// Where the time of each thread went.
fn times(threads: &[ThreadTime], style: &Style) -> Vec<String> {
    type Part = (&'static str, fn(&Times) -> u64);
    let parts: [Part; 8] = [
        ("guest", |t| t.guest),
        ("host", |t| t.ran.saturating_sub(t.guest)),
        ("waits", |t| t.waited),
        ("throttled", |t| t.throttled),
        ("stopped", |t| t.stopped),
        ("in VMM", |t| t.in_vmm),
        ("disk", |t| t.disk),
        ("sleeps", |t| t.slept),
    ];
    let shown = |part: &&Part| {
        matches!(part.0, "guest" | "host" | "waits" | "sleeps")
            || threads.iter().any(|t| part.1(&t.times) > 0)
    };
    let shown: Vec<&Part> = parts.iter().filter(shown).collect();
    let mut table = Table::indented(2);
    let head = |part: &&Part| Cell::right(part.0).tone(Tone::Faint);
    table.row([Cell::from("thread").tone(Tone::Faint)].into_iter().chain(shown.iter().map(head)));
    for time in threads {
        let cell = |part: &&Part| Cell::right(percent(share(part.1(&time.times), time.times.length)));
        table.row([Cell::from(printable(&time.name))].into_iter().chain(shown.iter().map(cell)));
    }
    table.lines(style)
}

/// The greatest number of kinds of exits that are shown of a vCPU, and the least part of the time.
const MOST_EXITS: usize = 4;
const LEAST_EXIT: f64 = 0.001;

/// What probes counted of each thread.
fn counted(threads: &[ThreadTime], style: &Style) -> Vec<String> {
    if threads.iter().all(|thread| thread.census.is_none()) {
        return Vec::new();
    }
    let mut table = Table::indented(2);
    let head = ["share", "per s", "mean"].map(|title| Cell::right(title).tone(Tone::Faint));
    table
        .row(["thread", "activity"].map(|title| Cell::from(title).tone(Tone::Faint)).into_iter().chain(head));
    for thread in threads {
        let Some(census) = &thread.census else { continue };
        let Census { observed, guest, halted, woken_polling, rx, tx, .. } = *census;
        let mut exits = census.exits_by_time();
        let shown = exits.iter().take_while(|(_, done)| share(done.ns, observed) >= LEAST_EXIT).count();
        let rest = exits.split_off(shown.min(MOST_EXITS)).into_iter();
        let rest = rest.fold(Activity::default(), |sum, (_, done)| sum.and(done));
        let exits = exits.into_iter().map(|(exit, done)| (format!("exit: {}", exit.title()), done));
        let named = |(what, done): (&str, Activity)| (what.to_owned(), done);
        let before =
            [("guest mode", guest), ("halted", halted), ("of it, woken while polling", woken_polling)];
        let after = [
            ("exit: all others", rest),
            ("to the guest (handle_rx)", rx),
            ("from the guest (handle_tx)", tx),
        ];
        let mut name = printable(&thread.name);
        let all = before.map(named).into_iter().chain(exits).chain(after.map(named));
        let mut rows: Vec<_> = all.filter(|(_, done)| *done != Activity::default()).collect();
        if rows.is_empty() {
            rows.push(("nothing seen".to_owned(), Activity::default()));
        }
        for (what, done) in rows {
            let rate = done.count as f64 * 1e9 / observed.max(1) as f64;
            let mean = if done.count > 0 { duration(done.ns as f64 / done.count as f64) } else { "-".into() };
            let figures = [percent(share(done.ns, observed)), format!("{rate:.0}"), mean].map(Cell::right);
            table.row([Cell::from(std::mem::take(&mut name)), Cell::from(what)].into_iter().chain(figures));
        }
    }
    let note = "An exit lasts until the next guest entry, with waits for a CPU and time in the VMM: see `waits` and `in VMM` above.";
    let note = wrap(note, WIDTH - 2).into_iter().map(|line| format!("  {line}"));
    [vec![String::new()], table.lines(style), note.collect()].concat()
}

/// What the vCPUs did over time, as rows of columns; nothing of an observation too short to tell.
fn over_time(series: &[Bin], style: &Style) -> Vec<String> {
    if series.len() < FEWEST {
        return Vec::new();
    }
    let bins: Vec<Times> = series
        .chunks(series.len().div_ceil(COLUMNS))
        .map(|bins| {
            let mut sum = Times::default();
            bins.iter().for_each(|bin| sum.add(&bin.vcpus));
            sum
        })
        .collect();
    let row = |label: &str, part: fn(&Times) -> u64| {
        let shares: Vec<f64> = bins.iter().map(|bin| share(part(bin), bin.length)).collect();
        let greatest = shares.iter().copied().fold(0.0, f64::max);
        // Less would be shown as 0 %.
        (greatest >= 0.005).then(|| {
            let drawn: String = shares.iter().map(|share| column(*share, style)).collect();
            // Not wrapped: blanks are columns of it.
            beside(label, &format!("|{drawn}| up to {}", percent(greatest)), style)
        })
    };
    [row("vCPUs ran", |t| t.ran), row("vCPUs lost", Times::lost)].into_iter().flatten().collect()
}

/// The height of a column: a part of a whole character.
fn column(share: f64, style: &Style) -> char {
    const LEVELS: [char; 9] = [' ', '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    const ASCII: [char; 9] = [' ', '.', ':', '-', '=', '+', '*', '#', '@'];
    let levels = if style.unicode { LEVELS } else { ASCII };
    levels[(share.clamp(0.0, 1.0) * 8.0).ceil() as usize]
}

#[cfg(test)]
mod tests {
    use super::*;
    use teiji_model::census::Exit;
    use teiji_model::diagnosis::{FaultCause, Neighbour};
    use teiji_model::finding::{PolicyChange, Remedy};
    use teiji_model::reason::Blame;
    use teiji_model::stage::Actor;

    #[test]
    fn a_fault_is_told_with_what_shows_it_and_what_helps() {
        let remedy = Remedy::change(PolicyChange::Realtime { threads: Actor::Vcpu }, "before all others", "");
        let fault = Fault {
            cause: FaultCause::VcpuWaitsForCpu,
            title: "vCPU waits for a CPU".into(),
            blame: Blame::Host,
            share: Some(0.75),
            evidence: vec!["vCPU 0 waits 75 % of the time that it could run, 3.00 ms each time".into()],
            neighbours: vec![Neighbour { name: "\u{1b}[2J".into(), share: 0.5 }],
            confidence: Confidence::Medium,
            doubts: vec!["observed for only 1.00 s".into()],
            explanation: "The guest could run.".into(),
            remedy,
        };
        let time = ThreadTime {
            name: "vCPU 0".into(),
            times: Times { length: 1000, ran: 200, guest: 150, waited: 600, slept: 200, ..Times::default() },
            ..ThreadTime::default()
        };
        let bin = |ran, waited| Bin {
            vcpus: Times { length: 250, ran, waited, ..Times::default() },
            ..Bin::default()
        };
        let vm = VmDiagnosis {
            name: "sip1".into(),
            pid: 7,
            headline: "vCPU waits for a CPU: 75 %".into(),
            polled: Some(20),
            threads: vec![time],
            series: vec![bin(125, 0), bin(25, 200), bin(0, 250), bin(0, 250), bin(50, 150)],
            faults: vec![fault],
            unseen: vec!["CPU quotas".into()],
        };
        let diagnosis = Diagnosis { length: 1_000_000_000, vms: vec![vm] };
        let wanted = "\
sip1  pid 7, 1.00 s
=> vCPU waits for a CPU: 75 %

vCPU waits for a CPU: 75 % (medium confidence)
  evidence    vCPU 0 waits 75 % of the time that it could run, 3.00 ms each time
  on the CPU  \\u{1b}[2J 50 % of these CPUs' time
  doubt       observed for only 1.00 s
  meaning     The guest could run.
  remedy      [vm.sip1] class = \"realtime\": before all others

  thread  guest  host  waits  sleeps
  vCPU 0   15 %   5 %   60 %    20 %
  vCPUs ran   |=.  :| up to 50 %
  vCPUs lost  | #@@+| up to 100 %
  polling     2 % of its vCPUs' time, part of `host`
  not seen    CPU quotas
";
        assert_eq!(text(&diagnosis, &Style::PLAIN), wanted);
    }

    #[test]
    fn what_probes_counted_is_a_table() {
        let done = |count, ns| Activity { count, ns };
        let mut census =
            Census { observed: 1_000_000_000, guest: done(200, 500_000_000), ..Census::default() };
        (census.halted, census.woken_polling) = (done(50, 300_000_000), done(10, 1_000_000));
        census.exits[Exit::Port as usize] = done(150, 150_000_000);
        census.exits[Exit::Cpuid as usize] = done(1, 900);
        let vcpu = ThreadTime { name: "vCPU 0".into(), census: Some(census), ..ThreadTime::default() };
        let census = Census { observed: 2_000_000_000, tx: done(30, 60_000), ..Census::default() };
        let worker =
            ThreadTime { name: "vhost worker".into(), census: Some(census), ..ThreadTime::default() };
        let wanted = [
            "",
            "  thread        activity                    share  per s     mean",
            "  vCPU 0        guest mode                   50 %    200  2.50 ms",
            "                halted                       30 %     50  6.00 ms",
            "                of it, woken while polling    0 %     10   100 us",
            "                exit: I/O port               15 %    150  1.00 ms",
            "                exit: all others              0 %      1   900 ns",
            "  vhost worker  from the guest (handle_tx)    0 %     15  2.00 us",
            "  An exit lasts until the next guest entry, with waits for a CPU and time in the VMM: see `waits`",
            "  and `in VMM` above.",
        ];
        assert_eq!(counted(&[vcpu, worker], &Style::PLAIN), wanted);
        assert!(counted(&[ThreadTime::default()], &Style::PLAIN).is_empty());
    }
}
