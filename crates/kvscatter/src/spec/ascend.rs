//! Ascend ATB [`KVCacheOperation`](https://www.hiascend.com/doc_center/source/zh/canncommercial/80RC3/apiref/ascendtbapi/ascendtb_01_0068.html).
//!
//! The operation writes token `j` of batch `i` to row `tokenOffset[i] - seqLen[i] + j` of layer `layerId[0]`.
//! By this formula, **`tokenOffset` is the length after the write**, not its start. The tokens are packed:
//! the first token of batch `i` has the sum of the earlier `seqLen` as its index.
//!
//! The document requires `tokenOffset < maxSeqLen`. But by the document's own formula,
//! `tokenOffset == maxSeqLen` fills the last slot, and the real kernel accepts it. This module therefore
//! requires `seqLen[i] <= tokenOffset[i] <= maxSeqLen`. Real kernels check no values at all. If `tokenOffset`
//! is less than `seqLen`, they write into another batch.
//!
//! The [crate documentation](crate#guarantees) defines G1.

use alloc::vec;
use alloc::vec::Vec;

use super::operands::{check_accepted, pair_dimensions};
use super::{PartialTensor, fill_unknown};
use crate::argument::{Argument, ArgumentNames};
use crate::element::ElementType;
use crate::error::Error;
use crate::geometry::{ByTensor, Dim, Layout, Operands, UpdateBatch};
use crate::plan::{Call, Convention, OutOfRange, RuleOptions};
use crate::prepared::Prepared;

const NAMES: ArgumentNames = ArgumentNames {
    cache: Argument::Past,
    update: Argument::NewKv,
    axis: None,
    positions: Argument::TokenOffset,
    row_counts: Argument::SeqLen,
    present: Argument::Present,
    layer: Argument::LayerId,
};

/// The operation. It writes in place into `past`, a `[layer, batch, maxSeqLen, hiddenSize]` tensor.
///
/// ```
/// use kvscatter::ElementType;
/// use kvscatter::spec::ascend::{KvCacheOperation, KvCacheOperationCall};
///
/// let operation = KvCacheOperation::new().prepare(
///     ElementType::Int8,
///     &[2, 2, 4, 6], // past: layer, batch, maxSeqLen, hiddenSize
///     &[3, 6], // newKv: three tokens in all, hiddenSize
/// )?;
/// let (mut past, new_kv) = ([0_i8; 96], [1_i8; 18]);
/// let call = KvCacheOperationCall { layer_id: &[1], token_offset: &[4, 1], seq_len: &[2, 1] };
/// let written = operation.write(&mut past, &new_kv, call)?;
/// assert_eq!(written.skipped, 0);
/// assert_eq!(past.iter().position(|&x| x != 0), Some(48 + 2 * 6));
/// # Ok::<(), kvscatter::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KvCacheOperation {
    out_of_range: OutOfRange,
}

impl KvCacheOperation {
    /// The element types that the operation accepts for caches.
    ///
    /// The document lists float16 and int8. The kernel also accepts bfloat16.
    pub const ELEMENT_TYPES: &[ElementType] =
        &[ElementType::Float16, ElementType::BFloat16, ElementType::Int8];

    /// The element types that the operation accepts for `layerId`, `tokenOffset` and `seqLen`.
    pub const INDEX_TYPES: &[ElementType] = &[ElementType::Int32];

    /// Creates an operation that returns an error for an offset out of range.
    #[must_use]
    pub const fn new() -> Self {
        Self { out_of_range: OutOfRange::Error }
    }

    /// Sets what happens to a sample whose `tokenOffset` does not fit. kvscatter extension; not part of the
    /// specification. The default is an error.
    #[must_use]
    pub const fn out_of_range(mut self, policy: OutOfRange) -> Self {
        self.out_of_range = policy;
        self
    }

