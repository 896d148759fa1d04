//! Tests every form of an import in small crates: the forms that must be detected and the forms that must be
//! allowed.

use super::resolve::{Imports, full_name, imports};
use super::source::Files;
use super::{circles, upward};

#[test]
fn every_form_of_an_import_is_followed() {
    let forms = [
        "use crate::high::High;",
        "use crate::high::*;",
        "use crate::{high::{self, High}};",
        "use crate::High;",
        "use super::High;",
        "use crate::Renamed;",
        "use crate::alias::High;",
        "pub use crate::High;",
        "use crate::high as h; fn f() { h::f() }",
        "mod inner { use super::super::High; }",
        "mod inner { use super::*; fn f(_: high::High) {} } pub use crate::high;",
        "fn f() { use crate::High; }",
        "fn f(_: crate::High) {}",
        "fn f(_: crate::high::High) {}",
        "fn f() { super::high::f() }",
        "fn f() { crate::high::shout!() }",
        "fn f() -> bool { matches!(0, _ if { crate::high::f(); true }) }",
        "fn f() { call! { use crate::high::{High}; } }",
        "macro_rules! call { () => { $crate::high::f() } }",
        "#[error(\"{}\", crate::high::NAME)] struct Low;",
        "#[doc = concat!(crate::high::name!())] struct Low;",
        "impl crate::high::Trait for Low {} struct Low;",
        "#[cfg(not(test))] use crate::High;",
        "#[cfg(any(test, unix))] use crate::High;",
    ];
    for form in forms {
        let Imports { edges, faults } = imports(&two_layers(form));
        let layers = [vec!["low".to_owned()], vec!["high".to_owned()]];
        assert!(faults.is_empty(), "{form}: {faults:?}");
        assert_eq!(upward(&edges, &layers).len(), 1, "{form}: {edges:?}");
        assert!(circles(&edges).is_empty(), "{form}: {edges:?}");
    }
}

#[test]
fn a_path_that_hides_what_it_imports_fails() {
    let forms = [
        "use crate::*;",
        "use super::*;",
        "use crate as kv;",
        "use crate as kv; fn f() { kv::high::f() }",
        "use crate::{self as kv};",
        "use crate::{self as kv}; fn f(_: kv::high::High) {}",
        "extern crate self as kv;",
        "use crate::Unknown;",
        "fn f(_: crate::Unknown) {}",
        "fn f() { call!(crate::Unknown) }",
        "fn f() { call! { use crate::*; } }",
        "fn f() { call! { use crate::{High}; } }",
        "fn f() { call! { use crate as kv; } }",
        "mod inner { use super::super::*; }",
    ];
    for form in forms {
        assert!(!imports(&two_layers(form)).faults.is_empty(), "{form}");
    }
    let root = "extern crate self as kv; mod low; mod high;";
    let files = files(&[("lib.rs", root), ("low.rs", ""), ("high.rs", "")]);
    assert_eq!(imports(&files).faults, ["crate: extern crate self"]);
}

#[test]
fn other_names_are_no_imports() {
    let forms = [
        "use std::fmt;",
        "use high::High;",
        "use ::high::High; fn f(_: High) {}",
        "fn f() { ::high::f() }",
        "fn f() { call!(::high::f()) }",
        "fn f(high: u8) -> u8 { high }",
        "fn f(x: X) { x.high(); call!(x.high); }",
        "fn f() {} mod inner { use super::*; use super::f as g; }",
        "pub(in crate::low) fn f() {} pub(crate) fn g() { call!(pub(crate) fn h() {}) }",
        "const PATH: &str = \"crate::high::High\";",
        "/// [`crate::high::High`]\nstruct Low;",
        "#[cfg(test)] use crate::High;",
        "#[cfg(test)] fn f() { crate::high::f() }",
        "impl Low { #[cfg(test)] fn f() { crate::high::f() } } struct Low;",
        "#[cfg(test)] mod tests { use crate::*; }",
        "#[cfg(all(test, unix))] mod tests { use crate::High; }",
    ];
    for form in forms {
        let Imports { edges, faults } = imports(&two_layers(form));
        assert!(faults.is_empty(), "{form}: {faults:?}");
        assert!(edges.is_empty(), "{form}: {edges:?}");
    }
}

