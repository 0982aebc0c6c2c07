//! Random hosts and policies, and the state of a host after settings have changed. The tests of the engine use them,
//! too.
#![allow(dead_code, clippy::unwrap_used)]

use proptest::collection::vec;
use proptest::option::{of, weighted};
use proptest::prelude::*;
use std::collections::BTreeMap;
use teiji_model::cpus::CpuSet;
use teiji_model::host::{Identity, NamedBy, Vm};
use teiji_model::observed::{DeadlineSupport, LinkKind, Observed, ObservedLink, ObservedVm, SchedExt};
use teiji_model::plan::own_group;
use teiji_model::policy::{
    Auto, ChannelPolicy, DirectSetting, Endpoint, HostPolicy, LinkPolicy, Located, PacketClass, Policy,
    SourceLocation, Subject, VmClass, VmPolicy,
};
use teiji_model::qdisc::{ExistingQdisc, RootQdisc};
use teiji_model::resource::{Latency, Quota, Resource, ResourceKind, Scheduling, Task, Value};

/// A place in a policy file.
pub fn at<T>(value: T, line: usize) -> Located<T> {
    Located { value, location: SourceLocation { file: "p.toml".into(), line, column: 1 } }
}

pub fn cpus(list: &str) -> CpuSet {
    list.parse().unwrap()
}

pub fn task(id: u32) -> Task {
    Task { id, started: u64::from(id) * 7 }
}

pub const DEFAULT: Scheduling = Scheduling::Other { nice: 0 };

/// A VM whose tasks are numbered from `pid` on: process, vCPUs, workers.
pub fn vm(name: &str, pid: u32, vcpus: u32, workers: u32, group: Option<&str>, shared: bool) -> ObservedVm {
    ObservedVm {
        vm: Vm {
            name: name.into(),
            pid,
            vcpus: Vec::new(),
            workers: Vec::new(),
            nics: Vec::new(),
            memory: None,
            memory_nodes: Vec::new(),
            given: Vec::new(),
        },
        identity: of_user("root", 0),
        process: task(pid),
        vcpus: (pid + 1..=pid + vcpus).map(task).collect(),
        workers: (pid + vcpus + 1..=pid + vcpus + workers).map(task).collect(),
        group: group.map(str::to_owned),
        group_shared: shared,
    }
}

/// The identity of a VM that names itself.
pub fn of_user(user: &str, uid: u32) -> Identity {
    Identity {
        uid: Some(uid),
        user: Some(user.into()),
        named_by: NamedBy::Itself,
        started: None,
        uuid: None,
        unconfirmed: false,
    }
}

/// A NIC with these interrupts.
pub fn nic(name: &str, irqs: Vec<u32>) -> ObservedLink {
    let speed = Some(1_000_000_000);
    ObservedLink { name: name.into(), index: 2, kind: LinkKind::Nic, irqs, speed, mtu: 1500, guests: false }
}

/// The kernel's default qdisc.
pub fn existing() -> RootQdisc {
    RootQdisc::Existing(Box::new(ExistingQdisc {
        kind: "fq_codel".into(),
        chosen: false,
        options: Vec::new(),
    }))
}

/// A section of a link that asks for nothing.
pub fn link(name: &str, line: usize) -> LinkPolicy {
    LinkPolicy {
        name: at(name.to_owned(), line),
        irq_cpus: None,
        rate: None,
        slack: None,
        max_packet: None,
        realtime_max: None,
    }
}

/// A channel to 10.0.0.1 and this port; its deadline is on the next line, its rate on the one after.
pub fn channel(name: &str, line: usize, port: u16, deadline: u64, rate: u64) -> ChannelPolicy {
    let to = Endpoint { address: [10, 0, 0, 1].into(), prefix: 32, port: Some(port) };
    ChannelPolicy {
        name: at(name.to_owned(), line),
        link: None,
        from: None,
        to: Some(at(to, line)),
        proto: Some(at(17, line)),
        deadline: at(deadline, line + 1),
        min_rate: at(rate, line + 2),
        burst: None,
        vm: None,
    }
}

