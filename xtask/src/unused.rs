//! Public names that only their definition and tests mention.
//!
//! The compiler reports private items without a use. This check covers public items, because other crates may
//! use them. It compares words. Production code of any crate uses a name if it mentions the word outside of
//! the items of that name and outside of `use`. So the check misses an unused name that something else has
//! too. A crate's build script is production code.
//!
//! Definitions are functions, methods, methods of traits, constants, statics, types and traits. Programs
//! under `examples` and `tests` are tests. A library that no other crate imports serves these programs: a
//! name of it is used where any of them has the word. `xtask/unused.toml` has the exceptions, each with its
//! reason.

use crate::deps::roots;
use crate::modules::Modules;
use crate::rust::{self, Kind, Token, is};
use crate::sources;
use anyhow::{Context, Result};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Range;
use std::path::{Path, PathBuf};

const FILE: &str = "xtask/unused.toml";

/// Production code of one crate: its files with their tokens.
type Code = Vec<(PathBuf, Vec<Token>)>;

/// A definition that another module may use.
#[derive(Debug)]
struct Definition {
    name: String,
    krate: String,
    file: PathBuf,
    line: usize,
    function: bool,
}

/// One item of a file: the tokens of its definition.
struct Item {
    name: String,
    range: Range<usize>,
    /// Index of the name.
    at: usize,
    function: bool,
    /// Whether other modules may use it.
    public: bool,
}

const TYPES: [&str; 4] = ["struct", "enum", "union", "trait"];

/// The items of a file, nested ones too.
fn items(tokens: &[Token]) -> Vec<Item> {
    let mut found = Vec::new();
    let mut traits: Vec<Range<usize>> = Vec::new();
    let mut begin = 0;
    for (at, token) in tokens.iter().enumerate() {
        // An item begins behind the end of the one before it, or where its block opens.
        if token.is(";") || token.is("{") || token.is("}") || token.is("]") && !is(tokens, at + 1, ")") {
            begin = at + 1;
        }
        let name_at = at + 1 + usize::from(token.is("static") && is(tokens, at + 1, "mut"));
        let Some(name) = tokens.get(name_at).filter(|t| t.is_ident()) else {
            continue;
        };
        let function = token.is("fn");
        let constant = token.is("const") && is(tokens, at + 2, ":");
        let other = token.is("static") || token.is("type") || TYPES.iter().any(|t| token.is(t));
        if !(function || constant || other) {
            continue;
        }
        let first = tokens[begin..at]
            .iter()
            .position(|t| t.is("pub"))
            .map_or(at, |n| begin + n);
        let range = first..rust::behind_item(tokens, at).max(name_at + 1);
        let exported = tokens[begin.saturating_sub(8)..at]
            .iter()
            .any(|t| t.is("no_mangle"));
        let of_trait = function && traits.iter().any(|t| t.contains(&at));
        if token.is("trait") {
            traits.push(range.clone());
        }
        found.push(Item {
            name: name.text.clone(),
            range,
            at: name_at,
            function,
            public: (first < at || of_trait) && !exported,
        });
    }
    found
}

/// Indices of names that are no uses: of a `use` without a new name, and of the type of an `impl`.
fn no_uses(tokens: &[Token]) -> BTreeSet<usize> {
    let mut found = BTreeSet::new();
    for (at, token) in tokens.iter().enumerate() {
        if token.is("use") && !is(tokens, at + 1, "<") {
            let end = at + tokens[at..].iter().position(|t| t.is(";")).unwrap_or(0);
            found.extend((at..end).filter(|n| !is(tokens, n + 1, "as")));
        }
        if token.is("impl") {
            let end = at
                + tokens[at..]
                    .iter()
                    .position(|t| t.is("{") || t.is(";") || t.is(")"))
                    .unwrap_or(0);
            let header = &tokens[at..end];
            let of_trait = header.iter().position(|t| t.is("for"));
            let from = of_trait.map_or(at + 1, |n| at + n + 1);
            let from = if of_trait.is_none() && is(tokens, from, "<") {
                behind_angles(tokens, from)
            } else {
                from
            };
            if is(tokens, end, "{") {
                let path = |t: &&Token| t.is_ident() || t.is("::");
                let length = tokens[from.min(end)..end].iter().take_while(path).count();
                found.extend(from..from + length);
            }
        }
    }
    found
}

/// The index behind the angle brackets that open at `at`.
fn behind_angles(tokens: &[Token], at: usize) -> usize {
    let mut depth = 0usize;
    for (n, token) in tokens.iter().enumerate().skip(at) {
        if token.is("<") {
            depth += 1;
        } else if token.is(">") {
            depth = depth.saturating_sub(1);
        }
        if depth == 0 {
            return n + 1;
        }
    }
    tokens.len()
}

