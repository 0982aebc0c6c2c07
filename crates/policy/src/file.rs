//! One policy file: its TOML, the places in it, and the problems found so far.
//!
//! ```text
//! text ── length, nesting ──► toml's parser, which continues after an error ──► table + syntax errors
//! ```
//! The table after a syntax error is a guess. Problems that may exist only because of that guess are not reported: see
//! [`File::report`] and [`File::keys_known`].

use super::MAX_DEPTH;
use super::text::{Lines, key};
use std::ops::Range;
use teiji_model::policy::{Located, MAX_BYTES, Problem, Source, SourceLocation};
use teiji_model::text::printable;
use teiji_model::text::quote;
use toml::Spanned;
use toml::de::{DeTable, DeValue};
use toml_parser::lexer::TokenKind;

/// The longest line that is examined for the fix of a syntax error, bytes.
const MAX_LINE: usize = 1000;

/// A key with its value, as toml's parser returns them.
pub(super) type Entry<'e, 't> = (&'e Spanned<std::borrow::Cow<'t, str>>, &'e Spanned<DeValue<'t>>);

/// The entries of a table, in the order in which they are written.
pub(super) fn entries<'e, 't>(table: &'e DeTable<'t>) -> Vec<Entry<'e, 't>> {
    let mut entries: Vec<_> = table.iter().collect();
    entries.sort_by_key(|(key, _)| key.span().start);
    entries
}

/// A file that is being parsed.
pub(super) struct File<'t> {
    /// Its name, printable.
    name: String,
    text: &'t str,
    lines: Lines<'t>,
    /// Offset in bytes, and message.
    problems: Vec<(usize, String)>,
    /// For each line, from 0: whether its keys and values are guesses.
    guessed: Vec<bool>,
    /// Whether the table has all keys of the text, which is not known after a syntax error: only then can a key be
    /// reported as missing.
    pub keys_known: bool,
}

impl<'t> File<'t> {
    /// Parses the TOML of `source`; `None` if the text is too long or nested too deeply.
    pub(super) fn read(source: &'t Source) -> (File<'t>, Option<DeTable<'t>>) {
        // Before anything else, as the rest allocates tables of the text's size.
        let too_long = source.text.len() > MAX_BYTES;
        // toml's parser would skip a byte order mark; without it the columns are correct.
        let text = source.text.strip_prefix('\u{feff}').unwrap_or(&source.text);
        let text = if too_long { "" } else { text };
        let mut file = File {
            name: printable(&source.name),
            text,
            lines: Lines::new(text),
            problems: Vec::new(),
            guessed: Vec::new(),
            keys_known: true,
        };
        if too_long {
            let length = source.text.len();
            file.report(
                0,
                format!("the file has {length} bytes; write at most {MAX_BYTES}, or several files"),
            );
            return (file, None);
        }
        if let Some(at) = too_deep(text) {
            let message =
                format!("tables and lists are nested deeper than {MAX_DEPTH} here; no key needs more than 4");
            file.report(at, message);
            return (file, None);
        }
        let (table, errors) = DeTable::parse_recoverable(text);
        let mut errors_found = Vec::new();
        for error in errors {
            let span = error.span().unwrap_or(0..0);
            let duplicate = error.message() == "duplicate key";
            file.keys_known &= duplicate;
            errors_found.push(file.explain(error.message(), span.clone()));
            if !duplicate {
                file.guess(span.start);
            }
        }
        file.problems = errors_found;
        (file, Some(table.into_inner()))
    }

    /// Marks the lines that a syntax error at byte `at` makes unreliable: its line; after a broken header all lines up
    /// to the next header.
    fn guess(&mut self, at: usize) {
        let header = |line: usize| self.lines.text(line).trim_start().starts_with('[');
        let line = self.lines.line(at);
        self.guessed.resize(self.lines.count(), false);
        // Only once for all errors of a line: there may be a million.
        if std::mem::replace(&mut self.guessed[line], true) || !header(line) {
            return;
        }
        for line in (line + 1..self.lines.count()).take_while(|line| !header(*line)) {
            self.guessed[line] = true;
        }
    }

    /// The place of byte `at`.
    pub(super) fn location(&self, at: usize) -> SourceLocation {
        self.lines.location(&self.name, at)
    }

