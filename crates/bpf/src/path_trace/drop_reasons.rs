//! The kernel's names for its reasons to drop packets.
//!
//! `enum skb_drop_reason` has different values in each kernel, so the names are read from the running one. The upper
//! half of a reason is the subsystem that defines it. Only the reasons of the core (subsystem 0) are in that enum; for
//! others the name has the subsystem and the number.
use crate::hooks::KernelTypes;
use std::collections::HashMap;

const REASON: &str = "SKB_DROP_REASON_";
const SUBSYSTEM: &str = "SKB_DROP_REASON_SUBSYS_";

/// See the module.
pub(super) struct Names {
    reasons: HashMap<u32, String>,
    subsystems: HashMap<u32, String>,
}

impl Names {
    pub(super) fn read(kernel: &KernelTypes) -> Names {
        let of = |list: &str, prefix: &str| {
            let all = kernel.enumerators(list).into_iter();
            all.map(|(n, name)| (n, name.strip_prefix(prefix).map_or(name.clone(), str::to_owned))).collect()
        };
        Names { reasons: of("skb_drop_reason", REASON), subsystems: of("skb_drop_reason_subsys", SUBSYSTEM) }
    }

    pub(super) fn name(&self, why: u32) -> String {
        match (why >> 16, self.reasons.get(&why)) {
            (0, Some(name)) => name.clone(),
            (0, None) => format!("reason {why}"),
            (subsystem, _) => match self.subsystems.get(&subsystem) {
                Some(name) => format!("{name} {}", why & 0xffff),
                None => format!("reason {} of subsystem {subsystem}", why & 0xffff),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_have_the_running_kernels_names() {
        let names = Names::read(&KernelTypes::load().unwrap());
        let all: Vec<&str> = names.reasons.values().map(String::as_str).collect();
        for wanted in ["NOT_SPECIFIED", "FULL_RING", "QDISC_DROP", "NETFILTER_DROP"] {
            assert!(all.contains(&wanted), "{wanted}: {all:?}");
        }
        assert_eq!(names.name(0xffff), "reason 65535");
        let other =
            Names { reasons: HashMap::new(), subsystems: HashMap::from([(3, "OPENVSWITCH".to_owned())]) };
        assert_eq!(other.name(3 << 16 | 5), "OPENVSWITCH 5");
        assert_eq!(other.name(9 << 16 | 5), "reason 5 of subsystem 9");
    }
}
