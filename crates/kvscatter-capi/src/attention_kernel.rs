//! Runs attention for the element types of its tensors.

use std::mem::MaybeUninit;
use std::ptr;

use kvscatter::{ElementType, Executor, RawBuffer};
use kvscatter_attention::{
    AttentionError, CacheElement, Float, ForElements, Inputs, Mask, Outputs, Prepared, Scales, Scratch,
    Valid, for_elements,
};

/// The memory of a call. Each buffer has the prepared size.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Memory<'a> {
    pub(crate) query: RawBuffer,
    pub(crate) key: RawBuffer,
    pub(crate) value: RawBuffer,
    pub(crate) output: RawBuffer,
    /// The mask, and whether its elements are boolean.
    pub(crate) mask: Option<(RawBuffer, bool)>,
    pub(crate) sinks: Option<RawBuffer>,
    pub(crate) scales: Option<ScaleMemory>,
    pub(crate) valid: Valid<'a>,
    pub(crate) starts: Option<&'a [i64]>,
    pub(crate) block_table: Option<&'a [i32]>,
}

/// The scales of keys and of values.
#[derive(Clone, Copy, Debug)]
pub(crate) enum ScaleMemory {
    Rows([RawBuffer; 2]),
    Channels([RawBuffer; 2]),
}

/// [`run`] for the element types of queries and of a cache.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Run(Function);

type Function =
    unsafe fn(&Prepared, &Memory<'_>, &mut Scratch, Option<&dyn Executor>) -> Result<(), AttentionError>;

/// Chooses [`run`] for element types.
struct Choice;

impl ForElements for Choice {
    type Output = Function;

    fn with<T: Float, C: CacheElement>(self) -> Function {
        run::<T, C>
    }
}

impl Run {
    /// Chooses the function for the types of queries and of a cache.
    pub(crate) fn new(query: ElementType, cache: ElementType) -> Result<Self, AttentionError> {
        for_elements(query, cache, Choice).map(Self)
    }

    /// Runs a call. An error has written nothing.
    ///
    /// # Safety
    /// The element types of the buffers are those of this value. Each buffer has no bytes, or is in one allocation,
    /// aligned for its elements, and initialised unless it is the output. The output shares no byte with anything
    /// else that `memory` contains. Before this returns, nothing else writes the buffers or reads the output.
    pub(crate) unsafe fn run(
        self,
        prepared: &Prepared,
        memory: &Memory<'_>,
        scratch: &mut Scratch,
        executor: Option<&dyn Executor>,
    ) -> Result<(), AttentionError> {
        // SAFETY: This function has the same contract.
        unsafe { self.0(prepared, memory, scratch, executor) }
    }
}

/// See [`Run::run`].
///
/// # Safety
/// `T` and `C` are the types of the queries and of the cache. The other conditions are those of [`Run::run`].
unsafe fn run<T: Float, C: CacheElement>(
    prepared: &Prepared,
    memory: &Memory<'_>,
    scratch: &mut Scratch,
    executor: Option<&dyn Executor>,
) -> Result<(), AttentionError> {
    let Memory { query, key, value, output, mask, sinks, scales, valid, starts, block_table } = *memory;
    let inputs = Inputs {
        // SAFETY: This function's contract requires a valid buffer of `T`.
        query: unsafe { elements::<T>(query) },
        // SAFETY: This function's contract requires a valid buffer of `C`.
        key: unsafe { elements::<C>(key) },
        // SAFETY: This function's contract requires a valid buffer of `C`.
        value: unsafe { elements::<C>(value) },
        mask: mask.map(|(mask, is_bool)| match is_bool {
            // SAFETY: This function's contract requires a valid buffer of booleans, which are bytes.
            true => Mask::Bool(unsafe { elements(mask) }),
            // SAFETY: This function's contract requires a valid buffer of `T`.
            false => Mask::Float(unsafe { elements(mask) }),
        }),
        past: None,
        valid,
        starts,
        block_table,
        scales: scales.map(|scales| {
            // SAFETY: This function's contract requires a valid buffer of float32.
            let scale = |scales| unsafe { elements::<f32>(scales) };
            match scales {
                ScaleMemory::Rows([key, value]) => Scales::Rows { key: scale(key), value: scale(value) },
                ScaleMemory::Channels([key, value]) => {
                    Scales::Channels { key: scale(key), value: scale(value) }
                }
            }
        }),
        // SAFETY: This function's contract requires a valid buffer of `T`.
        sinks: sinks.map(|sinks| unsafe { elements(sinks) }),
    };
    // SAFETY: This function's contract requires a valid buffer of `T`, which nothing else uses.
    let output = unsafe { &mut *array::<MaybeUninit<T>>(output) };
    prepared.run(&inputs, &mut Outputs::uninit(output), scratch, executor)
}

/// Returns the elements of a buffer.
///
/// # Safety
/// The buffer has no bytes, or it is aligned for `E`, initialised, in one allocation, and nothing writes it during
/// `'a`. Every byte sequence is a value of `E`.
unsafe fn elements<'a, E>(buffer: RawBuffer) -> &'a [E] {
    // SAFETY: This function's contract requires initialised and aligned elements, or there are none and the pointer
    // of the slice is dangling and aligned.
    unsafe { &*array(buffer) }
}

fn array<E>(RawBuffer { ptr, len }: RawBuffer) -> *mut [E] {
    if len == 0 { &mut [] } else { ptr::slice_from_raw_parts_mut(ptr.cast(), len / size_of::<E>()) }
}
