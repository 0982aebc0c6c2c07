//! The journal's format: the content of `transaction` and `held.json`, and how they are read.
//!
//! `transaction` consists of lines of JSON: a [`Header`], then [`Line`]s, each of which is appended and on the disk
//! before the action that it announces begins. A last line without its newline was being written when the process
//! ended: its action had not begun, so the line is ignored. Anything else that is not valid is damage, and an error: a
//! guess could restore a wrong value. In a journal of another boot nothing is restored, and the host may have gone down
//! while a line was being written: such a line and those after it are ignored, whatever they contain.

use serde::{Deserialize, Serialize};
use teiji_model::plan::{Held, Step};
use teiji_model::policy::KeptPolicy;
use teiji_model::resource::{Resource, Value};

/// Version of both files as they are written: 2 since kinds of resources and values were added that teiji 0.1.0 does not
/// know, and `disturbed`. Every file has it, also one without these: 0.1.0 then says that another version has to roll
/// back, instead of calling damaged what it does not know, and a kind that is added needs no list of who knows it.
pub(super) const VERSION: u32 = 2;
/// The oldest version that is read. Its files are files of version 2 that lack what was added.
pub(super) const OLDEST: u32 = 1;

/// First line of `transaction`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Header {
    pub version: u32,
    /// `/proc/sys/kernel/random/boot_id`: the kernel has forgotten what was changed in another boot.
    pub boot: String,
    /// Unique within one boot.
    pub id: String,
    /// Who began it.
    pub pid: u32,
    /// When it began, seconds since 1970.
    pub time: u64,
    pub direction: Direction,
    /// How much time the operator has to confirm once all is applied, ms; `None`: no confirmation is needed.
    pub confirm_within: Option<u64>,
    pub steps: Vec<Step>,
    /// The policy that is in force once the transaction is committed; `None`: the one before stays so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policy: Option<KeptPolicy>,
    /// What the steps may disturb.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub disturbed: Vec<Disturbed>,
}

/// A resource that a step may change besides its own: before Linux 6.2 a move into another control group lets the
/// threads run on all CPUs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Disturbed {
    /// The step, from 0.
    pub step: usize,
    pub setting: Resource,
    /// Its value before the transaction.
    pub value: Value,
}

/// What the next command does with a transaction whose process has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Direction {
    /// A plan: undone.
    Forward,
    /// A rollback: completed. `force`: also overwrite what others have changed.
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
    /// The kernel stored another value than that of the step.
    Done {
        #[serde(rename = "done")]
        step: usize,
        value: Value,
    },
    /// All steps are done and read back as wanted; to be confirmed before `until`, ms since boot.
    Applied { applied: bool, until: Option<u64> },
    /// Committed: `held.json.next` is valid; nothing is undone any more.
    Commit { commit: bool },
}

/// A transaction as read from its file.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Journal {
    pub header: Header,
    /// How many steps have begun.
    pub begun: usize,
    /// The values that the kernel stored, where they are not the wanted ones.
    pub made: Vec<(usize, Value)>,
    pub applied: bool,
    /// Until when it can be confirmed, ms since boot.
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
    // Plain structs whose maps have text keys: serde_json cannot fail.
    let mut line = serde_json::to_vec(content).unwrap_or_default();
    line.push(b'\n');
    line
}

/// Only the version: the rest of a file of another version may have any structure.
#[derive(Deserialize)]
struct Versioned {
    version: u32,
}

fn versioned<'a, T: Deserialize<'a>>(text: &'a [u8]) -> Result<T, Damage> {
    let wrong = |e: serde_json::Error| Damage::Line(1, e.to_string());
    let Versioned { version } = serde_json::from_slice(text).map_err(wrong)?;
    if !(OLDEST..=VERSION).contains(&version) {
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

    /// Reads a transaction. If it is of another boot than `boot`, it ends before the first line that is not valid.
    pub fn parse(content: &[u8], boot: &str) -> Result<Self, Damage> {
        let end = content.iter().position(|b| *b == b'\n');
        // The header was renamed into place when complete, so a truncated one is damage.
        let end = end.ok_or_else(|| Damage::Line(1, "it ends early".to_owned()))?;
        let mut journal = Journal::new(versioned(&content[..end])?);
        journal.length = end as u64 + 1;
        let other_boot = journal.header.boot != boot;
        for (number, text) in content[end + 1..].split_inclusive(|b| *b == b'\n').enumerate() {
            let Some(text) = text.strip_suffix(b"\n") else { break };
            let damage = |what: String| Damage::Line(number + 2, what);
            let line = serde_json::from_slice(text).map_err(|e| damage(e.to_string()));
            match line.and_then(|line| journal.take(line).map_err(|what| damage(what.to_owned()))) {
                Err(_) if other_boot => break,
                taken => taken?,
            }
            journal.length += text.len() as u64 + 1;
        }
        Ok(journal)
    }

    /// Applies a line; it has to be one that may come next.
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

    /// Withdraws a commit line that is in the file although writing it failed.
    pub fn withdraw(&mut self) {
        if std::mem::take(&mut self.committed) {
            self.length -= line(&Line::Commit { commit: true }).len() as u64;
        }
    }

    /// Whether `value` was set by this transaction in a step that has begun, and not by someone else.
    pub fn ours(&self, step: usize, value: &Value) -> bool {
        let wanted = &self.header.steps[step].wanted;
        if value == wanted || self.made.iter().any(|(s, made)| *s == step && made == value) {
            return true;
        }
        // The process may have ended after the write and before the line about its result: the kernel may reduce a set
        // of CPUs (cpuset_cpus_allowed, irq_do_set_affinity); it does not change other values.
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
    /// The last one that somebody has confirmed: its process may look only after others were committed.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub confirmed: String,
    pub held: Held,
    /// The policy in force. It stays so when the host boots, which resets what is held.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policy: Option<KeptPolicy>,
}

impl HeldFile {
    /// Of this boot, without any setting.
    pub fn none(boot: &str) -> Self {
        HeldFile { version: VERSION, boot: boot.to_owned(), ..HeldFile::default() }
    }

    /// Refuses other versions and anything that is not such a file.
    pub fn parse(content: &[u8]) -> Result<Self, Damage> {
        versioned(content)
    }
}
