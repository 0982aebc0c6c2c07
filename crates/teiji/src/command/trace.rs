//! `teiji trace`: follows packets until told to stop, then reports.

use super::{signals, vms};
use crate::args::{Trace, Usage};
use crate::format::{self, Kept};
use crate::output;
use crate::progress::Line;
use crate::terminal::printable;
use anyhow::{Context, Result, bail};
use teiji_agent::output::Rights;
use teiji_agent::trace;
use teiji_host::Root;
use teiji_model::flow::{Flow, Watch};
use teiji_model::host::Vm;

/// Traces and prints the report.
pub(super) fn run(args: &Trace, root: &Root, made_up: bool) -> Result<()> {
    format::check(&args.report)?;
    let flow = Flow::parse(&args.flow).map_err(|e| Usage(format!("cannot read --flow:\n{e}")))?;
    let vms = if args.taps.is_empty() {
        let found = root.vms()?;
        if found.is_empty() {
            bail!("{}", vms::nothing(root));
        }
        select(&found, &args.vms)?
    } else {
        args.taps.iter().map(|tap| root.tap(tap)).collect::<Result<_, _>>()?
    };
    let lacking = root.lacking();
    if !lacking.is_empty() {
        bail!(
            "tracing needs privileges that this process lacks ({}), so no probe can be attached: \
             run it with sudo, or see `teiji doctor`; `teiji replay` needs none",
            lacking.join(", ")
        );
    }
    if made_up {
        bail!("VMs below --root are not those of this machine, so they cannot be traced");
    }
    let watch = Watch {
        flow,
        flow_text: args.flow.trim().to_owned(),
        direction: args.direction.into(),
        matching: args.matching.into(),
    };
    let spec = trace::Spec {
        watch,
        vms,
        duration: args.duration,
        record: args.record.clone(),
        buffer_bytes: args.buffer,
        confine: true,
    };
    // Both before the trace gives up the rights that this takes.
    let out = output::Report::to(args.report.out.as_deref(), Rights::GivenUp)?;
    let observed = args.report.suggest.then(|| root.observe()).transpose()?;
    let stop = signals::stop_flag()?;
    let mut kept = Kept::new(args.report.format());
    let mut line = Line::new(args.duration);
    let outcome = trace::run(spec, &stop, &mut |p| line.show(p), &mut |joined| kept.keep(joined));
    line.clear();
    let outcome = outcome.context("cannot trace")?;
    let vanished = !outcome.report.counters.vanished.is_empty();
    if args.report.suggest {
        format::suggest(&outcome.report, observed.as_ref())?;
    } else {
        format::print(&args.report, out, &[(String::new(), outcome.report)], &kept)?;
    }
    if let Some(error) = outcome.recording_failed {
        return Err(error.into());
    }
    if vanished {
        bail!("a traced VM ended before the trace did: the report shows what was seen until then");
    }
    Ok(())
}

/// The VMs that `wanted` names, by name or as `pid:N`; all if it names none.
///
/// # Errors
/// If a name is that of no VM or of several.
pub fn select(found: &[Vm], wanted: &[String]) -> Result<Vec<Vm>> {
    if wanted.is_empty() {
        return Ok(found.to_vec());
    }
    let mut selected: Vec<Vm> = Vec::new();
    for name in wanted {
        let by_pid = name.strip_prefix("pid:").and_then(|n| n.parse::<u32>().ok());
        let matching: Vec<&Vm> = match by_pid {
            Some(pid) => found.iter().filter(|vm| vm.pid == pid).collect(),
            None => found.iter().filter(|vm| vm.name == *name).collect(),
        };
        match matching[..] {
            [] => bail!("there is no VM `{}`; there are: {}", printable(name), list(found.iter())),
            [vm] if selected.iter().any(|s| s.pid == vm.pid) => {}
            [vm] => selected.push(vm.clone()),
            _ => bail!(
                "{} VMs are called `{}`; say which by its process id: {}",
                matching.len(),
                printable(name),
                matching.iter().map(|vm| format!("--vm pid:{}", vm.pid)).collect::<Vec<_>>().join(" or ")
            ),
        }
    }
    Ok(selected)
}

/// Names for an error message; a long list is cut.
fn list<'a>(vms: impl Iterator<Item = &'a Vm>) -> String {
    const MOST: usize = 20;
    let mut names: Vec<String> = vms
        .map(|vm| {
            let own = format!("pid:{}", vm.pid);
            if vm.name == own { own } else { format!("{} ({own})", printable(&vm.name)) }
        })
        .collect();
    let more = names.len().saturating_sub(MOST);
    names.truncate(MOST);
    if more > 0 {
        names.push(format!("and {more} more, see `teiji vms`"));
    }
    names.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vm(name: &str, pid: u32) -> Vm {
        Vm {
            name: name.into(),
            pid,
            vcpus: vec![],
            workers: vec![],
            nics: vec![],
            memory: None,
            memory_nodes: vec![],
        }
    }

    fn pids(wanted: &[&str]) -> Result<Vec<u32>, String> {
        let found = [vm("a", 1), vm("b", 2), vm("b", 3), vm("pid:4", 4)];
        let wanted: Vec<String> = wanted.iter().map(|&w| w.into()).collect();
        let selected = select(&found, &wanted).map_err(|e| e.to_string())?;
        Ok(selected.iter().map(|vm| vm.pid).collect())
    }

    #[test]
    fn by_name_or_pid() {
        assert_eq!(pids(&[]), Ok(vec![1, 2, 3, 4]));
        assert_eq!(pids(&["pid:3", "a", "a", "pid:4"]), Ok(vec![3, 1, 4]));
    }

    #[test]
    fn errors_say_what_there_is() {
        assert_eq!(
            pids(&["c\x1b"]).unwrap_err(),
            "there is no VM `c\\u{1b}`; there are: a (pid:1), b (pid:2), b (pid:3), pid:4"
        );
        assert_eq!(
            pids(&["b"]).unwrap_err(),
            "2 VMs are called `b`; say which by its process id: --vm pid:2 or --vm pid:3"
        );
        assert!(pids(&["pid:9"]).is_err());
    }
}
