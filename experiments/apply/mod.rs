//! Experiment `apply`: whenever teiji is killed, the host is as it was or as the policy asks. See README.md beside
//! this file.
//!
//! | module | does |
//! | --- | --- |
//! | [`place`] | a KVM host with a VM, a NIC, control groups, and the policy for them |
//! | [`kills`] | rounds with kills, and what came of them |
//! | `driver.py` | kills, and looks at the settings by itself; runs in the lab host |

pub mod kills;
pub mod place;

/// How much of the experiment is run.
#[derive(Clone, Copy, Debug)]
pub struct Extent {
    /// Applies that are killed, and as many rollbacks.
    pub kills: u32,
    /// Applies that do not come to their end because the VM is killed.
    pub vanish: u32,
}

/// What the claim is made for.
pub const FULL: Extent = Extent { kills: 300, vanish: 20 };

/// The short form that tests run.
pub const SHORT: Extent = Extent { kills: 40, vanish: 8 };

/// A seed for the moments of the kills, to be printed: the clock's nanoseconds.
pub fn seed() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    u64::from(now.subsec_nanos())
}
