//! The stream of a writer's launches, and the thread that uses it.

use std::sync::Arc;
use std::thread::{self, ThreadId};

use candle_core::CudaDevice;
use candle_core::cuda::cudarc::driver::CudaStream;

use crate::CandleError;

/// The handle `CU_STREAM_PER_THREAD`, used by `Device::new_cuda`. It refers to a separate stream on each
/// thread.
const PER_THREAD: usize = 2;

/// A stream, and the last thread on which it was used.
#[derive(Debug)]
pub(super) struct WriterStream {
    stream: Arc<CudaStream>,
    thread: ThreadId,
}

impl WriterStream {
    pub(super) fn new(device: &CudaDevice) -> Self {
        Self { stream: device.cuda_stream(), thread: thread::current().id() }
    }

    /// Returns the stream for use on this thread, after all earlier work of the writer. If that work is on
    /// the stream of another thread, this waits for the device.
    pub(super) fn current(&mut self) -> Result<Arc<CudaStream>, CandleError> {
        if self.has_moved() {
            self.stream.context().synchronize().map_err(candle_core::Error::wrap)?;
            self.thread = thread::current().id();
        }
        Ok(Arc::clone(&self.stream))
    }

    fn has_moved(&self) -> bool {
        self.stream.cu_stream().addr() == PER_THREAD && thread::current().id() != self.thread
    }
}

/// Waits before the writer's memory is freed on this thread's stream, because another thread's stream may
/// still use it.
impl Drop for WriterStream {
    fn drop(&mut self) {
        if self.has_moved() {
            let context = self.stream.context();
            context.record_err(context.synchronize());
        }
    }
}
