//! Places in a file, and names in its form.

use teiji_model::policy::SourceLocation;
use teiji_model::text::cut;

/// A name in the form of a TOML header: bare if possible, otherwise in quotes.
pub(super) fn key(name: &str) -> String {
    let bare = !name.is_empty() && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_');
    if bare { cut(name) } else { format!("\"{}\"", cut(name)) }
}

/// Finds lines and columns in a text, in nearly constant time.
pub(super) struct Lines<'t> {
    text: &'t str,
    /// Where each line begins, bytes.
    starts: Vec<usize>,
    /// The number of characters before each block of [`Lines::BLOCK`] bytes.
    before: Vec<usize>,
}

impl<'t> Lines<'t> {
    const BLOCK: usize = 256;

    pub(super) fn new(text: &'t str) -> Self {
        let newlines = text.bytes().enumerate().filter(|(_, b)| *b == b'\n');
        let starts = std::iter::once(0).chain(newlines.map(|(at, _)| at + 1)).collect();
        let mut sum = 0;
        let mut before = vec![0];
        for block in text.as_bytes().chunks(Self::BLOCK) {
            sum += characters(block);
            before.push(sum);
        }
        Lines { text, starts, before }
    }

    /// The number of characters before byte `at`.
    fn characters(&self, at: usize) -> usize {
        let block = at / Self::BLOCK;
        self.before[block] + characters(&self.text.as_bytes()[block * Self::BLOCK..at])
    }

    /// The line, from 0, that has byte `at`.
    pub(super) fn line(&self, at: usize) -> usize {
        self.starts.partition_point(|start| *start <= at).saturating_sub(1)
    }

    /// The text of a line, from 0; empty after the last.
    pub(super) fn text(&self, line: usize) -> &'t str {
        let Some(start) = self.starts.get(line) else { return "" };
        let end = self.starts.get(line + 1).copied().unwrap_or(self.text.len());
        self.text[*start..end].trim_end_matches(['\r', '\n'])
    }

    /// The offset of a line, from 0; bytes.
    pub(super) fn start(&self, line: usize) -> usize {
        self.starts.get(line).copied().unwrap_or(self.text.len())
    }

    /// The number of lines.
    pub(super) fn count(&self) -> usize {
        self.starts.len()
    }

    /// The place of byte `at` of the file with this printable name.
    pub(super) fn location(&self, file: &str, at: usize) -> SourceLocation {
        let at = at.min(self.text.len());
        let line = self.line(at);
        let column = self.characters(at) - self.characters(self.starts[line]) + 1;
        SourceLocation { file: file.to_owned(), line: line + 1, column }
    }
}

/// How many characters begin in a piece of UTF-8.
fn characters(bytes: &[u8]) -> usize {
    bytes.iter().filter(|b| (**b as i8) >= -0x40).count()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn names_are_bare_or_in_quotes() {
        assert_eq!((key("a-b_1"), key("a.b"), key("")), ("a-b_1".into(), "\"a.b\"".into(), "\"\"".into()));
    }

    proptest! {
        #[test]
        fn places_are_those_of_counting(text in "[a\né\u{1F600}\r]{0,700}") {
            let lines = Lines::new(&text);
            for (at, _) in text.char_indices().chain([(text.len(), ' ')]) {
                let before = &text[..at];
                let line = before.matches('\n').count();
                let column = before.rsplit('\n').next().unwrap_or_default().chars().count() + 1;
                prop_assert_eq!(lines.location("f", at), SourceLocation { file: "f".into(), line: line + 1, column });
                prop_assert_eq!(lines.text(line), text.split('\n').nth(line).unwrap().trim_end_matches('\r'));
            }
        }
    }
}
