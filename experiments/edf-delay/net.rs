//! The experiment's network in the lab host, and the program that drives the qdisc there.
//!
//! ```text
//! namespace a, va 10.88.0.1 (the qdisc under test) ══ veth ══ namespace b, vb 10.88.0.2
//!              wa 10.89.0.1                        ══ veth ══              wb 10.89.0.2
//! ```
//!
//! Delays are measured with one CPU. The emulator runs several CPUs in turns, as one stream of instructions: a CPU
//! whose timer is due may have to wait until the turn of another ends, which does not happen on a real machine. With
//! four CPUs some packets in ten thousand were up to 2 ms late because of this, most of them before they reached the
//! qdisc; with one CPU there are none, and runs hardly differ. The CPU is idle for half of the time.

use anyhow::{Context, Result, bail};
use std::cell::Cell;
use std::path::Path;
use std::time::Duration;
use teiji_lab::{Child, Kernel, LabHost, Mode, Spec};

/// In real time; the lab's clock may be slower.
const START_TIMEOUT: Duration = Duration::from_secs(120);

const LAYOUT: &str = "
mkdir -p /tmp/bpf; mount -t bpf bpf /tmp/bpf
ip netns add a; ip netns add b
for n in 0 1; do
  [ $n = 0 ] && { x=va; y=vb; } || { x=wa; y=wb; }
  ip link add $x netns a address 52:54:00:88:0$n:01 type veth peer name $y netns b address 52:54:00:88:0$n:02
  ip -n a address add 10.$((88 + n)).0.1/24 dev $x
  ip -n b address add 10.$((88 + n)).0.2/24 dev $y
  ip -n a address add fd88:$n::1/64 dev $x nodad
  ip -n b address add fd88:$n::2/64 dev $y nodad
  ip -n a link set $x up; ip -n b link set $y up
  for to in 10.$((88 + n)).0.2 fd88:$n::2; do
    ip -n a neighbour replace $to lladdr 52:54:00:88:0$n:02 nud permanent dev $x
  done
done";

/// CPUs of a lab in which times are measured: see above.
pub const TIMED: u32 = 1;
/// CPUs of a lab in which the kernel may do several things at once.
pub const CONCURRENT: u32 = 4;

/// Boots the lab in virtual time, with this number of CPUs, and sets up the network.
///
/// # Errors
/// If the programs cannot be built or the lab does not boot.
pub fn boot(out: &Path, cpus: u32) -> Result<LabHost> {
    boot_kernel(out, cpus, Kernel::default())
}

/// As [`boot`], with another kernel.
///
/// # Errors
/// If the programs cannot be built or the lab does not boot.
pub fn boot_kernel(out: &Path, cpus: u32, kernel: Kernel) -> Result<LabHost> {
    let bin = crate::programs::folder()?;
    for (program, of) in [("edf", "teiji-experiments"), ("teiji", "teiji"), ("teiji-lab", "teiji-lab")] {
        if !bin.join(program).is_file() {
            bail!("{} was not built: run `cargo build -p {of}`", bin.join(program).display());
        }
    }
    let spec = Spec {
        kernel,
        mode: Mode::Virtual,
        cpus,
        mem_mb: 3072,
        bin_dir: Some(bin),
        out_dir: Some(out.to_owned()),
        ..Spec::default()
    };
    let host = LabHost::boot(&spec)?;
    host.run(LAYOUT)?.ok()?;
    // Copied into the lab host: programs are read through the emulator's file sharing, which takes long.
    host.run("cp /mnt/bin/edf /mnt/bin/teiji-lab /mnt/bin/teiji /tmp/")?.ok()?;
    Ok(host)
}

/// The running driver of the qdisc; see `driver.rs`.
pub struct Driver {
    child: Child,
    asked: Cell<u32>,
}

impl Driver {
    /// Starts the driver in namespace a and waits until it has loaded the qdisc.
    ///
    /// # Errors
    /// What the driver says if the kernel refuses.
    pub fn start(host: &LabHost) -> Result<Driver> {
        let child = host.spawn("exec ip netns exec a /tmp/edf")?;
        let printed = child.wait_for("\n", START_TIMEOUT).context("the driver of the qdisc did not start")?;
        if !printed.starts_with("loaded") {
            bail!("the driver of the qdisc says: {}", printed.trim());
        }
        Ok(Driver { child, asked: Cell::new(0) })
    }

    /// Passes a line to the driver; returns the answer, which may be an error.
    ///
    /// # Errors
    /// If the driver has ended.
    pub fn try_line(&self, line: &str) -> Result<String> {
        self.child.write(format!("{line}\n").as_bytes())?;
        let number = self.asked.get() + 1;
        self.asked.set(number);
        let end = format!("\n#{number}\n");
        let printed = self.child.wait_for(&end, START_TIMEOUT)?;
        let before = printed.split(&end).next().unwrap_or_default();
        Ok(before.lines().last().unwrap_or_default().to_owned())
    }

    /// Passes a line to the driver.
    ///
    /// # Errors
    /// What the driver answers if the line fails.
    pub fn line(&self, line: &str) -> Result<String> {
        let answer = self.try_line(line)?;
        match answer.strip_prefix("error: ") {
            Some(error) => bail!("{line}: {error}"),
            None => Ok(answer),
        }
    }

    /// Statistics of a link and its channels.
    ///
    /// # Errors
    /// If the link has no channels.
    pub fn stats(&self, dev: &str) -> Result<serde_json::Value> {
        Ok(serde_json::from_str(&self.line(&format!("stats {dev}"))?)?)
    }

    /// Kills the driver, as a crash would end it.
    ///
    /// # Errors
    /// If the lab host does not answer.
    pub fn kill(self) -> Result<()> {
        Ok(self.child.kill()?)
    }
}
