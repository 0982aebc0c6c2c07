//! The state of a host, as a file: `teiji observe` writes it, `teiji plan --host` reads it on any machine.
//!
//! It is JSON, so people can read it, and change it to plan for another state. It has names, ids and settings of VMs,
//! threads and devices; it has no command lines, no environments, and nothing of the guests' memory or packets.
//!
//! Form 1 had sentences, which did not name a setting, for the settings that cannot be read. They become part of
//! `unseen`. What another program changes was of the kind `group` also if it was a weight or a quota.

use crate::observed::Observed;
use crate::plan::Held;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// Version of the file's form. Incremented when a field changes its meaning or is removed.
pub const SCHEMA: u32 = 2;
/// The former form, which can still be read.
const FORMER: u64 = 1;
/// The value of the field `kind`.
pub const KIND: &str = "teiji-host";
/// The longest file that is read, bytes.
pub const MAX_BYTES: usize = 64 << 20;

/// The state of a host at one instant.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Observation {
    /// [`KIND`].
    pub kind: String,
    /// [`SCHEMA`].
    pub schema: u32,
    /// teiji's version.
    pub teiji: String,
    /// The host's name. Untrusted, like all text in an observation.
    pub host: String,
    /// The host's kernel release.
    pub kernel: String,
    /// When it was taken, seconds since 1970.
    pub taken: u64,
    /// The state of the host.
    pub observed: Observed,
    /// The settings that teiji held.
    pub held: Held,
    /// What could not be determined, for people.
    pub unseen: Vec<String>,
}

/// Why a text is not an observation that can be planned for.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// It is something else.
    #[error("it is not what `teiji observe` writes; make one on the host with `teiji observe > FILE`")]
    Other,
    /// Truncated, or changed into something invalid.
    #[error(
        "it is damaged ({0}), so nothing can be planned from it; run `teiji observe > FILE` on the host again"
    )]
    Damaged(String),
    /// Written by a later version.
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
    #[error("it is longer than {} MiB; observations are shorter", MAX_BYTES >> 20)]
    TooLong,
}

/// The fields that every version has.
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
    /// [`Error`], unless the text is a complete observation of a known form.
    pub fn parse(text: &str) -> Result<Observation, Error> {
        if text.len() > MAX_BYTES {
            return Err(Error::TooLong);
        }
        let damaged = |why: &serde_json::Error| Error::Damaged(why.to_string());
        let header: Header = serde_json::from_str(text).map_err(|why| {
            // A file that was cut off still has its kind at the beginning.
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
    let managers = file.pointer_mut("/observed/managers").and_then(Value::as_array_mut);
    for manager in managers.into_iter().flatten() {
        if let Some(touches) = manager.get_mut("touches").and_then(Value::as_array_mut)
            && touches.iter().any(|kind| kind == "group")
        {
            touches.extend([json!("group-weight"), json!("group-quota")]);
        }
    }
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
            let message = Observation::parse(&whole[..cut]);
            assert!(matches!(message, Err(Error::Damaged(_))), "{cut}: {message:?}");
        }
        let none = whole.replace("0-1", "");
        let message = Observation::parse(&none).unwrap_err().to_string();
        assert!(message.contains("no CPU") && message.contains("teiji observe"), "{message}");
        let newer = whole.replace("\"schema\": 2", "\"schema\": 3").replace("\"cpus\"", "\"processors\"");
        let message = Observation::parse(&newer).unwrap_err().to_string();
        assert!(
            message.contains("form 3") && message.contains("or observe the host with this one"),
            "{message}"
        );
        assert_eq!(Observation::parse(&" ".repeat(MAX_BYTES + 1)), Err(Error::TooLong));
    }
}
