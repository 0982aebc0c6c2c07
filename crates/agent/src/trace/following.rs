//! Which of the VMs that come while a trace runs are followed.

use std::collections::{BTreeMap, BTreeSet};
use teiji_model::host::{Identity, Vcpu, Vm, VmId};

/// Which VMs are followed: those that were there at the start, and the rule for later ones.
///
/// - Without names: VMs with trusted names, and VMs of the users whose VMs were there.
/// - With names: a VM with such a name that is trusted, or that is the one that was there, started again ([`VmId`]).
///
/// A process id names the process that had it when the trace began, and no later one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Following {
    /// The names that were asked for; the VM that each of them meant.
    names: BTreeMap<String, VmId>,
    users: BTreeSet<u32>,
    /// Process ids, and when the processes were started.
    known: Vec<(u32, Option<u64>)>,
}

impl Following {
    /// The rule for a trace of these VMs, which were selected by `wanted`: names and `pid:N`, or nothing for all.
    pub fn of(selected: &[(Vm, Identity)], wanted: &[String]) -> Following {
        let named = |(vm, identity): &(Vm, Identity)| {
            wanted.contains(&vm.name).then(|| (vm.name.clone(), identity.id()))
        };
        let users = selected.iter().filter_map(|(_, identity)| identity.uid);
        Following {
            names: selected.iter().filter_map(named).collect(),
            users: if wanted.is_empty() { users.collect() } else { BTreeSet::new() },
            known: selected.iter().map(|(vm, identity)| (vm.pid, identity.started)).collect(),
        }
    }

    /// Whether VMs that come later can be followed at all: not if all were named by their process ids.
    pub(super) fn any_later(&self) -> bool {
        !self.names.is_empty() || !self.users.is_empty()
    }

    /// Whether a VM is followed. Once it is, it stays so, whatever its name becomes.
    pub(super) fn includes(&mut self, vm: &Vm, identity: &Identity) -> bool {
        let process = (vm.pid, identity.started);
        if self.known.contains(&process) {
            return true;
        }
        let trusted = identity.doubt_by_default().is_none();
        let same = |former: &VmId| {
            identity.uid.is_some() && former.uid == identity.uid && former.may_be(&identity.id())
        };
        let follow = match self.names.get(&vm.name) {
            Some(former) => trusted || same(former),
            None if self.names.is_empty() => {
                self.any_later() && (trusted || identity.uid.is_some_and(|uid| self.users.contains(&uid)))
            }
            None => false,
        };
        if follow {
            self.known.push(process);
        }
        follow
    }

    /// Forgets processes that are not among these.
    pub(super) fn keep(&mut self, there: &[(Vm, Identity)]) {
        self.known.retain(|(pid, started)| {
            there.iter().any(|(vm, identity)| vm.pid == *pid && identity.started == *started)
        });
    }
}

/// What a trace needs of a VM, without what changes all the time.
pub(super) fn essence(vm: &Vm) -> Vm {
    let vcpu = |vcpu: &Vcpu| Vcpu { cpus: String::new(), last_cpu: 0, ..vcpu.clone() };
    Vm {
        vcpus: vm.vcpus.iter().map(vcpu).collect(),
        workers: Vec::new(),
        // A tap of another network namespace has no index here.
        nics: vm.nics.iter().filter(|nic| nic.ifindex != 0).cloned().collect(),
        memory_nodes: Vec::new(),
        ..vm.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use teiji_model::host::NamedBy;
    use uuid::Uuid;

    fn vm(name: &str, pid: u32, uid: u32, started: u64, uuid: Option<u128>) -> (Vm, Identity) {
        let vm = Vm { name: name.into(), pid, ..Vm::default() };
        let uuid = uuid.map(Uuid::from_u128);
        let identity = Identity {
            uid: Some(uid),
            user: None,
            named_by: NamedBy::Itself,
            started: Some(started),
            uuid,
            unconfirmed: false,
        };
        (vm, identity)
    }

    fn follows(following: &mut Following, (vm, identity): &(Vm, Identity)) -> bool {
        following.includes(vm, identity)
    }

    #[test]
    fn a_name_is_followed_to_the_next_process_but_not_to_an_impostor() {
        let mut named = Following::of(&[vm("a", 1, 1000, 5, Some(7))], &["a".into()]);
        assert!(follows(&mut named, &vm("a", 1, 1000, 5, Some(7))));
        assert!(follows(&mut named, &vm("renamed", 1, 1000, 5, Some(7))), "the process is the same");
        assert!(!follows(&mut named, &vm("b", 2, 0, 6, None)), "another name");
        assert!(!follows(&mut named, &vm("a", 2, 1001, 6, Some(7))), "another user's, not trusted");
        assert!(!follows(&mut named, &vm("a", 2, 1000, 6, Some(8))), "another VM of that user");
        assert!(follows(&mut named, &vm("a", 2, 1000, 6, Some(7))), "the same VM, started again");
        assert!(follows(&mut named, &vm("a", 3, 0, 7, Some(9))), "root's, so its name is trusted");
    }

    #[test]
    fn a_process_id_means_one_process() {
        let mut by_pid = Following::of(&[vm("a", 1, 0, 5, None)], &["pid:1".into()]);
        assert!(!by_pid.any_later());
        assert!(follows(&mut by_pid, &vm("a", 1, 0, 5, None)));
        assert!(!follows(&mut by_pid, &vm("a", 1, 0, 6, None)), "the id is used again");
        assert!(!follows(&mut by_pid, &vm("a", 2, 0, 6, None)));
    }

    #[test]
    fn without_names_those_of_trusted_and_of_the_same_users_are_followed() {
        let mut all = Following::of(&[vm("a", 1, 0, 5, None)], &[]);
        assert!(follows(&mut all, &vm("b", 2, 0, 6, None)));
        assert!(!follows(&mut all, &vm("c", 3, 1000, 6, None)));
        let mut own = Following::of(&[vm("a", 1, 1000, 5, None)], &[]);
        assert!(
            follows(&mut own, &vm("b", 2, 1000, 6, None)) && !follows(&mut own, &vm("c", 3, 1001, 6, None))
        );
        own.keep(&[vm("b", 2, 1000, 6, None)]);
        assert_eq!(own.known, [(2, Some(6))]);
    }
}
