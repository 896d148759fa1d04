//! kvscatter's cache write on CUDA devices: keys and values, or the caches of many layers, in one asynchronous launch,
//! with positions that stay on the device.
//!
//! ```no_run
//! use kvscatter::{ElementType, spec::onnx::TensorScatter};
//! use kvscatter_cuda::{Cuda, DeviceBuffer, DeviceList, Indices, Pair, Status, Stream};
//!
//! # fn main() -> Result<(), kvscatter_cuda::CudaError> {
//! # let [k, v, new_k, new_v] = [DeviceBuffer::new(0, 0); 4];
//! # let (write_indices, status, stream) = (0, 0, std::ptr::null_mut());
//! // Once: the driver, the shapes, and where everything lies: each tensor's address, and how many bytes were allocated.
//! let cuda = Cuda::new()?;
//! let shapes = TensorScatter::new().prepare(ElementType::Float16, &[64, 8, 4096, 128], &[64, 8, 1, 128])?;
//! let pairs = [Pair { cache: k, update: new_k }, Pair { cache: v, update: new_v }];
//! let write = cuda.prepare(&shapes, &pairs)?;
//!
//! // Every step, or once in a graph that is replayed.
//! let (indices, status) = (Indices::new(DeviceList::i64(write_indices, 64)), Status::at(status)?);
//! // SAFETY: all of it is memory of the current context, and stays until the launch has run.
//! unsafe { write.launch(Stream::new(stream), &indices, Some(status)) }?;
//!
//! // Wherever the caller waits for the device anyhow.
//! // SAFETY: the status and the lists are memory of the current context, and the launch has run.
//! unsafe { write.check(status, &indices) }?;
//! # Ok(())
//! # }
//! ```
//!
//! # Bad indices
//!
//! The host cannot see positions that are on the device, so no error can stop a launch. Instead:
//!
//! * nothing outside the caches is ever written, and no kernel traps: the context stays usable;
//! * a sample with a bad index is left as it is; with [`DeviceWrite::skip_all`] the whole launch is;
//! * [`StatusWords`], 16 bytes of the caller's, count each such sample once per launch, and hold the first one;
//! * [`DeviceWrite::check`] returns for it the error that the CPU returns.
//!
//! Which slot a start means, and which indices are bad, are the rules of the operator that was prepared.
//!
//! # What is needed
//!
//! A driver (CUDA 10.0 or later), when the program runs, and a device of compute capability 7.5 or later: without a driver
//! [`Cuda::new`] returns an error. Building needs no CUDA; the kernels are compiled ahead and are part of this crate. They
//! have not run on a GPU yet: the tests drive them as C++, on a driver that plays a device. Memory, streams and contexts
//! are the caller's: of PyTorch, JAX, CuPy, or of its own.

mod abi;
mod check;
mod cuda;
mod driver;
mod error;
mod grid;
mod images;
mod list;
mod memory;
mod prepare;
mod shape;
mod units;
mod write;

pub use abi::StatusWords;
pub use cuda::{Cuda, Status, Stream};
pub use error::{Counted, CudaError, SlotMappingError, TensorRole};
#[doc(hidden)]
pub use grid::LaunchConfig;
pub use list::{FirstBad, List};
pub use memory::{DeviceBuffer, DeviceList, Indices, Pair, PresentBuffers};
pub use write::DeviceWrite;

const _: () = {
    const fn shared_by_threads<T: Send + Sync>() {}
    shared_by_threads::<Cuda>();
    shared_by_threads::<DeviceWrite>();
};

/// The page's examples are tested with the crate's.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/cuda.md")]
struct Page;
