//! Reports as one self-contained web page: it loads nothing and runs no script. Several reports are shown side by side.
//!
//! Names come from guests and users: [`escape`] is applied to everything that is not a number or a word of this
//! program.

mod chart;
mod compare;
mod percentiles;
mod section;

use crate::terminal::printable;
use teiji_model::advice::Advice;
use teiji_model::report::Report;

/// A report on a page.
#[derive(Clone, Copy, Debug)]
pub struct Shown<'a> {
    /// Its label; may be empty if it is the only report.
    pub label: &'a str,
    /// The report.
    pub report: &'a Report,
    /// The advice for each of its VMs, in their order.
    pub advice: &'a [Advice],
}

/// A page with reports, each with a label. If there are several, the others are compared with the first; if there is
/// one, its label may be empty.
pub fn page(title: &str, shown: &[Shown<'_>]) -> String {
    let reports: Vec<(&str, &Report)> = shown.iter().map(|s| (s.label, s.report)).collect();
    let title = escape(title);
    let mut body = format!("<h1>{title}</h1>\n");
    for (label, report) in &reports {
        body += &section::provenance(label, report);
    }
    if reports.len() > 1 {
        body += &compare::all(&reports);
    }
    let none = Advice::default();
    for Shown { label, report, advice } in shown {
        for (i, vm) in report.vms.iter().enumerate() {
            body += &section::vm(label, advice.get(i).unwrap_or(&none), vm);
        }
        if report.vms.is_empty() {
            body += "<p>No VM was traced.</p>\n";
        }
    }
    format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\
         <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\
         <title>{title}</title>\n<style>\n{}{}</style></head>\n<body>\n{body}\
         <footer>Made by teiji {}. Stages are explained by hovering over them.</footer>\n</body></html>\n",
        chart::colours(),
        include_str!("style.css"),
        env!("CARGO_PKG_VERSION")
    )
}

/// Untrusted text for HTML and SVG, in text and in quoted attributes.
pub fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in printable(text).chars() {
        match c {
            '&' => out += "&amp;",
            '<' => out += "&lt;",
            '>' => out += "&gt;",
            '"' => out += "&quot;",
            '\'' => out += "&#39;",
            other => out.push(other),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    #[test]
    fn no_markup_gets_through() {
        assert_eq!(super::escape("<b a='1'>\"&\x1b"), "&lt;b a=&#39;1&#39;&gt;&quot;&amp;\\u{1b}");
    }
}
