//! Prepares attention, which reads a cache.
//!
//! `lib.rs` defines C1 to C3 and C7.

use kvscatter::ElementType;
use kvscatter_attention::{Attention, AttentionError, Operand as Name, Prepared, Scratch, Shapes, Strides};

use crate::attention_kernel::Run;
use crate::attention_options::kvs_attention_options;
use crate::boundary::{check_pointer, reference, structure};
use crate::call_error::{CallError, CallErrorKind};
use crate::fields::operand_name;
use crate::guard::guarded;
use crate::options::optional;
use crate::status::kvs_status;
use crate::tensor::{Description, Operand, kvs_tensor};

/// Attention whose shapes have been checked. Create it once per set of shapes with `kvs_attention_prepare`, run it
/// at every step with `kvs_attention_run`, and destroy it with `kvs_attention_destroy`. It never changes, so any
/// number of threads may use one at the same time, each with its own scratch.
#[derive(Debug)]
pub struct kvs_attention {
    pub(crate) prepared: Prepared,
    /// Runs it for its element types.
    pub(crate) run: Run,
    pub(crate) operands: Operands,
}

/// The working memory of calls of attention. `kvs_attention_scratch_new` allocates it, so that a run allocates
/// nothing. Only one call at a time may use a scratch, so each thread that calls `kvs_attention_run` needs its own.
#[derive(Debug)]
pub struct kvs_attention_scratch {
    pub(crate) scratch: Scratch,
    /// Room for lengths and starts of 32 bits, each of which has one half.
    pub(crate) numbers: Box<[i64]>,
}

/// Any thread may use or destroy these.
const _: () = {
    const fn any_thread<T: Send + Sync>() {}
    any_thread::<kvs_attention>();
    any_thread::<kvs_attention_scratch>();
};

/// The tensors of a call, as they were prepared.
#[derive(Debug)]
pub(crate) struct Operands {
    pub(crate) query: Operand,
    pub(crate) key: Operand,
    pub(crate) value: Operand,
    pub(crate) output: Operand,
    pub(crate) mask: Option<Mask>,
    pub(crate) sinks: Operand,
    /// The scales of keys and of values.
    pub(crate) scales: [Scale; 2],
}

/// A prepared mask.
#[derive(Debug)]
pub(crate) struct Mask {
    pub(crate) tensor: Operand,
    pub(crate) is_bool: bool,
}

/// The two forms of the scales of keys or of values.
#[derive(Debug)]
pub(crate) struct Scale {
    /// `[batch or blocks, heads, slots]`.
    pub(crate) rows: Operand,
    /// `[heads, size]`.
    pub(crate) channels: Operand,
}

impl Scale {
    pub(crate) fn form(&self, is_channels: bool) -> &Operand {
        if is_channels { &self.channels } else { &self.rows }
    }
}

