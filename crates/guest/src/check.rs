//! What the running kernel offers: `teiji-guest check`.
use crate::guest_trace::{Hook, Kernel};
use serde::Serialize;
use std::fmt;

/// The answer of `teiji-guest check`, in the shape of `--json`.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// Release of the kernel.
    pub kernel: String,
    /// Whether requests can be followed from the NIC to the application and back.
    pub can_follow: bool,
    /// What is used of the kernel.
    pub hooks: Vec<Hook>,
}

impl Report {
    /// Of this kernel.
    pub fn of(kernel: &Kernel) -> Report {
        Report { kernel: release(), can_follow: kernel.can_follow(), hooks: kernel.hooks().to_vec() }
    }
}

/// The kernel's release (`uname -r`).
pub fn release() -> String {
    nix::sys::utsname::uname()
        .map_or_else(|_| "unknown".into(), |u| u.release().to_string_lossy().into_owned())
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "Linux {}", self.kernel)?;
        for hook in &self.hooks {
            if hook.present {
                writeln!(f, "  ok       {:<8} {}", hook.kind, hook.name)?;
            } else {
                let state = if hook.essential { "MISSING" } else { "missing" };
                writeln!(f, "  {state}  {:<8} {}: {}", hook.kind, hook.name, hook.without)?;
                writeln!(f, "                    {}", hook.reason)?;
            }
        }
        let verdict = if self.can_follow {
            "requests can be followed from the NIC to the application and back"
        } else {
            "requests cannot be followed on their whole path: see MISSING"
        };
        writeln!(f, "{verdict}")
    }
}
