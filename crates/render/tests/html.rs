//! The web page: self-contained, escaped, well-formed.
#![allow(clippy::unwrap_used)]

mod common;

use teiji_model::report::{LargePackets, Report};
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
    const VOID: [&str; 3] = ["meta", "input", "!doctype"];
    let mut open: Vec<&str> = Vec::new();
    let mut rest = html;
    while let Some((_, tag)) = rest.split_once('<') {
        let (tag, after) = tag.split_once('>').unwrap();
        rest = after;
        let name = tag.trim_start_matches('/').split([' ', '\n', '/']).next().unwrap();
        if matches!(name, "style" | "script") && !tag.starts_with('/') {
            rest = rest.split_once(&format!("</{name}>")).unwrap().1;
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
fn requests_of_the_guests_own() {
    let html = page("teiji report", &[("", &common::proxy())]);
    well_formed(&html);
    for wanted in [
        "<h3>Requests that the guest itself sent</h3>",
        "90 % of the time is spent outside this host",
        "500 requests, 480 complete, 19 unanswered, 1 incomplete, 4 retransmitted",
        "answered by another traced VM",
        "<td>of that on this host</td>",
        "the answer is received by the host\">outside</td>",
        "dropped by the host on its way out at dev_queue_xmit (QDISC_DROP) on eth&lt;0&gt;",
        "<td>outside this host</td>",
    ] {
        assert!(html.contains(wanted), "{wanted}");
    }
    assert!(!page("", &[("", &common::contended())]).contains("the guest itself sent"));
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
    let (before, script, after) = around_script(&html);
    for part in [before, after] {
        for forbidden in ["http:", "https:", "//", "src=", "href=", "@import", "url("] {
            assert!(!part.contains(forbidden), "{forbidden}");
        }
        assert!(
            !part.split_whitespace().any(|word| word.starts_with("on") && word.contains('=')),
            "a handler"
        );
    }
    for forbidden in [
        "fetch(",
        "XMLHttpRequest",
        "WebSocket",
        "EventSource",
        "sendBeacon",
        "import(",
        "eval(",
        "Function(",
        ".src",
        "Worker(",
        "innerHTML",
        "document.write",
        "localStorage",
        "</",
    ] {
        assert!(!script.contains(forbidden), "{forbidden}");
    }
}

/// What is before the page's script, the script, and what is after it.
fn around_script(html: &str) -> (&str, &str, &str) {
    let (before, rest) = html.split_once("<script>").unwrap();
    let (script, after) = rest.split_once("</script>").unwrap();
    (before, script, after)
}

fn sha256(bytes: &[u8]) -> Vec<u8> {
    use sha2::Digest;
    sha2::Sha256::digest(bytes).to_vec()
}

#[test]
fn only_the_script_with_that_hash_may_run() {
    const DIGITS: &str = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let html = page("t", &[("", &common::contended())]);
    let (before, script, after) = around_script(&html);
    let policy =
        html.split_once("Content-Security-Policy\" content=\"").unwrap().1.split_once('"').unwrap().0;
    let directives: Vec<&str> = policy.split("; ").collect();
    assert_eq!(directives[0], "default-src 'none'");
    assert_eq!(directives[1], "style-src 'unsafe-inline'");
    let hash = directives[2].strip_prefix("script-src 'sha256-").unwrap().strip_suffix("='").unwrap();
    // Read back digit by digit, not written as the page's code does.
    let bits: String = hash.chars().map(|c| format!("{:06b}", DIGITS.find(c).unwrap())).collect();
    let bytes: Vec<u8> = (0..32).map(|i| u8::from_str_radix(&bits[8 * i..8 * i + 8], 2).unwrap()).collect();
    assert_eq!(bytes, sha256(script.as_bytes()));
    // All other blocks are data, and come after the policy and before the script.
    assert!(before.find("Content-Security-Policy") < before.find("<script"));
    assert_eq!(
        before.matches("<script").count(),
        before.matches("<script type=\"application/json\"").count()
    );
    assert!(!after.contains("<script"));
}

#[test]
fn the_library_is_the_published_one() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("vendor/uplot");
    for (file, sum) in [
        ("uPlot.iife.min.js", "19c8d4c6ad88929a79f4ae49d6f7161566dfd0ba3d15cc495e974f787eb78f1f"),
        ("uPlot.min.css", "df630c6a8d6f8eeaff264b50f73ce5b114f646ffd9a0bb74f049b0a00135fa04"),
        ("LICENSE", "8f989229699b4fe2f1a0432d0e9edc338a8a911e250e2d1b01ecd770a5f5b1bd"),
    ] {
        let found: String = sha256(&std::fs::read(folder.join(file)).unwrap())
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect();
        assert_eq!(found, sum, "{file}");
    }
    let licence = std::fs::read_to_string(folder.join("LICENSE")).unwrap();
    assert!(page("t", &[]).contains(&licence), "the licence goes with each copy");
}

/// The data blocks of one class.
fn data(html: &str, class: &str) -> Vec<serde_json::Value> {
    let begin = format!("<script type=\"application/json\" class=\"{class}\">");
    let blocks = html.split(&begin).skip(1);
    blocks.map(|rest| serde_json::from_str(rest.split_once("</script>").unwrap().0).unwrap()).collect()
}

#[test]
fn the_script_gets_the_figures_of_the_report() {
    let report = common::contended();
    let html = page("t", &[("", &report)]);
    let (stages, figures) = (data(&html, "stages"), data(&html, "figures"));
    assert_eq!((stages.len(), figures.len()), (1, 1));
    let names: Vec<_> = stages[0].as_array().unwrap().iter().map(|s| s["name"].as_str().unwrap()).collect();
    assert_eq!(names, teiji_model::stage::Stage::ALL.map(|s| s.name()));
    let (vm, figures) = (&report.vms[0], &figures[0]);
    let column = |of: &serde_json::Value| -> Vec<u64> {
        of.as_array().unwrap().iter().map(|n| n.as_u64().unwrap()).collect()
    };
    let bins = &vm.over_time.requests.bins;
    assert!(bins.len() > 500);
    assert_eq!(column(&figures["requests"]["max"]), bins.iter().map(|b| b.max).collect::<Vec<_>>());
    assert_eq!(column(&figures["requests"]["count"]).iter().sum::<u64>(), 990);
    for (i, stage) in figures["requests"]["stages"].as_array().unwrap().iter().enumerate() {
        assert_eq!(column(stage), bins.iter().map(|b| b.stages[i]).collect::<Vec<_>>());
    }
    assert_eq!(figures["length"], 10_000_000_000u64);
    assert_eq!(figures["slowest"].as_array().unwrap().len(), vm.slowest.len());
    assert_eq!(figures["slowest"][0]["at"], vm.slowest[0].start - report.meta.started);
    assert_eq!(column(&figures["slowest"][0]["stages"]).iter().sum::<u64>(), vm.slowest[0].total);
}

#[test]
fn without_scripts_everything_is_there() {
    let html = page("t", &[("", &common::contended())]);
    // What the script fills is not shown without it, and none of it is the only place of a figure.
    assert!(html.contains(".narrow, .screen { display: none; }"));
    for part in html.split("<div class=\"screen\">").skip(1) {
        assert!(!part.split_once("</div>").unwrap().0.contains(" ms"), "{part}");
    }
    for wanted in [
        "Response time over the trace",
        "fill=\"var(--s1)\"><title>tap_queue</title>",
        "Packets that waited on the tap over the trace",
        "Messages of a SIP call, after the INVITE",
        "<td>INVITE 2× final 1× </td>",
        "the vhost worker was waiting for a CPU for 11.9 ms",
        "the vCPU was asleep for 11.9 ms",
        "<span>17–32</span>",
        "<b>92 %</b> of the fluctuation: worker waits for cpu",
        "[vm]",
        "@media print",
        "@media (max-width: 640px)",
    ] {
        assert!(html.contains(wanted), "{wanted}");
    }
}

/// As many bins as there may be, each with its own figures in every stage.
fn full() -> Report {
    let mut report = common::contended();
    let all = &mut report.vms[0].over_time;
    *all = Default::default();
    for n in 0..100_000u64 {
        let stages = std::array::from_fn(|i| 40_000 + (n * 7_919 * (i as u64 + 1)) % 3_000_001);
        let total = stages.iter().sum();
        all.requests.add(&teiji_model::report::RequestBin::of(n * 100_003, total, stages));
        all.depth.add(&teiji_model::report::DepthBin::of(n * 100_003, n % 300));
    }
    report
}

/// Its size, and with it the time that a browser needs, does not depend on the length of the trace.
#[test]
fn a_page_is_bounded() {
    let report = full();
    assert!(report.vms[0].over_time.requests.bins.len() > 500);
    let html = page("t", &[("", &report)]);
    keep("full.html", &html);
    well_formed(&html);
    assert!(html.len() < 500_000, "{} bytes", html.len());
    let elements = html.matches('<').count() / 2;
    assert!(elements < 2_000, "{elements} elements");
    // With many VMs each has less.
    let mut many = report.clone();
    many.vms = vec![report.vms[0].clone(); 200];
    let html = page("t", &[("", &many)]);
    let figures = data(&html, "figures");
    let bins: usize = figures.iter().map(|f| f["requests"]["at"].as_array().unwrap().len()).sum();
    assert!(figures.len() == 200 && bins <= 16_384, "{bins}");
    for f in &figures {
        let count: u64 = f["requests"]["count"].as_array().unwrap().iter().map(|n| n.as_u64().unwrap()).sum();
        assert_eq!(count, 100_000, "no request is left out");
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
    let mut report = common::one_way();
    let html = page("t", &[("", &report)]);
    keep("one-way.html", &html);
    well_formed(&html);
    assert!(html.contains("No complete request was seen") && html.contains("Packets toward the guest"));
    assert!(!html.contains("large ones"));
    report.vms[0].inbound.large = LargePackets { packets: 1, segments: 3, largest: 3 };
    let html = page("t", &[("", &report)]);
    assert!(
        html.contains("; large ones on the tap: 1 packet for 3 segments (GSO, GRO), the largest for 3"),
        "{html}"
    );
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
    // None of it is in a script or in its data.
    let all: Vec<&str> =
        html.split("<script").skip(1).map(|s| s.split_once("</script>").unwrap().0).collect();
    assert_eq!(all.len(), 4);
    assert!(all.iter().all(|s| !s.contains("onerror")));
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
    let all = &mut report.vms[0].over_time;
    all.requests.width = 0;
    all.depth.width = u64::MAX;
    all.requests.bins.reverse();
    for bin in &mut all.requests.bins {
        (bin.count, bin.sum, bin.stages) = (0, u64::MAX, [u64::MAX; teiji_model::stage::Stage::COUNT]);
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
