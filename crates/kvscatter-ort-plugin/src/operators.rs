//! The operators. Each operator reads a node's attributes, checks the types and shapes that the model
//! declares for its inputs, and executes one call. Its messages use the names of its specification.

pub(crate) mod attention;
mod group_query;
mod kv_cache_operation;
mod kv_cache_update;
pub(crate) mod tensor_scatter;

use core::ffi::CStr;
use std::borrow::Cow;

use kvscatter::spec::PartialTensor;
use kvscatter::{Argument, Error};

use crate::context::Context;
use crate::node::Node;
use crate::status::CallError;
use crate::tensor_info::TensorInfo;

pub(crate) use attention::{Attention, FLOATS};
pub(crate) use group_query::GroupQueryAttention;
pub(crate) use kv_cache_operation::KvCacheOperation;
pub(crate) use kv_cache_update::KvCacheUpdate;
pub(crate) use tensor_scatter::TensorScatter;

/// An operator of one node, whose kernel is called on many threads at once.
pub(crate) trait Operator: Sized + Send + Sync {
    /// The operator's name in a model. Every error message begins with this name.
    const NAME: &'static CStr;

    /// Reads the attributes. Returns an error if an attribute has an unknown value.
    fn new(node: &Node<'_>) -> Result<Self, CallError>;

    /// Executes one call. Returns an error if an input does not fit. Nothing has been written then.
    fn compute(&self, context: &Context<'_>) -> Result<(), CallError>;

    /// Checks that the declared inputs do not make every call fail. Returns the error that [`compute`](Self::compute)
    /// would return in every call.
    fn check(&self, inputs: &[TensorInfo]) -> Result<(), CallError>;

    /// Returns the name of an input in a model.
    fn input_name(argument: Argument) -> &'static str {
        argument.name()
    }

    /// Returns the message for an error of the core.
    fn message(error: Error) -> String {
        format!("{}: {}", name::<Self>(), error.display_with(Self::input_name))
    }

    /// Returns the failure with the operator's name before the message, and with the model's names in the
    /// message.
    fn with_operator_name(failure: CallError) -> CallError {
        match failure {
            CallError::Core(error) => CallError::fail(Self::message(error)),
            CallError::Argument { argument, problem } => {
                CallError::fail(format!("{}: {} {problem}", name::<Self>(), Self::input_name(argument)))
            }
            CallError::Refused { code, message } => {
                CallError::Refused { code, message: format!("{}: {message}", name::<Self>()) }
            }
            CallError::Runtime(_) => failure,
        }
    }
}

/// Returns what the model declares about an input. If the node does not have the input, everything is
/// unknown.
fn partial(inputs: &[TensorInfo], index: usize) -> PartialTensor<'_> {
    inputs.get(index).map(TensorInfo::partial).unwrap_or_default()
}

fn name<O: Operator>() -> Cow<'static, str> {
    O::NAME.to_string_lossy()
}

#[cfg(test)]
mod tests {
    use kvscatter::{Argument, ElementType, Error};

    use super::{KvCacheOperation, KvCacheUpdate, Operator, TensorScatter};
    use crate::status::CallError;

    /// Returns the messages of an error of the core and of one that this crate makes.
    fn messages<O: Operator>() -> [String; 2] {
        let (argument, element) = (Argument::Lengths, ElementType::Int32);
        let accepted = &[ElementType::Int64];
        [Error::ElementType { argument, element, accepted }.into(), CallError::fail("an input is missing")]
            .map(|failure| O::with_operator_name(failure).to_string())
    }

    #[test]
    fn inputs_are_called_as_in_a_model() {
        let message = |failure: CallError| KvCacheUpdate::with_operator_name(failure).to_string();
        let (argument, index, value) = (Argument::TensorRtWriteIndices, 1, -1);
        let refused = message(Error::NegativeStart { argument, index, value }.into());
        assert!(refused.starts_with("KVCacheUpdate: write_indices[1] = -1"), "{refused}");
        let missing = message(CallError::argument(Argument::UpdateLengths, "is missing"));
        assert_eq!(missing, "KVCacheUpdate: update_lengths is missing");
    }

    #[test]
    fn every_refusal_names_the_operator() {
        for (name, messages) in [
            ("TensorScatter", messages::<TensorScatter>()),
            ("KVCacheUpdate", messages::<KvCacheUpdate>()),
            ("KVCacheOperation", messages::<KvCacheOperation>()),
        ] {
            assert!(messages[0].starts_with(&format!("{name}: ")), "{messages:?}");
            assert_eq!(messages[1], format!("{name}: an input is missing"));
        }
    }
}
