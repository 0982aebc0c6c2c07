//! Turns the keys of a section into its part of the policy, and finds contradictions between them.

use super::keys::{DIRECT_KEYS, Section};
use super::section::Keys;
use super::value::Value;
use teiji_model::cpus::CpuSet;
use teiji_model::policy::{
    Auto, ChannelPolicy, DEFAULT_PRIORITY, DirectSetting, Endpoint, HostPolicy, LinkPolicy, Located,
    PacketClass, Subject, VmClass, VmPolicy,
};
use teiji_model::resource::{Latency, Scheduling};

fn cpus(keys: &Keys<'_, '_>, name: &str) -> Option<Located<CpuSet>> {
    keys.get(name, |value| match value {
        Value::Cpus(cpus) => Some(cpus),
        _ => None,
    })
}

fn endpoint(keys: &Keys<'_, '_>, name: &str) -> Option<Located<Endpoint>> {
    keys.get(name, |value| match value {
        Value::Endpoint(endpoint) => Some(endpoint),
        _ => None,
    })
}

/// The keys of a section that set resources to the value written.
pub(super) fn direct(keys: &Keys<'_, '_>, section: &Section, subject: &Subject) -> Vec<DirectSetting> {
    let written = DIRECT_KEYS.iter().filter(|sets| sets.section == section.name).filter_map(|sets| {
        let value = keys.get(sets.key, sets.value)?;
        Some(DirectSetting {
            subject: subject.clone(),
            key: sets.key,
            kind: sets.kind,
            value,
            cost: sets.cost,
        })
    });
    written.collect()
}

/// `[host]`.
pub(super) fn host(keys: &mut Keys<'_, '_>) -> HostPolicy {
    let halt_poll = keys.get("halt_poll", |value| match value {
        Value::Number(ns) => Some(ns),
        Value::Word("off") => Some(0),
        _ => None,
    });
    if let Some(Located { value: Value::Number(ns), .. }) = keys.value("cpu_latency")
        && ns % 1000 != 0
    {
        let message = format!("the kernel counts `cpu_latency` in whole µs; write {}us", ns.div_ceil(1000));
        keys.report("cpu_latency", message);
    }
    let cpu_latency = keys.get("cpu_latency", |value| match value {
        Value::Number(ns) => u32::try_from(ns / 1000).ok().map(Latency::AtMost),
        Value::Word("any") => Some(Latency::Any),
        Value::Word("none") => Some(Latency::None),
        _ => None,
    });
    if keys.keys_known() && keys.key("cpu_latency").is_none() {
        let message = "`cpu_latency_cpus` needs `cpu_latency`, which is missing; write that too";
        keys.report("cpu_latency_cpus", message.to_owned());
    }
    let vm_users = keys.get("vm_users", |value| match value {
        Value::Users(users) => Some(users),
        _ => None,
    });
    HostPolicy { halt_poll, cpu_latency, cpu_latency_cpus: cpus(keys, "cpu_latency_cpus"), vm_users }
}

/// `[link.NAME]`.
pub(super) fn link(keys: &mut Keys<'_, '_>, name: String) -> LinkPolicy {
    let slack = keys.get("slack", |value| match value {
        Value::Number(ns) => Some(Auto::Nanoseconds(ns)),
        Value::Word("auto") => Some(Auto::Auto),
        _ => None,
    });
    LinkPolicy {
        name: keys.name(name),
        irq_cpus: cpus(keys, "irq_cpus"),
        rate: keys.number("rate"),
        slack,
        max_packet: keys.number("max_packet"),
        realtime_max: keys.number("realtime_max"),
    }
}

/// `[vm.NAME]`.
pub(super) fn vm(keys: &mut Keys<'_, '_>, name: String) -> VmPolicy {
    VmPolicy {
        name: keys.name(name),
        class: class(keys),
        vcpu_cpus: cpus(keys, "vcpu_cpus"),
        worker_cpus: cpus(keys, "worker_cpus"),
        weight: keys.number("weight"),
        quota: keys.get("quota", |value| match value {
            Value::Number(thousandths) => u32::try_from(thousandths).ok().map(Some),
            Value::Word("none") => Some(None),
            _ => None,
        }),
    }
}