/// A host with these VMs and links, and with the kernel's default settings.
pub fn host(online: &str, vms: Vec<ObservedVm>, links: Vec<ObservedLink>) -> Observed {
    let online = cpus(online);
    let mut settings = BTreeMap::from([(Resource::HaltPoll, Value::Nanoseconds(200_000))]);
    settings.extend(online.iter().map(|cpu| (Resource::CpuLatency(cpu), Value::Latency(Latency::Any))));
    settings.insert(Resource::Governor(0), Value::Word("schedutil".into()));
    for link in &links {
        settings.insert(Resource::ReceiveCpus(link.device(), 0), Value::Cpus(CpuSet::default()));
        settings.insert(Resource::RootQdisc(link.device()), Value::RootQdisc(existing()));
        settings.insert(Resource::SegmentSize(link.device()), Value::Bytes(65_536));
    }
    let irqs = links.iter().flat_map(|l| &l.irqs);
    settings.extend(irqs.map(|irq| (Resource::IrqCpus(*irq), Value::Cpus(online.clone()))));
    for vm in &vms {
        for task in vm.vcpus.iter().chain(&vm.workers) {
            settings.insert(Resource::ThreadCpus(*task), Value::Cpus(online.clone()));
            settings.insert(Resource::ThreadScheduling(*task), Value::Scheduling(DEFAULT));
        }
        if let Some(group) = &vm.group {
            settings.insert(Resource::Group(vm.process), Value::Group(group.clone()));
            let own = own_group(vm.vm.pid);
            for group in [Some(&own), (!vm.group_shared).then_some(group)].into_iter().flatten() {
                settings.insert(Resource::GroupWeight(group.clone()), Value::Weight(100));
                settings.insert(Resource::GroupQuota(group.clone()), Value::Quota(None));
            }
        }
    }
    let realtime_guard = Some("kernel.sched_rt_runtime_us is 950000".to_owned());
    Observed {
        cpus: online,
        vms,
        links,
        settings: settings.into(),
        realtime_guard,
        managers: Vec::new(),
        deadline_support: DeadlineSupport::Edf,
        sched_ext: SchedExt::Usable,
    }
}

/// The observation of the host once it has these settings.
pub fn observe_again(before: &Observed, settings: &BTreeMap<Resource, Value>) -> Observed {
    let mut now = Observed { settings: settings.clone().into(), ..before.clone() };
    for vm in &mut now.vms {
        let Some(Value::Group(group)) = settings.get(&Resource::Group(vm.process)) else { continue };
        if vm.group.as_ref() != Some(group) {
            // Moved by a plan into a group of its own, or back from there into one that it shares.
            vm.group_shared = *group != own_group(vm.vm.pid);
            vm.group = Some(group.clone());
        }
    }
    now
}

fn some_cpus(online: u32) -> impl Strategy<Value = CpuSet> + Clone {
    vec(0..online, 1..4).prop_map(CpuSet::from_iter)
}

fn scheduling() -> impl Strategy<Value = Scheduling> {
    prop_oneof![
        4 => Just(DEFAULT),
        2 => (1..=99u8).prop_map(|priority| Scheduling::Fifo { priority }),
        1 => (1..=50u64, 1..=4u64).prop_map(|(runtime, times)| Scheduling::Deadline {
            runtime: runtime * 100_000,
            deadline: runtime * times * 200_000,
            period: runtime * times * 200_000,
        }),
    ]
}

