//! Files and tests that the documents name exist, and so do the modules in the tables of modules' documentation.

use super::folder;
use super::sources::{modules, untested};
use proc_macro2::TokenStream;
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// Folders of the repository that the documents refer to.
const FOLDERS: [&str; 6] = [".ci/", "crates/", "dist/", "docs/", "experiments/", "lab/"];

/// Every file below `at` with this extension, except built ones and the kept runs, which are as they were.
fn files(at: &Path, extension: &str, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(at).unwrap().map(|entry| entry.unwrap()) {
        let (path, name) = (entry.path(), entry.file_name());
        let skipped = name == "target" || name == "runs" || name.as_encoded_bytes().starts_with(b".");
        if path.is_dir() && !skipped {
            files(&path, extension, found);
        } else if path.extension().is_some_and(|e| e == extension) {
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
    files(&root, "md", &mut all);
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

/// The modules in the tables `| module | … |` of a file's documentation: the words in backticks of the first column,
/// except file names and the row of the file itself, which has "here". `None` if there is no such table.
fn listed(text: &str) -> Option<BTreeSet<String>> {
    let mut listed = None;
    let mut in_table = false;
    for line in text.lines().map_while(|line| line.strip_prefix("//!")) {
        let Some(first) = line.trim().strip_prefix('|').and_then(|row| row.split('|').next()) else {
            in_table = false;
            continue;
        };
        if first.trim() == "module" {
            in_table = true;
            listed.get_or_insert_with(BTreeSet::new);
        } else if let Some(listed) = listed.as_mut().filter(|_| in_table && !first.contains("here")) {
            let words = first.split('`').skip(1).step_by(2).filter(|word| !word.contains('.'));
            listed.extend(words.map(|word| word.trim_start_matches("mod@").to_owned()));
        }
    }
    listed
}

/// How the table of modules of a file differs from the modules that it declares; modules of tests need no row.
fn wrong_rows(text: &str) -> Vec<String> {
    let Some(listed) = listed(text) else { return Vec::new() };
    let declared = modules(&untested(TokenStream::from_str(text).expect("Rust")));
    let declared: BTreeSet<String> = declared.iter().map(|module| module.display().to_string()).collect();
    let gone = listed.difference(&declared).map(|name| format!("`{name}` is no module of it"));
    let unlisted = declared.difference(&listed).map(|name| format!("`{name}` has no row"));
    gone.chain(unlisted).collect()
}

#[test]
fn tables_of_modules_have_each_module() {
    let root = folder("..").canonicalize().unwrap();
    let mut all = Vec::new();
    files(&root, "rs", &mut all);
    let texts = all.iter().map(|path| (path, fs::read_to_string(path).unwrap()));
    let with_table: Vec<_> = texts.filter(|(_, text)| listed(text).is_some()).collect();
    assert!(with_table.len() > 20, "{}", with_table.len());
    let found: Vec<String> = with_table
        .iter()
        .flat_map(|(path, text)| {
            wrong_rows(text).into_iter().map(move |what| format!("{}: {what}", path.display()))
        })
        .collect();
    super::none(&found, "tables that differ from the modules");
}

#[test]
fn wrong_rows_are_found() {
    let table = "//! It.\n//!\n//! | module | does |\n//! | --- | --- |\n//! | here | a |\n//! | `own` (here) | a |\n\
                 //! | [`a`](mod@a), [`mod@b`] | `x` |\n//! | `gone` | it |\n//!\n//! | file | has |\n//! | `f` | g |\n";
    let text =
        format!("{table}mod a;\npub mod b;\npub(crate) mod c;\n#[cfg(test)]\nmod tests;\nmod inner {{}}\n");
    assert_eq!(wrong_rows(&text), ["`gone` is no module of it", "`c` has no row"]);
    assert_eq!(wrong_rows("//! No table.\nmod a;\n"), Vec::<String>::new());
}
