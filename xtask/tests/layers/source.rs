//! The modules of a crate, with the names in their scope and the paths that they use.

use std::collections::{BTreeMap, BTreeSet};

use proc_macro2::{TokenStream, TokenTree};
use syn::visit::{self, Visit};
use syn::{Attribute, Ident, Item};

/// A module by its path. `["cpu", "kernel"]` is `crate::cpu::kernel`, and the crate's root is empty.
pub(crate) type Module = Vec<String>;

/// The text of each file of a crate, by its path below `src`.
pub(crate) type Files = BTreeMap<String, String>;

/// The segments of a path. If the path begins with `::`, the first segment is empty.
pub(crate) type Segments = Vec<String>;

/// The names and paths of one module.
#[derive(Default)]
pub(crate) struct Source {
    /// The module that the file belongs to. It differs from the module itself if the module is inline in
    /// another file.
    pub(crate) file: Module,
    pub(crate) children: BTreeSet<String>,
    /// The names that the module defines.
    pub(crate) items: BTreeSet<String>,
    /// The imports, by their names in this module.
    pub(crate) names: Vec<(String, Segments)>,
    pub(crate) globs: Vec<Segments>,
    pub(crate) uses: Vec<(Use, Segments)>,
    /// Whether the module renames the crate: `extern crate self as name`.
    pub(crate) renames_crate: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Use {
    /// `use path`.
    Import,
    /// `pub use path`.
    Reexport,
    /// A path in code.
    Code,
}

/// Reads the modules of a crate from its root, following the `mod` items.
pub(crate) fn read(files: &Files) -> BTreeMap<Module, Source> {
    let mut reader =
        Reader { files, modules: BTreeMap::new(), module: Module::new(), variables: BTreeSet::new() };
    reader.read_file(&["lib.rs", "main.rs"].map(str::to_owned));
    reader.modules
}

struct Reader<'a> {
    files: &'a Files,
    modules: BTreeMap<Module, Source>,
    /// The module that the reader is in.
    module: Module,
    /// The variables of the function that the reader is in.
    variables: BTreeSet<String>,
}