/// Whether a mention of a function's name is a field or a variable of that name.
fn is_variable(tokens: &[Token], at: usize) -> bool {
    let called = is(tokens, at + 1, "(") || is(tokens, at + 1, "::");
    let field = is(tokens, at + 1, ":") || at > 0 && is(tokens, at - 1, ".") && !called;
    let bound = at > 0 && is(tokens, at - 1, "let")
        || at > 1 && is(tokens, at - 1, "mut") && is(tokens, at - 2, "let");
    field || bound
}

/// The definitions of all crates that nothing uses.
fn unused(crates: &BTreeMap<String, Code>) -> Vec<Definition> {
    let mut definitions: Vec<Definition> = Vec::new();
    // Names, each with whether it is used, and whether one of the uses may be of a function.
    let mut uses: HashMap<&str, [bool; 2]> = HashMap::new();
    for (krate, code) in crates {
        for (file, tokens) in code {
            let items = items(tokens);
            let mut own: HashMap<&str, Vec<&Range<usize>>> = HashMap::new();
            for item in &items {
                own.entry(&item.name).or_default().push(&item.range);
                if item.public {
                    definitions.push(Definition {
                        name: item.name.clone(),
                        krate: krate.clone(),
                        file: file.clone(),
                        line: tokens[item.at].line,
                        function: item.function,
                    });
                }
            }
            let skipped = no_uses(tokens);
            for (at, token) in tokens.iter().enumerate() {
                let named = token.is_ident() || token.kind == Kind::Quoted;
                let inside = |ranges: &Vec<&Range<usize>>| ranges.iter().any(|r| r.contains(&at));
                if !named || skipped.contains(&at) || own.get(token.text.as_str()).is_some_and(inside) {
                    continue;
                }
                let used = uses.entry(token.text.as_str()).or_default();
                used[0] = true;
                used[1] |= !is_variable(tokens, at);
            }
        }
    }
    let mut mixed: BTreeMap<String, bool> = BTreeMap::new();
    for definition in &definitions {
        *mixed.entry(definition.name.clone()).or_default() |= !definition.function;
    }
    let is_used = |d: &Definition| {
        let of_function = usize::from(!mixed[&d.name]);
        uses.get(d.name.as_str()).is_some_and(|used| used[of_function])
    };
    definitions.retain(|d| d.name != "main" && d.name != "_" && !is_used(d));
    definitions
}

/// Unused definitions that no exception names, and exceptions that no definition needs.
fn compare(found: &[Definition], exceptions: &BTreeMap<String, String>, root: &Path) -> Vec<String> {
    let mut faults = Vec::new();
    let mut needed = BTreeSet::new();
    for definition in found {
        let name = format!("{}::{}", definition.krate, definition.name);
        if !exceptions.contains_key(&name) {
            let file = definition
                .file
                .strip_prefix(root)
                .unwrap_or(&definition.file)
                .display();
            faults.push(format!(
                "{file}:{}: '{}' is used by tests at most: remove it, move it to the tests, or give the reason \
                 for it in {FILE}",
                definition.line, definition.name
            ));
        }
        needed.insert(name);
    }
    for (name, reason) in exceptions {
        if !needed.contains(name) {
            faults.push(format!(
                "{FILE}: {name} is used or does not exist: remove the line"
            ));
        }
        if reason.trim().is_empty() {
            faults.push(format!("{FILE}: {name} has no reason"));
        }
    }
    faults
}

/// Each word of the Rust files below a folder, comments included, with its number.
fn words(folder: &Path) -> Result<HashMap<String, usize>> {
    let mut counts = HashMap::new();
    for file in sources(folder)? {
        let text = std::fs::read_to_string(&file)?;
        for word in text.split(|c: char| !(c.is_alphanumeric() || c == '_')) {
            match counts.get_mut(word) {
                Some(n) => *n += 1,
                None => _ = counts.insert(word.to_owned(), 1),
            }
        }
    }
    Ok(counts)
}

