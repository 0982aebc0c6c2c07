//! Sends through each queue in turn and measures the times.

use super::queues::{self, QdiscKind, TestQdisc};
use super::{Case, SIZE};
use crate::edf_delay::net::Driver;
use crate::numbers;
use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};
use std::time::Duration;
use teiji_lab::LabHost;

/// In the lab's clock, which runs ahead while the lab waits for the machine.
const LIMIT: Duration = Duration::from_secs(86_400);

/// One window on one queue.
#[derive(Clone, Copy, Debug)]
pub struct Sample {
    /// The queue.
    pub queue: TestQdisc,
    /// Number of the round.
    pub round: u32,
    /// ns of virtual time per packet.
    pub ns: f64,
}

/// Cost of a packet.
#[derive(Clone, Debug, Serialize)]
pub struct Cost {
    /// The qdisc.
    pub qdisc: &'static str,
    /// How the qdisc finds classes; empty if it has none.
    pub filters: &'static str,
    /// Number of channels.
    pub channels: u64,
    /// ns from the sender's call until the device has sent the packet: median of all windows.
    pub total_ns: f64,
    /// `total_ns` minus the same time without a queue.
    pub cost_ns: f64,
    /// Interquartile range of the windows, ns.
    pub spread_ns: f64,
}

/// Output of `teiji-lab udp-burst`.
#[derive(Deserialize)]
struct Taken {
    windows: Vec<u64>,
    missing: u64,
}

/// Creates the devices, measures `windows` windows of each in each round, and removes the devices.
///
/// # Errors
/// If a qdisc cannot be set up, or if a packet did not leave in its window: the windows would then be times of
/// different numbers of packets.
pub fn run(host: &LabHost, case: &Case, rounds: u32, windows: u32) -> Result<Vec<Sample>> {
    let queues = queues::all();
    let driver = set_up(host, case, &queues)?;
    let mut samples = Vec::new();
    for round in 0..rounds {
        for queue in &queues {
            let taken = burst(host, case, queue, windows)?;
            if taken.missing > 0 {
                bail!(
                    "{}: {} packets of {} with {} channels did not leave in their windows; the times mean nothing",
                    case.name,
                    taken.missing,
                    queue.kind.name(),
                    queue.channels
                );
            }
            let sample = |ns: &u64| Sample { queue: *queue, round, ns: *ns as f64 / case.burst as f64 };
            samples.extend(taken.windows.iter().map(sample));
        }
        crate::say(&format!("{}: round {} of {rounds}", case.name, round + 1));
    }
    for queue in queues.iter().filter(|q| q.kind == QdiscKind::Teiji) {
        by_deadline(&driver, case, queue, u64::from(rounds * windows))?;
    }
    for queue in &queues {
        if queue.kind == QdiscKind::Teiji {
            driver.line(&format!("detach {}", queue.device()))?;
        }
    }
    drop(driver);
    host.run_for("ip -n a -o link show type dummy | cut -d: -f2 | xargs -rn1 ip -n a link del", LIMIT)?
        .ok()?;
    Ok(samples)
}

fn set_up(host: &LabHost, case: &Case, queues: &[TestQdisc]) -> Result<Driver> {
    host.put("/tmp/links", queues.iter().map(TestQdisc::link).collect::<String>().as_bytes())?;
    host.put("/tmp/qdiscs", queues.iter().map(|q| q.tc(case)).collect::<String>().as_bytes())?;
    let script = "set -e; ip -n a -batch /tmp/links; ip netns exec a tc -batch /tmp/qdiscs";
    host.run_for(script, LIMIT)?.ok().context("the qdiscs that are compared could not be set up")?;
    let driver = Driver::start(host)?;
    for line in queues.iter().flat_map(|q| q.driver(case)) {
        driver.line(&line)?;
    }
    Ok(driver)
}

fn burst(host: &LabHost, case: &Case, queue: &TestQdisc, windows: u32) -> Result<Taken> {
    let printed = host
        .run_for(
            &format!(
                "ip netns exec a /tmp/teiji-lab udp-burst --to {} --device {} --channels {} --size {SIZE} --burst {} \
                 --windows {windows} --turns {} --deadline-us {}",
                queue.peer(),
                queue.device(),
                queue.channels,
                case.burst,
                case.turns,
                queue.kind.deadline_told_us()
            ),
            LIMIT,
        )?
        .ok()?;
    serde_json::from_str(&printed).with_context(|| format!("the load printed {printed:?}"))
}

