//! Which of the programs the running kernel can have, and what is not seen without the others.
//!
//! A program's section names its target (`fentry/skb_consume_udp`, `tp_btf/net_dev_queue`). The kernel's BTF says whether
//! the target exists. Whether it can be probed depends on more (how the kernel was built, who provides it, its verifier), so
//! each program is tried: loaded, attached, and removed at once.
use super::symbols::Symbols;
use super::{OBJECT, open, settings, types};
use crate::Error;
use libbpf_rs::btf::types::{Func, FuncProto, Typedef};
use libbpf_rs::btf::{Btf, ReferencesType};
use serde::Serialize;
use std::net::Ipv4Addr;
use std::path::Path;
use teiji_model::flow::{Matching, Watch};
use teiji_model::guest::{Missing, SECRET_WORDS, Secret};

const OWN: &str = "with some passthrough NICs, it is not known which packet caused an interrupt";

/// Targets that are of use only if the guest matches requests.
const FOR_MATCHING: [&str; 6] = [
    "napi_gro_receive_entry",
    "napi_gro_frags_entry",
    "netif_receive_skb_entry",
    "netif_receive_skb_list_entry",
    "napi_complete_done",
    "napi_consume_skb",
];

/// Targets, what is not seen without each, and whether requests cannot be followed without it.
const TARGETS: &[(&str, &str, bool)] = &[
    ("netif_receive_skb", "packets are not seen when the guest receives them", true),
    ("__udp_enqueue_schedule_skb", "packets are not seen when they are put on a socket's queue", true),
    ("__skb_recv_udp", "packets are not seen when the application reads them", true),
    (
        "skb_consume_udp",
        "the first packet is not seen that is read by a thread that has been waiting for it",
        false,
    ),
    (
        "tcp_rcv_established",
        "requests of TCP are not seen when they are put on a socket's queue, and not divided",
        false,
    ),
    (
        "tcp_rcv_space_adjust",
        "requests of TCP are not seen when the application reads them, and not divided",
        false,
    ),
    ("tcp_destroy_sock", "a segment may be taken for one of an earlier connection", false),
    ("net_dev_queue", "packets are not seen when the application sends them", true),
    ("net_dev_start_xmit", "packets are not seen when they are given to the driver", true),
    ("sched_waking", "when a thread is woken for a packet is not seen", false),
    ("sched_switch", "when a thread that was woken gets a CPU is not seen", false),
    ("sched_process_fork", "which threads were created for a request is not seen", false),
    ("irq_handler_entry", "the NIC's interrupt is not seen", false),
    ("irq_handler_exit", "the NIC's interrupt is not seen", false),
    ("__napi_schedule", "the NIC's interrupt is not seen", false),
    ("__napi_schedule_irqoff", "the interrupt of some NICs is not seen", false),
    ("napi_gro_receive_entry", OWN, false),
    ("napi_gro_frags_entry", OWN, false),
    ("netif_receive_skb_entry", OWN, false),
    ("netif_receive_skb_list_entry", OWN, false),
    ("napi_complete_done", OWN, false),
    (
        "napi_consume_skb",
        "an interrupt for frames that were sent may be taken for a packet's, of passthrough NICs",
        false,
    ),
    ("softirq_entry", "which thread sent a packet is not known", false),
    ("softirq_exit", "which thread sent a packet is not known", false),
    ("inet_sendmsg", "when a thread began to send is not seen (IPv4)", false),
    ("inet6_sendmsg", "when a thread began to send is not seen (IPv6)", false),
];

/// A function, tracepoint or symbol that is used.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Hook {
    /// Its name.
    pub name: String,
    /// `fentry`, `fexit` or `tp_btf` for programs, `symbol` for data.
    pub kind: String,
    /// The program; empty for data.
    #[serde(skip)]
    program: String,
    /// Whether it can be used.
    pub present: bool,
    /// If not: why.
    pub reason: String,
    /// Whether requests cannot be followed without it.
    pub essential: bool,
    /// What is not seen without it.
    pub without: String,
}

/// What the running kernel offers.
#[derive(Clone, Debug)]
pub struct Kernel {
    hooks: Vec<Hook>,
    symbols: types::guest_symbols,
    object: &'static [u8],
}

impl Kernel {
    /// Looks for the targets of all programs, and tries those that may not work. `symbols` are read before, as that may need
    /// more privileges.
    ///
    /// # Errors
    /// [`Error::NoBtf`], [`Error::NotPermitted`], [`Error::Kernel`].
    pub fn look(symbols: &Symbols) -> Result<Kernel, Error> {
        Kernel::look_for(OBJECT, symbols)
    }

    /// The same for other programs, which tests have.
    #[doc(hidden)]
    pub fn look_for(object: &'static [u8], symbols: &Symbols) -> Result<Kernel, Error> {
        if !Path::new("/sys/kernel/btf/vmlinux").exists() {
            return Err(Error::NoBtf);
        }
        let btf = Btf::from_vmlinux().map_err(|e| Error::kernel("read the kernel's BTF", &e))?;
        let mut hooks: Vec<Hook> = open(object)?
            .progs()
            .filter_map(|p| hook(&p.name().to_string_lossy(), &p.section().to_string_lossy(), &btf))
            .collect();
        if symbols.preemption() {
            hooks.retain(|h| !h.name.starts_with("softirq_"));
        }
        // All at once, because each load searches the kernel's BTF. If that fails, one by one, to learn which is refused.
        let present: Vec<String> = hooks.iter().filter(|h| h.present).map(|h| h.program.clone()).collect();
        let all_attach = try_attach(object, symbols.addresses(), &present).is_ok();
        for hook in hooks.iter_mut().filter(|h| h.present && !all_attach) {
            match try_attach(object, symbols.addresses(), std::slice::from_ref(&hook.program)) {
                Ok(()) => {}
                Err(Error::Kernel { reason, .. }) => {
                    hook.present = false;
                    hook.reason = format!(
                        "there, but this kernel does not let it be probed: {reason} (TEIJI_LOG=debug shows libbpf's words)"
                    );
                }
                Err(other) => return Err(other),
            }
        }
        hooks.extend(symbols.hooks());
        Ok(Kernel { hooks, symbols: symbols.addresses(), object })
    }