/// Faults, or the text for none.
pub(crate) fn check(root: &Path) -> Result<(Vec<String>, String)> {
    let mut crates = BTreeMap::new();
    let (mut libraries, mut imported) = (BTreeSet::new(), BTreeSet::new());
    let folder = root.join("crates");
    for entry in std::fs::read_dir(&folder).with_context(|| format!("cannot list {}", folder.display()))? {
        let path = entry?.path();
        let krate = path
            .file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned();
        let manifest: toml::Table = toml::from_str(&std::fs::read_to_string(path.join("Cargo.toml"))?)?;
        let dependencies = manifest.get("dependencies").and_then(toml::Value::as_table);
        let names = dependencies.into_iter().flatten().map(|(name, _)| name);
        imported.extend(names.filter_map(|n| n.strip_prefix("heddle-")).map(str::to_owned));
        if !path.join("src/main.rs").exists() {
            libraries.insert(krate.clone());
        }
        let mut code = Code::new();
        for (_, entry) in roots(&krate, &path.join("src")) {
            code.append(&mut Modules::read(&entry)?.files);
        }
        let script = path.join("build.rs");
        if let Ok(text) = std::fs::read_to_string(&script) {
            code.push((script, rust::production(&text)?));
        }
        crates.insert(krate, code);
    }
    let text = std::fs::read_to_string(root.join(FILE)).with_context(|| format!("cannot read {FILE}"))?;
    let exceptions: BTreeMap<String, String> =
        toml::from_str(&text).with_context(|| format!("cannot read {FILE}"))?;
    let mut found = unused(&crates);
    let of_tests = |d: &Definition| libraries.contains(&d.krate) && !imported.contains(&d.krate);
    if found.iter().any(of_tests) {
        let words = words(&folder)?;
        found.retain(|d| !of_tests(d) || words.get(&d.name).is_none_or(|n| *n == 1));
    }
    let faults = compare(&found, &exceptions, root);
    let fine = format!(
        "{} crates have no name that tests alone use, {} exceptions",
        crates.len(),
        exceptions.len()
    );
    Ok((faults, fine))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(files: &[(&str, &str)]) -> Vec<String> {
        let mut crates: BTreeMap<String, Code> = BTreeMap::new();
        for (krate, text) in files {
            let tokens = rust::production(text).unwrap();
            crates
                .entry((*krate).to_owned())
                .or_default()
                .push(("lib.rs".into(), tokens));
        }
        unused(&crates).into_iter().map(|d| d.name).collect()
    }

    #[test]
    fn planted_faults_are_found() {
        for (text, name) in [
            ("pub fn planted() {}", "planted"),
            ("pub(crate) const fn planted() {}", "planted"),
            ("pub(super) const PLANTED: [u8; 2] = [1, 2];", "PLANTED"),
            ("pub static mut PLANTED: u8 = 1;", "PLANTED"),
            ("pub struct Planted { a: u8 }", "Planted"),
            (
                "pub enum Planted {} impl Planted {} impl<T> Drop for Planted {}",
                "Planted",
            ),
            ("pub type Planted = u8;", "Planted"),
            (
                "struct A; impl A { pub async fn planted(&self) { self.planted() } }",
                "planted",
            ),
            ("pub fn planted() {} pub use a::planted;", "planted"),
            (
                "pub fn planted() {} #[cfg(test)] mod tests { fn t() { super::planted() } }",
                "planted",
            ),
            (
                "pub fn planted() {} struct A { planted: u8 } fn f(a: A) -> u8 { a.planted }",
                "planted",
            ),
            (
                "trait T { fn planted(&self); } impl T for u8 { fn planted(&self) { self.planted() } }",
                "planted",
            ),
            (
                "/// [`planted`]\npub fn planted() {} const A: &str = \"planted\";",
                "planted",
            ),
        ] {
            assert_eq!(found(&[("k", text)]), [name], "{text}");
        }
    }

    #[test]
    fn used_names_are_not() {
        for text in [
            "pub fn used() {} fn f() { used() }",
            "pub fn used() {} fn f() { [1].map(used) }",
            "pub fn used() {} pub use a::used as other;",
            "pub const USED: u8 = 1; fn f() { println!(\"{USED}\") }",
            "pub struct Used; impl A for Vec<Used> {}",
            "pub struct Used; struct B { used: Used }",
            "pub trait Used {} impl Used for u8 {}",
            "pub fn used() {} #[serde(default = \"used\")] struct A;",
            "pub fn used() {} macro_rules! m { () => { $crate::used() } }",
            "#[unsafe(no_mangle)] pub extern \"C\" fn used() {}",
            "trait T { fn used(&self); } fn f(t: &dyn T) { t.used() }",
            "fn unseen() {} pub fn main() {}",
        ] {
            assert!(found(&[("k", text)]).is_empty(), "{text}");
        }
        assert!(found(&[("a", "pub fn used() {}"), ("b", "fn f() { a::used() }")]).is_empty());
    }

    #[test]
    fn exceptions_have_reasons_and_are_needed() {
        let definition = Definition {
            name: "planted".into(),
            krate: "k".into(),
            file: "lib.rs".into(),
            line: 3,
            function: true,
        };
        let said = |pairs: &[(&str, &str)]| {
            let exceptions = pairs
                .iter()
                .map(|(a, b)| ((*a).to_owned(), (*b).to_owned()))
                .collect();
            compare(std::slice::from_ref(&definition), &exceptions, Path::new("."))
        };
        assert!(said(&[])[0].starts_with("lib.rs:3: 'planted' is used by tests at most"));
        assert!(said(&[("k::planted", "another project calls it")]).is_empty());
        assert!(said(&[("k::planted", " ")])[0].contains("has no reason"));
        assert!(
            said(&[("k::planted", "so"), ("k::gone", "so")])[0].contains("k::gone is used or does not exist")
        );
    }
}
