//! The stream that a writer's launches are put on, and the thread that it is used from.

use std::sync::Arc;
use std::thread::{self, ThreadId};

use candle_core::CudaDevice;
use candle_core::cuda::cudarc::driver::CudaStream;

use crate::CandleError;

/// `CU_STREAM_PER_THREAD`, the stream of `Device::new_cuda`: the handle is one, the streams are as many as threads.
const PER_THREAD: usize = 2;

/// A stream, and the last thread on which it was used.
#[derive(Debug)]
pub(super) struct WriterStream {
    stream: Arc<CudaStream>,
    thread: ThreadId,
}

impl WriterStream {
    pub(super) fn of(device: &CudaDevice) -> Self {
        Self { stream: device.cuda_stream(), thread: thread::current().id() }
    }

    /// The stream, for this thread: behind everything that was put on it so far. If that was on another thread's, the
    /// device is waited for.
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

/// What the writer holds is given back on this thread's stream, and may be in use on the other's.
impl Drop for WriterStream {
    fn drop(&mut self) {
        if self.has_moved() {
            let context = self.stream.context();
            context.record_err(context.synchronize());
        }
    }
}
