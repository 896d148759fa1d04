//! The C interface of kvscatter.
//!
//! The header `include/kvscatter.h` is generated from the documentation of this crate. The functions convert
//! their arguments and call the core, which implements every rule of a specification, or
//! `kvscatter_attention`, which reads a cache. Each error of both has a number here. This crate itself checks
//! only for mistakes that C alone permits: wrong pointers, wrong struct sizes, numbers without a meaning, and
//! memory that would be both read and written.
//!
//! # Modules
//!
//! A module imports only modules that this table names before it. A test of `xtask` checks that.
//!
//! | for | modules, in order |
//! |---|---|
//! | numbers of the header | `status`, `element` |
//! | errors in numbers and words | `fields`, `call_error` |
//! | reading pointers | `boundary` |
//! | from a body's result to a status | `last_error`, `guard` |
//! | structs of the header | `tensor`, `options`, `executor`, `call`, `attention_options` |
//! | the handle of a write | `prepared` |
//! | functions of the header | `dlpack`, `operators`, `run`, `blocks`, `paged`, `ring` |
//! | attention, which reads a cache | `attention_kernel`, `attention`, `attention_run` |
//!
//! Rust programs use the `kvscatter` crate. This crate is also a Rust library so that its tests can call the
//! functions as C does.
//!
//! # What callers promise
//!
//! `# Safety` sections and `SAFETY` comments cite the conditions below. The sections of the header's
//! functions repeat the conditions in full for programs in C. A pointer that is NULL or misaligned breaks no
//! condition, because no function dereferences such a pointer.
//!
//! - **C1** A pointer that a function reads, given as an argument or in a struct, points to a value of its
//!   type. If a number beside it gives a count (`count`, or `rank` for `shape` and `strides`), it points to
//!   that many values. Nothing writes the values before the function returns.
//! - **C2** A pointer to a struct with a `struct_size` points to at least as many bytes as that field gives.
//! - **C3** A pointer that takes a result (`out`, `written`) points to memory for a value of its type.
//!   Nothing else uses that memory before the function returns.
//! - **C4** A `kvs_prepared` or a `kvs_attention` comes from a prepare function, and nothing destroys it before
//!   the function returns.
//! - **C5** All elements of a tensor are in one allocation, at the addresses that `data`, `shape` and
//!   `strides` give them. Elements of 4 bits are initialised in a cache, a past and an update. Before the
//!   function returns, nothing else writes the elements, and nothing else reads the elements that the
//!   function writes.
//! - **C6** A callback may be called with the `user` beside it, and it returns. `broadcast` calls `work` with
//!   its `context` only, and does not call it after `broadcast` has returned.
//! - **C7** A `kvs_attention_scratch` comes from `kvs_attention_scratch_new`, and nothing else uses or destroys it
//!   before the function returns.
//! - **C8** The memory of a tensor of attention, from its first to its last element, is in one allocation, and
//!   initialised unless it is the output. Before the function returns, nothing else writes it, and nothing else
//!   reads that of the output.
#![expect(non_camel_case_types, reason = "the names of the C header")]

mod boundary;
mod call_error;
mod executor;
mod fields;
mod guard;

// The order of these modules is the order of the header.
mod status;

mod element;

mod tensor;

mod dlpack;

mod call;

mod prepared;

mod options;

mod operators;

mod run;

mod blocks;

mod paged;

mod ring;

mod attention_kernel;
mod attention_options;

mod attention;

mod attention_run;

mod last_error;

use std::ffi::{CStr, c_char};

pub use attention::{
    kvs_attention, kvs_attention_destroy, kvs_attention_prepare, kvs_attention_scratch,
    kvs_attention_scratch_destroy, kvs_attention_scratch_new,
};
pub use attention_options::{kvs_attention_options, kvs_query_positions};
pub use attention_run::{kvs_attention_call, kvs_attention_run};
pub use blocks::{kvs_block, kvs_for_each_block, kvs_loop};
pub use call::{kvs_call, kvs_indices};
pub use dlpack::kvs_tensor_from_dlpack;
pub use element::{kvs_element_type, kvs_element_type_code};
pub use executor::kvs_executor;
pub use last_error::{kvs_error, kvs_error_field, kvs_last_error};
pub use operators::{
    kvs_kv_cache_operation_prepare, kvs_kv_cache_update_prepare, kvs_paged_write_prepare,
    kvs_tensor_scatter_prepare,
};
pub use options::{
    kvs_cache_mode, kvs_kv_cache_operation_options, kvs_kv_cache_update_options, kvs_mode,
    kvs_negative_index, kvs_out_of_range, kvs_paged_write_options, kvs_tensor_scatter_options,
    kvs_update_form,
};
pub use paged::{kvs_block_tables, kvs_slot_mapping};
pub use prepared::{kvs_prepared, kvs_prepared_destroy};
pub use ring::{
    kvs_feeding, kvs_ring, kvs_ring_high_after, kvs_ring_least_capacity, kvs_ring_least_start,
    kvs_ring_most_rows, kvs_ring_takes,
};
pub use run::{kvs_pair, kvs_write, kvs_write_many, kvs_write_present, kvs_written};
pub use status::{kvs_status, kvs_status_code, kvs_status_name};
pub use tensor::{KVS_MAX_RANK, kvs_tensor};

/// The version of this interface. The version increases when a program may need to test for an addition. From
/// version 1 on, nothing is removed.
pub const KVS_ABI_VERSION: u32 = 1;

/// Returns the `KVS_ABI_VERSION` of the library that is running. A program that was compiled with a larger
/// version must not use anything that was added after the returned version.
#[unsafe(no_mangle)]
pub extern "C" fn kvs_abi_version() -> u32 {
    KVS_ABI_VERSION
}

/// Returns the version of the library that is running, such as "0.1.0". The string is static.
#[unsafe(no_mangle)]
pub extern "C" fn kvs_version() -> *const c_char {
    const VERSION: &CStr =
        match CStr::from_bytes_with_nul(concat!(env!("CARGO_PKG_VERSION"), "\0").as_bytes()) {
            Ok(version) => version,
            Err(_) => c"",
        };
    VERSION.as_ptr()
}
