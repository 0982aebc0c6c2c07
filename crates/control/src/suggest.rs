//! The policy lines that a trace's findings call for.
//!
//! ```text
//! Report ──► findings, each with its remedy ── realtime, host: what is possible here ──► lines and comments ──► TOML
//! ```
//! The findings have the remedy of each cause ([`teiji_model::finding`]); this module fits it to the host.
//!
//! A suggestion is a policy: [`Suggestion`] prints as TOML that `policy::parse` accepts and that `plan` accepts on the
//! observed host. Comments say what would help but is not possible there, and which causes no key of a policy can
//! change. Without an observed host it is not known what is possible; the plan will tell.
//!
//! | module | decides |
//! | --- | --- |
//! | `realtime` | which VMs can be real-time together, and on which CPUs |
//! | `host` | whether this host already polls, and which CPUs should stay in shallow idle states |
//! | `section` | the name of a VM's section |
//! | `toml_text` | names and comments as TOML |

mod host;
mod realtime;
mod section;
mod toml_text;

use crate::plan::shown;
use realtime::{RealtimeCandidate, RealtimeClass};
use std::fmt;
use teiji_model::cpus::CpuSet;
use teiji_model::finding::{Evidence, Finding, PolicyChange, PolicyLine, SIGNIFICANT_SHARE};
use teiji_model::host::DataPlane;
use teiji_model::observed::Observed;
use teiji_model::policy::MAX_BYTES;
use teiji_model::report::{Report, VmReport};
use teiji_model::stage::Actor;
use teiji_model::text::{duration, percent};

/// How many VMs a comment names; further VMs are counted.
const NAMED: usize = 4;
/// How many characters of a verdict's headline a comment repeats.
const HEADLINE: usize = 600;

/// Why a VM gets no class if its VMM serves a tap itself.
const SERVED_BY_VMM: &str = "class = \"realtime\" is not suggested: the VMM's own thread carries the packets, has no class, and would \
                             wait for the vCPUs; serve the NIC by vhost (QEMU: vhost=on) first";

/// What would help. Displays as a policy; everything in it is safe to print.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Suggestion {
    /// What it is, as sentences for the head of the file.
    pub about: Vec<String>,
    /// Lines of `[host]`.
    pub host: Vec<SuggestedLine>,
    /// One for each of the report's VMs, in its order.
    pub vms: Vec<VmSuggestion>,
}

/// What would help one VM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VmSuggestion {
    /// The VM and its verdict: a sentence.
    pub about: String,
    /// Its header, such as `[vm.sip1]`; empty without `lines`.
    pub header: String,
    /// The lines below the header.
    pub lines: Vec<SuggestedLine>,
    /// The keys of [`Suggestion::host`] that this VM needs.
    pub host: Vec<String>,
    /// Further notes: one sentence for each cause.
    pub notes: Vec<String>,
}

/// One line of a policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SuggestedLine {
    /// The key.
    pub key: String,
    /// Its value, as TOML.
    pub value: String,
    /// What it does and what it costs; may be empty.
    pub comment: String,
}

impl SuggestedLine {
    fn new(key: &str, value: String, comment: impl Into<String>) -> SuggestedLine {
        SuggestedLine { key: key.to_owned(), value, comment: comment.into() }
    }

    fn of(change: &PolicyChange, comment: impl Into<String>) -> SuggestedLine {
        let PolicyLine { key, value, .. } = change.line();
        SuggestedLine { key, value, comment: comment.into() }
    }

    fn cpus(key: &str, cpus: &CpuSet, comment: impl Into<String>) -> SuggestedLine {
        SuggestedLine::new(key, format!("\"{cpus}\""), comment)
    }
}

