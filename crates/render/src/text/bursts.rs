//! Packets that reached the guest at once.

use crate::units::{count, duration};
use teiji_model::over_time::{Burst, Bursts};
use teiji_model::stage::{Actor, ThreadState};

/// The sizes of bursts, and the largest with its cause; nothing if packets came one by one.
pub(super) fn lines(bursts: Option<&Bursts>) -> Vec<String> {
    let Some(bursts) = bursts else { return Vec::new() };
    let Some(largest) = bursts.largest.first() else { return Vec::new() };
    let (a, s) = (&bursts.arrivals, &bursts.signals);
    vec![
        format!(
            "packets per burst: p50 {}  p99 {}  max {}; taken off the tap per guest signal: p99 {}  max {}",
            a.p50, a.p99, a.max, s.p99, s.max
        ),
        format!(
            "largest burst: {}, {} into the trace; {}",
            count(largest.packets, "packet"),
            duration(largest.at as f64),
            cause(largest)
        ),
    ]
}

/// Why the packets of a burst came at once: `the vCPU was asleep for 2.79 ms`.
pub(crate) fn cause(burst: &Burst) -> String {
    let Some(actor) = burst.actor else { return "did not wait".to_owned() };
    let who = match actor {
        Actor::Worker => "the vhost worker",
        Actor::Vcpu => "the vCPU",
    };
    let time = duration(burst.in_state as f64);
    match burst.state {
        None => format!("waited {time} for {who}"),
        Some(ThreadState::Guest) => {
            format!("{who} was in guest mode, without taking the interrupt, for {time}")
        }
        Some(ThreadState::Poll) => format!("{who} was halted, polling, for {time}"),
        Some(ThreadState::Ready) => format!("{who} was waiting for a CPU for {time}"),
        Some(state) => format!("{who} was {} for {time}", state.name(actor)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_burst_has_its_cause() {
        let burst =
            |actor, state| Burst { packets: 16, in_state: 2_790_000, actor, state, ..Burst::default() };
        let all = [
            (Some(Actor::Vcpu), Some(ThreadState::Asleep)),
            (Some(Actor::Vcpu), Some(ThreadState::Run)),
            (Some(Actor::Worker), Some(ThreadState::Ready)),
            (Some(Actor::Worker), None),
            (None, None),
        ];
        assert_eq!(
            all.map(|(actor, state)| cause(&burst(actor, state))),
            [
                "the vCPU was asleep for 2.79 ms",
                "the vCPU was in an exit for 2.79 ms",
                "the vhost worker was waiting for a CPU for 2.79 ms",
                "waited 2.79 ms for the vhost worker",
                "did not wait",
            ]
        );
        assert!(lines(None).is_empty() && lines(Some(&Bursts::default())).is_empty());
    }
}
