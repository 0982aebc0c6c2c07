use super::*;
use std::collections::BTreeSet;

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
                length,
                waits: &[],
                name: &|_| String::new(),
            };
            for (rule, (stage, state)) in RULES.iter().flat_map(|r| r.parts.iter().map(move |p| (r, *p))) {
                let share = 0.5;
                let e = Evidence {
                    stage,
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
                    || (rule.cause == Cause::VcpuWakeUp && (100..=2_000_000_000).contains(&length))
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
    let of = candidates(&[stage(Stage::Irq, f64::NAN), stage(Stage::Qdisc, 0.4)], true);
    assert_eq!((of[0].rule.cause, of[0].share), (Cause::LinkQueue, 0.4));
}
