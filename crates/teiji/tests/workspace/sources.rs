//! What the code of a crate may not name, checked by the syntax of its sources: paths resolved by `use` declarations,
//! strings, macros and `unsafe`. Comments and code that is only compiled for tests do not count. What would hide code from
//! this check is forbidden as well: `include!`, `extern crate` and `#[path]`.
//!
//! Syntax does not show everything. Not seen are:
//! - names that another file re-exports: `pub use std::time;` there, `super::time::Instant` here;
//! - paths whose first segment is an argument of a macro, and code that a macro of another crate makes;
//! - decisions that are made from others, by `finding.clone()` and an assignment; by `Default::default()` or `Self { .. }`,
//!   where only inference or the `impl` says of which type; by functions of other crates, or other functions of the
//!   type than `new` and `default`.

use proc_macro2::{Delimiter, TokenStream, TokenTree};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// What the code of a crate may not name.
#[derive(Clone, Copy, Debug, Default)]
pub struct Forbidden {
    /// Items, and everything below them.
    pub paths: &'static [&'static str],
    /// Macros.
    pub macros: &'static [&'static str],
    /// Parts of string literals. A part that ends in `.` or `_` counts only within a word: `kernel.` is a part of
    /// `kernel.panic`, but not of a sentence about the kernel.
    pub strings: &'static [&'static str],
    /// Types of which no value may be made.
    pub made: &'static [&'static str],
    /// For this crate, the only items that may be named; all items of other crates may be named.
    pub only: Option<(&'static str, &'static [&'static str])>,
    /// Whether `unsafe` is forbidden.
    pub unsafety: bool,
}

/// The forbidden names in a file, each with its line.
pub fn violations(text: &str, forbidden: &Forbidden) -> Vec<String> {
    let mut file = File { forbidden, ..File::default() };
    let tokens = untested(TokenStream::from_str(text).expect("Rust"));
    // A declaration may use the name of a later one.
    file.imports(&tokens);
    file.imports(&tokens);
    file.uses(&tokens);
    file.found.into_iter().collect()
}

/// The forbidden names in all files of a crate, each with the file's name.
pub fn of_crate(crate_folder: &Path, forbidden: &Forbidden) -> Vec<String> {
    let mut all = Vec::new();
    let source = crate_folder.join("src");
    for file in files(&source) {
        let text = std::fs::read_to_string(&file).unwrap();
        let name = file.strip_prefix(crate_folder).unwrap_or(&file).display().to_string();
        all.extend(violations(&text, forbidden).into_iter().map(|v| format!("{name}:{v}")));
    }
    all
}

/// The files that are compiled into the crate, or run to compile it: from its roots by `mod`, without those that only tests
/// have.
fn files(source: &Path) -> Vec<PathBuf> {
    let mut all = Vec::new();
    let bin = source.join("bin");
    let programs =
        std::fs::read_dir(&bin).into_iter().flatten().map(|entry| (entry.unwrap().path(), bin.clone()));
    let roots = ["lib.rs", "main.rs"].map(|root| (source.join(root), source.to_owned()));
    let build = (source.with_file_name("build.rs"), source.to_owned());
    let mut next: Vec<(PathBuf, PathBuf)> =
        roots.into_iter().chain([build]).filter(|(root, _)| root.exists()).chain(programs).collect();
    while let Some((file, folder)) = next.pop() {
        let text = std::fs::read_to_string(&file).unwrap();
        for name in modules(&untested(TokenStream::from_str(&text).expect("Rust"))) {
            let below = folder.join(name);
            let (flat, nested) = (below.with_extension("rs"), below.join("mod.rs"));
            let found = if flat.exists() { flat } else { nested };
            assert!(found.exists(), "{} has no file", found.display());
            next.push((found, below));
        }
        all.push(file);
    }
    assert!(!all.is_empty(), "{} has no source", source.display());
    all
}

/// The names of `mod name;`; below the names of the inline modules that they are in.
pub fn modules(tokens: &[TokenTree]) -> Vec<PathBuf> {
    let mut all = Vec::new();
    for (i, token) in tokens.iter().enumerate() {
        let name = match &tokens[..i] {
            [.., TokenTree::Ident(word), TokenTree::Ident(name)] if word == "mod" => Some(plain(name)),
            _ => None,
        };
        match (token, name) {
            (TokenTree::Punct(end), Some(name)) if end.as_char() == ';' => all.push(name.into()),
            (TokenTree::Group(group), name) => {
                let folder = PathBuf::from(name.unwrap_or_default());
                let inside: Vec<TokenTree> = group.stream().into_iter().collect();
                all.extend(modules(&inside).into_iter().map(|below| folder.join(below)));
            }
            _ => {}
        }
    }
    all
}

/// The first words of items, which end with a body or a semicolon. What else may have an attribute (an arm, an element, a
/// field, a variant) may also end with a comma.
const ITEMS: [&str; 14] = [
    "async", "const", "enum", "extern", "fn", "impl", "let", "mod", "static", "struct", "trait", "type",
    "unsafe", "use",
];

/// The tokens without attributes (including documentation), and without what comes after `#[cfg(test)]`. Attributes that
/// name the file of a module stay.
pub fn untested(stream: TokenStream) -> Vec<TokenTree> {
    let mut out = Vec::new();
    let mut tokens = stream.into_iter().peekable();
    // What is left out, and whether it is an item; that is not known before its first word.
    let mut skip: Option<Option<bool>> = None;
    let mut path = Vec::new();
    while let Some(token) = tokens.next() {
        if punct(&token) == Some('#') {
            if matches!(tokens.peek(), Some(TokenTree::Punct(p)) if p.as_char() == '!') {
                tokens.next();
            }
            if let Some(TokenTree::Group(group)) = tokens.next() {
                let text = group.stream().to_string().replace(' ', "");
                if text == "cfg(test)" && skip.is_none() {
                    skip = Some(None);
                }
                if text.starts_with("path=") || text.starts_with("cfg_attr(") && text.contains(",path=") {
                    path = vec![token, TokenTree::Group(group)];
                }
            }
            continue;
        }
        if let Some(item) = &mut skip {
            path.clear();
            let visible = matches!(&token, TokenTree::Ident(word) if word == "pub");
            let restricted = matches!(&token, TokenTree::Group(g) if g.delimiter() == Delimiter::Parenthesis);
            if item.is_none() && !visible && !restricted {
                *item = Some(
                    matches!(&token, TokenTree::Ident(word) if ITEMS.contains(&word.to_string().as_str())),
                );
            }
            let ends = match &token {
                TokenTree::Punct(p) => p.as_char() == ';' || (p.as_char() == ',' && *item != Some(true)),
                TokenTree::Group(g) => g.delimiter() == Delimiter::Brace,
                _ => false,
            };
            if ends {
                skip = None;
            }
            continue;
        }
        out.append(&mut path);
        out.push(match token {
            TokenTree::Group(group) => {
                let inside: TokenStream = untested(group.stream()).into_iter().collect();
                let mut cleaned = proc_macro2::Group::new(group.delimiter(), inside);
                cleaned.set_span(group.span());
                TokenTree::Group(cleaned)
            }
            other => other,
        });
    }
    out
}

/// The name without the mark of raw identifiers.
fn plain(name: &proc_macro2::Ident) -> String {
    let name = name.to_string();
    name.strip_prefix("r#").map_or(name.clone(), str::to_owned)
}

#[derive(Default)]
struct File<'a> {
    forbidden: &'a Forbidden,
    /// The path that a name stands for, by the declarations of `use` and `type`.
    names: BTreeMap<String, Vec<String>>,
    found: BTreeSet<String>,
}

