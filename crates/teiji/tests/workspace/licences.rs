//! Licences of the linked crates, and their versions.

use super::{members, metadata, text};
use std::collections::{BTreeMap, BTreeSet};

/// The licences that code linked into the product may have.
const LICENCES: [&str; 8] = [
    "MIT",
    "Apache-2.0",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "ISC",
    "Unicode-3.0",
    "Zlib",
    "Apache-2.0 WITH LLVM-exception",
];

/// Whether an SPDX expression can be satisfied with [`LICENCES`]. Parentheses bind first, then `AND`, then `OR`; `/` is
/// the old form of `OR`.
fn acceptable(expression: &str) -> bool {
    let spaced = expression.replace('(', " ( ").replace(')', " ) ").replace('/', " OR ");
    let words: Vec<&str> = spaced.split_whitespace().collect();
    let mut at = 0;
    let met = any(&words, &mut at);
    met && at == words.len()
}

fn any(words: &[&str], at: &mut usize) -> bool {
    let mut met = all(words, at);
    while words.get(*at) == Some(&"OR") {
        *at += 1;
        met |= all(words, at);
    }
    met
}

fn all(words: &[&str], at: &mut usize) -> bool {
    let mut met = one(words, at);
    while words.get(*at) == Some(&"AND") {
        *at += 1;
        met &= one(words, at);
    }
    met
}

fn one(words: &[&str], at: &mut usize) -> bool {
    let Some(word) = words.get(*at) else { return false };
    *at += 1;
    if *word == "(" {
        let met = any(words, at);
        let closed = words.get(*at) == Some(&")");
        *at += 1;
        return met && closed;
    }
    if words.get(*at) == Some(&"WITH") {
        let exception = words.get(*at + 1).copied().unwrap_or_default();
        *at += 2;
        return LICENCES.contains(&format!("{word} WITH {exception}").as_str());
    }
    LICENCES.contains(word)
}

#[test]
fn expressions_are_understood() {
    for good in [
        "MIT",
        "MIT/Apache-2.0",
        "(MIT OR Apache-2.0) AND Unicode-3.0",
        "LGPL-2.1-only OR BSD-2-Clause",
        "Apache-2.0 WITH LLVM-exception OR MIT",
    ] {
        assert!(acceptable(good), "{good}");
    }
    for bad in ["", "MPL-2.0", "MIT AND GPL-2.0-only", "LGPL-2.1-only", "(MIT", "MIT MIT", "GPL-2.0 WITH x"] {
        assert!(!acceptable(bad), "{bad}");
    }
}

#[test]
fn licences_are_permissive() {
    let metadata = metadata();
    let wrong: Vec<String> = metadata["packages"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|p| !acceptable(text(p, "license")))
        .map(|p| format!("{} {}: {}", text(p, "name"), text(p, "version"), p["license"]))
        .collect();
    assert!(wrong.is_empty(), "licences that are not in the list: {wrong:#?}");
}

/// The part of a version that differs between incompatible versions.
fn series(version: &str) -> String {
    let numbers: Vec<&str> = version.split(['.', '-', '+']).collect();
    let significant = numbers.iter().take(3).position(|n| *n != "0").unwrap_or(2);
    numbers[..=significant.min(numbers.len() - 1)].join(".")
}

#[test]
fn direct_dependencies_come_in_one_version() {
    assert_eq!(
        (series("1.2.3"), series("0.31.0"), series("0.0.4")),
        ("1".into(), "0.31".into(), "0.0.4".into())
    );
    let metadata = metadata();
    let direct: BTreeSet<&str> = members(&metadata)
        .iter()
        .flat_map(|p| p["dependencies"].as_array().unwrap())
        .map(|d| text(d, "name"))
        .collect();
    let mut versions: BTreeMap<&str, BTreeSet<String>> = BTreeMap::new();
    for package in metadata["packages"].as_array().unwrap() {
        let name = text(package, "name");
        if direct.contains(name) {
            versions.entry(name).or_default().insert(series(text(package, "version")));
        }
    }
    versions.retain(|_, v| v.len() > 1);
    assert!(versions.is_empty(), "several incompatible versions: {versions:?}");
}
