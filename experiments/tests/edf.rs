//! teiji_edf in the lab, in virtual time: every claim that is not a figure of the experiment `edf-delay`, and that
//! experiment's short form. Two lab hosts: one with several CPUs, and one with a single CPU for measurements of time.

#![allow(clippy::unwrap_used, reason = "a test ends by them")]

#[path = "edf/heartbeat.rs"]
mod heartbeat;
#[path = "edf/links.rs"]
mod links;
#[path = "edf/missing_pin.rs"]
mod missing_pin;
#[path = "edf/packets.rs"]
mod packets;
#[path = "edf/upgrade.rs"]
mod upgrade;

use serde_json::Value;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::{Mutex, MutexGuard, PoisonError};
use teiji_experiments::edf_delay::net::{self, Driver};
use teiji_experiments::edf_delay::{Workload, many, six, traffic};
use teiji_lab::LabHost;
use teiji_lab::harness::{self, Shared};
use teiji_model::qdisc::MAX_LINKS;

/// A lab host and the running driver of the qdisc, if any.
struct Fixture {
    host: LabHost,
    driver: Mutex<Option<Driver>>,
}

static CONCURRENT: Shared<Fixture> =
    Shared::new("the lab of several CPUs", || Fixture::boot(net::CONCURRENT));
/// Only one lab host at a time: the first one ends when this one is needed.
static TIMED: Shared<Fixture> = Shared::new("the lab of one CPU", || {
    CONCURRENT.if_made(|stage| stage.host.end());
    Fixture::boot(net::TIMED)
});

impl Fixture {
    fn boot(cpus: u32) -> Fixture {
        let out = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("edf");
        Fixture { host: net::boot(&out, cpus).unwrap(), driver: Mutex::new(None) }
    }

    fn driver(&self) -> MutexGuard<'_, Option<Driver>> {
        self.driver.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs a test with a running driver and without links that have channels, which a failed test may have left.
    fn with_driver(&self, test: impl FnOnce(&LabHost, &Driver)) {
        let mut driver = self.driver();
        // Starts the driver again if it has ended or does not answer.
        if driver.as_ref().is_none_or(|d| d.try_line("tidy").is_err()) {
            *driver = None;
            *driver = Some(Driver::start(&self.host).unwrap());
        }
        let driver = driver.as_ref().unwrap();
        for dev in ["va", "wa"] {
            // Refused if the link has no channels.
            driver.try_line(&format!("detach {dev}")).unwrap();
        }
        test(&self.host, driver);
    }

    /// Ends the driver and removes its pins.
    fn without_driver(&self) -> &LabHost {
        if let Some(driver) = self.driver().take() {
            driver.kill().unwrap();
        }
        self.host.run("rm -rf /tmp/bpf/driver").unwrap().ok().unwrap();
        &self.host
    }
}

/// Tests that take a lab host and the driver that runs there.
macro_rules! on {
    ($stage:ident: $($test:path),+ $(,)?) => {
        vec![$((stringify!($test), (|| $stage.with_driver($test)) as fn())),+]
    };
}

fn main() -> ExitCode {
    let tests = [
        on![CONCURRENT:
            the_verifier_accepts_every_program,
            links::the_former_qdisc_is_put_back,
            links::channels_change_without_a_drop,
            packets::packets_are_told_apart,
            packets::real_time_is_bounded,
            links::devices_are_put_back,
            links::uplinks_bonds_and_taps_have_channels,
            links::slots_are_given_anew,
            links::a_killed_change_is_whole,
        ],
        teiji_lab::tests![
            heartbeat::without_a_heartbeat_it_is_a_fifo,
            heartbeat::the_agent_may_die,
            upgrade::from_0_1_0,
            missing_pin::a_rollback_works_whichever_pin_is_missing,
        ]
        .to_vec(),
        on![TIMED:
            packets::excess_is_in_nobodys_way,
            packets::best_effort_is_shared,
            packets::two_links_at_once,
            packets::the_last_bit_counts,
            packets::packets_back_to_back_wait_for_the_wire,
        ],
        teiji_lab::tests![
            packets::six_channels_keep_their_deadlines,
            packets::many_channels_keep_their_deadlines
        ]
        .to_vec(),
    ];
    harness::run(&tests.concat(), || {
        for stage in [&CONCURRENT, &TIMED] {
            stage.if_made(|s| s.host.end());
        }
    })
}

/// The root qdisc of a device of namespace a, as tc prints it.
fn root(host: &LabHost, dev: &str) -> String {
    host.run(&format!("ip netns exec a tc qdisc show dev {dev} root")).unwrap().ok().unwrap()
}

/// Sends flows from namespace a for some seconds, and waits for the packets in the queue that have a deadline. Returns
/// how many datagrams of each flow the kernel accepted.
fn send(host: &LabHost, seconds: f64, flows: &str) -> Vec<u64> {
    let printed = host
        .run(&format!("ip netns exec a /tmp/teiji-lab udp-flows --for {seconds} {flows}; sleep 0.1"))
        .unwrap()
        .ok()
        .unwrap();
    let sent: Vec<Value> = serde_json::from_str(&printed).unwrap();
    sent.iter().map(|s| s["sent"].as_u64().unwrap()).collect()
}

/// A link with one channel, and a setting of the host.
const POLICY: &str = r#"
[host]
cpu_latency = "20us"
[link.va]
rate = "4mbit"
max_packet = "1514b"
[channel.c]
link = "va"
to = "10.88.0.2:6000"
proto = "udp"
deadline = "10ms"
min_rate = "1mbit"
burst = "3kb"
"#;

/// Shell: runs a command, and prints its exit code and what it said on one line that begins with a name.
const TELL: &str = r#"told() { name=$1; shift; said=$("$@" 2>&1); echo "$name $? $(echo $said)"; }
"#;

/// The output of a script that uses [`TELL`].
struct Told(String);

impl Told {
    /// The exit code, and what was said.
    fn line(&self, name: &str) -> (i32, String) {
        let found = self.0.lines().find_map(|l| l.strip_prefix(name)?.strip_prefix(' '));
        let (code, rest) =
            found.and_then(|l| l.split_once(' ')).unwrap_or_else(|| panic!("{name}: {}", self.0));
        (code.parse().unwrap(), rest.to_owned())
    }

    fn is(&self, name: &str, code: i32, part: &str) {
        let (found, text) = self.line(name);
        assert!(found == code && text.contains(part), "{name}: {found} {text}\n{}", self.0);
    }
}

fn of(stats: &Value, channel: &str, what: &str) -> u64 {
    stats["channels"][channel][what].as_u64().unwrap_or_else(|| panic!("no {what} of {channel} in {stats}"))
}

fn the_verifier_accepts_every_program(_: &LabHost, driver: &Driver) {
    let printed = driver.line("verified").unwrap();
    eprintln!("instructions that the verifier walked: {printed}");
    let programs: serde_json::Map<String, Value> = serde_json::from_str(&printed).unwrap();
    assert_eq!(programs.len(), 5, "{printed}");
    assert!(programs.values().all(|n| (1..100_000).contains(&n.as_u64().unwrap())), "{printed}");
}

fn received(host: &LabHost) -> u64 {
    let text = host.run("ip netns exec b cat /sys/class/net/vb/statistics/rx_packets").unwrap().ok().unwrap();
    text.parse().unwrap()
}
