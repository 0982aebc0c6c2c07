//! A lab host with a running agent and a policy in force.

use super::{Churn, Rest};
use crate::programs;
use crate::tracing::Lab;
use anyhow::{Context, Result, bail};
use std::path::Path;
use std::time::Duration;
use teiji_lab::Spec;

/// Where everything is in the lab host.
pub const STATE: &str = "/tmp/state";
const AT: &str = "--state /tmp/state --pins /tmp/bpf/teiji";
const START: Duration = Duration::from_secs(300);
const LIMIT: Duration = Duration::from_secs(1200);

/// The lab host.
pub struct Host {
    /// The machine.
    pub lab: Lab,
}

impl Host {
    /// Boots it. Nothing of teiji runs there yet. `resting`: VMs that its policy names and that do not come and go.
    ///
    /// # Errors
    /// If it does not boot, or the programs are missing.
    pub fn boot(out: &Path, resting: usize) -> Result<Host> {
        if !programs::folder()?.join("churn").is_file() {
            bail!("the driver `churn` was not built: run `cargo build -p teiji-experiments`");
        }
        let lab = Lab::boot_as(out, Spec::default())?;
        let host = Host { lab };
        // In the lab host's memory, as reading pages from outside takes real time.
        host.sh(&format!("modprobe -a tun dummy kvm_amd; cp /mnt/bin/teiji /mnt/bin/churn /tmp/; mkdir -p /tmp/bpf /tmp/state; \
                 chmod 700 /tmp/state; mount -t bpf bpf /tmp/bpf; /tmp/churn policy --resting {resting} >/tmp/policy.toml"))?;
        Ok(host)
    }

    /// Runs a script that has to succeed; returns what it prints.
    ///
    /// # Errors
    /// If it does not.
    pub fn sh(&self, script: &str) -> Result<String> {
        Ok(self.lab.host.run_for(script, LIMIT)?.ok()?)
    }

    /// Runs teiji; returns its exit code and what it prints.
    ///
    /// # Errors
    /// If it cannot be run.
    pub fn teiji(&self, what: &str) -> Result<(i32, String)> {
        let ran = self.lab.host.run_for(&format!("/tmp/teiji {what} {AT} 2>&1"), LIMIT)?;
        Ok((ran.code, ran.text()))
    }

    /// Starts the agent; returns its process id once it answers.
    ///
    /// # Errors
    /// If it does not answer.
    pub fn agent(&self) -> Result<u32> {
        let script = format!(
            "setsid /tmp/teiji agent {AT} >>/tmp/agent 2>&1 & \
             agent=$!; until /tmp/teiji status --json {AT} 2>/dev/null | grep -q '\"looks\": *[1-9]'; do \
             [ -e /proc/$agent ] || {{ cat /tmp/agent; exit 1; }}; sleep 0.05; done; echo $agent"
        );
        let ran = self.lab.host.run_for(&script, START)?.ok().context("the agent does not answer")?;
        ran.lines()
            .last()
            .and_then(|pid| pid.trim().parse().ok())
            .with_context(|| format!("no process id: {ran}"))
    }

    /// Ends the agent.
    ///
    /// # Errors
    /// If it does not end.
    pub fn end(&self, agent: u32) -> Result<()> {
        self.sh(&format!("kill {agent}; while [ -e /proc/{agent} ]; do sleep 0.02; done")).map(drop)
    }

    /// Puts the policy in force: no VM and no link that it names is there. The agent may be changing settings itself.
    ///
    /// # Errors
    /// If it cannot be applied.
    pub fn put_in_force(&self) -> Result<()> {
        match self.teiji("apply /tmp/policy.toml --absent-ok --wait 60s")? {
            (0, _) => Ok(()),
            (code, text) => bail!("apply ended with {code}: {text}"),
        }
    }

    /// Starts and stops so many VMs and links.
    ///
    /// # Errors
    /// If one of them is not reconciled.
    pub fn churn(&self, count: usize) -> Result<Churn> {
        let printed = self.sh(&format!("/tmp/churn run --count {count} --state {STATE}"))?;
        serde_json::from_str(&printed).with_context(|| format!("the driver printed {printed:?}"))
    }

    /// Measures the agent at rest.
    ///
    /// # Errors
    /// If the VMs cannot be started, or do not get the policy's settings.
    pub fn rest(&self, vms: usize, taps: usize, seconds: f64, agent: u32) -> Result<Rest> {
        let printed = self.sh(&format!(
            "ulimit -n 65536; /tmp/churn rest --vms {vms} --taps {taps} --seconds {seconds} --agent {agent}"
        ))?;
        serde_json::from_str(&printed).with_context(|| format!("the driver printed {printed:?}"))
    }
}
