//! Makes the image of the root file system: a read-only disk without compression (EROFS), which is the root of the lab
//! host and its guests. Reading a file from a disk takes few VM exits, whereas a shared folder takes several for every
//! name looked up; and the lab host's page cache serves all its guests.

use std::{path::Path, process::Stdio};

use crate::{
    confine::{Confine, INSIDE},
    error::{Doing, Error, Result},
};

/// Writes the image of `root` to the file `name` in `folder`, with the root file system's own tool.
pub(crate) fn build(root: &Path, folder: &Path, name: &str) -> Result<()> {
    let out = Confine::new(root)
        .bind("out", folder, true)
        .command("/usr/bin/mkfs.erofs")
        .doing(|| "prepare mkfs.erofs".into())?
        .args(["--quiet", "-T0", &format!("{INSIDE}/out/{name}"), &format!("{INSIDE}/root")])
        .stdin(Stdio::null())
        .output()
        .doing(|| "start mkfs.erofs".into())?;
    if out.status.success() {
        return Ok(());
    }
    Err(Error::Failed {
        command: "mkfs.erofs".into(),
        code: out.status.code().unwrap_or(-1),
        stderr: String::from_utf8_lossy(&out.stderr).into_owned(),
    })
}
