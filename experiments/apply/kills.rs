//! Rounds in which teiji is killed, and their results.

use super::test_host::TestHost;
use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt::Write;
use std::time::Duration;

/// How far the run was when the kill came, according to the journal and the exit status.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Hit {
    /// Nothing had begun.
    Before,
    /// There was a transaction.
    While,
    /// Everything was done, or the process had ended by itself.
    After,
}

/// One round: an apply or a rollback that is killed.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Round {
    /// Number of the round, from 0.
    pub round: u32,
    /// `apply` or `rollback`.
    pub kind: String,
    /// How far the run was when the kill came; none if the apply before a rollback had failed.
    pub hit: Option<Hit>,
    /// Whether the process had ended before the kill came.
    #[serde(default)]
    pub survived: bool,
    /// Steps that had begun according to the journal.
    pub begun: Option<u32>,
    /// Whether the apply was committed according to the journal.
    #[serde(default)]
    pub committed: bool,
    /// Settings that the killed process had changed.
    #[serde(default)]
    pub changed: u32,
    /// Settings that the policy changes.
    #[serde(default)]
    pub of: u32,
    /// Whether the changes had to remain: those of the apply, or those of the rollback.
    #[serde(default)]
    pub done: bool,
    /// Kills of recoveries at work.
    #[serde(default)]
    pub recovery_kills: u32,
    /// Problems, in words.
    pub problems: Vec<String>,
    /// Settings that have a wrong value in the end.
    pub wrong: BTreeMap<String, serde_json::Value>,
}

impl Round {
    /// Whether nothing was wrong.
    pub fn well(&self) -> bool {
        self.problems.is_empty() && self.wrong.is_empty()
    }
}

/// Counts of the rounds of one kind.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Count {
    /// Rounds.
    pub rounds: u32,
    /// Kills that ended the process.
    pub kills: u32,
    /// Of these kills: before anything had begun.
    pub before: u32,
    /// Of these kills: while there was a transaction.
    pub at_work: u32,
    /// Of these kills: after everything was done.
    pub after: u32,
    /// Of the kills at work: everything was committed, but teiji's files were not in order yet.
    pub committed: u32,
    /// Of these kills: some settings were changed and others were not.
    pub between: u32,
    /// Kills of recoveries at work.
    pub recovery_kills: u32,
    /// Rounds without an error.
    pub well: u32,
}

/// All rounds.
#[derive(Clone, Debug, Serialize)]
pub struct Kills {
    /// Seed of the random moments.
    pub seed: u64,
    /// Of applies.
    pub apply: Count,
    /// Of rollbacks.
    pub rollback: Count,
    /// By command, medians in seconds: until teiji begins to work, and how long it works.
    #[serde(rename = "usual_s")]
    pub typical_s: BTreeMap<String, (f64, f64)>,
    /// The rounds one by one.
    #[serde(skip)]
    pub rounds: Vec<Round>,
}

/// A round in which the VM was killed while a policy was applied to it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Vanished {
    /// Number of the round, from 0.
    pub round: u32,
    /// Whether teiji was to be killed too.
    pub teiji_killed: bool,
    /// teiji's exit code; negative: the signal that ended it.
    pub code: i32,
    /// Whether the apply was committed before it noticed that the VM was gone.
    pub committed: bool,
    /// Whether teiji said what is gone, in the apply, the recovery or the rollback.
    pub said_gone: bool,
    /// Problems, in words.
    pub problems: Vec<String>,
    /// Settings that have a wrong value.
    pub wrong: BTreeMap<String, serde_json::Value>,
}

impl Vanished {
    /// Whether nothing was wrong with what remains.
    pub fn well(&self) -> bool {
        self.problems.is_empty() && self.wrong.is_empty()
    }
}

/// Counts of the rounds in which a VM was killed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Vanishings {
    /// Rounds.
    pub rounds: u32,
    /// Applies that noticed that the VM was gone and undid their changes.
    pub undone: u32,
    /// Applies that were killed too and were undone by the recovery.
    pub recovered: u32,
    /// Applies that were committed before they noticed that the VM was gone, and were rolled back.
    pub committed: u32,
    /// Rounds in which teiji said what is gone.
    pub said_gone: u32,
    /// Rounds without an error in what remained.
    pub well: u32,
}