impl Reader<'_> {
    /// Reads the current module from the first of these files that exists.
    fn read_file(&mut self, paths: &[String; 2]) {
        let text = paths.iter().find_map(|path| self.files.get(path));
        let text = text.unwrap_or_else(|| panic!("no file {} and no file {}", paths[0], paths[1]));
        let file = syn::parse_file(text).unwrap_or_else(|error| panic!("{}: {error}", paths[0]));
        self.here().file = self.module.clone();
        self.visit_file(&file);
    }

    fn here(&mut self) -> &mut Source {
        self.modules.entry(self.module.clone()).or_default()
    }

    fn add_tree(&mut self, kind: Use, mut path: Segments, tree: &syn::UseTree) {
        match tree {
            syn::UseTree::Path(tree) => {
                path.push(tree.ident.to_string());
                self.add_tree(kind, path, &tree.tree);
            }
            syn::UseTree::Group(group) => {
                group.items.iter().for_each(|tree| self.add_tree(kind, path.clone(), tree));
            }
            syn::UseTree::Name(tree) => self.add_name(kind, path, &tree.ident, None),
            syn::UseTree::Rename(tree) => self.add_name(kind, path, &tree.ident, Some(&tree.rename)),
            syn::UseTree::Glob(_) => {
                self.here().globs.push(path.clone());
                self.here().uses.push((kind, path));
            }
        }
    }

    fn add_name(&mut self, kind: Use, mut path: Segments, ident: &Ident, rename: Option<&Ident>) {
        if path.is_empty() || ident != "self" {
            path.push(ident.to_string());
        }
        let name = rename.map(ToString::to_string).or_else(|| path.last().cloned());
        self.here().names.extend(name.map(|name| (name, path.clone())));
        self.here().uses.push((kind, path));
    }

    /// Adds the paths among the tokens of a macro or an attribute. A name after a dot is a field or a method.
    fn add_tokens(&mut self, tokens: TokenStream) {
        let mut path = Segments::new();
        let mut colons = 0;
        let mut after_dot = false;
        for token in tokens {
            match token {
                TokenTree::Ident(ident) if colons == 2 || (path.is_empty() && !after_dot) => {
                    path.push(ident.to_string());
                    (colons, after_dot) = (0, false);
                    continue;
                }
                TokenTree::Punct(punct) if punct.as_char() == ':' && colons < 2 => {
                    colons += 1;
                    // `::name` is a path of another crate.
                    if colons == 2 && path.is_empty() {
                        path.push(String::new());
                    }
                    continue;
                }
                _ => {}
            }
            let renamed = matches!(&token, TokenTree::Ident(ident) if ident == "as");
            self.add_token_path(std::mem::take(&mut path), colons == 2 || renamed);
            (colons, after_dot) = (0, false);
            match token {
                TokenTree::Ident(ident) => path.push(ident.to_string()),
                TokenTree::Group(group) => self.add_tokens(group.stream()),
                TokenTree::Punct(punct) => after_dot = punct.as_char() == '.',
                TokenTree::Literal(_) => {}
            }
        }
        self.add_token_path(path, colons == 2);
    }

    /// Adds a path from a macro. An open path continues with `::{`, `::*` or `as`.
    fn add_token_path(&mut self, path: Segments, open: bool) {
        if open && path.first().is_some_and(|first| is_keyword(first)) {
            self.here().uses.push((Use::Import, path));
        } else {
            self.add_code(path);
        }
    }

    fn add_code(&mut self, path: Segments) {
        let leads_elsewhere = match path.as_slice() {
            [] => false,
            [name] => !is_keyword(name) && !self.variables.contains(name),
            [first, ..] => !first.is_empty(),
        };
        if leads_elsewhere {
            self.here().uses.push((Use::Code, path));
        }
    }

    /// Reads a function. Its variables are those of `patterns`.
    fn read_function(&mut self, patterns: Variables, read: impl FnOnce(&mut Self)) {
        let outer = std::mem::replace(&mut self.variables, patterns.0);
        read(self);
        self.variables = outer;
    }
}

impl Visit<'_> for Reader<'_> {
    fn visit_item(&mut self, item: &Item) {
        let (attributes, name) = attributes_and_name(item);
        if attributes.iter().any(is_for_tests) {
            return;
        }
        self.here().items.extend(name.map(Ident::to_string));
        visit::visit_item(self, item);
    }

    fn visit_item_mod(&mut self, item: &syn::ItemMod) {
        let file = self.here().file.clone();
        self.here().children.insert(item.ident.to_string());
        self.module.push(item.ident.to_string());
        if item.content.is_some() {
            self.here().file = file;
            visit::visit_item_mod(self, item);
        } else {
            let path = self.module.join("/");
            self.read_file(&[format!("{path}.rs"), format!("{path}/mod.rs")]);
        }
        self.module.pop();
    }

    fn visit_item_use(&mut self, item: &syn::ItemUse) {
        let path = item.leading_colon.map_or_else(Segments::new, |_| vec![String::new()]);
        let private = matches!(item.vis, syn::Visibility::Inherited);
        self.add_tree(if private { Use::Import } else { Use::Reexport }, path, &item.tree);
    }

    fn visit_item_extern_crate(&mut self, item: &syn::ItemExternCrate) {
        self.here().renames_crate |= item.ident == "self";
    }

    fn visit_impl_item(&mut self, item: &syn::ImplItem) {
        let attributes = match item {
            syn::ImplItem::Fn(item) => &item.attrs,
            syn::ImplItem::Const(item) => &item.attrs,
            _ => return visit::visit_impl_item(self, item),
        };
        if !attributes.iter().any(is_for_tests) {
            visit::visit_impl_item(self, item);
        }
    }

    fn visit_item_fn(&mut self, item: &syn::ItemFn) {
        let mut variables = Variables::default();
        variables.visit_item_fn(item);
        self.read_function(variables, |reader| visit::visit_item_fn(reader, item));
    }

    fn visit_impl_item_fn(&mut self, item: &syn::ImplItemFn) {
        let mut variables = Variables::default();
        variables.visit_impl_item_fn(item);
        self.read_function(variables, |reader| visit::visit_impl_item_fn(reader, item));
    }

