//! What an experiment writes: `summary.json`, raw data and pictures; and runs that are kept in the project for
//! comparison with later ones.

use crate::programs;
use anyhow::{Context, Result, bail};
use serde::Serialize;
use serde_json::{Map, Value};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

/// Maximum size of a kept run, bytes.
const KEPT_AT_MOST: u64 = 2 << 20;

/// Options of every experiment.
#[derive(Clone, Copy, Debug, clap::Args)]
pub struct Form {
    /// Run the short form
    #[arg(long)]
    pub short: bool,
    /// Copy the run into experiments/runs/ to be committed
    #[arg(long)]
    pub keep: bool,
}

/// The result of an experiment.
#[derive(Clone, Debug, Serialize)]
pub struct Summary {
    /// Name of the experiment.
    pub name: String,
    /// How time passed: `wall` or `virtual`; `wall-emulated` if the lab's processor was emulated.
    pub mode: String,
    /// Release of the kernel on which the claim was tried.
    pub kernel: String,
    /// Whether every claim held.
    pub pass: bool,
    /// Measurements.
    pub figures: Map<String, Value>,
    /// Measurements of others: the paper, other tools.
    pub rivals: Map<String, Value>,
    /// The claims that did not hold, in words.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub failed: Vec<String>,
    /// The claims that this run could not decide, with what it measured.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub undecided: Vec<String>,
}

impl Summary {
    /// A summary without figures, which passes.
    pub fn new(name: &str, mode: &str, kernel: &str) -> Self {
        Summary {
            name: name.into(),
            mode: mode.into(),
            kernel: kernel.into(),
            pass: true,
            figures: Map::new(),
            rivals: Map::new(),
            failed: Vec::new(),
            undecided: Vec::new(),
        }
    }

    /// Adds a figure.
    ///
    /// # Errors
    /// If the value has no form in JSON.
    pub fn figure(&mut self, name: &str, value: impl Serialize) -> Result<()> {
        let value = serde_json::to_value(value).with_context(|| format!("cannot write the figure {name}"))?;
        self.figures.insert(name.into(), value);
        Ok(())
    }

    /// Records whether a claim holds, and prints it.
    pub fn claim(&mut self, holds: bool, what: &str) {
        crate::say(&format!("{}  {what}", if holds { "holds " } else { "FAILED" }));
        if !holds {
            self.pass = false;
            self.failed.push(what.into());
        }
    }

    /// Records a claim that could not be decided, as the noise of the run is too large, and prints it. It does not count as
    /// one that holds.
    pub fn undecided(&mut self, what: &str) {
        crate::say(&format!("not decided  {what}"));
        self.undecided.push(what.into());
    }

    /// Writes `summary.json` and `report.md` beside the data and pictures that are already in `folder`, and prints the
    /// report. With `keep`, the command that made the run, also keeps the run in the project. Returns whether every
    /// claim held.
    ///
    /// # Errors
    /// If a file cannot be written.
    pub fn conclude(&self, folder: &Path, report: &str, keep: Option<&str>) -> Result<bool> {
        let file = folder.join("summary.json");
        write(&file, &(serde_json::to_string_pretty(self)? + "\n"))?;
        write(&folder.join("report.md"), report)?;
        println!("{report}");
        println!("{}: {}", if self.pass { "pass" } else { "FAIL" }, file.display());
        if let Some(command) = keep {
            println!("kept: {}", self::keep(folder, self, report, command)?.display());
        }
        Ok(self.pass)
    }
}

/// The folder for an experiment's results; its former contents are deleted.
///
/// # Errors
/// If it cannot be created.
pub fn folder(name: &str) -> Result<PathBuf> {
    let folder = programs::project().join("target/experiments").join(name);
    if folder.exists() {
        std::fs::remove_dir_all(&folder).with_context(|| format!("cannot empty {}", folder.display()))?;
    }
    std::fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
    Ok(folder)
}

/// Writes a text file.
///
/// # Errors
/// If the file cannot be written; the error names it.
pub fn write(path: &Path, text: &str) -> Result<()> {
    std::fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
}

/// A paper's figures from the text of a `paper.csv`: one object for each line.
///
/// # Errors
/// If the text is empty.
pub fn paper(csv: &str) -> Result<Value> {
    let mut lines = csv.lines();
    let names: Vec<&str> = lines.next().context("paper.csv is empty")?.split(',').collect();
    let rows: Vec<Map<String, Value>> = lines
        .map(|l| {
            let values = l.splitn(names.len(), ',').map(|v| match v.parse::<f64>() {
                Ok(n) => n.into(),
                Err(_) if v.is_empty() => Value::Null,
                Err(_) => v.into(),
            });
            names.iter().map(|n| (*n).to_owned()).zip(values).collect()
        })
        .collect();
    Ok(serde_json::to_value(rows)?)
}

