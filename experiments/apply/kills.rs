//! Rounds with kills, and what came of them.

use super::place::Place;
use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt::Write;
use std::time::Duration;

/// What was running when the kill came, as its journal and its end tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Hit {
    /// Nothing had begun.
    Before,
    /// There was a transaction.
    While,
    /// All was done, or it had ended by itself.
    After,
}

/// One round of apply or rollback.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Round {
    /// From 0.
    pub round: u32,
    /// `apply` or `rollback`.
    pub kind: String,
    /// When the kill came.
    pub hit: Option<Hit>,
    /// Whether the kill came too late to end it.
    #[serde(default)]
    pub survived: bool,
    /// Steps that its journal says had begun.
    pub begun: Option<u32>,
    /// Whether its journal says that all is committed.
    #[serde(default)]
    pub committed: bool,
    /// Settings that were not as at the start of it when it was dead.
    #[serde(default)]
    pub changed: u32,
    /// Settings that it changes.
    #[serde(default)]
    pub of: u32,
    /// Whether what it does had to stay done.
    #[serde(default)]
    pub done: bool,
    /// Kills that met the recovery at work.
    #[serde(default)]
    pub recovery_kills: u32,
    /// What went wrong, in words.
    pub problems: Vec<String>,
    /// Settings that are not as they should be.
    pub wrong: BTreeMap<String, serde_json::Value>,
}

impl Round {
    /// Whether everything was as it should be.
    pub fn well(&self) -> bool {
        self.problems.is_empty() && self.wrong.is_empty()
    }
}

/// What the rounds of one kind came to.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Count {
    /// Rounds.
    pub rounds: u32,
    /// Kills that ended the process.
    pub kills: u32,
    /// Of these: before it had begun.
    pub before: u32,
    /// Of these: while there was a transaction.
    pub at_work: u32,
    /// Of these: after all was done.
    pub after: u32,
    /// Of these at work: with all done and committed, but the files not in order yet.
    pub committed: u32,
    /// Of these: that left some settings changed and others not.
    pub between: u32,
    /// Kills of recoveries at work.
    pub recovery_kills: u32,
    /// Rounds after which all was as it should be.
    pub well: u32,
}

/// All rounds.
#[derive(Clone, Debug, Serialize)]
pub struct Kills {
    /// Of the random moments.
    pub seed: u64,
    /// Of applies.
    pub apply: Count,
    /// Of rollbacks.
    pub rollback: Count,
    /// Usual seconds until it works, and that it works for.
    pub usual_s: BTreeMap<String, (f64, f64)>,
    /// One by one.
    #[serde(skip)]
    pub rounds: Vec<Round>,
}

/// A round in which the VM was killed while it was applied to.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Vanished {
    /// From 0.
    pub round: u32,
    /// Whether teiji was to be killed as well.
    pub teiji_killed: bool,
    /// How teiji ended; negative: killed.
    pub code: i32,
    /// Whether all had been applied before the VM was missed.
    pub committed: bool,
    /// Whether teiji, its recovery or its rollback said what is gone.
    pub said_gone: bool,
    /// What went wrong, in words.
    pub problems: Vec<String>,
    /// Settings that are not as they should be.
    pub wrong: BTreeMap<String, serde_json::Value>,
}

impl Vanished {
    /// Whether everything that remains was as it should be.
    pub fn well(&self) -> bool {
        self.problems.is_empty() && self.wrong.is_empty()
    }
}

/// What the rounds with VMs came to.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Vanishings {
    /// Rounds.
    pub rounds: u32,
    /// Applies that missed the VM and undid what they had done.
    pub undone: u32,
    /// Applies that were killed as well, and undone by the recovery.
    pub recovered: u32,
    /// Applies that were committed before they missed the VM, and were rolled back.
    pub committed: u32,
    /// Rounds in which it was said what is gone.
    pub said_gone: u32,
    /// Rounds after which what remained was as it should be.
    pub well: u32,
}

impl Vanishings {
    /// Counts.
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
struct Usual {
    usual_s: BTreeMap<String, (f64, f64)>,
}

/// What a round may take, an emulated lab included.
const ROUND: Duration = Duration::from_secs(20);

/// Kills `kills` applies and as many rollbacks, in turn. Rounds in which the kill comes too late are looked at as well,
/// and come on top.
///
/// # Errors
/// If the driver fails: something does not work even if nobody kills it.
pub fn run(place: &Place<'_>, kills: u32, seed: u64) -> Result<Kills> {
    let said = place.driver("kills", kills, seed, ROUND * 2 * (kills + 10))?;
    let (lines, last) = said.rsplit_once('\n').context("the driver said too little")?;
    let rounds = lines.lines().map(serde_json::from_str).collect::<Result<Vec<Round>, _>>()?;
    let Usual { usual_s } = serde_json::from_str(last)?;
    let count = |kind| count(rounds.iter().filter(|r| r.kind == kind));
    Ok(Kills { seed, apply: count("apply"), rollback: count("rollback"), usual_s, rounds })
}

/// Kills a VM while it is applied to, and teiji half of the time, until `rounds` applies did not come to their end.
///
/// # Errors
/// If the driver fails.
pub fn vanish(place: &Place<'_>, rounds: u32, seed: u64) -> Result<Vec<Vanished>> {
    let said = place.driver("vanish", rounds, seed, ROUND * 5 * (rounds + 5))?;
    said.lines().map(|l| serde_json::from_str(l).with_context(|| format!("the driver said {l}"))).collect()
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

    /// The rounds that did not go well, for people.
    pub fn trouble(&self) -> String {
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

    /// Every round.
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
