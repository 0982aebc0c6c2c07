//! A KVM host with everything that teiji can change: a VM with vCPUs and a vhost worker, a NIC with its own interrupts,
//! control groups with the CPU controller; and the policy that changes all of it.

use crate::tracing::Lab;
use anyhow::{Context, Result, ensure};
use serde::Serialize;
use std::path::Path;
use std::time::Duration;
use teiji_lab::{Child, Guest, GuestSpec, Output, Spec};

const DRIVER: &str = "/root/driver.py";
const CONFIG: &str = "/root/driver.json";
/// Where teiji keeps its state.
pub const STATE: &str = "/var/lib/teiji";
/// The copy of teiji that is run: from 9p, reading the program would take most of its time.
pub const TEIJI: &str = "/usr/local/bin/teiji";
/// Name of stand-ins for VMs: QEMU with two vCPUs that never start.
pub const STAND_IN: &str = "standin";

/// What the policy asks for; `driver.py` computes the expected settings from it.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Wanted {
    /// `halt_poll`, ns.
    pub halt_poll_ns: u32,
    /// `cpu_latency`, µs.
    pub latency_us: u32,
    /// `cpu_latency_cpus`.
    pub latency_cpus: &'static str,
    /// `irq_cpus`.
    pub irq_cpus: &'static str,
    /// `vcpu_cpus`.
    pub vcpu_cpus: &'static str,
    /// `worker_cpus`.
    pub worker_cpus: &'static str,
    /// `priority` of class `realtime`.
    pub priority: u8,
    /// `weight`.
    pub weight: u32,
    /// `quota`, µs in 100 ms.
    pub quota_us: u32,
}

/// No value is the kernel's default or the value that the lab starts with.
pub const WANTED: Wanted = Wanted {
    halt_poll_ns: 50_000,
    latency_us: 20,
    latency_cpus: "1-3",
    irq_cpus: "0-1",
    vcpu_cpus: "2-3",
    worker_cpus: "1",
    priority: 7,
    weight: 300,
    quota_us: 150_000,
};

impl Wanted {
    /// The policy for a VM, and for a NIC if there is one. Without vhost workers it does not ask for their CPUs.
    pub fn policy(&self, vm: &str, link: Option<&str>, workers: bool) -> String {
        let link =
            link.map_or_else(String::new, |l| format!("[link.{l}]\nirq_cpus = \"{}\"\n", self.irq_cpus));
        let workers =
            if workers { format!("worker_cpus = \"{}\"\n", self.worker_cpus) } else { String::new() };
        format!(
            "[host]\nhalt_poll = \"{}ns\"\ncpu_latency = \"{}us\"\ncpu_latency_cpus = \"{}\"\n{link}\
             [vm.{vm}]\nclass = \"realtime\"\npriority = {}\nvcpu_cpus = \"{}\"\n{workers}weight = {}\nquota = \"{}%\"\n",
            self.halt_poll_ns,
            self.latency_us,
            self.latency_cpus,
            self.priority,
            self.vcpu_cpus,
            self.weight,
            self.quota_us / 1000,
        )
    }
}

/// The driver's configuration.
#[derive(Clone, Debug, Serialize)]
pub struct Config {
    teiji: &'static str,
    state: &'static str,
    policy: String,
    /// Process id of the VM.
    pid: u32,
    /// Interrupts of the NIC.
    irqs: Vec<u32>,
    wanted: Wanted,
    stand_in: Vec<String>,
    /// Rounds, or kills of each kind.
    pub rounds: u32,
    /// Seed of the random moments.
    pub seed: u64,
}

/// The prepared host.
pub struct TestHost<'l> {
    /// The lab with the host.
    pub lab: &'l Lab,
    /// The NIC.
    pub link: String,
    config: Config,
}

/// A lab host with a NIC that has interrupts. Results are written to `out`.
///
/// # Errors
/// As [`Lab::boot_as`].
pub fn boot(out: &Path) -> Result<Lab> {
    Lab::boot_as(out, Spec { sriov: true, ..Spec::default() })
}

/// The VM: two vCPUs and a vhost worker, pinned nowhere.
pub fn guest() -> GuestSpec {
    GuestSpec { vcpus: 2, ..GuestSpec::named("vm1") }
}

