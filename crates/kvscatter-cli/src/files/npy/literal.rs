//! The Python literal in the header of a `.npy` file.
//!
//! The literal is a dictionary of three known keys, and this parser accepts nothing else. Parsers of any
//! literal recurse as deep as the file nests, and multiply the shape before it is compared with the data.

use winnow::ascii::{dec_int, multispace0};
use winnow::combinator::{alt, delimited, eof, opt, separated, separated_pair, terminated};
use winnow::error::ContextError;
use winnow::prelude::*;
use winnow::token::take_till;

/// The three keys of the header, as written.
pub(super) struct Literal<'a> {
    pub(super) descr: &'a str,
    pub(super) fortran_order: bool,
    pub(super) shape: Vec<i128>,
}

/// One entry of the dictionary.
enum HeaderEntry<'a> {
    Descr(&'a str),
    FortranOrder(bool),
    Shape(Vec<i128>),
}

/// Parses the whole literal.
pub(super) fn dictionary<'a>(input: &mut &'a str) -> Result<Literal<'a>, ContextError> {
    let entries: Vec<HeaderEntry<'a>> = delimited(
        spaced("{"),
        terminated(separated(0..=3, entry, ","), opt(spaced(","))),
        (spaced("}"), eof),
    )
    .parse_next(input)?;
    let (mut descr, mut fortran_order, mut shape) = (None, None, None);
    for entry in entries {
        // A key given twice is as wrong as a missing one.
        let repeated = match entry {
            HeaderEntry::Descr(text) => descr.replace(text).is_some(),
            HeaderEntry::FortranOrder(flag) => fortran_order.replace(flag).is_some(),
            HeaderEntry::Shape(dims) => shape.replace(dims).is_some(),
        };
        if repeated {
            return Err(ContextError::new());
        }
    }
    match (descr, fortran_order, shape) {
        (Some(descr), Some(fortran_order), Some(shape)) => Ok(Literal { descr, fortran_order, shape }),
        _ => Err(ContextError::new()),
    }
}

fn entry<'a>(input: &mut &'a str) -> Result<HeaderEntry<'a>, ContextError> {
    alt((
        separated_pair(key("descr"), ":", quoted).map(|(_, text)| HeaderEntry::Descr(text)),
        separated_pair(key("fortran_order"), ":", boolean).map(|(_, flag)| HeaderEntry::FortranOrder(flag)),
        separated_pair(key("shape"), ":", tuple).map(|(_, dims)| HeaderEntry::Shape(dims)),
    ))
    .parse_next(input)
}

fn key<'a>(name: &'static str) -> impl Parser<&'a str, &'a str, ContextError> {
    quoted.verify(move |text: &str| text == name)
}

fn quoted<'a>(input: &mut &'a str) -> Result<&'a str, ContextError> {
    spaced(alt((
        delimited("'", take_till(0.., ['\'', '\\']), "'"),
        delimited("\"", take_till(0.., ['"', '\\']), "\""),
    )))
    .parse_next(input)
}

fn boolean(input: &mut &str) -> Result<bool, ContextError> {
    spaced(alt(("True".value(true), "False".value(false)))).parse_next(input)
}

fn tuple(input: &mut &str) -> Result<Vec<i128>, ContextError> {
    // Python 2 marked long integers with an `L`, and such files still exist.
    let dim = spaced(terminated(dec_int::<_, i128, _>, opt("L")));
    delimited(spaced("("), terminated(separated(0.., dim, ","), opt(spaced(","))), spaced(")"))
        .parse_next(input)
}

fn spaced<'a, O>(parser: impl Parser<&'a str, O, ContextError>) -> impl Parser<&'a str, O, ContextError> {
    delimited(multispace0, parser, multispace0)
}
