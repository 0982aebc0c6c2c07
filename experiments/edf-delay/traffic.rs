//! One run: a flood of best effort and the channels' flows, and the delays and losses of the flows.

use super::product::Product;
use super::{LINK, Workload, rivals};
use anyhow::{Context, Result, bail};
use serde::Serialize;
use serde_json::Value;
use std::time::Duration;
use teiji_lab::LabHost;

/// In real time.
const LIMIT: Duration = Duration::from_secs(1800);

/// The packets of a channel in one run.
#[derive(Clone, Debug, Serialize)]
pub struct Flow {
    /// Deadline, µs.
    pub deadline_us: u64,
    /// Packets sent.
    pub sent: u64,
    /// Packets received.
    pub received: u64,
    /// Packets received after their deadline.
    pub late: u64,
    /// Median delay from the sender's stamp to the receiver's kernel, µs.
    pub p50_us: f64,
    /// 99.9th percentile, µs.
    pub p999_us: f64,
    /// Longest, µs.
    pub max_us: f64,
    /// The delay that `teiji workload` guarantees, µs. This and the fields below: teiji_edf only.
    pub bound_us: Option<f64>,
    /// Longest delay according to the qdisc, µs.
    pub queued_max_us: Option<f64>,
    /// Missed deadlines according to the qdisc.
    pub misses: Option<u64>,
    /// Packets that the qdisc sent as best effort.
    pub excess: Option<u64>,
    /// The qdisc's histogram of delays by log2 of ns.
    #[serde(skip)]
    pub histogram: Vec<u64>,
}

/// One run.
#[derive(Clone, Debug, Serialize)]
pub struct Outcome {
    /// The case.
    #[serde(rename = "plan")]
    pub workload: &'static str,
    /// The qdisc.
    pub qdisc: &'static str,
    /// The channels.
    pub flows: Vec<Flow>,
    /// What best effort received of the rate that the channels leave, 0 to 1; from the receiver's counters.
    pub best_effort: f64,
    /// Rate of all traffic divided by the link's rate.
    pub used: f64,
}

impl Outcome {
    /// Packets of all channels that were late or lost.
    pub fn failed(&self) -> u64 {
        self.flows.iter().map(|f| f.late + f.sent.saturating_sub(f.received)).sum()
    }

    /// Packets of all channels.
    pub fn sent(&self) -> u64 {
        self.flows.iter().map(|f| f.sent).sum()
    }

    /// The longest delay of a packet, divided by its deadline.
    pub fn worst(&self) -> f64 {
        self.flows.iter().map(|f| f.max_us / f.deadline_us as f64).fold(0.0, f64::max)
    }
}

/// Runs `workload` over `qdisc`, which is the root of `va` during the run.
///
/// # Errors
/// If a program fails.
pub fn run(host: &LabHost, qdisc: &'static str, workload: &Workload) -> Result<Outcome> {
    let product = match qdisc {
        "teiji_edf" => Some(Product::apply(host, workload)?),
        _ => {
            let script = format!("set -e\n{}", rivals::setup(qdisc, workload));
            host.put("/tmp/rival.sh", script.as_bytes())?;
            host.run("ip netns exec a sh /tmp/rival.sh")?.ok()?;
            None
        }
    };
    let mut outcome = measure(host, qdisc, workload)?;
    if let Some(product) = product {
        let channels = product.channels()?;
        for ((flow, c), bound) in outcome.flows.iter_mut().zip(&channels).zip(&product.bounds_us) {
            flow.bound_us = Some(*bound);
            flow.queued_max_us = c["delay_max"].as_f64().map(|ns| ns / 1e3);
            flow.misses = c["misses"].as_u64();
            flow.excess = c["excess"].as_u64();
            flow.histogram = c["delay"].as_array().into_iter().flatten().filter_map(Value::as_u64).collect();
        }
        product.end()?;
    } else {
        host.run("ip netns exec a tc qdisc del dev va root")?.ok()?;
    }
    Ok(outcome)
}

/// Runs `workload` over the present root of `va`.
///
/// # Errors
/// If a program fails.
pub fn measure(host: &LabHost, qdisc: &'static str, workload: &Workload) -> Result<Outcome> {
    let list = |items: Vec<String>| items.join(",");
    let ports = list((0..workload.channels.len()).map(|i| (6000 + i).to_string()).collect());
    let deadlines = list(workload.channels.iter().map(|c| c.deadline_us.to_string()).collect());
    let seconds = workload.seconds;
    // `snap` starts no program between the counters and the time: reading it from the disk would take time. The sender of the flows
    // is a real-time process, as its wait for a CPU between a stamp and the queue would count as the queue's delay.
    let script = format!(
        "cd /tmp; rm -f arrivals sent\n\
         snap() {{ ip netns exec b bash -c 'cd /sys/class/net/vb/statistics; \
         read -r b <rx_bytes; read -r p <rx_packets; t=${{EPOCHREALTIME/[.,]/}}; echo $b; echo $p; echo ${{t}}000'; }}\n\
         ip netns exec b ./teiji-lab udp-arrivals --ports {ports} --deadlines-us {deadlines} --sinks 7000 >arrivals &\n\
         r=$!; until grep -q receiving arrivals; do sleep 0.1; done\n\
         ip netns exec a ./teiji-lab udp-flows --for {} {} >/dev/null & f=$!; sleep 1\n\
         ip netns exec a chrt -f 1 ./teiji-lab udp-flows --for {seconds} {} >sent & s=$!\n\
         sleep 1; snap; sleep {}; snap; wait $s $f $r; tail -n 1 sent; tail -n 1 arrivals",
        seconds + 2,
        rivals::flood(qdisc),
        rivals::flows(qdisc, workload),
        seconds.saturating_sub(2).max(1),
    );
    let printed = host.run_for(&script, LIMIT)?.ok()?;
    let lines: Vec<&str> = printed.lines().collect();
    let [b0, p0, t0, b1, p1, t1, sent, arrived] = lines[..] else { bail!("the run said: {printed}") };
    let difference = |a: &str, b: &str| -> Result<f64> { Ok((b.parse::<u64>()? - a.parse::<u64>()?) as f64) };
    let wire = difference(b0, b1)? + 24.0 * difference(p0, p1)?;
    let used = wire * 8e9 / difference(t0, t1)? / LINK as f64;
    let sent: Vec<Value> = serde_json::from_str(sent)?;
    let arrived: Vec<Value> = serde_json::from_str(arrived)?;
    let mut flows = Vec::new();
    for ((channel, sent), arrived) in workload.channels.iter().zip(&sent).zip(&arrived) {
        let number =
            |v: &Value, key: &str| v[key].as_u64().with_context(|| format!("there is no {key} in {v}"));
        let us = |key: &str| number(arrived, key).map(|ns| ns as f64 / 1e3);
        flows.push(Flow {
            deadline_us: channel.deadline_us,
            sent: number(sent, "sent")?,
            received: number(arrived, "received")?,
            late: number(arrived, "late")?,
            p50_us: us("p50_ns")?,
            p999_us: us("p999_ns")?,
            max_us: us("max_ns")?,
            bound_us: None,
            queued_max_us: None,
            misses: None,
            excess: None,
            histogram: Vec::new(),
        });
    }
    let taken =
        flows.iter().map(|f| f.received * super::WIRE * 8).sum::<u64>() as f64 / seconds as f64 / LINK as f64;
    Ok(Outcome { workload: workload.name, qdisc, flows, best_effort: (used - taken) / (1.0 - taken), used })
}