    /// Checks everything about the shapes, once per shape.
    ///
    /// `newKv` has one of two forms:
    ///
    /// * `[nTokens, hiddenSize]`
    /// * `[batch, seq_len, head_num, head_size]` with `head_num * head_size == hiddenSize`. Every `seqLen`
    ///   must then be `seq_len`, because the kernel reads this form as a flat list of tokens.
    ///
    /// The cache is the first argument, as for every operator in this crate. Ascend's document lists `newKv`
    /// first.
    ///
    /// # Errors
    /// * Returns [`Error::ElementType`] unless the element type is float16, bfloat16 or int8.
    /// * Returns [`Error::StrideCount`], [`Error::TooLarge`] or [`Error::BeforeBuffer`] if a layout is
    ///   invalid.
    /// * Returns [`Error::Rank`] if a tensor has the wrong number of dimensions.
    /// * Returns [`Error::DimensionMismatch`] or [`Error::HiddenSize`] if the sizes of `newKv` do not fit
    ///   `past`.
    /// * Returns [`Error::UpdateLongerThanCache`] if a 4-D `newKv` has more rows than `past`.
    /// * Returns [`Error::CacheOverlapsItself`] if two positions of `past` share memory.
    /// * Returns [`Error::TooManyLoops`] if the two layouts need too many loops.
    pub fn prepare<'a>(
        &self,
        element: ElementType,
        past: impl Into<Layout<'a>>,
        new_kv: impl Into<Layout<'a>>,
    ) -> Result<Prepared, Error> {
        let (past, new_kv) = (past.into(), new_kv.into());
        check_element(Argument::Past, element)?;
        let cache = past.resolve(Argument::Past, element.size_bits())?;
        let [layers, batch, rows, hidden] = *cache.dims() else {
            return Err(Error::Rank { argument: Argument::Past, rank: cache.dims().len(), expected: &[4] });
        };
        let new = new_kv.resolve(Argument::NewKv, element.size_bits())?;
        let (update_batch, tokens, inner) = match *new.dims() {
            [tokens, new_hidden] => {
                (UpdateBatch::Packed, tokens, pair_dimensions(Argument::NewKv, 1, &[hidden], &[new_hidden])?)
            }
            [sample, rows, heads, head] => {
                pair_dimensions(Argument::NewKv, 0, &[batch], &[sample])?;
                // G1 bounds this product.
                if heads.size.wrapping_mul(head.size) != hidden.size {
                    let (heads, head_size, hidden) = (heads.size, head.size, hidden.size);
                    return Err(Error::HiddenSize { argument: Argument::NewKv, heads, head_size, hidden });
                }
                let head_stride =
                    isize::try_from(head.size).ok().and_then(|size| hidden.stride.checked_mul(size));
                let stride = head_stride.ok_or(Error::TooLarge { argument: Argument::Past })?;
                let old_heads = Dim { size: heads.size, stride };
                let hidden = Dim { size: head.size, ..hidden };
                let inner = [(old_heads, heads), (hidden, head)];
                let inner = inner.map(|(cache, update)| ByTensor { cache, update });
                (UpdateBatch::Padded(sample), rows, inner.into())
            }
            _ => {
                return Err(Error::Rank {
                    argument: Argument::NewKv,
                    rank: new.dims().len(),
                    expected: &[2, 4],
                });
            }
        };
        let operands = Operands {
            names: &NAMES,
            element,
            cache: &cache,
            update: &new,
            layers,
            batch: ByTensor { cache: batch, update: update_batch },
            rows: ByTensor { cache: rows, update: tokens },
            outer: vec![],
            inner,
        };
        let options = RuleOptions::linear(Convention::EndsAndRowCounts, self.out_of_range);
        Prepared::new(&operands, RuleOptions { min_rows: 1, has_layers: true, ..options })
    }

    /// Infers `present` from the inputs. It has the element type and the shape of `past`.
    ///
    /// An unknown type or dimension fits everything. If the rank of `newKv` is unknown, the form
    /// `[nTokens, hiddenSize]` is assumed.
    ///
    /// # Errors
    /// * Returns the same errors as [`prepare`](Self::prepare) and [`Prepared::plan`] for the same faults.
    /// * Returns [`Error::ElementTypeMismatch`] if `past` and `newKv` have different element types.
    /// * Returns [`Error::ElementType`] or [`Error::Rank`] if a list has the wrong type or rank.
    pub fn infer<'a>(
        &self,
        past: PartialTensor<'a>,
        new_kv: PartialTensor<'_>,
        layer_id: PartialTensor<'_>,
        token_offset: PartialTensor<'_>,
        seq_len: PartialTensor<'_>,
    ) -> Result<PartialTensor<'a>, Error> {
        for (argument, tensor) in [(Argument::Past, past), (Argument::NewKv, new_kv)] {
            tensor.element.map_or(Ok(()), |element| check_element(argument, element))?;
        }
        past.check_same_element(Argument::NewKv, new_kv)?;
        // If `prepare` rejects these sizes, which were chosen to fit, it rejects the sizes of every run.
        let element = past.element.or(new_kv.element).unwrap_or(ElementType::Int8);
        let (past_sizes, new_kv_sizes) = fitting_sizes(past, new_kv);
        self.prepare(element, &past_sizes, &new_kv_sizes)?;

        layer_id.check_indices(Argument::LayerId, Self::INDEX_TYPES, Some(1))?;
        let has_batch = new_kv_sizes.len() == 4;
        let batch = past.size(1).or_else(|| new_kv.size(0).filter(|_| has_batch));
        token_offset.check_indices(Argument::TokenOffset, Self::INDEX_TYPES, batch)?;
        seq_len.check_indices(Argument::SeqLen, Self::INDEX_TYPES, batch)?;
        Ok(past)
    }
}