/// Keeps a run in the project, as `experiments/runs/<date>-<name>/`: the summary, the tables of `report`, the pictures,
/// and the CSV files compressed. Returns the folder.
///
/// # Errors
/// If a file cannot be written, or if the run takes more than 2 MiB.
fn keep(folder: &Path, summary: &Summary, report: &str, command: &str) -> Result<PathBuf> {
    let date = output("date", &["-u", "+%F"])?;
    let to = programs::project().join(format!("experiments/runs/{date}-{}", summary.name));
    if to.exists() {
        std::fs::remove_dir_all(&to).with_context(|| format!("cannot empty {}", to.display()))?;
    }
    std::fs::create_dir_all(&to).with_context(|| format!("cannot make {}", to.display()))?;
    let mut size = 0;
    for entry in std::fs::read_dir(folder)?.flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let target = if name.ends_with(".csv") {
            let packed = Command::new("gzip")
                .args(["-9nc", "--"])
                .arg(entry.path())
                .output()
                .context("cannot run gzip")?;
            let target = to.join(format!("{name}.gz"));
            std::fs::write(&target, packed.stdout)?;
            target
        } else if name.ends_with(".svg") || name == "summary.json" {
            std::fs::copy(entry.path(), to.join(&name))?;
            to.join(&name)
        } else {
            continue;
        };
        size += target.metadata()?.len();
    }
    let mut text = String::new();
    // Writing to a String cannot fail.
    let _ = write!(
        text,
        "# Run of `{}`, {date}\n\n- Command: `{command}`\n- Machine: {}\n- Kernel of the lab host: {}\n- Mode: {}\n- \
         Result: {}\n\n{report}",
        summary.name,
        machine(),
        summary.kernel,
        summary.mode,
        result(summary),
    );
    write(&to.join("README.md"), &text)?;
    if size > KEPT_AT_MOST {
        bail!("{} takes {} kB, more than is to be kept in the project", to.display(), size >> 10);
    }
    Ok(to)
}

/// The result in words.
fn result(summary: &Summary) -> String {
    let mut parts = Vec::new();
    if summary.pass && summary.undecided.is_empty() {
        parts.push("every claim held".to_owned());
    } else if summary.pass {
        parts.push("every claim that could be decided held".to_owned());
    } else {
        parts.push(format!("failed: {}", summary.failed.join("; ")));
    }
    if !summary.undecided.is_empty() {
        parts.push(format!("not decided: {}", summary.undecided.join("; ")));
    }
    parts.join(". ")
}

/// The exit code of an experiment's run: 0 if every claim held and no lab host ended by itself. Also prints how many lab hosts
/// were replaced.
pub fn exit(name: &str, run: Result<bool>) -> ExitCode {
    teiji_lab::ends::summary().iter().for_each(|line| crate::say(line));
    match run {
        Ok(true) if !teiji_lab::ends::any_by_itself() => ExitCode::SUCCESS,
        Ok(_) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("{name}: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Processor, memory and kernel of this machine, for people.
pub fn machine() -> String {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let cpuinfo = read("/proc/cpuinfo");
    let after = |text: &str, key: &str| {
        text.lines()
            .find(|l| l.starts_with(key))
            .and_then(|l| l.split_once(':'))
            .map_or_else(|| "unknown".to_owned(), |(_, v)| v.trim().to_owned())
    };
    let cores = cpuinfo.lines().filter(|l| l.starts_with("processor")).count();
    let kb: u64 =
        after(&read("/proc/meminfo"), "MemTotal").split(' ').next().and_then(|n| n.parse().ok()).unwrap_or(0);
    format!(
        "{cores} × {}, {} GiB, Linux {}",
        after(&cpuinfo, "model name"),
        (kb + (1 << 19)) >> 20,
        read("/proc/sys/kernel/osrelease").trim()
    )
}

fn output(program: &str, arguments: &[&str]) -> Result<String> {
    let output =
        Command::new(program).args(arguments).output().with_context(|| format!("cannot run {program}"))?;
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_claim_that_fails_fails_the_run() {
        let mut s = Summary::new("x", "wall", "6.1");
        s.claim(true, "a");
        assert!(s.pass);
        s.claim(false, "b");
        s.claim(true, "c");
        s.figure("n", 3).unwrap();
        assert_eq!((s.pass, &s.failed[..]), (false, &["b".to_owned()][..]));
        let json = serde_json::to_value(&s).unwrap();
        assert_eq!((&json["figures"]["n"], &json["pass"]), (&Value::from(3), &Value::from(false)));
    }

    #[test]
    fn a_claim_that_is_not_decided_does_not_count_as_one_that_holds() {
        let mut s = Summary::new("x", "wall", "6.1");
        s.claim(true, "a");
        assert_eq!(result(&s), "every claim held");
        s.undecided("b");
        assert_eq!(result(&s), "every claim that could be decided held. not decided: b");
        s.claim(false, "c");
        assert_eq!(result(&s), "failed: c. not decided: b");
    }

    #[test]
    fn the_machine_is_known() {
        let text = machine();
        assert!(text.contains("Linux") && !text.contains("unknown"), "{text}");
    }
}
