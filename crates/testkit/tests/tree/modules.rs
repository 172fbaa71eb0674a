//! The modules of a crate and the paths that each of them names.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use proc_macro2::{Delimiter, TokenStream, TokenTree};

use crate::files;

/// Segments of a module's path below the crate root; empty for the root itself.
pub(crate) type ModulePath = Vec<String>;

/// One file of a crate.
#[derive(Debug, Default)]
pub(crate) struct Module {
    /// Paths that the module's own code names, test code left out.
    uses: Vec<ModulePath>,
    /// Names that `pub use` makes available here, with the path behind each.
    reexports: BTreeMap<String, ModulePath>,
    /// Names that begin a path in the module's own code, test code left out.
    names: BTreeSet<String>,
    /// Modules of which everything is imported.
    pub(crate) globs: Vec<String>,
    /// Siblings that the header of a folder allows it to import (`Imports: a, b.`).
    pub(crate) allowed: Option<BTreeSet<String>>,
}

/// All modules of a crate by path.
pub(crate) struct Modules(pub(crate) BTreeMap<ModulePath, Module>);

/// A token with nesting made flat.
#[derive(PartialEq, Debug)]
pub(crate) enum Flat {
    Name(String),
    Colon,
    Mark(char),
    Open(char),
    Close(char),
}

impl Modules {
    pub(crate) fn read(src: &Path) -> Self {
        let mut modules = BTreeMap::new();
        for file in files(src, &["rs"]) {
            let relative = file.strip_prefix(src).unwrap().with_extension("");
            let mut path: ModulePath =
                relative.iter().map(|part| part.to_str().unwrap().to_owned()).collect();
            let last = path.last().unwrap().clone();
            if last == "tests" || relative.to_str() == Some("main") {
                continue;
            }
            if matches!(last.as_str(), "mod" | "lib") {
                path.pop();
            }
            let text = fs::read_to_string(&file).unwrap();
            let is_folder = file.ends_with("mod.rs");
            let module = Module::read(&text, is_folder)
                .unwrap_or_else(|error| panic!("{}: {error}", file.display()));
            modules.insert(path, module);
        }
        Self(modules)
    }

    /// Every import: the importing module, the module that defines the item, and the path as
    /// written.
    pub(crate) fn imports(&self) -> Vec<(&ModulePath, ModulePath, String)> {
        let mut imports = Vec::new();
        for (from, module) in &self.0 {
            // A name from below that this module only passes on is no import.
            let is_own = |path: &ModulePath| {
                self.absolute(from, path).is_some_and(|path| path.starts_with(from))
            };
            let used = module
                .reexports
                .iter()
                .filter(|(name, path)| !is_own(path) || module.names.contains(*name));
            for written in module.uses.iter().chain(used.map(|(_, path)| path)) {
                let Some(absolute) = self.absolute(from, written) else { continue };
                let to = self.definer(&absolute, 0);
                if to != *from {
                    imports.push((from, to, written.join("::")));
                }
            }
        }
        imports
    }

    fn absolute(&self, from: &ModulePath, written: &[String]) -> Option<ModulePath> {
        let supers = written.iter().take_while(|segment| *segment == "super").count();
        let (base, rest) = match written[0].as_str() {
            "crate" => (&[][..], &written[1..]),
            "self" => (&from[..], &written[1..]),
            "super" => (&from[..from.len().checked_sub(supers)?], &written[supers..]),
            child => {
                let mut path = from.clone();
                path.push(child.to_owned());
                self.0.contains_key(&path).then_some(())?;
                (&from[..], written)
            }
        };
        Some([base, rest].concat())
    }

    /// The module that defines what a path names, re-exports followed.
    fn definer(&self, path: &[String], depth: usize) -> ModulePath {
        let known = (0..=path.len()).rev().find(|len| self.0.contains_key(&path[..*len]));
        let (module, rest) = path.split_at(known.unwrap_or(0));
        let behind = rest.first().and_then(|name| self.0[module].reexports.get(name));
        let behind = behind.and_then(|behind| self.absolute(&module.to_vec(), behind));
        match behind {
            Some(behind) if depth < 8 && behind != path => {
                self.definer(&[&behind[..], &rest[1..]].concat(), depth + 1)
            }
            _ => module.to_vec(),
        }
    }
}

impl Module {
    fn read(text: &str, is_folder: bool) -> Result<Self, String> {
        let mut module = Self::default();
        if is_folder {
            module.allowed = allowed(text);
        }
        module.scan(&flat_tokens(text)?);
        Ok(module)
    }

