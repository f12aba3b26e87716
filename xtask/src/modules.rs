//! The modules of a crate, and the import graph between them.
//!
//! Reading starts at `lib.rs` or `main.rs` and follows the `mod` declarations, so modules of tests are not
//! read. A path is resolved to the module that defines its name, through re-exports (`use`).
//!
//! The graph of a folder has the folder's modules as nodes. One node includes all modules below it. A path
//! from one node into another is an edge. A path between a module and a module that contains it is no edge.

use crate::rust::{self, Kind, Token, is};
use anyhow::{Context, Result};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// Limit of re-exports of re-exports, so that a cycle of them ends.
const MAX_RE_EXPORTS: usize = 16;

/// A path of the source, one name an element.
type Names = Vec<String>;

/// One module: the names that it declares, and the paths in its code.
#[derive(Default)]
struct Module {
    /// Names from the root of the crate on: none for the root itself.
    path: Names,
    file: PathBuf,
    parent: Option<usize>,
    children: BTreeMap<String, usize>,
    /// Names that `use` brings in, with the path that each stands for.
    imports: BTreeMap<String, Names>,
    globs: Vec<Names>,
    defined: BTreeSet<String>,
    /// Paths in its code, with their lines.
    paths: Vec<(Names, usize)>,
}

/// The modules of one library or program; the first is its root.
#[derive(Default)]
pub(crate) struct Modules {
    list: Vec<Module>,
    /// Each file with its tokens, tests left out.
    pub(crate) files: Vec<(PathBuf, Vec<Token>)>,
}

/// A place where one module names another.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Location {
    pub(crate) file: PathBuf,
    pub(crate) line: usize,
}

/// The edges of one folder: from a module to another, with the places that make each.
pub(crate) type Graph = BTreeMap<(String, String), BTreeSet<Location>>;

