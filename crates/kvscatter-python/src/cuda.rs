//! Writes on CUDA devices: prepared once with everything that has an address, launched on the stream that is current.

mod array;
mod error;
mod interface;
mod operator;
mod stream;
mod write;

use kvscatter::spec::ascend::KvCacheOperation;
use kvscatter::spec::tensorrt::KvCacheUpdate;
use kvscatter::{Geometry, Mode, NegativeIndex, OutOfRange};
use kvscatter_cuda::{Cuda, Error, Pair, Triple};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;

use crate::failure::{Failure, class_name};
use crate::{options, prepared};
use array::DeviceArray;
use operator::{ASCEND, ONNX, Operator, PRESENT, SLOTS, TENSORRT};
pub(crate) use write::{CudaStatus, CudaWrite};
use write::{Lists, Parts, Shapes};

/// The CUDA version that the driver of this machine supports: 1000 * major + 10 * minor.
///
/// Raises:
///     CudaError: There is no driver, or no device.
#[pyfunction]
#[pyo3(name = "cuda_driver_version")]
pub(crate) fn driver_version(py: Python<'_>) -> PyResult<i32> {
    driver(py)?.driver_version().map_err(|refused| error::raise(py, &ONNX, refused))
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
///     lengths: Rows of each sample that are real, likewise: padding behind them is not written. An extension of ours.
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
#[pyo3(name = "cuda_prepare", signature = (pairs, write_indices=None, *, lengths=None, axis=-2, mode=Mode::Linear, negative_index=NegativeIndex::Modulo, skip_all=false, status=None))]
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
    let onnx = options::tensor_scatter(axis, mode, OutOfRange::SkipSample, negative_index);
    let lists = Lists { starts: write_indices, lengths, ..Lists::default() };
    let geometry = |of: Shapes<'_>| Ok(onnx.prepare(of.element, of.cache, of.update)?.geometry().clone());
    in_place(&ONNX, pairs, lists, Extras { skip_all, status }, geometry, Cuda::prepare)
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
#[pyo3(name = "cuda_prepare_present", signature = (triples, write_indices=None, *, lengths=None, axis=-2, mode=Mode::Linear, negative_index=NegativeIndex::Modulo, skip_all=false, status=None))]
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
    let py = triples.py();
    let onnx = options::tensor_scatter(axis, mode, OutOfRange::SkipSample, negative_index);
    let triples = self::triples(triples)?;
    let [(past, update, present), ..] = &*triples else {
        return Err(Failure::NoPairs { argument: "triples" }.into());
    };
    update.array.check_same_element(&past.array)?;
    for (place, (one, other, out)) in triples.iter().enumerate() {
        past.array.form.check_prepared(&one.array, place)?;
        update.array.form.check_prepared(&other.array, place)?;
        past.array.form.check_out(&out.array)?;
    }
    let cuda = current(py, triples.iter().flat_map(|(past, update, present)| [past, update, present]))?;
    let of = Shapes::of(past, update);
    let raise = |refused| error::raise(py, &PRESENT, refused);
    let prepared = onnx.prepare(of.element, of.cache, of.update).map_err(|refused| raise(refused.into()))?;
    let geometry = prepared.geometry();
    let tables: Vec<_> = triples
        .iter()
        .map(|(past, update, present)| Triple {
            past: past.buffer(geometry.cache_bytes()),
            update: update.buffer(geometry.update_bytes()),
            present: present.buffer(geometry.present_bytes()),
        })
        .collect();
    let write = py.detach(|| cuda.prepare_present(geometry, &tables)).map_err(raise)?;
    let lists = Lists { starts: write_indices, lengths, ..Lists::default() }.read(&PRESENT)?;
    let parts = Parts { operator: &PRESENT, write: write.skip_all(skip_all), lists };
    let first = present.object.clone();
    let (read, written): (Vec<_>, Vec<_>) =
        triples.into_iter().map(|(past, update, present)| ([past, update], present)).unzip();
    parts.finish(status, written, read.into_iter().flatten().collect(), &first)
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
#[pyo3(name = "cuda_prepare_kv_cache_update", signature = (pairs, writeIndices, updateLengths=None, *, lengths=None, skip_all=false, status=None))]
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
    let lists = Lists { starts: Some(writeIndices), lengths, spans: updateLengths, layer: None };
    let extras = Extras { skip_all, status };
    if updateLengths.is_some() {
        let geometry =
            |of: Shapes<'_>| Ok(tensorrt.prepare_packed(of.element, of.cache, of.update)?.geometry().clone());
        return in_place(&TENSORRT, pairs, lists, extras, geometry, Cuda::prepare);
    }
    let geometry = |of: Shapes<'_>| Ok(tensorrt.prepare(of.element, of.cache, of.update)?.geometry().clone());
    in_place(&TENSORRT, pairs, lists, extras, geometry, Cuda::prepare)
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
#[pyo3(name = "cuda_prepare_kv_cache_operation", signature = (pairs, layerId, tokenOffset, seqLen, *, lengths=None, skip_all=false, status=None))]
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
    let lists = Lists { starts: Some(tokenOffset), lengths, spans: Some(seqLen), layer: Some(layerId) };
    let geometry = |of: Shapes<'_>| Ok(ascend.prepare(of.element, of.update, of.cache)?.geometry().clone());
    in_place(&ASCEND, pairs, lists, Extras { skip_all, status }, geometry, Cuda::prepare)
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
#[pyo3(name = "cuda_prepare_slots", signature = (pairs, slot_mapping, *, axis=1, skip_all=false, status=None))]
pub(crate) fn prepare_slots(
    pairs: &Bound<'_, PyAny>,
    slot_mapping: &Bound<'_, PyAny>,
    #[pyo3(from_py_with = options::axis)] axis: i64,
    skip_all: bool,
    status: Option<&Bound<'_, PyAny>>,
) -> PyResult<CudaWrite> {
    let onnx = options::tensor_scatter(axis, Mode::Linear, OutOfRange::SkipSample, NegativeIndex::Modulo);
    let lists = Lists { starts: Some(slot_mapping), ..Lists::default() };
    let geometry = |of: Shapes<'_>| Ok(onnx.prepare(of.element, of.cache, of.update)?.geometry().clone());
    in_place(&SLOTS, pairs, lists, Extras { skip_all, status }, geometry, Cuda::prepare_slots)
}

/// What every write has beside its operator.
struct Extras<'a, 'py> {
    skip_all: bool,
    status: Option<&'a Bound<'py, PyAny>>,
}

/// The way of every operator that writes in place.
fn in_place<'py>(
    operator: &'static Operator,
    pairs: &Bound<'py, PyAny>,
    lists: Lists<'_, 'py>,
    Extras { skip_all, status }: Extras<'_, 'py>,
    geometry: impl FnOnce(Shapes<'_>) -> Result<Geometry, kvscatter::Error>,
    make: fn(&Cuda, &Geometry, &[Pair]) -> Result<kvscatter_cuda::Write, Error>,
) -> PyResult<CudaWrite> {
    let py = pairs.py();
    let pairs = prepared::pairs(pairs)?;
    let pairs = pairs.iter().map(|(cache, update)| {
        Ok((DeviceArray::written(cache, operator.cache)?, DeviceArray::read(update, operator.update)?))
    });
    let pairs: Vec<_> = pairs.collect::<PyResult<_>>()?;
    let [(cache, update), ..] = &*pairs else {
        return Err(Failure::NoPairs { argument: "pairs" }.into());
    };
    update.array.check_same_element(&cache.array)?;
    for (place, (one, other)) in pairs.iter().enumerate() {
        cache.array.form.check_prepared(&one.array, place)?;
        update.array.form.check_prepared(&other.array, place)?;
    }
    let cuda = current(py, pairs.iter().flat_map(|(cache, update)| [cache, update]))?;
    let raise = |refused| error::raise(py, operator, refused);
    let geometry = geometry(Shapes::of(cache, update)).map_err(|refused| raise(refused.into()))?;
    let table: Vec<_> = pairs
        .iter()
        .map(|(cache, update)| Pair {
            cache: cache.buffer(geometry.cache_bytes()),
            update: update.buffer(geometry.update_bytes()),
        })
        .collect();
    let write = py.detach(|| make(cuda, &geometry, &table)).map_err(raise)?;
    let parts = Parts { operator, write: write.skip_all(skip_all), lists: lists.read(operator)? };
    let first = cache.object.clone();
    let (written, read) = pairs.into_iter().unzip();
    parts.finish(status, written, read, &first)
}

/// A past, its update and its present.
type Arrays<'py> = (DeviceArray<'py>, DeviceArray<'py>, DeviceArray<'py>);

