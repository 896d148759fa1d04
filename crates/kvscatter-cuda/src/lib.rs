//! Writes KV caches on CUDA devices in one asynchronous launch.
//!
//! One launch writes keys and values, or the caches of many layers. The positions stay on the device.
//!
//! ```no_run
//! use kvscatter::{ElementType, spec::onnx::TensorScatter};
//! use kvscatter_cuda::{Cuda, DeviceBuffer, DeviceList, DeviceCallIndices, BufferPair, DeviceStatus, Stream};
//!
//! # fn main() -> Result<(), kvscatter_cuda::CudaError> {
//! # let [k, v, new_k, new_v] = [DeviceBuffer::new(0, 0); 4];
//! # let (write_indices, status, stream) = (0, 0, std::ptr::null_mut());
//! // Once, with the driver, the shapes, and each tensor's address and size.
//! let cuda = Cuda::new()?;
//! let shapes = TensorScatter::new().prepare(ElementType::Float16, &[64, 8, 4096, 128], &[64, 8, 1, 128])?;
//! let pairs = [BufferPair { cache: k, update: new_k }, BufferPair { cache: v, update: new_v }];
//! let write = cuda.prepare(&shapes, &pairs)?;
//!
//! // Every step, or once in a graph that is replayed.
//! let (indices, status) = (DeviceCallIndices::new(DeviceList::i64(write_indices, 64)), DeviceStatus::at(status)?);
//! // SAFETY: The caches, updates, list and status are device memory of the current context until the launch has run.
//! unsafe { write.launch(Stream::new(stream), &indices, Some(status)) }?;
//!
//! // At your next synchronisation point.
//! // SAFETY: The status and the list are device memory of the current context, and the launch has run.
//! unsafe { write.check(status, &indices) }?;
//! # Ok(())
//! # }
//! ```
//!
//! # Bad indices
//!
//! The host cannot see positions that are on the device, so an error cannot stop a launch with a bad
//! position. Instead:
//!
//! * Nothing outside the caches, the presents and the status is ever written, and no kernel traps, so the
//!   context stays usable.
//! * A sample with a bad index is not written. With [`DeviceWrite::skip_all`] the whole launch writes
//!   nothing.
//! * [`StatusWords`], 16 bytes that the caller allocates, count each such sample once per launch and record
//!   the first one.
//! * [`DeviceWrite::check`] returns the error that the CPU returns for it.
//!
//! The prepared operator determines which slot a position means and which indices are bad.
//!
//! # Requirements
//!
//! A program needs a driver (CUDA 10.0 or later) when it runs, and a device of compute capability 7.5 or
//! later. Without a driver, [`Cuda::new`] returns an error. Building needs no CUDA, because the kernels are
//! compiled ahead and are part of this crate. The tests compile them as C++ and run them on a simulated
//! driver. They also passed on an H100. Other GPUs have not been tried.
//!
//! Memory, streams and contexts belong to the caller. They may be those of PyTorch, JAX or CuPy.

mod abi;
mod check;
mod cuda;
mod driver;
mod error;
mod grid;
mod images;
mod launch_argument;
mod memory;
mod prepare;
mod shape;
mod units;
mod write;

pub use abi::StatusWords;
pub use cuda::{Cuda, DeviceStatus, Stream};
pub use error::{CountKind, CudaError, SlotMappingError, TensorRole};
#[doc(hidden)]
pub use grid::LaunchConfig;
pub use launch_argument::{FirstBad, LaunchArgument};
pub use memory::{BufferPair, DeviceBuffer, DeviceCallIndices, DeviceList, PresentBuffers};
pub use write::DeviceWrite;

const _: () = {
    const fn shared_by_threads<T: Send + Sync>() {}
    shared_by_threads::<Cuda>();
    shared_by_threads::<DeviceWrite>();
};

/// Tests the examples of the page.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/cuda.md")]
struct Page;
