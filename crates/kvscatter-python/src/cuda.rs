//! Writes on CUDA devices. A write is prepared once with all of its addresses, and launched on the current
//! stream.

mod arguments;
mod array;
mod error;
mod interface;
mod lists;
mod operator;
mod status_words;
mod stream;
mod write;

use kvscatter::spec::ascend::KvCacheOperation;
use kvscatter::spec::tensorrt::KvCacheUpdate;
use kvscatter::{Mode, NegativeIndex, OutOfRange, Prepared};
use pyo3::prelude::*;

use crate::options;
use arguments::{CommonArguments, Shapes, driver};
use lists::ListArguments;
use operator::{ASCEND, ONNX, PRESENT, SLOTS, TENSORRT};
pub(crate) use write::{CudaStatus, CudaWrite};

/// Returns the CUDA version that this machine's driver supports, as 1000 * major + 10 * minor.
///
/// This loads the driver but does not initialise it, so the process may still fork afterwards.
///
/// Raises:
///     CudaError: There is no driver.
#[pyfunction]
pub(crate) fn driver_version(py: Python<'_>) -> PyResult<i32> {
    driver(py)?.driver_version().map_err(|refused| error::raise(py, &ONNX, refused))
}

/// Prepares ONNX `TensorScatter` in place for many caches at the same positions, such as the keys and values
/// of one layer or of all layers.
///
/// The addresses of the arrays are fixed from now on, and only their contents may change. The write keeps
/// the arrays alive. The only work on the device is to load the kernels, once per process.
///
/// Args:
///     pairs: Each cache and its update, all of one form. They are arrays on the current CUDA device, of
///         PyTorch, CuPy, JAX or any library with `__dlpack__` or `__cuda_array_interface__`. JAX arrays are
///         never written.
///     write_indices: The first slot written, one per sample, as int32 or int64 on the device. By default
///         all samples begin at slot 0.
///     lengths: The number of rows of each sample that are not padding, as int32 or int64 on the device.
///         Padding after them is not written. kvscatter extension; not part of the specification.
///     axis, mode, negative_index: See `tensor_scatter_`.
///     skip_all: Whether a launch with any bad index writes nothing. By default it leaves out the samples
///         with a bad index.
///     status: 16 zero bytes on the device, aligned to 8 bytes, in which launches report bad indices. By
///         default the library of the first cache allocates them, if that is PyTorch or CuPy.
///
/// Returns:
///     A `Write`, whose `launch()` is called in every step.
///
/// Raises:
///     CudaError: There is no driver, this thread has no current context, or the driver returns an error.
///     DeviceError: An array is on another device.
///     ElementTypeError, ShapeError, OptionError, PositionError, ArrayError: For the same reasons as
///         `tensor_scatter_`, and for lists of another type, alignment or number of values.
#[pyfunction]
#[pyo3(signature = (pairs, write_indices=None, *, lengths=None, axis=-2, mode=Mode::Linear, negative_index=NegativeIndex::Modulo, skip_all=false, status=None))]
#[pyo3(text_signature = "(pairs, write_indices=None, *, lengths=None, axis=-2, mode='linear', \
    negative_index='modulo', skip_all=False, status=None)")]
#[expect(clippy::too_many_arguments, reason = "the attributes of the operator, by keyword")]
pub(crate) fn prepare(
    pairs: &Bound<'_, PyAny>,
    write_indices: Option<&Bound<'_, PyAny>>,
    lengths: Option<&Bound<'_, PyAny>>,
    #[pyo3(from_py_with = options::axis)] axis: i64,
    #[pyo3(from_py_with = options::mode)] mode: Mode,
    #[pyo3(from_py_with = options::negative_index)] negative_index: NegativeIndex,
    skip_all: bool,
    status: Option<&Bound<'_, PyAny>>,
) -> PyResult<CudaWrite> {
    let lists = ListArguments { starts: write_indices, lengths, ..ListArguments::default() };
    let check = tensor_scatter(axis, mode, negative_index);
    arguments::prepare(&ONNX, pairs, CommonArguments { lists, skip_all, status }, check)
}

/// Prepares the functional form of ONNX `TensorScatter`, which copies each past to its present, with the
/// update in it, in one pass.
///
/// Args:
///     triples: Each past, its update and its present. The present is dense, has the past's shape and is
///         written completely.
///     write_indices, lengths, axis, mode, negative_index, skip_all, status: See `prepare`. A sample with a
///         bad index is copied from its past without the update.
///
/// Raises:
///     Error: For the same reasons as `prepare`.
#[pyfunction]
#[pyo3(signature = (triples, write_indices=None, *, lengths=None, axis=-2, mode=Mode::Linear, negative_index=NegativeIndex::Modulo, skip_all=false, status=None))]
#[pyo3(text_signature = "(triples, write_indices=None, *, lengths=None, axis=-2, mode='linear', \
    negative_index='modulo', skip_all=False, status=None)")]
#[expect(clippy::too_many_arguments, reason = "the attributes of the operator, by keyword")]
pub(crate) fn prepare_present(
    triples: &Bound<'_, PyAny>,
    write_indices: Option<&Bound<'_, PyAny>>,
    lengths: Option<&Bound<'_, PyAny>>,
    #[pyo3(from_py_with = options::axis)] axis: i64,
    #[pyo3(from_py_with = options::mode)] mode: Mode,
    #[pyo3(from_py_with = options::negative_index)] negative_index: NegativeIndex,
    skip_all: bool,
    status: Option<&Bound<'_, PyAny>>,
) -> PyResult<CudaWrite> {
    let lists = ListArguments { starts: write_indices, lengths, ..ListArguments::default() };
    let check = tensor_scatter(axis, mode, negative_index);
    arguments::prepare(&PRESENT, triples, CommonArguments { lists, skip_all, status }, check)
}