impl Vanishings {
    /// The counts of these rounds.
    pub fn of(rounds: &[Vanished]) -> Self {
        let mut v = Vanishings::default();
        for round in rounds {
            v.rounds += 1;
            v.said_gone += u32::from(round.said_gone);
            v.well += u32::from(round.well());
            *match (round.committed, round.code) {
                (true, _) => &mut v.committed,
                (false, ..0) => &mut v.recovered,
                (false, _) => &mut v.undone,
            } += 1;
        }
        v
    }
}

/// The driver's last line.
#[derive(Deserialize)]
struct DriverSummary {
    #[serde(rename = "usual_s")]
    typical_s: BTreeMap<String, (f64, f64)>,
}

/// Longest time that a round may take, in an emulated lab too.
const ROUND: Duration = Duration::from_secs(20);

/// Kills `kills` applies and as many rollbacks, in turn. Rounds in which the kill comes too late are checked too, but
/// are not counted as kills.
///
/// # Errors
/// If the driver fails: a command does not work even without a kill.
pub fn run(test_host: &TestHost<'_>, kills: u32, seed: u64) -> Result<Kills> {
    let printed = test_host.driver("kills", kills, seed, ROUND * 2 * (kills + 10))?;
    let (lines, last) = printed.rsplit_once('\n').context("the driver said too little")?;
    let rounds = lines.lines().map(serde_json::from_str).collect::<Result<Vec<Round>, _>>()?;
    let DriverSummary { typical_s } = serde_json::from_str(last)?;
    let count = |kind| count(rounds.iter().filter(|r| r.kind == kind));
    Ok(Kills { seed, apply: count("apply"), rollback: count("rollback"), typical_s, rounds })
}

/// Kills a VM while a policy is applied to it, and in about half of the rounds teiji too, until `rounds` applies were not
/// committed.
///
/// # Errors
/// If the driver fails.
pub fn vanish(test_host: &TestHost<'_>, rounds: u32, seed: u64) -> Result<Vec<Vanished>> {
    let printed = test_host.driver("vanish", rounds, seed, ROUND * 5 * (rounds + 5))?;
    printed.lines().map(|l| serde_json::from_str(l).with_context(|| format!("the driver said {l}"))).collect()
}

fn count<'r>(rounds: impl Iterator<Item = &'r Round>) -> Count {
    let mut c = Count::default();
    for round in rounds {
        c.rounds += 1;
        c.well += u32::from(round.well());
        c.recovery_kills += round.recovery_kills;
        if round.survived {
            continue;
        }
        c.kills += 1;
        match round.hit {
            Some(Hit::Before) => c.before += 1,
            Some(Hit::While) => {
                c.at_work += 1;
                c.committed += u32::from(round.committed);
            }
            Some(Hit::After) => c.after += 1,
            None => c.kills -= 1,
        }
        c.between += u32::from(round.changed > 0 && round.changed < round.of);
    }
    c
}

impl Kills {
    /// The counts by kind.
    pub fn counts(&self) -> [(&'static str, &Count); 2] {
        [("apply", &self.apply), ("rollback", &self.rollback)]
    }

    /// The rounds with errors, for people.
    pub fn failures(&self) -> String {
        self.rounds.iter().filter(|r| !r.well()).map(|r| format!("{r:?}\n")).collect()
    }

    /// The table of the README.
    pub fn markdown(&self) -> String {
        let mut t = String::from(
            "| killed | rounds | kills | before it worked | at work | of which committed | after | between the two states | \
             recoveries killed | restored |\n| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |\n",
        );
        for (kind, c) in self.counts() {
            // Writing to a String cannot fail.
            let _ = writeln!(
                t,
                "| {kind} | {} | {} | {} | {} | {} | {} | {} | {} | {} |",
                c.rounds,
                c.kills,
                c.before,
                c.at_work,
                c.committed,
                c.after,
                c.between,
                c.recovery_kills,
                c.well
            );
        }
        let _ = writeln!(t, "\nSeed {}.", self.seed);
        t
    }

    /// Every round, as CSV.
    pub fn csv(&self) -> String {
        let mut t =
            String::from("round,kind,hit,survived,begun,committed,changed,of,done,recovery_kills,well\n");
        for r in &self.rounds {
            let hit = r.hit.map_or_else(String::new, |h| format!("{h:?}").to_lowercase());
            let begun = r.begun.map_or_else(String::new, |n| n.to_string());
            // Writing to a String cannot fail.
            let _ = writeln!(
                t,
                "{},{},{hit},{},{begun},{},{},{},{},{},{}",
                r.round,
                r.kind,
                r.survived,
                r.committed,
                r.changed,
                r.of,
                r.done,
                r.recovery_kills,
                r.well()
            );
        }
        t
    }
}
