//! Follows the paths in a crate to the files that define the items.

use std::collections::BTreeMap;

use super::source::{Files, Module, Segments, Source, Use, is_keyword, read};

/// Pairs of modules in separate files, where the first module imports the second. The value is a path that
/// does so.
pub(crate) type Edges = BTreeMap<(Module, Module), String>;

/// The imports between the files of a crate.
pub(crate) struct Imports {
    pub(crate) edges: Edges,
    /// The paths that hide the imported item.
    pub(crate) faults: Vec<String>,
}

/// Returns the imports between the files of a crate.
pub(crate) fn imports(files: &Files) -> Imports {
    let modules = Modules::new(read(files));
    let mut imports = Imports { edges: Edges::new(), faults: Vec::new() };
    for (module, source) in &modules.sources {
        if source.renames_crate {
            imports.faults.push(format!("{}: extern crate self", full_name(module)));
        }
        for (kind, path) in &source.uses {
            for end in modules.ends(module, path, MAX_STEPS) {
                if let Some(fault) = end.fault(source, *kind) {
                    imports.faults.push(format!("{} {fault}: {}", full_name(module), path.join("::")));
                }
                let Some(target) = end.target(module, *kind, path.len()) else { continue };
                let (from, to) = (&source.file, &modules.sources[&target].file);
                if from != to {
                    imports.edges.entry((from.clone(), to.clone())).or_insert_with(|| path.join("::"));
                }
            }
        }
    }
    imports
}

pub(crate) fn full_name(module: &Module) -> String {
    [&["crate".to_owned()], module.as_slice()].concat().join("::")
}

/// The number of imports through which a path is followed. This limit ends the search for a name that is
/// imported from itself.
const MAX_STEPS: usize = 16;

/// The modules of a crate.
struct Modules {
    sources: BTreeMap<Module, Source>,
    /// For each module, the modules that it imports with `*`.
    globs: BTreeMap<Module, Vec<Module>>,
}

/// The end of a path.
enum End {
    /// The path names a module.
    Module(Module),
    /// The path names an item that this module defines.
    Item(Module),
    /// The path names an item that this module does not define, as far as its source shows.
    Unknown(Module),
    /// The path leaves the crate.
    Outside,
}

impl End {
    /// Returns the fault of the path, if it has one.
    fn fault(&self, source: &Source, kind: Use) -> Option<&'static str> {
        let elsewhere = !source.file.is_empty();
        match self {
            Self::Module(module) if module.is_empty() && elsewhere && kind != Use::Code => {
                Some("imports the root as a whole")
            }
            Self::Unknown(module) if module.is_empty() && elsewhere => {
                Some("names what the root does not define")
            }
            _ => None,
        }
    }

    /// Returns the module that a module imports by a path that ends here.
    ///
    /// A `pub use` of a child's item is not an import, because it only shortens the item's path. A single
    /// name in code is a variable, not the module of that name.
    fn target(self, module: &Module, kind: Use, len: usize) -> Option<Module> {
        match self {
            Self::Module(_) if kind == Use::Code && len == 1 => None,
            Self::Module(target) | Self::Item(target) | Self::Unknown(target) => {
                (kind != Use::Reexport || !target.starts_with(module)).then_some(target)
            }
            Self::Outside => None,
        }
    }
}

impl Modules {
    fn new(sources: BTreeMap<Module, Source>) -> Self {
        let modules = Self { sources, globs: BTreeMap::new() };
        let targets = |(module, source): (&Module, &Source)| {
            let ends = source.globs.iter().flat_map(|glob| modules.ends(module, glob, MAX_STEPS));
            let targets = ends.filter_map(|end| match end {
                End::Module(target) => Some(target),
                _ => None,
            });
            (module.clone(), targets.collect())
        };
        let globs = modules.sources.iter().map(targets).collect();
        Self { globs, ..modules }
    }

    /// Follows a path that a module uses. A name can stand for a module, a type and a function at once, so
    /// there can be several ends.
    fn ends(&self, module: &Module, path: &[String], steps: usize) -> Vec<End> {
        if !is_keyword(&path[0]) {
            let ends = self.named(module, path, steps);
            let outside =
                |end| if matches!(&end, End::Unknown(from) if from == module) { End::Outside } else { end };
            return ends.into_iter().map(outside).collect();
        }
        let mut base = if path[0] == "crate" { Module::new() } else { module.clone() };
        let keywords = path.iter().take_while(|segment| is_keyword(segment)).count();
        for keyword in &path[..keywords] {
            if keyword == "super" {
                base.pop();
            }
        }
        self.named(&base, &path[keywords..], steps)
    }

    /// Follows a path whose first name is in the module's scope.
    fn named(&self, module: &Module, path: &[String], steps: usize) -> Vec<End> {
        let Some((name, rest)) = path.split_first() else { return vec![End::Module(module.clone())] };
        let source = &self.sources[module];
        let child =
            source.children.contains(name).then(|| [module.as_slice(), std::slice::from_ref(name)].concat());
        if let Some(child) = child.as_ref().filter(|_| !rest.is_empty()) {
            return self.named(child, rest, steps);
        }
        let Some(steps) = steps.checked_sub(1) else { return vec![End::Outside] };
        let mut ends: Vec<End> = child.map(End::Module).into_iter().collect();
        for (_, import) in source.names.iter().filter(|(imported, _)| imported == name) {
            let whole: Segments = [import.as_slice(), rest].concat();
            ends.extend(self.ends(module, &whole, steps));
        }
        if source.items.contains(name) {
            ends.push(End::Item(module.clone()));
        }
        if ends.is_empty() {
            ends.extend(self.among_globs(module, path, steps));
        }
        if ends.is_empty() {
            ends.push(End::Unknown(module.clone()));
        }
        ends
    }

    /// Follows a path whose first name is imported with `*`.
    fn among_globs(&self, module: &Module, path: &[String], steps: usize) -> Vec<End> {
        let globs = self.globs.get(module).into_iter().flatten();
        let ends = globs.flat_map(|target| self.named(target, path, steps));
        ends.filter(|end| matches!(end, End::Module(_) | End::Item(_))).collect()
    }
}
