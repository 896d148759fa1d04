//! The operators, each in its own specification's words: what a node's attributes say, one call, and what is known
//! of its shapes before.

mod kv_cache_operation;
mod kv_cache_update;
mod tensor_scatter;

use crate::context::Context;
use crate::known::Known;
use crate::node::Node;
use crate::status::Failure;

pub(crate) use kv_cache_operation::KvCacheOperation;
pub(crate) use kv_cache_update::KvCacheUpdate;
pub(crate) use tensor_scatter::TensorScatter;

/// An operator of one node. Its kernel is called on many threads at once.
pub(crate) trait Operator: Sized + Send + Sync {
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
}
