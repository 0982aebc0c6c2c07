use super::*;
use std::collections::BTreeSet;
use teiji_model::report::GuestPart;

#[test]
fn the_table_has_each_cause_at_its_place_and_tells_them_apart() {
    let mut titles = BTreeSet::new();
    for (cause, rule) in Cause::ALL.iter().zip(&RULES) {
        assert_eq!(rule.cause, *cause);
        assert!(titles.insert(rule.title), "{}", rule.title);
        assert!(rule.title.split_whitespace().count() <= 6, "{}", rule.title);
        assert!(rule.explanation.ends_with('.') && !rule.explanation.contains("  "), "{}", rule.explanation);
    }
}

#[test]
fn every_part_of_the_path_belongs_to_exactly_one_cause() {
    for stage in Stage::ALL {
        let states = State::ALL.into_iter().map(Some).filter(|_| stage.actor().is_some()).chain([None]);
        for part in states.map(|state| (stage, state)) {
            let of: Vec<_> = RULES.iter().filter(|r| r.parts.contains(&part)).map(|r| r.cause).collect();
            assert_eq!(of.len(), 1, "{part:?}: {of:?}");
        }
        // Stages that no thread carries have no states, even if a report has some.
        if stage.actor().is_none() {
            assert_eq!(rule(stage, Some(State::Run)).cause, rule(stage, None).cause);
        }
    }
}

#[test]
fn every_kind_of_time_in_the_guest_belongs_to_exactly_one_cause() {
    for row in Row::ALL {
        for state in State::ALL.into_iter().map(Some).chain([None]) {
            let of: Vec<_> =
                RULES.iter().filter(|r| r.inside.contains(&(row, state))).map(|r| r.cause).collect();
            // What is not divided has the causes of the stage.
            let (wanted, found) = match row {
                Row::Undivided => (0, rule(Stage::Guest, state).cause),
                _ => (1, of.first().copied().unwrap_or(Cause::Unattributed)),
            };
            assert_eq!(
                (of.len(), rule_inside(row, state).cause),
                (wanted, found),
                "{row:?} {state:?}: {of:?}"
            );
            assert_ne!(found, Cause::Unattributed, "{row:?} {state:?}");
        }
    }
}

/// The shares of causes add up to those of the stages, also where the guest's reports divide a stage further.
#[test]
fn finer_parts_of_the_guest_replace_its_stage() {
    let dist = Dist { count: 100, mean: 80_000.0, p50: 80_000, ..Dist::default() };
    let guest =
        StageReport { stage: Stage::Guest, dist, time_share: 0.8, fluctuation_share: 0.7, parts: vec![] };
    let rest = StageReport {
        stage: Stage::Irq,
        dist: Dist { mean: 20_000.0, p50: 20_000, ..dist },
        time_share: 0.2,
        fluctuation_share: 0.3,
        parts: vec![],
    };
    let cell = |row, state, share: f64| GuestCell {
        row,
        state,
        mean: share * 80_000.0,
        time_share: 0.8 * share,
        fluctuation_share: 0.7 * share,
    };
    let cells = [
        cell(Row::ReaderBusy, Some(State::Guest), 0.125),
        cell(Row::ReaderWoken, Some(State::Guest), 0.125),
        cell(Row::ReaderWoken, Some(State::Asleep), 0.5),
        cell(Row::Undivided, None, 0.25),
    ];
    for fluctuation in [false, true] {
        let of = candidates(&[rest.clone(), guest.clone()], &cells, fluctuation);
        let all: f64 = of.iter().map(|c| c.share).sum();
        assert!((all - 1.0).abs() < 1e-9, "{all}");
        let first = &of[0];
        assert_eq!(first.rule.cause, Cause::PacketWaitsForHaltedVcpu);
        assert_eq!(
            (first.evidence[0].part, first.evidence[0].place()),
            (Some(GuestPart::SocketWait), "socket_wait")
        );
        let of_cause = |cause| of.iter().find(|c| c.rule.cause == cause).unwrap();
        // Two kinds of time, one part of the path.
        assert_eq!(of_cause(Cause::ReaderWaitsInGuest).evidence.len(), 1);
        let wanted = if fluctuation { 0.7 } else { 0.8 };
        for (cause, share) in [(Cause::ReaderWaitsInGuest, 0.25), (Cause::GuestTime, 0.25)] {
            assert!((of_cause(cause).share - wanted * share).abs() < 1e-9, "{cause:?}");
        }
    }
}

