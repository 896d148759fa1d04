//! Reads the rules and their cases from `rules.txt`, which begins with a description of its format.

use std::str::FromStr;

use super::attend::Attend;
use super::case::CorpusCase;
use super::rules::{Basis, Operator, Rule};
use super::write::Write;

const TEXT: &str = include_str!("rules.txt");

/// Returns every rule, and every case of the text.
pub(super) fn rules_and_cases() -> (Vec<Rule>, Vec<CorpusCase>) {
    let mut lines = TEXT.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    let (mut rules, mut cases): (Vec<Rule>, _) = (Vec::new(), Vec::new());
    while let (Some(line), Some(words)) = (lines.next(), lines.next().map(str::trim)) {
        match (rules.last(), line.strip_prefix("  ").map(|case| case.split_once(": "))) {
            (_, None) => rules.push(rule(line, words)),
            (Some(&Rule { id, operator, .. }), Some(Some((name, call)))) => cases.push(match operator {
                Operator::Attention => Attend::read(call).case(id, name, words),
                _ => Write::read(call).case(id, name, words),
            }),
            _ => wrong(line),
        }
    }
    (rules, cases)
}

fn rule(line: &'static str, rule: &'static str) -> Rule {
    let mut words = line.split(' ');
    let operator = words.next().and_then(|name| Operator::ALL.into_iter().find(|one| one.name() == name));
    let (Some(operator), Some(id), Some(basis), None) = (operator, words.next(), words.next(), words.next())
    else {
        return wrong(line);
    };
    let basis = match basis {
        "document" => Basis::Document,
        "choice" => Basis::Choice,
        _ => return wrong(line),
    };
    Rule { id, operator, rule, basis }
}

/// A call: its kind, and pairs of a name and a value. Every pair must be taken.
pub(super) struct Fields<'a> {
    pub(super) kind: &'a str,
    text: &'a str,
    pairs: Vec<(&'a str, &'a str)>,
}

impl<'a> Fields<'a> {
    pub(super) fn new(text: &'a str) -> Self {
        let mut words = text.split(' ');
        let kind = words.next().unwrap_or_default();
        let pair = |word: &'a str| word.split_once('=').unwrap_or_else(|| wrong(text));
        Self { kind, text, pairs: words.map(pair).collect() }
    }

    pub(super) fn text(&mut self, name: &str) -> Option<&'a str> {
        let place = self.pairs.iter().position(|(other, _)| *other == name)?;
        Some(self.pairs.remove(place).1)
    }

    pub(super) fn value<T: FromStr>(&mut self, name: &str) -> Option<T> {
        self.text(name).map(parsed)
    }

    /// Returns a list such as `[1,2]`.
    pub(super) fn list<T: FromStr>(&mut self, name: &str) -> Option<Vec<T>> {
        self.text(name).map(list)
    }

    /// Returns a list of `N` numbers.
    pub(super) fn numbers<const N: usize>(&mut self, name: &str) -> Option<[usize; N]> {
        self.list(name).map(|list| list.try_into().unwrap_or_else(|_| wrong(self.text)))
    }

    /// Panics if a pair was not taken.
    pub(super) fn finish(self) {
        if !self.pairs.is_empty() {
            wrong(self.text)
        }
    }
}

pub(super) fn list<T: FromStr>(text: &str) -> Vec<T> {
    let inside = text.strip_prefix('[').and_then(|text| text.strip_suffix(']'));
    let values = inside.unwrap_or_else(|| wrong(text)).split(',');
    values.filter(|value| !value.is_empty()).map(parsed).collect()
}

pub(super) fn parsed<T: FromStr>(text: &str) -> T {
    text.parse().unwrap_or_else(|_| wrong(text))
}

/// Panics, because the text does not have its format.
#[expect(clippy::panic, reason = "the text is a part of this crate, and a test reads all of it")]
pub(super) fn wrong<T>(text: &str) -> T {
    panic!("wrong text of the corpus: {text}")
}
