//! Gives up what is not needed to load programs: everything but CAP_BPF and CAP_PERFMON, for good. What needs more (ports,
//! the token file, the addresses of the kernel's data) is opened before.
//!
//! | what is given up | so that |
//! | --- | --- |
//! | other capabilities, effective, permitted, inheritable and ambient | this process can do nothing else that needs one |
//! | bounding set; securebits, locked; `no_new_privs` | no program that it executes gets one |
//! | user, group and supplementary groups, if it is root | files and processes of root are out of reach |
//!
//! The kernel keeps capabilities for each thread: this is called before others are started.
use nix::sys::prctl;
use nix::unistd::{Gid, Uid, geteuid, getuid, setgroups, setresgid, setresuid};
use rustix::thread::{
    CapabilitiesSecureBits as Bits, CapabilitySet, CapabilitySets, capabilities,
    clear_ambient_capability_set, remove_capability_from_bounding_set, set_capabilities,
    set_capabilities_secure_bits, set_keep_capabilities,
};
use std::io;

/// What loading programs needs.
const NEEDED: CapabilitySet = CapabilitySet::BPF.union(CapabilitySet::PERFMON);
/// The user and group "nobody" of Linux: it owns no file.
const NOBODY: u32 = 65534;
/// Securebits that disable the special treatment of root by `execve` and `setuid`.
const BITS: Bits = Bits::NO_ROOT
    .union(Bits::NO_ROOT_LOCKED)
    .union(Bits::NO_SETUID_FIXUP)
    .union(Bits::NO_SETUID_FIXUP_LOCKED)
    .union(Bits::KEEP_CAPS_LOCKED)
    .union(Bits::NO_CAP_AMBIENT_RAISE)
    .union(Bits::NO_CAP_AMBIENT_RAISE_LOCKED);

/// The kernel refused a step.
#[derive(Debug, thiserror::Error)]
#[error("cannot give up {what}, so this would run with privileges that it does not need")]
pub struct Error {
    what: &'static str,
    #[source]
    source: io::Error,
}

fn refused<E: Into<io::Error>>(what: &'static str) -> impl FnOnce(E) -> Error {
    move |e| Error { what, source: e.into() }
}

/// Whether this thread has what loading programs needs.
pub fn may_load() -> bool {
    capabilities(None).is_ok_and(|own| own.effective.contains(NEEDED))
}

/// Gives up what is not needed. A process that is root and may change its user becomes "nobody".
///
/// # Errors
/// If the kernel refuses a step that this process has the capability for.
pub fn give_up() -> Result<(), Error> {
    let before = capabilities(None).map_err(refused("capabilities"))?;
    let root = geteuid().is_root() || getuid().is_root();
    if root && before.effective.contains(CapabilitySet::SETUID | CapabilitySet::SETGID) {
        set_keep_capabilities(true).map_err(refused("the user root and keep capabilities"))?;
        let (uid, gid) = (Uid::from_raw(NOBODY), Gid::from_raw(NOBODY));
        setgroups(&[]).map_err(refused("supplementary groups"))?;
        setresgid(gid, gid, gid).map_err(refused("the group root"))?;
        setresuid(uid, uid, uid).map_err(refused("the user root"))?;
        // The change of the user has made none of them effective.
        set_capabilities(None, before).map_err(refused("the user root and keep capabilities"))?;
    }
    // Without this capability the bounding set and the securebits stay as they are; no_new_privs is enough then.
    if before.effective.contains(CapabilitySet::SETPCAP) {
        empty_bounding_set().map_err(refused("the capability bounding set"))?;
        set_capabilities_secure_bits(BITS).map_err(refused("the privileges of user 0 (securebits)"))?;
    }
    prctl::set_no_new_privs().map_err(refused("privileges of executed files (no_new_privs)"))?;
    clear_ambient_capability_set().map_err(refused("ambient capabilities"))?;
    let kept = before.permitted & NEEDED;
    let sets = CapabilitySets { effective: kept, permitted: kept, inheritable: CapabilitySet::empty() };
    set_capabilities(None, sets).map_err(refused("capabilities"))?;
    // After the last change of credentials, as the kernel resets this value at each such change.
    prctl::set_dumpable(false).map_err(refused("being traced by others of the same user"))
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
