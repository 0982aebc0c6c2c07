//! Prints the events of a host's VMs as they come: `events SECONDS`. For looking at the probes themselves.
use std::time::{Duration, Instant};
use teiji_bpf::path_trace::{Setup, Tracer};
use teiji_model::flow::{Flow, Watch};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let seconds: u64 = std::env::args().nth(1).and_then(|s| s.parse().ok()).unwrap_or(1);
    let watch = Watch { flow: Flow::parse("udp")?, ..Watch::default() };
    let vms = teiji_agent::vms()?;
    eprintln!("{vms:#?}");
    let mut tracer =
        Tracer::start(&Setup { watch: &watch, vms: &vms, guests: false, buffer_bytes: 1 << 22 })?;
    let end = Instant::now() + Duration::from_secs(seconds);
    let mut first = 0;
    while Instant::now() < end {
        tracer.drain(&mut |item| {
            let e = &item.event;
            if first == 0 {
                first = e.ts;
            }
            println!("{:>12.3} us cpu {} {:?}", (e.ts - first) as f64 / 1000.0, e.cpu, e.kind);
        })?;
        std::thread::sleep(Duration::from_millis(5));
    }
    println!("{:?}", tracer.counts()?);
    Ok(())
}
