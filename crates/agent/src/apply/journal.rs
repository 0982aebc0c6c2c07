//! The journal's format: what `transaction` and `held.json` say, and reading them again.
//!
//! `transaction` is lines of JSON: a [`Header`], then [`Line`]s, each appended and on the disk before what it
//! announces is done. A last line without its newline was being written when the process ended: what it would
//! have announced had not begun, so it is passed over. Anything else that is not as it should be is damage, and an
//! error: guessing could put a wrong value back.

use serde::{Deserialize, Serialize};
use teiji_model::plan::{Held, Step};
use teiji_model::resource::Value;

/// Version of both files.
pub(super) const VERSION: u32 = 1;

/// First line of `transaction`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Header {
    pub version: u32,
    /// `/proc/sys/kernel/random/boot_id`: what was changed in another boot, the kernel has forgotten.
    pub boot: String,
    /// Not used again in one boot.
    pub id: String,
    /// Who began it.
    pub pid: u32,
    /// When it began, seconds since 1970.
    pub time: u64,
    pub direction: Direction,
    /// How long the operator has to confirm once all is applied, ms; `None`: need not.
    pub confirm_within: Option<u64>,
    pub steps: Vec<Step>,
}

/// What becomes of a transaction whose process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Direction {
    /// A plan: undone.
    Forward,
    /// A rollback: completed. Who may be overwritten is part of what was asked for.
    Back { force: bool },
}

/// The other lines. Steps are counted from 0.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged, deny_unknown_fields)]
pub(super) enum Line {
    /// A step begins.
    Do {
        #[serde(rename = "do")]
        step: usize,
    },
    /// The kernel made something else of a step's value.
    Done {
        #[serde(rename = "done")]
        step: usize,
        value: Value,
    },
    /// All steps are done and read back as wanted; to be confirmed before `until`, ms since boot.
    Applied { applied: bool, until: Option<u64> },
    /// `held.json.next` holds; nothing is undone any more.
    Commit { commit: bool },
}

/// A transaction as its file tells it.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Journal {
    pub header: Header,
    /// How many steps have begun.
    pub begun: usize,
    /// What the kernel made of steps, where that is not what was wanted.
    pub made: Vec<(usize, Value)>,
    pub applied: bool,
    /// Until when to confirm, ms since boot.
    pub until: Option<u64>,
    pub committed: bool,
    /// Bytes that are valid; the next line goes there.
    pub length: u64,
}

/// What is wrong with a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Damage {
    /// Which line, from 1, and what is wrong with it.
    Line(usize, String),
    /// Written by another version of teiji.
    Version(u32),
}

/// A line as it is written.
pub(super) fn line(content: &impl Serialize) -> Vec<u8> {
    // Plain structs without maps of other than text keys: serde_json has nothing to refuse.
    let mut line = serde_json::to_vec(content).unwrap_or_default();
    line.push(b'\n');
    line
}

/// Only the version: the rest of another version's file may be of any shape.
#[derive(Deserialize)]
struct Versioned {
    version: u32,
}

fn versioned<'a, T: Deserialize<'a>>(text: &'a [u8]) -> Result<T, Damage> {
    let wrong = |e: serde_json::Error| Damage::Line(1, e.to_string());
    let Versioned { version } = serde_json::from_slice(text).map_err(wrong)?;
    if version != VERSION {
        return Err(Damage::Version(version));
    }
    serde_json::from_slice(text).map_err(wrong)
}

impl Journal {
    /// A transaction that has just begun.
    pub fn new(header: Header) -> Self {
        let length = line(&header).len() as u64;
        let (made, begun) = (Vec::new(), 0);
        Journal { header, begun, made, applied: false, until: None, committed: false, length }
    }

    /// Reads a transaction; of one of another boot than `boot` only the header, the rest being void.
    pub fn parse(content: &[u8], boot: &str) -> Result<Self, Damage> {
        let end = content.iter().position(|b| *b == b'\n');
        // The header was renamed into place whole, so a torn one is damage.
        let end = end.ok_or_else(|| Damage::Line(1, "it ends early".to_owned()))?;
        let mut journal = Journal::new(versioned(&content[..end])?);
        journal.length = end as u64 + 1;
        if journal.header.boot != boot {
            return Ok(journal);
        }
        for (number, text) in content[end + 1..].split_inclusive(|b| *b == b'\n').enumerate() {
            let Some(text) = text.strip_suffix(b"\n") else { break };
            let damage = |what: String| Damage::Line(number + 2, what);
            let line = serde_json::from_slice(text).map_err(|e| damage(e.to_string()))?;
            journal.take(line).map_err(|what| damage(what.to_owned()))?;
            journal.length += text.len() as u64 + 1;
        }
        Ok(journal)
    }

    /// Notes a line, which has to be one that may follow.
    pub fn take(&mut self, line: Line) -> Result<(), &'static str> {
        let steps = self.header.steps.len();
        if self.committed {
            return Err("nothing may follow the commit");
        }
        match line {
            Line::Do { step } if !self.applied && step == self.begun && step < steps => self.begun += 1,
            Line::Done { step, value } if !self.applied && step + 1 == self.begun => {
                self.made.push((step, value))
            }
            Line::Applied { applied: true, until } if !self.applied && self.begun == steps => {
                self.applied = true;
                self.until = until;
            }
            Line::Commit { commit: true } if self.applied || self.header.direction != Direction::Forward => {
                self.committed = true;
            }
            _ => return Err("it does not follow from the lines before it"),
        }
        Ok(())
    }

    /// Takes back a commit line that was written although writing it failed.
    pub fn withdraw(&mut self) {
        if std::mem::take(&mut self.committed) {
            self.length -= line(&Line::Commit { commit: true }).len() as u64;
        }
    }

    /// Whether `value` is what this transaction made of a step that has begun, rather than someone else.
    pub fn ours(&self, step: usize, value: &Value) -> bool {
        let wanted = &self.header.steps[step].wanted;
        if value == wanted || self.made.iter().any(|(s, made)| *s == step && made == value) {
            return true;
        }
        // Ended between the write and the note of what became of it: the kernel makes less of a set of CPUs
        // (cpuset_cpus_allowed, irq_do_set_affinity), and nothing of other values.
        let interrupted = step + 1 == self.begun && !self.applied;
        match (value, wanted) {
            (Value::Cpus(value), Value::Cpus(wanted)) => interrupted && value.without(wanted).is_empty(),
            _ => false,
        }
    }
}

/// `held.json`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct HeldFile {
    pub version: u32,
    pub boot: String,
    /// The last transaction that was committed.
    pub last: String,
    pub held: Held,
}

impl HeldFile {
    /// Nothing held.
    pub fn none(boot: &str) -> Self {
        HeldFile { version: VERSION, boot: boot.to_owned(), ..HeldFile::default() }
    }

    /// Reads it.
    pub fn parse(content: &[u8]) -> Result<Self, Damage> {
        versioned(content)
    }
}
