//! Which VMs a name means.

use crate::trace::Following;
use teiji_model::host::{Identity, Vm};
use teiji_model::text::printable;

/// VMs that were asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Selection {
    /// The VMs.
    pub vms: Vec<Vm>,
    /// Which VMs that come later belong to them; `None` if the VMs were selected by their taps.
    pub following: Option<Following>,
    /// Notes about other VMs with the same names; printable.
    pub notes: Vec<String>,
}

/// The VMs that `wanted` names, by name or as `pid:N`; if it is empty, all VMs with trusted names. If several VMs have
/// one name, those whose name is trusted are selected, with notes about the others; if it is trusted for none of them,
/// all of them count.
///
/// # Errors
/// If a name is that of no VM or of several.
pub fn select(found: &[(Vm, Identity)], wanted: &[String]) -> Result<Selection, String> {
    let (vms, notes) = if wanted.is_empty() { all(found) } else { named(found, wanted)? };
    let identity = |vm: &Vm| found.iter().find(|(other, _)| other.pid == vm.pid).cloned();
    let selected: Vec<(Vm, Identity)> = vms.iter().filter_map(identity).collect();
    Ok(Selection { vms, following: Some(Following::of(&selected, wanted)), notes })
}

/// The VMs that `wanted` names, and notes.
fn named(found: &[(Vm, Identity)], wanted: &[String]) -> Result<(Vec<Vm>, Vec<String>), String> {
    let mut selected: Vec<Vm> = Vec::new();
    let mut notes = Vec::new();
    for name in wanted {
        let by_pid = name.strip_prefix("pid:").and_then(|n| n.parse::<u32>().ok());
        let matching: Vec<&Vm> = match by_pid {
            Some(pid) => found.iter().map(|(vm, _)| vm).filter(|vm| vm.pid == pid).collect(),
            None => called(name, found, &mut notes),
        };
        match matching[..] {
            [] => {
                let there_are = list(found.iter().map(|(vm, _)| vm));
                return Err(format!("there is no VM `{}`; there are: {there_are}", printable(name)));
            }
            [vm] if selected.iter().any(|s| s.pid == vm.pid) => {}
            [vm] => selected.push(vm.clone()),
            _ => {
                let which: Vec<String> = matching.iter().map(|vm| format!("--vm pid:{}", vm.pid)).collect();
                return Err(format!(
                    "{} VMs are called `{}`; say which by its process id: {}",
                    matching.len(),
                    printable(name),
                    which.join(" or ")
                ));
            }
        }
    }
    Ok((selected, notes))
}

/// All VMs with trusted names, or all VMs if no name is trusted. What a process with an untrusted name claims about its
/// taps may be an attack on the trace of another VM.
fn all(found: &[(Vm, Identity)]) -> (Vec<Vm>, Vec<String>) {
    let doubt = |identity: &Identity| identity.doubt_by_default();
    let some_trusted = found.iter().any(|(_, identity)| doubt(identity).is_none());
    let (mut selected, mut notes) = (Vec::new(), Vec::new());
    for (vm, identity) in found {
        match doubt(identity).filter(|_| some_trusted) {
            None => selected.push(vm.clone()),
            Some(whose) => notes.push(printable(&format!(
                "a process calls itself {}: pid {}, {whose}; it is left out (--vm pid:{} selects it)",
                vm.name, vm.pid, vm.pid
            ))),
        }
    }
    (selected, notes)
}

/// The VMs of a name whose name is trusted, or all of them if it is trusted for none.
fn called<'a>(name: &str, found: &'a [(Vm, Identity)], notes: &mut Vec<String>) -> Vec<&'a Vm> {
    let all = found.iter().filter(|(vm, _)| vm.name == *name);
    let (trusted, untrusted): (Vec<_>, Vec<_>) =
        all.partition(|(_, identity)| identity.doubt_by_default().is_none());
    if trusted.is_empty() {
        return untrusted.into_iter().map(|(vm, _)| vm).collect();
    }
    for (vm, identity) in untrusted {
        let whose = identity.doubt_by_default().unwrap_or_default();
        notes.push(printable(&format!(
            "another process calls itself {name}: pid {}, {whose}; it is left out (--vm pid:{} selects it)",
            vm.pid, vm.pid
        )));
    }
    trusted.into_iter().map(|(vm, _)| vm).collect()
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
    use teiji_model::host::NamedBy;

    fn vm(name: &str, pid: u32) -> Vm {
        Vm { name: name.into(), pid, ..Vm::default() }
    }

    fn of(uid: u32) -> Identity {
        Identity {
            uid: Some(uid),
            user: None,
            named_by: NamedBy::Itself,
            started: None,
            uuid: None,
            unconfirmed: false,
        }
    }

    fn pids(wanted: &[&str]) -> Result<Vec<u32>, String> {
        let found = [vm("a", 1), vm("b", 2), vm("b", 3), vm("pid:4", 4)].map(|vm| (vm, of(0)));
        let wanted: Vec<String> = wanted.iter().map(|&w| w.into()).collect();
        let Selection { vms, notes, .. } = select(&found, &wanted)?;
        assert_eq!(notes, Vec::<String>::new());
        Ok(vms.iter().map(|vm| vm.pid).collect())
    }

    #[test]
    fn the_trusted_name_is_preferred() {
        let found = [(vm("a", 1), of(1000)), (vm("a", 2), of(0)), (vm("c", 3), of(1000))];
        let Selection { vms, notes, .. } = select(&found, &["a".into()]).unwrap();
        assert_eq!((vms.len(), vms[0].pid), (1, 2));
        assert_eq!(
            notes,
            ["another process calls itself a: pid 1, user 1000; it is left out (--vm pid:1 selects it)"]
        );
        // A VM that is the only one with its name is selected, and so is a process id.
        assert_eq!(select(&found, &["c".into(), "pid:1".into()]).unwrap().vms.len(), 2);
    }

    #[test]
    fn untrusted_names_are_not_among_all() {
        let found = [(vm("a", 1), of(1000)), (vm("a", 2), of(0)), (vm("c", 3), of(1000))];
        let Selection { vms, notes, .. } = select(&found, &[]).unwrap();
        assert_eq!(vms.iter().map(|vm| vm.pid).collect::<Vec<_>>(), [2]);
        assert_eq!(notes.len(), 2);
        assert_eq!(
            notes[1],
            "a process calls itself c: pid 3, user 1000; it is left out (--vm pid:3 selects it)"
        );
        // A user's own VMs, where there are no others.
        let Selection { vms, notes, .. } = select(&found[2..], &[]).unwrap();
        assert_eq!((vms.len(), notes.len()), (1, 0));
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