impl Modules {
    /// Reads a library or a program from its `lib.rs` or `main.rs` on.
    pub(crate) fn read(root: &Path) -> Result<Self> {
        let read = |path: &Path| {
            std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))
        };
        Self::read_with(root, &read)
    }

    fn read_with(root: &Path, read: &dyn Fn(&Path) -> Result<String>) -> Result<Self> {
        let mut modules = Modules::default();
        modules.add_file(root, Vec::new(), None, root.parent().unwrap_or(root), read)?;
        Ok(modules)
    }

    /// Adds the module of a file; `folder` is where the files of its children are.
    fn add_file(
        &mut self,
        file: &Path,
        path: Names,
        parent: Option<usize>,
        folder: &Path,
        read: &dyn Fn(&Path) -> Result<String>,
    ) -> Result<usize> {
        let tokens = rust::production(&read(file)?).with_context(|| file.display().to_string())?;
        let id = self.add(file, path, parent, folder, &tokens, read)?;
        self.files.push((file.to_owned(), tokens));
        Ok(id)
    }

    fn add(
        &mut self,
        file: &Path,
        path: Names,
        parent: Option<usize>,
        folder: &Path,
        tokens: &[Token],
        read: &dyn Fn(&Path) -> Result<String>,
    ) -> Result<usize> {
        let id = self.list.len();
        self.list.push(Module {
            path: path.clone(),
            file: file.to_owned(),
            parent,
            ..Module::default()
        });
        let mut at = 0;
        while at < tokens.len() {
            let token = &tokens[at];
            let name = tokens.get(at + 1).filter(|t| t.is_ident());
            if token.is("mod")
                && let Some(name) = name.map(|t| t.text.clone())
            {
                let mut inner = path.clone();
                inner.push(name.clone());
                let below = folder.join(&name);
                let child = if is(tokens, at + 2, "{") {
                    let end = rust::behind_group(tokens, at + 2);
                    let body = &tokens[at + 3..end - 1];
                    at = end;
                    self.add(file, inner, Some(id), &below, body, read)?
                } else {
                    at += 3;
                    let flat = folder.join(format!("{name}.rs"));
                    let file = if read(&flat).is_ok() {
                        flat
                    } else {
                        below.join("mod.rs")
                    };
                    self.add_file(&file, inner, Some(id), &below, read)?
                };
                self.list[id].children.insert(name, child);
            } else if token.is("use") && !is(tokens, at + 1, "<") {
                let end = at
                    + tokens[at..]
                        .iter()
                        .position(|t| t.is(";"))
                        .unwrap_or(tokens.len() - at);
                for import in imports(&tokens[at + 1..end]) {
                    self.list[id].take(import);
                }
                at = end + 1;
            } else {
                let module = &mut self.list[id];
                let begins =
                    token.is_ident() && !(at > 0 && (is(tokens, at - 1, "::") || is(tokens, at - 1, ".")));
                if begins {
                    let (names, end) = path_at(tokens, at);
                    module.paths.push((names, token.line));
                    at = end.max(at + 1);
                    continue;
                }
                at += 1;
            }
        }
        self.list[id].defined = defined(tokens);
        Ok(id)
    }

    /// The module that defines the name of a path in module `from`, and whether the path names a module.
    fn resolve(&self, from: usize, path: &[String], budget: usize) -> Option<(usize, bool)> {
        let budget = budget.checked_sub(1)?;
        let mut names = path;
        let mut at = from;
        let mut anchored = false;
        while let Some((first, rest)) = names.split_first() {
            match first.as_str() {
                "crate" => at = 0,
                "self" => {}
                "super" => at = self.list[at].parent?,
                _ => break,
            }
            (names, anchored) = (rest, true);
        }
        while let Some((name, rest)) = names.split_first() {
            if let Some(child) = self.list[at].children.get(name) {
                (at, names, anchored) = (*child, rest, true);
                continue;
            }
            let found = self.list[at]
                .imports
                .get(name)
                .filter(|i| i.as_slice() != path || at != from);
            let target = match found {
                Some(import) => self.resolve(at, import, budget),
                None if self.list[at].defined.contains(name) => return Some((at, false)),
                None => self.through_globs(at, name, budget),
            };
            match target {
                Some((module, true)) => (at, names, anchored) = (module, rest, true),
                Some(target) => return Some(target),
                // An import of another crate, or a name that a macro defines here.
                None => return (anchored && found.is_none()).then_some((at, false)),
            }
        }
        anchored.then_some((at, true))
    }

    /// Target of a name that came by `use ...::*`.
    fn through_globs(&self, at: usize, name: &str, budget: usize) -> Option<(usize, bool)> {
        self.list[at].globs.iter().find_map(|glob| {
            let (module, true) = self.resolve(at, glob, budget)? else {
                return None;
            };
            if module == at {
                return None;
            }
            let m = &self.list[module];
            let knows =
                m.children.contains_key(name) || m.imports.contains_key(name) || m.defined.contains(name);
            (knows || !m.globs.is_empty())
                .then(|| self.resolve(module, &["self".to_owned(), name.to_owned()], budget))
                .flatten()
                .filter(|_| knows)
        })
    }

    /// The import graphs of all folders that have edges, by the folder's path. The root has the empty path.
    pub(crate) fn graphs(&self) -> BTreeMap<Names, Graph> {
        let mut graphs: BTreeMap<Names, Graph> = BTreeMap::new();
        for (id, module) in self.list.iter().enumerate() {
            for (path, line) in &module.paths {
                // A name alone adds to its `use` only where a glob may have brought it in.
                if path.len() == 1 && module.globs.is_empty() {
                    continue;
                }
                let Some((target, itself)) = self.resolve(id, path, MAX_RE_EXPORTS) else {
                    continue;
                };
                if path.len() == 1 && itself && path[0] != "crate" {
                    continue;
                }
                let (from, to) = (&module.path, &self.list[target].path);
                let common = from.iter().zip(to).take_while(|(a, b)| a == b).count();
                let (Some(a), Some(b)) = (from.get(common), to.get(common)) else {
                    continue;
                };
                let edge = (a.clone(), b.clone());
                let place = Location {
                    file: module.file.clone(),
                    line: *line,
                };
                graphs
                    .entry(from[..common].to_vec())
                    .or_default()
                    .entry(edge)
                    .or_default()
                    .insert(place);
            }
        }
        graphs
    }
}

/// One name, or one glob, that a `use` imports.
struct Import {
    path: Names,
    /// The name in this module; a glob has none.
    name: Option<String>,
    line: usize,
}

impl Module {
    fn take(&mut self, import: Import) {
        self.paths.push((import.path.clone(), import.line));
        match import.name {
            Some(name) => _ = self.imports.insert(name, import.path),
            None => self.globs.push(import.path),
        }
    }
}

/// The leaves of a `use`, from behind the word to its semicolon.
fn imports(tree: &[Token]) -> Vec<Import> {
    let mut found = Vec::new();
    let mut at = 0;
    // A leading `::` names another crate.
    if !is(tree, 0, "::") {
        leaves(tree, &mut at, &[], &mut found);
    }
    found
}

fn leaves(tree: &[Token], at: &mut usize, prefix: &[String], found: &mut Vec<Import>) {
    let mut path = prefix.to_vec();
    while let Some(token) = tree.get(*at) {
        let line = token.line;
        *at += 1;
        if token.is("*") {
            found.push(Import {
                path,
                name: None,
                line,
            });
            return;
        }
        if token.is("{") {
            while *at < tree.len() && !is(tree, *at, "}") {
                leaves(tree, at, &path, found);
                if is(tree, *at, ",") {
                    *at += 1;
                }
            }
            *at += 1;
            return;
        }
        if !token.is_ident() {
            continue;
        }
        // `a::{self}` names `a`.
        if !token.is("self") || path.is_empty() {
            path.push(token.text.clone());
        }
        if is(tree, *at, "::") {
            *at += 1;
            continue;
        }
        let mut name = path.last().cloned();
        if is(tree, *at, "as") {
            name = tree.get(*at + 1).map(|t| t.text.clone());
            *at += 2;
        }
        found.push(Import { path, name, line });
        return;
    }
}

