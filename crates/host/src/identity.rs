//! Where the name of a VM comes from, and so whether it can be trusted.
//!
//! Any process may hold a descriptor of a KVM virtual machine and have any name on its command line. It cannot choose
//! its user, the control group that libvirt put it into, or the files in libvirt's own directory, which only root may
//! change. libvirt confirms a name if its state has the id of the process and the process is in a place where libvirt
//! runs VMs, or if the process is in a control group with that name. libvirt's name then counts, whatever the process
//! says. Where libvirt's daemon keeps its state, a process of the user of its VMs that it does not confirm is none of them: a
//! guest that has escaped from QEMU is that user, and can start processes with any name.

use crate::cgroup::group_in;
use crate::root::Root;
use std::collections::BTreeMap;
use teiji_model::host::{Identity, NamedBy, VM_USERS};
use teiji_model::resource::Task;

/// Where libvirt's system daemon keeps the state of running VMs: `NAME.xml` and `NAME.pid` of each.
const STATE: &str = "run/libvirt/qemu";

/// What VMs are identified by, read once for all of them.
pub(crate) struct Domains {
    /// The VMs that libvirt runs by its own state: names by process id. Empty if there are none or only root may read it.
    names: BTreeMap<u32, String>,
    /// Whether libvirt's system daemon has run since the host has booted, so that it is there to confirm names.
    asked: bool,
    /// `/etc/passwd`.
    passwd: String,
}

impl Domains {
    pub(crate) fn find(root: &Root) -> Self {
        let one = |file: &String| {
            let name = file.strip_suffix(".xml").filter(|name| !name.is_empty() && !name.starts_with('.'))?;
            let pid = pid_of(&root.text(&format!("{STATE}/{file}"))?)?;
            Some((pid, name.to_owned()))
        };
        Domains {
            names: root.names(STATE).iter().filter_map(one).collect(),
            asked: root.exists(STATE),
            passwd: root.text("etc/passwd").unwrap_or_default(),
        }
    }

    /// A process's identity, and the name that libvirt gives it. `own` is the name on its command line.
    pub(crate) fn identify(
        &self,
        root: &Root,
        process: Task,
        own: Option<&str>,
    ) -> (Identity, Option<String>) {
        let pid = process.id;
        let uids = uids(root, pid);
        let uid = uids.map(|(real, _)| real);
        let effective = uids.map(|(_, effective)| effective);
        let user = uid.and_then(|uid| user(&self.passwd, uid));
        let started = Some(process.started);
        let mut identity =
            Identity { uid, user, named_by: NamedBy::Itself, started, uuid: None, unconfirmed: false };
        if uid != effective {
            // A process whose real and effective user differ does not count as that of root or of a trusted user.
            identity.user = identity.user.filter(|name| !VM_USERS.contains(&name.as_str()));
            identity.uid = identity.uid.filter(|uid| *uid != 0);
        }
        let scope = scope(&root.text(&format!("proc/{pid}/cgroup")).unwrap_or_default());
        let trusted = || VM_USERS.iter().any(|name| identity.is_of(name));
        let named = match self.names.get(&pid) {
            Some(name) if scope.is_some() || trusted() => Some(name.clone()),
            // libvirt's state may be readable by root only, or be of another version.
            _ => scope.filter(|name| own == Some(name.as_str())),
        };
        if named.is_some() {
            identity.named_by = NamedBy::Libvirt;
        }
        identity.unconfirmed = self.asked && named.is_none();
        (identity, named)
    }
}

/// The process id in the first tag of libvirt's state of a VM: `<domstatus state='running' … pid='4711'>`. The content
/// below that tag has untrusted text from the definition of the VM.
fn pid_of(xml: &str) -> Option<u32> {
    let (_, rest) = xml.split_once("<domstatus ")?;
    let (tag, _) = rest.split_once('>')?;
    let (_, rest) = tag.split_once("pid=")?;
    let quote = rest.chars().next().filter(|c| matches!(c, '\'' | '"'))?;
    rest[1..].split_once(quote)?.0.parse().ok()
}

/// The VM's name in the control group that systemd-machined makes for libvirt's VMs,
/// `/machine.slice/machine-qemu\x2d3\x2dsip1.scope`. Only root may put a process there.
fn scope(cgroup: &str) -> Option<String> {
    let group = group_in(cgroup).or_else(|| {
        cgroup.lines().find_map(|l| l.split_once(":name=systemd:")).map(|(_, group)| group.to_owned())
    })?;
    let scope = group.strip_prefix("/machine.slice/machine-")?.split('/').next()?.strip_suffix(".scope")?;
    let (number, name) = scope.replace("\\x2d", "-").strip_prefix("qemu-")?.split_once('-').map(owned)?;
    (!number.is_empty() && number.bytes().all(|b| b.is_ascii_digit())).then_some(name)
}

fn owned((a, b): (&str, &str)) -> (String, String) {
    (a.to_owned(), b.to_owned())
}

/// Real and effective user of a process, as this host counts them: `Uid:` of proc_pid_status(5).
fn uids(root: &Root, pid: u32) -> Option<(u32, u32)> {
    let status = root.text(&format!("proc/{pid}/status"))?;
    let mut ids = status.lines().find_map(|l| l.strip_prefix("Uid:"))?.split_whitespace();
    Some((ids.next()?.parse().ok()?, ids.next()?.parse().ok()?))
}

/// The name of a user in passwd(5).
fn user(passwd: &str, uid: u32) -> Option<String> {
    let of = |line: &str| {
        let mut fields = line.split(':');
        let name = fields.next()?;
        (fields.nth(1)?.parse() == Ok(uid)).then(|| name.to_owned())
    };
    passwd.lines().find_map(of).or_else(|| (uid == 0).then(|| "root".to_owned()))
}

/// The number of a group by its name.
pub(crate) fn group_id(root: &Root, name: &str) -> Option<u32> {
    let groups = root.text("etc/group").unwrap_or_default();
    let of = |line: &str| {
        let mut fields = line.split(':');
        (fields.next()? == name).then(|| fields.nth(1)?.parse().ok()).flatten()
    };
    groups.lines().find_map(of)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pid_of_the_first_tag_counts() {
        let xml = "<!-- x -->\n<domstatus state='running' reason='booted' pid='4711'>\n <title>&lt;domstatus pid='1'</title>";
        assert_eq!(pid_of(xml), Some(4711));
        for other in ["", "<domain pid='3'>", "<domstatus state='running'><a pid='3'>", "<domstatus pid=3>"] {
            assert_eq!(pid_of(other), None, "{other}");
        }
    }

    #[test]
    fn only_machines_own_groups_name_a_vm() {
        let of = |group: &str| scope(&format!("0::{group}\n"));
        let wanted = Some("sip-1.a".to_owned());
        assert_eq!(of("/machine.slice/machine-qemu\\x2d12\\x2dsip\\x2d1.a.scope/libvirt/vcpu0"), wanted);
        for other in [
            "/user.slice/machine.slice/machine-qemu\\x2d1\\x2da.scope",
            "/machine.slice/machine-lxc\\x2d1\\x2da.scope",
            "/machine.slice/machine-qemu\\x2dx\\x2da.scope",
            "/machine.slice",
            "/",
        ] {
            assert_eq!(of(other), None, "{other}");
        }
    }
}
