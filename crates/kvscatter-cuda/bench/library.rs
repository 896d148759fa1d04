//! The crate's `prepare` and `launch` as C functions, which `bench_gpu.py` calls through `ctypes`.
//!
//! The host's time for a launch is measured here, because a call from Python takes as long as several
//! launches.

use std::cell::RefCell;
use std::error::Error;
use std::ffi::{CStr, CString, c_char, c_void};
use std::path::Path;
use std::ptr::null_mut;
use std::slice;
use std::sync::OnceLock;
use std::time::Instant;

use kvscatter::ElementType;
use kvscatter::spec::onnx::TensorScatter;
use kvscatter_cuda::{
    BufferPair, Cuda, DeviceBuffer, DeviceCallIndices, DeviceList, DeviceStatus, DeviceWrite, LaunchConfig,
    PresentBuffers, Stream,
};

/// Dense float16 caches `[batch, heads, capacity, width]` and updates `[batch, heads, rows, width]`.
#[repr(C)]
pub struct Shape {
    batch: u64,
    heads: u64,
    rows: u64,
    capacity: u64,
    width: u64,
    /// If not 0, the write goes into a present and keeps the past.
    functional: u64,
    /// If not 0, a launch with a bad start writes nothing.
    skip_all: u64,
}

/// A prepared write and the length of its list.
pub struct BenchWrite {
    write: DeviceWrite,
    batch: usize,
}

type BoxError = Box<dyn Error>;

thread_local! {
    static LAST: RefCell<CString> = RefCell::default();
}

static CUDA: OnceLock<Cuda> = OnceLock::new();

/// Returns the message of the last error on this thread. It is valid until the next error.
#[unsafe(no_mangle)]
pub extern "C" fn kvscatter_bench_error() -> *const c_char {
    LAST.with_borrow(|last| last.as_ptr())
}

/// Loads this machine's driver, or the driver at a path, and returns 0 if it succeeds. Call it first.
///
/// # Safety
/// `driver` is null, or ends with a zero and is the path of a CUDA driver.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvscatter_bench_open(driver: *const c_char) -> i32 {
    let cuda = if driver.is_null() {
        Cuda::new().map_err(BoxError::from)
    } else {
        // SAFETY: `driver` is not null, so it points to a text that ends with a zero (this function's
        // contract).
        let path = unsafe { CStr::from_ptr(driver) };
        path.to_str().map_err(BoxError::from).and_then(|path| {
            // SAFETY: The text is the path of a CUDA driver (this function's contract).
            Ok(unsafe { Cuda::load_from(Path::new(path)) }?)
        })
    };
    i32::from(ok_or_record(cuda.map(|cuda| CUDA.get_or_init(|| cuda))).is_none())
}

/// Writes the default spread of a write over the device.
#[unsafe(no_mangle)]
pub extern "C" fn kvscatter_bench_choices(choices: &mut LaunchConfig) {
    *choices = LaunchConfig::DEFAULT;
}

/// Prepares a write in the current context, and returns null if it fails. If `choices` is null, the defaults
/// apply.
///
/// # Safety
/// `addresses` has two numbers for each tensor, its cache and its update. In the functional form it has
/// three: present, past and update. Each is the address of device memory with the size of the shape, until
/// the write is freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvscatter_bench_prepare(
    shape: &Shape,
    addresses: *const u64,
    tensors: usize,
    choices: Option<&LaunchConfig>,
) -> *mut BenchWrite {
    let each = if shape.functional == 0 { 2 } else { 3 };
    // SAFETY: `addresses` points to `each` numbers for each tensor (this function's contract).
    let addresses = unsafe { slice::from_raw_parts(addresses, tensors.saturating_mul(each)) };
    let prepared = prepare(shape, addresses, choices);
    ok_or_record(prepared).map_or(null_mut(), |prepared| Box::into_raw(Box::new(prepared)))
}

/// Frees a write, or does nothing with null.
///
/// # Safety
/// [`kvscatter_bench_prepare`] returned the pointer, and it is not used again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvscatter_bench_free(prepared: *mut BenchWrite) {
    if !prepared.is_null() {
        // SAFETY: `kvscatter_bench_prepare` made the pointer with `Box::into_raw`, and it is not used again
        // (this function's contract).
        drop(unsafe { Box::from_raw(prepared) });
    }
}

