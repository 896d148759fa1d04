//! Stores the new rows of a cache: with the type that they have, cast to a half type, or as codes with scales.

use half::{bf16, f16};
use kvscatter::{Argument, ElementType, Layout, Prepared, RawBuffer, WritePlan, quantize};
use kvscatter_attention::Float;

use super::arrange::Arrangement;
use super::call::{Cache, LayerCall};
use super::heads::Heads;
use super::{Storage, Write};
use crate::context::Context;
use crate::input::Role;
use crate::status::CallError;
use crate::workspace::elements_mut;
use crate::write::{CheckedWrite, RequestedWrite, check_memory, common_element};

/// The writes of one cache that are prepared for its shapes.
pub(super) struct PreparedRows {
    pub(super) arrangement: Arrangement,
    write: Prepared,
    /// The type to which rows are converted, if they are.
    converted: Option<ElementType>,
    /// The write of the scales, if rows are stored as codes.
    scales: Option<Prepared>,
}

impl PreparedRows {
    pub(super) fn new(
        write: &Write,
        context: &Context<'_>,
        call: &LayerCall<'_>,
        cache: &Cache<'_>,
    ) -> Result<Self, CallError> {
        let rows = call.heads(&write.rows, &cache.rows)?;
        let prepare = |past: &crate::input::InputTensor<'_>, element, size| {
            let Heads { batch, heads, tokens, is_by_token, .. } = rows;
            let shape = [batch, heads, tokens, size];
            let strides = [tokens * heads * size, size, heads * size, 1].map(|stride| stride as isize);
            let layout = match is_by_token && tokens > 1 {
                true => Layout::strided(&shape, &strides),
                false => Layout::dense(&shape),
            };
            let prepared = write.operator.prepare(element, &past.sizes()?, layout)?;
            check_memory(context, past, prepared.geometry().cache_bytes())?;
            Ok::<_, CallError>(prepared)
        };
        let element = cache.past.element()?;
        let (element, converted) = match write.storage {
            Storage::Same => (common_element(&cache.past, &cache.rows)?, None),
            Storage::Half(_) | Storage::Codes { .. } => (element, Some(element)),
        };
        let scales = match &cache.scales {
            Some(past) => {
                past.check_element(const { &[ElementType::Float32] })?;
                let (slots, expected) = (past.sizes()?.get(2).copied(), cache.past.sizes()?.get(2).copied());
                if slots != expected {
                    let [slots, expected] = [slots, expected].map(Option::unwrap_or_default);
                    return Err(Argument::PastCache
                        .failure(format!("has {slots} slots of scales and {expected} of codes")));
                }
                Some(prepare(past, ElementType::Float32, 1)?)
            }
            None => None,
        };
        let arrangement = Arrangement::new(&write.rows, rows, rows.is_by_token);
        Ok(Self { arrangement, write: prepare(&cache.past, element, rows.size)?, converted, scales })
    }

    /// Returns the number of elements of memory that [`new_rows`](Self::new_rows) needs for rows, for what they are
    /// converted to, and for scales.
    pub(super) fn memory(&self) -> [usize; 3] {
        let Heads { batch, heads, tokens, .. } = self.arrangement.rows;
        let converted = if self.converted.is_some() { self.arrangement.rows.len() } else { 0 };
        let scales = if self.scales.is_some() { batch * heads * tokens } else { 0 };
        [self.arrangement.memory(), converted, scales]
    }

    /// Returns what a call writes for the new rows `given`. Returns an error if an input does not fit.
    pub(super) fn new_rows<'m, T: Float>(
        &self,
        call: &LayerCall<'_>,
        of: &Write,
        given: &'m [T],
        [rows, converted, scales]: [&'m mut [u64]; 3],
    ) -> Result<NewRows<'m>, CallError> {
        let given = self.arrangement.apply(call, &of.rows, given, rows)?;
        let Some(element) = self.converted else {
            return Ok(NewRows { rows: bytemuck::cast_slice(given), scales: &[] });
        };
        // `find` takes such a write only if the rows are float32.
        let given = bytemuck::cast_slice(given);
        if let Some(size) = self.scales.as_ref().map(|_| self.arrangement.rows.size) {
            let codes = elements_mut::<i8>(converted, self.arrangement.rows.len());
            let of_rows = elements_mut::<f32>(scales, self.memory()[2]);
            let rows = given.chunks_exact(size.max(1)).zip(codes.chunks_exact_mut(size.max(1)));
            for ((row, codes), scale) in rows.zip(&mut *of_rows) {
                *scale = quantize::quantize_row(row, codes);
            }
            return Ok(NewRows { rows: bytemuck::cast_slice(codes), scales: bytemuck::cast_slice(of_rows) });
        }
        Ok(NewRows { rows: narrowed(element, given, converted), scales: &[] })
    }

    /// Plans the writes of rows, and requests their outputs.
    pub(super) fn request<'a>(
        &'a self,
        context: &'a Context<'a>,
        of: &Write,
        cache: &'a Cache<'a>,
        new: &NewRows<'a>,
    ) -> Result<RequestedRows<'a>, CallError> {
        let indices = cache.indices.as_deref();
        let request = |prepared: &'a Prepared, past, rows, present| {
            let plan = prepared.plan_with_lengths(indices, None::<&[i64]>)?;
            let write = CheckedWrite::new(prepared, context, past, rows, present).request()?;
            Ok::<_, CallError>((plan, write))
        };
        let scales = match (&self.scales, &cache.scales, of.storage) {
            (Some(prepared), Some(past), Storage::Codes { present, .. }) => {
                Some(request(prepared, past, new.scales, present)?)
            }
            _ => None,
        };
        Ok(RequestedRows { rows: request(&self.write, &cache.past, new.rows, of.present)?, scales })
    }
}

