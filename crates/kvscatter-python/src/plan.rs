//! The positions of one call, checked and stored, and their picture.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use kvscatter::picture::Picture;
use kvscatter::{Block, Loop, Mode, NegativeIndex, OutOfRange, Segment, WritePlan};
use pyo3::prelude::*;
use pyo3::types::{PyList, PyTuple, PyType};

use crate::error::ArgumentNames;
use crate::failure::plural;
use crate::lazy::Lazy;
use crate::options;
use crate::prepared_scatter::{PreparedScatter, ScatterIndices, restore_function};

/// A write whose positions have all been checked, as `kvscatter.plan` and `Prepared.plan` return it.
///
/// A plan can be inspected, and executed any number of times, such as for the keys and values of every layer
/// with the same positions. It contains a copy of the positions and no array. A notebook shows it as a
/// picture, and `str` returns the same as text. Copying returns the same object. It can be pickled.
///
/// Plans are equal if they write the same slots and skip the same samples, for arrays of the same dtype, shapes and
/// strides and the same sequence dimension.
#[pyclass(frozen, module = "kvscatter", name = "Plan")]
pub(crate) struct Plan {
    write: Arc<PreparedScatter>,
    write_indices: Option<Box<[i64]>>,
    lengths: Option<Box<[i64]>>,
}

/// Checks a call of `tensor_scatter_` without writing.
///
/// Args:
///     cache: The cache, or its shape.
///     update: The update, or its shape.
///     write_indices: The first slot written, one per sample. The default is 0.
///     axis: The sequence dimension.
///     mode: `"linear"` or `"circular"`.
///     lengths: The number of rows of each sample that are not padding. Padding after them is not written.
///         kvscatter extension; not part of the specification.
///     out_of_range: `"error"`, or `"skip"` to leave a sample that does not fit unchanged. kvscatter
///         extension; not part of the specification.
///     negative_index: In circular mode, `"modulo"`, or `"reject"` as in ONNX Runtime.
///     dtype: The type of the elements. It is required with shapes.
///
/// Raises:
///     Error: For the same reasons as `tensor_scatter_`, except for errors that only arrays can have.
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
    cache, update, write_indices = None, *,
    axis = -2, mode = Mode::Linear, lengths = None, out_of_range = OutOfRange::Error, negative_index = NegativeIndex::Modulo, dtype = None
))]
#[pyo3(text_signature = "(cache, update, write_indices=None, *, axis=-2, mode='linear', lengths=None, \
    out_of_range='error', negative_index='modulo', dtype=None)")]
#[expect(clippy::too_many_arguments, reason = "those of the operator, by keyword")]
pub(crate) fn plan(
    py: Python<'_>,
    cache: &Bound<'_, PyAny>,
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
    let write = PreparedScatter::new(py, operator, cache, update, dtype)?;
    Plan::new(py, write, write_indices, lengths)
}

#[pymethods]
impl Plan {
    /// Writes `update` into `cache` in place and returns the number of samples skipped.
    ///
    /// The arrays must have the dtype, shape and strides that the plan was made for.
    fn write(&self, py: Python<'_>, cache: &Bound<'_, PyAny>, update: &Bound<'_, PyAny>) -> PyResult<usize> {
        self.write.in_place(py, &self.planned(py)?, &[], cache, update)
    }

