//! Durations, sizes and shares as people write them.

pub use teiji_model::text::{bytes, count, duration, percent};

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
}