    /// The text at that place.
    pub(super) fn written(&self, span: Range<usize>) -> &'t str {
        self.text.get(span).unwrap_or_default().trim()
    }

    /// A value with its place.
    pub(super) fn at<T>(&self, at: usize, value: T) -> Located<T> {
        Located { value, location: self.location(at) }
    }

    /// Where the name of the section with this `value` begins: after the brackets of its header if it has a header,
    /// otherwise at `key`.
    pub(super) fn header(&self, key: usize, value: &Spanned<DeValue<'_>>) -> usize {
        let start = value.span().start;
        let is_header = matches!(value.get_ref(), DeValue::Table(_)) && self.text[start..].starts_with('[');
        if !is_header {
            return key;
        }
        let name = self.text[start..].trim_start_matches(['[', ' ', '\t']);
        self.text.len() - name.len()
    }

    /// Records a problem at byte `at`, unless the text there is only a guess.
    pub(super) fn report(&mut self, at: usize, message: String) {
        let guessed = self.guessed.get(self.lines.line(at)).copied().unwrap_or(false);
        if !guessed {
            self.problems.push((at, message));
        }
    }

    /// All problems, in the order of the text.
    pub(super) fn into_problems(mut self) -> Vec<Problem> {
        let mut problems = std::mem::take(&mut self.problems);
        problems.sort_by_key(|(at, _)| *at);
        problems.dedup();
        let problem = |(at, message): (usize, String)| Problem {
            location: self.location(at),
            message: printable(&message),
        };
        problems.into_iter().map(problem).collect()
    }

    /// A syntax error, and what to do about it.
    fn explain(&self, message: &str, span: Range<usize>) -> (usize, String) {
        let line = self.lines.line(span.start);
        // A line of a megabyte may have a million errors, so long lines are not examined for each error.
        let whole = Some(self.lines.text(line)).filter(|text| text.len() <= MAX_LINE).unwrap_or_default();
        let written = self.text.get(span.clone()).unwrap_or("");
        if message == "duplicate key" {
            let what = if whole.trim_start().starts_with('[') { "section" } else { "key" };
            let message = format!("the {what} {} is written twice; keep one of the two", quote(written));
            return (span.start, message);
        }
        if message.starts_with("cannot extend value") {
            let message = format!("{} has a value already and cannot be a section as well", quote(written));
            return (span.start, format!("{message}; remove one of the two"));
        }
        if message.starts_with("key with no value") {
            let key = key(whole.split_whitespace().next().unwrap_or_default());
            return (
                span.start,
                format!("there is no `=` after the key; write a line such as {key} = \"…\""),
            );
        }
        if message.starts_with("unclosed table") {
            return (span.start, "the header is not closed; write `]` after the section's name".to_owned());
        }
        // Text without quotes: toml's parser takes it for any value that can begin with its first character.
        let start = self.lines.start(line);
        let value = whole.split_once('=').map(|(before, value)| (start + before.len() + 1, value));
        if let Some((after, value)) = value.filter(|(after, _)| *after <= span.start) {
            let value = value.split('#').next().unwrap_or_default();
            let at = after + (value.len() - value.trim_start().len());
            let value = value.trim();
            if value.is_empty() {
                return (at.min(span.start), "there is no value after `=`; write one".to_owned());
            }
            if !value.contains(['"', '\'', '[', ']', '{', '}', '=']) {
                let message = format!("{} is neither a number nor text", quote(value));
                return (at, format!("{message}; write text in quotes, as in {}", key_quoted(value)));
            }
        }
        (span.start, format!("not TOML: {message}"))
    }
}

fn key_quoted(value: &str) -> String {
    format!("\"{}\"", teiji_model::text::cut(value))
}

/// Where tables and lists are nested deeper than [`MAX_DEPTH`]. toml's parser and its tables are recursive, so this
/// uses the tokens only: the keys of a header and of dotted keys, and the open brackets.
fn too_deep(text: &str) -> Option<usize> {
    let mut header = 0;
    let mut in_header = false;
    let mut in_key = true;
    let mut line_begins = true;
    let mut open: Vec<(usize, TokenKind)> = Vec::new();
    let mut depth = 0;
    for token in toml_parser::Source::new(text).lex() {
        let kind = token.kind();
        match kind {
            TokenKind::LeftSquareBracket if open.is_empty() && (line_begins || in_header) => {
                if !in_header {
                    depth = 0;
                }
                in_header = true;
                depth += 1;
            }
            TokenKind::LeftSquareBracket | TokenKind::LeftCurlyBracket => {
                open.push((depth, kind));
                depth += 1;
                in_key = kind == TokenKind::LeftCurlyBracket;
            }
            TokenKind::RightSquareBracket | TokenKind::RightCurlyBracket => {
                depth = open.pop().map_or(depth, |(outside, _)| outside);
                in_key = false;
            }
            TokenKind::Dot if in_key => depth += 1,
            TokenKind::Equals => in_key = false,
            TokenKind::Comma => {
                if let Some((outside, kind)) = open.last() {
                    depth = outside + 1;
                    in_key = *kind == TokenKind::LeftCurlyBracket;
                }
            }
            TokenKind::Newline if open.is_empty() => {
                if in_header {
                    header = depth;
                }
                (depth, in_header, in_key) = (header, false, true);
            }
            _ => {}
        }
        line_begins = kind == TokenKind::Newline || (line_begins && kind == TokenKind::Whitespace);
        if depth > MAX_DEPTH {
            return Some(token.span().start());
        }
    }
    None
}
