//! Sets of CPUs, in the kernel's format: `0-3,8`.

use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

/// The greatest number of CPUs that an x86-64 kernel can be built for (`NR_CPUS`).
pub const MAX_CPUS: u32 = 8192;

/// A set of CPUs; may be empty.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct CpuSet(BTreeSet<u32>);

impl CpuSet {
    /// Whether the set has no CPU.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The number of CPUs.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether `cpu` is in the set.
    pub fn contains(&self, cpu: u32) -> bool {
        self.0.contains(&cpu)
    }

    /// The CPUs, ascending.
    pub fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        self.0.iter().copied()
    }

    /// The CPUs of this set that are not in `other`.
    pub fn without(&self, other: &CpuSet) -> CpuSet {
        CpuSet(self.0.difference(&other.0).copied().collect())
    }

    /// The CPUs that are in either set.
    pub fn union(&self, other: &CpuSet) -> CpuSet {
        CpuSet(self.0.union(&other.0).copied().collect())
    }
}

impl FromIterator<u32> for CpuSet {
    fn from_iter<T: IntoIterator<Item = u32>>(cpus: T) -> Self {
        CpuSet(cpus.into_iter().collect())
    }
}

/// Why a text is not a list of CPUs.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CpuSetError {
    /// A part that is no number and no range.
    #[error("`{0}` is neither a CPU nor a range; write a list such as 0-3,8")]
    NotCpu(String),
    /// A range from high to low.
    #[error("the range `{0}` ends before it begins")]
    Backwards(String),
    /// A CPU number that no kernel can have.
    #[error("no x86 kernel has a CPU {0}; the greatest is {max}", max = MAX_CPUS - 1)]
    TooGreat(String),
}

impl FromStr for CpuSet {
    type Err = CpuSetError;

    /// Blank text is the empty set.
    fn from_str(text: &str) -> Result<Self, CpuSetError> {
        if text.trim().is_empty() {
            return Ok(CpuSet::default());
        }
        // A table, so that a long list of overlapping ranges takes no more time than reading it.
        let mut listed = vec![false; MAX_CPUS as usize];
        for part in text.trim().split(',') {
            let part = part.trim();
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let (first, last) = (cpu(first, part)?, cpu(last, part)?);
            if last < first {
                return Err(CpuSetError::Backwards(part.to_owned()));
            }
            listed[first as usize..=last as usize].fill(true);
        }
        Ok((0..).zip(listed).filter_map(|(cpu, listed)| listed.then_some(cpu)).collect())
    }
}

fn cpu(text: &str, part: &str) -> Result<u32, CpuSetError> {
    let text = text.trim();
    if text.is_empty() || !text.bytes().all(|b| b.is_ascii_digit()) {
        return Err(CpuSetError::NotCpu(part.to_owned()));
    }
    text.parse().ok().filter(|cpu| *cpu < MAX_CPUS).ok_or_else(|| CpuSetError::TooGreat(text.to_owned()))
}

impl TryFrom<String> for CpuSet {
    type Error = CpuSetError;

    fn try_from(text: String) -> Result<Self, CpuSetError> {
        text.parse()
    }
}

impl From<CpuSet> for String {
    fn from(set: CpuSet) -> String {
        set.to_string()
    }
}

impl fmt::Display for CpuSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut cpus = self.0.iter().copied().peekable();
        let mut between = "";
        while let Some(first) = cpus.next() {
            let mut last = first;
            while let Some(next) = cpus.next_if_eq(&(last + 1)) {
                last = next;
            }
            match last - first {
                0 => write!(f, "{between}{first}")?,
                _ => write!(f, "{between}{first}-{last}")?,
            }
            between = ",";
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_read_and_written_as_the_kernel_does() {
        for (text, written) in
            [("0-3,8", "0-3,8"), ("8, 1,0 ,2-3", "0-3,8"), ("5", "5"), ("", ""), ("0-1\n", "0-1")]
        {
            assert_eq!(text.parse::<CpuSet>().unwrap().to_string(), written);
        }
    }

    #[test]
    fn what_is_no_list_is_refused() {
        for wrong in ["a", "1-", "-1", "3-1", "1,,2", "8192", "99999999999", "0-4294967295", "1 2"] {
            assert!(wrong.parse::<CpuSet>().is_err(), "{wrong}");
        }
    }
}