/// `class`, with the keys that belong to it.
fn class(keys: &mut Keys<'_, '_>) -> Option<Located<VmClass>> {
    let class = keys.get("class", |value| match value {
        Value::Word(word) => Some(word),
        _ => None,
    });
    let word = class.as_ref().map(|class| class.value);
    // A wrong class is reported elsewhere, and a class on a line that could not be parsed may be any.
    if word.is_some() || (keys.keys_known() && keys.key("class").is_none()) {
        const TIMES: &[&str] = &["deadline", "packets"];
        for (key, of) in
            [("priority", &["realtime"][..]), ("runtime", TIMES), ("deadline", TIMES), ("period", TIMES)]
        {
            if word.is_none_or(|word| !of.contains(&word)) {
                let of: Vec<String> = of.iter().map(|class| format!("class = \"{class}\"")).collect();
                let of = of.join(" or ");
                keys.report(key, format!("`{key}` is only valid with {of}; write that, or remove `{key}`"));
            }
        }
    }
    let Located { value: word, location } = class?;
    let value = match word {
        "fair" => VmClass::Threads(Scheduling::Other { nice: 0 }),
        "realtime" => {
            let priority = keys.number("priority").map_or(DEFAULT_PRIORITY, |at| at.value);
            VmClass::Threads(Scheduling::Fifo { priority })
        }
        "deadline" => {
            for key in ["vcpu_cpus", "worker_cpus"] {
                // sched_setattr(2), EPERM; Documentation/scheduler/sched-deadline.rst, section 5.
                let why = "with class = \"deadline\": Linux does not pin such threads to CPUs";
                let instead = "remove it, or write class = \"packets\" or \"realtime\"";
                keys.report(key, format!("`{key}` cannot be used {why}; {instead}"));
            }
            let PacketClass { runtime, deadline, period } = times(keys, word)?;
            VmClass::Threads(Scheduling::Deadline { runtime, deadline, period })
        }
        "packets" => VmClass::Packets(times(keys, word)?),
        _ => return None,
    };
    Some(Located { value, location })
}

/// `runtime`, `deadline` and `period`, which the class of this name needs.
fn times(keys: &mut Keys<'_, '_>, class: &str) -> Option<PacketClass> {
    for key in ["runtime", "period"] {
        if keys.keys_known() && keys.key(key).is_none() {
            let message = format!("class = \"{class}\" needs `{key}`; write a time, as in {key} = \"10ms\"");
            keys.report("class", message);
        }
    }
    let runtime = keys.number("runtime").map(|at| at.value);
    let period = keys.number("period").map(|at| at.value);
    let deadline = match keys.key("deadline") {
        Some(_) => keys.number("deadline").map(|at| at.value),
        None => period,
    };
    let order = "write them so that runtime ≤ deadline ≤ period";
    if let (Some(runtime), Some(deadline)) = (runtime, deadline)
        && runtime > deadline
    {
        let than = if keys.key("deadline").is_some() { "deadline" } else { "period" };
        keys.report("runtime", format!("`runtime` is longer than `{than}`; {order}"));
    }
    if let (Some(deadline), Some(period)) = (deadline, period)
        && deadline > period
    {
        keys.report("deadline", format!("`deadline` is longer than `period`; {order}"));
    }
    Some(PacketClass { runtime: runtime?, deadline: deadline?, period: period? })
}

/// `[channel.NAME]`; `None` if a required key is missing or wrong.
pub(super) fn channel(keys: &mut Keys<'_, '_>, name: String) -> Option<ChannelPolicy> {
    let (from, to) = (endpoint(keys, "from"), endpoint(keys, "to"));
    if let (Some(from), Some(to)) = (&from, &to)
        && from.value.address.is_ipv4() != to.value.address.is_ipv4()
    {
        let message = "one of `from` and `to` is IPv4 and the other IPv6, which no packet matches; write both in \
                       one IP version";
        keys.report("to", message.to_owned());
    }
    let link = keys.get("link", |value| match value {
        Value::Device(name) => Some(name),
        _ => None,
    });
    let proto = keys.get("proto", |value| match value {
        Value::Word("udp") => Some(17),
        Value::Word("tcp") => Some(6),
        _ => None,
    });
    Some(ChannelPolicy {
        name: keys.name(name),
        link,
        from,
        to,
        proto,
        deadline: keys.number("deadline")?,
        min_rate: keys.number("min_rate")?,
        burst: keys.number("burst"),
        vm: keys.get("vm", |value| match value {
            Value::Vm(name) => Some(name),
            _ => None,
        }),
    })
}

/// `hard` and `weight` of `[vf.LINK.N]`.
pub(super) fn vf(keys: &mut Keys<'_, '_>) -> (Option<Located<u64>>, Option<Located<u32>>) {
    (keys.number("hard"), keys.number("weight"))
}