/// Prepares ONNX Attention over a cache. `query` is [batch, query heads, queries, head size]. `key` is [batch,
/// heads, slots, head size] and `value` is [batch, heads, slots, value size], or both consist of blocks
/// (`blocks_per_sample`). `output` is [batch, query heads, queries, value size]. The number of query heads is a
/// multiple of the number of heads.
///
/// These four tensors may have strides, for example those of [batch, slots, heads, size]. The elements of a row,
/// which is the last dimension, are neighbours, and no stride is negative. Rows of `output` share no element.
///
/// `query` and `output` have the same type, float32, float16 or bfloat16. `key` and `value` have the same type,
/// one of these three, or int8. Elements of int8 are codes, and a call gives their scales.
///
/// `mask` is NULL if calls have no mask. Otherwise it is dense, and its dimensions broadcast to [batch, query
/// heads, queries, slots], aligned on the right. The last dimension does not broadcast. If it is shorter, the mask
/// hides the slots after it. Its elements are KVS_BOOL, where 0 hides a slot, or numbers of the type of `query`,
/// which are added to the scores.
///
/// Besides `KVS_OK`, returns one of these errors:
/// - `KVS_ERROR_NULL_POINTER`, `KVS_ERROR_MISALIGNED`, `KVS_ERROR_ADDRESS_SPACE` or `KVS_ERROR_STRUCT_SIZE`
///   if a pointer or a `struct_size` is not valid.
/// - `KVS_ERROR_UNKNOWN_ELEMENT_TYPE`, `KVS_ERROR_RANK_LIMIT`, `KVS_ERROR_NEGATIVE_DIMENSION` or
///   `KVS_ERROR_TOO_LARGE` if the type, the shape or the strides of a tensor are not valid.
/// - `KVS_ERROR_UNKNOWN_OPTION` or `KVS_ERROR_NUMBER_OPTION` if an option has a value without a meaning.
/// - `KVS_ERROR_ELEMENT_TYPE`, `KVS_ERROR_ELEMENT_TYPE_MISMATCH`, `KVS_ERROR_RANK`,
///   `KVS_ERROR_DIMENSION_MISMATCH`, `KVS_ERROR_HEAD_GROUPS`, `KVS_ERROR_MASK_SHAPE`, `KVS_ERROR_EMPTY_SLOTS`,
///   `KVS_ERROR_EMPTY_BLOCKS` or `KVS_ERROR_RING_OF_BLOCKS` if the tensors and options do not fit each other.
/// - `KVS_ERROR_STRIDE` or `KVS_ERROR_OUTPUT_OVERLAPS_ITSELF` if strides are not supported.
///
/// # Safety
/// - `options` is either NULL, which means the defaults, or points to a struct of `struct_size` bytes.
/// - `query`, `key`, `value`, `mask` and `output` are either NULL or each point to a struct of `struct_size`
///   bytes. Their `shape` and `strides` are either NULL or point to `rank` numbers.
/// - Nothing writes these structs and numbers before this returns.
/// - `out` is either NULL or points to memory for the handle's address, which nothing else uses before this
///   returns.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvs_attention_prepare(
    options: *const kvs_attention_options,
    query: *const kvs_tensor,
    key: *const kvs_tensor,
    value: *const kvs_tensor,
    mask: *const kvs_tensor,
    output: *const kvs_tensor,
    out: *mut *mut kvs_attention,
) -> kvs_status {
    guarded(|| {
        // SAFETY: This function's contract requires C1 and C2 for `options`.
        let options = unsafe { optional(options) }?;
        let op = options.map_or(Ok(Attention::new()), |options| options.operator())?;
        check_pointer(out, 1, c"out".into())?;
        // SAFETY: This function's contract requires C1 and C2 for `query`.
        let query = unsafe { describe(query, Name::Query) }?;
        // SAFETY: This function's contract requires C1 and C2 for `key`.
        let key = unsafe { describe(key, Name::Key) }?;
        // SAFETY: This function's contract requires C1 and C2 for `value`.
        let value = unsafe { describe(value, Name::Value) }?;
        let mask = match mask.is_null() {
            true => None,
            // SAFETY: This function's contract requires C1 and C2 for `mask`.
            false => Some(unsafe { describe(mask, Name::Mask) }?),
        };
        // SAFETY: This function's contract requires C1 and C2 for `output`.
        let output = unsafe { describe(output, Name::Output) }?;
        let tensors = Tensors { query, key, value, mask, output };
        let attention = Box::into_raw(Box::new(tensors.prepare(op)?));
        // SAFETY: `check_pointer` rejects NULL and misaligned pointers. For other pointers, this function's
        // contract requires C3.
        unsafe { out.write(attention) };
        Ok(())
    })
}

/// Frees prepared attention. NULL is allowed. No other thread may still use it. A scratch that was made for it
/// stays valid.
///
/// # Safety
/// `attention` is either NULL or comes from `kvs_attention_prepare` and has not been destroyed. No other function
/// uses it during this call or later.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvs_attention_destroy(attention: *mut kvs_attention) {
    if !attention.is_null() {
        // SAFETY: `attention` is not NULL. This function's contract requires that it comes from
        // `kvs_attention_prepare`, which called `Box::into_raw`, and that it is destroyed only here.
        drop(unsafe { Box::from_raw(attention) });
    }
}

/// Allocates the working memory for runs of `attention` that use at most `threads` threads, including the calling
/// thread. 0 is like 1, and more than 1024 is like 1024. It also fits any other `kvs_attention` that was prepared
/// with the same types, shapes, strides and options, such as those of other layers.
///
/// Besides `KVS_OK`, returns `KVS_ERROR_NULL_POINTER`, `KVS_ERROR_MISALIGNED` or `KVS_ERROR_ADDRESS_SPACE` if a
/// pointer is not valid, and `KVS_ERROR_TOO_LARGE` if memory has no room for a length and a start of each sample,
/// which can happen if the tensors have no elements.
///
/// # Safety
/// - `attention` is either NULL or comes from `kvs_attention_prepare`, and nothing destroys it before this returns.
/// - `out` is either NULL or points to memory for the address of the scratch, which nothing else uses before this
///   returns.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvs_attention_scratch_new(
    attention: *const kvs_attention,
    threads: usize,
    out: *mut *mut kvs_attention_scratch,
) -> kvs_status {
    guarded(|| {
        // SAFETY: This function's contract requires C4 for `attention`.
        let kvs_attention { prepared, .. } = unsafe { reference(attention, c"attention") }?;
        check_pointer(out, 1, c"out".into())?;
        let (mut numbers, count) = (Vec::new(), prepared.elements(Name::Lengths).saturating_mul(2));
        // A batch without elements may be larger than memory.
        let reserved = numbers.try_reserve_exact(count);
        reserved.map_err(|_| CallErrorKind::TooLarge { subject: c"scratch".into() })?;
        numbers.resize(count, 0);
        let (scratch, numbers) = (prepared.scratch(threads), numbers.into());
        let scratch = Box::new(kvs_attention_scratch { scratch, numbers });
        // SAFETY: `check_pointer` rejects NULL and misaligned pointers. For other pointers, this function's
        // contract requires C3.
        unsafe { out.write(Box::into_raw(scratch)) };
        Ok(())
    })
}

