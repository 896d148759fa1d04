//! The way from two tensors to a write: prepared, checked against the runtime's memory, planned, executed.
//!
//! Operators get no further than [`Checked`], which alone writes: none of them can forget a check.

use core::ops::Deref;
use core::ptr;

use kvscatter::spec::{ascend, tensorrt};
use kvscatter::{ElementType, Error, Geometry, Prepared, RawBuffer, WritePlan};

use crate::context::{Context, Tensor};
use crate::recent::Recent;
use crate::status::Failure;

/// The writes of one operator.
pub(crate) struct Writes<P> {
    recent: Recent<P>,
}

impl<P: Shaped> Writes<P> {
    pub(crate) fn new() -> Self {
        Self { recent: Recent::new() }
    }

    /// Calls `run` with the write that is prepared for these tensors. Where none of the recent ones is, `prepare`
    /// makes it of their element type and the sizes of both.
    ///
    /// # Errors
    /// Those of `prepare` and `run`; [`Error::BufferLength`] if the runtime's memory for such tensors is not what the
    /// core makes of their type and shapes.
    pub(crate) fn with<'a>(
        &self,
        context: &'a Context<'_>,
        cache: &'a Tensor<'_>,
        update: &'a Tensor<'_>,
        prepare: impl FnOnce(ElementType, &[usize], &[usize]) -> Result<P, Error>,
        run: impl FnOnce(Checked<'_, P>) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let prepare = || {
            let prepared = prepare(common_element(cache, update)?, &cache.sizes()?, &update.sizes()?)?;
            check_memory(context, prepared.geometry(), cache, update)?;
            Ok(prepared)
        };
        self.recent.with(cache, update, prepare, |prepared| run(Checked { prepared, context, cache, update }))
    }
}

/// A write that is prepared for the type and the shapes of two tensors, whose memory is as large as it takes them for.
pub(crate) struct Checked<'a, P> {
    prepared: &'a P,
    context: &'a Context<'a>,
    cache: &'a Tensor<'a>,
    update: &'a Tensor<'a>,
}

impl<'a, P: Shaped> Checked<'a, P> {
    /// Executes a plan of this write: in place if the runtime has given the output the memory of the cache, otherwise
    /// in one pass over both. The output is asked for only now, after every index has been checked.
    ///
    /// # Errors
    /// What the runtime says, and what the core refuses.
    pub(crate) fn write(&self, plan: &WritePlan<'_>) -> Result<(), Failure> {
        let Self { context, cache, update, .. } = *self;
        let geometry = self.prepared.geometry();
        assert!(ptr::eq(plan.geometry(), geometry), "the plan of another write");
        let present = context.output(cache.shape)?;
        let buffer = |ptr: *mut u8, len: Option<usize>| RawBuffer { ptr, len: len.unwrap_or(0) };
        let update = buffer(update.data, geometry.update_bytes());
        let threads = context.threads();
        let plan = plan.with_executor(&threads);
        if present == cache.data {
            let cache = buffer(present, geometry.cache_bytes());
            // SAFETY: the runtime lends the memory of its tensors during the call, as much as `check_memory` has found
            // for tensors of this type and these shapes, for reads, and that of an output for writes. By one address
            // for input and output it says that this node is the last to read the input. What else a caller may have
            // bound to the same memory, the update and the positions, the core compares and refuses.
            unsafe { plan.write_raw(cache, update) }?;
        } else {
            let past = buffer(cache.data, geometry.cache_bytes());
            let present = buffer(present, geometry.present_bytes());
            // SAFETY: as above; the output has the type and the shape of the cache.
            unsafe { plan.into_present_raw(past, update, present) }?;
        }
        Ok(())
    }
}

impl<P> Deref for Checked<'_, P> {
    type Target = P;

    fn deref(&self) -> &P {
        self.prepared
    }
}

/// What is prepared for two shapes.
pub(crate) trait Shaped {
    /// The geometry of every plan that it makes.
    fn geometry(&self) -> &Geometry;
}

impl Shaped for Prepared {
    fn geometry(&self) -> &Geometry {
        self.geometry()
    }
}

impl Shaped for tensorrt::PreparedPacked {
    fn geometry(&self) -> &Geometry {
        self.geometry()
    }
}

impl Shaped for ascend::Prepared {
    fn geometry(&self) -> &Geometry {
        self.geometry()
    }
}

/// The one type that both have. The runtime sees to that where a type is declared for both.
fn common_element(cache: &Tensor<'_>, update: &Tensor<'_>) -> Result<ElementType, Failure> {
    let (of_cache, element) = (cache.element()?, update.element()?);
    if of_cache != element {
        return Err(Error::ElementTypeMismatch { cache: of_cache, argument: update.argument, element }.into());
    }
    Ok(element)
}

/// The runtime and the core must have one idea of the tensors before anything is moved by it.
fn check_memory(
    context: &Context<'_>,
    geometry: &Geometry,
    cache: &Tensor<'_>,
    update: &Tensor<'_>,
) -> Result<(), Failure> {
    for (tensor, want) in [(cache, geometry.cache_bytes()), (update, geometry.update_bytes())] {
        let (argument, want, got) = (tensor.argument, want.unwrap_or(0), context.bytes(tensor)?);
        if got != want {
            return Err(Error::BufferLength { argument, buffer: 0, got, want }.into());
        }
    }
    Ok(())
}
