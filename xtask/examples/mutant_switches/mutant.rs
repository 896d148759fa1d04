//! A mutant in cargo-mutants' words.

use std::ops::Range;

use serde::Deserialize;

/// A change of one place of a file.
#[derive(Deserialize)]
pub(crate) struct Mutant {
    pub(crate) file: String,
    pub(crate) genre: Genre,
    pub(crate) replacement: String,
    span: Span,
}

/// What is changed.
#[derive(Deserialize, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Genre {
    /// The body of a function becomes a value.
    FnValue,
    /// An operator becomes another one.
    BinaryOperator,
    /// An operator disappears.
    UnaryOperator,
    /// The guard of an arm of `match` becomes `true` or `false`.
    MatchArmGuard,
    /// An arm of `match` disappears.
    MatchArm,
    /// A field of a struct expression with a base disappears.
    StructField,
}

#[derive(Deserialize)]
struct Span {
    start: Position,
    end: Position,
}

/// Lines and columns begin with 1. A column counts characters.
#[derive(Deserialize)]
struct Position {
    line: usize,
    column: usize,
}

impl Mutant {
    /// Returns the bytes of the text that this mutant replaces.
    pub(crate) fn bytes(&self, text: &str) -> Range<usize> {
        self.span.start.byte(text)..self.span.end.byte(text)
    }
}

impl Position {
    fn byte(&self, text: &str) -> usize {
        let line = text.split_inclusive('\n').nth(self.line - 1).unwrap_or_default();
        let begin = line.as_ptr() as usize - text.as_ptr() as usize;
        let within = line.char_indices().nth(self.column - 1).map_or(line.len(), |(byte, _)| byte);
        begin + within
    }
}
