//! What teiji needs of this host, and whether it is present: what `teiji-host` looks for, and the kernel's hooks, in one
//! list.
use teiji_bpf::hooks::KernelTypes;
use teiji_bpf::{path_trace, scx_vcpu};
use teiji_host::kernel;
use teiji_model::host::Requirement;
use teiji_model::text::printable;

/// What each hook is for: target, what does not work without it, whether requests cannot be followed on their whole
/// path without it.
const HOOKS: &[(&str, &str, bool)] = &[
    ("netif_receive_skb", "packets cannot be seen when the host receives them", true),
    ("net_dev_start_xmit", "packets cannot be seen when they are put on a tap or handed to a NIC", true),
    ("dev_hard_start_xmit", "wire_out holds the work of packet sockets (tcpdump) on outgoing packets", false),
    ("netif_rx", "waiting before a software device's receive softirq is not seen", false),
    ("net_dev_queue", "the stages switch_out and qdisc cannot be told apart", true),
    ("qdisc_dequeue", "waiting in a qdisc cannot be told from handing to the NIC", false),
    ("tun_recvmsg", "the stages tap_queue and vhost_rx cannot be told apart; requests are incomplete", true),
    (
        "tun_sendmsg",
        "whose work a guest's frame is, is not known: vhost_tx is not split by what the worker did",
        false,
    ),
    (
        "handle_rx",
        "queue depths leave out the packets that vhost has batched, and signals whose probes at the beginning and the end were both skipped are not noticed",
        false,
    ),
    ("vhost_add_used_and_signal_n", "the stages vhost_rx and irq cannot be told apart", true),
    (
        "vhost_add_used_n",
        "many requests whose packets need no interrupt are left out (arrival_unknown)",
        true,
    ),
    ("kvm_arch_set_irq_inatomic", "an interrupt's VM is not known", true),
    ("kvm_apic_accept_irq", "an interrupt's vCPU is not known", true),
    ("kvm_entry", "guest entries are not seen", true),
    ("kvm_exit", "guest time and exits cannot be told apart", true),
    ("kvm_arch_no_poll", "polling and sleeping of a halted vCPU cannot be told apart", false),
    ("vhost_poll_wakeup", "kicks are not seen: guest and vhost_tx cannot be told apart", true),
    (
        "tun_chr_read_iter",
        "packets on taps that the VMM serves itself (vhost=off) cannot be followed beyond the tap",
        false,
    ),
    (
        "kvm_send_userspace_msi",
        "of taps that the VMM serves itself (vhost=off) the interrupts are not seen: requests are incomplete",
        false,
    ),
    (
        "tun_chr_write_iter",
        "of taps that the VMM serves itself (vhost=off), vhost_tx is not split by what its thread did",
        false,
    ),
    (
        "ioeventfd_write",
        "of taps that the VMM serves itself (vhost=off), guest and vhost_tx cannot be told apart",
        false,
    ),
    ("tap_handle_frame", "packets cannot be seen when they are put on a macvtap", false),
    ("tap_recvmsg", "packets on macvtaps cannot be followed beyond the tap", false),
    ("tap_sendmsg", "of macvtaps, vhost_tx is not split by what the worker did", false),
    ("vfio_msihandler", "interrupts of NICs that were given to VMs are not seen (VFIO)", false),
    ("kfree_skb", "a request that the kernel drops has no place and reason of the drop", false),
    ("sched_switch", "what vCPU threads and vhost workers wait for is not seen", true),
    ("sched_wakeup", "waiting for a CPU cannot be told from sleeping", true),
    ("sched_waking", "who woke the threads of a request is not seen (with --guest)", false),
    ("sched_process_exit", "a thread or process whose id is used again is taken for the former one", false),
    ("sched_migrate_task", "who has the CPU that a thread was moved to while it waited is not seen", false),
];

