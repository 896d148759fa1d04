//! One call's positions, checked, kept and drawn.

use std::sync::Arc;

use kvscatter::picture::Picture;
use kvscatter::{Block, Loop, Mode, NegativeIndex, OutOfRange, Segment, WritePlan};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyList, PyTuple, PyType};

use crate::failure::plural;
use crate::prepared_scatter::{PreparedScatter, ScatterIndices};
use crate::{error, options};

/// A write whose every position is known to be right: what `kvscatter.plan` and `Prepared.plan` return.
///
/// It can be looked at, and carried out any number of times: for keys, for values, for every layer that shares the
/// positions. It keeps a copy of them, and no array. A notebook shows it as a picture, and `str` gives the same as
/// text. Copying returns the same object. It cannot be pickled, so another process makes another one.
#[pyclass(frozen, module = "kvscatter", name = "Plan")]
pub(crate) struct Plan {
    write: Arc<PreparedScatter>,
    write_indices: Option<Box<[i64]>>,
    lengths: Option<Box<[i64]>>,
}

/// Checks a call of `tensor_scatter_` without making it.
///
/// Args:
///     past_cache: The cache, or its shape.
///     update: The update, or its shape.
///     write_indices: The first slot written, one per sample; 0 if absent.
///     axis: The sequence dimension.
///     mode: `"linear"` or `"circular"`.
///     lengths: Rows of each sample that are real: padding after them is not written. An extension of ours.
///     out_of_range: `"error"`, or `"skip"` to leave a sample that does not fit as it is. An extension of ours.
///     negative_index: In a ring: `"modulo"`, or `"reject"` as in ONNX Runtime.
///     dtype: The type of the elements, where shapes are given.
///
/// Raises:
///     Error: As `tensor_scatter_`, but for what only arrays can get wrong.
///
/// >>> plan = kvscatter.plan((2, 1, 8, 64), (2, 1, 3, 64), [1, 6], mode="circular", dtype="float16")
/// >>> print(plan.text(width=8))
///                        0   4  7
/// sample  write_indices  ╷   ╷  ╷
///      0              1  ·███····  1-3
///      1              6  ▒·····██  6-7, 0
/// · old  █ written  ▒ wrapped  × skipped   1 column = 1 slot
#[pyfunction]
#[pyo3(signature = (
    past_cache, update, write_indices = None, *,
    axis = -2, mode = Mode::Linear, lengths = None, out_of_range = OutOfRange::Error, negative_index = NegativeIndex::Modulo, dtype = None
))]
#[pyo3(text_signature = "(past_cache, update, write_indices=None, *, axis=-2, mode='linear', lengths=None, \
    out_of_range='error', negative_index='modulo', dtype=None)")]
#[expect(clippy::too_many_arguments, reason = "those of the operator, by keyword")]
pub(crate) fn plan(
    py: Python<'_>,
    past_cache: &Bound<'_, PyAny>,
    update: &Bound<'_, PyAny>,
    write_indices: Option<&Bound<'_, PyAny>>,
    #[pyo3(from_py_with = options::axis)] axis: i64,
    #[pyo3(from_py_with = options::mode)] mode: Mode,
    lengths: Option<&Bound<'_, PyAny>>,
    #[pyo3(from_py_with = options::out_of_range)] out_of_range: OutOfRange,
    #[pyo3(from_py_with = options::negative_index)] negative_index: NegativeIndex,
    dtype: Option<&Bound<'_, PyAny>>,
) -> PyResult<Plan> {
    let operator = options::tensor_scatter(axis, mode, out_of_range, negative_index);
    let write = PreparedScatter::new(py, operator, past_cache, update, dtype)?;
    Plan::new(py, write, write_indices, lengths)
}

#[pymethods]
impl Plan {
    /// Writes `update` into `cache`, in place; gives the number of samples skipped.
    ///
    /// The arrays are of the dtype, shape and strides that the plan was made for.
    fn write(&self, py: Python<'_>, cache: &Bound<'_, PyAny>, update: &Bound<'_, PyAny>) -> PyResult<usize> {
        self.write.in_place(py, &self.planned(py)?, &[], cache, update)
    }

