//! Executes a call of attention on the CPU.

use core::cell::{Cell, RefCell};
use core::mem::MaybeUninit;
use core::slice;
use std::rc::Rc;

use kvscatter::Mode;
use kvscatter_attention::{
    CacheElement, Float, ForElements, Inputs, Mask, Outputs, Prepared, Scales, Scratch, Valid, for_elements,
};

use crate::attention_form::{AttentionForm, AttentionLayout};
use crate::call::{Call, F32, PRED, S32, S64, Tensor, element_type, list};
use crate::recent::Recent;
use crate::status::CallError;
use crate::threads::Pool;

/// Checks a call and executes it.
///
/// # Errors
/// Returns the errors of attention, and an error if the program does not make the call as the crate's documentation
/// describes it. Nothing has been written then.
pub(crate) fn run(call: &Call<'_>) -> Result<(), CallError> {
    let operands = Operands::read(call)?;
    let form = operands.form(call)?;
    let result = call.results().get(0)?.filter(|_| call.results().len() == 1);
    let output = result.ok_or_else(|| CallError::program("there must be one result"))?;
    if output.element != operands.query.element || output.shape()? != form.output() {
        return Err(CallError::program(
            "the result does not have the type and the shape that attention gives",
        ));
    }
    let attention = prepared(form.clone())?;
    let run = Run { call, operands: &operands, output, attention: &attention };
    for_elements(form.element, form.cache_element, run)?
}

/// A call whose element types are not Rust types yet.
struct Run<'a, 'f> {
    call: &'a Call<'f>,
    operands: &'a Operands<'f>,
    output: Tensor<'f>,
    attention: &'a Kept,
}

impl ForElements for Run<'_, '_> {
    type Output = Result<(), CallError>;

    fn with<T: Float, C: CacheElement>(self) -> Self::Output {
        run_cache::<T, C>(self.call, self.operands, self.output, self.attention)
    }
}

/// Returns the error for a platform on which attention does not run.
pub(crate) fn refuse(_: &Call<'_>) -> Result<(), CallError> {
    Err(CallError::program(
        "kvscatter.jax.attention runs on the CPU only: on a GPU, use jax.nn.dot_product_attention with a mask",
    ))
}

/// The arguments of a call.
#[derive(Clone, Copy)]
struct Operands<'f> {
    query: Tensor<'f>,
    key: Tensor<'f>,
    value: Tensor<'f>,
    lengths: Tensor<'f>,
    starts: Option<Tensor<'f>>,
    mask: Option<Tensor<'f>>,
    sink: Option<Tensor<'f>>,
    k_scale: Option<Tensor<'f>>,
    v_scale: Option<Tensor<'f>>,
    block_tables: Option<Tensor<'f>>,
}

impl<'f> Operands<'f> {
    fn read(call: &Call<'f>) -> Result<Self, CallError> {
        let arguments = call.arguments();
        let names: Vec<_> = call.text("operands")?.split_whitespace().collect();
        let expected = names.len().saturating_add(4);
        let (Some(query), Some(key), Some(value), Some(lengths), true) = (
            arguments.get(0)?,
            arguments.get(1)?,
            arguments.get(2)?,
            arguments.get(3)?,
            arguments.len() == expected,
        ) else {
            return Err(CallError::program(format!("{} arguments, must be {expected}", arguments.len())));
        };
        let mut operands = Self {
            query,
            key,
            value,
            lengths,
            starts: None,
            mask: None,
            sink: None,
            k_scale: None,
            v_scale: None,
            block_tables: None,
        };
        for (index, name) in (4..).zip(names) {
            let place = match name {
                "starts" => &mut operands.starts,
                "mask" => &mut operands.mask,
                "sink" => &mut operands.sink,
                "k_scale" => &mut operands.k_scale,
                "v_scale" => &mut operands.v_scale,
                "block_tables" => &mut operands.block_tables,
                _ => return Err(CallError::program(format!("attention has no operand {name}"))),
            };
            *place = arguments.get(index)?;
        }
        Ok(operands)
    }