    /// Everything that is used, and whether it is present.
    pub fn hooks(&self) -> &[Hook] {
        &self.hooks
    }

    /// Whether requests can be followed from the NIC to the application and back.
    pub fn can_follow(&self) -> bool {
        self.hooks.iter().all(|h| h.present || !h.essential)
    }

    /// What is lacking, for the host; each name once.
    pub fn missing(&self) -> Vec<Missing> {
        let mut all: Vec<Missing> = Vec::new();
        for hook in self.hooks.iter().filter(|h| !h.present) {
            if !all.iter().any(|m| m.hook == hook.name) {
                all.push(Missing { hook: hook.name.clone(), without: hook.without.clone() });
            }
        }
        all
    }

    /// Whether to load a program: if the kernel can have all programs of its target, as some make no sense alone, and it is of use.
    pub(super) fn should_load(&self, program: &str, matching: Matching) -> bool {
        self.hooks
            .iter()
            .find(|h| h.program == program)
            .filter(|own| matching != Matching::None || !FOR_MATCHING.contains(&own.name.as_str()))
            .is_some_and(|own| self.hooks.iter().all(|h| h.name != own.name || h.present))
    }

    pub(super) fn object(&self) -> &'static [u8] {
        self.object
    }

    pub(super) fn symbols(&self) -> types::guest_symbols {
        self.symbols
    }

    /// The same kernel as if it lacked a target. For tests of what then happens.
    #[doc(hidden)]
    pub fn without(mut self, name: &str) -> Kernel {
        self.hooks.iter_mut().filter(|h| h.name == name).for_each(|h| h.present = false);
        self
    }
}

fn hook(program: &str, section: &str, btf: &Btf<'_>) -> Option<Hook> {
    let (kind, target) = section.split_once('/')?;
    // Two programs for the two forms of a function.
    let parameters = match program {
        "on_recv" => Some(4),
        "on_recv_noblock" => Some(5),
        _ => None,
    };
    if parameters.is_some_and(|n| parameters_of(btf, target).is_some_and(|has| has != n)) {
        return None;
    }
    let present = match kind {
        "tp_btf" => btf.type_by_name::<Typedef<'_>>(&format!("btf_trace_{target}")).is_some(),
        _ => btf.type_by_name::<Func<'_>>(target).is_some(),
    };
    let what = if kind == "tp_btf" { "tracepoint" } else { "function" };
    let row = TARGETS.iter().find(|(name, _, _)| *name == target);
    let &(_, without, essential) = row.unwrap_or(&("", "a test's probe", false));
    Some(Hook {
        name: target.to_owned(),
        kind: kind.to_owned(),
        program: program.to_owned(),
        present,
        reason: if present { String::new() } else { format!("no such {what}") },
        essential,
        without: without.to_owned(),
    })
}

/// How many parameters a function has.
fn parameters_of(btf: &Btf<'_>, function: &str) -> Option<usize> {
    let prototype = btf.type_by_name::<Func<'_>>(function)?.referenced_type();
    Some(FuncProto::try_from(prototype).ok()?.len())
}

/// Loads these programs, attaches one after the other, and removes them.
fn try_attach(object: &[u8], symbols: types::guest_symbols, wanted: &[String]) -> Result<(), Error> {
    let mut object = open(object)?;
    for mut program in object.progs_mut() {
        let wanted = wanted.iter().any(|name| program.name() == name.as_str());
        program.set_autoload(wanted);
    }
    // With settings that make the verifier process all of the code.
    let own = Some((Ipv4Addr::LOCALHOST, 1).into());
    let watch = Watch { matching: Matching::Echo, ..Watch::default() };
    settings::fill(&mut object, symbols, &Secret([[1; SECRET_WORDS]; 2]), &watch, own)?;
    let object = object.load().map_err(|e| Error::kernel(format!("load {}", wanted.join(", ")), &e))?;
    for program in object.progs_mut().filter(|p| p.autoload()) {
        let name = program.name().to_string_lossy().into_owned();
        drop(program.attach().map_err(|e| Error::kernel(format!("attach {name}"), &e))?);
    }
    Ok(())
}

impl Hook {
    /// Data of the kernel.
    pub(super) fn symbol(name: &str, present: bool, reason: &str, without: &str) -> Hook {
        Hook {
            name: name.to_owned(),
            kind: "symbol".to_owned(),
            program: String::new(),
            present,
            reason: if present { String::new() } else { reason.to_owned() },
            essential: false,
            without: without.to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_program_has_a_row_that_says_what_is_not_seen_without_it() {
        let object = open(OBJECT).unwrap();
        let targets: Vec<String> = object
            .progs()
            .map(|p| p.section().to_string_lossy().split_once('/').unwrap().1.to_owned())
            .collect();
        for target in &targets {
            assert!(TARGETS.iter().any(|(name, _, _)| name == target), "{target}");
        }
        for (name, _, _) in TARGETS {
            assert!(targets.iter().any(|t| t == name), "no program at {name}");
        }
    }
}