/// Everything that teiji needs, and whether it is present; in the order in which an operator should fix it.
pub fn requirements() -> Vec<Requirement> {
    let mut all = teiji_host::requirements();
    let hooks = match path_trace::hooks() {
        Ok(hooks) => hooks,
        Err(error) => {
            all.push(Requirement {
                name: "kernel hooks".into(),
                present: false,
                essential: true,
                found: error.to_string(),
                consequence: "nothing can be traced".into(),
                remedy: "use a distribution's kernel of Linux 6.1 or newer, which has BTF, and run as root"
                    .into(),
            });
            return all;
        }
    };
    all.extend(KernelTypes::load().ok().map(|types| bpf_qdiscs(types.has_struct_ops("Qdisc_ops"))));
    all.push(sched_ext(&scx_vcpu::supported(), kernel::sched_ext_scheduler()));
    for &(target, without, essential) in HOOKS {
        let Some(hook) = hooks.iter().find(|h| h.target == target) else { continue };
        all.push(match &hook.found {
            Some(place) => Requirement {
                name: target.into(),
                present: true,
                essential,
                found: format!("{} in {place}", hook.kind),
                consequence: String::new(),
                remedy: String::new(),
            },
            None => Requirement {
                name: target.into(),
                present: false,
                essential,
                found: if hook.forbidden {
                    "there, but this kernel does not let functions be probed (fentry)".into()
                } else {
                    format!("no such {}", if hook.kind == "tp_btf" { "tracepoint" } else { "function" })
                },
                consequence: without.into(),
                remedy: remedy(target, hook.forbidden).into(),
            },
        });
    }
    all.push(packet_probes(path_trace::try_load().err()));
    all
}

/// Whether the kernel accepts the probes: even if their targets exist, the verifier may refuse the programs.
fn packet_probes(refused: Option<teiji_bpf::Error>) -> Requirement {
    let missing = |text: &str| if refused.is_none() { String::new() } else { text.into() };
    Requirement {
        name: "packet probes".into(),
        present: refused.is_none(),
        essential: true,
        consequence: missing("nothing can be traced"),
        remedy: missing(
            "run as root, on a distribution's kernel; if that is so, report it with what TEIJI_LOG=debug teiji doctor says",
        ),
        found: refused.as_ref().map_or("the kernel takes them".into(), |e| e.to_string()),
    }
}

/// Whether the kernel supports qdiscs made of BPF programs, which deadlines on a link need. Tracing does not need them.
fn bpf_qdiscs(present: bool) -> Requirement {
    let missing = |text: &str| if present { String::new() } else { text.into() };
    Requirement {
        name: "BPF qdiscs".into(),
        present,
        essential: false,
        found: if present { "struct_ops Qdisc_ops in kernel" } else { "no struct_ops Qdisc_ops" }.into(),
        consequence: missing(
            "the qdisc teiji_edf cannot be loaded: HFSC keeps the deadlines of channels, and admits fewer (traces and all \
             other settings work)",
        ),
        remedy: missing("run Linux 6.16 or newer, built with CONFIG_NET_SCH_BPF=y"),
    }
}

/// Whether threads of VMs can go by the deadlines of packets, which nothing else needs. `in_use`: the scheduler of sched_ext that is.
fn sched_ext(supported: &Result<(), teiji_bpf::Error>, in_use: Option<String>) -> Requirement {
    use teiji_bpf::Error::Missing;
    let other = in_use.filter(|name| name != scx_vcpu::NAME).map(|name| printable(&name));
    let present = supported.is_ok() && other.is_none();
    let missing = |text: &str| if present { String::new() } else { text.into() };
    Requirement {
        name: "sched_ext".into(),
        present,
        essential: false,
        found: match (&other, supported) {
            (Some(other), _) => format!("the scheduler {other} is in use"),
            (None, Ok(())) => "in kernel, as of Linux 6.19 or newer".into(),
            (None, Err(Missing { what, .. })) => format!("{what} is missing"),
            (None, Err(why)) => why.to_string(),
        },
        consequence: missing(if other.is_some() {
            "a policy with class = \"packets\" is refused: the kernel has one scheduler of sched_ext at a time"
        } else {
            "with class = \"packets\", threads of VMs do not go by the deadlines of packets: SCHED_DEADLINE or SCHED_FIFO takes \
             the place"
        }),
        remedy: missing(if other.is_some() {
            "stop that scheduler, as with `systemctl stop scx`"
        } else {
            "run Linux 6.19 or newer, but not 7.1, built with CONFIG_SCHED_CLASS_EXT=y"
        }),
    }
}

