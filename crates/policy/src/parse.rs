//! Parses files into a policy: sections, their names and keys, and contradictions.
//!
//! ```text
//! each file ── its sections and keys ──► per section, lines of all files ── layers: one applies ──► meaning ──► Policy
//! ```
//! All problems are collected; none ends the parsing early. A key with a wrong value counts as written, so it is not
//! also reported as missing or as contradicting another key.

use super::file::{Entry, File, entries};
use super::interpret;
use super::keys::{self, HeaderNames, SECTIONS, Section};
use super::layers::{self, LayeredSection};
use super::section::{self, Keys, nearest};
use super::text::key;
use super::value::{decimal, not_a_name, wrong_device, wrong_vm};
use std::collections::BTreeMap;
use teiji_model::policy::{Located, Policy, Problem, Source, Subject, VfPolicy};
use teiji_model::text::quote;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// The greatest number of virtual functions: `TotalVFs` of the SR-IOV capability has 16 bits.
const MAX_VFS: u32 = u16::MAX as u32;

/// Parses the files of a policy.
///
/// # Errors
/// All problems, in the order of files and lines; never empty.
pub fn parse(sources: &[Source]) -> Result<Policy, Vec<Problem>> {
    let mut reader = Reader::default();
    let mut files = Vec::new();
    for (index, source) in sources.iter().enumerate() {
        let (mut file, table) = File::read(source);
        if let Some(table) = table {
            reader.file((index, &mut file), &table);
        }
        files.push(file);
    }
    let policy = reader.policy(&mut files);
    let problems: Vec<Problem> = files.into_iter().flat_map(File::into_problems).collect();
    if problems.is_empty() { Ok(policy) } else { Err(problems) }
}

#[derive(Default)]
struct Reader {
    /// In the order of their first mention.
    sections: Vec<LayeredSection>,
    /// The index of each section in that list, by the names in its header.
    seen: BTreeMap<String, usize>,
}

/// The table of a section, and where it begins.
struct Found<'e, 't> {
    /// The names in its header after the section's own word.
    names: Vec<&'e str>,
    /// The offset of the last of these names, or of the section's word.
    at: usize,
    /// The offset of the header, after the bracket.
    header: usize,
    table: &'e DeTable<'t>,
}