/// Fails if a packet of a channel was not sent as real time: another path than the claimed one would be measured.
fn by_deadline(driver: &Driver, case: &Case, queue: &TestQdisc, windows: u64) -> Result<()> {
    let stats = driver.stats(&queue.device())?;
    let of = |what: &str| stats[what].as_u64().with_context(|| format!("no {what} in {stats}"));
    let least = windows * case.burst / 2;
    let excess: u64 =
        stats["channels"].as_object().into_iter().flatten().filter_map(|(_, c)| c["excess"].as_u64()).sum();
    if excess > 0 || of("rt_packets")? < least || of("be_packets")? < least || of("fallbacks")? > 0 {
        bail!("{}: the packets did not go by their deadlines: {excess} in excess, {stats}", case.name);
    }
    Ok(())
}

/// The cost of each queue.
pub fn costs(samples: &[Sample]) -> Vec<Cost> {
    let of = |kind: QdiscKind, channels: u64| -> Vec<f64> {
        let same = |s: &&Sample| s.queue.kind == kind && s.queue.channels == channels;
        samples.iter().filter(same).map(|s| s.ns).collect()
    };
    let mut queues: Vec<TestQdisc> = Vec::new();
    for s in samples {
        if !queues.iter().any(|q| q.index == s.queue.index) {
            queues.push(s.queue);
        }
    }
    let cost = |q: &TestQdisc| {
        let times = of(q.kind, q.channels);
        let total_ns = numbers::median(&times);
        Cost {
            qdisc: q.kind.name(),
            filters: q.kind.filters(),
            channels: q.channels,
            total_ns,
            cost_ns: total_ns - numbers::median(&of(q.kind.zero(), q.channels)),
            spread_ns: numbers::quantile(&times, 0.75) - numbers::quantile(&times, 0.25),
        }
    };
    queues.iter().map(cost).collect()
}

/// The cost of a qdisc with this number of channels and these filters; NaN if it was not measured.
pub fn with(costs: &[Cost], qdisc: &str, filters: &str, channels: u64) -> f64 {
    let same = |c: &&Cost| (c.qdisc, c.filters, c.channels) == (qdisc, filters, channels);
    costs.iter().find(same).map_or(f64::NAN, |c| c.cost_ns)
}

/// The cost of a qdisc with this number of channels, with the faster of its filters; NaN if it was not measured.
pub fn least(costs: &[Cost], qdisc: &str, channels: u64) -> f64 {
    let of = costs.iter().filter(|c| c.qdisc == qdisc && c.channels == channels);
    of.map(|c| c.cost_ns).fold(f64::NAN, f64::min)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::edf_cost::queues::Filters;

    #[test]
    fn the_cost_is_what_is_more_than_without_a_queue_and_the_faster_filter_counts() {
        let sample = |index: usize, kind: QdiscKind, ns: f64| Sample {
            queue: TestQdisc { index, kind, channels: 100 },
            round: 0,
            ns,
        };
        let samples = [
            sample(0, QdiscKind::Noqueue, 1000.0),
            sample(0, QdiscKind::Noqueue, 1010.0),
            sample(0, QdiscKind::Noqueue, 9999.0),
            sample(1, QdiscKind::NoqueueWithDeadlines, 1500.0),
            sample(2, QdiscKind::Etf, 2000.0),
            sample(3, QdiscKind::Hfsc(Filters::Flower), 3010.0),
            sample(4, QdiscKind::Hfsc(Filters::U32), 2510.0),
        ];
        let costs = costs(&samples);
        assert_eq!(costs.len(), 5);
        assert_eq!((least(&costs, "etf", 100), least(&costs, "hfsc", 100)), (500.0, 1500.0));
        assert_eq!((costs[0].total_ns, costs[0].cost_ns), (1010.0, 0.0));
        assert_eq!(with(&costs, "hfsc", "flower", 100), 2000.0);
        assert!(least(&costs, "fq", 100).is_nan() && with(&costs, "hfsc", "u32", 1).is_nan());
    }
}
