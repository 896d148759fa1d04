//! Computes the slots of the blocks of a paged cache.
//!
//! `lib.rs` defines C1 to C3.

use std::ffi::CStr;
use std::slice;

use kvscatter::spec::paged::{BlockTables, NewTokens};
use kvscatter::{Argument, RawBuffer};

use crate::boundary::{Versioned, check_pointer, structure};
use crate::call::{as_i32, kvs_indices, read_indices};
use crate::call_error::{CallError, CallErrorKind};
use crate::guard::guarded;
use crate::status::kvs_status;

/// The blocks of each sample of a paged cache. Token t of a sample is in block t / block_size of its table, at
/// slot t % block_size of the block.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvs_block_tables {
    /// `sizeof(kvs_block_tables)`. The `KVS_BLOCK_TABLES_INIT` macro sets it.
    pub struct_size: usize,
    /// The blocks of each sample in the order of its tokens, [batch, max_blocks], 32 bits. Entries for tokens
    /// that are not new may have any value.
    pub block_tables: kvs_indices,
    /// The number of tokens of each sample, new tokens included. 32 bits.
    pub seq_lens: kvs_indices,
    /// The number of new tokens of each sample, which are its last tokens. 32 bits. If this argument is not
    /// given, each sample has one new token, as in a decode step.
    pub new_tokens: kvs_indices,
    /// The number of entries of each sample in `block_tables`.
    pub max_blocks: usize,
    /// The number of slots of a block.
    pub block_size: usize,
    /// The number of blocks of the cache.
    pub num_blocks: usize,
}

// SAFETY: The struct is `repr(C)` and begins with `struct_size: usize`.
unsafe impl Versioned for kvs_block_tables {}

/// Computes the slots of the new tokens of each sample, one sample after the other, for the `slot_mapping` of a
/// `kvs_call`. `slots` has room for `count` numbers, one for each new token of all samples. Allocates nothing.
///
/// Besides `KVS_OK`, returns one of these errors, after which `slots` has not changed:
/// - `KVS_ERROR_NULL_POINTER`, `KVS_ERROR_MISALIGNED`, `KVS_ERROR_ADDRESS_SPACE`, `KVS_ERROR_TOO_LARGE` or
///   `KVS_ERROR_STRUCT_SIZE` if a pointer, an array or a `struct_size` is not valid. `KVS_ERROR_TOO_LARGE` also
///   means that the cache has more than PTRDIFF_MAX slots.
/// - `KVS_ERROR_INDEX_WIDTH` if a list does not have 32 bits, or `KVS_ERROR_OVERLAP` if `slots` overlaps one.
/// - `KVS_ERROR_LIST_LENGTH`, `KVS_ERROR_LENGTH_OUT_OF_RANGE` or `KVS_ERROR_BLOCK_OUT_OF_RANGE` if a list, a
///   number of tokens or a block is not valid.
///
/// # Safety
/// - `tables` is either NULL or points to a struct of `struct_size` bytes. Each pointer in it is either NULL or
///   points to the number of values that the field beside it gives. Nothing writes the struct and these values
///   before this returns.
/// - `slots` is either NULL or points to `count` initialised numbers, which nothing else uses before this
///   returns.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvs_slot_mapping(
    tables: *const kvs_block_tables,
    slots: *mut i64,
    count: usize,
) -> kvs_status {
    guarded(|| {
        // SAFETY: This function's contract requires C1 and C2 for `tables`.
        let tables = *unsafe { structure(tables, c"tables") }?;
        // SAFETY: This function's contract requires C1 for the lists in `tables`.
        let (core, new_tokens) = unsafe { tables.read() }?;
        if count == 0 {
            return Ok(core.slot_mapping(new_tokens, &mut [])?);
        }
        let argument = Argument::SlotMapping.c_name();
        check_pointer(slots, count, argument.into())?;
        let places = RawBuffer { ptr: slots.cast(), len: count.saturating_mul(size_of::<i64>()) };
        tables.check_apart(places)?;
        // SAFETY: `check_pointer` rejects NULL, misaligned pointers and sizes that no slice has. For other
        // pointers, this function's contract requires C3. The numbers share no byte with the lists.
        let slots = unsafe { slice::from_raw_parts_mut(slots, count) };
        Ok(core.slot_mapping(new_tokens, slots)?)
    })
}

impl kvs_block_tables {
    /// Returns the tables and the numbers of new tokens.
    ///
    /// # Safety
    /// The lists satisfy C1 for the lifetime `'a`.
    unsafe fn read<'a>(&self) -> Result<(BlockTables<'a>, NewTokens<'a>), CallError> {
        let [(tables, of_tables), (lens, of_lens), (tokens, of_tokens)] = self.lists();
        // SAFETY: This function's contract requires C1 for `tables`.
        let block_tables = as_i32(unsafe { read_indices(&tables, of_tables) }?, of_tables)?;
        // SAFETY: This function's contract requires C1 for `lens`.
        let seq_lens = as_i32(unsafe { read_indices(&lens, of_lens) }?, of_lens)?;
        // SAFETY: This function's contract requires C1 for `tokens`.
        let new_tokens = match unsafe { read_indices(&tokens, of_tokens) }? {
            None => NewTokens::Same(1),
            given => NewTokens::Each(as_i32(given, of_tokens)?),
        };
        let Self { max_blocks, block_size, num_blocks, .. } = *self;
        Ok((BlockTables { block_tables, max_blocks, seq_lens, block_size, num_blocks }, new_tokens))
    }

    /// Checks that slots share no byte with a list.
    fn check_apart(&self, slots: RawBuffer) -> Result<(), CallError> {
        match self.lists().into_iter().find(|(list, _)| list.buffer().overlaps(slots)) {
            None => Ok(()),
            Some((_, other)) => {
                Err(CallErrorKind::Overlap { argument: Argument::SlotMapping.c_name(), other }.into())
            }
        }
    }

    /// Returns the lists with their names.
    fn lists(&self) -> [(kvs_indices, &'static CStr); 3] {
        let Self { block_tables, seq_lens, new_tokens, .. } = *self;
        [
            (block_tables, Argument::BlockTables.c_name()),
            (seq_lens, Argument::SeqLens.c_name()),
            (new_tokens, Argument::NewTokens.c_name()),
        ]
    }
}
