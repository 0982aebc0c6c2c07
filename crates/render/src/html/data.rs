//! The figures that the page's script draws, as JSON in a block that no browser executes.
//!
//! The block consists of numbers and of names that teiji itself gives. Yet everything but plain ASCII, and what has a meaning
//! in markup, is escaped: no text could end the block or the page.

use crate::text;
use maud::{Markup, PreEscaped, html};
use serde_json::{Value, json};
use teiji_model::over_time::{Bin, DepthBin, RequestBin, Timeline};
use teiji_model::report::{Request, VmReport};
use teiji_model::stage::{TABLE, ThreadState};

/// Bins of all VMs of a page together; with more VMs each has fewer, but not below [`LEAST`].
const ALL: usize = 16_384;
/// Bins that a VM has in any case.
const LEAST: usize = 32;

/// The names of the stages, and of the states of their threads.
pub(super) fn stages() -> Markup {
    let states = |actor| ThreadState::ALL.map(|state| state.name(actor));
    let all: Vec<Value> = TABLE
        .iter()
        .map(|about| json!({"name": about.name, "meaning": about.meaning, "states": about.actor.map(states)}))
        .collect();
    block("stages", &Value::from(all))
}

/// The figures of one VM of a page with so many VMs. `started` is when the trace began, and `length` how long it was.
pub(super) fn vm(vm: &VmReport, of: usize, started: u64, length: u64) -> Markup {
    let most = (ALL / of.max(1)).max(LEAST);
    let slowest: Vec<Value> = vm.slowest.iter().map(|r| request(r, started)).collect();
    let figures = json!({
        "length": length,
        "requests": requests(&vm.over_time.requests.at_most(most)),
        "depth": depth(&vm.over_time.depth.at_most(most)),
        "slowest": slowest,
    });
    block("figures", &figures)
}

fn column<B: Bin>(line: &Timeline<B>, of: impl Fn(&B) -> u64) -> Value {
    line.bins.iter().map(of).collect()
}

fn requests(line: &Timeline<RequestBin>) -> Value {
    let stages: Vec<Value> = (0..TABLE.len()).map(|stage| column(line, |b| b.stages[stage])).collect();
    json!({
        "width": line.width,
        "at": column(line, |b| b.at),
        "count": column(line, |b| b.count),
        "min": column(line, |b| b.min),
        "mean": column(line, |b| b.mean() as u64),
        "max": column(line, |b| b.max),
        "slowest_at": column(line, |b| b.slowest_at),
        "stages": stages,
    })
}

fn depth(line: &Timeline<DepthBin>) -> Value {
    json!({"width": line.width, "at": column(line, |b| b.at), "max": column(line, |b| b.max)})
}

fn request(r: &Request, started: u64) -> Value {
    let stages: Vec<u64> = TABLE
        .iter()
        .map(|about| {
            r.stages.iter().filter(|s| s.stage == about.stage).fold(0, |a, s| s.ns.saturating_add(a))
        })
        .collect();
    let split = |stage| r.stages.iter().find(|s| s.stage == stage).and_then(|s| s.split).map(|split| split.0);
    let splits: Vec<Option<_>> = TABLE.iter().map(|about| split(about.stage)).collect();
    json!({
        "at": r.start.saturating_sub(started),
        "total": r.total,
        "stages": stages,
        "splits": splits,
        "note": text::dominant(r),
    })
}

fn block(class: &str, value: &Value) -> Markup {
    html! { script type="application/json" class=(class) { (PreEscaped(escaped(&value.to_string()))) } }
}

/// JSON in printable ASCII, without anything that has a meaning in markup. It stays the same JSON: these characters are in
/// its strings only.
fn escaped(json: &str) -> String {
    let mut out = String::with_capacity(json.len());
    for c in json.chars() {
        if matches!(c, ' '..='~') && !matches!(c, '<' | '>' | '&' | '\'') {
            out.push(c);
        } else {
            let mut units = [0; 2];
            c.encode_utf16(&mut units).iter().for_each(|unit| out += &format!("\\u{unit:04x}"));
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_text_ends_the_block() {
        for evil in [
            "</script><script>alert(1)</script>",
            "<!--<script>",
            "]]>&lt;\u{2028}\u{2029}\u{202e}",
            "'\"\\\n\r\t\0\u{7f}\u{85}",
            "東京😀",
        ] {
            let text = escaped(&json!({ evil: [evil] }).to_string());
            assert!(text.chars().all(|c| c.is_ascii_graphic() || c == ' '), "{text}");
            assert!(!text.contains(['<', '>', '&', '\'']), "{text}");
            let read: Value = serde_json::from_str(&text).unwrap_or_default();
            assert_eq!(read, json!({ evil: [evil] }));
            assert_eq!(block("x", &json!(evil)).0.matches("<").count(), 2);
        }
    }
}