impl Reader {
    fn file(&mut self, (index, file): (usize, &mut File<'_>), root: &DeTable<'_>) {
        for (word, value) in entries(root) {
            match keys::section(word.get_ref()) {
                Some(section) => {
                    let mut found = Vec::new();
                    find(file, section, (word, value), &mut found);
                    found.sort_by_key(|found| found.at);
                    for found in found {
                        self.section((index, &mut *file), section, &found);
                    }
                }
                None => unknown_section(file, word, value),
            }
        }
    }

    fn section(
        &mut self,
        (index, file): (usize, &mut File<'_>),
        section: &'static Section,
        found: &Found<'_, '_>,
    ) {
        if let Some(message) = wrong_name(section.header_names, &found.names) {
            file.report(found.at, message);
        }
        let path: Vec<String> =
            std::iter::once(section.name).chain(found.names.iter().copied()).map(key).collect();
        // The complete names, as `path` may be truncated.
        let id = format!("{}\n{}", section.name, found.names.join("\n"));
        let path = path.join(".");
        let written = section::read((index, file), section, &path, found.table);
        match self.seen.get(&id) {
            Some(at) => self.sections[*at].written.extend(written),
            None => {
                self.seen.insert(id, self.sections.len());
                let names = found.names.iter().map(|name| (*name).to_owned()).collect();
                let (at, header) = ((index, found.at), found.header);
                self.sections.push(LayeredSection { section, names, path, at, header, written });
            }
        }
    }

    /// The policy of all files together.
    fn policy(self, files: &mut [File<'_>]) -> Policy {
        let mut policy = Policy::default();
        for LayeredSection { section, names, path, at, header, written } in self.sections {
            let (holding, overridden) = LayeredSection::decide(written, section, &path);
            policy.overridden.extend(overridden);
            policy.completed.extend(layers::completed(&holding, section));
            // TOML's parser keeps the place of a NIC's first function only.
            let device = files[at.0].location(header);
            let mut keys = Keys::new(files, section, at, &path, holding);
            let name = |index: usize| names.get(index).cloned().unwrap_or_default();
            let subject = match section.header_names {
                HeaderNames::One => Some(Subject::Host),
                HeaderNames::Link => Some(Subject::Link(keys.name(name(0)))),
                HeaderNames::Vm => Some(Subject::Vm(keys.name(name(0)))),
                HeaderNames::Channel | HeaderNames::Vf => None,
            };
            let direct = subject.iter().flat_map(|subject| interpret::direct(&keys, section, subject));
            policy.direct.extend(direct);
            match section.header_names {
                HeaderNames::One => policy.host = interpret::host(&mut keys),
                HeaderNames::Link => policy.links.push(interpret::link(&mut keys, name(0))),
                HeaderNames::Vm => policy.vms.push(interpret::vm(&mut keys, name(0))),
                HeaderNames::Channel => policy.channels.extend(interpret::channel(&mut keys, name(0))),
                HeaderNames::Vf => {
                    let index = keys.name(decimal(&name(1)).unwrap_or_default());
                    let (hard, weight) = interpret::vf(&mut keys);
                    let link = Located { value: name(0), location: device };
                    policy.vfs.push(VfPolicy { link, index, hard, weight });
                }
            }
        }
        policy
    }
}

/// Collects the sections below the word of `entry`: one, or one for each name, or one for each pair of names.
fn find<'e, 't>(
    file: &mut File<'_>,
    section: &'static Section,
    (word, value): Entry<'e, 't>,
    found: &mut Vec<Found<'e, 't>>,
) {
    let levels = match section.header_names {
        HeaderNames::One => 0,
        HeaderNames::Link | HeaderNames::Vm | HeaderNames::Channel => 1,
        HeaderNames::Vf => 2,
    };
    let mut level = vec![(Vec::new(), word, value)];
    for _ in 0..levels {
        let mut next = Vec::new();
        for (names, word, value) in level {
            let Some(table) = table(file, section, word, value) else { continue };
            if table.is_empty() {
                nameless(file, section, file.header(word.span().start, value));
            }
            for (word, value) in entries(table) {
                let mut names = names.clone();
                names.push(word.get_ref().as_ref());
                next.push((names, word, value));
            }
        }
        level = next;
    }
    for (names, word, value) in level {
        if let Some(table) = table(file, section, word, value) {
            let at = word.span().start;
            found.push(Found { names, at, header: file.header(at, value), table });
        }
    }
}

/// `value` as a table; a value that is not a table is reported.
fn table<'e, 't>(
    file: &mut File<'_>,
    section: &Section,
    word: &Spanned<std::borrow::Cow<'_, str>>,
    value: &'e Spanned<DeValue<'t>>,
) -> Option<&'e DeTable<'t>> {
    match value.get_ref() {
        DeValue::Table(table) => return Some(table),
        DeValue::Array(list) if list.iter().any(|item| matches!(item.get_ref(), DeValue::Table(_))) => {
            let at = file.header(word.span().start, value);
            file.report(at, format!("a list of sections has no meaning here; write {}", section.form));
        }
        _ if section.key(word.get_ref()).is_some() => nameless(file, section, word.span().start),
        _ => {
            let message = format!("{} is not a section; write {}", quote(word.get_ref()), section.form);
            file.report(word.span().start, message);
        }
    }
    None
}

fn nameless(file: &mut File<'_>, section: &Section, at: usize) {
    file.report(at, format!("[{}] lacks a name; write {} above its keys", section.name, section.form));
}

fn unknown_section(
    file: &mut File<'_>,
    word: &Spanned<std::borrow::Cow<'_, str>>,
    value: &Spanned<DeValue<'_>>,
) {
    let name: &str = word.get_ref();
    let owners: Vec<&str> = SECTIONS.iter().filter(|s| s.key(name).is_some()).map(|s| s.form).collect();
    let DeValue::Table(table) = value.get_ref() else {
        let message = match owners[..] {
            [] => format!("{} is outside any section; write it below {}", quote(name), forms()),
            _ => format!("{} is outside any section; write it below {}", quote(name), owners.join(" or ")),
        };
        return file.report(word.span().start, message);
    };
    let fix = match nearest(name, SECTIONS.iter().map(|s| s.name)) {
        Some(right) => format!("did you mean `{right}`?"),
        None => format!("sections are {}", forms()),
    };
    // Its first mention, and each later header.
    let mut places = vec![file.header(word.span().start, value)];
    places.extend(table.iter().map(|(_, below)| file.header(word.span().start, below)));
    places.sort_unstable();
    places.dedup();
    for at in places {
        file.report(at, format!("unknown section {}; {fix}", quote(name)));
    }
}

fn forms() -> String {
    SECTIONS.iter().map(|s| s.form).collect::<Vec<_>>().join(", ")
}

/// Why nothing can have these names; `None` if they are valid.
fn wrong_name(header_names: HeaderNames, names: &[&str]) -> Option<String> {
    if let Some(wrong) = names.iter().find_map(|name| not_a_name(name)) {
        return Some(wrong);
    }
    match (header_names, names) {
        (HeaderNames::Link, [device]) => wrong_device(device),
        (HeaderNames::Vf, [device, index]) => wrong_device(device).or_else(|| {
            let right = decimal(index).filter(|n| *n < MAX_VFS && n.to_string() == **index);
            let most = MAX_VFS - 1;
            right.is_none().then(|| {
                format!("{} is not a virtual function; write its number, from 0 to {most}", quote(index))
            })
        }),
        (HeaderNames::Vm, [name]) => wrong_vm(name),
        _ => None,
    }
}
