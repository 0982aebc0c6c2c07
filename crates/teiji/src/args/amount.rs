//! Times and sizes on the command line.

use std::time::Duration;
use teiji_model::units::LONG_DURATION;

/// Parses a duration such as `500us`, `3ms`, `1.5s`, `2m` or `1h`.
///
/// # Errors
/// If it has no unit, is zero, or is longer than a year.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    const YEAR: Duration = Duration::from_secs(366 * 86400);
    let duration = Duration::from_nanos(LONG_DURATION.parse(text)?);
    if duration.is_zero() || duration > YEAR {
        return Err("it must be longer than 0 and not longer than a year".to_owned());
    }
    Ok(duration)
}

/// Parses a size such as `65536`, `512K`, `16M` or `1G`; returns bytes.
///
/// # Errors
/// If it is not a size, or is not between 64 KiB and 1 GiB.
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
}