#[test]
fn a_file_is_for_tests_if_its_module_is() {
    let edges = |root: &str| {
        let tests = "use crate::high::High;";
        imports(&files(&[("lib.rs", root), ("high.rs", "pub struct High;"), ("tests.rs", tests)])).edges
    };
    assert_eq!(edges("mod high; mod tests;").len(), 1);
    assert!(edges("mod high; #[cfg(test)] mod tests;").is_empty());
    assert!(edges("mod high; #[cfg(all(test, unix))] mod tests;").is_empty());
    assert_eq!(edges("mod high; #[cfg(any(test, unix))] mod tests;").len(), 1);
}

#[test]
fn a_parent_that_uses_a_child_that_uses_it_is_a_circle() {
    let parents = [
        "fn f() { child::f() }",
        "fn f() { self::child::f() }",
        "fn f() { call!(child::f()) }",
        "use child::Child;",
        "use self::child::Child;",
        "use child as c; fn f() { c::f() }",
        "pub use child::Child; fn f(_: Child) {}",
        "pub use self::child::Child; fn f(_: Child) {}",
        "pub use self::child::Child as Kid; fn f(_: Kid) {}",
        "pub use child::*; fn f(_: Child) {}",
        "pub use child::Child; fn f() { call!(Child) }",
        "pub use child::LAST; fn f(x: u8) { if let LAST = x {} }",
        "pub use child::f; fn g() { f() }",
        "#[error(\"{}\", child::LAST)] struct Parent;",
        "mod inner { use super::child::Child; }",
        "use crate::parent::child::Child;",
    ];
    for parent in parents {
        assert_eq!(circles(&imports(&parent_and_child(parent)).edges).len(), 2, "{parent}");
    }
}

#[test]
fn a_parent_may_reexport_what_a_child_makes_of_it() {
    let parents = [
        "",
        "pub use child::Child;",
        "pub use self::child::Child;",
        "pub(crate) use child::{Child as Kid, f};",
        "pub use child::*;",
        "pub use child::f; fn g(f: u8) -> u8 { f }",
        "fn g() { let child = 1; call!(child); }",
        "#[cfg(test)] use child::Child;",
    ];
    for parent in parents {
        assert!(circles(&imports(&parent_and_child(parent)).edges).is_empty(), "{parent}");
    }
}

#[test]
fn a_circle_is_seen_through_the_root_and_through_others() {
    let root = "mod error; pub use error::Error; pub const OLDEST: u8 = 1; fn f(_: Error) {}";
    let error = "#[error(\"{}\", crate::OLDEST)] pub struct Error;";
    assert_eq!(circles(&imports(&files(&[("lib.rs", root), ("error.rs", error)])).edges).len(), 2);

    let ring = [
        ("main.rs", "mod a; mod b; mod c;"),
        ("a.rs", "use crate::b::B;"),
        ("b/mod.rs", "use crate::c::C; pub struct B;"),
        ("c.rs", "pub struct C; fn f() { crate::a::f() }"),
    ];
    assert_eq!(circles(&imports(&files(&ring)).edges).len(), 3);
}

#[test]
fn an_import_is_described_by_its_modules_and_its_path() {
    let edges = imports(&two_layers("use crate::Renamed;")).edges;
    let [((from, to), path)] = &*edges.iter().collect::<Vec<_>>() else { panic!("{edges:?}") };
    assert_eq!([full_name(from), full_name(to)], ["crate::low", "crate::high"]);
    assert_eq!(*path, "crate::Renamed");
}

/// Returns a crate of two modules, in which `low` must not import `high`.
fn two_layers(low: &str) -> Files {
    let root = "mod high; mod low; pub use high as alias; pub use high::{High, High as Renamed};";
    let high = "pub struct High; pub trait Trait {} pub fn f() {} pub const NAME: &str = \"high\";";
    files(&[("lib.rs", root), ("high.rs", high), ("low.rs", low)])
}

/// Returns a module with a child that uses the module's `Item`.
fn parent_and_child(parent: &str) -> Files {
    let parent = format!("mod child; pub struct Item; {parent}");
    let child = "use super::Item; pub struct Child(Item); pub fn f() {} pub const LAST: u8 = 1;";
    files(&[("lib.rs", "mod parent;"), ("parent.rs", &parent), ("parent/child.rs", child)])
}

fn files(texts: &[(&str, &str)]) -> Files {
    texts.iter().map(|&(path, text)| (path.to_owned(), text.to_owned())).collect()
}
