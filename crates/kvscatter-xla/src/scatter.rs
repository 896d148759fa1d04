//! Executes `TensorScatter`.

use core::slice;

use kvscatter::spec::onnx::TensorScatter;
use kvscatter::{Integers, OutOfRange, RawBuffer};

use crate::call::{Call, PRED, S32, S64, Tensor, U32, U64, element_type};
use crate::prepared::{Form, prepared};
use crate::status::Failure;
use crate::threads::Pool;

/// Checks a call and executes it.
///
/// # Errors
/// Returns the errors of the core, and an error if the program does not make the call as the crate's documentation
/// describes it. Nothing has been written then.
pub(crate) fn run(call: &Call<'_>) -> Result<(), Failure> {
    let (arguments, results) = (call.arguments(), call.results());
    let (Some(past), Some(update), Some(starts), lengths, None) =
        (arguments.get(0)?, arguments.get(1)?, arguments.get(2)?, arguments.get(3)?, arguments.get(4)?)
    else {
        return Err(Failure::program(format!("{} arguments, must be 3 or 4", arguments.len())));
    };
    let (Some(present), skipped, None) = (results.get(0)?, results.get(1)?, results.get(2)?) else {
        return Err(Failure::program(format!("{} results, must be 1 or 2", results.len())));
    };
    if update.element != past.element || present.element != past.element || present.dims != past.dims {
        return Err(Failure::program(
            "past, update and present differ in type, or past and present in shape",
        ));
    }
    if skipped.is_some_and(|it| it.element != PRED || Some(it.dims) != past.dims.get(..1)) {
        return Err(Failure::program("skipped is not bool [batch]"));
    }
    let form = Form {
        element: past.element,
        past: past.dims,
        update: update.dims,
        axis: call.integer("axis")?,
        mode: call.text("mode")?,
        skips: skipped.is_some(),
    };
    let write = prepared(form, || {
        let out_of_range = if form.skips { OutOfRange::SkipSample } else { OutOfRange::Error };
        let operator =
            TensorScatter::new().axis(form.axis).mode(form.mode.parse()?).out_of_range(out_of_range);
        Ok(operator.prepare(element_type(form.element)?, &past.shape()?, &update.shape()?)?)
    })?;
    let lengths = lengths.map(|lengths| integers(&lengths, "lengths")).transpose()?;
    let pool = Pool::new(call.frame);
    let plan = write.plan_with_lengths(integers(&starts, "write_indices")?, lengths)?.with_executor(&pool);

    let geometry = plan.geometry();
    let buffer = |tensor: Tensor<'_>, bytes: Option<usize>| RawBuffer {
        ptr: tensor.data,
        len: bytes.unwrap_or_default(),
    };
    let (cache, rows) = (buffer(past, geometry.cache_bytes()), buffer(update, geometry.update_bytes()));
    let _written = if present.data == past.data {
        // SAFETY: The memory of `past` and `update` has their shapes and is initialised, and as a result that of
        // `past` is used by nothing else (F3).
        unsafe { plan.write_raw(cache, rows) }?
    } else {
        let present = buffer(present, geometry.present_bytes());
        // SAFETY: The memory of all three has their shapes, and that of the arguments is initialised. Nothing else
        // uses the memory of the result (F3).
        unsafe { plan.write_present_raw(cache, rows, present) }?
    };
    if let Some(skipped) = skipped {
        for sample in 0..plan.batch() {
            // SAFETY: The result has a byte for each sample (checked above), which nothing else uses (F3).
            unsafe { skipped.data.wrapping_add(sample).write(plan.skips(sample).into()) };
        }
    }
    Ok(())
}

/// Returns the elements of a list of integers.
fn integers<'t>(tensor: &Tensor<'t>, name: &str) -> Result<Integers<'t>, Failure> {
    let &[count] = tensor.dims else {
        return Err(Failure::program(format!("{name} has shape {:?}, must be [batch]", tensor.dims)));
    };
    let count = usize::try_from(count).unwrap_or_default();
    if count == 0 {
        return Ok(Integers::I64(&[]));
    }
    Ok(match tensor.element {
        // SAFETY: The memory has this shape and type, and is aligned and initialised (F3).
        S32 => Integers::I32(unsafe { slice::from_raw_parts(tensor.data.cast(), count) }),
        // SAFETY: As above.
        S64 => Integers::I64(unsafe { slice::from_raw_parts(tensor.data.cast(), count) }),
        // SAFETY: As above.
        U32 => Integers::U32(unsafe { slice::from_raw_parts(tensor.data.cast(), count) }),
        // SAFETY: As above.
        U64 => Integers::U64(unsafe { slice::from_raw_parts(tensor.data.cast(), count) }),
        other => {
            let message = format!("{name} has XLA type {other}, must have integers of 32 or 64 bits");
            return Err(Failure::program(message));
        }
    })
}