/// The command line of a stand-in for a VM.
fn stand_in() -> Vec<String> {
    let line = format!(
        "qemu-system-x86_64 -name {STAND_IN},debug-threads=on -accel kvm -S -machine q35 -smp 2 -m 32 -nodefaults \
         -no-user-config -display none"
    );
    line.split_whitespace().map(str::to_owned).collect()
}

impl<'l> TestHost<'l> {
    /// Prepares the host for a VM.
    ///
    /// # Errors
    /// If the host lacks something that the policy changes.
    pub fn prepare(lab: &'l Lab, guest: &Guest<'_>) -> Result<Self> {
        // On a host with systemd the CPU controller is enabled below the root group. Otherwise teiji would enable it
        // and leave it so.
        let prepare = format!(
            "set -e; cp /mnt/bin/teiji {TEIJI}; echo +cpu >/sys/fs/cgroup/cgroup.subtree_control\n\
             modprobe igb; until [ -d /sys/bus/pci/drivers/igb/*/net ]; do sleep 0.1; done\n\
             link=$(ls /sys/bus/pci/drivers/igb/*/net); ip link set $link up; echo $link\n\
             for irq in $(ls /sys/class/net/$link/device/msi_irqs); do [ ! -d /proc/irq/$irq ] || echo $irq; done"
        );
        let printed = lab.host.run(&prepare)?.ok().context("the lab host cannot be prepared")?;
        let mut lines = printed.lines().map(str::to_owned);
        let link = lines.next().context("the lab host has no NIC")?;
        let irqs =
            lines.map(|l| l.parse()).collect::<Result<Vec<u32>, _>>().context("no interrupt's number")?;
        ensure!(!irqs.is_empty(), "{link} has no interrupts");
        let config = Config {
            teiji: TEIJI,
            state: STATE,
            policy: "/root/policy.toml".into(),
            pid: guest.pid(),
            irqs,
            wanted: WANTED,
            stand_in: stand_in(),
            rounds: 0,
            seed: 0,
        };
        let test_host = TestHost { lab, link, config };
        lab.host.put(DRIVER, include_bytes!("driver.py"))?;
        lab.host
            .put(&test_host.config.policy, WANTED.policy("vm1", Some(&test_host.link), true).as_bytes())?;
        lab.host
            .put("/root/standin.toml", WANTED.policy(STAND_IN, Some(&test_host.link), false).as_bytes())?;
        Ok(test_host)
    }

    /// Runs `driver.py` with this many rounds, or kills of each kind.
    ///
    /// # Errors
    /// If the driver fails or takes longer than `limit`.
    pub fn driver(&self, what: &str, rounds: u32, seed: u64, limit: Duration) -> Result<String> {
        let mut config = Config { rounds, seed, ..self.config.clone() };
        if what == "vanish" {
            config.policy = "/root/standin.toml".into();
        }
        self.lab.host.put(CONFIG, &serde_json::to_vec(&config)?)?;
        Ok(self.lab.host.run_for(&format!("python3 {DRIVER} {CONFIG} {what}"), limit)?.ok()?)
    }

    /// Every setting that `driver.py` reads.
    ///
    /// # Errors
    /// If one cannot be read.
    pub fn snapshot(&self) -> Result<serde_json::Map<String, serde_json::Value>> {
        Ok(serde_json::from_str(&self.driver("snapshot", 0, 0, Duration::from_secs(60))?)?)
    }

    /// Starts a stand-in for a VM. It ends when the value is dropped.
    ///
    /// # Errors
    /// If its vCPU threads do not appear within a minute.
    pub fn stand_in(&self) -> Result<Child> {
        let child = self.lab.host.spawn(&format!("exec {}", self.config.stand_in.join(" ")))?;
        let up = format!(
            "until [ $(cat /proc/{}/task/*/comm | grep -c /KVM) = 2 ]; do sleep 0.1; done",
            child.id()?
        );
        self.lab.host.run_for(&up, Duration::from_secs(60))?.ok()?;
        Ok(child)
    }

    /// Runs teiji as root with these arguments.
    ///
    /// # Errors
    /// If the lab host does not answer.
    pub fn teiji(&self, arguments: &str) -> Result<Output> {
        Ok(self.lab.host.run_for(&format!("{TEIJI} {arguments}"), Duration::from_secs(120))?)
    }
}