/// Frees the working memory of attention. NULL is allowed. No other thread may still use it.
///
/// # Safety
/// `scratch` is either NULL or comes from `kvs_attention_scratch_new` and has not been destroyed. No other function
/// uses it during this call or later.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvs_attention_scratch_destroy(scratch: *mut kvs_attention_scratch) {
    if !scratch.is_null() {
        // SAFETY: `scratch` is not NULL. This function's contract requires that it comes from
        // `kvs_attention_scratch_new`, which called `Box::into_raw`, and that it is destroyed only here.
        drop(unsafe { Box::from_raw(scratch) });
    }
}

/// Reads the type, shape and strides of a tensor.
///
/// # Safety
/// `tensor` satisfies C1 and C2, and the pointers in it satisfy C1.
unsafe fn describe(tensor: *const kvs_tensor, name: Name) -> Result<Description, CallError> {
    // SAFETY: This function's contract requires C1 and C2 for `tensor`.
    let tensor = unsafe { structure(tensor, operand_name(name)) }?;
    // SAFETY: This function's contract requires C1 for the shape and strides of `tensor`.
    unsafe { Description::read(tensor, operand_name(name)) }
}

/// Returns the dimensions of a tensor of rank 4.
fn four(shape: &[usize]) -> [usize; 4] {
    [0, 1, 2, 3].map(|dimension| shape[dimension])
}

/// The tensors of a prepare function.
struct Tensors {
    query: Description,
    key: Description,
    value: Description,
    mask: Option<Description>,
    output: Description,
}

impl Tensors {
    fn prepare(self, op: Attention) -> Result<kvs_attention, CallError> {
        let Self { query, key, value, mask, output } = &self;
        let (element, cache_element) = (query.element, key.element);
        let operands = [(query, Name::Query), (key, Name::Key), (value, Name::Value), (output, Name::Output)];
        for (tensor, operand) in operands {
            let rank = tensor.shape.len();
            if rank != 4 {
                return Err(AttentionError::Rank { operand, rank, expected: "4" }.into());
            }
        }
        same_type(value, cache_element)?;
        same_type(output, element)?;
        if let Some(mask) = mask.as_ref().filter(|mask| mask.element != ElementType::Bool) {
            same_type(mask, element)?;
        }
        if let Some(mask) = mask {
            mask.check_dense()?;
        }
        let shapes = Shapes {
            element,
            query: &query.shape,
            key: &key.shape,
            value: &value.shape,
            mask: mask.as_ref().map(|mask| &mask.shape[..]),
            past: None,
        };
        let strides = Strides {
            query: query.row_strides()?,
            key: key.row_strides()?,
            value: value.row_strides()?,
            output: output.row_strides()?,
        };
        let prepared = op.cache_element(cache_element).prepare_strided(&shapes, &strides)?;
        if output.shape != prepared.output_shape() {
            let [.., size] = four(&value.shape);
            let [batch, heads, queries, _] = four(&query.shape);
            let (operand, got, expected) = (Name::Output, four(&output.shape), [batch, heads, queries, size]);
            return Err(AttentionError::Shape { operand, got, expected }.into());
        }
        let run = Run::new(element, cache_element)?;
        Ok(kvs_attention { operands: self.operands(&prepared), run, prepared })
    }

    fn operands(&self, prepared: &Prepared) -> Operands {
        let Self { query, key, value, mask, output } = self;
        let given = |tensor: &Description, name| {
            // Elements have whole bytes, and their product fits (A1).
            let bytes = tensor.element.bits().map(|bits| bits / 8 * prepared.elements(name));
            Operand::new(tensor, 0, bytes)
        };
        let dense = |name, element: ElementType, shape: &[usize]| {
            let tensor = Description::dense(operand_name(name), element, shape);
            Operand::new(&tensor, 0, element.storage_len(shape))
        };
        let scale = |name, cache: &Description| {
            let [blocks, heads, slots, size] = four(&cache.shape);
            Scale {
                rows: dense(name, ElementType::Float32, &[blocks, heads, slots]),
                channels: dense(name, ElementType::Float32, &[heads, size]),
            }
        };
        let [_, query_heads, ..] = four(&query.shape);
        Operands {
            query: given(query, Name::Query),
            key: given(key, Name::Key),
            value: given(value, Name::Value),
            output: given(output, Name::Output),
            mask: mask.as_ref().map(|mask| Mask {
                tensor: given(mask, Name::Mask),
                is_bool: mask.element == ElementType::Bool,
            }),
            sinks: dense(Name::Sinks, query.element, &[query_heads]),
            scales: [scale(Name::KeyScales, key), scale(Name::ValueScales, value)],
        }
    }
}

fn same_type(tensor: &Description, expected: ElementType) -> Result<(), CallError> {
    let &Description { argument, element: got, .. } = tensor;
    if got == expected {
        Ok(())
    } else {
        Err(CallErrorKind::OtherElementType { argument, got, expected }.into())
    }
}
