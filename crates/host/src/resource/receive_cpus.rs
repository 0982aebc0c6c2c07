//! Receive packet steering: the CPUs that process the packets of a device's receive queue,
//! `/sys/class/net/<device>/queues/rx-<n>/rps_cpus` (Documentation/networking/scaling.rst, net/core/net-sysfs.c). If
//! the set is empty, the CPU that receives a packet also processes it. The packets that a tap receives come from its
//! VM.

use super::{Access, Facts, errors, file};
use crate::net;
use crate::root::{Dir, Root};
use nix::errno::Errno;
use std::fmt::Write;
use teiji_model::cpus::{CpuSet, MAX_CPUS};
use teiji_model::host::Requirement;
use teiji_model::qdisc::Device;
use teiji_model::resource::{Resource, ResourceError, ResourceKind, Resources, Value};

pub(super) struct ReceiveCpus;

impl Access for ReceiveCpus {
    fn kind(&self) -> ResourceKind {
        ResourceKind::ReceiveCpus
    }

    fn observe(&self, facts: &Facts<'_>, found: &mut Resources) {
        for device in facts.links.iter().map(|link| link.device()) {
            let (name, dir) = match present(facts.root, &device) {
                Ok(found) => found,
                Err(why) => {
                    found.record(Resource::ReceiveCpus(device, 0), Err(why));
                    continue;
                }
            };
            // Queues are numbered without gaps (`net_rx_queue_update_kobjects()`): the first that is not there ends them.
            for queue in 0.. {
                let text = file::read_in(&dir, &file_of(queue));
                let ended = text.as_ref().err().is_some_and(|errno| is_last(*errno, &dir, queue));
                let read = text.map_err(|errno| failed(errno, &name, queue)).and_then(|text| value(&text));
                found.record(Resource::ReceiveCpus(device.clone(), queue), read);
                if ended {
                    break;
                }
            }
        }
    }

    fn read(&self, root: &Root, resource: &Resource) -> Result<Value, ResourceError> {
        let Resource::ReceiveCpus(device, queue) = resource else { return Err(errors::no_such_value()) };
        let (name, dir) = present(root, device)?;
        let text = file::read_in(&dir, &file_of(*queue)).map_err(|errno| failed(errno, &name, *queue))?;
        value(&text)
    }

    fn write(&self, root: &Root, resource: &Resource, value: &Value) -> Result<(), ResourceError> {
        let (Resource::ReceiveCpus(device, queue), Value::Cpus(cpus)) = (resource, value) else {
            return Err(errors::no_such_value());
        };
        let (name, _) = present(root, device)?;
        file::write(root, &path(&name, *queue), &mask(cpus)).map_err(|errno| match errno {
            Errno::EINVAL | Errno::EOVERFLOW => errors::refused(
                errno,
                "one of those CPUs does not exist, or isolcpus= or nohz_full= excludes all of them",
                "name others",
            ),
            other => failed(other, &name, *queue),
        })
    }

    fn requirement(&self, root: &Root) -> Option<Requirement> {
        let present = root.exists("sys/class/net/lo/queues/rx-0/rps_cpus");
        let missing = |text: &str| if present { String::new() } else { text.to_owned() };
        Some(Requirement {
            name: "receive packet steering".into(),
            present,
            essential: false,
            found: if present { "there" } else { "no rps_cpus in /sys/class/net/lo/queues/rx-0" }.into(),
            consequence: missing("`rps_cpus` of links and VMs has no effect"),
            remedy: missing("run a kernel with CONFIG_RPS=y and CONFIG_SYSFS=y, as distributions' are"),
        })
    }
}

/// The device's present name, and its directory. It may have been renamed, and a later device may have its former name.
fn present(root: &Root, device: &Device) -> Result<(String, Dir), ResourceError> {
    net::dir_of(root, device).map_err(|errno| match errno {
        Errno::EXDEV => errors::unsupported(
            "/sys shows the devices of another network namespace; run teiji in the namespace that /sys was mounted in, \
             or by `ip netns exec`, which mounts another /sys",
        ),
        errno => errors::failed(errno, &format!("device {device}")),
    })
}

/// Whether there are no queues from this one on, which cannot be read. Any other reason is its own, and says nothing of the
/// next, but for a directory that cannot be looked into: it has no end.
fn is_last(errno: Errno, dir: &Dir, queue: u32) -> bool {
    matches!(errno, Errno::ENOENT | Errno::ENODEV) || !dir.exists(&format!("queues/rx-{queue}"))
}

/// The value that the text of a file stands for.
fn value(text: &str) -> Result<Value, ResourceError> {
    parse(text).map(Value::Cpus).ok_or_else(|| errors::unexpected(text))
}

fn failed(errno: Errno, device: &str, queue: u32) -> ResourceError {
    errors::failed(errno, &format!("receive queue {queue} of {device}"))
}

fn path(device: &str, queue: u32) -> String {
    format!("sys/class/net/{device}/{}", file_of(queue))
}

/// The file of a queue in the directory of its device.
fn file_of(queue: u32) -> String {
    format!("queues/rx-{queue}/rps_cpus")
}

/// Parses `00000001,00000003`: words of 32 bits, the highest CPUs first.
fn parse(text: &str) -> Option<CpuSet> {
    let mut cpus = Vec::new();
    for (word, text) in (0u32..).zip(text.trim().rsplit(',')) {
        let bits = u32::from_str_radix(text, 16).ok()?;
        let first = word.checked_mul(32).filter(|first| *first < MAX_CPUS)?;
        cpus.extend((0..32).filter(|bit| bits >> bit & 1 == 1).map(|bit| first + bit));
    }
    Some(cpus.into_iter().collect())
}

/// The mask of these CPUs in the same format.
fn mask(cpus: &CpuSet) -> String {
    let mut words = vec![0u32; cpus.iter().max().map_or(1, |last| last as usize / 32 + 1)];
    for cpu in cpus.iter() {
        words[cpu as usize / 32] |= 1 << (cpu % 32);
    }
    words.iter().rev().enumerate().fold(String::new(), |mut text, (i, word)| {
        // Writing to a String cannot fail.
        let _ = if i == 0 { write!(text, "{word:x}") } else { write!(text, ",{word:08x}") };
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn masks_are_read_and_written_as_the_kernel_does() {
        for (text, cpus, written) in [
            ("0", "", "0"),
            ("00000000,0000000f", "0-3", "f"),
            ("1,00000000", "32", "1,00000000"),
            ("80000001,00000000,00000100", "8,64,95", "80000001,00000000,00000100"),
        ] {
            let set = parse(text).unwrap();
            assert_eq!((set.to_string(), mask(&set)), (cpus.to_owned(), written.to_owned()));
            assert_eq!(parse(&mask(&set)), Some(set));
        }
        for wrong in ["", "x", "1,,1", "100000000", &"1,".repeat(300)] {
            assert_eq!(parse(wrong), None, "{wrong}");
        }
    }
}