    fn scan(&mut self, tokens: &[Flat]) {
        let mut at = 0;
        let mut is_public = false;
        while at < tokens.len() {
            match &tokens[at] {
                Flat::Mark('#') if is_test_attribute(&tokens[at..]) => {
                    at += item_len(&tokens[at..]);
                    continue;
                }
                Flat::Name(name) if name == "pub" => {
                    is_public = true;
                    at += 1;
                    if tokens.get(at) == Some(&Flat::Open('(')) {
                        at += group_len(&tokens[at..]);
                    }
                    continue;
                }
                // `use<..>` in a type captures lifetimes and imports nothing.
                Flat::Name(name)
                    if name == "use" && tokens.get(at + 1) != Some(&Flat::Mark('<')) =>
                {
                    let end = at + tokens[at..].iter().position(|t| *t == Flat::Mark(';')).unwrap();
                    self.add_use(&tokens[at + 1..end], is_public);
                    at = end;
                }
                Flat::Name(_)
                    if at == 0
                        || !matches!(tokens[at - 1], Flat::Colon | Flat::Mark('.' | '$')) =>
                {
                    let path = path_at(&tokens[at..]);
                    if at == 0 || tokens[at - 1] != Flat::Name("mod".into()) {
                        self.names.insert(path[0].clone());
                    }
                    if path.len() > 1 {
                        at += path.len() * 2 - 2;
                        self.uses.push(path);
                    }
                }
                _ => {}
            }
            is_public = false;
            at += 1;
        }
    }

    fn add_use(&mut self, tree: &[Flat], is_public: bool) {
        for (path, name) in leaves(tree, &[]) {
            if name == "*" {
                // Variants of an enum are defined where it is.
                if !path.last().is_some_and(|last| last.starts_with(char::is_uppercase)) {
                    self.globs.push(path.join("::"));
                }
                self.uses.push(path);
            } else if is_public {
                self.reexports.insert(name, path);
            } else {
                self.uses.push(path);
            }
        }
    }
}

/// The list behind `Imports:` in the header of a folder's `mod.rs`.
fn allowed(text: &str) -> Option<BTreeSet<String>> {
    let header: String = text
        .lines()
        .map_while(|line| line.strip_prefix("//!"))
        .take_while(|line| !line.trim().is_empty())
        .collect();
    let (_, list) = header.split_once("Imports: ")?;
    let (list, _) = list.split_once('.')?;
    let names = list.split(',').map(|name| name.trim().to_owned());
    Some(names.filter(|name| name != "nothing").collect())
}

pub(crate) fn flat_tokens(text: &str) -> Result<Vec<Flat>, String> {
    let tokens: TokenStream = text.parse().map_err(|error| format!("{error}"))?;
    let mut flat = Vec::new();
    flatten(tokens, &mut flat);
    Ok(flat)
}

fn flatten(tokens: TokenStream, flat: &mut Vec<Flat>) {
    let mut colons = 0;
    for token in tokens {
        if let TokenTree::Punct(mark) = &token
            && mark.as_char() == ':'
        {
            colons += 1;
            if colons == 2 {
                flat.pop();
                flat.push(Flat::Colon);
                colons = 0;
            } else {
                flat.push(Flat::Mark(':'));
            }
            continue;
        }
        colons = 0;
        match token {
            TokenTree::Ident(name) => flat.push(Flat::Name(name.to_string())),
            TokenTree::Punct(mark) => flat.push(Flat::Mark(mark.as_char())),
            TokenTree::Group(group) => {
                let (open, close) = match group.delimiter() {
                    Delimiter::Parenthesis => ('(', ')'),
                    Delimiter::Brace => ('{', '}'),
                    _ => ('[', ']'),
                };
                flat.push(Flat::Open(open));
                flatten(group.stream(), flat);
                flat.push(Flat::Close(close));
            }
            TokenTree::Literal(_) => {}
        }
    }
}

/// `a::b::c` as far as it goes.
fn path_at(tokens: &[Flat]) -> ModulePath {
    let mut path = Vec::new();
    let mut rest = tokens;
    while let [Flat::Name(name), after @ ..] = rest {
        path.push(name.clone());
        match after {
            [Flat::Colon, next @ ..] => rest = next,
            _ => break,
        }
    }
    path
}

