//! The conformance corpus: small cases that are named after the rule that they test.
//!
//! Unlike the random [`cases`](crate::cases), these are chosen by hand and small enough to be read. Every
//! case belongs to one [`Rule`], and every rule has at least one case. Most are lines of
//! `rules.txt`. `kvscatter cases --conformance` writes
//! them as ONNX test directories.
//!
//! ```
//! use kvscatter_oracle::corpus;
//!
//! let cases = corpus::cases();
//! for rule in corpus::RULES.iter() {
//!     println!("{}: {}", rule.id, rule.rule);
//!     for case in cases.iter().filter(|case| case.rule == rule.id) {
//!         println!("  {}: {}", case.name, case.what);
//!     }
//! }
//! ```
//!
//! The values can be read, too. A float cache contains 1, 2, 3 and so on, and the update contains -1, -2, -3
//! and so on. In cases of attention that test which slots a query sees, every key is 0, so all visible slots
//! weigh the same. The values are powers of two, so the mean of the visible values names the slots. In long caches, the
//! value of a slot is its index.

mod attend;
mod attention;
mod case;
mod fields;
mod rules;
mod tensor_scatter;
mod text;
mod write;

pub use case::{AttentionForm, CorpusCall, CorpusCase, Fault, Form, TwoWrites};
pub use rules::{Basis, Operator, Rule};
pub use text::RULES;

/// Returns every case, in the order of the rules.
#[must_use]
pub fn cases() -> Vec<CorpusCase> {
    let mut cases = [text::rules_and_cases().1, tensor_scatter::cases(), attention::cases()].concat();
    let place = |case: &CorpusCase| RULES.iter().position(|rule| rule.id == case.rule);
    cases.sort_by_key(place);
    cases
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::{CorpusCall, Fault, Form, RULES, cases};
    use crate::attention::Inputs;

    #[test]
    fn every_rule_has_cases_and_every_case_has_a_rule() {
        let rules: HashSet<_> = RULES.iter().map(|rule| rule.id).collect();
        assert_eq!(rules.len(), RULES.len());
        let tested: HashSet<_> = cases().iter().map(|case| case.rule).collect();
        assert_eq!(rules, tested);
    }

    #[test]
    fn names_are_unique_and_can_be_names_of_folders() {
        let cases = cases();
        let names: HashSet<_> = cases.iter().map(|case| (case.rule, case.name)).collect();
        assert_eq!(names.len(), cases.len());
        let fits = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
        assert!(names.iter().all(|(rule, name)| rule.chars().chain(name.chars()).all(fits)));
        assert!(cases.iter().all(|case| case.what.ends_with('.')), "a sentence ends with a full stop");
    }

    #[test]
    fn a_case_belongs_to_the_operator_of_its_rule() {
        for case in cases() {
            let rule = RULES.iter().find(|rule| rule.id == case.rule).unwrap();
            assert_eq!(rule.operator, case.call.operator(), "{}/{}", case.rule, case.name);
        }
    }

    #[test]
    fn only_a_case_that_is_called_refused_is_refused() {
        for case in cases() {
            let is_refused = match &case.call {
                CorpusCall::Write(_, Form::Fault(_)) => true,
                CorpusCall::Write(write, _) => write.expected.is_err(),
                CorpusCall::TwoWrites(writes, _) => writes.iter().any(|write| write.expected.is_err()),
                CorpusCall::Attention(attention, _) => attention.expected().is_err(),
            };
            assert_eq!(is_refused, case.name.starts_with("refused-"), "{}/{}", case.rule, case.name);
        }
    }

    #[test]
    fn a_model_has_one_fault() {
        for case in cases() {
            if let CorpusCall::Write(write, Form::Fault(fault)) = &case.call {
                assert!(write.expected.is_ok(), "{}/{}", case.rule, case.name);
                assert!(!matches!(fault, Fault::OperatorSet(24)));
            }
        }
    }

    #[test]
    fn values_of_attention_have_the_element_type() {
        for case in cases() {
            let CorpusCall::Attention(attention, _) = &case.call else { continue };
            let Inputs { element, q, k, v, .. } = &attention.inputs;
            for value in [q, k, v].into_iter().flat_map(|array| &array.data).filter(|value| !value.is_nan()) {
                assert_eq!(element.round(*value), *value, "{}/{}", case.rule, case.name);
            }
        }
    }

    #[test]
    fn cases_are_small_enough_to_be_read() {
        for case in cases() {
            let (elements, most) = match &case.call {
                CorpusCall::Write(write, _) => (crate::size(&write.cache_shape), 128),
                CorpusCall::TwoWrites(writes, _) => (crate::size(&writes[0].cache_shape), 128),
                CorpusCall::Attention(attention, _) => {
                    let keys = &attention.inputs.k.data;
                    // Long caches have keys of 0 and values that follow from the slot.
                    (keys.len(), if keys.iter().all(|key| *key == 0.0) { 1 << 13 } else { 128 })
                }
            };
            assert!(elements <= most, "{}/{} has {elements} elements", case.rule, case.name);
        }
    }
}
