//! Durations, sizes and shares as people write them.

use std::time::Duration;
pub use teiji_model::text::duration as ns;
use teiji_model::units::LONG_DURATION;

/// Reads a duration such as `500us`, `3ms`, `1.5s`, `2m` or `1h`.
///
/// # Errors
/// If it has no unit, is zero, or is longer than a year.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    const YEAR: Duration = Duration::from_secs(366 * 86400);
    let duration = Duration::from_nanos(LONG_DURATION.parse(text)?);
    if duration.is_zero() || duration > YEAR {
        return Err("it must be longer than nothing and no longer than a year".to_owned());
    }
    Ok(duration)
}

/// Reads a size such as `65536`, `512K`, `16M` or `1G`, in bytes.
///
/// # Errors
/// If it is not one, or is not between 64 KiB and 1 GiB.
pub fn parse_size(text: &str) -> Result<usize, String> {
    let (number, unit) = split(text);
    let shift = match unit.trim_end_matches(['B', 'b']).trim_end_matches('i') {
        "" => 0,
        "k" | "K" => 10,
        "m" | "M" => 20,
        "g" | "G" => 30,
        _ => return Err("write a size in bytes, or with K, M or G, as in 16M".to_owned()),
    };
    let number: usize = number.parse().map_err(|_| format!("`{number}` is not a whole number"))?;
    let bytes = number.checked_mul(1 << shift).filter(|b| (64 << 10..=1 << 30).contains(b));
    bytes.ok_or_else(|| "it must be between 64K and 1G".to_owned())
}

fn split(text: &str) -> (&str, &str) {
    let text = text.trim();
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    (&text[..end], text[end..].trim_start())
}

/// A share as a whole percentage.
pub fn percent(share: f64) -> String {
    let percent = (share * 100.0).round();
    if !percent.is_finite() {
        return "-".to_owned();
    }
    // `+ 0.0` so that nothing is ever `-0 %`.
    format!("{:.0} %", percent + 0.0)
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

/// `1 event`, `2 events`.
pub fn count(n: u64, what: &str) -> String {
    format!("{n} {what}{}", if n == 1 { "" } else { "s" })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_read_as_people_write_them() {
        let ok = |t: &str| parse_duration(t).unwrap();
        assert_eq!(ok("3ms"), Duration::from_millis(3));
        assert_eq!(ok("1.5 s"), Duration::from_millis(1500));
        assert_eq!(ok("2m"), Duration::from_secs(120));
        assert_eq!(ok("1h"), Duration::from_secs(3600));
        for wrong in ["", "10", "s", "0s", "-1s", "1d", "1.2.3s", "99999999h", "NaNs", "1e9s"] {
            assert!(parse_duration(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn sizes() {
        assert_eq!(parse_size("16M"), Ok(16 << 20));
        assert_eq!(parse_size("65536"), Ok(65536));
        for wrong in ["", "1", "2G", "-1M", "16X", "99999999999999999999G"] {
            assert!(parse_size(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn three_digits_and_never_a_thousand_of_a_unit() {
        let all: Vec<String> =
            [0.0, 812.0, 999.6, 1230.0, 999_400.0, 999_600.0, 12_345_678.0, 2.35e9, 1.5e11].map(ns).into();
        assert_eq!(
            all,
            ["0 ns", "812 ns", "1.00 µs", "1.23 µs", "999 µs", "1.00 ms", "12.3 ms", "2.35 s", "150 s"]
        );
    }

    #[test]
    fn shares_and_bytes() {
        assert_eq!(
            (percent(0.456), percent(-0.001), percent(f64::NAN)),
            ("46 %".into(), "0 %".into(), "-".into())
        );
        assert_eq!(
            (bytes(512 << 20), bytes(3 << 29), bytes(7)),
            ("512 MiB".into(), "1.5 GiB".into(), "7 B".into())
        );
    }
}
