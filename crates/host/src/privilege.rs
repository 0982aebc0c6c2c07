//! Gives up privileges for good. A trace does this once its probes are attached, the agent once its qdisc is
//! registered.
//!
//! | what is given up | so that |
//! | --- | --- |
//! | effective, permitted, inheritable and ambient capabilities | this process can do nothing that needs one |
//! | bounding set; securebits, locked; `no_new_privs` | no program that it executes gets one: not as user 0, not setuid, not by file capabilities |
//! | user, group and supplementary groups ([`become_nobody`]) | files and processes of root are out of reach |
//!
//! The kernel keeps capabilities for each thread, so each thread gives up its own, and [`confirm`] looks at all of
//! them.

use crate::root;
use nix::sys::prctl;
use nix::unistd::{Gid, Uid, geteuid, getuid, setgroups, setresgid, setresuid};
use rustix::thread::{
    CapabilitiesSecureBits as Bits, CapabilitySet, CapabilitySets, capabilities,
    clear_ambient_capability_set, remove_capability_from_bounding_set, set_capabilities,
    set_capabilities_secure_bits,
};
use std::io;
use std::path::{Path, PathBuf};

/// The user and group "nobody" of Linux: it owns no file.
pub(crate) const NOBODY: u32 = 65534;
/// Securebits that disable the special treatment of root by `execve` and `setuid`.
const BITS: Bits = Bits::NO_ROOT
    .union(Bits::NO_ROOT_LOCKED)
    .union(Bits::NO_SETUID_FIXUP)
    .union(Bits::NO_SETUID_FIXUP_LOCKED)
    .union(Bits::KEEP_CAPS_LOCKED)
    .union(Bits::NO_CAP_AMBIENT_RAISE)
    .union(Bits::NO_CAP_AMBIENT_RAISE_LOCKED);

/// Why privileges remain.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The kernel refused a step.
    #[error("cannot give up {what}")]
    Refused {
        /// What would have been given up.
        what: &'static str,
        /// Why not.
        #[source]
        source: io::Error,
    },
    /// A thread still has privileges afterwards.
    #[error("thread {thread} still has privileges ({line}) after they were given up")]
    Kept {
        /// Its id.
        thread: String,
        /// The line of its `status` file.
        line: String,
    },
    /// It cannot be read which privileges threads have.
    #[error("cannot read {path}, so it is not known whether privileges were given up")]
    Unknown {
        /// The file.
        path: PathBuf,
        /// Why not.
        #[source]
        source: io::Error,
    },
}

/// Gives up all capabilities of the calling thread, and every way of getting one back by executing a program. The user
/// stays the same.
///
/// # Errors
/// [`Error::Refused`].
pub fn give_up() -> Result<(), Error> {
    keep_only(CapabilitySet::empty())
}

/// Gives up all privileges of a process with a single thread: those of [`give_up`] and, if it is root, also the user.
/// It keeps the user if it lacks the capabilities to change it, as root in a container may.
///
/// Other processes of "nobody" can then send signals to it, but can neither trace it nor read its memory.
///
/// # Errors
/// If any thread still has a privilege.
pub fn become_nobody() -> Result<(), Error> {
    close_ways_back()?;
    let may = capabilities(None).map_err(refused("capabilities"))?.effective;
    let root = geteuid().is_root() || getuid().is_root();
    if root && !may.contains(CapabilitySet::SETUID | CapabilitySet::SETGID) {
        tracing::warn!(
            "without CAP_SETUID and CAP_SETGID the trace stays user 0, without any capability: it can write what belongs to root"
        );
    } else if root {
        let (uid, gid) = (Uid::from_raw(NOBODY), Gid::from_raw(NOBODY));
        setgroups(&[]).map_err(refused("supplementary groups"))?;
        setresgid(gid, gid, gid).map_err(refused("the group root"))?;
        setresuid(uid, uid, uid).map_err(refused("the user root"))?;
    }
    keep_of_permitted(CapabilitySet::empty())?;
    // After the last change of credentials, as the kernel resets this value at each such change.
    prctl::set_dumpable(false).map_err(refused("being traced by others of the same user"))?;
    confirm()
}

/// Gives up all but these capabilities of the calling thread, and every way of getting one back.
///
/// # Errors
/// [`Error::Refused`].
pub fn keep_only(kept: CapabilitySet) -> Result<(), Error> {
    close_ways_back()?;
    keep_of_permitted(kept)
}

