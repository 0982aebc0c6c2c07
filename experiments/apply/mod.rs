//! Experiment `apply`: whenever teiji is killed, every setting of the host ends as it was or as the policy asks. See
//! README.md beside this file.
//!
//! | module | does |
//! | --- | --- |
//! | [`test_host`] | a KVM host with a VM, a NIC, control groups, and the policy for them |
//! | [`kills`] | rounds in which teiji or a VM is killed, and their results |
//! | `driver.py` | kills, and reads the settings without teiji; runs in the lab host |

pub mod kills;
pub mod test_host;

/// How much of the experiment is run.
#[derive(Clone, Copy, Debug)]
pub struct Extent {
    /// Applies that are killed; as many rollbacks are killed too.
    pub kills: u32,
    /// Applies that are not committed because the VM is killed.
    pub vanish: u32,
}

/// The extent that the README's claim is made for.
pub const FULL: Extent = Extent { kills: 300, vanish: 20 };

/// The short form that tests run.
pub const SHORT: Extent = Extent { kills: 20, vanish: 8 };

/// A seed for the moments of the kills, from the clock's nanoseconds; it is printed.
pub fn seed() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    u64::from(now.subsec_nanos())
}
