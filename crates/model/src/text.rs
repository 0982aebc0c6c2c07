//! Text for people: makes untrusted text safe to print (names come from guests, processes and files), and formats
//! measured times.

/// Untrusted text in one line: control characters, invisible characters and those that change the direction are shown
/// as escapes.
pub fn printable(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        if hidden(c) { out.extend(c.escape_default()) } else { out.push(c) }
    }
    out
}

/// Longest quotation in a message, characters.
const MAX_QUOTE: usize = 60;

/// The beginning of `text`, printable and at most `MAX_QUOTE` characters long.
pub fn cut(text: &str) -> String {
    // Only the part that is shown is escaped: the text may have a megabyte.
    let head: String = text.chars().take(MAX_QUOTE + 1).collect();
    let shown = printable(&head);
    if shown.chars().count() <= MAX_QUOTE {
        return shown;
    }
    let mut shown: String = shown.chars().take(MAX_QUOTE - 1).collect();
    shown.push('…');
    shown
}

/// `text` in the form in which a message quotes it.
pub fn quote(text: &str) -> String {
    format!("`{}`", cut(text))
}

fn hidden(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{ad}' | '\u{61c}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{e0000}'..='\u{e007f}')
}

/// `1 event`, `2 events`.
pub fn count(n: u64, what: &str) -> String {
    format!("{n} {what}{}", if n == 1 { "" } else { "s" })
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

/// A share as a whole percentage: `46 %`; `-` if it is not a number.
pub fn percent(share: f64) -> String {
    let percent = (share * 100.0).round();
    // A report may come from a file with any numbers: `as` saturates, and turns `-0` into `0`.
    if percent.is_finite() { format!("{} %", percent as i32) } else { "-".to_owned() }
}

/// A number of bytes: `512 MiB`.
pub fn bytes(bytes: u64) -> String {
    let (shift, unit) = match bytes {
        b if b < 1 << 10 => return format!("{b} B"),
        b if b < 1 << 20 => (10, "KiB"),
        b if b < 1 << 30 => (20, "MiB"),
        b if b < 1 << 40 => (30, "GiB"),
        _ => (40, "TiB"),
    };
    let value = bytes as f64 / (1u64 << shift) as f64;
    let decimals = usize::from(value < 9.95 && value.fract() > 0.05);
    format!("{value:.decimals$} {unit}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_whole_percentages_of_any_number() {
        let all = [0.456, 0.125, 1.0, -0.001, -0.5, 1e300, f64::NAN, f64::INFINITY].map(percent);
        assert_eq!(all, ["46 %", "13 %", "100 %", "0 %", "-50 %", "2147483647 %", "-", "-"]);
    }

    #[test]
    fn quotations_are_short_and_printable() {
        assert_eq!(quote("a\u{1b}[31m\n\u{202e}b"), "`a\\u{1b}[31m\\n\\u{202e}b`");
        assert_eq!(cut(&"é".repeat(60)), "é".repeat(60));
        assert_eq!(cut(&"é".repeat(61)), "é".repeat(59) + "…");
        assert_eq!(cut(&"\0".repeat(1 << 20)).chars().count(), 60);
    }

    #[test]
    fn bytes_have_binary_units() {
        assert_eq!(
            (bytes(512 << 20), bytes(3 << 29), bytes(7)),
            ("512 MiB".into(), "1.5 GiB".into(), "7 B".into())
        );
    }
}
