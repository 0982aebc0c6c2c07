//! Least privilege: what a trace keeps once its probes are attached, and the agent once its qdisc is registered.
use caps::{CapSet, Capability, CapsHashSet};

/// Gives up every capability but the one to write a file where the operator wants it; for good.
///
/// Reading the ring buffer, detaching and reading `/proc/<tid>/comm` need none.
///
/// # Errors
/// Says which set could not be changed.
pub(crate) fn drop_all() -> Result<(), String> {
    drop_but(&[Capability::CAP_DAC_OVERRIDE])
}

/// Gives up every capability but these; for good.
///
/// # Errors
/// Says which set could not be changed.
pub(crate) fn drop_but(keep: &[Capability]) -> Result<(), String> {
    let keep: CapsHashSet = keep
        .iter()
        .copied()
        .filter(|c| caps::has_cap(None, CapSet::Permitted, *c).unwrap_or(false))
        .collect();
    for (set, wanted) in [
        (CapSet::Inheritable, CapsHashSet::new()),
        (CapSet::Effective, keep.clone()),
        (CapSet::Permitted, keep),
    ] {
        caps::set(None, set, &wanted).map_err(|e| format!("cannot give up capabilities ({set:?}): {e}"))?;
    }
    Ok(())
}
