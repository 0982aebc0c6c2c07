//! Experiment `admission`: no admitted set of channels misses a deadline; refused sets do. See README.md beside this
//! file.
//!
//! | module | does |
//! | --- | --- |
//! | [`sets`] | draws links and sets of channels, near what the link can carry |
//! | [`traffic`] | the channels' packets: the worst that their token buckets allow, or random |
//! | [`link`] | sends the packets one by one |
//! | [`trial`] | lets the admission control decide, and checks the decision on the simulated link |

pub mod link;
pub mod sets;
pub mod traffic;
pub mod trial;

/// How much of the experiment is run.
#[derive(Clone, Copy, Debug)]
pub struct Extent {
    /// Sets of channels.
    pub sets: u64,
    /// Runs with random traffic for each admitted set, in addition to the patterns.
    pub random: u32,
}

/// The extent that the README's claims are made for.
pub const FULL: Extent = Extent { sets: 20_000, random: 16 };

/// The short form that tests run.
pub const SHORT: Extent = Extent { sets: 400, random: 8 };

/// Random numbers that are the same in each run with the same seed (splitmix64; Steele, Lea, Flood, OOPSLA 2014).
#[derive(Clone, Debug)]
pub struct Rng(u64);

impl Rng {
    /// A generator; the same seed gives the same numbers.
    pub fn new(seed: u64) -> Self {
        Rng(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15))
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number from `from` to `to`, both included.
    pub fn range(&mut self, from: u64, to: u64) -> u64 {
        from + self.next() % (to.max(from) - from + 1)
    }

    /// A number from `from` to `to`; each order of magnitude is equally likely.
    pub fn scale(&mut self, from: u64, to: u64) -> u64 {
        let value = from as f64 * (to as f64 / from as f64).powf(self.unit());
        (value as u64).clamp(from, to)
    }

    /// A number from 0 to 1; each is equally likely.
    pub fn unit(&mut self) -> f64 {
        self.next() as f64 / u64::MAX as f64
    }

    /// True with the given probability, percent.
    pub fn chance(&mut self, percent: u64) -> bool {
        self.range(0, 99) < percent
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_form() {
        let found = trial::run(&SHORT, 1, 1);
        assert_eq!(found.wrong, Vec::<String>::new());
        assert!(found.admitted > 50 && found.refused > 50, "{found:?}");
        assert!(found.refused_that_missed * 100 >= found.refused * 95, "{found:?}");
    }
}
