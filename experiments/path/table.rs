//! The results as Markdown tables and CSV.

use super::accuracy::Agreement;
use super::blame::{Judged, REMEDY};
use super::flood::Flood;
use super::many_vms::ManyVms;
use std::fmt::Write;

/// The results of all parts.
#[derive(Debug, Default)]
pub struct Found {
    /// Part a.
    pub agreements: Vec<Agreement>,
    /// Part b.
    pub judged: Vec<Judged>,
    /// Part c.
    pub many_vms: Option<ManyVms>,
    /// Part d.
    pub flood: Option<Flood>,
}

// Writing to a String cannot fail, here and below.

/// The tables of the README.
pub fn markdown(f: &Found) -> String {
    let mut t = String::new();
    let _ = writeln!(
        t,
        "## a. Accuracy\n\n| case | requests | followed | within 2 % or 50 µs | off, median | off, 99 % | off, most | response, median | response, 99 % | unattributed | events lost |\n\
         | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |"
    );
    for a in &f.agreements {
        let _ = writeln!(
            t,
            "| {} | {} | {:.2} % | {:.2} % | {:+.1} µs | {:.1} µs | {:.1} µs | {:.0} µs | {:.0} µs | {:.3} % | {} |",
            a.case,
            a.answered,
            a.matched_share * 100.0,
            a.agree_share * 100.0,
            a.off_p50_us,
            a.off_p99_us,
            a.off_max_us,
            a.total_p50_us,
            a.total_p99_us,
            a.unattributed * 100.0,
            a.lost
        );
    }
    let _ = writeln!(
        t,
        "\n## b. Blame\n\n| situation | run | right | response, median | response, 99 % | verdict |\n\
         | --- | --- | --- | --- | --- | --- |"
    );
    for j in &f.judged {
        let _ = writeln!(
            t,
            "| {} | {} | {} | {:.0} µs | {:.0} µs | {} |",
            j.situation,
            j.run,
            match j.right {
                _ if j.situation == REMEDY.name => "control",
                true => "yes",
                false => "**no**",
            },
            j.total_us[0],
            j.total_us[1],
            j.sentence
        );
    }
    if let Some(c) = &f.many_vms {
        let _ = writeln!(
            t,
            "\n## c. {} VMs at once\n\n{:.0} requests a second were sustained; then {} could not keep up. teiji took in {} events \
             and lost {}; {} of {} requests complete ({} may be left out, as the recording shows: LIMITATIONS, Trace); peak memory \
             {:.1} MB.\n\n| asked, 1/s | sent, 1/s | answered |\n\
             | --- | --- | --- |",
            c.vms,
            c.sustained_per_s,
            c.limit,
            c.events,
            c.lost,
            c.requests[1],
            c.requests[0],
            c.excused,
            c.peak_kb as f64 / 1e3
        );
        for l in &c.levels {
            let _ = writeln!(t, "| {:.0} | {:.0} | {:.1} % |", l.asked, l.sent, l.answered * 100.0);
        }
    }
    if let Some(d) = &f.flood {
        let _ = writeln!(
            t,
            "\n## d. Flood through the local kernel (Linux {})\n\n{} packets were sent at {:.0} a second ({:.0} asked) and \
             {} put on the tap. teiji took in {} events and lost {}, together {:.4} for each packet on the tap ({} \
             points of the path are probed); peak memory {:.1} MB.",
            d.kernel,
            d.sent,
            d.rate,
            d.asked,
            d.on_tap,
            d.events,
            d.lost,
            d.per_packet(),
            d.points,
            d.peak_kb as f64 / 1e3
        );
    }
    t
}

/// Every request of the accuracy cases, as CSV.
pub fn requests_csv(f: &Found) -> String {
    let mut t = "case,start_ns,capture_ns,teiji_ns,teiji_start_late_ns,inside_ns,outside_ns\n".to_owned();
    for a in &f.agreements {
        for p in &a.pairs {
            let [inside, outside] =
                p.around.map_or([String::new(), String::new()], |a| a.map(|ns| ns.to_string()));
            let _ =
                writeln!(t, "{},{},{},{},{},{inside},{outside}", a.case, p.start, p.capture, p.teiji, p.late);
        }
    }
    t
}

/// The stages of every run and their parts, as CSV.
pub fn stages_csv(f: &Found) -> String {
    let mut t = "situation,run,stage,state,mean_ns,time_share,fluctuation_share\n".to_owned();
    for j in &f.judged {
        for s in &j.report.stages {
            let stage = s.stage.name();
            let (run, situation) = (j.run, j.situation);
            let _ = writeln!(
                t,
                "{situation},{run},{stage},,{:.0},{:.4},{:.4}",
                s.dist.mean, s.time_share, s.fluctuation_share
            );
            for p in &s.parts {
                let _ = writeln!(
                    t,
                    "{situation},{run},{stage},{:?},{:.0},{:.4},{:.4}",
                    p.state, p.mean, p.time_share, p.fluctuation_share
                );
            }
        }
    }
    t
}
