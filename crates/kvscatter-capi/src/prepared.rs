//! The handle of a prepared write.

use std::ffi::CStr;

use kvscatter::spec::{ascend, tensorrt};
use kvscatter::{Geometry, Prepared, WritePlan};

use crate::boundary::reference;
use crate::call::{Arguments, Indices};
use crate::failure::{Failure, Kind};
use crate::tensor::{Description, Operand};

/// A write whose shapes are checked: made once per shape by one of the prepare functions, run at every step,
/// destroyed by `kvs_prepared_destroy`. It never changes, so any number of threads may use one at once.
#[derive(Debug)]
pub struct kvs_prepared {
    write: Write,
    pub(crate) cache: Operand,
    pub(crate) update: Operand,
    pub(crate) present: Operand,
}

/// The prepared write of an operator, by the arguments that its calls take.
#[derive(Debug)]
pub(crate) enum Write {
    /// `write_indices`, for an operator of this name.
    Starts(Prepared, &'static str),
    /// `write_indices` and `update_lengths`.
    Packed(tensorrt::PreparedPacked),
    /// `layer_id`, `token_offset` and `seq_len`.
    Operation(ascend::Prepared),
}

impl kvs_prepared {
    /// `present` is the specification's name for the result of the functional form.
    pub(crate) fn new(
        write: Write,
        cache: &Description,
        update: &Description,
        present: &'static CStr,
    ) -> Self {
        let geometry = write.geometry();
        let cache = Operand::new(cache, geometry.cache_offset(), geometry.cache_bytes());
        let update = Operand::new(update, geometry.update_offset(), geometry.update_bytes());
        let present = cache.dense(present, geometry.present_bytes());
        Self { write, cache, update, present }
    }

    /// # Safety
    /// C4 for `prepared`, while `'a` lasts.
    #[inline]
    pub(crate) unsafe fn read<'a>(prepared: *const Self) -> Result<&'a Self, Failure> {
        // SAFETY: C4 for `prepared`, by this function's contract: a box's value, which nothing changes.
        unsafe { reference(prepared, c"prepared") }
    }

    pub(crate) fn geometry(&self) -> &Geometry {
        self.write.geometry()
    }

    /// Plans a call, which checks its indices.
    #[inline(always)]
    pub(crate) fn plan<'a>(&'a self, call: &'a Arguments<'a>) -> Result<WritePlan<'a>, Failure> {
        let Arguments { write_indices, lengths, update_lengths, layer_id, token_offset, seq_len, .. } = *call;
        let lengths = lengths.starts();
        let plan = match &self.write {
            Write::Starts(prepared, operator) => {
                let others = [
                    (c"update_lengths", update_lengths),
                    (c"layer_id", layer_id),
                    (c"token_offset", token_offset),
                    (c"seq_len", seq_len),
                ];
                refuse_given(others, operator)?;
                prepared.plan_lengths(write_indices.starts(), lengths)?
            }
            Write::Packed(prepared) => {
                let others =
                    [(c"layer_id", layer_id), (c"token_offset", token_offset), (c"seq_len", seq_len)];
                refuse_given(others, "a packed KVCacheUpdate")?;
                let update_lengths = update_lengths.as_i32(c"update_lengths")?;
                prepared.plan_lengths(write_indices.starts(), update_lengths, lengths)?
            }
            Write::Operation(prepared) => {
                let others = [(c"write_indices", write_indices), (c"update_lengths", update_lengths)];
                refuse_given(others, "KVCacheOperation")?;
                let layer_id = layer_id.as_i32(c"layer_id")?;
                let token_offset = token_offset.as_i32(c"token_offset")?;
                prepared.plan_lengths(layer_id, token_offset, seq_len.as_i32(c"seq_len")?, lengths)?
            }
        };
        Ok(match &call.executor {
            Some(executor) => plan.with_executor(executor),
            None => plan,
        })
    }
}

impl Write {
    fn geometry(&self) -> &Geometry {
        match self {
            Self::Starts(prepared, _) => prepared.geometry(),
            Self::Packed(prepared) => prepared.geometry(),
            Self::Operation(prepared) => prepared.geometry(),
        }
    }
}

/// Frees a prepared write. NULL is allowed. No other thread may still be using it.
///
/// # Safety
/// `prepared` is either NULL or was made by a prepare function and not destroyed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvs_prepared_destroy(prepared: *mut kvs_prepared) {
    if !prepared.is_null() {
        // SAFETY: not NULL, so it comes from `Box::into_raw` in a prepare function and is destroyed only here, by
        // this function's contract.
        drop(unsafe { Box::from_raw(prepared) });
    }
}

/// Refuses arguments that the operator does not have.
#[inline(always)]
fn refuse_given<const N: usize>(
    arguments: [(&'static CStr, Indices<'_>); N],
    operator: &'static str,
) -> Result<(), Failure> {
    for (argument, indices) in arguments {
        if !matches!(indices, Indices::Absent) {
            return Err(Kind::UnexpectedArgument { argument, operator }.into());
        }
    }
    Ok(())
}
