//! The rules that cases test, and the number of cases that break each rule.

use std::collections::BTreeMap;

use serde::{Serialize, Serializer};

use crate::refused::RefusedRule;

/// A rule that cases test. The rules are in the order of the summary.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Rule {
    /// Valid inputs give an output.
    Output,
    ElementType,
    Shape,
    /// The output has the expected values. This rule is for values whose slots are not known.
    Values,
    Written,
    Wrapped,
    Old,
    /// A write in place gives the expected present.
    InPlace,
    /// The past is unchanged if it is read after the write.
    Past,
    /// A call that is refused changes nothing.
    Unchanged,
    /// Inputs that break this rule of the operator are refused.
    Refused(RefusedRule),
}

/// A rule, with the number of cases that test it and break it.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct RuleCount {
    rule: Rule,
    pub(super) failed: usize,
    pub(super) cases: usize,
}

/// The number of cases that test each rule, and of cases that break it.
#[derive(Debug, Default)]
pub(super) struct RuleCounts(BTreeMap<Rule, [usize; 2]>);

impl RuleCounts {
    pub(super) fn add(&mut self, tested: &[Rule], broken: &[Rule]) {
        for (rules, index) in [(tested, 0), (broken, 1)] {
            for rule in rules {
                if let Some(count) = self.0.entry(*rule).or_default().get_mut(index) {
                    *count = count.saturating_add(1);
                }
            }
        }
    }

    /// Returns the rules that cases break.
    pub(super) fn broken(&self) -> Vec<RuleCount> {
        let counts = self.0.iter().map(|(&rule, &[cases, failed])| RuleCount {
            rule,
            failed,
            cases: cases.max(failed),
        });
        counts.filter(|count| count.failed > 0).collect()
    }
}

impl RuleCount {
    /// Returns the rule as a sentence.
    pub(super) fn sentence(&self) -> String {
        match self.rule {
            Rule::Output => "valid inputs give an output".to_owned(),
            Rule::ElementType => "the output has the cache's type".to_owned(),
            Rule::Shape => "the output has the cache's shape".to_owned(),
            Rule::Values => "the output has the expected values".to_owned(),
            Rule::Written => "written slots take the update's rows".to_owned(),
            Rule::Wrapped => "wrapped slots take the update's rows".to_owned(),
            Rule::Old => "old slots keep their values".to_owned(),
            Rule::InPlace => "a write in place gives the expected cache".to_owned(),
            Rule::Past => "a past that is read after the write keeps its values".to_owned(),
            Rule::Unchanged => "a refused call in place changes nothing".to_owned(),
            Rule::Refused(rule) => format!("invalid inputs are refused: {}", rule.name()),
        }
    }
}

impl Serialize for Rule {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Output => serializer.serialize_str("output"),
            Self::ElementType => serializer.serialize_str("element-type"),
            Self::Shape => serializer.serialize_str("shape"),
            Self::Values => serializer.serialize_str("values"),
            Self::Written => serializer.serialize_str("written-slots"),
            Self::Wrapped => serializer.serialize_str("wrapped-slots"),
            Self::Old => serializer.serialize_str("old-slots"),
            Self::InPlace => serializer.serialize_str("in-place"),
            Self::Past => serializer.serialize_str("past"),
            Self::Unchanged => serializer.serialize_str("unchanged-after-refusal"),
            Self::Refused(rule) => serializer.serialize_str(&format!("refused-{}", rule.name())),
        }
    }
}