    /// The copies of the plan, in elements.
    #[getter]
    fn blocks<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let blocks = self.planned(py)?.blocks().map(|block| python_block(py, block));
        PyList::new(py, blocks.collect::<PyResult<Vec<_>>>()?)
    }

    /// The slots of each sample that are written. Unlike blocks, segments do not depend on the layout.
    #[getter]
    fn segments<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let segments = self.planned(py)?.segments().map(|segment| python_segment(py, segment));
        PyList::new(py, segments.collect::<PyResult<Vec<_>>>()?)
    }

    /// The number of samples that `out_of_range="skip"` leaves unchanged.
    #[getter]
    fn skipped(&self, py: Python<'_>) -> PyResult<usize> {
        Ok(self.planned(py)?.skipped())
    }

    /// The samples that `out_of_range="skip"` leaves unchanged, in ascending order.
    #[getter]
    fn skipped_samples(&self, py: Python<'_>) -> PyResult<Vec<usize>> {
        Ok(self.planned(py)?.skipped_samples().collect())
    }

    /// The number of elements that the write moves. It reads and writes only these.
    #[getter]
    fn elements(&self, py: Python<'_>) -> PyResult<usize> {
        Ok(self.planned(py)?.elements())
    }

    /// The number of bytes that the write moves, or `None` for strings.
    #[getter]
    fn bytes(&self, py: Python<'_>) -> PyResult<Option<usize>> {
        Ok(self.planned(py)?.bytes())
    }

    /// Returns the picture as text, with one line for each of the first `samples`.
    ///
    /// A line has at most `width` columns for the slots, and labels on both sides. Both numbers are at most
    /// 4096.
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

    /// Returns the picture as a standalone SVG document, with a lane for each of the first `samples`.
    #[pyo3(signature = (*, samples = SHOWN))]
    #[pyo3(text_signature = "($self, *, samples=64)")]
    fn svg(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = options::samples)] samples: usize,
    ) -> PyResult<String> {
        Ok(Picture::new(&self.planned(py)?, samples).svg().to_string())
    }

    /// Returns the same object, because it never changes.
    fn __copy__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    fn __deepcopy__(slf: Py<Self>, _memo: &Bound<'_, PyAny>) -> Py<Self> {
        slf
    }

    fn __eq__(&self, py: Python<'_>, other: &Self) -> PyResult<bool> {
        let (plan, another) = (self.planned(py)?, other.planned(py)?);
        // Without lists, every sample is written from slot 0. There may be more samples than can be visited.
        let has_no_list = |plan: &Self| plan.write_indices.is_none() && plan.lengths.is_none();
        Ok(self.write.has_forms_of(&other.write)
            && (has_no_list(self) && has_no_list(other)
                || plan.skipped_samples().eq(another.skipped_samples())
                    && plan.segments().eq(another.segments())))
    }

    fn __hash__(&self, py: Python<'_>) -> PyResult<u64> {
        let (plan, mut hasher) = (self.planned(py)?, DefaultHasher::new());
        plan.elements().hash(&mut hasher);
        plan.segments().take(HASHED).for_each(|segment| segment.hash(&mut hasher));
        Ok(hasher.finish())
    }

    fn __reduce__<'py>(&self, py: Python<'py>) -> PyResult<(Bound<'py, PyAny>, Bound<'py, PyTuple>)> {
        let prepared = restore_function(py)?.call1(self.write.state())?;
        let lists = PyTuple::new(py, [self.write_indices.as_deref(), self.lengths.as_deref()])?;
        Ok((prepared.getattr("plan")?, lists))
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
    /// Returns `ElementTypeError`, `ShapeError` or `PositionError` if the positions are not valid.
    pub(crate) fn new(
        py: Python<'_>,
        write: Arc<PreparedScatter>,
        write_indices: Option<&Bound<'_, PyAny>>,
        lengths: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Self> {
        let indices = ScatterIndices::read(write_indices, lengths)?;
        let [write_indices, lengths] = indices.all().map(|list| list.values().map(Box::from));
        let plan = Self { write, write_indices, lengths };
        plan.planned(py)?;
        Ok(plan)
    }

    /// Creates the core's plan, which borrows the positions. This takes nanoseconds, and `new` has checked
    /// that it succeeds.
    fn planned(&self, py: Python<'_>) -> PyResult<WritePlan<'_>> {
        let (starts, lengths) = (self.write_indices.as_deref(), self.lengths.as_deref());
        self.write
            .prepared
            .plan_with_lengths(starts, lengths)
            .map_err(|refused| ArgumentNames::Functional.raise(py, refused))
    }
}

/// The number of segments in a hash. A plan may have more than can be visited.
const HASHED: usize = 64;
/// The default number of lanes of a picture.
const SHOWN: usize = 64;
/// The number of lanes of a picture that a notebook shows on its own. A lane is 52 pixels high.
const SHOWN_IN_NOTEBOOK: usize = 16;

fn summary(plan: &WritePlan<'_>) -> String {
    let (elements, blocks, skipped) = (plan.elements(), plan.block_count(), plan.skipped());
    let bytes = plan.bytes().map_or_else(String::new, |bytes| format!(" ({bytes} byte{})", plural(bytes)));
    let moved = format!("{elements} element{}{bytes} in {blocks} block{}", plural(elements), plural(blocks));
    match skipped {
        0 => moved,
        _ => format!("{moved}, {skipped} sample{} skipped", plural(skipped)),
    }
}

/// Converts a block, without the loops that have a single iteration.
fn python_block<'py>(py: Python<'py>, block: Block) -> PyResult<Bound<'py, PyAny>> {
    static BLOCK: Lazy<Py<PyType>> = Lazy::new();
    let Block { len, dst_offset, src_offset, loops, .. } = block;
    let loops = loops.into_iter().filter(|each| each.count != 1).map(|each| python_loop(py, each));
    let loops = PyTuple::new(py, loops.collect::<PyResult<Vec<_>>>()?)?;
    BLOCK.import(py, MODULE, "Block")?.call1((len, dst_offset, src_offset, loops))
}

fn python_loop(py: Python<'_>, Loop { count, dst_stride, src_stride }: Loop) -> PyResult<Bound<'_, PyAny>> {
    static LOOP: Lazy<Py<PyType>> = Lazy::new();
    LOOP.import(py, MODULE, "Loop")?.call1((count, dst_stride, src_stride))
}

fn python_segment(py: Python<'_>, segment: Segment) -> PyResult<Bound<'_, PyAny>> {
    static SEGMENT: Lazy<Py<PyType>> = Lazy::new();
    let Segment { sample, slot, row, rows, .. } = segment;
    SEGMENT.import(py, MODULE, "Segment")?.call1((sample, slot, row, rows))
}

const MODULE: &str = "kvscatter._plan";
