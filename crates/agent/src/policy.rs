//! Policies as files, and the changes that they need on this host.
//!
//! ```text
//! files ── load ──► Policy ── plan: observe the host, see what is held ──► Plan ── apply::Engine::apply ──► the host
//!                      └───── plan_for: a host that was observed ───────► Plan
//! ```

use crate::apply::clock::Clock;
use crate::apply::store::Store;
use crate::apply::{self, Engine};
use crate::backend::HostBackend;
use crate::observation;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use teiji_control::plan::Present;
use teiji_host::{Root, kernel};
use teiji_model::observation::Observation;
use teiji_model::observed::Observed;
use teiji_model::plan::Plan;
use teiji_model::policy::{KeptPolicy, MAX_BYTES, Policy, Problem, Source};
use teiji_model::text::printable;

/// The policy of a host if the operator names none.
pub const FILE: &str = "/etc/teiji/policy.toml";
/// The folder of further files, which are read in the order of their names.
pub const DROP_INS: &str = "/etc/teiji/policy.d";

/// Why there is no policy or no plan.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Neither [`FILE`] nor anything in [`DROP_INS`].
    #[error(
        "there is no policy: write {FILE}, or *.toml files in {DROP_INS}, or name a file; docs/policy.md says how"
    )]
    None,
    /// A file cannot be read.
    #[error("cannot read the policy {path}")]
    Read {
        /// The file.
        path: PathBuf,
        /// Why not.
        #[source]
        source: io::Error,
    },
    /// The files have errors, or the policy cannot be kept on this host.
    #[error("{}", listed(.problems))]
    Wrong {
        /// All problems; never empty.
        problems: Vec<Problem>,
        /// The files, for showing their lines.
        sources: Vec<Source>,
    },
    /// The host cannot be observed.
    #[error(transparent)]
    Host(#[from] teiji_host::Error),
    /// The observation of another host cannot be read.
    #[error("cannot plan for the host in {path}")]
    Observation {
        /// The file.
        path: PathBuf,
        /// Why not.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// It cannot be read what teiji has changed.
    #[error(transparent)]
    State(#[from] apply::Error),
}

fn listed(problems: &[Problem]) -> String {
    problems.iter().map(Problem::to_string).collect::<Vec<_>>().join("\n")
}

/// A policy and its files.
#[derive(Clone, Debug)]
pub struct Loaded {
    /// What they say.
    pub policy: Policy,
    /// The files.
    pub sources: Vec<Source>,
}

/// Reads a policy: the named files in this order, and of a directory all `*.toml`; without any name, the host's own
/// policy. Where several files set the same thing, the last file takes precedence ([`teiji_policy`]).
///
/// # Errors
/// [`Error::None`], [`Error::Read`] or [`Error::Wrong`].
pub fn load(named: &[PathBuf]) -> Result<Loaded, Error> {
    let mut paths = Vec::new();
    for path in named {
        if path.is_dir() {
            paths.extend(drop_ins(path)?);
        } else {
            paths.push(path.clone());
        }
    }
    if named.is_empty() {
        paths.extend(Some(PathBuf::from(FILE)).filter(|p| p.exists()));
        paths.extend(drop_ins(Path::new(DROP_INS))?);
    }
    if paths.is_empty() {
        return Err(Error::None);
    }
    let sources = paths.iter().map(|path| source(path)).collect::<Result<Vec<_>, _>>()?;
    parse(sources)
}

/// The policies in a directory, by name; none if it is not there.
fn drop_ins(dir: &Path) -> Result<Vec<PathBuf>, Error> {
    let read = |source| Error::Read { path: dir.to_owned(), source };
    let entries = match std::fs::read_dir(dir) {
        Ok(entries) => entries,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(e) => return Err(read(e)),
    };
    let mut paths = Vec::new();
    for entry in entries {
        let path = entry.map_err(read)?.path();
        let hidden = path.file_name().is_some_and(|n| n.to_string_lossy().starts_with('.'));
        if path.extension().is_some_and(|e| e == "toml") && !hidden {
            paths.push(path);
        }
    }
    paths.sort();
    Ok(paths)
}

fn source(path: &Path) -> Result<Source, Error> {
    let read = |source| Error::Read { path: path.to_owned(), source };
    let mut bytes = Vec::new();
    // At most one byte more than is allowed, which is enough for the parser to see that the file is too long.
    let file = std::fs::File::open(path).map_err(read)?;
    file.take(MAX_BYTES as u64 + 1).read_to_end(&mut bytes).map_err(read)?;
    let text = match String::from_utf8(bytes) {
        Ok(text) => text,
        Err(e) => {
            let line =
                1 + e.as_bytes()[..e.utf8_error().valid_up_to()].iter().filter(|b| **b == b'\n').count();
            let cut_in_a_character = e.as_bytes().len() > MAX_BYTES && e.utf8_error().error_len().is_none();
            if !cut_in_a_character {
                let why = format!("line {line} is not UTF-8, which TOML is written in");
                return Err(read(io::Error::new(io::ErrorKind::InvalidData, why)));
            }
            String::from_utf8_lossy(e.as_bytes()).into_owned()
        }
    };
    Ok(Source { name: path.to_string_lossy().into_owned(), text })
}

/// A policy as an agent keeps it, applied now to this host.
pub(crate) fn kept(loaded: Loaded, observed: &Observed, boot: &str) -> KeptPolicy {
    let since = kernel::unix_time();
    let vms = teiji_control::plan::meant(&loaded.policy, observed, boot);
    KeptPolicy { sources: loaded.sources, since, vms }
}

/// Reads a policy that an agent keeps.
///
/// # Errors
/// [`Error::Wrong`] if this version of teiji does not read it as the one that applied it.
pub(crate) fn of_kept(kept: KeptPolicy) -> Result<Loaded, Error> {
    parse(kept.sources)
}

fn parse(sources: Vec<Source>) -> Result<Loaded, Error> {
    match teiji_policy::parse(&sources) {
        Ok(policy) => Ok(Loaded { policy, sources }),
        Err(problems) => Err(Error::Wrong { problems, sources }),
    }
}

/// What would have to be changed on this host. With `absent_ok`, sections of VMs and links that are not there are warnings
/// instead of problems. Changes nothing.
///
/// # Errors
/// [`Error::Wrong`] if the host cannot keep the policy; otherwise if the host or the state cannot be read.
pub fn plan<S: Store, C: Clock>(
    loaded: &Loaded,
    root: &Root,
    engine: &Engine<HostBackend, S, C>,
    absent_ok: bool,
) -> Result<Plan, Error> {
    plan_for(loaded, &observation::capture(root, engine)?, absent_ok)
}

/// What would have to be changed on a host that was observed, perhaps on another machine. Reads nothing of this host.
///
/// # Errors
/// [`Error::Wrong`] if that host cannot keep the policy.
pub fn plan_for(loaded: &Loaded, host: &Observation, absent_ok: bool) -> Result<Plan, Error> {
    let now = if absent_ok {
        teiji_control::plan::present(&loaded.policy, &host.observed, None)
    } else {
        Present { policy: loaded.policy.clone(), ..Present::default() }
    };
    let mut plan = teiji_control::plan::plan(&now.policy, &host.observed, &host.held)
        .map_err(|problems| Error::Wrong { problems, sources: loaded.sources.clone() })?;
    let later = |why: String| format!("left out for now; a running agent sets it once it is there: {why}");
    plan.warnings.extend(now.absent.into_iter().map(later));
    plan.warnings.extend(host.unseen.iter().map(|why| printable(why)));
    Ok(plan)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_is_read_in_the_order_of_its_names() {
        let dir = tempfile::tempdir().unwrap();
        for (name, text) in [
            ("20-b.toml", "[vm.b]\nweight = 2\n"),
            ("10-a.toml", "[vm.a]\nweight = 1\n"),
            (".hidden.toml", "nonsense"),
            ("30.toml~", "nonsense"),
        ] {
            std::fs::write(dir.path().join(name), text).unwrap();
        }
        let loaded = load(&[dir.path().to_owned()]).unwrap();
        let names: Vec<&str> = loaded.policy.vms.iter().map(|vm| vm.name.value.as_str()).collect();
        assert_eq!(names, ["a", "b"]);
        assert!(matches!(load(&[dir.path().join("none")]), Err(Error::Read { .. })));
        let empty = tempfile::tempdir().unwrap();
        assert!(matches!(load(&[empty.path().to_owned()]), Err(Error::None)));
    }

    #[test]
    fn the_file_named_last_holds_whatever_it_is_called() {
        let dir = tempfile::tempdir().unwrap();
        let write = |name: &str, weight: u32| {
            let path = dir.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(&path, format!("[vm.a]\nweight = {weight}\n")).unwrap();
            path
        };
        let (base, site) = (write("z.toml", 1), write("a.toml", 2));
        let (folder, _) =
            (dir.path().join("policy.d"), (write("policy.d/1.toml", 3), write("policy.d/2.toml", 4)));
        let weight = |named: &[PathBuf]| load(named).unwrap().policy.vms[0].weight.as_ref().unwrap().value;
        assert_eq!(weight(&[base.clone(), site.clone()]), 2);
        assert_eq!(weight(&[site.clone(), base.clone()]), 1);
        assert_eq!(weight(&[base.clone(), folder.clone()]), 4);
        assert_eq!(weight(&[folder, base]), 1);
    }

    #[test]
    fn a_file_of_any_size_or_bytes_is_refused_with_a_reason() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("p.toml");
        std::fs::write(&path, "# é\n".repeat(3 << 20)).unwrap();
        let Err(Error::Wrong { problems, .. }) = load(std::slice::from_ref(&path)) else {
            panic!("12 MiB were taken")
        };
        assert!(problems[0].to_string().contains("p.toml"), "{problems:?}");
        std::fs::write(&path, b"[host]\n# \xff\n").unwrap();
        let Err(Error::Read { source, .. }) = load(std::slice::from_ref(&path)) else {
            panic!("that is no text")
        };
        assert!(source.to_string().contains("line 2"), "{source}");
    }
}