/// What would help the VMs of a report, on the observed host if there is one.
///
/// Pure: the same arguments give the same suggestion.
pub fn suggest(report: &Report, observed: Option<&Observed>) -> Suggestion {
    let sections = section::all(report, observed);
    let classes = classes(report, &sections, observed);
    let mut needs = Needs::default();
    let mut vms = Vec::new();
    for (i, vm) in report.vms.iter().enumerate() {
        let mut advice = VmSuggestion {
            about: format!("{} (pid {}): {}", shown(&vm.name), vm.pid, headline(vm)),
            header: String::new(),
            lines: Vec::new(),
            host: Vec::new(),
            notes: Vec::new(),
        };
        if vm.findings.is_empty() {
            advice.notes.push("nothing to judge by, so nothing to suggest".to_owned());
        }
        for finding in &vm.findings {
            let remedy = &finding.remedy;
            let Some(change) = &remedy.change else {
                advice.note(finding, remedy.text.clone());
                continue;
            };
            let note = match change {
                PolicyChange::Realtime { .. } if serves_a_tap(report, vm) => SERVED_BY_VMM.to_owned(),
                PolicyChange::Realtime { .. } => match (&sections[i], &classes[i]) {
                    (Ok(section), Some(Ok(class))) => {
                        // Both kinds of threads may wait for a CPU; the lines are the same.
                        if advice.lines.is_empty() {
                            advice.header = format!("[vm.{}]", section.key);
                            advice.lines = lines(class, SuggestedLine::of(change, &remedy.text));
                        }
                        "its class, below".to_owned()
                    }
                    (Ok(_), Some(Err(why))) => why.clone(),
                    (Err(why), _) => format!("class = \"realtime\" would help, but {why}"),
                    (Ok(_), None) => continue,
                },
                PolicyChange::HaltPoll { ns, gap } => match host::poll(*ns, *gap, remedy, observed) {
                    Ok(()) => {
                        needs.poll(*ns, change, vm);
                        advice.host.push("halt_poll".to_owned());
                        remedy.text.clone()
                    }
                    Err(why) => why,
                },
                PolicyChange::CpuLatency { us } => {
                    let class = classes[i].as_ref().and_then(|class| class.as_ref().ok());
                    let found = sections[i].as_ref().ok().and_then(|section| section.vm);
                    match host::awake(*us, remedy, class, found, observed) {
                        Ok(cpus) => {
                            needs.awake(*us, change, cpus, vm);
                            advice.host.push("cpu_latency".to_owned());
                            remedy.text.clone()
                        }
                        Err(why) => why,
                    }
                }
            };
            advice.note(finding, note);
        }
        if let Some(Ok(class)) = classes[i].as_ref().filter(|_| !advice.lines.is_empty()) {
            advice.notes.extend(doubts(report, vm, class));
        }
        vms.push(advice);
    }
    Suggestion { about: about(report, observed), host: needs.lines(observed), vms }
}

/// Whether the VMM serves one of the VM's taps itself.
fn serves_a_tap(report: &Report, vm: &VmReport) -> bool {
    let traced = report.meta.vms.iter().find(|traced| traced.pid == vm.pid);
    traced.is_some_and(|vm| vm.nics.iter().any(|nic| nic.data_plane == DataPlane::Userspace))
}

fn about(report: &Report, observed: Option<&Observed>) -> Vec<String> {
    let watch = &report.meta.watch.flow_text;
    let flow = if watch.is_empty() { "all packets".to_owned() } else { shown(watch) };
    let on = shown(&report.meta.host);
    let mut about = vec![
        format!("What would help, by a trace of {flow} on {on}. See what it would change: teiji plan FILE"),
        "This is a complete policy: applying it in place of another one undoes the changes of that one."
            .to_owned(),
    ];
    if observed.is_none() {
        about.push("Not compared with the host: the plan says what does not fit it.".to_owned());
    }
    about
}

fn headline(vm: &VmReport) -> String {
    let cut: String = vm.verdict.headline.chars().take(HEADLINE).collect();
    teiji_model::text::printable(&cut)
}

impl VmSuggestion {
    /// Adds a note about a finding; the same text is not repeated.
    fn note(&mut self, finding: &Finding, note: String) {
        let said_before = self.notes.iter().any(|earlier| earlier.ends_with(&note));
        let note = if said_before { "as above".to_owned() } else { note };
        self.notes.push(format!("{}: {note}", stages_text(finding)));
    }
}

/// Where a cause is seen: its largest part, and the other parts that count.
fn stages_text(finding: &Finding) -> String {
    let some = finding.evidence.iter().enumerate().filter(|(i, e)| *i == 0 || e.is_significant());
    some.map(|(_, e)| stage_text(e)).collect::<Vec<_>>().join("; ")
}

