//! Imports run one way: those of the core down the table of layers in ARCHITECTURE.md, and those of every crate without
//! a circle.
//!
//! A path counts, in a `use` or in code, where it begins with `crate`, `self` or `super`. It is followed to the file that
//! has the item, through re-exports. Code for tests does not count, nor do the insides of macros.
#![expect(clippy::unwrap_used, reason = "a test that cannot read the sources must fail")]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use syn::visit::{self, Visit};

/// A module by its path: `["cpu", "kernel"]`; the crate's root is empty.
type Module = Vec<String>;

/// What a name in a module is imported from.
type Names = BTreeMap<String, Module>;

#[test]
fn imports_of_the_core_run_down_the_table_of_layers() {
    let layers = layers();
    let rank = |module: &Module| {
        let name = module.first().map_or("", String::as_str);
        let rank = layers.iter().position(|layer| layer.iter().any(|each| each == name));
        rank.unwrap_or_else(|| panic!("ARCHITECTURE.md has no layer for {name}"))
    };
    // The crate's root only re-exports.
    let upward: Vec<String> = imports("crates/kvscatter")
        .into_iter()
        .filter(|(from, to)| from.first() != to.first() && !from.is_empty() && !to.is_empty())
        .filter(|(from, to)| rank(to) >= rank(from))
        .map(|(from, to)| format!("{} imports {}", from.join("::"), to.join("::")))
        .collect();
    assert!(upward.is_empty(), "{upward:#?}");
}

#[test]
fn no_crate_imports_in_circles() {
    let crates = fs::read_dir(root().join("crates")).unwrap().map(|entry| entry.unwrap().path());
    let mut circles = Vec::new();
    for path in crates.chain([root().join("xtask")]) {
        let imports = imports(path.strip_prefix(root()).unwrap().to_str().unwrap());
        let in_circle = |(from, to): &&(Module, Module)| reached(to, &imports).contains(from);
        let named = |(from, to): &(Module, Module)| format!("{} -> {}", from.join("::"), to.join("::"));
        let named = |pair: &(Module, Module)| format!("{}: {}", path.display(), named(pair));
        circles.extend(imports.iter().filter(in_circle).map(named));
    }
    assert!(circles.is_empty(), "{circles:#?}");
}

/// The modules that a module imports, and those that they import.
fn reached(module: &Module, imports: &BTreeSet<(Module, Module)>) -> BTreeSet<Module> {
    let mut reached = BTreeSet::from([module.clone()]);
    let mut left = vec![module.clone()];
    while let Some(module) = left.pop() {
        let new = imports.iter().filter(|(from, to)| *from == module && reached.insert(to.clone()));
        left.extend(new.map(|(_, to)| to.clone()));
    }
    reached
}

/// The layers of ARCHITECTURE.md, lowest last: the names in the second column of the table.
fn layers() -> Vec<Vec<String>> {
    let page = fs::read_to_string(root().join("ARCHITECTURE.md")).unwrap();
    let table =
        page.lines().skip_while(|line| !line.starts_with("| layer | modules in `crates/kvscatter/src` |"));
    let rows = table.skip(2).take_while(|line| line.starts_with('|'));
    let mut layers: Vec<Vec<String>> = rows
        .map(|row| {
            let modules = row.split('|').nth(2).unwrap();
            let quoted = modules.split('`').skip(1).step_by(2);
            quoted.map(|name| name.trim_end_matches('/').trim_end_matches(".rs").to_owned()).collect()
        })
        .collect();
    layers.reverse();
    assert!(layers.len() > 3, "{layers:?}");
    layers
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned()
}

/// Every pair of modules of a crate of which the first imports the second.
fn imports(path: &str) -> BTreeSet<(Module, Module)> {
    let src = root().join(path).join("src");
    let mut modules = BTreeMap::new();
    read(&src, &src, &mut modules);
    let names: BTreeMap<&Module, Names> =
        modules.iter().map(|(module, paths)| (module, paths.names(module))).collect();
    let mut imports = BTreeSet::new();
    for (module, paths) in &modules {
        for path in &paths.used {
            let target = resolve(absolute(module, path), &names);
            if target != *module {
                imports.insert((module.clone(), target));
            }
        }
    }
    imports
}

/// The module that has the item of a path, through at most a few re-exports.
fn resolve(mut path: Module, names: &BTreeMap<&Module, Names>) -> Module {
    for _ in 0..8 {
        let len = (0..=path.len()).rev().find(|&len| names.contains_key(&path[..len].to_vec())).unwrap();
        let (module, rest) = (path[..len].to_vec(), &path[len..]);
        match rest.first().and_then(|name| names[&module].get(name)) {
            Some(source) => path = [source, &rest[1..]].concat(),
            None => return module,
        }
    }
    path
}

