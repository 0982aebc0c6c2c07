use super::*;
use crate::threads::Thread;
use teiji_model::finding::Preemptor;
use teiji_model::report::{PartReport, StageReport};
use teiji_model::stage::{Stage, ThreadState};

/// Builds reports from a mean time (µs) and a share of the fluctuation for each cell.
struct Case {
    total: Dist,
    stages: Vec<StageReport>,
}

fn case(p50: u64, p99: u64, cells: &[(Stage, Option<ThreadState>, f64, f64)]) -> Case {
    let sum: f64 = cells.iter().map(|c| c.2).sum();
    let total = Dist {
        count: 1000,
        mean: sum * 1000.0,
        stddev: (p99 - p50) as f64 * 400.0,
        p50: p50 * 1000,
        p99: p99 * 1000,
        ..Dist::default()
    };
    let stage = |stage: Stage| {
        let of = |state| {
            cells
                .iter()
                .filter(move |c| c.0 == stage && state == c.1)
                .fold((0.0, 0.0), |a, c| (a.0 + c.2, a.1 + c.3))
        };
        let part = |state| {
            let (time, share) = of(Some(state));
            PartReport {
                state,
                mean: time * 1000.0,
                p50: (time * 1000.0) as u64,
                of_p50: (time * 1000.0) as u64,
                time_share: time / sum,
                fluctuation_share: share,
            }
        };
        let parts: Vec<_> = if stage.actor().is_some() {
            ThreadState::ALL.into_iter().map(part).collect()
        } else {
            Vec::new()
        };
        let (time, share) = of(None);
        StageReport {
            stage,
            dist: Dist {
                mean: time * 1000.0 + parts.iter().map(|p| p.mean).sum::<f64>(),
                p50: (time * 1000.0) as u64 + parts.iter().map(|p| p.p50).sum::<u64>(),
                ..Dist::default()
            },
            time_share: time / sum + parts.iter().map(|p| p.time_share).sum::<f64>(),
            fluctuation_share: share + parts.iter().map(|p| p.fluctuation_share).sum::<f64>(),
            parts,
        }
    };
    Case { total, stages: Stage::ALL.into_iter().map(stage).collect() }
}

/// The verdict, and the finding that it is about.
struct Judgement {
    headline: String,
    details: Vec<Detail>,
    fluctuation: bool,
    stage: Option<Stage>,
    state: Option<ThreadState>,
    share: f64,
    preempted_by: Vec<Preemptor>,
}

fn judge(
    requests: &RequestCounts,
    total: Option<&Dist>,
    stages: &[StageReport],
    waits: &[(Stage, Thread, u64)],
    name: &dyn Fn(Thread) -> String,
) -> Judgement {
    let (verdict, findings) = rank(&RuleInput {
        requests,
        total,
        stages,
        guest: &[],
        guest_waits: &[],
        length: 1_000_000_000,
        waits,
        name,
    });
    let Verdict { headline, details, fluctuation } = verdict;
    println!("{headline} {details:?}");
    let first = findings.first();
    Judgement {
        headline,
        details,
        fluctuation,
        stage: first.and_then(Finding::stage),
        state: first.and_then(Finding::state),
        share: first.map_or(0.0, |f| f.share),
        preempted_by: first.map(|f| f.preempted_by.clone()).unwrap_or_default(),
    }
}

fn verdict(c: &Case, waits: &[(Stage, u32, u64)]) -> Judgement {
    let waits: Vec<_> = waits.iter().map(|(stage, tid, ns)| (*stage, Thread::with_id(*tid), *ns)).collect();
    let name = |thread: Thread| if thread.tid == 31 { "stress-ng".into() } else { String::new() };
    judge(&RequestCounts::default(), Some(&c.total), &c.stages, &waits, &name)
}

fn details(v: &Judgement) -> Vec<String> {
    v.details.iter().map(|d| format!("{}: {}", d.label, d.text)).collect()
}