    fn visit_trait_item_fn(&mut self, item: &syn::TraitItemFn) {
        let mut variables = Variables::default();
        variables.visit_trait_item_fn(item);
        self.read_function(variables, |reader| visit::visit_trait_item_fn(reader, item));
    }

    fn visit_path(&mut self, path: &syn::Path) {
        if path.leading_colon.is_none() {
            self.add_code(path.segments.iter().map(|segment| segment.ident.to_string()).collect());
        }
        visit::visit_path(self, path);
    }

    fn visit_pat_ident(&mut self, pattern: &syn::PatIdent) {
        self.add_code(vec![pattern.ident.to_string()]);
        visit::visit_pat_ident(self, pattern);
    }

    fn visit_macro(&mut self, item: &syn::Macro) {
        self.add_tokens(item.tokens.clone());
        visit::visit_macro(self, item);
    }

    fn visit_attribute(&mut self, attribute: &Attribute) {
        match &attribute.meta {
            syn::Meta::List(list) => self.add_tokens(list.tokens.clone()),
            syn::Meta::NameValue(pair) => self.visit_expr(&pair.value),
            syn::Meta::Path(_) => {}
        }
    }

    /// `pub(in crate::module)` imports nothing.
    fn visit_vis_restricted(&mut self, _: &syn::VisRestricted) {}
}

/// The names that patterns bind. A pattern that is one name in capitals is a constant.
#[derive(Default)]
struct Variables(BTreeSet<String>);

impl Visit<'_> for Variables {
    fn visit_pat_ident(&mut self, pattern: &syn::PatIdent) {
        let name = pattern.ident.to_string();
        if !name.starts_with(char::is_uppercase) {
            self.0.insert(name);
        }
        visit::visit_pat_ident(self, pattern);
    }
}

pub(crate) fn is_keyword(segment: &str) -> bool {
    matches!(segment, "crate" | "self" | "super")
}

fn attributes_and_name(item: &Item) -> (&[Attribute], Option<&Ident>) {
    match item {
        Item::Const(item) => (&item.attrs, Some(&item.ident)),
        Item::Enum(item) => (&item.attrs, Some(&item.ident)),
        Item::ExternCrate(item) => {
            (&item.attrs, Some(item.rename.as_ref().map_or(&item.ident, |name| &name.1)))
        }
        Item::Fn(item) => (&item.attrs, Some(&item.sig.ident)),
        Item::ForeignMod(item) => (&item.attrs, None),
        Item::Impl(item) => (&item.attrs, None),
        Item::Macro(item) => (&item.attrs, item.ident.as_ref()),
        Item::Mod(item) => (&item.attrs, None),
        Item::Static(item) => (&item.attrs, Some(&item.ident)),
        Item::Struct(item) => (&item.attrs, Some(&item.ident)),
        Item::Trait(item) => (&item.attrs, Some(&item.ident)),
        Item::TraitAlias(item) => (&item.attrs, Some(&item.ident)),
        Item::Type(item) => (&item.attrs, Some(&item.ident)),
        Item::Union(item) => (&item.attrs, Some(&item.ident)),
        Item::Use(item) => (&item.attrs, None),
        _ => (&[], None),
    }
}

/// Returns `true` if an attribute is `cfg(test)`, or a `cfg(all(…))` with `test` among its conditions.
fn is_for_tests(attribute: &Attribute) -> bool {
    let syn::Meta::List(list) = &attribute.meta else { return false };
    list.path.is_ident("cfg") && list.parse_args().is_ok_and(|condition| needs_test(&condition))
}

fn needs_test(condition: &syn::Meta) -> bool {
    match condition {
        syn::Meta::Path(path) => path.is_ident("test"),
        syn::Meta::List(list) if list.path.is_ident("all") => {
            let conditions = list
                .parse_args_with(syn::punctuated::Punctuated::<syn::Meta, syn::Token![,]>::parse_terminated);
            conditions.is_ok_and(|conditions| conditions.iter().any(needs_test))
        }
        _ => false,
    }
}