/// Launches a write, and returns 0 if it succeeds. If `status` is 0, there is no status.
///
/// # Safety
/// The stream belongs to the context that was current when the write was prepared, or is 0 for the legacy
/// default stream. `starts` is the address of a list on the device, with one 64-bit number per sample of the
/// shape. They and the status live until the launch has run.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvscatter_bench_launch(
    prepared: &BenchWrite,
    stream: u64,
    starts: u64,
    status: u64,
) -> i32 {
    // SAFETY: The stream belongs to the context, which is current, and `starts` and the status are device
    // memory until the launch has run (this function's contract, which is that of `launch`).
    let launched = unsafe { launch(prepared, stream, starts, status) };
    i32::from(ok_or_record(launched).is_none())
}

/// Launches writes one after the other, and returns the nanoseconds of the host for all, or -1 if one fails.
///
/// # Safety
/// Both lists have `count` entries, and [`kvscatter_bench_launch`] may be called with each of them.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvscatter_bench_time(
    prepared: *const &BenchWrite,
    starts: *const u64,
    count: usize,
    stream: u64,
    status: u64,
) -> i64 {
    // SAFETY: `prepared` points to `count` references (this function's contract).
    let prepared = unsafe { slice::from_raw_parts(prepared, count) };
    // SAFETY: `starts` points to `count` numbers (this function's contract).
    let starts = unsafe { slice::from_raw_parts(starts, count) };
    let begin = Instant::now();
    let launched = prepared.iter().zip(starts).try_for_each(|(prepared, starts)| {
        // SAFETY: `kvscatter_bench_launch`, whose contract is that of `launch`, may be called with each of
        // these (this function's contract).
        unsafe { launch(prepared, stream, *starts, status) }
    });
    let nanoseconds = begin.elapsed().as_nanos();
    if ok_or_record(launched).is_none() { -1 } else { i64::try_from(nanoseconds).unwrap_or(i64::MAX) }
}

fn prepare(shape: &Shape, addresses: &[u64], choices: Option<&LaunchConfig>) -> Result<BenchWrite, BoxError> {
    let [batch, heads, rows] =
        [usize::try_from(shape.batch)?, usize::try_from(shape.heads)?, usize::try_from(shape.rows)?];
    let [capacity, width] = [usize::try_from(shape.capacity)?, usize::try_from(shape.width)?];
    let operator = TensorScatter::new().axis(-2).prepare(
        ElementType::Float16,
        &[batch, heads, capacity, width],
        &[batch, heads, rows, width],
    )?;
    let geometry = operator.geometry();
    let bytes = geometry.cache_bytes().zip(geometry.update_bytes()).zip(geometry.present_bytes());
    let ((cache, update), present) = bytes.ok_or("float16 has a size")?;
    let cuda = CUDA.get().ok_or("kvscatter_bench_open comes first")?;
    let write = if shape.functional == 0 {
        let pairs = addresses.as_chunks().0.iter().map(|&[to, new]| BufferPair {
            cache: DeviceBuffer::new(to, cache),
            update: DeviceBuffer::new(new, update),
        });
        cuda.prepare(&operator, &pairs.collect::<Vec<_>>())?
    } else {
        let triples = addresses.as_chunks().0.iter().map(|&[to, past, new]| PresentBuffers {
            present: DeviceBuffer::new(to, present),
            past: DeviceBuffer::new(past, cache),
            update: DeviceBuffer::new(new, update),
        });
        cuda.prepare_present(&operator, &triples.collect::<Vec<_>>())?
    };
    let write = write.with_launch_config(choices.unwrap_or(&LaunchConfig::DEFAULT));
    Ok(BenchWrite { write: write.skip_all(shape.skip_all != 0), batch })
}

/// # Safety
/// The stream is 0 or belongs to the context that was current when the write was prepared, and that context
/// is current now. `starts` is the address of `prepared.batch` 64-bit numbers on the device. They, the status
/// and the buffers of the write live until the launch has run.
unsafe fn launch(prepared: &BenchWrite, stream: u64, starts: u64, status: u64) -> Result<(), BoxError> {
    let stream = Stream::new(usize::try_from(stream)? as *mut c_void);
    let indices = DeviceCallIndices::new(DeviceList::i64(starts, prepared.batch));
    let status = if status == 0 { None } else { Some(DeviceStatus::at(status)?) };
    // SAFETY: The stream belongs to the current context, and the list, the status and the buffers of the
    // write are memory of it until the launch has run (this function's contract).
    Ok(unsafe { prepared.write.launch(stream, &indices, status) }?)
}

/// Returns the value, or records the message for [`kvscatter_bench_error`] if there is an error.
fn ok_or_record<T>(result: Result<T, BoxError>) -> Option<T> {
    result
        .inspect_err(|failure| {
            let words = CString::new(failure.to_string()).unwrap_or_default();
            LAST.set(words);
        })
        .ok()
}