impl Default for &Forbidden {
    fn default() -> Self {
        const NOTHING: Forbidden =
            Forbidden { paths: &[], macros: &[], strings: &[], made: &[], only: None, unsafety: false };
        &NOTHING
    }
}

impl File<'_> {
    fn tell(&mut self, at: &TokenTree, what: &str) {
        self.found.insert(format!("{}: {what}", at.span().start().line));
    }

    /// Collects the declarations of `use` and `type`, also in blocks, and checks what `use` names.
    fn imports(&mut self, tokens: &[TokenTree]) {
        let mut i = 0;
        while i < tokens.len() {
            match &tokens[i] {
                TokenTree::Ident(word) if word == "use" => {
                    let length = tokens[i..].iter().take_while(|t| punct(t) != Some(';')).count();
                    self.tree(&tokens[i + 1..i + length], &[]);
                    i += length;
                }
                TokenTree::Ident(word) if word == "type" => {
                    let declared: Vec<&TokenTree> =
                        tokens[i + 1..].iter().take_while(|t| punct(t) != Some(';')).collect();
                    if let [TokenTree::Ident(name), equals, path @ ..] = &declared[..]
                        && punct(equals) == Some('=')
                    {
                        let path = path.iter().map_while(|token| match token {
                            TokenTree::Ident(word) => Some(Some(plain(word))),
                            other => (punct(other) == Some(':')).then_some(None),
                        });
                        let path: Vec<String> = path.flatten().collect();
                        if !path.is_empty() {
                            self.names.insert(plain(name), path);
                        }
                    }
                    i += 1;
                }
                TokenTree::Group(group) => {
                    self.imports(&group.stream().into_iter().collect::<Vec<_>>());
                    i += 1;
                }
                _ => i += 1,
            }
        }
    }

    /// A tree of a `use` declaration below `before`.
    fn tree(&mut self, tokens: &[TokenTree], before: &[String]) {
        let mut path = before.to_vec();
        let mut name = None;
        let mut at = tokens.iter().peekable();
        while let Some(token) = at.next() {
            match token {
                TokenTree::Ident(word) if word == "as" => {
                    name = at.next().map(ToString::to_string);
                }
                TokenTree::Ident(word) if word == "self" && !path.is_empty() => {}
                TokenTree::Ident(word) if path.is_empty() => path = self.resolved(vec![plain(word)]),
                TokenTree::Ident(word) => path.push(plain(word)),
                // Everything, or what a macro is told.
                TokenTree::Punct(p) if ['*', '$'].contains(&p.as_char()) => {
                    self.judge(token, &path, true);
                    return;
                }
                TokenTree::Group(group) => {
                    let inside: Vec<TokenTree> = group.stream().into_iter().collect();
                    for part in inside.split(|t| punct(t) == Some(',')).filter(|part| !part.is_empty()) {
                        self.tree(part, &path);
                    }
                    return;
                }
                _ => {}
            }
        }
        if let (Some(token), Some(last)) = (tokens.first(), path.last().cloned()) {
            self.judge(token, &path, false);
            self.names.insert(name.unwrap_or(last), path);
        }
    }

    /// The path with what its first name stands for.
    fn resolved(&self, mut path: Vec<String>) -> Vec<String> {
        let whole = path.first().and_then(|first| self.names.get(first));
        // `use time::time;` must not be resolved again and again.
        if let Some(whole) = whole.filter(|whole| whole[0] != path[0]).cloned() {
            path.splice(0..1, whole);
        }
        path
    }

    /// Checks a path; with `all`, everything below it.
    fn judge(&mut self, at: &TokenTree, path: &[String], all: bool) {
        let joined = path.join("::");
        let below = |path: &str, of: &str| {
            path == of || path.strip_prefix(of).is_some_and(|rest| rest.starts_with("::"))
        };
        for wrong in self.forbidden.paths {
            if below(&joined, wrong) || (all && below(wrong, &joined)) {
                self.tell(at, &joined);
            }
        }
        if let Some((root, only)) = self.forbidden.only
            && path.first().is_some_and(|first| first == root)
            && path.len() > 1
            && !only.iter().any(|may| below(&joined, may) || (!all && below(may, &joined)))
        {
            self.tell(at, &joined);
        }
    }

    /// Checks paths in code, macros, strings, `unsafe`, and values that are made.
    fn uses(&mut self, tokens: &[TokenTree]) {
        let mut i = 0;
        while i < tokens.len() {
            let token = &tokens[i];
            i += 1;
            match token {
                TokenTree::Ident(word) if word == "use" => {
                    i += tokens[i..].iter().take_while(|t| punct(t) != Some(';')).count();
                }
                TokenTree::Ident(word) => {
                    let mut path = vec![plain(word)];
                    while let [a, b, TokenTree::Ident(more), ..] = &tokens[i..]
                        && punct(a) == Some(':')
                        && punct(b) == Some(':')
                    {
                        path.push(plain(more));
                        i += 3;
                    }
                    if let [a, b, told, ..] = &tokens[i..]
                        && [a, b, told].map(punct) == [Some(':'), Some(':'), Some('$')]
                    {
                        // Any name may follow.
                        let path = self.resolved(path.clone());
                        self.judge(token, &path, true);
                    }
                    self.named(token, path, tokens, i);
                }
                TokenTree::Group(group) if i > 1 && punct(&tokens[i - 2]) == Some('#') => {
                    self.tell(token, &format!("#{group}"));
                }
                TokenTree::Group(group) => self.uses(&group.stream().into_iter().collect::<Vec<_>>()),
                TokenTree::Literal(literal) => {
                    let text = literal.to_string();
                    for wrong in self.forbidden.strings {
                        if text.contains('"') && names(&text, wrong) {
                            self.tell(token, &text);
                        }
                    }
                }
                TokenTree::Punct(_) => {}
            }
        }
    }

    /// Checks a path in code; the tokens after it begin at `after`.
    fn named(&mut self, token: &TokenTree, mut path: Vec<String>, tokens: &[TokenTree], after: usize) {
        if self.forbidden.unsafety && path == ["unsafe"] {
            self.tell(token, "unsafe");
        }
        let next = tokens.get(after);
        if path == ["extern"] && matches!(next, Some(TokenTree::Ident(word)) if word == "crate") {
            self.tell(token, "extern crate");
        }
        let segments = path.len();
        path = self.resolved(path);
        let last = path.last().cloned().unwrap_or_default();
        if next.and_then(punct) == Some('!')
            && (last == "include" || self.forbidden.macros.contains(&last.as_str()))
        {
            self.tell(token, &format!("{last}!"));
        }
        if path.len() > 1 {
            self.judge(token, &path, false);
        }
        let is_body = matches!(next, Some(TokenTree::Group(g)) if g.delimiter() == Delimiter::Brace);
        let before = after.checked_sub(3 * segments - 1).and_then(|at| tokens.get(at));
        let declared = matches!(before, Some(TokenTree::Ident(word))
            if ["struct", "enum", "impl", "for", "union", "trait", "mod", "let"].contains(&word.to_string().as_str()))
            || matches!(before.and_then(punct), Some('>' | '&'));
        // A variant of an enumeration may have the same name.
        let variant = path.len() > 1 && path[path.len() - 2].starts_with(char::is_uppercase);
        if is_body && !declared && !variant && self.forbidden.made.contains(&last.as_str()) {
            self.tell(token, &format!("makes a {last}"));
        }
        if let [.., made, function] = &path[..]
            && ["default", "new"].contains(&function.as_str())
            && self.forbidden.made.contains(&made.as_str())
        {
            self.tell(token, &format!("makes a {made}"));
        }
    }
}

/// Whether `text` has `part` in it; see [`Forbidden::strings`].
fn names(text: &str, part: &str) -> bool {
    let within = part.ends_with(['.', '_']);
    text.match_indices(part).any(|(at, _)| {
        !within || text[at + part.len()..].starts_with(|next: char| next.is_ascii_alphanumeric())
    })
}

fn punct(token: &TokenTree) -> Option<char> {
    match token {
        TokenTree::Punct(p) => Some(p.as_char()),
        _ => None,
    }
}
