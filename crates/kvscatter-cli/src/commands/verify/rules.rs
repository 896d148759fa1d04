//! The rules that cases test, and the number of cases that break each rule.

use std::collections::BTreeMap;

use serde::{Serialize, Serializer};

use super::scatter::SlotUse;
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
    /// The slots of this use have the expected values.
    Slots(SlotUse),
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
        let [_, sentence] = self.rule.words();
        sentence
    }
}

impl Rule {
    /// Returns the name of the rule, and the rule as a sentence.
    fn words(self) -> [String; 2] {
        let words = match self {
            Self::Output => ["output", "valid inputs give an output"],
            Self::ElementType => ["element-type", "the output has the cache's type"],
            Self::Shape => ["shape", "the output has the cache's shape"],
            Self::Values => ["values", "the output has the expected values"],
            Self::Slots(SlotUse::Written) => ["written-slots", "written slots take the update's rows"],
            Self::Slots(SlotUse::Wrapped) => ["wrapped-slots", "wrapped slots take the update's rows"],
            Self::Slots(SlotUse::Old) => ["old-slots", "old slots keep their values"],
            Self::InPlace => ["in-place", "a write in place gives the expected cache"],
            Self::Past => ["past", "a past that is read after the write keeps its values"],
            Self::Unchanged => ["unchanged-after-refusal", "a refused call in place changes nothing"],
            Self::Refused(rule) => {
                let rule = rule.name();
                return [format!("refused-{rule}"), format!("invalid inputs are refused: {rule}")];
            }
        };
        words.map(str::to_owned)
    }
}

impl Serialize for Rule {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let [name, _] = self.words();
        serializer.serialize_str(&name)
    }
}
