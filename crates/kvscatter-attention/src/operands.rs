//! The operands of a call.

use core::marker::PhantomData;
use core::mem::MaybeUninit;

use kvscatter::ElementType;

use crate::mask::Mask;

/// The types and shapes of the inputs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shapes<'a> {
    /// The type of all elements except those of a boolean mask, and of keys and values if
    /// [`Attention::cache_element`](crate::Attention::cache_element) was called.
    pub element: ElementType,
    /// `[batch, query heads, queries, head size]`, or `[batch, queries, query heads * head size]`.
    pub query: &'a [usize],
    /// `[batch, heads, keys, head size]`, or `[batch, keys, heads * head size]`.
    pub key: &'a [usize],
    /// `[batch, heads, keys, value size]`, or `[batch, keys, heads * value size]`.
    pub value: &'a [usize],
    /// The shape of the mask, which broadcasts to `[batch, query heads, queries, past + keys]`. The last
    /// dimension does not broadcast. If it is smaller, the mask hides the slots after it.
    pub mask: Option<&'a [usize]>,
    /// The shapes of the past keys and values, `[batch, heads, past, size]`.
    pub past: Option<[&'a [usize]; 2]>,
}

/// The slots of each sample that contain tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Valid<'a> {
    /// All slots contain tokens. Query `i` has position `past + i`.
    All,
    /// The first `length` slots of each sample contain tokens, as `nonpad_kv_seqlen` counts them. Query `i` of
    /// `n` has position `length - n + i`.
    ///
    /// In a ring, the lengths count all tokens so far and may exceed the capacity.
    Lengths(&'a [i64]),
    /// The first `length` slots of each sample contain tokens, and query `i` has position `i`. So the queries after
    /// `length` are padding.
    Prompt(&'a [i64]),
}

/// The inputs of one call. The slices are row-major and have the prepared shapes. `T` is the type of the queries, and
/// `C` that of keys and values.
#[derive(Clone, Copy, Debug)]
pub struct Inputs<'a, T, C = T> {
    /// The queries.
    pub query: &'a [T],
    /// The keys: a static cache, or the new keys.
    pub key: &'a [C],
    /// The values.
    pub value: &'a [C],
    /// The mask, if it was prepared.
    pub mask: Option<Mask<'a, T>>,
    /// The keys and values of earlier steps, if they were prepared.
    pub past: Option<[&'a [C]; 2]>,
    /// The slots that contain tokens.
    pub valid: Valid<'a>,
    /// The position of the first token of each sample that is not padding on the left. No query sees those before it.
    /// `None` means 0.
    pub starts: Option<&'a [i64]>,
    /// The blocks of each sample, `[batch, blocks of a sample]`. It must be given if
    /// [`Attention::blocks`](crate::Attention::blocks) was called, and only then. Entries for positions that no query
    /// sees may have any value.
    pub block_table: Option<&'a [i32]>,
    /// The scales of keys and values that are codes. They must be given if the elements of the cache are int8, and only
    /// then.
    pub scales: Option<Scales<'a>>,
    /// The score of the sink of each query head. It must be given if
    /// [`Attention::sinks`](crate::Attention::sinks) was called, and only then.
    pub sinks: Option<&'a [T]>,
}

impl<'a, T, C> Inputs<'a, T, C> {
    /// Returns inputs without a mask, a past, scales and sinks, of which all slots contain tokens.
    #[must_use]
    pub fn new(query: &'a [T], key: &'a [C], value: &'a [C]) -> Self {
        Self {
            query,
            key,
            value,
            mask: None,
            past: None,
            valid: Valid::All,
            starts: None,
            block_table: None,
            scales: None,
            sinks: None,
        }
    }
}

/// The scales of keys and values that are int8 codes: a key or a value is its code times its scale. The slices are
/// row-major.
///
/// The scale of a key is multiplied with its scores, before the cap and the mask. That of a value is multiplied with
/// its weights, after their sum.
#[derive(Clone, Copy, Debug)]
pub enum Scales<'a> {
    /// A scale for each key and each value, as [`quantize_row`](kvscatter::quantize::quantize_row) returns it.
    Rows {
        /// `[batch, heads, keys]`.
        key: &'a [f32],
        /// `[batch, heads, keys]`.
        value: &'a [f32],
    },
    /// A scale for each element of a head, the same in all slots.
    Channels {
        /// `[heads, head size]`.
        key: &'a [f32],
        /// `[heads, value size]`.
        value: &'a [f32],
    },
}