fn remedy(target: &str, forbidden: bool) -> &'static str {
    if forbidden {
        return "use a distribution's kernel; run `teiji` in the host's initial user namespace";
    }
    match target {
        "handle_rx" | "vhost_add_used_and_signal_n" | "vhost_add_used_n" | "vhost_poll_wakeup" => {
            "modprobe vhost_net"
        }
        t if t.starts_with("kvm") => "modprobe kvm_intel or kvm_amd",
        "ioeventfd_write" => "modprobe kvm_intel or kvm_amd",
        t if t.starts_with("tun_") => "modprobe tun",
        t if t.starts_with("tap_") => "modprobe tap",
        "vfio_msihandler" => "modprobe vfio_pci",
        _ => "use a distribution's kernel of Linux 6.1 or newer",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bpf_qdiscs_are_named_with_what_follows_from_their_absence() {
        let (there, absent) = (bpf_qdiscs(true), bpf_qdiscs(false));
        assert!(there.present && there.consequence.is_empty() && there.remedy.is_empty());
        assert!(!absent.present && !absent.essential);
        assert!(absent.consequence.contains("deadlines") && absent.remedy.contains("6.16"));
        let here = KernelTypes::load().expect("this machine's kernel has BTF").has_struct_ops("Qdisc_ops");
        assert!(requirements().contains(&bpf_qdiscs(here)));
    }

    #[test]
    fn what_deadlines_of_threads_lack_is_named() {
        let own = sched_ext(&Ok(()), Some(scx_vcpu::NAME.into()));
        assert!(own.present && own.consequence.is_empty() && own.remedy.is_empty());
        let taken = sched_ext(&Ok(()), Some("lavd\u{1b}".into()));
        assert!(
            !taken.present && !taken.essential && taken.found.contains("lavd\\u{1b} is in use"),
            "{taken:?}"
        );
        let what = "sched_ext as of Linux 6.19".to_owned();
        let old = sched_ext(&Err(teiji_bpf::Error::Missing { what, consequence: String::new() }), None);
        assert_eq!(old.found, "sched_ext as of Linux 6.19 is missing");
        assert!(
            !old.present && old.consequence.contains("SCHED_FIFO") && old.remedy.contains("6.19"),
            "{old:?}"
        );
        assert!(requirements().contains(&sched_ext(&scx_vcpu::supported(), kernel::sched_ext_scheduler())));
    }

    #[test]
    fn probes_that_the_kernel_refuses_are_named_with_its_reason() {
        let refused = packet_probes(Some(teiji_bpf::Error::NotPermitted));
        assert!(!refused.present && refused.essential && refused.found.contains("CAP_BPF"));
        assert!(refused.consequence.contains("nothing") && refused.remedy.contains("root"));
        let taken = packet_probes(None);
        assert!(taken.present && taken.consequence.is_empty() && taken.remedy.is_empty());
    }

    #[test]
    fn every_hook_of_the_probes_is_explained_and_the_other_way_round() {
        let hooks = path_trace::hooks().expect("this machine's kernel has BTF");
        for h in &hooks {
            assert!(HOOKS.iter().any(|(t, ..)| *t == h.target), "{} is not explained", h.target);
        }
        for (t, ..) in HOOKS {
            assert!(hooks.iter().any(|h| h.target == *t), "{t} is explained and not used");
        }
    }
}
