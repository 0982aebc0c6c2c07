//! Durations, rates, sizes and percentages as people write them: a number and its unit, `1.5ms`.
//!
//! They are parsed exactly, into whole numbers of a base unit: `0.1us` is 100 ns, and `0.5ns` is an error rather than
//! 0. The tables here are the only definition of the units: the parser, the messages, the policy's schema and the
//! command line use them.

use crate::text::quote;

/// A measured quantity, and its units.
#[derive(Debug)]
pub struct Quantity {
    /// The noun with its article: `a time`.
    pub noun: &'static str,
    /// Units by name, each with its multiple of the base unit; ascending, several names of one unit next to each other.
    pub units: &'static [(&'static str, u64)],
    /// An example: `3ms`.
    pub example: &'static str,
    /// The smallest amount that can be distinguished: `1ns`.
    pub finest: &'static str,
    /// Whether [`Quantity::write`] writes fractions, as in `3.7304ms`; otherwise it writes whole numbers, as in
    /// `1514b`.
    pub fractions: bool,
}

const SECOND: u64 = 1_000_000_000;

/// Durations, ns. `µ` is U+00B5 or U+03BC.
pub const DURATION: Quantity = Quantity {
    noun: "a time",
    units: &[("ns", 1), ("us", 1000), ("µs", 1000), ("μs", 1000), ("ms", 1_000_000), ("s", SECOND)],
    example: "3ms",
    finest: "1ns",
    fractions: true,
};

/// Durations that may be long, ns: how long to do something. Policies do not use it, as `3m` there is probably a `3ms`
/// that lost a letter.
pub const LONG_DURATION: Quantity = Quantity {
    noun: "a time",
    units: &[
        ("ns", 1),
        ("us", 1000),
        ("µs", 1000),
        ("μs", 1000),
        ("ms", 1_000_000),
        ("s", SECOND),
        ("m", 60 * SECOND),
        ("min", 60 * SECOND),
        ("h", 3600 * SECOND),
    ],
    example: "10s",
    finest: "1ns",
    fractions: true,
};

/// Rates, bit/s; decimal factors, as networks count.
pub const RATE: Quantity = Quantity {
    noun: "a rate",
    units: &[("bit", 1), ("kbit", 1000), ("mbit", 1_000_000), ("gbit", 1_000_000_000)],
    example: "2mbit",
    finest: "1bit",
    fractions: true,
};

/// Sizes, bytes.
pub const SIZE: Quantity = Quantity {
    noun: "a size",
    units: &[("b", 1), ("kb", 1000), ("kib", 1 << 10), ("mb", 1_000_000), ("mib", 1 << 20)],
    example: "3kb",
    finest: "1b",
    fractions: false,
};

/// Shares of a whole, in thousandths.
pub const PERCENT: Quantity =
    Quantity { noun: "a percentage", units: &[("%", 10)], example: "150%", finest: "0.1%", fractions: true };

impl Quantity {
    /// Parses a number and its unit; returns base units. Spaces around both are ignored.
    ///
    /// # Errors
    /// If the number or the unit is missing or unknown, if the amount is not a whole number of base units, or if it is
    /// too large. Says what to write instead; printable.
    pub fn parse(&self, text: &str) -> Result<u64, String> {
        let text = text.trim();
        let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
        let (number, unit) = (&text[..end], text[end..].trim_start());
        if number.is_empty() {
            return Err(format!("{} is not {}; {}", quote(text), self.noun, self.fix()));
        }
        let Some((_, factor)) = self.units.iter().find(|(name, _)| *name == unit) else {
            let wrong = match unit {
                "" => format!("{} has no unit", quote(text)),
                _ => format!("{} is not a unit of {}", quote(unit), self.noun.trim_start_matches("a ")),
            };
            return Err(format!("{wrong}; {} ({})", self.fix(), self.names()));
        };
        let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
        if fraction.contains('.') || number == "." {
            return Err(format!("{} is not a number; {}", quote(number), self.fix()));
        }
        let fraction = fraction.trim_end_matches('0');
        let too_great = || format!("{} is too large", quote(text));
        let too_fine = || format!("{} is finer than {}; write a multiple of that", quote(text), self.finest);
        let scale =
            u32::try_from(fraction.len()).ok().and_then(|n| 10u128.checked_pow(n)).ok_or_else(too_fine)?;
        let digits = |digits: &str| if digits.is_empty() { Some(0) } else { digits.parse::<u128>().ok() };
        let amount = digits(whole)
            .and_then(|whole| whole.checked_mul(scale))
            .and_then(|whole| whole.checked_add(digits(fraction)?))
            .and_then(|number| number.checked_mul(u128::from(*factor)))
            .ok_or_else(too_great)?;
        if amount % scale != 0 {
            return Err(too_fine());
        }
        u64::try_from(amount / scale).map_err(|_| too_great())
    }

    /// Text that [`Quantity::parse`] reads as exactly `amount`. Its unit is the largest that is not above `amount` and
    /// in which the decimal digits end, `3.7304ms`; for sizes, the largest of which `amount` is a whole number.
    pub fn write(&self, amount: u64) -> String {
        let in_unit = |(_, factor): &&(&str, u64)| match self.fractions {
            true => *factor <= amount && decimals(amount % factor, *factor).is_some(),
            false => amount.is_multiple_of(*factor),
        };
        let fitting = self.units.iter().filter(in_unit).map(|(_, factor)| *factor).filter(|_| amount > 0);
        let factor = fitting.max().unwrap_or(self.units[0].1);
        // The first of several names of one unit, which can be typed on every keyboard.
        let name = self.units.iter().find(|(_, f)| *f == factor).map_or("", |(name, _)| name);
        let (whole, part) = (amount / factor, amount % factor);
        match decimals(part, factor).filter(|digits| !digits.is_empty()) {
            Some(digits) => format!("{whole}.{digits}{name}"),
            None => format!("{whole}{name}"),
        }
    }

