//! Ascend ATB [`KVCacheOperation`](https://www.hiascend.com/doc_center/source/zh/canncommercial/80RC3/apiref/ascendtbapi/ascendtb_01_0068.html).
//!
//! Token `j` of batch `i` goes to row `tokenOffset[i] - seqLen[i] + j` of layer `layerId[0]`: **`tokenOffset` is
//! the length after the write**, not its start. Tokens are packed: batch `i`'s first is the sum of the earlier
//! `seqLen`. The document asks for `tokenOffset < maxSeqLen`; by its own formula `tokenOffset == maxSeqLen`
//! fills the last slot, and the real kernel accepts it, so `seqLen[i] <= tokenOffset[i] <= maxSeqLen` is the
//! rule here. Real kernels check no values at all and let a smaller `tokenOffset` land in another batch.

use alloc::vec;

use bytemuck::NoUninit;

use crate::argument::Words;
use crate::call::{Anchor, Call, Spans};
use crate::geometry::{Geometry, Normalised, Rules, agree};
use crate::indices::Values;
use crate::layout::{Dim, Layout};
use crate::lists::{ListLengths, Lists};
use crate::{Argument, ElementType, Error, Lengths, OutOfRange, Starts, WritePlan, Written};

/// The operation: `past` is `[layer, batch, maxSeqLen, hiddenSize]`, written in place.
///
/// ```
/// use kvscatter::{ElementType, spec::ascend::KvCacheOperation};
///
/// let write = KvCacheOperation::new().prepare(
///     ElementType::Int8,
///     &[3, 6], // newKv: three tokens in all, hiddenSize
///     &[2, 2, 4, 6], // past: layer, batch, maxSeqLen, hiddenSize
/// )?;
/// let (mut past, new_kv) = ([0_i8; 96], [1_i8; 18]);
/// write.in_place(&mut past, &new_kv, &[1], &[4, 1], &[2, 1])?; // layerId, tokenOffset, seqLen
/// assert_eq!(past.iter().position(|&x| x != 0), Some(48 + 2 * 6));
/// # Ok::<(), kvscatter::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KvCacheOperation {
    out_of_range: OutOfRange,
    param: KvCacheParam,
}

/// `KVCacheParam`: eight reserved bytes, which must be zero.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KvCacheParam {
    /// Reserved.
    pub rsv: [u8; 8],
}

impl KvCacheOperation {
    /// The types of caches that the operation takes. The document names float16 and int8; the kernel takes bfloat16
    /// as well.
    pub const ELEMENT_TYPES: &[ElementType] =
        &[ElementType::Float16, ElementType::BFloat16, ElementType::Int8];

    /// An offset out of range is an error.
    #[must_use]
    pub const fn new() -> Self {
        Self { out_of_range: OutOfRange::Error, param: KvCacheParam { rsv: [0; 8] } }
    }

    /// The operation's parameters.
    #[must_use]
    pub const fn param(mut self, param: KvCacheParam) -> Self {
        self.param = param;
        self
    }

    /// An extension of ours: what happens to a sample whose `tokenOffset` does not fit.
    #[must_use]
    pub const fn out_of_range(mut self, policy: OutOfRange) -> Self {
        self.out_of_range = policy;
        self
    }

