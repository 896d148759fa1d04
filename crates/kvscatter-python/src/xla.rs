//! The custom calls of XLA that `kvscatter.jax` compiles into programs.

use std::ffi::{CStr, c_void};
use std::ptr::NonNull;

use kvscatter::{ElementType, Mode, NegativeIndex, OutOfRange};
use kvscatter_xla::{AttentionForm, AttentionLayout, CallFrame, XlaError};
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::types::{PyCapsule, PyDict};

use crate::error::ArgumentNames;
use crate::failure::Failure;
use crate::{attention_error, options};

/// The name of a capsule that contains a handler.
const NAME: &CStr = c"xla._CUSTOM_CALL_TARGET";

type Handler = unsafe extern "C" fn(*mut CallFrame) -> *mut XlaError;

/// Returns the handler of each platform for the write, in the form in which JAX registers one.
#[pyfunction]
pub(crate) fn xla_handlers(py: Python<'_>) -> PyResult<Bound<'_, PyDict>> {
    capsules(py, [("cpu", kvscatter_xla::tensor_scatter), ("CUDA", kvscatter_xla::tensor_scatter_cuda)])
}

/// Returns the handler of each platform for attention, in the form in which JAX registers one.
#[pyfunction]
pub(crate) fn xla_attention_handlers(py: Python<'_>) -> PyResult<Bound<'_, PyDict>> {
    capsules(py, [("cpu", kvscatter_xla::attention), ("CUDA", kvscatter_xla::attention_cuda)])
}

fn capsules<'py>(py: Python<'py>, platforms: [(&str, Handler); 2]) -> PyResult<Bound<'py, PyDict>> {
    let handlers = PyDict::new(py);
    for (platform, handler) in platforms {
        #[expect(clippy::as_conversions, reason = "a capsule contains the address of the function")]
        let address = NonNull::new(handler as *mut c_void);
        let address = address.ok_or_else(|| PyRuntimeError::new_err("the handler has no address"))?;
        // SAFETY: The name and the function live as long as this module, which is never unloaded.
        handlers.set_item(platform, unsafe { PyCapsule::new_with_pointer(py, address, NAME) }?)?;
    }
    Ok(handlers)
}

/// Checks what a program of XLA knows when it is compiled. Returns the sequence dimension, counted from the front.
///
/// `counts` are the numbers of indices and, if there are any, of lengths.
#[pyfunction]
pub(crate) fn xla_check(
    py: Python<'_>,
    past: Vec<usize>,
    update: Vec<usize>,
    counts: Vec<usize>,
    #[pyo3(from_py_with = options::axis)] axis: i64,
    #[pyo3(from_py_with = options::mode)] mode: Mode,
    #[pyo3(from_py_with = options::out_of_range)] out_of_range: OutOfRange,
) -> PyResult<usize> {
    let operator = options::tensor_scatter(axis, mode, out_of_range, NegativeIndex::Modulo);
    // The rules about shapes are the same for all types.
    let write = operator.prepare(ElementType::UInt8, &past, &update);
    let write = write.map_err(|refused| ArgumentNames::Present.raise(py, refused))?;
    let zeros: Vec<_> = counts.into_iter().map(|count| vec![0_i64; count]).collect();
    let [starts, lengths] = [0, 1].map(|list| zeros.get(list).map(Vec::as_slice));
    let plan = write.plan_with_lengths(starts, lengths);
    plan.map_err(|refused| ArgumentNames::Present.raise(py, refused))?;
    operator.resolve_axis(past.len()).map_err(|refused| ArgumentNames::Present.raise(py, refused))
}

/// The shapes of a call: `q`, `k` and `v`, and perhaps the mask and the block tables.
type Shapes = ([usize; 4], [usize; 4], [usize; 4], Option<Vec<usize>>, Option<Vec<usize>>);

/// Checks what a program of XLA knows about attention when it is compiled. `elements` are the NumPy names of the types
/// of queries and of the cache.
#[pyfunction]
#[expect(clippy::too_many_arguments, reason = "the shapes and attributes of the operator")]
pub(crate) fn xla_check_attention(
    py: Python<'_>,
    elements: (String, String),
    shapes: Shapes,
    has_sinks: bool,
    causal: bool,
    #[pyo3(from_py_with = options::window)] window: Option<usize>,
    #[pyo3(from_py_with = options::scale)] scale: Option<f32>,
    #[pyo3(from_py_with = options::softcap)] softcap: f32,
    #[pyo3(from_py_with = options::mode)] mode: Mode,
    #[pyo3(from_py_with = options::attention_layout)] layout: AttentionLayout,
) -> PyResult<()> {
    let (query, key, value, mask, tables) = shapes;
    // Attention refuses the types that are not named here.
    let element = |name: &str| match name {
        "float32" => ElementType::Float32,
        "float16" => ElementType::Float16,
        "bfloat16" => ElementType::BFloat16,
        "int8" => ElementType::Int8,
        _ => ElementType::Float64,
    };
    let blocks_per_sample = match tables.as_deref() {
        None => None,
        Some(&[_, blocks]) => Some(blocks),
        Some(other) => return Err(Failure::block_tables(other.len()).into()),
    };
    let form = AttentionForm {
        element: element(&elements.0),
        cache_element: element(&elements.1),
        query,
        key,
        value,
        mask,
        has_sinks,
        blocks_per_sample,
        is_causal: causal,
        window,
        scale,
        softcap,
        mode,
        layout,
    };
    form.prepare().map(drop).map_err(|error| attention_error::raise(py, &error))
}
