//! The web page: self-contained, escaped, well-formed.
#![allow(clippy::unwrap_used)]

mod common;

use teiji_model::report::Report;
use teiji_render::html::Shown;

/// A page as the command writes it.
fn page(title: &str, reports: &[(&str, &Report)]) -> String {
    let advice: Vec<_> = reports.iter().map(|(_, report)| common::advice(report)).collect();
    let shown: Vec<Shown<'_>> = reports
        .iter()
        .zip(&advice)
        .map(|((label, report), advice)| Shown { label, report, advice })
        .collect();
    teiji_render::html::page(title, &shown)
}

/// Checks that elements are closed in the right order.
fn well_formed(html: &str) {
    const VOID: [&str; 2] = ["meta", "!doctype"];
    let mut open: Vec<&str> = Vec::new();
    let mut rest = html;
    while let Some((_, tag)) = rest.split_once('<') {
        let (tag, after) = tag.split_once('>').unwrap();
        rest = after;
        let name = tag.trim_start_matches('/').split([' ', '\n', '/']).next().unwrap();
        if name == "style" && !tag.starts_with('/') {
            rest = rest.split_once("</style>").unwrap().1;
        } else if let Some(name) = tag.strip_prefix('/') {
            assert_eq!(open.pop(), Some(name), "near {}", &after[..after.len().min(80)]);
        } else if !tag.ends_with('/') && !VOID.contains(&name) {
            open.push(name);
        }
    }
    assert!(open.is_empty(), "{open:?}");
}

/// Keeps a page below `target/`, for people to look at.
fn keep(name: &str, html: &str) {
    std::fs::write(std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join(name), html).unwrap();
}

#[test]
fn a_report() {
    let html = page("teiji report", &[("", &common::contended())]);
    keep("contended.html", &html);
    well_formed(&html);
    for wanted in [
        "<p class=\"verdict\">vhost worker waits for a CPU (tap_queue): 92 % of the fluctuation</p>",
        "<dt>preempted by</dt>",
        "<dt>what it means</dt><dd>Made up.</dd>",
        "stress-ng-cpu",
        "13.2 ms",
        "93 %",
        "<svg",
    ] {
        assert!(html.contains(wanted), "{wanted}");
    }
}

#[test]
fn nothing_is_loaded() {
    let html = page("t", &[("", &common::contended())]);
    for forbidden in ["http:", "https:", "//", "src=", "href=", "<script", "@import", "url("] {
        assert!(!html.contains(forbidden), "{forbidden}");
    }
}

#[test]
fn two_reports_side_by_side() {
    let (before, after) = (common::contended(), common::quiet());
    let html = page("before & after", &[("before", &before), ("after", &after)]);
    keep("compared.html", &html);
    well_formed(&html);
    assert!(html.contains("<title>before &amp; after</title>"));
    assert!(html.contains("6.4 × shorter"), "p99 fell from 10.9 ms to 1.7 ms");
}

#[test]
fn no_request() {
    let html = page("t", &[("", &common::one_way())]);
    keep("one-way.html", &html);
    well_formed(&html);
    assert!(html.contains("No complete request was seen") && html.contains("Packets toward the guest"));
}

#[test]
fn untrusted_text_is_escaped() {
    const EVIL: &str = "<img src=x onerror='a'>\"&\x1b[2J";
    let mut report: Report = common::contended();
    report.meta.host = EVIL.into();
    report.meta.kernel = EVIL.into();
    report.meta.watch.flow_text = EVIL.into();
    report.vms[0].name = EVIL.into();
    report.vms[0].verdict.headline = EVIL.into();
    report.vms[0].verdict.details[0].text = EVIL.into();
    report.vms[0].findings[0].preempted_by[0].name = EVIL.into();
    report.vms[0].findings[0].explanation = EVIL.into();
    report.vms[0].findings[0].doubts = vec![EVIL.into()];
    let other = report.clone();
    let html = page(EVIL, &[(EVIL, &report), (EVIL, &other)]);
    keep("evil.html", &html);
    well_formed(&html);
    assert!(!html.contains("<img") && !html.contains('\x1b'));
    // Wherever it stands, it reads as it was written, control characters as escapes.
    let shown = "&lt;img src=x onerror='a'&gt;&quot;&amp;\\u{1b}[2J";
    assert_eq!(html.matches(shown).count(), html.matches("onerror='a'").count());
    assert!(html.contains(&format!("<title>{shown}</title>")) && html.contains(&format!("<dd>{shown}</dd>")));
    report.vms[0].name = "a\nb\u{202e}".into();
    let html = page("t", &[("", &report)]);
    assert!(html.contains("<h2>a\\nb\\u{202e}</h2>"), "{html}");
}

#[test]
fn odd_figures_do_no_harm() {
    let mut report = common::contended();
    for stage in &mut report.vms[0].stages {
        stage.time_share = f64::NAN;
        stage.fluctuation_share = f64::NEG_INFINITY;
    }
    report.vms[0].slowest.iter_mut().for_each(|r| r.total = 0);
    let html = page("t", &[("", &report)]);
    well_formed(&html);
    assert!(!html.contains("NaN") && !html.contains("inf\""), "in an attribute");
    report.vms.clear();
    well_formed(&page("t", &[("", &report)]));
    well_formed(&page("t", &[]));
}

/// Response times of four situations that differ by orders of magnitude, as in the demo.
fn four_situations() -> Vec<(&'static str, Report)> {
    let situation = |us: [u64; 5]| {
        let mut report = common::quiet();
        report.vms[0].total = Some(common::dist(990, us));
        report
    };
    vec![
        ("undisturbed", situation([3_100, 6_980, 9_500, 16_910, 19_400])),
        ("CPU hogs", situation([4_000, 132_640, 1_910_000, 2_490_290, 2_491_000])),
        ("policy applied", situation([3_000, 7_050, 9_900, 16_780, 18_800])),
        ("rolled back", situation([3_900, 65_010, 120_000, 177_210, 180_000])),
    ]
}

#[test]
fn curves_that_are_orders_of_magnitude_apart_are_told_apart() {
    let reports = four_situations();
    let reports: Vec<(&str, &Report)> = reports.iter().map(|(label, r)| (*label, r)).collect();
    let html = page("four situations", &reports);
    keep("four.html", &html);
    well_formed(&html);
    let chart = html.split_once("by percentile").unwrap().1.split_once("</svg>").unwrap().0;
    let lines: Vec<Vec<f64>> = chart.split("<polyline points=\"").skip(1).map(heights).collect();
    let axis = chart.split("y1=\"").skip(1).map(number).fold(0.0, f64::max);
    assert_eq!(lines.len(), 4);
    // Every point except the lowest is well above the axis, and 7 ms are far from 133 ms.
    for line in &lines {
        assert!(line[1..].iter().all(|y| axis - y > 20.0), "{axis}: {lines:?}");
    }
    assert!(lines[0][1] - lines[1][1] > 50.0, "{lines:?}");
    assert!(html.contains("each bar is 100 % of its mean"), "one mean is 75 times another");
}

/// The number at the beginning of an attribute.
fn number(attribute: &str) -> f64 {
    attribute.split_once('"').unwrap().0.parse().unwrap()
}

/// The second coordinates of the points in an attribute.
fn heights(attribute: &str) -> Vec<f64> {
    let points = attribute.split_once('"').unwrap().0;
    points.split(' ').map(|point| point.split_once(',').unwrap().1.parse().unwrap()).collect()
}
