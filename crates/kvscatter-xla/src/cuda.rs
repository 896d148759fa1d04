//! Executes a call on a CUDA device, on XLA's stream.

use std::sync::OnceLock;

use kvscatter_cuda::{
    BufferPair, Cuda, CudaError, DeviceBuffer, DeviceCallIndices, DeviceList, DeviceStatus, PresentBuffers,
    Stream,
};

use crate::call::{Call, S32, S64, Tensor, U32};
use crate::scatter::Scatter;
use crate::status::CallError;

/// Launches a call. If a sample that does not fit is an error, the launch writes nothing when it finds one, and this
/// function waits for the launch and returns the error. Only the device knows the indices.
///
/// # Errors
/// Returns the errors of the core and of the driver, and an error if the program does not make the call as the crate's
/// documentation describes it.
pub(crate) fn run(call: &Call<'_>) -> Result<(), CallError> {
    let scatter = Scatter::read(call)?;
    scatter.check_report(true, U32, &[4], "status, uint32 [4]")?;
    let Scatter { past, update, starts, lengths, present, report, skips, ref write } = scatter;
    let mut indices = DeviceCallIndices::new(list(starts, "write_indices")?);
    if let Some(lengths) = lengths {
        indices = indices.lengths(list(lengths, "lengths")?);
    }
    let status = DeviceStatus::at(report.map_or(0, address))?;
    let stream = Stream::new(call.stream()?);

    let (cuda, geometry) = (driver()?, write.geometry());
    let (cache, rows) = (buffer(past, geometry.cache_bytes()), buffer(update, geometry.update_bytes()));
    let write = if scatter.is_in_place() {
        cuda.prepare(write, &[BufferPair { cache, update: rows }])
    } else {
        let present = buffer(present, geometry.present_bytes());
        cuda.prepare_present(write, &[PresentBuffers { present, past: cache, update: rows }])
    };
    let write = write?.skip_all(!skips);
    // SAFETY: The 16 bytes of the status are a result (checked above), so they are memory of XLA's context, which is
    // current, and the stream belongs to it (F5).
    unsafe { cuda.clear(status, stream) }?;
    // SAFETY: The context is current, and the stream belongs to it (F5). All memory has the shapes of the call (F3) and
    // stays valid until the stream has run the launch, and nothing else uses the results until then (F5).
    unsafe { write.launch(stream, &indices, Some(status)) }?;
    if skips {
        return Ok(());
    }
    // SAFETY: The stream belongs to the current context (F5).
    unsafe { cuda.wait(stream) }?;
    // SAFETY: The status and the lists are memory of the current context (F3, F5), and the launch has run.
    Ok(unsafe { write.check(status, &indices) }?)
}

/// Returns the driver of this machine. It is loaded at the first call.
fn driver() -> Result<&'static Cuda, CudaError> {
    static DRIVER: OnceLock<Cuda> = OnceLock::new();
    match DRIVER.get() {
        Some(driver) => Ok(driver),
        None => Cuda::new().map(|driver| DRIVER.get_or_init(|| driver)),
    }
}

fn buffer(tensor: Tensor<'_>, bytes: Option<usize>) -> DeviceBuffer {
    DeviceBuffer::new(address(tensor), bytes.unwrap_or_default())
}

fn list(tensor: Tensor<'_>, name: &str) -> Result<DeviceList, CallError> {
    let count = tensor.count(name)?;
    match tensor.element {
        S32 => Ok(DeviceList::i32(address(tensor), count)),
        S64 => Ok(DeviceList::i64(address(tensor), count)),
        _ => Err(tensor.type_error(name, "signed integers of 32 or 64 bits on a CUDA device")),
    }
}

fn address(tensor: Tensor<'_>) -> u64 {
    tensor.data.addr() as u64
}