/// The path that begins at an identifier, and the index behind it.
fn path_at(tokens: &[Token], at: usize) -> (Names, usize) {
    let mut names = vec![tokens[at].text.clone()];
    let mut at = at + 1;
    while is(tokens, at, "::")
        && let Some(next) = tokens.get(at + 1).filter(|t| t.is_ident())
    {
        names.push(next.text.clone());
        at += 2;
    }
    (names, at)
}

/// The names of items and macros that these tokens define.
fn defined(tokens: &[Token]) -> BTreeSet<String> {
    const WORDS: [&str; 8] = [
        "fn", "struct", "enum", "union", "trait", "type", "const", "static",
    ];
    let pairs = tokens
        .windows(2)
        .filter(|w| w[1].kind == Kind::Ident && WORDS.iter().any(|k| w[0].is(k)));
    let items = pairs.map(|w| w[1].text.clone());
    let macros = tokens
        .windows(3)
        .filter(|w| w[0].is("macro_rules") && w[2].is_ident());
    items.chain(macros.map(|w| w[2].text.clone())).collect()
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A crate of the given files, below `src`.
    pub(crate) fn krate(files: &[(&str, &str)]) -> Modules {
        let files: BTreeMap<PathBuf, String> = files
            .iter()
            .map(|(name, text)| (Path::new("src").join(name), (*text).to_owned()))
            .collect();
        let read = |path: &Path| {
            files
                .get(path)
                .cloned()
                .with_context(|| format!("no {}", path.display()))
        };
        Modules::read_with(Path::new("src/lib.rs"), &read).unwrap()
    }

    fn edges(modules: &Modules, folder: &[&str]) -> Vec<String> {
        let folder: Names = folder.iter().map(|n| (*n).to_owned()).collect();
        let graph = modules.graphs().remove(&folder).unwrap_or_default();
        graph.keys().map(|(a, b)| format!("{a}>{b}")).collect()
    }

    #[test]
    fn imports_of_all_forms_are_edges() {
        for text in [
            "use crate::b::B;",
            "use super::b::{C, self as d};",
            "fn f() -> crate::b::B { crate::b::B }",
            "use crate::b; fn f() { b::g() }",
            "use crate::{c, b::B as E};",
            "macro_rules! m { () => { $crate::b::B } }",
            "use crate::*; fn f(_: B) {}",
            "use crate::B;",
            "mod inner { use super::super::b; }",
        ] {
            let lib = "mod a; mod b; mod c; pub use b::B;";
            let modules = krate(&[
                ("lib.rs", lib),
                ("a.rs", text),
                ("b.rs", "pub struct B;"),
                ("c.rs", ""),
            ]);
            assert!(edges(&modules, &[]).contains(&"a>b".to_owned()), "{text}");
        }
    }

    #[test]
    fn what_is_no_import_is_no_edge() {
        for text in [
            "use b::B;",
            "use ::b::B;",
            "// crate::b\nuse std::b::B;",
            "const A: &str = \"crate::b\";",
            "#[cfg(test)] mod tests { use crate::b::B; }",
            "#[cfg(test)] mod tests; ",
            "fn f(b: u8) { b.b(); }",
            "use crate::ROOT;",
        ] {
            let modules = krate(&[
                ("lib.rs", "mod a; mod x { pub(crate) mod b; } const ROOT: u8 = 1;"),
                ("a.rs", text),
                ("x/b.rs", ""),
            ]);
            assert!(edges(&modules, &[]).is_empty(), "{text}");
        }
    }

    #[test]
    fn re_exports_lead_to_the_definition() {
        let modules = krate(&[
            ("lib.rs", "mod a; mod b; mod c; pub use c::T;"),
            ("a.rs", "use crate::T; use crate::b::u;"),
            ("b.rs", "pub use crate::c::u;"),
            ("c.rs", "mod d; pub use d::T; pub mod u {}"),
            ("c/d.rs", "pub struct T;"),
        ]);
        assert_eq!(edges(&modules, &[]), ["a>c", "b>c"]);
    }

    #[test]
    fn a_folder_has_a_graph_of_its_own() {
        let modules = krate(&[
            ("lib.rs", "mod f; mod g;"),
            ("f/mod.rs", "mod a; mod b; pub struct P; fn q() { a::x() }"),
            ("f/a.rs", "use super::{P, b::y}; pub fn x() {}"),
            ("f/b.rs", "use crate::g; pub fn y() { super::a::x() }"),
            ("g.rs", ""),
        ]);
        assert_eq!(edges(&modules, &["f"]), ["a>b", "b>a"]);
        assert_eq!(edges(&modules, &[]), ["f>g"]);
    }
}
