//! The handle of a prepared write.
//!
//! `lib.rs` defines C4.

use std::ffi::CStr;

use kvscatter::spec::ascend::KvCacheOperationCall;
use kvscatter::spec::tensorrt::PackedCall;
use kvscatter::{Call, Convention, Geometry, Integers, Prepared, WritePlan};

use crate::boundary::reference;
use crate::call::{Arguments, as_i32};
use crate::call_error::{CallError, CallErrorKind};
use crate::tensor::{Description, Operand};

/// A write whose shapes have been checked. Create it once per shape with a prepare function, run it at every
/// step, and destroy it with `kvs_prepared_destroy`. It never changes, so any number of threads may use one
/// at the same time.
#[derive(Debug)]
pub struct kvs_prepared {
    write: Prepared,
    /// The operator's name in messages.
    operator: &'static str,
    pub(crate) cache: Operand,
    pub(crate) update: Operand,
    pub(crate) present: Operand,
}

impl kvs_prepared {
    /// Creates a handle. `present` is the specification's name for the result of the functional form.
    pub(crate) fn new(
        write: Prepared,
        operator: &'static str,
        cache: &Description,
        update: &Description,
        present: &'static CStr,
    ) -> Self {
        let geometry = write.geometry();
        let cache = Operand::new(cache, geometry.cache_offset(), geometry.cache_bytes());
        let update = Operand::new(update, geometry.update_offset(), geometry.update_bytes());
        let present = cache.dense(present, geometry.present_bytes());
        Self { write, operator, cache, update, present }
    }

    /// Returns a reference to the handle.
    ///
    /// # Safety
    /// `prepared` satisfies C4 for the lifetime `'a`.
    #[inline]
    pub(crate) unsafe fn read<'a>(prepared: *const Self) -> Result<&'a Self, CallError> {
        // SAFETY: This function's contract requires C4, so `prepared` points to the value of a box, which
        // nothing changes.
        unsafe { reference(prepared, c"prepared") }
    }

    pub(crate) fn geometry(&self) -> &Geometry {
        self.write.geometry()
    }

    /// Plans a call, and checks its indices.
    #[inline(always)]
    pub(crate) fn plan<'a>(&'a self, call: &'a Arguments<'a>) -> Result<WritePlan<'a>, CallError> {
        let plan = self.write.plan_with_lengths(self.call(call)?, call.lengths)?;
        Ok(match &call.executor {
            Some(executor) => plan.with_executor(executor),
            None => plan,
        })
    }

    /// Returns the arguments of the operator, or an error if the call gives other arguments.
    #[inline(always)]
    fn call<'a>(&self, call: &Arguments<'a>) -> Result<Call<'a>, CallError> {
        let Arguments { write_indices, slot_mapping, update_lengths, .. } = *call;
        let Arguments { layer_id, token_offset, seq_len, .. } = *call;
        match self.write.convention() {
            Convention::EndsAndRowCounts => {
                self.refuse_given([
                    (c"write_indices", write_indices),
                    (c"slot_mapping", slot_mapping),
                    (c"update_lengths", update_lengths),
                ])?;
                Ok(Call::from(KvCacheOperationCall {
                    layer_id: as_i32(layer_id, c"layer_id")?,
                    token_offset: as_i32(token_offset, c"token_offset")?,
                    seq_len: as_i32(seq_len, c"seq_len")?,
                }))
            }
            Convention::StartsAndCumulativeLengths => {
                self.refuse_given([
                    (c"slot_mapping", slot_mapping),
                    (c"layer_id", layer_id),
                    (c"token_offset", token_offset),
                    (c"seq_len", seq_len),
                ])?;
                let update_lengths = as_i32(update_lengths, c"update_lengths")?;
                Ok(Call::from(PackedCall::new(write_indices, update_lengths)))
            }
            convention @ (Convention::Starts | Convention::Slots) => {
                let (own, other) = match convention {
                    Convention::Slots => (slot_mapping, (c"write_indices", write_indices)),
                    _ => (write_indices, (c"slot_mapping", slot_mapping)),
                };
                self.refuse_given([
                    other,
                    (c"update_lengths", update_lengths),
                    (c"layer_id", layer_id),
                    (c"token_offset", token_offset),
                    (c"seq_len", seq_len),
                ])?;
                Ok(Call::from(own))
            }
        }
    }

    /// Returns an error if one of these arguments is given. The operator does not have them.
    #[inline(always)]
    fn refuse_given<const N: usize>(
        &self,
        arguments: [(&'static CStr, Option<Integers<'_>>); N],
    ) -> Result<(), CallError> {
        match arguments.into_iter().find(|(_, indices)| indices.is_some()) {
            Some((argument, _)) => {
                Err(CallErrorKind::UnexpectedArgument { argument, operator: self.operator }.into())
            }
            None => Ok(()),
        }
    }
}

/// Frees a prepared write. NULL is allowed. No other thread may still use the prepared write.
///
/// # Safety
/// `prepared` is either NULL or comes from a prepare function and has not been destroyed. No other function
/// uses it during this call or later.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvs_prepared_destroy(prepared: *mut kvs_prepared) {
    if !prepared.is_null() {
        // SAFETY: `prepared` is not NULL. This function's contract requires that it comes from a prepare
        // function, which called `Box::into_raw`, and that it is destroyed only here.
        drop(unsafe { Box::from_raw(prepared) });
    }
}