    /// What to write instead, as the second half of a message.
    pub fn fix(&self) -> String {
        format!("write {} with its unit, as in {}", self.noun, self.example)
    }

    /// The names of units that can be typed on every keyboard.
    pub fn names(&self) -> String {
        let names: Vec<&str> = self.units.iter().map(|(name, _)| *name).filter(|n| n.is_ascii()).collect();
        names.join(", ")
    }
}

/// The decimal digits of `part`/`of`, without zeros at their end; `None` if they do not end within 20 digits.
fn decimals(part: u64, of: u64) -> Option<String> {
    let (mut rest, of, mut digits) = (u128::from(part), u128::from(of), String::new());
    while rest > 0 {
        if digits.len() == 20 {
            return None;
        }
        rest *= 10;
        digits.extend(char::from_digit(u32::try_from(rest / of).ok()?, 10));
        rest %= of;
    }
    Some(digits)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn amounts_are_read_exactly() {
        for (quantity, text, amount) in [
            (&DURATION, "3ms", 3_000_000),
            (&DURATION, " 1.5 s ", 1_500_000_000),
            (&DURATION, "0.1us", 100),
            (&DURATION, "10µs", 10_000),
            (&DURATION, "10μs", 10_000),
            (&DURATION, ".5s", 500_000_000),
            (&DURATION, "18446744073709551615ns", u64::MAX),
            (&DURATION, "18446744073.709551615s", u64::MAX),
            (&DURATION, "1.000000000000000000000000000000000000000000s", 1_000_000_000),
            (&LONG_DURATION, "2m", 120_000_000_000),
            (&RATE, "1gbit", 1_000_000_000),
            (&RATE, "0.064mbit", 64_000),
            (&SIZE, "3kb", 3000),
            (&SIZE, "1.5kib", 1536),
            (&SIZE, "64b", 64),
            (&PERCENT, "150%", 1500),
            (&PERCENT, "12.5%", 125),
        ] {
            assert_eq!(quantity.parse(text), Ok(amount), "{text}");
        }
    }

    #[test]
    fn what_is_no_amount_says_what_to_write() {
        for (quantity, text, fix) in [
            (&DURATION, "3", "`3` has no unit; write a time with its unit, as in 3ms (ns, us, ms, s)"),
            (&DURATION, "3min", "`min` is not a unit of time; write a time with its unit, as in 3ms"),
            (&DURATION, "3 MS", "`MS` is not a unit of time"),
            (&DURATION, "", "is not a time; write a time with its unit, as in 3ms"),
            (&DURATION, "-3ms", "`-3ms` is not a time"),
            (&DURATION, "1.2.3s", "`1.2.3` is not a number"),
            (&DURATION, ".s", "`.` is not a number"),
            (&DURATION, "1e3s", "`e3s` is not a unit"),
            (&DURATION, "0.5ns", "finer than 1ns"),
            (&DURATION, "0.0000000000000000000000000000000000000000001s", "finer than 1ns"),
            (&DURATION, "18446744073709551616ns", "too large"),
            (&DURATION, "999999999999999999999999999999999999999999s", "too large"),
            (&RATE, "1gbps", "`gbps` is not a unit of rate; write a rate with its unit, as in 2mbit"),
            (&SIZE, "3k", "write a size with its unit, as in 3kb (b, kb, kib, mb, mib)"),
            (&PERCENT, "0.05%", "finer than 0.1%"),
            (&PERCENT, "1.5", "write a percentage with its unit, as in 150%"),
        ] {
            let message = quantity.parse(text).unwrap_err();
            assert!(message.contains(fix), "{text}: {message}");
        }
    }

    #[test]
    fn amounts_are_written_exactly_and_as_people_write_them() {
        for (quantity, amount, text) in [
            (&DURATION, 3_730_400, "3.7304ms"),
            (&DURATION, 1_500_000, "1.5ms"),
            (&DURATION, 3_000_000, "3ms"),
            (&DURATION, 1_000_000_001, "1.000000001s"),
            (&DURATION, 999, "999ns"),
            (&DURATION, 0, "0ns"),
            (&LONG_DURATION, 90 * SECOND, "1.5m"),
            (&LONG_DURATION, 61 * SECOND, "61s"),
            (&RATE, 999_000_000, "999mbit"),
            (&RATE, 963_214_568, "963.214568mbit"),
            (&SIZE, 1514, "1514b"),
            (&SIZE, 3000, "3kb"),
            (&SIZE, 1536, "1536b"),
            (&PERCENT, 1505, "150.5%"),
            (&PERCENT, 5, "0.5%"),
        ] {
            assert_eq!(quantity.write(amount), text);
        }
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(amount: u64, shift in 0u32..64, which in 0usize..5) {
            let quantity = [&DURATION, &LONG_DURATION, &RATE, &SIZE, &PERCENT][which];
            for amount in [amount >> shift, (amount >> shift) / 1000 * 1000] {
                prop_assert_eq!(quantity.parse(&quantity.write(amount)), Ok(amount));
            }
        }

        #[test]
        fn no_text_panics(text in "[0-9.]{0,50}\\PC{0,6}", which in 0usize..5) {
            let _ = [&DURATION, &LONG_DURATION, &RATE, &SIZE, &PERCENT][which].parse(&text);
        }
    }
}