/// Converts rows of float32 to a half type.
fn narrowed<'m>(element: ElementType, rows: &[f32], memory: &'m mut [u64]) -> &'m [u8] {
    fn as_type<'m, C: Float>(rows: &[f32], memory: &'m mut [u64]) -> &'m [u8] {
        let to = elements_mut::<C>(memory, rows.len());
        C::narrow(rows, to);
        bytemuck::cast_slice(to)
    }
    match element {
        ElementType::Float16 => as_type::<f16>(rows, memory),
        _ => as_type::<bf16>(rows, memory),
    }
}

/// The bytes of the rows that a call writes to a cache, and of their scales.
pub(super) struct NewRows<'m> {
    rows: &'m [u8],
    scales: &'m [u8],
}

/// The writes of one cache, whose outputs are requested.
pub(super) struct RequestedRows<'a> {
    rows: (WritePlan<'a>, RequestedWrite<'a>),
    scales: Option<(WritePlan<'a>, RequestedWrite<'a>)>,
}

impl<'a> RequestedRows<'a> {
    /// Returns each write, with the numbers of its input and its output.
    pub(super) fn writes(
        &self,
        of: &Write,
    ) -> impl Iterator<Item = (usize, usize, &RequestedWrite<'a>)> + Clone {
        let scales = match of.storage {
            Storage::Codes { past, present } => Some((past, present)),
            Storage::Same | Storage::Half(_) => None,
        };
        let scales = scales.zip(self.scales.as_ref());
        let scales = scales.map(|((past, present), (_, write))| (past, present, write));
        [(of.past, of.present, &self.rows.1)].into_iter().chain(scales)
    }

    /// Executes the writes, and returns the memory of the cache and that of its scales, which may be none. Returns the
    /// errors of [`RequestedWrite::execute`].
    ///
    /// # Safety
    /// Nothing else borrows memory that the outputs share.
    pub(super) unsafe fn execute(self) -> Result<[RawBuffer; 2], CallError> {
        let (plan, write) = self.rows;
        // SAFETY: The contract is the same.
        let rows = unsafe { write.execute(&plan) }?;
        let scales = match self.scales {
            // SAFETY: The contract is the same.
            Some((plan, write)) => unsafe { write.execute(&plan) }?,
            None => RawBuffer { ptr: core::ptr::null_mut(), len: 0 },
        };
        Ok([rows, scales])
    }
}