/// Prepares TensorRT `KVCacheUpdate` for many caches at the same positions. Updates are padded, or packed
/// with `updateLengths`.
///
/// Args:
///     pairs: Each cache and its update, as for `kv_cache_update_`, on the current CUDA device.
///     writeIndices: The first slot written, one per sample of the update, as int32 or int64 on the device.
///     updateLengths: The beginning of each sample's rows in packed updates, cumulative from 0, as int32 or
///         int64 on the device. It has one value more than there are samples. A launch writes nothing if the
///         values are not such a list.
///     lengths, skip_all, status: See `prepare`.
///
/// Raises:
///     Error: For the same reasons as `prepare`.
#[pyfunction]
#[pyo3(signature = (pairs, writeIndices, updateLengths=None, *, lengths=None, skip_all=false, status=None))]
#[expect(non_snake_case, reason = "TensorRT's spelling")]
pub(crate) fn prepare_kv_cache_update(
    pairs: &Bound<'_, PyAny>,
    writeIndices: &Bound<'_, PyAny>,
    updateLengths: Option<&Bound<'_, PyAny>>,
    lengths: Option<&Bound<'_, PyAny>>,
    skip_all: bool,
    status: Option<&Bound<'_, PyAny>>,
) -> PyResult<CudaWrite> {
    let tensorrt = KvCacheUpdate::new().out_of_range(OutOfRange::SkipSample);
    let lists = ListArguments { starts: Some(writeIndices), lengths, row_counts: updateLengths, layer: None };
    let check = |Shapes { element, cache, update }: Shapes<'_>| match updateLengths {
        Some(_) => tensorrt.prepare_packed(element, cache, update),
        None => tensorrt.prepare(element, cache, update),
    };
    arguments::prepare(&TENSORRT, pairs, CommonArguments { lists, skip_all, status }, check)
}

/// Prepares Ascend ATB `KVCacheOperation` for one layer of many caches. The number of the layer is on the
/// device too.
///
/// Args:
///     pairs: Each `past` and its `newKv`, as for `kv_cache_operation_`, on the current CUDA device.
///     layerId: The layer, as one int32 on the device.
///     tokenOffset: The length after the write, one per batch, as int32 or int64 on the device.
///     seqLen: The number of tokens of each batch, as int32 or int64 on the device.
///     lengths, skip_all, status: See `prepare`.
///
/// Raises:
///     Error: For the same reasons as `prepare`.
#[pyfunction]
#[pyo3(signature = (pairs, layerId, tokenOffset, seqLen, *, lengths=None, skip_all=false, status=None))]
#[expect(non_snake_case, reason = "Ascend's spelling")]
pub(crate) fn prepare_kv_cache_operation(
    pairs: &Bound<'_, PyAny>,
    layerId: &Bound<'_, PyAny>,
    tokenOffset: &Bound<'_, PyAny>,
    seqLen: &Bound<'_, PyAny>,
    lengths: Option<&Bound<'_, PyAny>>,
    skip_all: bool,
    status: Option<&Bound<'_, PyAny>>,
) -> PyResult<CudaWrite> {
    let ascend = KvCacheOperation::new().out_of_range(OutOfRange::SkipSample);
    let lists =
        ListArguments { starts: Some(tokenOffset), lengths, row_counts: Some(seqLen), layer: Some(layerId) };
    let check = |of: Shapes<'_>| ascend.prepare(of.element, of.cache, of.update);
    arguments::prepare(&ASCEND, pairs, CommonArguments { lists, skip_all, status }, check)
}

/// Prepares a write of each token to one slot, as in engines with paged caches.
///
/// Args:
///     pairs: Each cache `[1, slots, ...]` and its update `[1, tokens, ...]`, on the current CUDA device.
///         They are views of the memory of a paged engine.
///     slot_mapping: The slot of each token, as int32 or int64 on the device. A negative slot leaves the
///         token out and is not an error. If two tokens have the same slot, the slot may contain bytes of
///         both.
///     axis: The dimension of slots and tokens.
///     skip_all, status: See `prepare`.
///
/// Raises:
///     Error: For the same reasons as `prepare`.
#[pyfunction]
#[pyo3(signature = (pairs, slot_mapping, *, axis=1, skip_all=false, status=None))]
pub(crate) fn prepare_slots(
    pairs: &Bound<'_, PyAny>,
    slot_mapping: &Bound<'_, PyAny>,
    #[pyo3(from_py_with = options::axis)] axis: i64,
    skip_all: bool,
    status: Option<&Bound<'_, PyAny>>,
) -> PyResult<CudaWrite> {
    let lists = ListArguments { starts: Some(slot_mapping), ..ListArguments::default() };
    let check = tensor_scatter(axis, Mode::Linear, NegativeIndex::Modulo);
    arguments::prepare(&SLOTS, pairs, CommonArguments { lists, skip_all, status }, check)
}

/// Checks the shapes of a write by the rules of `TensorScatter`.
fn tensor_scatter(
    axis: i64,
    mode: Mode,
    negative_index: NegativeIndex,
) -> impl FnOnce(Shapes<'_>) -> Result<Prepared, kvscatter::Error> {
    let onnx = options::tensor_scatter(axis, mode, OutOfRange::SkipSample, negative_index);
    move |of| onnx.prepare(of.element, of.cache, of.update)
}
