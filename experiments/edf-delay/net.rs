//! The experiment's network in the lab host, and the program that drives the qdisc there.
//!
//! ```text
//! namespace a, va 10.88.0.1 (the qdisc under test) ══ veth ══ namespace b, vb 10.88.0.2
//!              wa 10.89.0.1                        ══ veth ══              wb 10.89.0.2
//! ```
//!
//! Delays are measured with one CPU. The emulator runs several by turns in one stream of instructions: a CPU whose
//! timer is due may have to wait for another's turn to end, which no machine does. With four CPUs some packets in ten
//! thousand were up to 2 ms late by it, most of them before the qdisc had them; with one there is none, and runs hardly
//! differ. Half of that CPU's time is left over.

use anyhow::{Context, Result, bail};
use std::cell::Cell;
use std::path::Path;
use std::time::Duration;
use teiji_lab::{Child, Host, Kernel, Mode, Spec};

/// In the machine's own time; the lab's may be slower.
const PATIENCE: Duration = Duration::from_secs(120);

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

/// The CPUs of a lab that times are measured in: see above.
pub const TIMED: u32 = 1;
/// The CPUs of a lab in which the kernel may do several things at once.
pub const CONCURRENT: u32 = 4;

/// Boots the lab in virtual time, with so many CPUs, and lays out the network.
///
/// # Errors
/// If the programs cannot be built or the lab does not boot.
pub fn boot(out: &Path, cpus: u32) -> Result<Host> {
    boot_kernel(out, cpus, Kernel::default())
}

/// The same with another kernel.
///
/// # Errors
/// If the programs cannot be built or the lab does not boot.
pub fn boot_kernel(out: &Path, cpus: u32, kernel: Kernel) -> Result<Host> {
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
    let host = Host::boot(&spec)?;
    host.run(LAYOUT)?.ok()?;
    // Programs are paged in through the emulator's file sharing: have them at hand.
    host.run("cp /mnt/bin/edf /mnt/bin/teiji-lab /mnt/bin/teiji /tmp/")?.ok()?;
    Ok(host)
}

/// The running driver of the qdisc; see driver.rs.
pub struct Driver {
    child: Child,
    asked: Cell<u32>,
}

impl Driver {
    /// Starts it in namespace a; the programs are loaded then.
    ///
    /// # Errors
    /// What it says if the kernel refuses.
    pub fn start(host: &Host) -> Result<Driver> {
        let child = host.spawn("exec ip netns exec a /tmp/edf")?;
        let said = child.wait_for("\n", PATIENCE).context("the driver of the qdisc did not start")?;
        if !said.starts_with("loaded") {
            bail!("the driver of the qdisc says: {}", said.trim());
        }
        Ok(Driver { child, asked: Cell::new(0) })
    }

    /// Gives it a line; returns its answer, errors too.
    ///
    /// # Errors
    /// If it is gone.
    pub fn try_line(&self, line: &str) -> Result<String> {
        self.child.write(format!("{line}\n").as_bytes())?;
        let number = self.asked.get() + 1;
        self.asked.set(number);
        let end = format!("\n#{number}\n");
        let said = self.child.wait_for(&end, PATIENCE)?;
        let before = said.split(&end).next().unwrap_or_default();
        Ok(before.lines().last().unwrap_or_default().to_owned())
    }

    /// Gives it a line that has to succeed.
    ///
    /// # Errors
    /// What it answers otherwise.
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
    /// If it has none.
    pub fn stats(&self, dev: &str) -> Result<serde_json::Value> {
        Ok(serde_json::from_str(&self.line(&format!("stats {dev}"))?)?)
    }

    /// Ends it as a crash would.
    ///
    /// # Errors
    /// If the lab host is gone.
    pub fn kill(self) -> Result<()> {
        Ok(self.child.kill()?)
    }
}