/// As measured on a busy machine: in some requests the worker slept, in others it ran, so the median of each is far below half
/// of the median of the stage. What the worker did was seen all the same, and the stage has most of the time.
#[test]
fn a_thread_that_is_in_one_state_or_another_was_seen() {
    use ThreadState::{Asleep, Guest, Run};
    let mut c = case(
        8_320,
        61_300,
        &[
            (Stage::TapQueue, None, 29.0, 0.0),
            (Stage::TapQueue, Some(Asleep), 1_574.0, 0.23),
            (Stage::TapQueue, Some(Run), 2_598.0, 0.24),
            (Stage::VcpuWake, Some(Asleep), 1_654.0, 0.12),
            (Stage::Guest, Some(Guest), 1_606.0, 0.11),
        ],
    );
    let typical = |c: &mut Case, stage: Stage, of_stage: u64, of_parts: &[(ThreadState, u64, u64)]| {
        let report = c.stages.iter_mut().find(|s| s.stage == stage).unwrap();
        report.dist.p50 = of_stage;
        for (state, p50, of_p50) in of_parts {
            let part = report.parts.iter_mut().find(|p| p.state == *state).unwrap();
            (part.p50, part.of_p50) = (*p50, *of_p50);
        }
    };
    typical(&mut c, Stage::TapQueue, 2_539_519, &[(Asleep, 425_983, 1_100_000), (Run, 190_463, 1_400_000)]);
    typical(&mut c, Stage::VcpuWake, 634_879, &[(Asleep, 561_151, 580_000)]);
    typical(&mut c, Stage::Guest, 1_048_575, &[(Guest, 745_471, 800_000)]);
    let v = verdict(&c, &[]);
    assert_eq!((v.stage, v.state), (Some(Stage::TapQueue), Some(Run)), "{}", v.headline);
    // If what it did is unknown in most of the time, that is said.
    typical(&mut c, Stage::TapQueue, 2_539_519, &[(Asleep, 425_983, 100_000), (Run, 190_463, 140_000)]);
    let v = verdict(&c, &[]);
    assert_eq!((v.stage, v.state), (Some(Stage::TapQueue), None), "{}", v.headline);
}

/// Every possible cause: alone and as one of two stages, with and without fluctuation that matters, standing out or
/// not.
#[test]
fn no_headline_has_more_than_12_words() {
    let mut headlines = std::collections::BTreeSet::new();
    let mut say = |v: Judgement| {
        let words = v.headline.split_whitespace().count();
        assert!(words <= 12, "{words} words: {}", v.headline);
        headlines.insert(v.headline);
    };
    let states = || std::iter::once(None).chain(ThreadState::ALL.map(Some));
    for (stage, state) in Stage::ALL.into_iter().flat_map(|stage| states().map(move |state| (stage, state))) {
        if state.is_some() && stage.actor().is_none() {
            continue;
        }
        for (p50, p99) in [(1_000, 90_000), (1_000, 1_100)] {
            // With 100 %, and with the smallest share that can still be the largest.
            say(verdict(&case(p50, p99, &[(stage, state, 900.0, 1.0)]), &[(stage, 31, 100)]));
            let small = Stage::ALL.map(|s| (s, None, if s == stage { 11.0 } else { 9.0 }, 0.09));
            let mut cells: Vec<_> = small.to_vec();
            cells.retain(|c| c.0 != stage);
            cells.push((stage, state, 11.0, 0.1));
            say(verdict(&case(p50, p99, &cells), &[]));
        }
    }
    for seen in [0, 1, u64::MAX] {
        let r = RequestCounts { seen, unanswered: seen, ..RequestCounts::default() };
        say(judge(&r, None, &[], &[], &|_| String::new()));
    }
    for part in ["vhost worker waits for a CPU (vhost_tx): 100 % of the fluctuation", "nothing stands out; "]
    {
        assert!(headlines.iter().any(|h| h.starts_with(part)), "{part}: {headlines:#?}");
    }
    // 20 causes of the table, and one of each of the others.
    assert!(headlines.len() > 60, "{headlines:#?}");
}

use Stage::{Guest, SwitchIn, TapQueue, VcpuWake, VhostTx};
use ThreadState as S;

#[test]
fn hogs_on_the_vcpus_core() {
    let c = case(
        200,
        8000,
        &[
            (SwitchIn, None, 10.0, 0.0),
            (TapQueue, Some(S::Asleep), 30.0, 0.01),
            (VcpuWake, Some(S::Asleep), 50.0, 0.02),
            (VcpuWake, Some(S::Ready), 900.0, 0.70),
            (Guest, Some(S::Guest), 100.0, 0.07),
            (Guest, Some(S::Ready), 300.0, 0.20),
        ],
    );
    let v = verdict(&c, &[(VcpuWake, 31, 800), (Guest, 31, 100), (VcpuWake, 32, 100), (TapQueue, 33, 5000)]);
    assert_eq!((v.stage, v.state, v.fluctuation), (Some(VcpuWake), Some(S::Ready), true));
    assert!((v.share - 0.9).abs() < 1e-9);
    assert_eq!(v.preempted_by[0], Preemptor { tid: 31, name: "stress-ng".into(), share: 0.9 });
    assert_eq!(v.preempted_by.len(), 2);
    assert_eq!(v.headline, "vCPU waits for a CPU (vcpu_wake): 90 % of the fluctuation");
    assert_eq!(
        details(&v),
        [
            "response time: fluctuates: median 200 µs, 99th percentile 8.00 ms",
            "share: 90 % of the fluctuation: vcpu_wake 70 %, guest 20 %"
        ]
    );
}

#[test]
fn hogs_on_the_workers_core_even_if_they_delay_all_alike() {
    let cells = [
        (TapQueue, Some(S::Ready), 3000.0, 0.3),
        (VhostTx, Some(S::Ready), 3500.0, 0.5),
        (VcpuWake, Some(S::Asleep), 60.0, 0.1),
        (Guest, Some(S::Guest), 150.0, 0.1),
    ];
    for (p50, p99, fluctuates) in [(2000, 9000, true), (6500, 7000, false)] {
        let v = verdict(&case(p50, p99, &cells), &[]);
        assert_eq!((v.stage, v.state, v.fluctuation), (Some(VhostTx), Some(S::Ready), fluctuates));
    }
}

