//! Observations of hosts as files: writes the state of this host, and reads that of another.

use crate::apply::clock::Clock;
use crate::apply::store::Store;
use crate::apply::{self, Engine};
use crate::backend::HostBackend;
use crate::policy::Error;
use std::io::{self, Read};
use std::path::Path;
use teiji_host::{Root, kernel};
use teiji_model::observation::{self, KIND, MAX_BYTES, Observation, SCHEMA};
use teiji_model::plan::Held;

/// The present state of this host, and what teiji has changed on it. Changes nothing.
///
/// # Errors
/// If the host or the state cannot be read.
pub fn capture<S: Store, C: Clock>(
    root: &Root,
    engine: &Engine<HostBackend, S, C>,
) -> Result<Observation, Error> {
    let (mut observed, devices) = root.observe_with_devices()?;
    engine.backend().complete(&mut observed, &devices);
    let mut unseen = Vec::new();
    let held = match engine.held() {
        Ok(held) => held,
        Err(apply::Error::State { source, path, .. }) if source.kind() == io::ErrorKind::PermissionDenied => {
            unseen.push(format!(
                "only root may read {}, so steps back from what teiji holds are not in this plan",
                path.display()
            ));
            Held::default()
        }
        Err(e) => return Err(e.into()),
    };
    Ok(Observation {
        kind: KIND.to_owned(),
        schema: SCHEMA,
        teiji: env!("CARGO_PKG_VERSION").to_owned(),
        host: kernel::name(),
        kernel: kernel::release(),
        taken: kernel::unix_time(),
        observed,
        held,
        unseen,
    })
}

/// The state of a host that was observed before. Reads this file and nothing else.
///
/// # Errors
/// [`Error::Observation`] if it cannot be read, or is no observation that this version knows.
pub fn read(path: &Path) -> Result<Observation, Error> {
    let failed = |source| Error::Observation { path: path.to_owned(), source };
    let mut bytes = Vec::new();
    let file = std::fs::File::open(path).map_err(|e| failed(e.into()))?;
    // At most one byte more than is allowed, which is enough to see that the file is too long.
    file.take(MAX_BYTES as u64 + 1).read_to_end(&mut bytes).map_err(|e| failed(e.into()))?;
    let text = String::from_utf8(bytes).map_err(|_| failed(observation::Error::Other.into()))?;
    Observation::parse(&text).map_err(|e| failed(e.into()))
}
