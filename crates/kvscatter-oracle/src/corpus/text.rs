//! Reads the rules and their cases from `rules.txt`, which begins with a description of its format.

use std::sync::LazyLock;

use super::attend::Attend;
use super::case::CorpusCase;
use super::fields::wrong;
use super::rules::{Basis, Operator, Rule};
use super::write::Write;

/// Every rule, grouped by operator.
pub static RULES: LazyLock<Vec<Rule>> = LazyLock::new(|| rules_and_cases().0);

const TEXT: &str = include_str!("rules.txt");

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