/// `vcpu_wake, asleep (79 % of the time, 80 % of the fluctuation)`.
fn stage_text(e: &Evidence) -> String {
    let mut text = e.place().to_owned();
    if let (Some(state), Some(actor)) = (e.state, e.stage.actor()) {
        text += &format!(", {}", state.name(actor));
    }
    let (time, fluctuation) = (percent(e.time_share), percent(e.fluctuation_share));
    text + &format!(" ({time} of the time, {fluctuation} of the fluctuation)")
}

/// Which VMs get a class; `None` for a VM that does not need one, or that has no section.
fn classes(
    report: &Report,
    sections: &[Result<section::Section<'_>, &'static str>],
    observed: Option<&Observed>,
) -> Vec<Option<Result<RealtimeClass, String>>> {
    let mut all = vec![None; report.vms.len()];
    let mut asked = Vec::new();
    let mut candidates = Vec::new();
    for (i, (vm, section)) in report.vms.iter().zip(sections).enumerate() {
        let of: Vec<Actor> = vm
            .findings
            .iter()
            .filter_map(|f| match f.remedy.change {
                Some(PolicyChange::Realtime { threads }) => Some(threads),
                _ => None,
            })
            .collect();
        let Ok(section) = section else { continue };
        match (of.is_empty(), section.vm) {
            (true, _) => {}
            (false, None) => all[i] = Some(Ok(RealtimeClass::default())),
            (false, Some(vm)) => {
                asked.push(i);
                candidates.push(RealtimeCandidate { vm, of });
            }
        }
    }
    if let Some(observed) = observed {
        for (i, class) in asked.into_iter().zip(realtime::decide(&candidates, observed)) {
            all[i] = Some(class);
        }
    }
    all
}

fn lines(class: &RealtimeClass, first: SuggestedLine) -> Vec<SuggestedLine> {
    let mut lines = vec![first];
    if let Some(priority) = class.priority {
        lines.push(SuggestedLine::new(
            "priority",
            priority.to_string(),
            "as some of its threads have already",
        ));
    }
    let why = "so that a CPU is left for the host: real-time threads could take all";
    for (key, cpus) in [("vcpu_cpus", &class.vcpu_cpus), ("worker_cpus", &class.worker_cpus)] {
        if let Some(cpus) = cpus {
            lines.push(SuggestedLine::cpus(key, cpus, why));
        }
    }
    lines
}

/// What a class does not improve, or may make worse.
fn doubts(report: &Report, vm: &VmReport, class: &RealtimeClass) -> Vec<String> {
    let mut doubts = Vec::new();
    if let Some((threads, cpus)) = class.crowded {
        let noun = if cpus == 1 { "CPU" } else { "CPUs" };
        doubts.push(format!(
            "its {threads} real-time threads share {cpus} {noun}: one that never sleeps keeps the others waiting; \
             give it more CPUs or fewer vCPUs if the guest is busy"
        ));
    }
    let own = report.meta.vms.iter().filter(|v| v.pid == vm.pid);
    let own: Vec<u32> =
        own.flat_map(|v| v.vcpus.iter().map(|v| v.tid).chain(v.workers.iter().map(|w| w.tid))).collect();
    let of_own = |f: &Finding| -> f64 {
        f.preempted_by.iter().filter(|p| own.contains(&p.tid)).map(|p| p.share).sum()
    };
    if let Some(share) = vm.findings.iter().map(of_own).find(|share| *share >= SIGNIFICANT_SHARE) {
        doubts.push(format!(
            "{} of the waits were caused by threads of its own, which a class does not change: give them different \
             CPUs (vcpu_cpus, worker_cpus)",
            percent(share)
        ));
    }
    doubts
}

/// What all VMs together need of the host.
#[derive(Default)]
struct Needs {
    /// The longest polling, ns, and the VMs that need it.
    poll: Option<(u64, PolicyChange, Vec<String>)>,
    /// The shortest wake-up latency, µs, its CPUs (inner `None` for all), and the VMs that need it.
    awake: Option<(u32, PolicyChange, Option<CpuSet>, Vec<String>)>,
}

impl Needs {
    fn poll(&mut self, ns: u64, change: &PolicyChange, vm: &VmReport) {
        let (longest, of, who) = self.poll.get_or_insert_with(|| (ns, *change, Vec::new()));
        if ns > *longest {
            (*longest, *of) = (ns, *change);
        }
        who.push(shown(&vm.name));
    }

