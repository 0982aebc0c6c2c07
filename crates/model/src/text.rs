//! Text for people: untrusted text made safe to print (names come from guests, processes and files), and measured
//! times.

/// Untrusted text in one line: control characters, and those that change the direction or are not
/// seen, are shown as escapes.
pub fn printable(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        if hidden(c) { out.extend(c.escape_default()) } else { out.push(c) }
    }
    out
}

fn hidden(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{ad}' | '\u{61c}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{e0000}'..='\u{e007f}')
}

/// A duration with three significant digits: `812 ns`, `12.3 µs`, `1.23 ms`, `2.35 s`.
pub fn duration(ns: f64) -> String {
    let (value, unit) = match ns.abs() {
        a if a < 999.5 => return format!("{ns:.0} ns"),
        a if a < 999.5e3 => (ns / 1e3, "µs"),
        a if a < 999.5e6 => (ns / 1e6, "ms"),
        _ => (ns / 1e9, "s"),
    };
    let decimals = match value.abs() {
        a if a < 9.995 => 2,
        a if a < 99.95 => 1,
        _ => 0,
    };
    format!("{value:.decimals$} {unit}")
}
