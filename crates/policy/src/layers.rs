//! Decides which line applies if several files set the same key.
//!
//! The files have an order: for each key, the last file that sets it decides. Keys that only have a meaning together
//! with another (`priority` with `class`) may be decided with it: a file that sets `class` discards what earlier files
//! say about `priority`. Each overridden line, and the line that overrides it, is kept for the plan.

use super::keys::{KeyGroup, Section};
use super::section::Written;
use std::collections::BTreeMap;
use teiji_model::policy::{Completed, KeyLocation, Line, Overridden};

/// A section, from all files that have it.
pub(super) struct LayeredSection {
    pub section: &'static Section,
    /// The names in its header after the section's own word.
    pub names: Vec<String>,
    /// In the form of a header: `vm.sip1`; long names are truncated.
    pub path: String,
    /// The first file that has the section, and the offset of its last name there, bytes. `header` is where its header
    /// begins.
    pub at: (usize, usize),
    pub header: usize,
    /// Its lines, in the order of the files.
    pub written: Vec<Written>,
}

impl LayeredSection {
    /// The line that applies for each key, and the lines that it overrides.
    pub(super) fn decide(
        written: Vec<Written>,
        section: &Section,
        path: &str,
    ) -> (EffectiveLines, Vec<Overridden>) {
        let mut effective: EffectiveLines = BTreeMap::new();
        let mut overruled: Vec<(&str, Written)> = Vec::new();
        for line in written {
            let name = line.name;
            overruled.extend(effective.insert(name, line).map(|earlier| (name, earlier)));
        }
        for KeyGroup { first, rest, .. } in section.groups.iter().filter(|group| group.discards) {
            let Some(since) = effective.get(first).map(|line| line.file) else { continue };
            for name in *rest {
                if effective.get(name).is_some_and(|line| line.file < since) {
                    overruled.extend(effective.remove(name).map(|line| (*first, line)));
                }
            }
            for (by, line) in &mut overruled {
                // All lines that held in an earlier file are overridden for the same reason.
                if rest.contains(&line.name) && line.file < since && !effective.contains_key(line.name) {
                    *by = first;
                }
            }
        }
        overruled.sort_by_key(|(_, line)| (line.file, line.key));
        let mut overridden = Vec::new();
        for (name, line) in &effective {
            let same = |l: &&Written| l.name == *name && l.line.text == line.line.text;
            let over: Vec<Line> = overruled
                .iter()
                .filter(|(by, l)| by == name && !same(&l))
                .map(|(_, l)| l.line.clone())
                .collect();
            if !over.is_empty() {
                overridden.push(Overridden { section: path.to_owned(), holds: line.line.clone(), over });
            }
        }
        (effective, overridden)
    }
}

/// The lines that others of their group complete, as `priority` completes `class`.
pub(super) fn completed(effective: &EffectiveLines, section: &Section) -> Vec<Completed> {
    let complete = |group: &KeyGroup| {
        let first = effective.get(group.first)?;
        let rest = group.rest.iter().filter_map(|name| effective.get(name));
        let with: Vec<KeyLocation> = rest
            .map(|line| KeyLocation { key: line.name.to_owned(), location: line.line.location.clone() })
            .collect();
        (!with.is_empty()).then(|| Completed { location: first.line.location.clone(), with })
    };
    section.groups.iter().filter_map(complete).collect()
}

/// The line that applies for each key.
pub(super) type EffectiveLines = BTreeMap<&'static str, Written>;