fn triples<'py>(triples: &Bound<'py, PyAny>) -> PyResult<Vec<Arrays<'py>>> {
    type Three<'py> = (Bound<'py, PyAny>, Bound<'py, PyAny>, Bound<'py, PyAny>);
    let triples = triples.try_iter()?.map(|triple| {
        let triple = triple?;
        let class = class_name(&triple.get_type());
        let unfit = |_| Failure::Keyword {
            argument: "triples",
            class,
            want: "tuples of a past, its update and its present",
        };
        let (past, update, present): Three<'_> = triple.extract().map_err(unfit)?;
        Ok((
            DeviceArray::read(&past, PRESENT.cache)?,
            DeviceArray::read(&update, PRESENT.update)?,
            DeviceArray::written(&present, "present")?,
        ))
    });
    triples.collect()
}

/// The driver, whose current device has all these arrays.
fn current<'a, 'py: 'a>(
    py: Python<'py>,
    arrays: impl IntoIterator<Item = &'a DeviceArray<'py>>,
) -> PyResult<&'py Cuda> {
    let cuda = driver(py)?;
    let device = cuda.device().map_err(|refused| error::raise(py, &ONNX, refused))?;
    for array in arrays {
        array.check_on(device)?;
    }
    Ok(cuda)
}

/// The driver of this machine, loaded when it is first needed.
fn driver(py: Python<'_>) -> PyResult<&Cuda> {
    static DRIVER: PyOnceLock<Cuda> = PyOnceLock::new();
    DRIVER.get_or_try_init(py, || py.detach(Cuda::new).map_err(|refused| error::raise(py, &ONNX, refused)))
}
