//! The places of a file where mutants go.

use std::collections::BTreeMap;
use std::ops::Range;

use syn::spanned::Spanned;
use syn::visit::{self, Visit};
use syn::{Arm, BinOp, Expr, ExprBinary, ExprMatch, ExprStruct, ExprUnary};

use crate::mutant::{Genre, Mutant};

/// A place with its mutants.
pub(crate) struct Site {
    /// The bytes of the original text.
    pub(crate) bytes: Range<usize>,
    pub(crate) form: Form,
    /// Their numbers, with the text that each one has at this place.
    pub(crate) mutants: Vec<(u32, String)>,
}

/// How a switch is written.
#[derive(PartialEq, Eq)]
pub(crate) enum Form {
    /// An expression becomes a choice between the mutants' expressions and the original one.
    Choice,
    /// A function returns early.
    Return,
    /// The pattern of an arm gets a guard that hides the arm.
    Guard,
    /// A `match` whose arms have [`Form::Guard`]. Its text stays.
    Match,
}

/// Finds the sites of these mutants. A mutant that no switch can express has none.
pub(crate) fn find(text: &str, mutants: &[(u32, &Mutant)]) -> syn::Result<Vec<Site>> {
    let mut finder = Finder { text, places: BTreeMap::new(), sites: Vec::new() };
    for (number, mutant) in mutants {
        let bytes = mutant.bytes(text);
        if mutant.genre == Genre::FnValue {
            finder.add(bytes, Form::Return, *number, mutant.replacement.clone());
        } else {
            finder.places.entry(bytes.start).or_default().push((*number, bytes.end, mutant));
        }
    }
    finder.visit_file(&syn::parse_file(text)?);
    Ok(finder.sites)
}

struct Finder<'a> {
    text: &'a str,
    /// The mutants that change the text from a byte to another one.
    places: BTreeMap<usize, Vec<(u32, usize, &'a Mutant)>>,
    sites: Vec<Site>,
}

impl<'a> Finder<'a> {
    fn add(&mut self, bytes: Range<usize>, form: Form, number: u32, text: String) {
        let is_same = |site: &&mut Site| site.bytes == bytes && site.form == form;
        if let Some(site) = self.sites.iter_mut().find(is_same) {
            site.mutants.push((number, text));
        } else {
            self.sites.push(Site { bytes, form, mutants: vec![(number, text)] });
        }
    }

    /// Returns the mutants of a genre at a place, with the bytes that each one replaces.
    fn at(&self, genre: Genre, start: usize) -> Vec<(u32, Range<usize>, &'a Mutant)> {
        let found = self.places.get(&start).into_iter().flatten();
        let found = found.filter(|(_, _, mutant)| mutant.genre == genre);
        found.map(|&(number, end, mutant)| (number, start..end, mutant)).collect()
    }

    /// Adds the mutants at a place inside an expression. Each replaces a part of the expression's text.
    fn add_choice(&mut self, whole: Range<usize>, genre: Genre, start: usize) {
        for (number, part, mutant) in self.at(genre, start) {
            let (before, after) = (&self.text[whole.start..part.start], &self.text[part.end..whole.end]);
            let text = format!("{before}{}{after}", mutant.replacement);
            self.add(whole.clone(), Form::Choice, number, text);
        }
    }
}

impl<'ast> Visit<'ast> for Finder<'_> {
    fn visit_expr_binary(&mut self, expression: &'ast ExprBinary) {
        // `a && let Some(b) = c` is no value, so it cannot be an arm of a choice.
        if !has_let(expression) {
            let start = expression.op.span().byte_range().start;
            self.add_choice(expression.span().byte_range(), Genre::BinaryOperator, start);
        }
        visit::visit_expr_binary(self, expression);
    }

    fn visit_expr_unary(&mut self, expression: &'ast ExprUnary) {
        let bytes = expression.span().byte_range();
        self.add_choice(bytes.clone(), Genre::UnaryOperator, bytes.start);
        visit::visit_expr_unary(self, expression);
    }

    fn visit_expr_struct(&mut self, expression: &'ast ExprStruct) {
        for field in &expression.fields {
            let start = field.span().byte_range().start;
            self.add_choice(expression.span().byte_range(), Genre::StructField, start);
        }
        visit::visit_expr_struct(self, expression);
    }

    fn visit_arm(&mut self, arm: &'ast Arm) {
        if let Some((_, guard)) = &arm.guard {
            let bytes = guard.span().byte_range();
            for (number, _, mutant) in self.at(Genre::MatchArmGuard, bytes.start) {
                self.add(bytes.clone(), Form::Choice, number, mutant.replacement.clone());
            }
        }
        visit::visit_arm(self, arm);
    }

    fn visit_expr_match(&mut self, expression: &'ast ExprMatch) {
        let whole = expression.span().byte_range();
        for arm in &expression.arms {
            for (number, ..) in self.at(Genre::MatchArm, arm.span().byte_range().start) {
                // cargo-mutants leaves arms with a guard alone.
                let end = arm.pat.span().byte_range().end;
                self.add(end..end, Form::Guard, number, String::new());
                self.add(whole.clone(), Form::Match, number, String::new());
            }
        }
        visit::visit_expr_match(self, expression);
    }
}

/// Returns whether an operand of a chain is a `let`.
fn has_let(expression: &ExprBinary) -> bool {
    matches!(expression.op, BinOp::And(_))
        && [&expression.left, &expression.right].into_iter().any(|operand| match &**operand {
            Expr::Let(_) => true,
            Expr::Binary(operand) => has_let(operand),
            _ => false,
        })
}
