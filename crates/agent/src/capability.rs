//! What this host can do: discovery's findings and the kernel's hooks, in one list.
use teiji_bpf::path_trace;
use teiji_model::host::Capability;

/// What each hook is for: target, what does not work without it, whether nothing works without it.
const HOOKS: &[(&str, &str, bool)] = &[
    ("netif_receive_skb", "packets cannot be seen when the host receives them", true),
    ("net_dev_start_xmit", "packets cannot be seen when they are put on a tap or handed to a NIC", true),
    ("dev_hard_start_xmit", "wire_out holds the work of packet sockets (tcpdump) on outgoing packets", false),
    ("netif_rx", "waiting before a software device's receive softirq is not seen", false),
    ("net_dev_queue", "the stages switch_out and qdisc cannot be told apart", true),
    ("qdisc_dequeue", "waiting in a qdisc cannot be told from handing to the NIC", false),
    ("tun_recvmsg", "the stages tap_queue and vhost_rx cannot be told apart; requests are incomplete", true),
    ("handle_rx", "queue depths leave out the packets that vhost has batched", false),
    ("vhost_add_used_and_signal_n", "the stages vhost_rx and irq cannot be told apart", true),
    ("kvm_arch_set_irq_inatomic", "an interrupt's VM is not known", true),
    ("kvm_apic_accept_irq", "an interrupt's vCPU is not known", true),
    ("kvm_inj_virq", "the entry with an interrupt is not seen", true),
    ("kvm_entry", "guest entries are not seen", true),
    ("kvm_exit", "guest time and exits cannot be told apart", true),
    ("kvm_arch_no_poll", "polling and sleeping of a halted vCPU cannot be told apart", false),
    ("vhost_poll_wakeup", "kicks are not seen: guest and vhost_tx cannot be told apart", true),
    ("sched_switch", "what vCPU threads and vhost workers wait for is not seen", true),
    ("sched_wakeup", "waiting for a CPU cannot be told from sleeping", true),
];

/// Everything that teiji needs, and whether it is there; in the order in which to mend it.
pub fn capabilities() -> Vec<Capability> {
    let mut all = teiji_host::capabilities();
    let hooks = match path_trace::hooks() {
        Ok(hooks) => hooks,
        Err(error) => {
            all.push(Capability {
                name: "kernel hooks".into(),
                present: false,
                essential: true,
                found: error.to_string(),
                consequence: "nothing can be traced".into(),
                remedy: "see above".into(),
            });
            return all;
        }
    };
    for &(target, without, essential) in HOOKS {
        let Some(hook) = hooks.iter().find(|h| h.target == target) else { continue };
        all.push(match &hook.found {
            Some(place) => Capability {
                name: target.into(),
                present: true,
                essential,
                found: format!("{} in {place}", hook.kind),
                consequence: String::new(),
                remedy: String::new(),
            },
            None => Capability {
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
    all
}

fn remedy(target: &str, forbidden: bool) -> &'static str {
    if forbidden {
        return "use a distribution's kernel; run `teiji` in the host's initial user namespace";
    }
    match target {
        "handle_rx" | "vhost_add_used_and_signal_n" | "vhost_poll_wakeup" => "modprobe vhost_net",
        t if t.starts_with("kvm") => "modprobe kvm_intel or kvm_amd",
        "tun_recvmsg" => "modprobe tun",
        _ => "use a distribution's kernel of Linux 6.1 or newer",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