    fn form(&self, call: &Call<'_>) -> Result<AttentionForm, CallError> {
        let four = |tensor: &Tensor<'_>, name: &str| {
            let shape = tensor.shape()?;
            <[usize; 4]>::try_from(shape)
                .map_err(|shape| CallError::program(format!("{name} has shape {shape:?}, must have rank 4")))
        };
        let blocks_per_sample = match self.block_tables.map(|tables| tables.shape()).transpose()?.as_deref() {
            None => None,
            Some(&[_, blocks]) => Some(blocks),
            Some(_) => return Err(CallError::program("block_tables must have rank 2")),
        };
        if self.key.element != self.value.element {
            return Err(CallError::program("k and v differ in type"));
        }
        if let Some(mask) = self.mask
            && ![PRED, self.query.element].contains(&mask.element)
        {
            return Err(mask.type_error("mask", "booleans or numbers of the type of q"));
        }
        let window = call.integer("window")?;
        Ok(AttentionForm {
            element: element_type(self.query.element)?,
            cache_element: element_type(self.key.element)?,
            query: four(&self.query, "q")?,
            key: four(&self.key, "k")?,
            value: four(&self.value, "v")?,
            mask: self.mask.map(|mask| mask.shape()).transpose()?,
            has_sinks: self.sink.is_some(),
            blocks_per_sample,
            is_causal: call.flag("causal")?,
            // 0 means no window.
            window: usize::try_from(window).ok().filter(|window| *window > 0),
            scale: call.optional_float("scale")?,
            softcap: call.optional_float("softcap")?.unwrap_or(0.0),
            mode: call.text("mode")?.parse::<Mode>()?,
            layout: {
                let name = call.text("layout")?;
                let layout = AttentionLayout::named(name);
                layout.ok_or_else(|| CallError::program(format!("there is no layout {name}")))?
            },
        })
    }
}

/// Attention that a thread has prepared.
struct Kept {
    attention: Prepared,
    /// The working memory for a number of threads, while no call uses it.
    scratch: Cell<Option<(usize, Scratch)>>,
}

thread_local! {
    static LAST: RefCell<Recent<AttentionForm, Kept>> = const { RefCell::new(Recent::new()) };
}

/// Returns what an earlier call of this thread has prepared, or prepares it.
fn prepared(form: AttentionForm) -> Result<Rc<Kept>, CallError> {
    LAST.with_borrow_mut(|last| {
        if let Some(kept) = last.find(|known| *known == form) {
            return Ok(kept);
        }
        let attention = form.prepare()?;
        Ok(last.keep(form, Kept { attention, scratch: Cell::new(None) }))
    })
}

fn run_cache<T: Float, C: CacheElement>(
    call: &Call<'_>,
    operands: &Operands<'_>,
    output: Tensor<'_>,
    attention: &Kept,
) -> Result<(), CallError> {
    // SAFETY: `Operands::form` and `run` have read the types of these four, so the elements are `T` and `C`.
    let query = unsafe { elements::<T>(&operands.query) }?;
    // SAFETY: As above.
    let key = unsafe { elements::<C>(&operands.key) }?;
    // SAFETY: As above. The type of `v` is that of `k`.
    let value = unsafe { elements::<C>(&operands.value) }?;
    let lengths = numbers(&operands.lengths, "lengths")?;
    let starts = operands.starts.map(|starts| numbers(&starts, "starts")).transpose()?;
    let mask = match operands.mask {
        None => None,
        // SAFETY: A bool is one byte (F1), which is read as an integer.
        Some(mask) if mask.element == PRED => Some(Mask::Bool(unsafe { elements::<u8>(&mask) }?)),
        // SAFETY: `Operands::form` has checked that it has the type of the queries.
        Some(mask) => Some(Mask::Float(unsafe { elements::<T>(&mask) }?)),
    };
    let sinks = match operands.sink {
        None => None,
        // SAFETY: The type is that of the queries.
        Some(sink) if sink.element == operands.query.element => Some(unsafe { elements::<T>(&sink) }?),
        Some(sink) => return Err(sink.type_error("sink", "the type of q")),
    };
    let block_table = match operands.block_tables {
        None => None,
        // SAFETY: The elements are int32.
        Some(tables) if tables.element == S32 => Some(unsafe { elements::<i32>(&tables) }?),
        Some(tables) => return Err(tables.type_error("block_tables", "int32")),
    };
    let inputs = Inputs {
        mask,
        sinks,
        scales: scales(operands)?,
        starts: starts.as_deref(),
        block_table,
        valid: Valid::Lengths(&lengths),
        ..Inputs::new(query, key, value)
    };
    let count = count(&output)?;
    let output: &mut [MaybeUninit<T>] = if count == 0 {
        &mut []
    } else {
        // SAFETY: The memory has this shape and type, and is aligned. It is the result, which is no alias of an
        // argument, so nothing else uses it (F3).
        unsafe { slice::from_raw_parts_mut(output.data.cast(), count) }
    };
    let pool = Pool::new(call.frame);
    let threads = pool.threads();
    let kept = attention.scratch.take().filter(|(made_for, _)| *made_for == threads);
    let mut scratch = kept.map_or_else(|| attention.attention.scratch(threads), |(_, scratch)| scratch);
    let result = attention.attention.run(&inputs, &mut Outputs::uninit(output), &mut scratch, Some(&pool));
    attention.scratch.set(Some((threads, scratch)));
    Ok(result?)
}

