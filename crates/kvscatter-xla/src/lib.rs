//! `TensorScatter` and attention as custom calls of XLA, the compiler of JAX.
//!
//! XLA calls [`tensor_scatter`], [`attention()`] and, on CUDA devices, [`tensor_scatter_cuda`] through the C interface
//! for custom calls that it calls FFI. The Python package registers them, and `kvscatter.jax` compiles programs that
//! call them. The core defines every write and every error about a write, and `kvscatter-attention` does so for
//! attention.
//!
//! # The call of the write
//!
//! * The arguments are `past`, `update`, `write_indices` and, if there is a fourth one, `lengths`. The indices and
//!   lengths are integers of 32 or 64 bits `[batch]`.
//! * The attributes are `axis` (int64), `mode` (`linear` or `circular`), and `skips` (bool): whether a sample that does
//!   not fit is left unchanged, and is no error.
//! * The first result is `present`. If it has the memory of `past`, the write is in place. Otherwise one pass copies
//!   the past with the update in it.
//! * On the CPU, a call that skips has a second result `skipped`: bool `[batch]`, true for each sample that does not
//!   fit. Other calls have none.
//! * On a CUDA device, every call has a second result, the status: uint32 `[4]`, which contains the
//!   [`StatusWords`](kvscatter_cuda::StatusWords) of the launch. The indices are int32 or int64.
//!
//! A call that returns an error has changed nothing in place. The exception is an error of the CUDA driver, which may
//! come after the launch.
//!
//! # The call of attention
//!
//! * The arguments are `q`, `k`, `v`, `lengths`, and those that the attribute `operands` names, in its order and
//!   separated by spaces: `starts`, `mask`, `sink`, `k_scale`, `v_scale` and `block_tables`. Lengths and starts are
//!   int32 or int64 `[batch]`, and block tables int32 `[batch, blocks of a sample]`.
//! * The other attributes are `causal` (bool), `window` (int64, where 0 means none), `mode` (`linear` or `circular`)
//!   and `layout` (`bhsd` or `bshd`). `scale` and `softcap` (float32) may be missing.
//! * The result has the type of `q`.
//! * On a CUDA device, the call is an error.
//!
//! # Layers
//!
//! `sys` declares the structs of XLA. `call` reads a call from them, and `status` converts errors and panics to errors
//! of XLA. `scatter` reads the tensors and the options of a call, and takes the write from `prepared` if an earlier
//! call had the same shapes. `recent` keeps what was prepared. `cpu` executes it with the threads of XLA that `threads`
//! finds, and `cuda` launches it on XLA's stream. `attention` reads and executes a call of attention, and
//! `attention_form` prepares it.
//!
//! # What XLA promises
//!
//! `xla/ffi/api/c_api.h` promises these conditions. `SAFETY` comments cite them.
//!
//! - **F1** The frame of a call, and everything that it points to, is valid until the handler returns. The frame and
//!   the table have as many bytes as their field `struct_size`. All versions 0.x have the other structs as `sys`
//!   declares them.
//! - **F2** A list has the number of elements that is given beside it, and a text has the number of bytes.
//! - **F3** The address in a buffer points to initialised memory of the buffer's shape and type, dense and aligned
//!   for its type. A result may have the memory of the argument that it is an alias of. Nothing else uses the
//!   memory of a result until the handler returns.
//! - **F4** The functions in XLA's table are valid as long as the process. They may be called with objects that are
//!   valid, and copy the texts that they are given.
//! - **F5** On a CUDA device, the device's context is current while the handler runs, and the stream belongs to it. The
//!   memory of F3 is memory of that context, which stays valid until the work that the handler puts on the stream has
//!   run, and other uses of it are ordered before or after on the stream.
#![deny(unsafe_op_in_unsafe_fn)]

mod attention;
mod attention_form;
mod call;
mod cpu;
mod cuda;
mod prepared;
mod recent;
mod scatter;
mod status;
mod sys;
mod threads;

pub use attention_form::{AttentionForm, AttentionLayout};
pub use sys::{CallFrame, XlaError};

/// The handler of the custom call on the CPU.
///
/// # Safety
/// `frame` satisfies F1 to F4.
pub unsafe extern "C" fn tensor_scatter(frame: *mut CallFrame) -> *mut XlaError {
    // SAFETY: The frame satisfies F1 to F4 (this function's contract).
    unsafe { handle(frame, cpu::run) }
}

/// The handler of the custom call on a CUDA device.
///
/// # Safety
/// `frame` satisfies F1 to F5.
pub unsafe extern "C" fn tensor_scatter_cuda(frame: *mut CallFrame) -> *mut XlaError {
    // SAFETY: The frame satisfies F1 to F5 (this function's contract).
    unsafe { handle(frame, cuda::run) }
}

/// The handler of attention on the CPU.
///
/// # Safety
/// `frame` satisfies F1 to F4.
pub unsafe extern "C" fn attention(frame: *mut CallFrame) -> *mut XlaError {
    // SAFETY: The frame satisfies F1 to F4 (this function's contract).
    unsafe { handle(frame, attention::run) }
}

/// The handler of attention on a CUDA device, which returns an error.
///
/// # Safety
/// `frame` satisfies F1 to F4.
pub unsafe extern "C" fn attention_cuda(frame: *mut CallFrame) -> *mut XlaError {
    // SAFETY: The frame satisfies F1 to F4 (this function's contract).
    unsafe { handle(frame, attention::refuse) }
}

/// Reads a frame and calls `run`.
///
/// # Safety
/// `frame` satisfies F1 to F4, and F5 if `run` needs it.
unsafe fn handle(
    frame: *mut CallFrame,
    run: impl FnOnce(&call::Call<'_>) -> Result<(), status::CallError>,
) -> *mut XlaError {
    // SAFETY: Every version of the frame begins with its size (F1).
    let size = unsafe { (*frame).struct_size };
    if size < size_of::<CallFrame>() {
        // Only the frame leads to the function that makes an error, and XLA has always had this frame.
        std::process::abort();
    }
    // SAFETY: The frame has the size of this type (checked above).
    let frame = unsafe { &*frame };
    let run = |frame: &CallFrame| {
        // SAFETY: The frame satisfies F1 to F4 (this function's contract).
        let call = unsafe { call::Call::new(frame) };
        run(&call?)
    };
    // SAFETY: As above.
    unsafe { status::guarded(frame, run) }
}
