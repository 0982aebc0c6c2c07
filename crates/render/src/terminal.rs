//! What a terminal can show; makes untrusted text safe to print.

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
        let replaced =
            text.replace('µ', "u").replace('·', "-").replace('±', "+-").replace('→', "->").replace('×', "x");
        replaced.chars().map(|c| if c.is_ascii() { c } else { '?' }).collect()
    }
}

/// [`printable`] for a message of several lines.
pub fn printable_lines(text: &str) -> String {
    text.split('\n').map(printable).collect::<Vec<_>>().join("\n")
}

/// At most `width` characters of `text`; `~` at the end shows that it was truncated.
pub fn shorten(text: &str, width: usize) -> String {
    if text.chars().count() <= width {
        return text.to_owned();
    }
    text.chars().take(width.saturating_sub(1)).chain(['~']).collect()
}

/// `text` in lines of at most `width` characters, broken at spaces.
pub fn wrap(text: &str, width: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split_whitespace() {
        let last = lines.len() - 1;
        let length = lines[last].chars().count();
        if length == 0 {
            lines[last].push_str(word);
        } else if length + 1 + word.chars().count() <= width {
            lines[last].push(' ');
            lines[last].push_str(word);
        } else {
            lines.push(word.to_owned());
        }
    }
    lines
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

    #[test]
    fn wrapping_keeps_every_word() {
        assert_eq!(wrap("aa bb cc", 5), ["aa bb", "cc"]);
        assert_eq!(wrap("toolongword b", 5), ["toolongword", "b"]);
        assert_eq!(wrap("", 5), [""]);
    }

    #[test]
    fn cut_text_shows_it() {
        assert_eq!((shorten("abcdef", 4), shorten("abcd", 4)), ("abc~".to_owned(), "abcd".to_owned()));
    }
}
