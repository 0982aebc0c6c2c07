//! Programs that a test copies and then runs.

use std::path::Path;
use std::process::Command;

/// Copies a program by cp(1). A file that this process had open for writing would also be open in every child that another
/// test starts meanwhile, and the kernel runs no file that is open for writing (ETXTBSY).
pub fn copy(from: &Path, to: &Path) {
    let status = Command::new("cp").arg(from).arg(to).status().unwrap();
    assert!(status.success(), "cp {} {}: {status}", from.display(), to.display());
}
