//! The operators, each in its own specification's words: what a node's attributes say, one call, and what is known
//! of its shapes before.

mod kv_cache_operation;
mod kv_cache_update;
mod tensor_scatter;

use core::ffi::CStr;
use std::borrow::Cow;

use kvscatter::{Argument, Error};
use ort_sys::OrtErrorCode;

use crate::context::Context;
use crate::known::Known;
use crate::node::Node;
use crate::status::Failure;

pub(crate) use kv_cache_operation::KvCacheOperation;
pub(crate) use kv_cache_update::KvCacheUpdate;
pub(crate) use tensor_scatter::TensorScatter;

/// An operator of one node. Its kernel is called on many threads at once.
pub(crate) trait Operator: Sized + Send + Sync {
    /// Its name in a model, with which every refusal begins.
    const NAME: &'static CStr;

    /// Inputs that have another name there than in the specification's document, by which the core calls them.
    const RENAMED: &'static [(Argument, &'static str)] = &[];

    /// Reads the attributes.
    ///
    /// # Errors
    /// For those that the operator does not know values of.
    fn new(node: &Node<'_>) -> Result<Self, Failure>;

    /// One call.
    ///
    /// # Errors
    /// Nothing has been written when it fails.
    fn compute(&self, context: &Context<'_>) -> Result<(), Failure>;

    /// Refuses what no call could make right, by what is known of the inputs.
    ///
    /// # Errors
    /// As [`compute`](Self::compute) would.
    fn check(&self, inputs: &[Known]) -> Result<(), Failure>;

    /// What the core refuses, in the operator's words.
    fn say(error: Error) -> String {
        format!("{}: {error}", name::<Self>())
    }

    /// A failure as the runtime is told of it.
    fn refuse(failure: Failure) -> Failure {
        let (code, mut message) = match failure {
            Failure::Core(error) => (OrtErrorCode::ORT_FAIL, Self::say(error)),
            Failure::Refused { code, message } => (code, format!("{}: {message}", name::<Self>())),
            Failure::Runtime(_) => return failure,
        };
        for (argument, input) in Self::RENAMED {
            message = message.replace(&argument.to_string(), input);
        }
        Failure::Refused { code, message }
    }
}

fn name<O: Operator>() -> Cow<'static, str> {
    O::NAME.to_string_lossy()
}

#[cfg(test)]
mod tests {
    use kvscatter::{Argument, ElementType, Error};

    use super::{KvCacheOperation, KvCacheUpdate, Operator, TensorScatter};
    use crate::status::Failure;

    /// A refusal of the core and one of ours.
    fn said<O: Operator>() -> [String; 2] {
        let (argument, element) = (Argument::Lengths, ElementType::Int32);
        [Error::ElementType { argument, element }.into(), Failure::fail("an input is missing")]
            .map(|failure| O::refuse(failure).to_string())
    }

    #[test]
    fn inputs_are_called_as_in_a_model() {
        let said = |failure: Failure| KvCacheUpdate::refuse(failure).to_string();
        let (argument, index, value) = (Argument::TensorRtWriteIndices, 1, -1);
        let refused = said(Error::NegativeStart { argument, index, value }.into());
        assert!(refused.starts_with("KVCacheUpdate: write_indices[1] = -1"), "{refused}");
        let missing = said(Failure::fail(format!("{} is missing", Argument::UpdateLengths)));
        assert_eq!(missing, "KVCacheUpdate: update_lengths is missing");
    }

    #[test]
    fn every_refusal_names_the_operator() {
        for (name, said) in [
            ("TensorScatter", said::<TensorScatter>()),
            ("KVCacheUpdate", said::<KvCacheUpdate>()),
            ("KVCacheOperation", said::<KvCacheOperation>()),
        ] {
            assert!(said[0].starts_with(&format!("{name}: ")), "{said:?}");
            assert_eq!(said[1], format!("{name}: an input is missing"));
        }
    }
}