/// The paths of a `use` tree, each with the name it is known by afterwards.
fn leaves(tree: &[Flat], prefix: &[String]) -> Vec<(ModulePath, String)> {
    let path = path_at(tree);
    let whole = [prefix, &path[..]].concat();
    let rest = &tree[(path.len() * 2).saturating_sub(1).min(tree.len())..];
    match rest {
        [Flat::Colon, Flat::Open('{'), inner @ .., Flat::Close('}')]
        | [Flat::Open('{'), inner @ .., Flat::Close('}')] => {
            split_commas(inner).into_iter().flat_map(|part| leaves(part, &whole)).collect()
        }
        [Flat::Colon, Flat::Mark('*')] | [Flat::Mark('*')] => vec![(whole, "*".into())],
        [Flat::Name(keyword), Flat::Name(alias)] if keyword == "as" => vec![(whole, alias.clone())],
        _ => {
            let mut whole = whole;
            if whole.last().is_some_and(|last| last == "self") && whole.len() > 1 {
                whole.pop();
            }
            let name = whole.last().cloned().unwrap_or_default();
            if whole.is_empty() { Vec::new() } else { vec![(whole, name)] }
        }
    }
}

fn split_commas(tokens: &[Flat]) -> Vec<&[Flat]> {
    let mut depth = 0;
    let parts = tokens.split(|token| {
        match token {
            Flat::Open(_) => depth += 1,
            Flat::Close(_) => depth -= 1,
            _ => {}
        }
        depth == 0 && *token == Flat::Mark(',')
    });
    parts.filter(|part| !part.is_empty()).collect()
}

pub(crate) fn is_test_attribute(tokens: &[Flat]) -> bool {
    let name = |name: &str| Flat::Name(name.to_owned());
    tokens.starts_with(&[
        Flat::Mark('#'),
        Flat::Open('['),
        name("cfg"),
        Flat::Open('('),
        name("test"),
    ])
}

/// Length of an attribute and the item behind it: up to `;`, or up to the end of the first braces.
pub(crate) fn item_len(tokens: &[Flat]) -> usize {
    let mut at = 0;
    while at < tokens.len() {
        match tokens[at] {
            Flat::Mark(';') => return at + 1,
            Flat::Open('{') => return at + group_len(&tokens[at..]),
            Flat::Open(_) => at += group_len(&tokens[at..]),
            _ => at += 1,
        }
    }
    at
}

/// Length of the group that the tokens begin with, both delimiters included.
pub(crate) fn group_len(tokens: &[Flat]) -> usize {
    let mut depth = 0;
    for (at, token) in tokens.iter().enumerate() {
        match token {
            Flat::Open(_) => depth += 1,
            Flat::Close(_) => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return at + 1;
        }
    }
    tokens.len()
}

#[test]
fn globs_are_found_at_any_depth() {
    let text = "use crate::*; fn f() { use super::{low::{self, *}, high::Name, Kind::*}; } \
                #[cfg(test)] mod t { use super::*; }";
    assert_eq!(Module::read(text, false).unwrap().globs, ["crate", "super::low"]);
}

#[test]
fn imports_are_found_at_any_depth_and_through_reexports() {
    let read = |text| Module::read(text, false).unwrap();
    let modules = Modules(BTreeMap::from([
        (vec![], read("mod low; mod high; pub use low::{Base, Other as Alias};")),
        (vec!["low".into()], read("pub struct Base; use crate::high::inner; // crate::nothing")),
        (
            vec!["high".into()],
            read(
                "use crate::{Alias, low::{self, Base}}; fn f() { super::low::g(); inner::h() } #[cfg(test)] mod t { use crate::low::x; }",
            ),
        ),
        (vec!["high".into(), "inner".into()], read("use super::super::Base;")),
        (vec!["user".into()], read("mod part; pub use part::{Part, Used}; fn f(_: Used) {}")),
        (vec!["user".into(), "part".into()], read("pub use crate::low::Base;")),
    ]));
    let imports: Vec<String> = modules
        .imports()
        .into_iter()
        .map(|(from, to, written)| format!("{} -> {} by {written}", from.join("::"), to.join("::")))
        .collect();
    assert_eq!(
        imports,
        [
            "high -> low by crate::Alias",
            "high -> low by crate::low",
            "high -> low by crate::low::Base",
            "high -> low by super::low::g",
            "high -> high::inner by inner::h",
            "high::inner -> low by super::super::Base",
            "low -> high::inner by crate::high::inner",
            "user -> user::part by part::Used",
            "user::part -> low by crate::low::Base",
        ]
    );
}
