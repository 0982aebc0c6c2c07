//! Durations, sizes and shares as people write them.

pub use teiji_model::text::{count, duration, percent};

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
    fn three_digits_and_never_a_thousand_of_a_unit() {
        let all: Vec<String> =
            [0.0, 812.0, 999.6, 1230.0, 999_400.0, 999_600.0, 12_345_678.0, 2.35e9, 1.5e11]
                .map(duration)
                .into();
        assert_eq!(
            all,
            ["0 ns", "812 ns", "1.00 µs", "1.23 µs", "999 µs", "1.00 ms", "12.3 ms", "2.35 s", "150 s"]
        );
    }

    #[test]
    fn bytes_have_binary_units() {
        assert_eq!(
            (bytes(512 << 20), bytes(3 << 29), bytes(7)),
            ("512 MiB".into(), "1.5 GiB".into(), "7 B".into())
        );
    }
}