/// The path from the crate's root. `self` and `super` are those of a file.
fn absolute(module: &Module, path: &[String]) -> Module {
    let mut base = match path[0].as_str() {
        "crate" => Vec::new(),
        _ => module.clone(),
    };
    let mut rest = path;
    while let Some((first, tail)) = rest.split_first() {
        match first.as_str() {
            "crate" | "self" => {}
            "super" => drop(base.pop()),
            _ => break,
        }
        rest = tail;
    }
    [base.as_slice(), rest].concat()
}

/// The files below a folder, each with the paths that it uses.
fn read(src: &Path, folder: &Path, modules: &mut BTreeMap<Module, Paths>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            read(src, &path, modules);
        } else if path.extension().is_some_and(|extension| extension == "rs") && !is_test(&path) {
            let file = syn::parse_file(&fs::read_to_string(&path).unwrap()).unwrap();
            let mut paths = Paths::default();
            paths.visit_file(&file);
            let name = path.strip_prefix(src).unwrap().with_extension("");
            let mut module: Module = name.iter().map(|part| part.to_str().unwrap().to_owned()).collect();
            module.pop_if(|last| matches!(last.as_str(), "mod" | "lib" | "main"));
            modules.insert(module, paths);
        }
    }
}

fn is_test(path: &Path) -> bool {
    path.file_stem().is_some_and(|stem| stem == "tests")
}

/// Paths of a file that lead somewhere in its crate.
#[derive(Default)]
struct Paths {
    used: Vec<Vec<String>>,
    /// The imports by the name that they have here.
    imported: Vec<(String, Vec<String>)>,
    /// Modules inside the file that the visitor is in.
    depth: usize,
}

impl Paths {
    fn names(&self, module: &Module) -> Names {
        let absolute = |path: &Vec<String>| absolute(module, path);
        self.imported.iter().map(|(name, path)| (name.clone(), absolute(path))).collect()
    }

    /// The path as it would be outside of modules inside this file; `None` if it leads nowhere else in the crate.
    fn local(&self, path: &[String]) -> Option<Vec<String>> {
        let supers = path.iter().take_while(|part| *part == "super").count();
        match path.first()?.as_str() {
            "crate" => Some(path.to_vec()),
            "self" if self.depth == 0 => Some(path.to_vec()),
            _ if supers > self.depth => Some(path[self.depth..].to_vec()),
            _ => None,
        }
    }

    fn add_tree(&mut self, mut path: Vec<String>, tree: &syn::UseTree) {
        match tree {
            syn::UseTree::Path(tree) => {
                path.push(tree.ident.to_string());
                self.add_tree(path, &tree.tree);
            }
            syn::UseTree::Group(group) => {
                group.items.iter().for_each(|tree| self.add_tree(path.clone(), tree));
            }
            syn::UseTree::Name(name) => self.add(path, &name.ident, name.ident.to_string()),
            syn::UseTree::Rename(rename) => self.add(path, &rename.ident, rename.rename.to_string()),
            syn::UseTree::Glob(_) => self.used.extend(self.local(&path)),
        }
    }

    fn add(&mut self, mut path: Vec<String>, ident: &syn::Ident, name: String) {
        if ident != "self" {
            path.push(ident.to_string());
        }
        if let Some(path) = self.local(&path) {
            self.imported.push((name, path.clone()));
            self.used.push(path);
        }
    }
}

impl Visit<'_> for Paths {
    fn visit_item_mod(&mut self, item: &syn::ItemMod) {
        if !is_for_tests(&item.attrs) {
            let inside = usize::from(item.content.is_some());
            self.depth += inside;
            visit::visit_item_mod(self, item);
            self.depth -= inside;
        }
    }

    fn visit_item_use(&mut self, item: &syn::ItemUse) {
        // `pub use self::child::Item` makes a path shorter. It is no import of the parent's own.
        if is_for_tests(&item.attrs) {
            return;
        }
        let used = self.used.len();
        self.add_tree(Vec::new(), &item.tree);
        if !matches!(item.vis, syn::Visibility::Inherited) {
            let own =
                self.used.drain(used..).filter(|path| path.first().is_some_and(|first| first != "self"));
            let own: Vec<_> = own.collect();
            self.used.extend(own);
        }
    }

    fn visit_path(&mut self, path: &syn::Path) {
        let segments: Vec<String> = path.segments.iter().map(|segment| segment.ident.to_string()).collect();
        self.used.extend(self.local(&segments).filter(|path| path.len() > 1));
        visit::visit_path(self, path);
    }
}

fn is_for_tests(attributes: &[syn::Attribute]) -> bool {
    attributes.iter().any(|attribute| match &attribute.meta {
        syn::Meta::List(list) if list.path.is_ident("cfg") => list.tokens.to_string() == "test",
        _ => false,
    })
}
