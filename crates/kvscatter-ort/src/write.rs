//! Makes a write from two tensors in four steps: prepare, check the runtime's memory, plan, execute.
//!
//! Operators get a [`CheckedWrite`], and only a checked write can execute a plan. An operator therefore
//! cannot omit a check.
//!
//! The conditions R1 to R6 that comments cite are defined in the crate's documentation.

use core::ops::Deref;
use core::ptr;

use kvscatter::error::LengthUnit;
use kvscatter::spec::same_element_type;
use kvscatter::{ElementType, Error, Geometry, Prepared, RawBuffer, WritePlan};

use crate::context::{Context, InputTensor};
use crate::recent::RecentlyPrepared;
use crate::status::Failure;

/// The recent writes of one operator.
pub(crate) struct PreparedWrites {
    recent: RecentlyPrepared<Prepared>,
}

impl PreparedWrites {
    pub(crate) fn new() -> Self {
        Self { recent: RecentlyPrepared::new() }
    }

    /// Calls `run` with the write that is prepared for these tensors. If none of the recent writes is for
    /// them, `prepare` makes a new one from their element type and the sizes of both.
    ///
    /// # Errors
    /// Returns an error if `prepare` or `run` does. Also returns [`Error::BufferLength`] if the runtime's
    /// memory for a tensor has a size other than the core computes from its type and shape.
    pub(crate) fn with<'a>(
        &self,
        context: &'a Context<'_>,
        cache: &'a InputTensor<'_>,
        update: &'a InputTensor<'_>,
        prepare: impl FnOnce(ElementType, &[usize], &[usize]) -> Result<Prepared, Error>,
        run: impl FnOnce(CheckedWrite<'_>) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let prepare = || {
            let prepared = prepare(common_element(cache, update)?, &cache.sizes()?, &update.sizes()?)?;
            check_memory(context, prepared.geometry(), cache, update)?;
            Ok(prepared)
        };
        let tensors = [cache.signature(), update.signature()].into_iter();
        self.recent.with(tensors, prepare, |prepared| run(CheckedWrite { prepared, context, cache, update }))
    }
}

/// A write that is prepared for the type and the shapes of two tensors, and whose buffer lengths the runtime
/// has confirmed.
pub(crate) struct CheckedWrite<'a> {
    prepared: &'a Prepared,
    context: &'a Context<'a>,
    cache: &'a InputTensor<'a>,
    update: &'a InputTensor<'a>,
}

impl CheckedWrite<'_> {
    /// Executes a plan of this write. If the output has the memory of the cache, this writes in place, and
    /// otherwise in one pass over both. The output is requested here, after every index has been checked.
    ///
    /// # Errors
    /// Returns the status of a function of the runtime that fails, or an error of the core.
    pub(crate) fn write(&self, plan: &WritePlan<'_>) -> Result<(), Failure> {
        let Self { context, cache, update, .. } = *self;
        let geometry = self.prepared.geometry();
        assert!(ptr::eq(plan.geometry(), geometry), "the plan of another write");
        let present = context.output(0, cache.shape)?;
        let buffer = |ptr: *mut u8, len: Option<usize>| RawBuffer { ptr, len: len.unwrap_or(0) };
        let update = buffer(update.data, geometry.update_bytes());
        let threads = context.threads();
        let plan = plan.with_executor(&threads);
        // No operator here skips samples, so the number of skipped ones is always 0.
        if present == cache.data {
            let cache = buffer(present, geometry.cache_bytes());
            // SAFETY: The input tensors are initialised and valid until the call returns, and the output is
            // valid for writes (R2). `check_memory` compared the lengths of the buffers. Input and output
            // have the same address, so the runtime reuses the input's buffer after its last reader, or the
            // program has bound both to it. The core rejects overlaps with the update and with positions,
            // which a program may have bound to the same memory.
            let _ = unsafe { plan.write_raw(cache, update) }?;
        } else {
            let past = buffer(cache.data, geometry.cache_bytes());
            let present = buffer(present, geometry.present_bytes());
            // SAFETY: The inputs are initialised and valid until the call returns, and the output is valid
            // for writes (R2). `check_memory` compared the lengths of the buffers, and the output has the
            // type and the shape of the cache. The core rejects overlaps with the inputs.
            let _ = unsafe { plan.write_present_raw(past, update, present) }?;
        }
        Ok(())
    }
}

impl Deref for CheckedWrite<'_> {
    type Target = Prepared;

    fn deref(&self) -> &Prepared {
        self.prepared
    }
}

/// Returns the element type of both tensors. The runtime has checked that they agree if the model declares
/// both types.
fn common_element(cache: &InputTensor<'_>, update: &InputTensor<'_>) -> Result<ElementType, Failure> {
    Ok(same_element_type(cache.element()?, update.role, update.element()?)?)
}

/// Checks that the runtime and the core compute the same size for the memory of each tensor.
fn check_memory(
    context: &Context<'_>,
    geometry: &Geometry,
    cache: &InputTensor<'_>,
    update: &InputTensor<'_>,
) -> Result<(), Failure> {
    for (tensor, expected) in [(cache, geometry.cache_bytes()), (update, geometry.update_bytes())] {
        let (argument, expected, got) = (tensor.role, expected.unwrap_or(0), context.bytes(tensor)?);
        if got != expected {
            let unit = LengthUnit::Bytes;
            return Err(Error::BufferLength { argument, pair: 0, got, expected, unit, exact: true }.into());
        }
    }
    Ok(())
}
