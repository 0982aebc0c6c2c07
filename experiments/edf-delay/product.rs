//! Sets up the experiment's channels as an operator does: an agent, a policy, a plan with the guarantees, an apply, and
//! a rollback.

use super::{LINK, MARGIN, SIZE, WIRE, Workload};
use anyhow::{Context, Result, bail};
use serde_json::Value;
use std::fmt::Write;
use std::time::Duration;
use teiji_lab::{Child, LabHost};

/// In namespace a; the pins are in a file system that the agent sees.
const TEIJI: &str = "ip netns exec a /tmp/teiji";
const PLACE: &str = "--state /tmp/state --pins /tmp/bpf/teiji";
const POLICY: &str = "/tmp/policy.toml";
/// The agent may be changing settings itself.
const WAIT: &str = "--wait 60s";

/// A link with channels.
pub struct Product<'a> {
    host: &'a LabHost,
    agent: Child,
    /// The longest delay guaranteed to each channel, µs, in the order of the plan's channels.
    pub bounds_us: Vec<f64>,
}

/// The policy of a plan; channels are told apart by their ports.
pub fn policy(workload: &Workload) -> String {
    let slack = workload.slack_us.map_or_else(|| "auto".to_owned(), |us| format!("{us}us"));
    let mut t = format!(
        "[link.va]\nrate = \"{LINK}bit\"\nslack = \"{slack}\"\nmax_packet = \"{}b\"\n",
        // Ethernet, IP and UDP headers are 42 bytes; no larger packets are sent here.
        (SIZE + 42).max(1514)
    );
    for (i, c) in workload.channels.iter().enumerate() {
        // Writing to a String cannot fail.
        let _ = write!(
            t,
            "\n[channel.c{i:02}]\nto = \"10.88.0.2:{}\"\nproto = \"udp\"\ndeadline = \"{}us\"\nmin_rate = \"{}bit\"\n\
             burst = \"{}b\"\n",
            6000 + i,
            c.deadline_us,
            c.rate,
            c.burst * WIRE + MARGIN
        );
    }
    t
}

impl<'a> Product<'a> {
    /// Starts the agent and applies the plan's policy.
    ///
    /// # Errors
    /// The product's message if a command fails.
    pub fn apply(host: &'a LabHost, workload: &Workload) -> Result<Product<'a>> {
        let agent = host.spawn(&format!("exec {TEIJI} agent {PLACE} 2>&1"))?;
        agent.wait_for("the agent keeps deadlines", Duration::from_secs(120))?;
        host.put(POLICY, policy(workload).as_bytes())?;
        let planned = host.run(&format!("{TEIJI} plan {POLICY} {PLACE} --json"))?.ok()?;
        let planned: Value = serde_json::from_str(&planned)?;
        let channels = planned["links"][0]["channels"].as_array().context("the plan guarantees nothing")?;
        let bounds_us: Vec<f64> =
            channels.iter().filter_map(|c| c["bound"].as_f64().map(|ns| ns / 1e3)).collect();
        if bounds_us.len() != workload.channels.len() {
            bail!("the plan guarantees {} channels of {}", bounds_us.len(), workload.channels.len());
        }
        host.run(&format!("{TEIJI} apply {POLICY} {WAIT} {PLACE}"))?.ok()?;
        Ok(Product { host, agent, bounds_us })
    }

    /// The counts of each channel's packets.
    ///
    /// # Errors
    /// The product's message if a command fails.
    pub fn channels(&self) -> Result<Vec<Value>> {
        let printed = self.host.run(&format!("{TEIJI} status {PLACE} --json"))?.ok()?;
        let status: Value = serde_json::from_str(&printed)?;
        let channels = status["deadlines"]["links"][0]["channels"].as_object();
        Ok(channels.context("the status shows no channels")?.values().cloned().collect())
    }

    /// Rolls back and ends the agent.
    ///
    /// # Errors
    /// The product's message if a command fails, or if the link still has teiji_edf.
    pub fn end(self) -> Result<()> {
        self.host.run(&format!("{TEIJI} rollback {WAIT} {PLACE}"))?.ok()?;
        self.host.run(&format!("kill -TERM {}", self.agent.id()?))?.ok()?;
        self.agent.wait()?.ok()?;
        let root = self.host.run("ip netns exec a tc qdisc show dev va root")?.ok()?;
        if root.contains("teiji_edf") {
            bail!("after the rollback the link has {root}");
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::{many, six};
    use super::*;

    #[test]
    fn the_policies_are_ones() {
        for workload in [six(1), many(1)] {
            let source = teiji_model::policy::Source { name: "p.toml".into(), text: policy(&workload) };
            let parsed = teiji_policy::parse(&[source]).unwrap();
            assert_eq!(parsed.channels.len(), workload.channels.len());
        }
    }
}
