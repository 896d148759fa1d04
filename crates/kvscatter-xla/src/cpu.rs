//! Executes a call on the CPU.

use core::slice;

use kvscatter::{Integers, RawBuffer};

use crate::call::{Call, PRED, S32, S64, Tensor, U32, U64};
use crate::scatter::Scatter;
use crate::status::CallError;
use crate::threads::Pool;

/// Checks a call and executes it.
///
/// # Errors
/// Returns the errors of the core, and an error if the program does not make the call as the crate's documentation
/// describes it. Nothing has been written then.
pub(crate) fn run(call: &Call<'_>) -> Result<(), CallError> {
    let scatter = Scatter::read(call)?;
    let batch = scatter.past.dims.get(..1).unwrap_or_default();
    scatter.check_report(scatter.skips, PRED, batch, "skipped, bool [batch], exactly if skips is true")?;
    let Scatter { past, update, starts, lengths, present, report, write, .. } = &scatter;
    let lengths = lengths.map(|lengths| integers(lengths, "lengths")).transpose()?;
    let pool = Pool::new(call.frame);
    let plan = write.plan_with_lengths(integers(*starts, "write_indices")?, lengths)?.with_executor(&pool);

    let geometry = plan.geometry();
    let buffer = |tensor: &Tensor<'_>, bytes: Option<usize>| RawBuffer {
        ptr: tensor.data,
        len: bytes.unwrap_or_default(),
    };
    let (cache, rows) = (buffer(past, geometry.cache_bytes()), buffer(update, geometry.update_bytes()));
    let _written = if scatter.is_in_place() {
        // SAFETY: The memory of `past` and `update` has their shapes and is initialised, and as a result that of
        // `past` is used by nothing else (F3).
        unsafe { plan.write_raw(cache, rows) }?
    } else {
        let present = buffer(present, geometry.present_bytes());
        // SAFETY: The memory of all three has their shapes, and that of the arguments is initialised. Nothing else
        // uses the memory of the result (F3).
        unsafe { plan.write_present_raw(cache, rows, present) }?
    };
    if let Some(skipped) = report {
        for sample in 0..plan.batch() {
            // SAFETY: The result has a byte for each sample (checked above), which nothing else uses (F3).
            unsafe { skipped.data.wrapping_add(sample).write(plan.skips(sample).into()) };
        }
    }
    Ok(())
}

/// Returns the elements of a list of integers.
fn integers<'t>(tensor: Tensor<'t>, name: &str) -> Result<Integers<'t>, CallError> {
    let count = tensor.count(name)?;
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
        _ => return Err(tensor.type_error(name, "integers of 32 or 64 bits")),
    })
}