    /// The copies it is made of, in elements.
    #[getter]
    fn blocks<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let blocks = self.planned(py)?.blocks().map(|block| python_block(py, block));
        PyList::new(py, blocks.collect::<PyResult<Vec<_>>>()?)
    }

    /// Which slots of which sample are written: what a block is before layouts enter.
    #[getter]
    fn segments<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let segments = self.planned(py)?.segments().map(|segment| python_segment(py, segment));
        PyList::new(py, segments.collect::<PyResult<Vec<_>>>()?)
    }

    /// The number of samples that `out_of_range="skip"` leaves as they are.
    #[getter]
    fn skipped(&self, py: Python<'_>) -> PyResult<usize> {
        Ok(self.planned(py)?.skipped())
    }

    /// Elements that the write moves: it reads and writes these and no others.
    #[getter]
    fn elements(&self, py: Python<'_>) -> PyResult<usize> {
        Ok(self.planned(py)?.elements())
    }

    /// Bytes that the write moves; `None` for strings.
    #[getter]
    fn bytes(&self, py: Python<'_>) -> PyResult<Option<usize>> {
        Ok(self.planned(py)?.bytes())
    }

    /// The picture as text: a line for each of the first `samples`, of at most `width` columns for the slots and the
    /// labels on both sides. Either is at most 4096.
    #[pyo3(signature = (*, width = 80, samples = SHOWN, ascii = false))]
    #[pyo3(text_signature = "($self, *, width=80, samples=64, ascii=False)")]
    fn text(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = options::width)] width: usize,
        #[pyo3(from_py_with = options::samples)] samples: usize,
        ascii: bool,
    ) -> PyResult<String> {
        let picture = Picture::new(&self.planned(py)?, samples);
        let text = picture.text().width(width).ascii(ascii).to_string();
        Ok(text.trim_end_matches('\n').to_owned())
    }

    /// The picture as a standalone SVG document, with a lane for each of the first `samples`.
    #[pyo3(signature = (*, samples = SHOWN))]
    #[pyo3(text_signature = "($self, *, samples=64)")]
    fn svg(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = options::samples)] samples: usize,
    ) -> PyResult<String> {
        Ok(Picture::new(&self.planned(py)?, samples).svg().to_string())
    }

    /// Nothing about it ever changes.
    fn __copy__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    fn __deepcopy__(slf: Py<Self>, _memo: &Bound<'_, PyAny>) -> Py<Self> {
        slf
    }

    fn __str__(&self, py: Python<'_>) -> PyResult<String> {
        self.text(py, 80, SHOWN, false)
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        Ok(format!("<kvscatter.Plan: {}>", summary(&self.planned(py)?)))
    }

    fn _repr_html_<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let plan = self.planned(py)?;
        let svg = Picture::new(&plan, SHOWN_IN_NOTEBOOK).svg().to_string();
        py.import(MODULE)?.call_method1("figure", (svg, summary(&plan)))
    }
}

impl Plan {
    /// # Errors
    /// `ElementTypeError`, `ShapeError` and `PositionError` for what is wrong with the positions.
    pub(crate) fn new(
        py: Python<'_>,
        write: Arc<PreparedScatter>,
        write_indices: Option<&Bound<'_, PyAny>>,
        lengths: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Self> {
        let indices = ScatterIndices::of(write_indices, lengths)?;
        let [write_indices, lengths] = indices.all().map(|list| list.values().map(Box::from));
        let plan = Self { write, write_indices, lengths };
        plan.planned(py)?;
        Ok(plan)
    }

    /// The core's plan borrows its positions, so it is made anew, in nanoseconds. `new` has seen that it can be.
    fn planned(&self, py: Python<'_>) -> PyResult<WritePlan<'_>> {
        let (starts, lengths) = (self.write_indices.as_deref(), self.lengths.as_deref());
        self.write.prepared.plan_with_lengths(starts, lengths).map_err(|refused| error::core(py, refused))
    }
}

/// Lanes of a picture by default.
const SHOWN: usize = 64;
/// Of one that shows by itself: they are 52 pixels high.
const SHOWN_IN_NOTEBOOK: usize = 16;

fn summary(plan: &WritePlan<'_>) -> String {
    let mut blocks = 0_usize;
    plan.for_each_block(|_| blocks = blocks.wrapping_add(1));
    let (elements, skipped) = (plan.elements(), plan.skipped());
    let bytes = plan.bytes().map_or_else(String::new, |bytes| format!(" ({bytes} byte{})", plural(bytes)));
    let moved = format!("{elements} element{}{bytes} in {blocks} block{}", plural(elements), plural(blocks));
    match skipped {
        0 => moved,
        _ => format!("{moved}, {skipped} sample{} skipped", plural(skipped)),
    }
}

/// Loops that repeat nothing are left out.
fn python_block<'py>(py: Python<'py>, block: Block) -> PyResult<Bound<'py, PyAny>> {
    static BLOCK: PyOnceLock<Py<PyType>> = PyOnceLock::new();
    let Block { len, dst_offset, src_offset, loops, .. } = block;
    let loops = loops.into_iter().filter(|each| each.count != 1).map(|each| python_loop(py, each));
    let loops = PyTuple::new(py, loops.collect::<PyResult<Vec<_>>>()?)?;
    BLOCK.import(py, MODULE, "Block")?.call1((len, dst_offset, src_offset, loops))
}

fn python_loop(py: Python<'_>, Loop { count, dst_stride, src_stride }: Loop) -> PyResult<Bound<'_, PyAny>> {
    static LOOP: PyOnceLock<Py<PyType>> = PyOnceLock::new();
    LOOP.import(py, MODULE, "Loop")?.call1((count, dst_stride, src_stride))
}

fn python_segment(py: Python<'_>, segment: Segment) -> PyResult<Bound<'_, PyAny>> {
    static SEGMENT: PyOnceLock<Py<PyType>> = PyOnceLock::new();
    let Segment { sample, slot, row, rows, .. } = segment;
    SEGMENT.import(py, MODULE, "Segment")?.call1((sample, slot, row, rows))
}

const MODULE: &str = "kvscatter._plan";