/// Keys or values.
#[derive(Clone, Copy)]
pub(crate) enum Source {
    Keys,
    Values,
}

impl Source {
    pub(crate) fn choose<T>(self, key: T, value: T) -> T {
        match self {
            Self::Keys => key,
            Self::Values => value,
        }
    }
}

impl<'a> Scales<'a> {
    /// Returns the scales of all keys or all values, if each row has one.
    pub(crate) fn of_rows(self, source: Source) -> Option<&'a [f32]> {
        if let Self::Rows { key, value } = self { Some(source.choose(key, value)) } else { None }
    }

    /// Returns the scales of keys or of values, if each element of a head has one.
    pub(crate) fn of_channels(self, source: Source) -> Option<&'a [f32]> {
        if let Self::Channels { key, value } = self { Some(source.choose(key, value)) } else { None }
    }
}

/// The outputs of one call. The slices are row-major, and a call that succeeds writes all their elements.
#[derive(Debug)]
pub struct Outputs<'a, T, C = T> {
    pub(crate) output: Buffer<T>,
    pub(crate) present: Option<[Buffer<C>; 2]>,
    pub(crate) scores: Option<Buffer<T>>,
    borrows: PhantomData<&'a mut [(T, C)]>,
}

/// Memory that a call writes.
#[derive(Debug)]
pub(crate) struct Buffer<T> {
    pub(crate) first: *mut T,
    pub(crate) len: usize,
}

impl<'a, T, C> Outputs<'a, T, C> {
    /// Writes `Y` to this slice, in the layout of the queries with the value size.
    #[must_use]
    pub fn new(output: &'a mut [T]) -> Self {
        Self { output: Buffer::new(output), present: None, scores: None, borrows: PhantomData }
    }

    /// Writes `present_key` and `present_value`, `[batch, heads, past + keys, size]`.
    #[must_use]
    pub fn present(self, key: &'a mut [C], value: &'a mut [C]) -> Self {
        Self { present: Some([Buffer::new(key), Buffer::new(value)]), ..self }
    }

    /// Writes `qk_matmul_output`, `[batch, query heads, queries, past + keys]`. It must be given if
    /// [`Attention::scores`](crate::Attention::scores) was set, and only then.
    #[must_use]
    pub fn scores(self, scores: &'a mut [T]) -> Self {
        Self { scores: Some(Buffer::new(scores)), ..self }
    }

    /// Like [`new`](Self::new), for memory that need not be initialised.
    #[must_use]
    pub fn uninit(output: &'a mut [MaybeUninit<T>]) -> Self {
        Self { output: Buffer::uninit(output), present: None, scores: None, borrows: PhantomData }
    }

    /// Like [`present`](Self::present), for memory that need not be initialised.
    #[must_use]
    pub fn present_uninit(self, key: &'a mut [MaybeUninit<C>], value: &'a mut [MaybeUninit<C>]) -> Self {
        Self { present: Some([Buffer::uninit(key), Buffer::uninit(value)]), ..self }
    }

    /// Like [`scores`](Self::scores), for memory that need not be initialised.
    #[must_use]
    pub fn scores_uninit(self, scores: &'a mut [MaybeUninit<T>]) -> Self {
        Self { scores: Some(Buffer::uninit(scores)), ..self }
    }
}

impl<T> Buffer<T> {
    fn new(slice: &mut [T]) -> Self {
        Self { first: slice.as_mut_ptr(), len: slice.len() }
    }

    fn uninit(slice: &mut [MaybeUninit<T>]) -> Self {
        Self { first: slice.as_mut_ptr().cast(), len: slice.len() }
    }
}