/// Any host: up to three VMs, with some settings already changed by someone.
pub fn any_host() -> impl Strategy<Value = Observed> {
    let one = (0..4u32, 0..3u32, prop_oneof![Just(0), Just(1), Just(2)]);
    let wire = (weighted(0.8, 10_000_000..2_000_000_000u64), 68..9_001u32, any::<bool>());
    (2..6u32, vec(one, 1..4), vec((vec(30..40u32, 0..3), wire), 1..3))
        .prop_flat_map(|(online, vms, links)| {
            let vms: Vec<ObservedVm> = vms
                .into_iter()
                .enumerate()
                .map(|(i, (vcpus, workers, group))| {
                    let scope = format!("/machine.slice/vm{i}.scope");
                    let (group, shared) =
                        [(None, false), (Some(scope.as_str()), false), (Some("/user.slice"), true)][group];
                    vm(&format!("vm{i}"), 100 * (i as u32 + 1), vcpus, workers, group, shared)
                })
                .collect();
            let links = links.into_iter().enumerate().map(|(i, (irqs, (speed, mtu, guests)))| ObservedLink {
                index: i as u32 + 2,
                speed,
                mtu,
                guests,
                ..nic(&format!("eth{i}"), irqs)
            });
            let host = host(&format!("0-{}", online - 1), vms, links.collect());
            let size = host.settings.iter().count();
            (Just(host), vec(weighted(0.2, (some_cpus(online), 1..=10_000u32, scheduling())), size))
        })
        .prop_map(|(mut host, foreign)| {
            for ((setting, value), foreign) in host.settings.iter_mut().zip(foreign) {
                let Some((cpus, number, scheduling)) = foreign else { continue };
                match (setting, value) {
                    (Resource::ThreadCpus(_) | Resource::IrqCpus(_), value) => *value = Value::Cpus(cpus),
                    (Resource::ThreadScheduling(_), value) => *value = Value::Scheduling(scheduling),
                    (Resource::GroupWeight(_), value) => *value = Value::Weight(number),
                    (Resource::HaltPoll, value) => *value = Value::Nanoseconds(u64::from(number)),
                    (Resource::CpuLatency(_), value) => *value = Value::Latency(Latency::AtMost(number)),
                    (Resource::GroupQuota(_), value) => {
                        *value = Value::Quota(Some(Quota {
                            quota_us: u64::from(number) + 1000,
                            period_us: 50_000,
                        }));
                    }
                    (Resource::SegmentSize(_), value) => *value = Value::Bytes(number * 8),
                    (Resource::ReceiveCpus(..), value) => *value = Value::Cpus(cpus),
                    (Resource::Group(_) | Resource::RootQdisc(_) | Resource::Governor(_), _) => {}
                }
            }
            // The kernel allows no deadline thread that may not run on every CPU.
            let sched_deadline = |v: &Value| matches!(v, Value::Scheduling(s) if s.is_sched_deadline());
            let of = |s: &Resource| match s {
                Resource::ThreadScheduling(task) => Some(Resource::ThreadCpus(*task)),
                _ => None,
            };
            let all: Vec<Resource> =
                host.settings.iter().filter(|(_, v)| sched_deadline(v)).filter_map(|(s, _)| of(s)).collect();
            for setting in all {
                host.settings.insert(setting, Value::Cpus(host.cpus.clone()));
            }
            host
        })
}

fn any_class() -> impl Strategy<Value = VmClass> {
    let packets = (1..20u64, 1..=20u64).prop_map(|(runtime, period)| {
        let [runtime, period] = [runtime, period.max(runtime)].map(|ms| ms * 1_000_000);
        VmClass::Packets(PacketClass { runtime, deadline: period, period })
    });
    prop_oneof![3 => scheduling().prop_map(VmClass::Threads), 1 => packets]
}