/// Prevents programs that the calling thread executes, and changes of the user, from gaining a privilege.
fn close_ways_back() -> Result<(), Error> {
    let now = capabilities(None).map_err(refused("capabilities"))?;
    // Without this capability the bounding set and the securebits stay as they are; no_new_privs is enough then.
    if now.effective.contains(CapabilitySet::SETPCAP) {
        empty_bounding_set().map_err(refused("the capability bounding set"))?;
        set_capabilities_secure_bits(BITS).map_err(refused("the privileges of user 0 (securebits)"))?;
    }
    prctl::set_no_new_privs().map_err(refused("privileges of executed files (no_new_privs)"))?;
    clear_ambient_capability_set().map_err(refused("ambient capabilities"))
}

fn keep_of_permitted(kept: CapabilitySet) -> Result<(), Error> {
    let now = capabilities(None).map_err(refused("capabilities"))?;
    let kept = now.permitted & kept;
    let sets = CapabilitySets { effective: kept, permitted: kept, inheritable: CapabilitySet::empty() };
    set_capabilities(None, sets).map_err(refused("capabilities"))
}

/// Of every capability that the kernel knows: it answers "invalid" from the first unknown one on.
fn empty_bounding_set() -> Result<(), rustix::io::Errno> {
    for n in 0..64 {
        match remove_capability_from_bounding_set(CapabilitySet::from_bits_retain(1 << n)) {
            Err(rustix::io::Errno::INVAL) => break,
            done => done?,
        }
    }
    Ok(())
}

/// Checks that no thread of this process has a capability, or can get one by executing a program.
///
/// # Errors
/// [`Error::Kept`] with the first that does; [`Error::Unknown`].
pub fn confirm() -> Result<(), Error> {
    let tasks = Path::new("/proc/self/task");
    let unknown = |path: &Path, source| Error::Unknown { path: path.to_owned(), source };
    for tid in root::threads(tasks).map_err(|e| unknown(tasks, e))? {
        let path = tasks.join(format!("{tid}/status"));
        let status = match std::fs::read_to_string(&path) {
            Ok(status) => status,
            // The thread has ended meanwhile.
            Err(e) if matches!(e.raw_os_error(), Some(nix::libc::ENOENT | nix::libc::ESRCH)) => continue,
            Err(e) => return Err(unknown(&path, e)),
        };
        if let Some(line) = kept(&status) {
            return Err(Error::Kept { thread: tid.to_string(), line });
        }
    }
    Ok(())
}

/// The first line of a `status` file that shows a privilege.
fn kept(status: &str) -> Option<String> {
    let mask_of = |field: &str| {
        let line = status.lines().find(|line| line.split(':').next() == Some(field))?;
        Some((line, line.split(':').nth(1)?.trim()))
    };
    // With no_new_privs the bounding set gives nothing, and without CAP_SETPCAP it cannot be emptied.
    let empty = ["CapInh", "CapPrm", "CapEff", "CapAmb"];
    let wrong = |field: &str, right: &dyn Fn(&str) -> bool| match mask_of(field) {
        Some((_, value)) if right(value) => None,
        Some((line, _)) => Some(line.split_whitespace().collect::<Vec<_>>().join(" ")),
        None => Some(format!("no {field}")),
    };
    let zero = |value: &str| !value.is_empty() && value.bytes().all(|b| b == b'0');
    empty.iter().find_map(|field| wrong(field, &zero)).or_else(|| wrong("NoNewPrivs", &|value| value == "1"))
}

fn refused<E: Into<io::Error>>(what: &'static str) -> impl FnOnce(E) -> Error {
    move |e| Error::Refused { what, source: e.into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whatever_is_kept_is_seen() {
        let none = "CapInh:\t0000000000000000\nCapPrm:\t0000000000000000\nCapEff:\t0000000000000000\n\
                    CapBnd:\t000001ffffffffff\nCapAmb:\t0000000000000000\nNoNewPrivs:\t1\n";
        assert_eq!(kept(none), None);
        for field in ["CapInh", "CapPrm", "CapEff", "CapAmb"] {
            let one = none.replace(&format!("{field}:\t00"), &format!("{field}:\t02"));
            assert_eq!(kept(&one).unwrap(), format!("{field}: 0200000000000000"));
            assert_eq!(kept(&none.replace(field, "Other")).unwrap(), format!("no {field}"));
        }
        assert_eq!(kept(&none.replace("Privs:\t1", "Privs:\t0")).unwrap(), "NoNewPrivs: 0");
    }
}
