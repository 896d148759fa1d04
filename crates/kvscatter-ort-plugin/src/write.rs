//! Makes a write from two tensors in five steps: prepare, check the runtime's memory, plan, request the output and
//! execute.
//!
//! Operators make a [`CheckedWrite`], and only a checked write can execute a plan. An operator therefore
//! cannot omit a check.

use core::ptr;

use kvscatter::error::LengthUnit;
use kvscatter::spec::same_element_type;
use kvscatter::{Argument, ElementType, Error, Prepared, RawBuffer, WritePlan};

use crate::context::Context;
use crate::input::InputTensor;
use crate::recent::{Recent, RecentlyPrepared};
use crate::status::CallError;

/// The recent writes of one operator.
pub(crate) struct PreparedWrites {
    recent: RecentlyPrepared<Prepared>,
}

impl PreparedWrites {
    pub(crate) fn new() -> Self {
        Self { recent: RecentlyPrepared::new() }
    }

    /// Returns the write that is prepared for these tensors. If none of the recent writes is for them, `prepare` makes
    /// a new one from their element type and the sizes of both. Returns an error if `prepare` does. Also returns
    /// [`Error::BufferLength`] if the runtime's memory for a tensor has a size other than the core computes from its
    /// type and shape.
    pub(crate) fn get(
        &self,
        context: &Context<'_>,
        cache: &InputTensor<'_>,
        update: &InputTensor<'_>,
        prepare: impl FnOnce(ElementType, &[usize], &[usize]) -> Result<Prepared, Error>,
    ) -> Result<Recent<'_, Prepared>, CallError> {
        self.recent.get([cache.signature(), update.signature()].into_iter(), || {
            let prepared = prepare(common_element(cache, update)?, &cache.sizes()?, &update.sizes()?)?;
            check_memory(context, cache, prepared.geometry().cache_bytes())?;
            check_memory(context, update, prepared.geometry().update_bytes())?;
            Ok(prepared)
        })
    }
}

/// A write of an update to a cache of a call. No write is executed before the lengths of all its buffers are compared
/// with those that it was prepared for.
#[derive(Clone, Copy)]
pub(crate) struct CheckedWrite<'a> {
    prepared: &'a Prepared,
    context: &'a Context<'a>,
    cache: &'a InputTensor<'a>,
    update: &'a [u8],
    output: usize,
}

impl<'a> CheckedWrite<'a> {
    /// Creates a write. Output `output` of the node is the cache after the write.
    pub(crate) fn new(
        prepared: &'a Prepared,
        context: &'a Context<'a>,
        cache: &'a InputTensor<'a>,
        update: &'a [u8],
        output: usize,
    ) -> Self {
        Self { prepared, context, cache, update, output }
    }

    /// Requests the output and executes a plan of this write. The caller has checked every index. Returns the errors of
    /// [`request`](Self::request) and [`execute`](RequestedWrite::execute). Nothing has been written then.
    pub(crate) fn write(&self, plan: &WritePlan<'_>) -> Result<(), CallError> {
        let requested = self.request()?;
        // SAFETY: An operator borrows the update and the lists of the plan, which the core compares with the output. It
        // borrows no other input.
        unsafe { requested.execute(plan) }.map(drop)
    }

    /// Requests the output. Returns the status of a function of the runtime that fails, or [`Error::BufferLength`] if a
    /// buffer does not have the length that the write was prepared for.
    pub(crate) fn request(&self) -> Result<RequestedWrite<'a>, CallError> {
        let geometry = self.prepared.geometry();
        let past = self.cache.memory()?;
        check_len(self.cache.role, past.len, geometry.cache_bytes())?;
        check_len(Argument::Update, self.update.len(), geometry.update_bytes())?;
        let present = self.context.output(self.output, self.cache.shape())?;
        check_len(Argument::PresentCache, present.len, geometry.present_bytes())?;
        Ok(RequestedWrite { write: *self, past, present })
    }
}

/// A write whose output is requested.
pub(crate) struct RequestedWrite<'a> {
    write: CheckedWrite<'a>,
    past: RawBuffer,
    present: RawBuffer,
}

impl RequestedWrite<'_> {
    /// Returns the memory of the output, which has the type and the shape of the cache.
    pub(crate) fn present(&self) -> RawBuffer {
        self.present
    }

    /// Returns whether the output has the memory of the cache.
    pub(crate) fn is_in_place(&self) -> bool {
        self.present == self.past
    }

    /// Executes a plan of this write. If the output has the memory of the cache, this writes in place, and otherwise in
    /// one pass over both. Returns the memory of the output. Returns [`Error::Overlap`] if the output shares memory
    /// with the update or the indices, or with a part of the cache. Nothing has been written then.
    ///
    /// # Safety
    /// Nothing else borrows memory that the output shares.
    pub(crate) unsafe fn execute(self, plan: &WritePlan<'_>) -> Result<RawBuffer, CallError> {
        let is_in_place = self.is_in_place();
        let Self { write: CheckedWrite { prepared, context, update, .. }, past, present } = self;
        assert!(ptr::eq(plan.geometry(), prepared.geometry()), "the plan of another write");
        let threads = context.threads();
        let plan = plan.with_executor(&threads);
        let update = RawBuffer { ptr: update.as_ptr().cast_mut(), len: update.len() };
        // No operator here skips samples, so the number of skipped ones is always 0.
        if is_in_place {
            // SAFETY: The cache is initialised and valid until the call returns, and the output is valid for writes
            // (R2). The lengths are those that follow from the type and the shape of the input and that the runtime
            // gives for the output. Both are one buffer, so the runtime reuses the input's buffer after its last
            // reader, or the program has bound both to it. The core rejects overlaps with the update and with
            // positions, which a program may have bound to the same memory. Nothing else uses it, by this function's
            // contract.
            let _ = unsafe { plan.write_raw(present, update) }?;
        } else {
            // SAFETY: The cache is initialised and valid until the call returns, and the output is valid for writes
            // (R2). The lengths are as above. The core rejects overlaps of the output with the inputs.
            let _ = unsafe { plan.write_present_raw(past, update, present) }?;
        }
        Ok(present)
    }
}

/// Returns the element type of both tensors. The runtime has checked that they agree if the model declares
/// both types.
pub(crate) fn common_element(
    cache: &InputTensor<'_>,
    update: &InputTensor<'_>,
) -> Result<ElementType, CallError> {
    Ok(same_element_type(cache.element()?, update.role, update.element()?)?)
}

/// Checks that the runtime and the core compute the same size for the memory of a tensor. Returns
/// [`Error::BufferLength`] if the sizes differ.
pub(crate) fn check_memory(
    context: &Context<'_>,
    tensor: &InputTensor<'_>,
    expected: Option<usize>,
) -> Result<(), CallError> {
    check_len(tensor.role, context.bytes(tensor)?, expected)
}

fn check_len(argument: Argument, got: usize, expected: Option<usize>) -> Result<(), CallError> {
    let expected = expected.unwrap_or(0);
    if got == expected {
        return Ok(());
    }
    let unit = LengthUnit::Bytes;
    Err(Error::BufferLength { argument, pair: 0, got, expected, unit, exact: true }.into())
}
