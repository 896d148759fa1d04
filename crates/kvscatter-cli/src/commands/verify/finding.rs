//! The reasons why a case does not pass.

use std::fmt;
use std::path::PathBuf;

use serde::Serialize;
use strum::VariantArray;

use super::behaviour::Behaviour;
use super::rejection::Rejection;
use super::rules::Rule;
use super::scatter::{ScatterCall, WrongSlots};
use crate::compare::Mismatch;
use crate::error::CommandError;
use crate::files;
use crate::refused::{Refused, RefusedRule};

/// A case that does not pass.
pub(super) struct FailedCase {
    pub(super) finding: Finding,
    /// The fault of the call in place. It is also the finding if the other call is right.
    pub(super) in_place: Option<InPlaceFault>,
    /// The call of the case, if it is known.
    pub(super) call: Option<ScatterCall>,
    pub(super) slots: Option<WrongSlots>,
    /// The test directory, if `kvscatter run` can draw it.
    pub(super) drawn: Option<PathBuf>,
}

/// The kind of a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, VariantArray)]
#[serde(rename_all = "kebab-case")]
pub(super) enum FailureKind {
    /// The output has another type, shape or value.
    Wrong,
    NoOutput,
    NotRefused,
    /// The inputs are refused without a reason, or for another reason.
    WronglyRefused,
    Crashed,
    Timeout,
    /// Only the call in place is wrong.
    InPlace,
}

/// The reason why a data set does not pass.
#[derive(Debug, thiserror::Error)]
pub(super) enum Finding {
    #[error(transparent)]
    Mismatch(Mismatch),
    #[error("no {}.pb or .npy", .stem.display())]
    Missing { stem: PathBuf },
    #[error("{0}")]
    TheirFile(files::FileError),
    #[error("{0}")]
    TheirAnswer(Box<CommandError>),
    #[error("refused: {0}")]
    Refused(Rejection),
    #[error("refused{}", after_colon(.message))]
    TheirRefusal { message: Option<String> },
    #[error("crashed{}", after_colon(.message))]
    Crashed { message: Option<String> },
    #[error("out of time{}", after_colon(.message))]
    Timeout { message: Option<String> },
    #[error("accepted, but must be refused: {reason}")]
    Accepted { rule: RefusedRule, reason: String },
    #[error("must be refused, but {behaviour}; {reason}")]
    Behaves { rule: RefusedRule, behaviour: Behaviour, reason: String },
    #[error("refused for another reason: {error}; expected: {reason}")]
    OtherReason { rule: RefusedRule, error: Box<Rejection>, reason: String },
    /// The call with a separate output is right.
    #[error("wrong only in place")]
    InPlace,
}

/// The fault of a call in place.
#[derive(Debug)]
pub(super) enum InPlaceFault {
    /// The call was refused, and the buffer changed.
    PartlyWritten(Mismatch),
    /// The call must be refused.
    Accepted,
    /// The result differs from the expected present.
    Differs(Mismatch),
    /// The model reads the past after the write, but it changed.
    CorruptsPast(Mismatch),
    /// A valid call was refused.
    Refused(Option<String>),
    Crashed(Option<String>),
    Timeout(Option<String>),
    /// A file is missing or cannot be read.
    File(Box<Finding>),
}

impl FailedCase {
    /// Returns the rules that the case breaks. `tested` are those that it tests, the most general one first.
    pub(super) fn broken(&self, tested: &[Rule]) -> Vec<Rule> {
        let mut rules = match (&self.finding, &self.slots) {
            (Finding::Mismatch(Mismatch::Values { .. }), Some(slots)) => {
                slots.uses().map(|(slot_use, _)| Rule::Slots(slot_use)).collect()
            }
            (Finding::Mismatch(Mismatch::Values { .. }), None) => vec![Rule::Values],
            (Finding::Mismatch(Mismatch::Type { .. }), _) => vec![Rule::ElementType],
            (Finding::Mismatch(Mismatch::Shape { .. }), _) => vec![Rule::Shape],
            (
                Finding::Accepted { rule, .. }
                | Finding::Behaves { rule, .. }
                | Finding::OtherReason { rule, .. },
                _,
            ) => {
                vec![Rule::Refused(*rule)]
            }
            (Finding::InPlace, _) => Vec::new(),
            _ => tested.first().copied().into_iter().collect(),
        };
        rules.extend(self.in_place.as_ref().map(InPlaceFault::rule));
        rules
    }
}

