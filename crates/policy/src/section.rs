//! The keys of one section, checked against the table.

use super::file::{File, entries};
use super::keys::Section;
use super::text::key;
use super::value::Value;
use std::collections::BTreeMap;
use teiji_model::policy::{Line, Located};
use teiji_model::text::{cut, quote};
use toml::de::{DeTable, DeValue};

/// The longest unknown name for which a similar one is searched, bytes.
const MAX_WORD: usize = 40;

/// A key that is written in a file.
pub(super) struct Written {
    pub name: &'static str,
    /// The index of the file.
    pub file: usize,
    /// The offset of the key, bytes.
    pub key: usize,
    /// The text of the line, and the place of its value.
    pub line: Line,
    /// `None` if the value is wrong, which has been reported.
    value: Option<Located<Value>>,
}

/// Parses the keys of `table`, whose header is `path`, in the file with this index.
pub(super) fn read(
    (index, file): (usize, &mut File<'_>),
    section: &'static Section,
    path: &str,
    table: &DeTable<'_>,
) -> Vec<Written> {
    let mut written = Vec::new();
    for (word, value) in entries(table) {
        let name: &str = word.get_ref();
        let location = word.span().start;
        let Some(known) = section.key(name) else {
            let header = file.header(location, value);
            let message = match value.get_ref() {
                // `[link.eth0.100]`: a name with a dot in it.
                DeValue::Table(_) if header != location => {
                    let fix = "if the name has a dot, put it in quotes, as in [link.\"eth0.100\"]";
                    format!("[{path}] has no section {} in it; {fix}", quote(name))
                }
                _ => unknown(section, path, name),
            };
            file.report(header, message);
            continue;
        };
        // A value that could not be parsed has no place, and a table has that of its header.
        let start = value.span().start.max(location);
        let line = Line {
            text: format!("{name} = {}", cut(file.written(start..value.span().end))),
            location: file.location(start),
        };
        let value = match known.kind.read(value.get_ref()) {
            Ok(value) => Some(file.at(start, value)),
            Err(message) => {
                file.report(start, format!("`{}`: {message}", known.name));
                None
            }
        };
        written.push(Written { name: known.name, file: index, key: location, line, value });
    }
    written
}

/// The keys of a section that apply, while they are turned into a policy.
pub(super) struct Keys<'f, 't> {
    files: &'f mut [File<'t>],
    section: &'static Section,
    /// The first file that has the section, and the offset of the section there.
    at: (usize, usize),
    written: BTreeMap<&'static str, Written>,
}

impl<'f, 't> Keys<'f, 't> {
    /// The keys that apply in the section `path`; a required key that is missing is reported.
    pub(super) fn new(
        files: &'f mut [File<'t>],
        section: &'static Section,
        at: (usize, usize),
        path: &str,
        written: BTreeMap<&'static str, Written>,
    ) -> Self {
        let keys = Keys { files, section, at, written };
        if keys.keys_known() {
            for missing in section.keys.iter().filter(|k| k.required && !keys.written.contains_key(k.name)) {
                let message = format!("[{path}] needs `{}`; {}", missing.name, missing.kind.fix());
                keys.files[at.0].report(at.1, message);
            }
        }
        keys
    }

    /// The offset of a key, whether its value is valid or not.
    pub(super) fn key(&self, name: &str) -> Option<usize> {
        debug_assert!(self.section.key(name).is_some(), "{name} is not in the table");
        self.written.get(name).map(|written| written.key)
    }

    /// The value of a key, if it is written and valid.
    pub(super) fn value(&self, name: &str) -> Option<Located<Value>> {
        debug_assert!(self.section.key(name).is_some(), "{name} is not in the table");
        self.written.get(name)?.value.clone()
    }

    /// The value of a key, converted by `read`.
    pub(super) fn get<T>(&self, name: &str, read: impl Fn(Value) -> Option<T>) -> Option<Located<T>> {
        let Located { value, location } = self.value(name)?;
        Some(Located { value: read(value)?, location })
    }

    /// The value of a key that is a number.
    pub(super) fn number<T: TryFrom<u64>>(&self, name: &str) -> Option<Located<T>> {
        self.get(name, |value| match value {
            Value::Number(number) => T::try_from(number).ok(),
            _ => None,
        })
    }

    /// Whether all keys in all files are known.
    pub(super) fn keys_known(&self) -> bool {
        self.files.iter().all(|file| file.keys_known)
    }

    /// Records a problem of a key; does nothing if the key is not written.
    pub(super) fn report(&mut self, name: &str, message: String) {
        if let Some(at) = self.key(name) {
            let file = self.written.get(name).map_or(self.at.0, |written| written.file);
            self.files[file].report(at, message);
        }
    }

    /// A name, with the section's place.
    pub(super) fn name<T>(&self, name: T) -> Located<T> {
        self.files[self.at.0].at(self.at.1, name)
    }
}

fn unknown(section: &Section, path: &str, name: &str) -> String {
    if let Some((name, why)) = section.misplaced.iter().find(|(stray, _)| *stray == name) {
        return format!("`{name}` {why}");
    }
    if let Some(right) = nearest(name, section.keys.iter().map(|k| k.name)) {
        return format!("unknown key {}; did you mean `{right}`?", quote(name));
    }
    let others: Vec<&str> =
        super::keys::SECTIONS.iter().filter(|s| s.key(name).is_some()).map(|s| s.form).collect();
    if !others.is_empty() {
        return format!("[{path}] has no key `{}`; it belongs below {}", key(name), others.join(" or "));
    }
    let names: Vec<&str> = section.keys.iter().map(|k| k.name).collect();
    format!("unknown key {}; {} has {}", quote(name), section.form, names.join(", "))
}

/// The word that `name` was most likely meant to be.
pub(super) fn nearest<'w>(name: &str, words: impl Iterator<Item = &'w str>) -> Option<&'w str> {
    if name.len() > MAX_WORD {
        return None;
    }
    let plain = name.to_ascii_lowercase().replace('-', "_");
    let distance = |word: &&str| strsim::osa_distance(&plain, word);
    let word = words.min_by_key(distance)?;
    (distance(&word) <= (word.len() / 3).max(1)).then_some(word)
}
