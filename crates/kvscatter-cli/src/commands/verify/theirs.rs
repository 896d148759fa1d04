//! Judges the files of another implementation.

use std::path::Path;

use kvscatter_onnx::internal::test_dir::DataSet;
use kvscatter_onnx::{Graph, Model, Tensor};

use super::actual::{Actual, Status};
use super::behaviour::Behaviour;
use super::cache::CacheWrite;
use super::finding::{Finding, InPlaceFault};
use super::in_place::{InPlaceWrite, corrupted_past};
use super::verdict::{Answer, InPlace};
use crate::compare::Tolerance;
use crate::refused::Refused;

/// A data set whose answers another implementation has written.
pub(super) struct Their<'a> {
    pub(super) model: &'a Model,
    pub(super) set: &'a DataSet,
    pub(super) expected: &'a [Tensor],
    pub(super) refused: Option<&'a Refused>,
    /// Whether a node or an output reads the past after the write.
    pub(super) reads_past: bool,
    pub(super) tolerance: Option<Tolerance>,
}

/// What an implementation returned for a data set.
pub(super) enum Reply {
    /// The outputs, which must be compared with the expected ones.
    Outputs(Vec<Tensor>),
    /// The implementation was right to refuse.
    Right,
    Wrong(Finding),
}

/// A reply, with the result of a call in place.
pub(super) struct TheirReply {
    pub(super) reply: Reply,
    pub(super) answer: Option<Answer>,
    pub(super) in_place: Option<InPlace>,
    /// The fault of the call in place.
    pub(super) fault: Option<InPlaceFault>,
}

impl From<Reply> for TheirReply {
    fn from(reply: Reply) -> Self {
        Self { reply, answer: None, in_place: None, fault: None }
    }
}

impl Their<'_> {
    /// Reads and judges the files in the folder of a case in OUT.
    pub(super) fn reply(&self, case: &Path) -> TheirReply {
        let actual = match Actual::read(case, self.set) {
            Ok(actual) => actual,
            Err(finding) => return Reply::Wrong(finding).into(),
        };
        let graph = self.model.graph().ok();
        let inputs = graph.as_ref().and_then(|graph| self.set.read_inputs(graph).ok()).unwrap_or_default();
        let write = graph.as_ref().and_then(|graph: &Graph<'_>| CacheWrite::find(graph, &inputs));
        let (answer, reply) = self.plain(&actual, write.as_ref());
        let Some(write) = write else { return TheirReply { answer, ..reply.into() } };

        let place = InPlaceWrite {
            write: &write,
            present: self.expected.get(write.present).filter(|_| self.refused.is_none()),
            may_overwrite: !self.reads_past,
            tolerance: self.tolerance,
        };
        let (in_place, fault) = place.judge(&actual).unwrap_or_default();
        let corrupted = match &reply {
            Reply::Outputs(outputs) => {
                let outputs: Vec<_> = outputs.iter().collect();
                corrupted_past(&write, &outputs, self.expected, self.tolerance)
            }
            _ => None,
        };
        match corrupted {
            Some(corrupted) if fault.is_none() => {
                TheirReply { reply, answer, in_place: Some(InPlace::CorruptsPast), fault: Some(corrupted) }
            }
            _ => TheirReply { reply, answer, in_place, fault },
        }
    }

    /// Judges the call with a separate output. Outputs of a valid call have no answer yet.
    fn plain(&self, actual: &Actual, write: Option<&CacheWrite<'_>>) -> (Option<Answer>, Reply) {
        let status = actual.plain.as_ref().map(|call| call.status);
        let message = actual.plain.as_ref().and_then(|call| call.message.clone());
        match (status, self.refused) {
            (Some(Status::Crashed), _) => (Some(Answer::Crashes), Reply::Wrong(Finding::Crashed { message })),
            (Some(Status::Timeout), _) => (Some(Answer::Timeout), Reply::Wrong(Finding::Timeout { message })),
            (Some(Status::Refused), None) => {
                (Some(Answer::Refuses), Reply::Wrong(Finding::TheirRefusal { message }))
            }
            (Some(Status::Refused), Some(_)) => (Some(Answer::Exact), Reply::Right),
            (Some(Status::Returned), Some(refused)) => self.accepted(actual, write, refused),
            // Without answer.json, an implementation that wrote no output has refused the inputs.
            (None, Some(refused)) => {
                let present = write.map_or(0, |write| write.present);
                match actual.has_output(0) || actual.has_output(present) {
                    true => self.accepted(actual, write, refused),
                    false => (Some(Answer::Exact), Reply::Right),
                }
            }
            (_, None) => match actual.outputs(self.expected) {
                Ok(outputs) => (None, Reply::Outputs(outputs)),
                Err(finding) => {
                    let has_none = status.is_none() && !actual.has_output(0);
                    (has_none.then_some(Answer::Refuses), Reply::Wrong(finding))
                }
            },
        }
    }

    /// Judges a call that must be refused, but was not.
    fn accepted(
        &self,
        actual: &Actual,
        write: Option<&CacheWrite<'_>>,
        refused: &Refused,
    ) -> (Option<Answer>, Reply) {
        let behaviour = write.and_then(|write| {
            let name = format!("output_{}", write.present);
            // An output that cannot be read fits no behaviour.
            let present = actual.tensor(&name, write.past.element()).ok()??;
            Behaviour::identify(write, refused.kind, &present)
        });
        match behaviour {
            None => (Some(Answer::Accepts), Reply::Wrong(refused.accepted())),
            Some(behaviour) => {
                let (rule, reason) = (refused.kind, refused.reason.clone());
                (Some(behaviour.answer), Reply::Wrong(Finding::Behaves { rule, behaviour, reason }))
            }
        }
    }
}