    fn awake(&mut self, us: u32, change: &PolicyChange, cpus: Option<CpuSet>, vm: &VmReport) {
        let first = || (us, *change, Some(CpuSet::default()), Vec::new());
        let (least, of, all, who) = self.awake.get_or_insert_with(first);
        if us < *least {
            (*least, *of) = (us, *change);
        }
        *all = all.take().zip(cpus).map(|(all, cpus)| all.union(&cpus));
        who.push(shown(&vm.name));
    }

    fn lines(self, observed: Option<&Observed>) -> Vec<SuggestedLine> {
        let mut lines = Vec::new();
        if let Some((ns, change, who)) = self.poll {
            let comment = format!(
                "for {}: KVM polls for that long before it lets a halted vCPU sleep, so that a request finds it \
                 awake. Costs: up to {} of CPU time at each halt of every VM's vCPUs",
                names(&who),
                duration(ns as f64)
            );
            lines.push(SuggestedLine::of(&change, comment));
        }
        if let Some((_, change, cpus, who)) = self.awake {
            let comment = format!(
                "for {}: idle CPUs stay in shallow idle states, so a vhost worker wakes up at once. Helps only if \
                 they use deeper ones now (cpupower idle-info). Costs: power, and the boost of other CPUs; \"none\" \
                 costs most",
                names(&who)
            );
            lines.push(SuggestedLine::of(&change, comment));
            if let Some(cpus) = cpus.filter(|cpus| observed.is_some_and(|o| *cpus != o.cpus)) {
                lines.push(SuggestedLine::cpus("cpu_latency_cpus", &cpus, "where these workers may run"));
            }
        }
        lines
    }
}

fn names(who: &[String]) -> String {
    let mut text = who[..who.len().min(NAMED)].join(", ");
    if who.len() > NAMED {
        text += &format!(" and {} more", who.len() - NAMED);
    }
    text
}

impl Suggestion {
    /// What would help a VM, as lines of a policy with comments; without its verdict. The part of `[host]` is what this
    /// VM needs there.
    pub fn of(&self, advice: &VmSuggestion) -> Vec<String> {
        let host = self.host.iter().filter(|line| {
            advice
                .host
                .iter()
                .any(|key| line.key == *key || (line.key == "cpu_latency_cpus" && key == "cpu_latency"))
        });
        let mut out = notes(advice);
        out.extend(table("[host]", host, true));
        out.extend(table(&advice.header, advice.lines.iter(), true));
        out
    }

    /// All of it, with or without comments.
    fn text(&self, comments: bool) -> String {
        let mut blocks = Vec::new();
        let about = self.about.iter().flat_map(|a| toml_text::comment(a)).collect();
        blocks.push(about);
        blocks.push(table("[host]", self.host.iter(), comments));
        for advice in &self.vms {
            let mut block = Vec::new();
            if comments {
                block.extend(toml_text::comment(&advice.about));
                block.extend(notes(advice));
            }
            block.extend(table(&advice.header, advice.lines.iter(), comments));
            blocks.push(block);
        }
        let blocks: Vec<String> =
            blocks.iter().filter(|b| !b.is_empty()).map(|b| b.join("\n") + "\n").collect();
        blocks.join("\n")
    }
}

fn notes(advice: &VmSuggestion) -> Vec<String> {
    advice.notes.iter().flat_map(|note| toml_text::comment(note)).collect()
}

fn table<'a>(header: &str, lines: impl Iterator<Item = &'a SuggestedLine>, comments: bool) -> Vec<String> {
    let mut out = Vec::new();
    for line in lines {
        if out.is_empty() {
            out.push(header.to_owned());
        }
        if comments && !line.comment.is_empty() {
            out.extend(toml_text::comment(&line.comment));
        }
        out.push(format!("{} = {}", line.key, line.value));
    }
    out
}

impl fmt::Display for Suggestion {
    /// The policy. Without most of its comments if it would be longer than a policy may be, as for hundreds of VMs.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = self.text(true);
        f.write_str(&if text.len() > MAX_BYTES { self.text(false) } else { text })
    }
}
