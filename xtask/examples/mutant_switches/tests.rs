//! Tests the written text with one mutant of each kind, and with mutants inside others.

use serde_json::json;

use super::*;

/// Returns the text with switches. Each mutant has a genre, the part of the source that it replaces, and what it
/// puts there. `is(` stands for the path of the switch.
fn switched(source: &str, mutants: &[(&str, &str, &str)]) -> String {
    let mutant = |&(genre, part, replacement): &(&str, &str, &str)| {
        let start = source.find(part).unwrap_or_else(|| panic!("no {part}"));
        let position = |byte: usize| {
            let before = &source[..byte];
            let line_start = before.rfind('\n').map_or(0, |at| at + 1);
            json!({"line": before.matches('\n').count() + 1, "column": before[line_start..].chars().count() + 1})
        };
        let span = json!({"start": position(start), "end": position(start + part.len())});
        json!({"file": "a.rs", "genre": genre, "replacement": replacement, "span": span})
    };
    let mutants: Vec<Mutant> = serde_json::from_value(mutants.iter().map(mutant).collect())
        .unwrap_or_else(|error| panic!("{error}"));
    let numbered: Vec<_> = (0..).zip(&mutants).collect();
    let sites = sites::find(source, &numbered).unwrap_or_else(|error| panic!("{error}"));
    let mut regions = Vec::new();
    let text = text::write("a.rs", source, &sites, &mut regions);
    syn::parse_file(&text).unwrap_or_else(|error| panic!("{error}: {text}"));
    text.replace("crate::kvscatter_mutant::is(", "is(")
}

#[test]
fn a_function_returns_before_its_first_statement() {
    let text = switched(
        "fn f() -> u8 {\n    /* é */ let a = 1; a\n}",
        &[("FnValue", "let a = 1; a", "0"), ("FnValue", "let a = 1; a", "1")],
    );
    assert_eq!(
        text,
        "fn f() -> u8 {\n    /* é */ if is(0) { return 0; } if is(1) { return 1; } let a = 1; a\n}"
    );
}

#[test]
fn an_operator_is_a_choice_of_expressions() {
    let text = switched(
        "fn f() { let c = 'é' < b; d += 1; }",
        &[("BinaryOperator", "<", "=="), ("BinaryOperator", "<", "<="), ("BinaryOperator", "+=", "-=")],
    );
    assert_eq!(
        text,
        "fn f() { let c = (if is(0) { 'é' == b } else if is(1) { 'é' <= b } else { 'é' < b }); \
         (if is(2) { d -= 1 } else { d += 1 }); }"
    );
}

#[test]
fn an_operator_disappears() {
    let text = switched("fn f() -> bool { !a() }", &[("UnaryOperator", "!", "")]);
    assert_eq!(text, "fn f() -> bool { (if is(0) { a() } else { !a() }) }");
}

#[test]
fn mutants_inside_others_change_only_the_original_expression() {
    let text = switched(
        "fn f() -> bool { a < b || !c }",
        &[
            ("FnValue", "a < b || !c", "true"),
            ("BinaryOperator", "||", "&&"),
            ("BinaryOperator", "<", ">"),
            ("UnaryOperator", "!", ""),
        ],
    );
    assert_eq!(
        text,
        "fn f() -> bool { if is(0) { return true; } (if is(1) { a < b && !c } else { \
         (if is(2) { a > b } else { a < b }) || (if is(3) { c } else { !c }) }) }"
    );
}

#[test]
fn an_arm_is_hidden_by_a_guard() {
    let text = switched("fn f() { match a { 1 | 2 => b, _ => e } }", &[("MatchArm", "1 | 2 => b,", "")]);
    assert_eq!(text, "fn f() { match a { 1 | 2 if true && !is(0) => b, _ => e } }");
}

#[test]
fn a_guard_becomes_a_constant() {
    let text = switched("fn f() { match a { 3 if c() => d, _ => e } }", &[("MatchArmGuard", "c()", "true")]);
    assert_eq!(text, "fn f() { match a { 3 if (if is(0) { true } else { c() }) => d, _ => e } }");
}

#[test]
fn a_field_disappears_with_its_comma() {
    let text = switched("fn f() -> A { A { b: 1, ..c } }", &[("StructField", "b: 1,", "")]);
    assert_eq!(text, "fn f() -> A { (if is(0) { A {  ..c } } else { A { b: 1, ..c } }) }");
}

#[test]
fn a_chain_with_let_has_no_switch() {
    let source = "fn f() { if a < b && let Some(c) = d {} }";
    let text = switched(source, &[("BinaryOperator", "&&", "||"), ("BinaryOperator", "<", ">")]);
    assert_eq!(text, "fn f() { if (if is(1) { a > b } else { a < b }) && let Some(c) = d {} }");
}
