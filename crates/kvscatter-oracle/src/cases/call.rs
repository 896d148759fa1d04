use super::{Element, Origin};
use crate::ascend::KvCacheOperation;
use crate::onnx::TensorScatter;
use crate::tensorrt::KvCacheUpdate;
use crate::{Outcome, Refusal, Tensor, size};

/// An operator with all its attributes, and every input except the two tensors.
///
/// `lengths` has the number of rows of each sample that are written, or is `None` for all. This is a
/// kvscatter extension; not part of the specification.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the comment of the enum describes `lengths`")]
pub enum Call {
    /// ONNX `TensorScatter`.
    TensorScatter {
        /// The attributes and policies.
        operator: TensorScatter,
        /// The first slot written for each sample, or `None` for zeros.
        write_indices: Option<Vec<i64>>,
        lengths: Option<Vec<i64>>,
    },
    /// TensorRT `KVCacheUpdate`.
    KvCacheUpdate {
        /// The attributes and the policy.
        operator: KvCacheUpdate,
        /// The first slot written for each sample.
        write_indices: Vec<i64>,
        /// The cumulative lengths of a packed update, or `None` for a padded one.
        update_lengths: Option<Vec<i32>>,
        lengths: Option<Vec<i64>>,
    },
    /// Ascend ATB `KVCacheOperation`.
    KvCacheOperation {
        /// The policy of the operator.
        operator: KvCacheOperation,
        /// The index of the layer that is written, in a list of one element.
        layer_id: Vec<i32>,
        /// The number of tokens of each sample after the write.
        token_offset: Vec<i32>,
        /// The number of rows of each sample in the update.
        seq_len: Vec<i32>,
        lengths: Option<Vec<i64>>,
    },
}

impl Call {
    /// Runs the oracle.
    ///
    /// # Errors
    /// Returns the first rule of the operator that the call breaks.
    pub fn run<E: Clone>(&self, cache: Tensor<'_, E>, update: Tensor<'_, E>) -> Result<Outcome<E>, Refusal> {
        match self {
            Self::TensorScatter { operator, write_indices, lengths } => {
                operator.run(cache, update, write_indices.as_deref(), lengths.as_deref())
            }
            Self::KvCacheUpdate { operator, write_indices, update_lengths, lengths } => {
                operator.run(cache, update, write_indices, update_lengths.as_deref(), lengths.as_deref())
            }
            Self::KvCacheOperation { operator, layer_id, token_offset, seq_len, lengths } => {
                operator.run(update, layer_id, cache, token_offset, seq_len, lengths.as_deref())
            }
        }
    }

    /// Runs the oracle in index space. The outcome contains the origin of each element of the cache.
    ///
    /// # Errors
    /// Returns the first rule of the operator that the call breaks.
    pub fn run_on_origins(
        &self,
        cache_shape: &[usize],
        update_shape: &[usize],
    ) -> Result<Outcome<Origin>, Refusal> {
        let (cache, update) = Origin::tensors(size(cache_shape), size(update_shape));
        self.run(Tensor::new(&cache, cache_shape), Tensor::new(&update, update_shape))
    }

    /// Checks the rules about element types, for `[cache, update]`.
    ///
    /// # Errors
    /// Returns [`Refusal::TypesDiffer`] if the types differ. Otherwise returns [`Refusal::UnsupportedType`]
    /// if the operator does not support the type.
    pub fn check_elements(&self, [cache, update]: [&Element; 2]) -> Result<(), Refusal> {
        if cache != update {
            return Err(Refusal::TypesDiffer { cache: cache.name, update: update.name });
        }
        let supported = match self {
            Self::TensorScatter { .. } => true,
            Self::KvCacheUpdate { .. } => KvCacheUpdate::ELEMENT_TYPES.contains(&cache.name),
            Self::KvCacheOperation { .. } => KvCacheOperation::ELEMENT_TYPES.contains(&cache.name),
        };
        if supported { Ok(()) } else { Err(Refusal::UnsupportedType { element: cache.name }) }
    }
}