#[test]
fn an_idle_guest_that_sleeps_is_blamed_for_its_wake_up_even_if_the_guest_takes_longer() {
    let c = case(
        200,
        240,
        &[
            (TapQueue, Some(S::Asleep), 20.0, 0.1),
            (VcpuWake, Some(S::Asleep), 80.0, 0.4),
            (Guest, Some(S::Guest), 100.0, 0.5),
        ],
    );
    let v = verdict(&c, &[]);
    assert_eq!((v.stage, v.state, v.fluctuation), (Some(VcpuWake), Some(S::Asleep), false));
    assert_eq!(v.headline, "wake-up of the halted vCPU (vcpu_wake): 40 % of the time");
    assert_eq!(
        details(&v),
        [
            "response time: is steady: median 200 µs, 99th percentile 240 µs",
            "share: 40 % of a typical request's time",
            "also: guest itself runs, 50 % of a typical request's time"
        ]
    );
}

#[test]
fn undisturbed_nothing_stands_out() {
    let c = case(
        100,
        150,
        &[
            (SwitchIn, None, 8.0, 0.1),
            (TapQueue, Some(S::Asleep), 12.0, 0.2),
            (VcpuWake, Some(S::Poll), 10.0, 0.1),
            (Guest, Some(S::Guest), 60.0, 0.5),
            (VhostTx, Some(S::Asleep), 9.0, 0.1),
        ],
    );
    let v = verdict(&c, &[]);
    assert_eq!((v.stage, v.state, v.fluctuation), (Some(Guest), Some(S::Guest), false));
    assert_eq!(v.headline, "nothing stands out; most time in guest (61 %)");
    assert_eq!(
        details(&v)[2],
        "largest cause of the host: wake-up of the vhost worker, 21 %: tap_queue 12 %, vhost_tx 9 %"
    );
}

#[test]
fn fluctuation_of_the_guests_own_names_the_hosts_part_as_well() {
    let c = case(100, 900, &[(Guest, Some(S::Guest), 200.0, 0.6), (VcpuWake, Some(S::Ready), 50.0, 0.4)]);
    let v = verdict(&c, &[]);
    assert_eq!((v.stage, v.state), (Some(Guest), Some(S::Guest)));
    assert_eq!(v.headline, "guest itself runs (guest): 60 % of the fluctuation");
    assert_eq!(details(&v)[1..], ["largest cause of the host: vCPU waits for a CPU, 40 %"]);
}

#[test]
fn a_part_without_a_split_is_still_its_stages() {
    let c = case(100, 900, &[(TapQueue, None, 500.0, 0.9), (Guest, None, 100.0, 0.1)]);
    let v = verdict(&c, &[]);
    assert_eq!((v.stage, v.state), (Some(TapQueue), None));
}

#[test]
fn without_requests_there_is_nothing_to_judge_by() {
    let v = judge(&RequestCounts::default(), None, &[], &[], &|_| String::new());
    assert_eq!((v.stage, v.headline.as_str()), (None, "nothing to judge by: no request was seen"));
    let r = RequestCounts { seen: 9, unanswered: 9, ..RequestCounts::default() };
    let v = judge(&r, None, &[], &[], &|_| String::new());
    assert_eq!(v.headline, "nothing to judge by: none of 9 requests is complete");
    assert_eq!(details(&v), ["requests: 0 incomplete, 0 ambiguous, 9 unanswered"]);
}

#[test]
fn few_requests_and_small_differences_are_not_fluctuation() {
    let d = Dist { count: 1000, mean: 1e5, stddev: 1e6, p50: 100_000, p99: 900_000, ..Dist::default() };
    assert!(fluctuates(&d));
    assert!(!fluctuates(&Dist { count: 19, ..d }));
    assert!(!fluctuates(&Dist { p50: 20_000, p99: 90_000, ..d }));
    assert!(!fluctuates(&Dist { p50: 700_000, ..d }));
}

#[test]
fn when_many_causes_make_the_fluctuation_the_typical_time_is_judged() {
    let c = case(
        200,
        2000,
        &[
            (TapQueue, Some(S::Run), 30.0, 0.25),
            (VcpuWake, Some(S::Asleep), 60.0, 0.20),
            (Guest, Some(S::Guest), 80.0, 0.30),
            (VhostTx, Some(S::Asleep), 20.0, 0.25),
        ],
    );
    let v = verdict(&c, &[]);
    assert_eq!((v.stage, v.state, v.fluctuation), (Some(VcpuWake), Some(S::Asleep), false));
    assert!(details(&v)[0].contains("fluctuates by many causes"), "{}", v.headline);
}
