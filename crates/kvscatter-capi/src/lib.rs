//! The C interface of kvscatter. Its header, `include/kvscatter.h`, is generated from this crate's documentation.
//!
//! The functions convert their arguments and call the core, which has every rule of a specification. Each of its errors
//! has a number here. This crate checks only mistakes that C alone permits: wrong pointers and struct sizes, numbers
//! without a meaning, a list of pairs in memory that would be written.
//!
//! # Modules
//!
//! A module imports only modules that this table names before it. `tests/layers.rs` checks that.
//!
//! | for | modules, in order |
//! |---|---|
//! | numbers of the header | `status`, `element` |
//! | errors in numbers and words | `fields`, `failure` |
//! | reading pointers | `boundary` |
//! | from a body's result to a status | `last_error`, `guard` |
//! | structs of the header | `tensor`, `options`, `executor`, `call` |
//! | the handle | `prepared` |
//! | functions of the header | `dlpack`, `operators`, `run`, `blocks` |
//!
//! A Rust program uses the `kvscatter` crate. This one is also a Rust library so that its tests can call the
//! functions as C does.
//!
//! # What callers promise
//!
//! `# Safety` sections and `SAFETY` comments cite these conditions. The sections of the header's functions repeat them in
//! full, for programs in C. Pointers that are NULL or misaligned break none of them, because no function follows one.
//!
//! - **C1** A pointer that is read, given as an argument or in a struct, points to a value of its type, or to as many
//!   as the number beside it gives (`count`, or `rank` for `shape` and `strides`). Nothing writes them before the function
//!   returns.
//! - **C2** A pointer to a struct with a `struct_size` points to at least as many bytes as that field gives.
//! - **C3** A pointer that takes a result (`out`, `written`) points to memory for a value of its type, which nothing else
//!   uses before the function returns.
//! - **C4** A `kvs_prepared` comes from a prepare function, and nothing destroys it before the function returns.
//! - **C5** All elements of a tensor lie in one allocation, at the addresses that `data`, `shape` and `strides`
//!   give them. Elements of 4 bits are initialised in a cache, a past and an update. Nothing else writes the elements
//!   before the function returns, and nothing else reads those that it writes.
//! - **C6** A callback may be called with the `user` beside it, and it returns. `broadcast` calls `work` with its
//!   `context` only, and not after it has returned.
#![expect(non_camel_case_types, reason = "the names of the C header")]

mod boundary;
mod executor;
mod failure;
mod fields;
mod guard;

// In the order of the header.
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

mod last_error;

use std::ffi::{CStr, c_char};

pub use blocks::{kvs_block, kvs_for_each_block, kvs_loop};
pub use call::{kvs_call, kvs_indices};
pub use dlpack::kvs_tensor_from_dlpack;
pub use element::{kvs_element_type, kvs_element_type_code};
pub use executor::kvs_executor;
pub use last_error::{kvs_error, kvs_error_field, kvs_last_error};
pub use operators::{
    kvs_kv_cache_operation_prepare, kvs_kv_cache_update_prepare, kvs_tensor_scatter_prepare,
};
pub use options::{
    kvs_cache_mode, kvs_kv_cache_operation_options, kvs_kv_cache_update_options, kvs_mode,
    kvs_negative_index, kvs_out_of_range, kvs_tensor_scatter_options, kvs_update_form,
};
pub use prepared::{kvs_prepared, kvs_prepared_destroy};
pub use run::{kvs_pair, kvs_write, kvs_write_many, kvs_write_present, kvs_written};
pub use status::{kvs_status, kvs_status_code, kvs_status_name};
pub use tensor::{KVS_MAX_RANK, kvs_tensor};

/// The version of this interface. It grows when something is added that a program may want to ask for. Nothing is
/// ever removed.
pub const KVS_ABI_VERSION: u32 = 1;

/// `KVS_ABI_VERSION` of the library that is running. A program compiled with a larger one than this must not use
/// what was added since.
#[unsafe(no_mangle)]
pub extern "C" fn kvs_abi_version() -> u32 {
    KVS_ABI_VERSION
}

/// The version of the library that is running, such as "0.1.0". Static.
#[unsafe(no_mangle)]
pub extern "C" fn kvs_version() -> *const c_char {
    const VERSION: &CStr =
        match CStr::from_bytes_with_nul(concat!(env!("CARGO_PKG_VERSION"), "\0").as_bytes()) {
            Ok(version) => version,
            Err(_) => c"",
        };
    VERSION.as_ptr()
}
