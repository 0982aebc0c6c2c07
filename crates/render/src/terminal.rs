//! What a terminal can show; makes untrusted text safe to print.

pub use teiji_model::columns::{columns, pad, shorten, wrap};
use teiji_model::stage::Stage;
pub use teiji_model::text::printable;

/// What text output may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Style {
    /// ANSI colours.
    pub colour: bool,
    /// Characters outside ASCII.
    pub unicode: bool,
}

/// A meaning that is shown as a colour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tone {
    /// Normal text.
    Plain,
    /// What to read first.
    Strong,
    /// What is to blame or missing.
    Bad,
    /// What is fine.
    Good,
    /// What may be skipped.
    Faint,
    /// The colour of a stage.
    Stage(Stage),
}

impl Style {
    /// ASCII without colour.
    pub const PLAIN: Style = Style { colour: false, unicode: false };

    /// `text` in a tone.
    pub fn paint(&self, tone: Tone, text: &str) -> String {
        if !self.colour || text.is_empty() {
            return text.to_owned();
        }
        let code = match tone {
            Tone::Plain => return text.to_owned(),
            Tone::Strong => "1".to_owned(),
            Tone::Bad => "1;31".to_owned(),
            Tone::Good => "32".to_owned(),
            Tone::Faint => "2".to_owned(),
            Tone::Stage(stage) => format!("38;5;{}", stage.about().colour.terminal),
        };
        format!("\x1b[{code}m{text}\x1b[0m")
    }

    /// `text` without characters that this terminal may not be able to show.
    pub fn ascii(&self, text: &str) -> String {
        if self.unicode {
            return text.to_owned();
        }
        let replaced = text
            .replace('µ', "u")
            .replace('·', "-")
            .replace('±', "+-")
            .replace('→', "->")
            .replace('×', "x")
            .replace('≤', "<=");
        replaced.chars().map(|c| if c.is_ascii() { c } else { '?' }).collect()
    }
}

/// [`printable`] for a message of several lines.
pub fn printable_lines(text: &str) -> String {
    text.split('\n').map(printable).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_cannot_drive_the_terminal() {
        assert_eq!(printable("a\x1b[2Jb\nc"), "a\\u{1b}[2Jb\\nc");
        assert_eq!(printable("a\u{202e}b\u{9b}31m"), "a\\u{202e}b\\u{9b}31m");
        assert_eq!(printable("büro-1"), "büro-1");
        assert_eq!(printable_lines("a\nb\r"), "a\nb\\r");
    }
}
