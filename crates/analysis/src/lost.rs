//! The times at which events were lost.
//!
//! A packet that was on its path while events were lost may look complete, although it was joined with events of
//! another packet. Packets and requests that overlap such a time, or follow it closely, are counted as incomplete.

/// The greatest number of windows; above it the two oldest become one.
const MAX_WINDOWS: usize = 256;
/// How long after a loss new packets are still in doubt, ns: their first report may have been lost.
const MARGIN: u64 = 100_000_000;

/// See the module.
#[derive(Clone, Default)]
pub(crate) struct LostWindows {
    windows: Vec<(u64, u64)>,
}

impl LostWindows {
    /// Events between `since` and `until` may be missing.
    pub(crate) fn add(&mut self, since: u64, until: u64) {
        let (since, until) = (since.min(until), until);
        if let Some(last) = self.windows.last_mut()
            && since <= last.1.saturating_add(MARGIN)
            && until >= last.0
        {
            *last = (last.0.min(since), last.1.max(until));
            return;
        }
        self.windows.push((since, until));
        if self.windows.len() > MAX_WINDOWS {
            self.windows[1].0 = self.windows[0].0.min(self.windows[1].0);
            self.windows[1].1 = self.windows[0].1.max(self.windows[1].1);
            self.windows.remove(0);
        }
    }

    /// Whether events may be missing of something that was on its path from `start` to `end`.
    pub(crate) fn touches(&self, start: u64, end: u64) -> bool {
        self.windows.iter().any(|w| w.0 <= end && w.1.saturating_add(MARGIN) >= start)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_overlaps_or_follows_closely_is_in_doubt() {
        let mut l = LostWindows::default();
        assert!(!l.touches(0, u64::MAX));
        l.add(1_000_000_000, 1_010_000_000);
        assert!(l.touches(0, 1_000_000_000));
        assert!(l.touches(1_005_000_000, 1_006_000_000));
        assert!(l.touches(1_100_000_000, 1_200_000_000));
        assert!(!l.touches(1_120_000_000, 1_200_000_000));
        assert!(!l.touches(0, 999_999_999));
        for i in 0..1000u64 {
            l.add(i * 1_000_000_000, i * 1_000_000_000 + 1);
        }
        assert!(l.windows.len() <= MAX_WINDOWS);
        assert!(l.touches(2_000_000_000, 2_000_000_000));
    }
}
