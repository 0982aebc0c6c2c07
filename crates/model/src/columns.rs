//! How many columns of a terminal a text takes: the one rule by which text is aligned, cut and broken into lines.
//!
//! Characters are counted one by one, as wcwidth(3) and most terminals do: East Asian wide characters and emoji take two
//! columns, combining marks none, all others one (Unicode Standard Annex 11). Text is expected to be
//! [`printable`](crate::text::printable), so it has no control characters; they would count as one column.

use unicode_width::UnicodeWidthChar;

/// Most characters for each column of a text that is cut: untrusted text may consist of combining marks.
const MOST: usize = 4;

fn of(c: char) -> usize {
    c.width().unwrap_or(1)
}

/// The columns that `text`, one line, takes.
pub fn columns(text: &str) -> usize {
    text.chars().map(of).sum()
}

/// `text` with spaces after it, so that it takes at least `width` columns.
pub fn pad(text: &str, width: usize) -> String {
    text.to_owned() + &" ".repeat(width.saturating_sub(columns(text)))
}

/// At most `width` columns of `text`; what is cut off is shown by `~`.
pub fn shorten(text: &str, width: usize) -> String {
    let most = MOST * width;
    if columns(text) <= width && text.chars().nth(most).is_none() {
        return text.to_owned();
    }
    let mut left = width.saturating_sub(1);
    let fits = |c: &char| match left.checked_sub(of(*c)) {
        Some(rest) => {
            left = rest;
            true
        }
        None => false,
    };
    text.chars().take(most).take_while(fits).chain(['~']).collect()
}

/// `text` in lines of at most `width` columns, broken at spaces; a longer word is a line of its own.
pub fn wrap(text: &str, width: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    let mut used = 0;
    for word in text.split_whitespace() {
        let length = columns(word);
        let last = lines.len() - 1;
        if lines[last].is_empty() {
            lines[last].push_str(word);
            used = length;
        } else if used + 1 + length <= width {
            lines[last].push(' ');
            lines[last].push_str(word);
            used += 1 + length;
        } else {
            lines.push(word.to_owned());
            used = length;
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn wide_characters_take_two_columns_and_marks_none() {
        for (text, wanted) in [
            ("", 0),
            ("sip-1", 5),
            ("büro", 4),
            ("bu\u{308}ro", 4),
            ("東京", 4),
            ("ｶﾅ", 2),
            ("ＡＢ", 4),
            ("서울", 4),
            ("\u{1f600}", 2),
            ("µ·→█", 4),
            ("กำ", 2),
        ] {
            assert_eq!(columns(text), wanted, "{text}");
        }
        assert_eq!((pad("東京", 6), pad("東京", 3)), ("東京  ".to_owned(), "東京".to_owned()));
    }

    #[test]
    fn cut_text_shows_it() {
        for (text, width, wanted) in [
            ("abcdef", 4, "abc~"),
            ("abcd", 4, "abcd"),
            ("東京", 4, "東京"),
            // Half of a character cannot be shown.
            ("東京都", 4, "東~"),
            ("東京都", 5, "東京~"),
            ("be\u{301}be\u{301}", 3, "be\u{301}~"),
            ("", 0, ""),
        ] {
            assert_eq!(shorten(text, width), wanted);
        }
        assert_eq!(shorten(&"\u{301}".repeat(1000), 5).chars().count(), 21);
    }

    #[test]
    fn wrapping_keeps_every_word() {
        assert_eq!(wrap("aa bb cc", 5), ["aa bb", "cc"]);
        assert_eq!(wrap("toolongword b", 5), ["toolongword", "b"]);
        assert_eq!(wrap("東 京 都", 5), ["東 京", "都"]);
        assert_eq!(wrap("", 5), [""]);
    }

    proptest! {
        #[test]
        fn nothing_is_wider_than_asked(text in "[a ü東\u{301}\u{1f600}]{0,60}", width in 1_usize..40) {
            prop_assert!(columns(&shorten(&text, width)) <= width);
            prop_assert_eq!(columns(&pad(&shorten(&text, width), width)), width);
            let lines = wrap(&text, width);
            let words: Vec<&str> = lines.iter().flat_map(|line| line.split_whitespace()).collect();
            prop_assert_eq!(words, text.split_whitespace().collect::<Vec<_>>());
            for line in lines {
                prop_assert!(columns(&line) <= width || !line.contains(' '), "{}", line);
            }
        }
    }
}
