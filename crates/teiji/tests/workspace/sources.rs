//! What the code of a crate may not name, checked by the syntax of its sources: paths resolved by `use` declarations,
//! strings, macros and `unsafe`. Comments and code that is only compiled for tests do not count.

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
    /// Parts of string literals.
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

/// The files that are compiled into the crate: from its root by `mod`, without those that only tests have.
fn files(source: &Path) -> Vec<PathBuf> {
    let mut all = Vec::new();
    let roots = ["lib.rs", "main.rs"].map(|root| source.join(root));
    let mut next: Vec<(PathBuf, PathBuf)> =
        roots.into_iter().filter(|r| r.exists()).map(|r| (r, source.to_owned())).collect();
    while let Some((file, folder)) = next.pop() {
        let text = std::fs::read_to_string(&file).unwrap();
        for name in modules(&untested(TokenStream::from_str(&text).expect("Rust"))) {
            let (flat, nested) = (folder.join(format!("{name}.rs")), folder.join(&name).join("mod.rs"));
            let found = if flat.exists() { flat } else { nested };
            assert!(found.exists(), "{} has no file", found.display());
            next.push((found, folder.join(&name)));
        }
        all.push(file);
    }
    assert!(!all.is_empty(), "{} has no source", source.display());
    all
}

/// The names of `mod name;`.
pub fn modules(tokens: &[TokenTree]) -> Vec<String> {
    let named = |window: &[TokenTree]| match window {
        [TokenTree::Ident(word), TokenTree::Ident(name), TokenTree::Punct(end)]
            if word == "mod" && end.as_char() == ';' =>
        {
            Some(name.to_string())
        }
        _ => None,
    };
    tokens.windows(3).filter_map(named).collect()
}

/// The tokens without attributes (including documentation), and without items after `#[cfg(test)]`.
pub fn untested(stream: TokenStream) -> Vec<TokenTree> {
    let mut out = Vec::new();
    let mut tokens = stream.into_iter().peekable();
    let mut skip = false;
    while let Some(token) = tokens.next() {
        let is_hash = matches!(&token, TokenTree::Punct(p) if p.as_char() == '#');
        if is_hash {
            if matches!(tokens.peek(), Some(TokenTree::Punct(p)) if p.as_char() == '!') {
                tokens.next();
            }
            if let Some(TokenTree::Group(group)) = tokens.next() {
                let text = group.stream().to_string().replace(' ', "");
                skip |= text == "cfg(test)";
            }
            continue;
        }
        // To the end of the item: its body, or a semicolon.
        let ends = matches!(&token, TokenTree::Punct(p) if p.as_char() == ';')
            || matches!(&token, TokenTree::Group(g) if g.delimiter() == Delimiter::Brace);
        if skip {
            skip = !ends;
            continue;
        }
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

#[derive(Default)]
struct File<'a> {
    forbidden: &'a Forbidden,
    /// The path that a name stands for, by the `use` declarations.
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

    /// Collects the `use` declarations, also in blocks, and checks what they name.
    fn imports(&mut self, tokens: &[TokenTree]) {
        let mut i = 0;
        while i < tokens.len() {
            match &tokens[i] {
                TokenTree::Ident(word) if word == "use" => {
                    let length = tokens[i..].iter().take_while(|t| punct(t) != Some(';')).count();
                    self.tree(&tokens[i + 1..i + length], &[]);
                    i += length;
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
                TokenTree::Ident(word) => path.push(word.to_string()),
                TokenTree::Punct(p) if p.as_char() == '*' => {
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
                    let mut path = vec![word.to_string()];
                    while let [a, b, TokenTree::Ident(more), ..] = &tokens[i..]
                        && punct(a) == Some(':')
                        && punct(b) == Some(':')
                    {
                        path.push(more.to_string());
                        i += 3;
                    }
                    self.named(token, path, tokens, i);
                }
                TokenTree::Group(group) => self.uses(&group.stream().into_iter().collect::<Vec<_>>()),
                TokenTree::Literal(literal) => {
                    let text = literal.to_string();
                    for wrong in self.forbidden.strings {
                        if text.contains('"') && text.contains(wrong) {
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
        let last = path.last().cloned().unwrap_or_default();
        if next.and_then(punct) == Some('!') && self.forbidden.macros.contains(&last.as_str()) {
            self.tell(token, &format!("{last}!"));
        }
        let (first, segments) = (path[0].clone(), path.len());
        if let Some(whole) = self.names.get(&first) {
            path.splice(0..1, whole.iter().cloned());
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
    }
}

fn punct(token: &TokenTree) -> Option<char> {
    match token {
        TokenTree::Punct(p) => Some(p.as_char()),
        _ => None,
    }
}