fn scales<'f>(operands: &Operands<'f>) -> Result<Option<Scales<'f>>, CallError> {
    let (Some(k_scale), Some(v_scale)) = (operands.k_scale, operands.v_scale) else {
        if operands.k_scale.is_some() || operands.v_scale.is_some() {
            return Err(CallError::program("k_scale and v_scale must be used together"));
        }
        return Ok(None);
    };
    for (name, scale) in [("k_scale", k_scale), ("v_scale", v_scale)] {
        if scale.element != F32 {
            return Err(scale.type_error(name, "float32"));
        }
    }
    // SAFETY: The elements are float32.
    let key = unsafe { elements::<f32>(&k_scale) }?;
    // SAFETY: As above.
    let value = unsafe { elements::<f32>(&v_scale) }?;
    Ok(Some(if k_scale.dims.len() == 2 {
        Scales::Channels { key, value }
    } else {
        Scales::Rows { key, value }
    }))
}

/// Returns the numbers of each sample.
fn numbers(tensor: &Tensor<'_>, name: &str) -> Result<Vec<i64>, CallError> {
    tensor.count(name)?;
    match tensor.element {
        // SAFETY: The elements are int32.
        S32 => Ok(unsafe { elements::<i32>(tensor) }?.iter().map(|&number| number.into()).collect()),
        // SAFETY: The elements are int64.
        S64 => Ok(unsafe { elements::<i64>(tensor) }?.to_vec()),
        _ => Err(tensor.type_error(name, "int32 or int64")),
    }
}

/// Returns the elements of a tensor.
///
/// # Safety
/// The elements have the type `T`, or that of integers of the same width.
unsafe fn elements<'f, T>(tensor: &Tensor<'f>) -> Result<&'f [T], CallError> {
    // SAFETY: The memory has this shape, and is aligned and initialised (F3). The type is the caller's promise.
    Ok(unsafe { list(tensor.data.cast::<T>(), count(tensor)?) })
}

/// Returns the number of elements of a tensor.
fn count(tensor: &Tensor<'_>) -> Result<usize, CallError> {
    let shape = tensor.shape()?;
    let count = if shape.contains(&0) {
        Some(0)
    } else {
        shape.iter().try_fold(1_usize, |count, &size| count.checked_mul(size))
    };
    count.ok_or_else(|| CallError::program("a tensor is larger than the address space"))
}

#[cfg(test)]
mod tests {
    use core::ptr::null_mut;

    use crate::sys::tests::{frame, table};
    use crate::sys::{NumThreadsArgs, ScheduleArgs, XlaError};

    unsafe extern "C" fn schedule(_: *mut ScheduleArgs) -> *mut XlaError {
        null_mut()
    }

    unsafe extern "C" fn num_threads(_: *mut NumThreadsArgs) -> *mut XlaError {
        null_mut()
    }

    #[test]
    fn calls_without_arguments_and_calls_on_a_gpu_are_errors() {
        let table = table(schedule, num_threads);
        for handler in [crate::attention, crate::attention_cuda] {
            let mut frame = frame(&table);
            // SAFETY: The frame is one of this version, and leads to a table that is valid.
            let error = unsafe { handler(&raw mut frame) };
            assert!(!error.is_null());
        }
    }
}
