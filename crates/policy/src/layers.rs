//! Which line holds where several files speak of the same thing.
//!
//! Files have an order; the last file that writes a key decides it, key by key. Keys that only have a meaning beside
//! another (`priority` beside `class`) come with it: a file that writes `class` anew does away with what earlier files
//! say of `priority`. Nothing is decided silently: what does not hold, and because of which line, is kept for the plan.

use super::keys::Section;
use super::section::Written;
use std::collections::BTreeMap;
use teiji_model::policy::{Line, Overridden};

/// A section, from all files that speak of it.
pub(super) struct Layered {
    pub section: &'static Section,
    /// The names in its header after the section's own word.
    pub names: Vec<String>,
    /// As headers write it: `vm.sip1`; names are cut.
    pub path: String,
    /// The file that it is in first, where its last name is there, and where its header begins.
    pub at: (usize, usize),
    pub header: usize,
    /// In the order of the files.
    pub written: Vec<Written>,
}

impl Layered {
    /// Of each key the line that holds, and what does not hold because of it.
    pub(super) fn decide(written: Vec<Written>, section: &Section, path: &str) -> (Holding, Vec<Overridden>) {
        let mut holding: Holding = BTreeMap::new();
        let mut beaten: Vec<(&str, Written)> = Vec::new();
        for line in written {
            let name = line.name;
            beaten.extend(holding.insert(name, line).map(|earlier| (name, earlier)));
        }
        for group in section.groups {
            let [first, rest @ ..] = group else { continue };
            let Some(since) = holding.get(first).map(|line| line.file) else { continue };
            for name in rest {
                if holding.get(name).is_some_and(|line| line.file < since) {
                    beaten.extend(holding.remove(name).map(|line| (*first, line)));
                }
            }
            for (by, line) in &mut beaten {
                // Of what held in an earlier file all lines have gone for the same reason.
                if rest.contains(&line.name) && line.file < since && !holding.contains_key(line.name) {
                    *by = first;
                }
            }
        }
        beaten.sort_by_key(|(_, line)| (line.file, line.key));
        let mut overridden = Vec::new();
        for (name, line) in &holding {
            let same = |l: &&Written| l.name == *name && l.line.text == line.line.text;
            let over: Vec<Line> = beaten
                .iter()
                .filter(|(by, l)| by == name && !same(&l))
                .map(|(_, l)| l.line.clone())
                .collect();
            if !over.is_empty() {
                overridden.push(Overridden { section: path.to_owned(), holds: line.line.clone(), over });
            }
        }
        (holding, overridden)
    }
}

/// Of each key the line that holds.
pub(super) type Holding = BTreeMap<&'static str, Written>;
