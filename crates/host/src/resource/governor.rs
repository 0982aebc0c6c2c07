//! The frequency governor of a group of CPUs: `/sys/devices/system/cpu/cpufreq/policy<n>/scaling_governor`
//! (Documentation/admin-guide/pm/cpufreq.rst, drivers/cpufreq/cpufreq.c).
//!
//! A governor that no policy uses any more loses its tunables: the kernel frees those of ondemand and conservative
//! (`cpufreq_dbs_governor_exit()`) and of schedutil (`sugov_exit()`), and `userspace` begins with the present frequency
//! (`cpufreq_userspace_policy_start()`). The first three work with their defaults, so they can be left and restored;
//! `userspace` without its speed is another setting, so it is never left.
//!
//! If all CPUs of a policy are offline, its files return EBUSY (`show()`, `store()`). When one is online again, the
//! kernel chooses the governor that the policy had before (`cpufreq_init_policy()`).

use super::{Access, Facts, errors, file};
use crate::root::Root;
use nix::errno::Errno;
use teiji_model::host::Requirement;
use teiji_model::resource::{Resource, ResourceError, ResourceKind, Resources, Value};

const POLICIES: &str = "sys/devices/system/cpu/cpufreq";
/// Longest name of a governor (`CPUFREQ_NAME_LEN`).
const LONGEST: usize = 16;

/// The governor that keeps the speed that somebody sets (`scaling_setspeed`).
const USERSPACE: &str = "userspace";

pub(super) struct Governor;

impl Access for Governor {
    fn kind(&self) -> ResourceKind {
        ResourceKind::Governor
    }

    fn observe(&self, facts: &Facts<'_>, found: &mut Resources) {
        for resource in policies(facts.root).into_iter().map(Resource::Governor) {
            let read = self.read(facts.root, &resource).and_then(restorable);
            found.record(resource, read);
        }
    }

    fn read(&self, root: &Root, resource: &Resource) -> Result<Value, ResourceError> {
        let Resource::Governor(policy) = resource else { return Err(errors::no_such_value()) };
        let text = file::read(root, &path(*policy)).map_err(|errno| failed(errno, *policy))?;
        let is_name = (1..LONGEST).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_graphic());
        if is_name { Ok(Value::Word(text)) } else { Err(errors::unexpected(&text)) }
    }

    fn write(&self, root: &Root, resource: &Resource, value: &Value) -> Result<(), ResourceError> {
        let (Resource::Governor(policy), Value::Word(wanted)) = (resource, value) else {
            return Err(errors::no_such_value());
        };
        file::write(root, &path(*policy), wanted).map_err(|errno| match errno {
            Errno::EINVAL => {
                let there = available(root, *policy);
                errors::refused(
                    errno,
                    "the CPU's frequency driver has no such governor",
                    &format!("it has {there}"),
                )
            }
            // Reading tells whether the policy is offline.
            Errno::EBUSY if file::read(root, &path(*policy)) != Err(Errno::EBUSY) => {
                errors::refused(errno, "the kernel cannot change it now", "try again")
            }
            other => failed(other, *policy),
        })
    }

    fn requirement(&self, root: &Root) -> Option<Requirement> {
        let first = policies(root).first().copied();
        let missing = |text: &str| if first.is_none() { text.to_owned() } else { String::new() };
        Some(Requirement {
            name: "CPU frequency governors".into(),
            present: first.is_some(),
            essential: false,
            found: first
                .map_or_else(|| format!("no cpufreq policy in /{POLICIES}"), |first| available(root, first)),
            consequence: missing(
                "`governor` of [host] has no effect: the firmware or a hypervisor chooses frequencies",
            ),
            remedy: missing(
                "let the operating system control the CPUs' frequency in the firmware's settings",
            ),
        })
    }
}

/// The value, if the governor can be left and restored.
fn restorable(value: Value) -> Result<Value, ResourceError> {
    match value {
        Value::Word(word) if word == USERSPACE => Err(errors::unsupported(
            "its governor is `userspace`, and the kernel forgets the speed that somebody has set with it, so it could not \
             be restored; choose another governor first (`cpupower frequency-set -g schedutil`)",
        )),
        value => Ok(value),
    }
}

/// The cpufreq policies: groups of CPUs with a common frequency, by their numbers.
fn policies(root: &Root) -> Vec<u32> {
    let names = root.names(POLICIES);
    let mut all: Vec<u32> =
        names.iter().filter_map(|name| name.strip_prefix("policy")?.parse().ok()).collect();
    all.sort_unstable();
    all
}

/// The available governors, as the kernel lists them.
fn available(root: &Root, policy: u32) -> String {
    let text =
        root.text(&format!("{POLICIES}/policy{policy}/scaling_available_governors")).unwrap_or_default();
    let names: Vec<&str> = text.split_whitespace().collect();
    if names.is_empty() { "no governors".to_owned() } else { names.join(", ") }
}

fn path(policy: u32) -> String {
    format!("{POLICIES}/policy{policy}/scaling_governor")
}

fn failed(errno: Errno, policy: u32) -> ResourceError {
    match errno {
        Errno::EBUSY => ResourceError::Offline(
            "all CPUs of the cpufreq policy are offline (EBUSY); bring one of them online first".into(),
        ),
        other => errors::failed(other, &format!("cpufreq policy {policy}")),
    }
}
