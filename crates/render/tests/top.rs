//! The picture of `teiji top`: golden text, and that it fits any terminal.
#![allow(clippy::unwrap_used)]

mod common;

use std::path::Path;
use teiji_model::report::Report;
use teiji_model::snapshot::{Recent, Snapshot};
use teiji_model::stage::Stage;
use teiji_render::terminal::{Style, columns};
use teiji_render::top::{Sort, View, lines};

const UNICODE: Style = Style { colour: false, unicode: true };

fn golden(name: &str, lines: &[String]) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name);
    let text: String = lines.iter().map(|line| line.trim_end().to_owned() + "\n").collect();
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        std::fs::write(&path, &text).unwrap();
    }
    let wanted = std::fs::read_to_string(&path).unwrap();
    assert!(text == wanted, "{} is not:\n{text}\n(UPDATE_GOLDEN=1 writes it)", path.display());
}

/// A VM of which this much was completed in the last second, the slowest with such a queue.
fn recent(complete: u64, queue_us: u64) -> Recent {
    let slowest = common::request(3, 2_000_000_000, queue_us);
    let mut stages = [0; Stage::COUNT];
    stages.iter_mut().zip(&slowest.stages).for_each(|(sum, s)| *sum = s.ns * complete / 2);
    let max = slowest.total / 1000;
    let total = Some(common::dist(complete, [max / 9, max / 5, max / 2, max - 1, max]));
    Recent { complete, total, stages, slowest: Some(slowest) }
}

/// Three VMs, of which one answers nothing.
fn snapshot() -> Snapshot {
    let mut report: Report = common::contended();
    let mut quiet = common::quiet().vms.remove(0);
    (quiet.name, quiet.pid) = ("db-with-a-very-long-name".into(), 5000);
    let mut silent = common::one_way().vms.remove(0);
    (silent.name, silent.pid) = ("東京".into(), 6000);
    report.vms.extend([quiet, silent]);
    Snapshot { report, interval: 1_000_000_000, recent: vec![recent(98, 4_000), recent(1_250, 60)] }
}

fn before() -> Snapshot {
    let mut before = snapshot();
    before.report.counters.lost = vec![5];
    before.report.vms[0].requests.seen -= 99;
    before
}

#[test]
fn a_picture() {
    let view = View::default();
    golden("top.txt", &lines(&snapshot(), Some(&before()), &view, (110, 40), &UNICODE));
    golden("top-ascii.txt", &lines(&snapshot(), None, &view, (80, 24), &Style::PLAIN));
}

/// A line without the codes of its colours.
fn plain(line: &str) -> String {
    let mut parts = line.split('\x1b');
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |text, part| text + part.split_once('m').unwrap().1)
}

#[test]
fn it_fits_any_terminal_and_is_the_same_in_colour() {
    let colour = Style { colour: true, unicode: true };
    let now = snapshot();
    for width in 1..140 {
        for height in [1, 2, 3, 5, 10, 24, 60] {
            let all = lines(&now, Some(&before()), &View::default(), (width, height), &UNICODE);
            assert_eq!(all.len(), height);
            for line in &all {
                assert!(columns(line) <= width, "{} columns of {width}: {line}", columns(line));
            }
            let coloured = lines(&now, Some(&before()), &View::default(), (width, height), &colour);
            assert_eq!(coloured.iter().map(|l| plain(l)).collect::<Vec<_>>(), all);
        }
    }
}

#[test]
fn the_chosen_vm_stays_chosen_whatever_the_order() {
    let now = snapshot();
    let mut view = View::default();
    let title = |view: &View| {
        let all = lines(&now, None, view, (110, 40), &UNICODE);
        all.into_iter().find(|l| l.contains("  pid ")).unwrap()
    };
    assert!(title(&view).starts_with("sip1 "), "it has the longest p99");
    view.go(&now, 1);
    assert!(title(&view).starts_with("db-with"), "{}", title(&view));
    for sort in [Sort::Rate, Sort::Max, Sort::Name, Sort::P99] {
        view.sort = view.sort.next();
        assert_eq!(view.sort, sort);
        assert!(title(&view).starts_with("db-with"));
    }
    view.go(&now, -5);
    assert!(title(&view).starts_with("sip1 "));
    view.go(&now, 50);
    assert!(title(&view).starts_with("東京 "), "the last row");
    view.chosen = Some(99);
    assert!(title(&view).starts_with("sip1 "), "a VM that is gone");
    // With many VMs the chosen one is in the list.
    let mut many = snapshot();
    many.report.vms =
        (0..300).map(|i| teiji_model::report::VmReport { pid: i, ..now.report.vms[2].clone() }).collect();
    let mut view = View { sort: Sort::Name, ..View::default() };
    view.go(&many, 200);
    let all = lines(&many, None, &view, (80, 24), &UNICODE);
    assert_eq!(all.iter().filter(|l| l.starts_with("> ")).count(), 1, "{all:#?}");
    assert!(all.iter().any(|l| l.contains("pid 200")));
}

#[test]
fn a_paused_picture_says_so() {
    let view = View { paused: true, ..View::default() };
    let all = lines(&snapshot(), None, &view, (80, 24), &UNICODE);
    assert!(all[0].starts_with("PAUSED") && all[23].contains("p go on"), "{all:#?}");
}

#[test]
fn names_cannot_drive_the_terminal() {
    let mut now = snapshot();
    for text in ["a\x1b[2J\n\u{202e}b", "\u{9b}31m"] {
        now.report.vms[0].name = text.into();
        now.report.meta.host = text.into();
        now.report.meta.watch.flow_text = text.into();
        now.report.vms[0].verdict.headline = text.into();
        let all = lines(&now, None, &View::default(), (120, 40), &UNICODE).concat();
        assert!(!all.chars().any(|c| c.is_control() || c == '\u{202e}'), "{all}");
    }
}

#[test]
fn nothing_yet_is_no_panic() {
    let mut now = snapshot();
    now.recent.clear();
    now.interval = 0;
    lines(&now, None, &View::default(), (80, 24), &UNICODE);
    now.report.vms.clear();
    let mut view = View::default();
    view.go(&now, 1);
    lines(&now, None, &view, (80, 24), &UNICODE);
}
