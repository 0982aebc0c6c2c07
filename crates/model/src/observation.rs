//! What a host was like, as a file: `teiji observe` writes it, `teiji plan --host` reads it, on any machine.
//!
//! It is JSON, so that it can be looked at and changed for a what-if. It holds names, ids and settings of VMs, threads
//! and devices; no command lines, no environments, nothing of the guests' memory or packets.
//!
//! Form 1 said why settings cannot be read in sentences that named no setting. They become part of what could not be
//! found out.

use crate::plan::{Held, Observed};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// Version of the file's form. Raised when a field changes its meaning or goes.
pub const SCHEMA: u32 = 2;
/// The form before, which is read as well.
const FORMER: u64 = 1;
/// What the file says it is.
pub const KIND: &str = "teiji-host";
/// Longest file that is read, bytes.
pub const MAX_BYTES: usize = 64 << 20;

/// A host at one instant.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Observation {
    /// [`KIND`].
    pub kind: String,
    /// [`SCHEMA`].
    pub schema: u32,
    /// teiji's version.
    pub teiji: String,
    /// The host's name. Untrusted text, as all text in here.
    pub host: String,
    /// Its kernel release.
    pub kernel: String,
    /// When, seconds since 1970.
    pub taken: u64,
    /// What it was like.
    pub observed: Observed,
    /// What teiji held of it.
    pub held: Held,
    /// What could not be found out, for people.
    pub unseen: Vec<String>,
}

/// Why a file is no observation that can be planned for.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// Something else.
    #[error("it is not what `teiji observe` writes; make one on the host with `teiji observe > FILE`")]
    Other,
    /// Cut off, or changed by hand into something that cannot be.
    #[error(
        "it is damaged ({0}), so nothing can be planned from it; run `teiji observe > FILE` on the host again"
    )]
    Damaged(String),
    /// From a later version.
    #[error(
        "it is of form {schema}, written by teiji {teiji:?}, and this teiji ({}) reads forms up to {SCHEMA}: plan with \
         that version, or observe the host with this one",
        env!("CARGO_PKG_VERSION")
    )]
    Newer {
        /// Its form.
        schema: u64,
        /// The version that wrote it.
        teiji: String,
    },
    /// Longer than [`MAX_BYTES`].
    #[error("it is longer than {} MiB, which no observation is", MAX_BYTES >> 20)]
    TooLong,
}

/// As much as every version has.
#[derive(Deserialize)]
struct Header {
    #[serde(default)]
    kind: String,
    #[serde(default)]
    schema: u64,
    #[serde(default)]
    teiji: String,
}

impl Observation {
    /// Reads a file's text.
    ///
    /// # Errors
    /// [`Error`]: whatever is not a whole observation of this form.
    pub fn parse(text: &str) -> Result<Observation, Error> {
        if text.len() > MAX_BYTES {
            return Err(Error::TooLong);
        }
        let damaged = |why: &serde_json::Error| Error::Damaged(why.to_string());
        let header: Header = serde_json::from_str(text).map_err(|why| {
            // One that is cut off still says what it was.
            if text.chars().take(200).collect::<String>().contains(KIND) {
                damaged(&why)
            } else {
                Error::Other
            }
        })?;
        if header.kind != KIND {
            return Err(Error::Other);
        }
        if header.schema > SCHEMA.into() {
            return Err(Error::Newer {
                schema: header.schema,
                teiji: header.teiji.chars().take(40).collect(),
            });
        }
        let observation: Observation = match header.schema {
            FORMER => former(text).map_err(|why| damaged(&why))?,
            _ => serde_json::from_str(text).map_err(|why| damaged(&why))?,
        };
        if observation.observed.cpus.is_empty() {
            return Err(Error::Damaged("it has no CPU".to_owned()));
        }
        Ok(observation)
    }
}

/// An observation of form 1.
fn former(text: &str) -> serde_json::Result<Observation> {
    let mut file: Value = serde_json::from_str(text)?;
    let sentences = file.pointer_mut("/observed/unreadable").map(|list| std::mem::replace(list, json!([])));
    let mut observation: Observation = serde_json::from_value(file)?;
    observation.unseen.extend(serde_json::from_value::<Vec<String>>(sentences.unwrap_or_else(|| json!([])))?);
    observation.schema = SCHEMA;
    Ok(observation)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one() -> Observation {
        Observation {
            kind: KIND.into(),
            schema: SCHEMA,
            teiji: "0.1.0".into(),
            host: "lab".into(),
            kernel: "7.2".into(),
            taken: 1_790_000_000,
            observed: Observed { cpus: [0, 1].into_iter().collect(), ..Observed::default() },
            held: Held::default(),
            unseen: Vec::new(),
        }
    }

    #[test]
    fn what_is_written_is_read() {
        let text = serde_json::to_string_pretty(&one()).unwrap();
        assert_eq!(Observation::parse(&text), Ok(one()));
    }

    #[test]
    fn what_is_no_observation_is_refused_with_what_to_do() {
        let whole = serde_json::to_string_pretty(&one()).unwrap();
        for other in
            ["", "{", "{}", "[1]", "null", "\u{0}", "{\"schema\": 1, \"vms\": []}", "[host]\nhalt_poll = 1"]
        {
            assert_eq!(Observation::parse(other), Err(Error::Other), "{other}");
        }
        for cut in (40..whole.trim_end().len() - 1).filter(|at| whole.is_char_boundary(*at)) {
            let said = Observation::parse(&whole[..cut]);
            assert!(matches!(said, Err(Error::Damaged(_))), "{cut}: {said:?}");
        }
        let none = whole.replace("0-1", "");
        let said = Observation::parse(&none).unwrap_err().to_string();
        assert!(said.contains("no CPU") && said.contains("teiji observe"), "{said}");
        let newer = whole.replace("\"schema\": 2", "\"schema\": 3").replace("\"cpus\"", "\"processors\"");
        let said = Observation::parse(&newer).unwrap_err().to_string();
        assert!(said.contains("form 3") && said.contains("or observe the host with this one"), "{said}");
        assert_eq!(Observation::parse(&" ".repeat(MAX_BYTES + 1)), Err(Error::TooLong));
    }
}