/// With any figures nothing panics, and shares stay between 0 and 1.
#[test]
fn a_remedy_is_lines_or_a_reason_for_none() {
    let requests = RequestCounts { seen: 100, complete: 100, ..RequestCounts::default() };
    for length in [0, 100, 100 * 50_000_000, u64::MAX] {
        for ns in [0, 70_000, u64::MAX] {
            let input = RuleInput {
                requests: &requests,
                total: None,
                stages: &[],
                guest: &[],
                guest_waits: &[],
                length,
                waits: &[],
                name: &|_| String::new(),
            };
            let inside = |row: Row| (Stage::Guest, row.part());
            let places = RULES.iter().flat_map(|r| {
                let parts = r.parts.iter().map(move |p| (r, (p.0, None), p.1));
                parts.chain(r.inside.iter().map(move |p| (r, inside(p.0), p.1)))
            });
            for (rule, (stage, part), state) in places {
                let share = 0.5;
                let e = Evidence {
                    stage,
                    part,
                    state,
                    share,
                    time_share: share,
                    fluctuation_share: share,
                    length: Some(ns),
                };
                let remedy = (rule.remedy)(&input, &[e]);
                assert_eq!(remedy.change.is_some(), !remedy.lines.is_empty());
                assert!(!remedy.text.is_empty());
                let known = matches!(rule.cause, Cause::VcpuWaitsForCpu | Cause::WorkerWaitsForCpu)
                    || (matches!(rule.cause, Cause::VcpuWakeUp | Cause::PacketWaitsForHaltedVcpu)
                        && (100..=2_000_000_000).contains(&length))
                    || (rule.cause == Cause::WorkerWakeUp && ns == 70_000);
                assert_eq!(remedy.change.is_some(), known, "{:?} {length} {ns}: {remedy:?}", rule.cause);
            }
        }
    }
}

#[test]
fn what_no_stage_explains_is_teijis() {
    let dist = Dist { count: 100, p50: 50_000, p99: 60_000, ..Dist::default() };
    let stage = |stage, share: f64| StageReport {
        stage,
        dist: Dist { p50: (share * 100_000.0) as u64, ..dist },
        time_share: share,
        fluctuation_share: share,
        parts: Vec::new(),
    };
    let stages = [stage(Stage::Irq, 0.1), stage(Stage::Unattributed, 0.9)];
    let requests = RequestCounts { seen: 100, complete: 100, ..RequestCounts::default() };
    let input = RuleInput {
        requests: &requests,
        total: Some(&dist),
        stages: &stages,
        guest: &[],
        guest_waits: &[],
        length: 1,
        waits: &[],
        name: &|_| String::new(),
    };
    let (_, findings) = crate::verdict::rank(&input);
    assert_eq!(findings.len(), 1);
    assert_eq!((findings[0].cause, findings[0].blame), (Cause::Unattributed, Blame::Teiji));
}

#[test]
fn what_is_no_number_is_no_share() {
    let stage = |stage, share| StageReport {
        stage,
        dist: Dist::default(),
        time_share: share,
        fluctuation_share: share,
        parts: Vec::new(),
    };
    let of = candidates(&[stage(Stage::Irq, f64::NAN), stage(Stage::Qdisc, 0.4)], &[], true);
    assert_eq!((of[0].rule.cause, of[0].share), (Cause::LinkQueue, 0.4));
}
