//! Writes policies as TOML, with any VM names.
//!
//! Names come from the command lines of VMs. A header quotes them as TOML's basic strings in ASCII, so that no terminal
//! and no editor shows a different name; a comment shows them like [`printable`] does.

use std::fmt::Write;
use teiji_model::columns::wrap;
use teiji_model::text::printable;

/// The width of comments in columns, unless a word is longer.
pub(super) const WIDTH: usize = 97;

/// A name as a key of TOML: bare if possible, otherwise quoted, with escapes for all characters that are not printable
/// ASCII.
///
/// The name has no control characters: a policy accepts none.
pub(super) fn key(name: &str) -> String {
    let bare = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
    if !name.is_empty() && name.chars().all(bare) {
        return name.to_owned();
    }
    let mut quoted = String::from('"');
    for c in name.chars() {
        // Writing to a String cannot fail.
        let _ = match c {
            '"' | '\\' => write!(quoted, "\\{c}"),
            ' '..='~' => write!(quoted, "{c}"),
            '\0'..='\u{ffff}' => write!(quoted, "\\u{:04X}", c as u32),
            _ => write!(quoted, "\\U{:08X}", c as u32),
        };
    }
    quoted + "\""
}

/// A text as lines of a comment.
pub(super) fn comment(text: &str) -> Vec<String> {
    let lines = wrap(&printable(text), WIDTH - 2);
    lines.iter().map(|line| format!("# {line}").trim_end().to_owned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_ascii_and_quoted_where_they_must_be() {
        for (name, wanted) in [
            ("sip-1_a", "sip-1_a"),
            ("", "\"\""),
            ("a.b", "\"a.b\""),
            ("a b]", "\"a b]\""),
            ("pid:7", "\"pid:7\""),
            ("a\"b\\c", "\"a\\\"b\\\\c\""),
            ("büro", "\"b\\u00FCro\""),
            ("x\u{202e}y\u{1f600}", "\"x\\u202Ey\\U0001F600\""),
        ] {
            assert_eq!(key(name), wanted);
        }
    }

    #[test]
    fn comments_are_lines_of_a_comment() {
        assert_eq!(comment("a\n[vm.x]\u{1b}[2J"), ["# a\\n[vm.x]\\u{1b}[2J"]);
        assert_eq!(comment(""), ["#"]);
        let lines = comment(&"word ".repeat(100));
        assert!(lines.iter().all(|l| l.starts_with("# word") && l.len() <= WIDTH), "{lines:?}");
        assert_eq!(comment(&"x".repeat(300)).len(), 1);
    }
}
