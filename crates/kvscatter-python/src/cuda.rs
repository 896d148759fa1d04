//! Writes on CUDA devices: prepared once with everything that has an address, launched on the stream that is current.

mod arguments;
mod array;
mod driver;
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
use arguments::{CommonArguments, Shapes};
use lists::ListArguments;
use operator::{ASCEND, ONNX, PRESENT, SLOTS, TENSORRT};
pub(crate) use write::{CudaStatus, CudaWrite};

/// The CUDA version that the driver of this machine supports: 1000 * major + 10 * minor. The driver is loaded for it and
/// not initialised, so that a process that has asked may still fork.
///
/// Raises:
///     CudaError: There is no driver.
#[pyfunction]
pub(crate) fn driver_version(py: Python<'_>) -> PyResult<i32> {
    driver::load(py)?.driver_version().map_err(|refused| error::raise(py, &ONNX, refused))
}

/// Prepares ONNX `TensorScatter` in place, into many caches at the same positions: the keys and values of a layer, or of
/// all layers.
///
/// Every array has its address from now on: what changes is what they hold. The write keeps them alive. Nothing is asked
/// of the device but its kernels, once per process.
///
/// Args:
///     pairs: Each cache and its update, all of one form: arrays on the current CUDA device, of PyTorch, CuPy, JAX (which
///         are never written) or any library with `__dlpack__` or `__cuda_array_interface__`.
///     write_indices: The first slot written, one per sample: int32 or int64 on the device. Where it is left away, all
///         begin at slot 0, which linear mode allows.
///     lengths: Rows of each sample that are real, likewise: padding after them is not written. An extension of ours.
///     axis, mode, negative_index: Those of `tensor_scatter_`.
///     skip_all: Whether a launch with any bad index writes nothing, instead of leaving out the samples that have one.
///     status: 16 bytes on the device, 8-byte aligned and zero, in which launches report bad indices. By default PyTorch
///         or CuPy makes them, whichever has made the first cache.
///
/// Returns:
///     A `Write`: `launch()` it every step.
///
/// Raises:
///     CudaError: No driver, no context that is current on this thread, or one that refuses.
///     DeviceError: An array that lies elsewhere.
///     ElementTypeError, ShapeError, OptionError, PositionError, ArrayError: As `tensor_scatter_`, and for lists of
///         another type, alignment or number of values.
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

/// Prepares the functional form of ONNX `TensorScatter`: each present becomes its past with the update in it, in one pass.
///
/// Args:
///     triples: Each past, its update and its present, which is written whole: dense and of the past's shape.
///     write_indices, lengths, axis, mode, negative_index, skip_all, status: Those of `prepare`. The present
///         of a sample with a bad index is its past.
///
/// Raises:
///     As `prepare`.
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

/// Prepares TensorRT `KVCacheUpdate` into many caches at the same positions: padded, or packed where `updateLengths` is
/// given.
///
/// Args:
///     pairs: Each cache and its update, as `kv_cache_update_` takes them, on the current CUDA device.
///     writeIndices: The first slot written, one per sample of the update: int32 or int64 on the device.
///     updateLengths: Where each sample's rows begin in packed updates: cumulative from 0, one more than samples; int32
///         or int64 on the device. A launch whose values are no such list writes nothing.
///     lengths, skip_all, status: Those of `prepare`.
///
/// Raises:
///     As `prepare`.
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

/// Prepares Ascend ATB `KVCacheOperation` into one layer of many caches, whose number is on the device too.
///
/// Args:
///     pairs: Each `past` and its `newKv`, as `kv_cache_operation_` takes them, on the current CUDA device.
///     layerId: The layer: one int32 on the device.
///     tokenOffset: The length after the write, one per batch: int32 or int64 on the device.
///     seqLen: The tokens of each batch, likewise.
///     lengths, skip_all, status: Those of `prepare`.
///
/// Raises:
///     As `prepare`.
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

/// Prepares a write of tokens to one slot each, as engines with paged caches make it.
///
/// Args:
///     pairs: Each cache, `[1, slots, ...]`, and its update, `[1, tokens, ...]`, on the current CUDA device: views of what
///         a paged engine holds.
///     slot_mapping: The slot of each token: int32 or int64 on the device. A negative one leaves its token out, and is not
///         bad. Two tokens with one slot leave either's bytes there, and possibly some of each.
///     axis: The dimension of slots and tokens.
///     skip_all, status: Those of `prepare`.
///
/// Raises:
///     As `prepare`.
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