    /// Checks everything about shapes, once. `newKv` is `[nTokens, hiddenSize]`, or
    /// `[batch, seq_len, head_num, head_size]` with `head_num * head_size == hiddenSize`; every `seqLen` must
    /// then be `seq_len`, since the kernel reads that form flat.
    ///
    /// # Errors
    /// [`Error::Reserved`]; [`Error::ElementType`] unless float16, bfloat16 or int8; those of the layouts;
    /// [`Error::Rank`]; [`Error::DimensionMismatch`] or [`Error::HiddenSize`]; [`Error::UpdateLongerThanCache`].
    pub fn prepare<'a>(
        &self,
        element: ElementType,
        new_kv: impl Into<Layout<'a>>,
        past: impl Into<Layout<'a>>,
    ) -> Result<Prepared, Error> {
        let (new_kv, past) = (new_kv.into(), past.into());
        if let Some((index, &value)) = self.param.rsv.iter().enumerate().find(|byte| *byte.1 != 0) {
            return Err(Error::Reserved { index, value });
        }
        if !Self::ELEMENT_TYPES.contains(&element) {
            return Err(Error::ElementType { argument: Argument::Past, element });
        }
        let old = past.resolve(Argument::Past, element.size_bits())?;
        let [layers, batch, rows, hidden] = *old.dims.as_slice() else {
            return Err(Error::Rank { argument: Argument::Past, rank: old.dims.len(), expected: &[4] });
        };
        let new = new_kv.resolve(Argument::NewKv, element.size_bits())?;
        let (sample, tokens, inner) = match *new.dims.as_slice() {
            [tokens, new_hidden] => (None, tokens, agree(Argument::NewKv, 1, &[hidden], &[new_hidden])?),
            [sample, rows, heads, head] => {
                agree(Argument::NewKv, 0, &[batch], &[sample])?;
                // G1 has bounded the product.
                if heads.size.wrapping_mul(head.size) != hidden.size {
                    let (heads, head_size, hidden) = (heads.size, head.size, hidden.size);
                    return Err(Error::HiddenSize { heads, head_size, hidden });
                }
                let head_stride =
                    isize::try_from(head.size).ok().and_then(|size| hidden.stride.checked_mul(size));
                let stride = head_stride.ok_or(Error::TooLarge { argument: Argument::Past })?;
                let old_heads = Dim { size: heads.size, stride };
                (Some(sample), rows, vec![(old_heads, heads), (Dim { size: head.size, ..hidden }, head)])
            }
            _ => {
                return Err(Error::Rank {
                    argument: Argument::NewKv,
                    rank: new.dims.len(),
                    expected: &[2, 4],
                });
            }
        };
        let geometry = Geometry::new(&Normalised {
            words: &Words::ASCEND,
            element,
            rules: Rules::linear(Lists::Ends, self.out_of_range),
            cache: &old,
            update: &new,
            layers,
            batch: (batch, sample),
            rows: (rows, tokens),
            outer: vec![],
            inner,
        })?;
        Ok(Prepared { geometry })
    }
}

/// A `KVCacheOperation` whose shapes are checked: build it once, run it every step.
#[derive(Clone, Debug)]
pub struct Prepared {
    geometry: Geometry,
}

impl Prepared {
    /// The shapes, normalised.
    #[must_use]
    pub fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    /// Checks this call's `layerId` (exactly one), `tokenOffset` and `seqLen` (one per batch of `past`).
    ///
    /// # Errors
    /// [`Error::Count`]; [`Error::LayerOutOfRange`]; [`Error::LengthOutOfRange`] for a `seqLen` below 1, above
    /// maxSeqLen, or, for a 4-D newKv, other than its seq_len; [`Error::TokenSum`] if they do not add up to
    /// nTokens; [`Error::EndOutOfRange`] for a `tokenOffset` outside `seqLen[i]..=maxSeqLen`.
    pub fn plan<'a>(
        &'a self,
        layer_id: &[i32],
        token_offset: &'a [i32],
        seq_len: &'a [i32],
    ) -> Result<WritePlan<'a>, Error> {
        self.plan_lengths(layer_id, token_offset, seq_len, Lengths::Full)
    }

    /// An extension of ours: only the first `lengths[i]` tokens of batch `i` are written. `tokenOffset` still
    /// counts all `seqLen[i]` of them, and `tokenOffset[i] - seqLen[i] + lengths[i] <= maxSeqLen` suffices.
    ///
    /// # Errors
    /// As [`plan`](Self::plan), and [`Error::LengthOutOfRange`] outside `0..=seqLen[i]`.
    pub fn plan_lengths<'a>(
        &'a self,
        layer_id: &[i32],
        token_offset: &'a [i32],
        seq_len: &'a [i32],
        lengths: impl Into<Lengths<'a>>,
    ) -> Result<WritePlan<'a>, Error> {
        let &[layer] = layer_id else {
            return Err(Error::Count { argument: Argument::LayerId, got: layer_id.len(), want: 1 });
        };
        let lengths = lengths.into();
        self.geometry.check_counts(ListLengths {
            starts: Some(token_offset.len()),
            spans: Some(seq_len.len()),
            lengths: None, // The plan's matter, behind the layer.
        })?;
        let call = Call {
            layer: layer.into(),
            starts: Starts::I32(token_offset),
            anchor: Anchor::End,
            spans: Spans::Each(Values::I32(seq_len)),
            lengths,
        };
        WritePlan::new(&self.geometry, call)
    }

    /// Writes `new_kv` into `past`. See [`WritePlan::write`].
    ///
    /// # Errors
    /// As [`plan`](Self::plan) and [`WritePlan::write`].
    pub fn in_place<'a, T: NoUninit>(
        &'a self,
        past: &mut [T],
        new_kv: &[T],
        layer_id: &[i32],
        token_offset: &'a [i32],
        seq_len: &'a [i32],
    ) -> Result<Written, Error> {
        self.plan(layer_id, token_offset, seq_len)?.write(past, new_kv)
    }
}
