//! Files of `/proc` and `/sys` that stay open between looks, as far as this process may have so many.

use crate::root::{Kept, Root, USUAL};
use crate::sys;

/// Open files that are left for everything else; and how many stay open if the limit is not known.
const OTHERS: u64 = 512;
const USUALLY: u64 = 1024;

/// How many may stay open. Lets this process have as many open files as it may.
pub(crate) fn most() -> usize {
    let most = sys::allow_open_files().map_or(USUALLY, |all| all.saturating_sub(OTHERS));
    usize::try_from(most).unwrap_or(usize::MAX)
}

/// Reads a file that stays open in `slot`, if it may.
pub(crate) struct KeptFiles<'a> {
    pub root: &'a Root,
    /// How many more may stay open.
    pub left: usize,
    pub buffer: &'a mut [u8; USUAL],
}

impl KeptFiles<'_> {
    /// The content of `path`, which is always that of the same file; `None` if it cannot be read.
    pub(crate) fn bytes(&mut self, slot: &mut Option<Kept>, path: impl FnOnce() -> String) -> Option<&[u8]> {
        if let Some(kept) = slot.take() {
            let found = kept.bytes(self.buffer);
            *slot = found.is_some().then_some(kept);
            return found;
        }
        let kept = self.root.keep(&path())?;
        let found = kept.bytes(self.buffer)?;
        if self.left > 0 {
            self.left -= 1;
            *slot = Some(kept);
        }
        Some(found)
    }

    /// As text.
    pub(crate) fn text(&mut self, slot: &mut Option<Kept>, path: impl FnOnce() -> String) -> Option<&str> {
        str::from_utf8(self.bytes(slot, path)?).ok()
    }
}
