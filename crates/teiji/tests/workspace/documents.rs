//! Files and tests that the documents name exist.

use super::folder;
use std::fs;
use std::path::{Path, PathBuf};

/// Folders of the repository that the documents refer to.
const FOLDERS: [&str; 6] = [".ci/", "crates/", "dist/", "docs/", "experiments/", "lab/"];

/// Every Markdown file below `at`, except built ones and the kept runs, which are as they were.
fn documents(at: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(at).unwrap().map(|entry| entry.unwrap()) {
        let (path, name) = (entry.path(), entry.file_name());
        let skipped = name == "target" || name == "runs" || name.as_encoded_bytes().starts_with(b".");
        if path.is_dir() && !skipped {
            documents(&path, found);
        } else if path.extension().is_some_and(|e| e == "md") {
            found.push(path);
        }
    }
}

/// Whether `word` can only be the name of a test: `after_a_loss_all_is_read_again`.
fn names_a_test(word: &str) -> bool {
    word.matches('_').count() >= 3
        && word.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_')
}

/// What a document names in backticks and is not there: files, and tests of the file named before them.
fn missing(root: &Path, text: &str) -> Vec<String> {
    let mut file = None;
    let mut missing = Vec::new();
    for word in text.split('`').skip(1).step_by(2) {
        if FOLDERS.iter().any(|f| word.starts_with(f)) && !word.contains(['<', '*', ' ', '$']) {
            let path = root.join(word);
            if !path.exists() {
                missing.push(word.to_owned());
            }
            file = path.extension().is_some_and(|e| e == "rs").then_some(path);
        } else if let Some(path) = &file
            && names_a_test(word)
            && !fs::read_to_string(path).is_ok_and(|source| source.contains(word))
        {
            missing.push(format!("{word} in {}", path.display()));
        }
    }
    missing
}

#[test]
fn what_documents_name_exists() {
    let root = folder("..").canonicalize().unwrap();
    let mut all = Vec::new();
    documents(&root, &mut all);
    assert!(all.iter().any(|path| path.ends_with("SPECIFICATION.md")), "{}", root.display());
    let found: Vec<String> = all
        .iter()
        .flat_map(|path| {
            let text = fs::read_to_string(path).unwrap();
            missing(&root, &text).into_iter().map(move |what| format!("{}: {what}", path.display()))
        })
        .collect();
    super::none(&found, "named but missing");
}

#[test]
fn what_is_missing_is_found() {
    let root = folder("..").canonicalize().unwrap();
    let text = "`experiments/tests/edf.rs`, `experiments/tests/none.rs`; `crates/teiji/tests/workspace/main.rs`: \
                `each_subcommand_is_a_file`, `no_such_test_is_here`, `crates/<name>`";
    let found = missing(&root, text);
    assert_eq!(found.len(), 2, "{found:?}");
    assert!(found[0] == "experiments/tests/none.rs" && found[1].starts_with("no_such_test_is_here in "));
}