/// Any policy for [`any_host`]: names that may exist, CPUs that are mostly online.
pub fn any_policy() -> impl Strategy<Value = Policy> {
    let set = || weighted(0.4, some_cpus(3).prop_map(|c| at(c, 2)));
    let vm = (
        prop_oneof![4 => Just("vm0"), 2 => Just("vm1"), 1 => Just("pid:300")],
        weighted(0.5, any_class().prop_map(|class| at(class, 3))),
        set(),
        set(),
        of((1..=10_000u32).prop_map(|w| at(w, 4))),
        of(of(10..4_000u32).prop_map(|q| at(q, 5))),
    )
        .prop_map(|(name, class, vcpu_cpus, worker_cpus, weight, quota)| VmPolicy {
            name: at(name.to_owned(), 1),
            class,
            vcpu_cpus,
            worker_cpus,
            weight,
            quota,
        });
    let latency =
        prop_oneof![Just(Latency::Any), Just(Latency::None), (1..1000u32).prop_map(Latency::AtMost)];
    let host = (of((0..1_000_000u64).prop_map(|n| at(n, 6))), of(latency.prop_map(|l| at(l, 7))), set())
        .prop_map(|(halt_poll, cpu_latency, cpus)| HostPolicy {
            cpu_latency_cpus: cpus.filter(|_| cpu_latency.is_some()),
            vm_users: None,
            halt_poll,
            cpu_latency,
        });
    (host, vec(vm, 0..3), any_channels(), any::<bool>(), any_direct()).prop_map(
        |(host, mut vms, of_links, with, direct)| {
            vms.sort_by(|a, b| a.name.value.cmp(&b.name.value));
            vms.dedup_by(|a, b| a.name.value == b.name.value);
            let channels = if with { of_links.channels } else { Vec::new() };
            Policy { host, vms, channels, direct, ..of_links }
        },
    )
}

/// Keys that set resources to the value written.
fn any_direct() -> impl Strategy<Value = Vec<DirectSetting>> {
    let steering = weighted(0.4, some_cpus(3)).prop_map(|cpus| {
        cpus.map(|cpus| DirectSetting {
            subject: Subject::Link(at("eth0".to_owned(), 30)),
            key: "rps_cpus",
            kind: ResourceKind::ReceiveCpus,
            value: at(Value::Cpus(cpus), 31),
            cost: "",
        })
    });
    let governor = weighted(0.4, Just("performance")).prop_map(|word| {
        word.map(|word| DirectSetting {
            subject: Subject::Host,
            key: "governor",
            kind: ResourceKind::Governor,
            value: at(Value::Word(word.to_owned()), 32),
            cost: "",
        })
    });
    (steering, governor).prop_map(|(steering, governor)| steering.into_iter().chain(governor).collect())
}

/// Links and channels that often fit [`any_host`]; their links may not exist.
pub fn any_channels() -> impl Strategy<Value = Policy> {
    let slack = prop_oneof![Just(Auto::Auto), (0..100 * 1_000_000u64).prop_map(Auto::Nanoseconds)];
    let link = (
        weighted(0.4, some_cpus(3).prop_map(|c| at(c, 2))),
        weighted(0.3, prop_oneof![9 => 5_000_000..100_000_000u64, 1 => 1_000_000_000..2_000_000_000u64]),
        weighted(0.2, slack),
        weighted(0.2, 1000..70_000u32),
        weighted(0.2, 1_000_000..1_000_000_000u64),
    )
        .prop_map(|(irq_cpus, rate, slack, max_packet, realtime_max)| LinkPolicy {
            irq_cpus,
            rate: rate.map(|r| at(r, 9)),
            slack: slack.map(|s| at(s, 10)),
            max_packet: max_packet.map(|m| at(m, 11)),
            realtime_max: realtime_max.map(|r| at(r, 12)),
            ..link("eth0", 8)
        });
    let channel = (
        1..20u16,
        weighted(0.3, prop_oneof![4 => Just("eth0"), 1 => Just("eth1")]),
        prop_oneof![1 => 1..1_000_000u64, 9 => 1_000_000..100_000_000u64],
        prop_oneof![9 => 1..1_000_000u64, 1 => 1..30_000_000u64],
        of(84..20_000u64),
    )
        .prop_map(|(port, link, deadline, rate, burst)| ChannelPolicy {
            link: link.map(|l| at(l.to_owned(), 20)),
            burst: burst.map(|b| at(b, 21)),
            ..channel(&format!("c{port}"), 20, port, deadline, rate)
        });
    (of(link), vec(channel, 0..5)).prop_map(|(link, mut channels)| {
        channels.sort_by(|a, b| a.name.value.cmp(&b.name.value));
        channels.dedup_by(|a, b| a.name.value == b.name.value);
        Policy { links: link.into_iter().collect(), channels, ..Policy::default() }
    })
}