impl FailureKind {
    /// Returns the name of the number of such cases, and the words after that number.
    pub(super) fn words(self) -> [&'static str; 2] {
        match self {
            Self::Wrong => ["wrong", "wrong"],
            Self::NoOutput => ["no_output", "without a readable output"],
            Self::NotRefused => ["not_refused", "not refused"],
            Self::WronglyRefused => ["wrongly_refused", "wrongly refused"],
            Self::Crashed => ["crashed", "crashed"],
            Self::Timeout => ["timeout", "out of time"],
            Self::InPlace => ["in_place", "wrong only in place"],
        }
    }
}

impl Finding {
    pub(super) fn failure(&self) -> FailureKind {
        match self {
            Self::Mismatch(_) => FailureKind::Wrong,
            Self::Missing { .. } | Self::TheirFile(_) | Self::TheirAnswer(_) => FailureKind::NoOutput,
            Self::Accepted { .. } | Self::Behaves { .. } => FailureKind::NotRefused,
            Self::Refused(_) | Self::TheirRefusal { .. } | Self::OtherReason { .. } => {
                FailureKind::WronglyRefused
            }
            Self::Crashed { .. } => FailureKind::Crashed,
            Self::Timeout { .. } => FailureKind::Timeout,
            Self::InPlace => FailureKind::InPlace,
        }
    }
}

impl InPlaceFault {
    pub(super) fn mismatch(&self) -> Option<&Mismatch> {
        match self {
            Self::PartlyWritten(mismatch) | Self::Differs(mismatch) | Self::CorruptsPast(mismatch) => {
                Some(mismatch)
            }
            _ => None,
        }
    }

    fn rule(&self) -> Rule {
        match self {
            Self::PartlyWritten(_) | Self::Accepted => Rule::Unchanged,
            Self::CorruptsPast(_) => Rule::Past,
            _ => Rule::InPlace,
        }
    }
}

impl Refused {
    pub(super) fn accepted(&self) -> Finding {
        Finding::Accepted { rule: self.kind, reason: self.reason.clone() }
    }

    /// Returns the fault of a refusal, or `None` if it has the right reason.
    pub(super) fn finding(&self, error: Rejection) -> Option<Finding> {
        let right = error.rule() == Some(self.kind);
        (!right).then(|| Finding::OtherReason {
            rule: self.kind,
            error: error.into(),
            reason: self.reason.clone(),
        })
    }
}

/// Formats a fault as `in place: 2 elements changed before the error; first [0, 1, 2]`.
impl fmt::Display for InPlaceFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let changed = |f: &mut fmt::Formatter<'_>, mismatch: &Mismatch, when: &str| match mismatch {
            Mismatch::Values { first, .. } => {
                let plural = if first.differing == 1 { "" } else { "s" };
                write!(f, "{} element{plural} changed {when}; first {:?}", first.differing, first.index)
            }
            other => write!(f, "{other}"),
        };
        f.write_str("in place: ")?;
        match self {
            Self::PartlyWritten(mismatch) => changed(f, mismatch, "before the error"),
            Self::CorruptsPast(mismatch) => {
                changed(f, mismatch, "in the past, which is read after the write")
            }
            Self::Accepted => f.write_str("accepted, but must be refused"),
            Self::Differs(mismatch) => write!(f, "{mismatch}"),
            Self::Refused(message) => write!(f, "refused{}", after_colon(message)),
            Self::Crashed(message) => write!(f, "crashed{}", after_colon(message)),
            Self::Timeout(message) => write!(f, "out of time{}", after_colon(message)),
            Self::File(finding) => write!(f, "{finding}"),
        }
    }
}

/// Formats the message of a runtime. A long message is cut.
fn after_colon(message: &Option<String>) -> String {
    const MAX_CHARS: usize = 300;
    match message.as_deref().map(str::trim).filter(|message| !message.is_empty()) {
        None => String::new(),
        Some(message) if message.chars().count() <= MAX_CHARS => format!(": {message}"),
        Some(message) => format!(": {}…", message.chars().take(MAX_CHARS).collect::<String>()),
    }
}
