//! The unsafe blocks of a source file.

use std::collections::BTreeMap;
use std::ops::Range;

use proc_macro2::{Delimiter, LexError, Span, TokenStream, TokenTree};

/// The lines of an unsafe block that contain a name or a literal, with the columns from the first to the last.
/// Lines and columns begin with 1.
#[derive(Default)]
pub(crate) struct Block(BTreeMap<usize, Range<usize>>);

impl Block {
    pub(crate) fn lines(&self) -> impl Iterator<Item = (usize, Range<usize>)> {
        self.0.iter().map(|(line, columns)| (*line, columns.clone()))
    }

    fn add(&mut self, tokens: TokenStream) {
        for token in tokens {
            match token {
                TokenTree::Group(group) => self.add(group.stream()),
                TokenTree::Ident(ident) => self.add_span(ident.span()),
                TokenTree::Literal(literal) => self.add_span(literal.span()),
                TokenTree::Punct(_) => {}
            }
        }
    }

    fn add_span(&mut self, span: Span) {
        let (begin, end) = (span.start(), span.end());
        let columns = self.0.entry(begin.line).or_insert(begin.column + 1..begin.column + 1);
        columns.end = if end.line == begin.line { end.column + 1 } else { usize::MAX };
    }
}

/// Finds the blocks, also in the bodies of macros. A block inside another one is a part of that one.
pub(crate) fn find(text: &str) -> Result<Vec<Block>, LexError> {
    let mut blocks = Vec::new();
    add(text.parse()?, &mut blocks);
    Ok(blocks)
}

fn add(tokens: TokenStream, blocks: &mut Vec<Block>) {
    let mut tokens = tokens.into_iter().peekable();
    let mut is_unsafe = false;
    while let Some(token) = tokens.next() {
        let was_unsafe = std::mem::take(&mut is_unsafe);
        match token {
            TokenTree::Ident(ident) => is_unsafe = ident == "unsafe",
            // Only a block has its brace right after the word. Functions, implementations and attributes have not.
            TokenTree::Group(group) if was_unsafe && group.delimiter() == Delimiter::Brace => {
                let mut block = Block::default();
                block.add(group.stream());
                blocks.push(block);
            }
            TokenTree::Group(group) => add(group.stream(), blocks),
            TokenTree::Punct(punct) if punct.as_char() == '#' => {
                if tokens.peek().is_some_and(is_for_tests) {
                    skip_item(&mut tokens);
                }
            }
            TokenTree::Punct(_) | TokenTree::Literal(_) => {}
        }
    }
}

fn is_for_tests(attribute: &TokenTree) -> bool {
    matches!(attribute, TokenTree::Group(group) if group.stream().to_string().replace(' ', "") == "cfg(test)")
}

/// Skips the rest of an item, which ends with its body or a semicolon.
fn skip_item(tokens: &mut impl Iterator<Item = TokenTree>) {
    let is_end = |token: &TokenTree| match token {
        TokenTree::Group(group) => group.delimiter() == Delimiter::Brace,
        TokenTree::Punct(punct) => punct.as_char() == ';',
        TokenTree::Ident(_) | TokenTree::Literal(_) => false,
    };
    tokens.find(is_end);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(text: &str) -> Vec<(usize, Range<usize>)> {
        find(text).unwrap_or_default().iter().flat_map(Block::lines).collect()
    }

    #[test]
    fn a_block_has_its_lines_and_columns() {
        assert_eq!(lines("fn f() { unsafe { g() } }"), [(1, 19..20)]);
        let text = "fn f() {\n    let a = unsafe {\n        g(\n\"}\")\n    };\n}";
        assert_eq!(lines(text), [(3, 9..10), (4, 1..4)]);
    }

    #[test]
    fn a_block_inside_another_is_a_part_of_it() {
        assert_eq!(lines("fn f() { unsafe { g(unsafe { h() }) } }"), [(1, 19..31)]);
    }

    #[test]
    fn only_blocks_count() {
        let text = "unsafe fn f() {} unsafe impl T for U { } unsafe extern \"C\" { fn g(); } #[unsafe(no_mangle)] fn h() {}";
        assert_eq!(lines(text), []);
        assert_eq!(lines("// unsafe { }\nfn f() { \"unsafe {}\"; '{'; }"), []);
    }

    #[test]
    fn blocks_in_functions_that_are_unsafe_and_in_macros_count() {
        assert_eq!(lines("unsafe fn f() { unsafe { g() } }"), [(1, 26..27)]);
        assert_eq!(lines("macro_rules! m { ($a:expr) => { unsafe { $a } }; }"), [(1, 43..44)]);
    }

    #[test]
    fn code_for_tests_does_not_count() {
        let text = "#[cfg(test)]\nmod tests { fn f() { unsafe { g() } } }\n#[cfg(test)] mod more;\nfn h() { unsafe { 1 } }";
        assert_eq!(lines(text), [(4, 19..20)]);
    }
}