/// Returns the sizes of `past` and `newKv`. Each unknown size is chosen to fit.
fn fitting_sizes(past: PartialTensor<'_>, new_kv: PartialTensor<'_>) -> (Vec<usize>, Vec<usize>) {
    let (mut past, mut new_kv) = (past.sizes_or(4), new_kv.sizes_or(2));
    let pairs: &[_] = match (past.as_mut_slice(), new_kv.as_mut_slice()) {
        ([_, _, _, hidden], [_, _, heads, head_size]) => {
            // `hidden` is the product of the other two, so they can be compared only if all three are known.
            if [&heads, &head_size, &hidden].iter().any(|size| size.is_none()) {
                (*heads, *head_size, *hidden) = (Some(1), Some(1), Some(1));
            }
            &[(1, 0), (2, 1)]
        }
        _ => &[(3, 1)],
    };
    fill_unknown(past, new_kv, pairs)
}

/// Checks that the operation accepts this element type.
fn check_element(argument: Argument, element: ElementType) -> Result<(), Error> {
    check_accepted(argument, element, KvCacheOperation::ELEMENT_TYPES)
}

/// One call of a `KVCacheOperation`, for [`Prepared::plan`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvCacheOperationCall<'a> {
    /// The `layerId` list. It contains exactly one layer, the layer to write.
    pub layer_id: &'a [i32],
    /// The `tokenOffset` list: the length after the write for each batch of `past`, in
    /// `seqLen[i]..=maxSeqLen`.
    pub token_offset: &'a [i32],
    /// The `seqLen` list: the number of new tokens of each batch, in `1..=maxSeqLen`.
    ///
    /// For a 4-D `newKv`, each value is its `seq_len`. The values add up to `nTokens`.
    pub seq_len: &'a [i32],
}

impl<'a> KvCacheOperationCall<'a> {
    /// Creates a call from the three lists, in the order of Ascend's document.
    #[must_use]
    pub const fn new(layer_id: &'a [i32], token_offset: &'a [i32], seq_len: &'a [i32]) -> Self {
        Self { layer_id, token_offset, seq_len }
    }
}

impl<'a> From<KvCacheOperationCall<'a>> for Call<'a> {
    fn from(call: KvCacheOperationCall<'a>) -> Self {
        let KvCacheOperationCall { layer_id, token_offset, seq_len } = call;
        Self {
            layer_count: u32::try_from(layer_id.len()).unwrap_or(u32::MAX),
            layer: layer_id.first().copied().unwrap_or(0),
            row_counts: Some(seq_len),
            ..Self::from(token_offset)
        }
    }
}
