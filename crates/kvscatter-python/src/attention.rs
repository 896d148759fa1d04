//! Attention over the valid slots of a cache, in one call or prepared for many.

use std::ops::Range;
use std::slice;
use std::sync::{Mutex, PoisonError};

use kvscatter::ElementType;
use kvscatter_attention::{
    AttentionError, CacheElement, Float, ForElements, Inputs, Mask, Outputs, Prepared, Scales, Scratch,
    Strides, Valid, for_elements,
};
use kvscatter_xla::{AttentionForm, AttentionLayout};
use pyo3::exceptions::PyMemoryError;
use pyo3::prelude::*;
use smallvec::SmallVec;

use crate::array::{Array, Form, Shape};
use crate::attention_error;
use crate::block_tables::BlockTables;
use crate::error::{self, Class};
use crate::failure::Failure;
use crate::indices::Indices;
use crate::options;
use crate::{new_array, pool, torch};

/// Calls that read at least so many bytes of keys release the interpreter lock.
const DETACHED: usize = 64 << 10;

/// Computes attention of queries over the slots of a cache that contain tokens, and reads no others.
///
/// Query ``i`` of ``S`` of a sample is the token at position ``lengths - S + i``. It sees the positions up to its
/// own (``causal``), of which a window leaves the last ones. A query that sees nothing gives zeros. Slots that no query
/// sees may contain anything, also NaN.
///
/// Args:
///     q: Queries ``[B, H, S, D]`` of float32, float16 or bfloat16.
///     k: Keys ``[B, Hkv, C, D]``, where ``Hkv`` divides ``H``, of the type of the queries, of another one of these
///         types, or int8 codes. With ``block_tables``, blocks ``[blocks, Hkv, block_size, D]``.
///     v: Values ``[B, Hkv, C, Dv]``, of the type of the keys. With ``block_tables``, blocks like those of the keys.
///     lengths: The number of tokens of each sample, ``[B]``, with the new ones: ONNX's ``nonpad_kv_seqlen``. In a
///         ring it may exceed ``C``. The default is that every slot contains a token.
///     starts: The position of each sample's first token after padding on the left, ``[B]``. The default is 0.
///     causal: Whether a query sees no position after its own.
///     window: The number of positions that a query sees, its own included. The default is all.
///     scale: The factor of the products of queries and keys. The default is ``D ** -0.5``.
///     softcap: A score ``s`` becomes ``softcap * tanh(s / softcap)``. 0 means no cap.
///     mask: Booleans, which are False where a slot is hidden, or numbers of the type of the queries, which are added
///         to the scores. The shape broadcasts to ``[B, H, S, C]``, except the last dimension, which may be shorter.
///     sink: The score of a sink of each query head, ``[H]``, of the type of the queries. A sink takes a part of the
///         weights.
///     mode: ``"linear"``, or ``"circular"`` for rings, in which position ``p`` is in slot ``p % C``.
///     layout: ``"bhsd"``, or ``"bshd"`` if all arrays have the heads after the sequence: ``[B, S, H, D]`` and
///         ``[blocks, block_size, Hkv, D]``.
///     k_scale, v_scale: The scales of int8 codes, of float32: one for each row, ``[B, Hkv, C]`` or
///         ``[blocks, Hkv, block_size]`` in either layout, or one for each element of a head, ``[Hkv, D]``.
///     block_tables: The blocks of each sample, integers ``[B, max_blocks]``. Position ``p`` is in slot
///         ``p % block_size`` of the block ``block_tables[sample, p // block_size]``. Entries for positions that no
///         query sees may have any value.
///     threads: The largest number of threads. The default is the number of cores. Short calls use one. The result does
///         not depend on it.
///     out: Where the result is written. The default is a new array of the library of the queries.
///
/// Returns:
///     ``[B, H, S, Dv]`` in the layout and the type of the queries, or ``out``.
///
/// Raises:
///     ElementTypeError: A type is not supported, or types do not fit each other.
///     ShapeError: Shapes do not fit each other.
///     OptionError: An argument is out of range, or arguments cannot be combined.
///     PositionError: A length exceeds the cache, a start is negative, or a block does not exist.
///     ArrayError: An array has rows whose elements are not neighbours, or a negative stride, or ``out`` shares memory
///         with itself or another array.
///
/// >>> import numpy as np
/// >>> q, k = np.ones((2, 1, 1, 4), np.float32), np.ones((2, 1, 8, 4), np.float32)
/// >>> v = np.zeros((2, 1, 8, 4), np.float32) + np.arange(8, dtype=np.float32)[:, None]
/// >>> kvscatter.attention(q, k, v, lengths=[1, 5])[:, 0, 0, 0]
/// array([0., 2.], dtype=float32)
#[pyfunction]
#[pyo3(signature = (q, k, v, lengths=None, *, starts=None, causal=true, window=None, scale=None, softcap=0.0, mask=None, sink=None, mode=kvscatter::Mode::Linear, layout=AttentionLayout::Bhsd, k_scale=None, v_scale=None, block_tables=None, threads=None, out=None))]
#[pyo3(
    text_signature = "(q, k, v, lengths=None, *, starts=None, causal=True, window=None, scale=None, softcap=0.0, \
    mask=None, sink=None, mode='linear', layout='bhsd', k_scale=None, v_scale=None, block_tables=None, threads=None, out=None)"
)]
#[expect(clippy::too_many_arguments, reason = "the inputs and attributes of the operator, by keyword")]
pub(crate) fn attention<'py>(
    py: Python<'py>,
    q: &Bound<'py, PyAny>,
    k: &Bound<'py, PyAny>,
    v: &Bound<'py, PyAny>,
    lengths: Option<&Bound<'py, PyAny>>,
    starts: Option<&Bound<'py, PyAny>>,
    causal: bool,
    #[pyo3(from_py_with = options::window)] window: Option<usize>,
    #[pyo3(from_py_with = options::scale)] scale: Option<f32>,
    #[pyo3(from_py_with = options::softcap)] softcap: f32,
    mask: Option<&Bound<'py, PyAny>>,
    sink: Option<&Bound<'py, PyAny>>,
    #[pyo3(from_py_with = options::mode)] mode: kvscatter::Mode,
    #[pyo3(from_py_with = options::attention_layout)] layout: AttentionLayout,
    k_scale: Option<&Bound<'py, PyAny>>,
    v_scale: Option<&Bound<'py, PyAny>>,
    block_tables: Option<&Bound<'py, PyAny>>,
    #[pyo3(from_py_with = options::threads)] threads: Option<usize>,
    out: Option<&Bound<'py, PyAny>>,
) -> PyResult<Bound<'py, PyAny>> {
    let options = Options { is_causal: causal, window, scale, softcap, mode, layout, threads };
    let numbers = Numbers::read(lengths, starts)?;
    let others = Others::read([mask, sink, k_scale, v_scale], block_tables)?;
    let (arrays, out_array) = Arrays::read([q, k, v], others, out)?;
    let attend = Attend::new(py, options, &arrays, out_array.as_ref())?;
    attend.call(py, q, &arrays, &numbers, out, out_array)
}

/// Attention whose shapes have been checked, as `kvscatter.prepare_attention` returns it.
///
/// Calling it as ``attend(q, k, v, lengths=None, starts=None, mask=None, sink=None, k_scale=None, v_scale=None,
/// block_tables=None, out=None)`` does what `attention` does. The arrays have the types, shapes and strides that it was
/// prepared for. Any number of threads may call it.
///
/// Raises:
///     ShapeError, ElementTypeError: An array has another shape or other strides, or another type.
///     PositionError, OptionError, ArrayError: For the same reasons as `attention`.
#[pyclass(frozen, name = "PreparedAttention", module = "kvscatter")]
pub(crate) struct PyPreparedAttention(Attend);

/// Checks everything about a call of `attention` but its numbers. Call it once per shape, before a loop.
///
/// The arguments are those of `attention`. Only the forms of arrays are kept. If ``out`` is given, each call writes to
/// an array of that form.
///
/// Returns:
///     A `PreparedAttention`, which is called with arrays of these forms. Its working memory is kept between calls.
///
/// Raises:
///     ElementTypeError, ShapeError, OptionError, ArrayError: For the same reasons as `attention`.
///
/// >>> import numpy as np
/// >>> q, cache = np.ones((1, 2, 1, 4), np.float32), np.ones((1, 1, 8, 4), np.float32)
/// >>> attend = kvscatter.prepare_attention(q, cache, cache)
/// >>> [float(attend(q, cache, cache, [length])[0, 0, 0, 0]) for length in (0, 3)]
/// [0.0, 1.0]
#[pyfunction]
#[pyo3(signature = (q, k, v, *, causal=true, window=None, scale=None, softcap=0.0, mask=None, sink=None, mode=kvscatter::Mode::Linear, layout=AttentionLayout::Bhsd, k_scale=None, v_scale=None, block_tables=None, threads=None, out=None))]
#[pyo3(
    text_signature = "(q, k, v, *, causal=True, window=None, scale=None, softcap=0.0, mask=None, sink=None, \
    mode='linear', layout='bhsd', k_scale=None, v_scale=None, block_tables=None, threads=None, out=None)"
)]
#[expect(clippy::too_many_arguments, reason = "the inputs and attributes of the operator, by keyword")]
pub(crate) fn prepare_attention<'py>(
    py: Python<'py>,
    q: &Bound<'py, PyAny>,
    k: &Bound<'py, PyAny>,
    v: &Bound<'py, PyAny>,
    causal: bool,
    #[pyo3(from_py_with = options::window)] window: Option<usize>,
    #[pyo3(from_py_with = options::scale)] scale: Option<f32>,
    #[pyo3(from_py_with = options::softcap)] softcap: f32,
    mask: Option<&Bound<'py, PyAny>>,
    sink: Option<&Bound<'py, PyAny>>,
    #[pyo3(from_py_with = options::mode)] mode: kvscatter::Mode,
    #[pyo3(from_py_with = options::attention_layout)] layout: AttentionLayout,
    k_scale: Option<&Bound<'py, PyAny>>,
    v_scale: Option<&Bound<'py, PyAny>>,
    block_tables: Option<&Bound<'py, PyAny>>,
    #[pyo3(from_py_with = options::threads)] threads: Option<usize>,
    out: Option<&Bound<'py, PyAny>>,
) -> PyResult<PyPreparedAttention> {
    let options = Options { is_causal: causal, window, scale, softcap, mode, layout, threads };
    let others = Others::read([mask, sink, k_scale, v_scale], block_tables)?;
    let (arrays, out) = Arrays::read([q, k, v], others, out)?;
    Attend::new(py, options, &arrays, out.as_ref()).map(PyPreparedAttention)
}

#[pymethods]
impl PyPreparedAttention {
    #[pyo3(signature = (q, k, v, lengths=None, starts=None, mask=None, sink=None, k_scale=None, v_scale=None, block_tables=None, out=None))]
    #[expect(clippy::too_many_arguments, reason = "the inputs of the operator, by keyword")]
    fn __call__<'py>(
        &self,
        py: Python<'py>,
        q: &Bound<'py, PyAny>,
        k: &Bound<'py, PyAny>,
        v: &Bound<'py, PyAny>,
        lengths: Option<&Bound<'py, PyAny>>,
        starts: Option<&Bound<'py, PyAny>>,
        mask: Option<&Bound<'py, PyAny>>,
        sink: Option<&Bound<'py, PyAny>>,
        k_scale: Option<&Bound<'py, PyAny>>,
        v_scale: Option<&Bound<'py, PyAny>>,
        block_tables: Option<&Bound<'py, PyAny>>,
        out: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let numbers = Numbers::read(lengths, starts)?;
        let others = Others::read([mask, sink, k_scale, v_scale], block_tables)?;
        let (arrays, out_array) = Arrays::read([q, k, v], others, out)?;
        self.0.check_forms(&arrays)?;
        self.0.call(py, q, &arrays, &numbers, out, out_array)
    }

    fn __repr__(&self) -> String {
        let [q, k, v] = &self.0.forms;
        format!("<kvscatter.PreparedAttention: {q} over {k} and {v}>")
    }
}

/// The attributes of the operator.
#[derive(Clone, Copy)]
struct Options {
    is_causal: bool,
    window: Option<usize>,
    scale: Option<f32>,
    softcap: f32,
    mode: kvscatter::Mode,
    layout: AttentionLayout,
    threads: Option<usize>,
}

/// The arrays of a call besides its result.
struct Arrays<'py> {
    q: Array<'py>,
    k: Array<'py>,
    v: Array<'py>,
    others: Others<'py>,
}

/// The arrays that most calls do not have.
struct Others<'py> {
    mask: Option<Array<'py>>,
    sink: Option<Array<'py>>,
    scales: Option<[Array<'py>; 2]>,
    tables: Option<BlockTables>,
}

/// The numbers of each sample.
struct Numbers {
    lengths: Indices,
    starts: Indices,
}

impl Numbers {
    fn read(lengths: Option<&Bound<'_, PyAny>>, starts: Option<&Bound<'_, PyAny>>) -> PyResult<Self> {
        Ok(Self { lengths: Indices::read(lengths, "lengths")?, starts: Indices::read(starts, "starts")? })
    }
}

impl<'py> Others<'py> {
    fn read(
        [mask, sink, k_scale, v_scale]: [Option<&Bound<'py, PyAny>>; 4],
        tables: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Self> {
        let read =
            |array: Option<&Bound<'py, PyAny>>, name| array.map(|array| Array::read(array, name)).transpose();
        let scales = [read(k_scale, "k_scale")?, read(v_scale, "v_scale")?];
        let scales = match scales {
            [Some(key), Some(value)] => Some([key, value]),
            [None, None] => None,
            [key, _] => {
                let argument = if key.is_some() { "v_scale" } else { "k_scale" };
                return Err(Failure::ScaleMissing { argument }.into());
            }
        };
        Ok(Self {
            mask: read(mask, "mask")?,
            sink: read(sink, "sink")?,
            scales,
            tables: tables.map(BlockTables::read).transpose()?,
        })
    }

    fn all(&self) -> impl Iterator<Item = &Array<'py>> {
        let others = [self.mask.as_ref(), self.sink.as_ref()].into_iter().flatten();
        others.chain(self.scales.iter().flatten())
    }
}

impl<'py> Arrays<'py> {
    /// Reads the arrays of a call, and the array for its result.
    fn read(
        [q, k, v]: [&Bound<'py, PyAny>; 3],
        others: Others<'py>,
        out: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<(Self, Option<Array<'py>>)> {
        // Python code runs while the others are copied.
        if let Some(out) = out.filter(|_| others.all().next().is_none())
            && let Some([q, k, v, out]) = torch::plain([("q", q), ("k", k), ("v", v), ("out", out)])
        {
            return Ok((Self { q, k, v, others }, Some(out)));
        }
        let arrays =
            Self { q: Array::read(q, "q")?, k: Array::read(k, "k")?, v: Array::read(v, "v")?, others };
        Ok((arrays, out.map(|out| Array::written(out, "out")).transpose()?))
    }

    fn all(&self) -> impl Iterator<Item = &Array<'py>> {
        [&self.q, &self.k, &self.v].into_iter().chain(self.others.all())
    }
}

/// A prepared call.
struct Attend {
    options: Options,
    forms: [Form; 3],
    mask: Option<Form>,
    out: Form,
    /// Whether calls write to arrays of the form `out`, which need not be dense.
    has_out: bool,
    blocks_per_sample: Option<usize>,
    prepared: Prepared,
    /// The length of each sample whose slots all contain tokens.
    all_slots: SmallVec<[i64; 8]>,
    /// Working memory that no call uses at the moment.
    scratches: Mutex<Vec<Scratch>>,
}

impl Attend {
    fn new(py: Python<'_>, options: Options, arrays: &Arrays<'_>, out: Option<&Array<'_>>) -> PyResult<Self> {
        let Options { is_causal, window, scale, softcap, mode, layout, .. } = options;
        let [q, k, v] =
            [&arrays.q, &arrays.k, &arrays.v].map(|array| dimensions(&array.form, array.argument));
        let ([query, query_strides], [key, key_strides], [value, value_strides]) = (q?, k?, v?);
        if arrays.v.element() != arrays.k.element() {
            let (element, expected) = (arrays.v.element(), arrays.k.element().ty);
            return Err(Failure::WrongType { argument: "v", element, expected }.into());
        }
        let attention = AttentionForm {
            element: arrays.q.element().stored(),
            cache_element: arrays.k.element().stored(),
            query,
            key,
            value,
            mask: arrays.others.mask.as_ref().map(|mask| mask.form.shape.to_vec()),
            has_sinks: arrays.others.sink.is_some(),
            blocks_per_sample: arrays.others.tables.as_ref().map(|tables| tables.per_sample),
            is_causal,
            window,
            scale,
            softcap,
            mode,
            layout,
        };
        let out_shape = Shape::from_slice(&attention.output());
        let form = match out {
            Some(out) => {
                let (element, expected) = (out.element(), arrays.q.element());
                if element != expected {
                    let expected = expected.stored();
                    return Err(Failure::WrongType { argument: "out", element, expected }.into());
                }
                out.form.check_result(&out_shape)?;
                out.form.clone()
            }
            None => Form::dense(arrays.q.element(), out_shape),
        };
        let [_, output_strides] = dimensions(&form, "out")?;
        let first_three = |strides| {
            let [a, b, c, _] = layout.ordered(strides);
            Some([a, b, c])
        };
        let strides = Strides {
            query: first_three(query_strides),
            key: first_three(key_strides),
            value: first_three(value_strides),
            output: first_three(output_strides),
        };
        let prepared =
            attention.prepare_strided(&strides).map_err(|error| attention_error::raise(py, &error))?;
        let blocks_per_sample = attention.blocks_per_sample;
        let [_, _, rows, _] = layout.ordered(key);
        // `prepare_strided` has checked this product.
        let slots = blocks_per_sample.map_or(rows, |blocks| rows * blocks);
        let slots = i64::try_from(slots).unwrap_or(i64::MAX);
        // With a stride of 0, few elements can claim any batch, so the allocation may fail.
        let mut all_slots = SmallVec::new();
        all_slots.try_reserve_exact(query[0]).map_err(|error| PyMemoryError::new_err(error.to_string()))?;
        all_slots.resize(query[0], slots);
        Ok(Self {
            options,
            forms: [&arrays.q, &arrays.k, &arrays.v].map(|array| array.form.clone()),
            mask: arrays.others.mask.as_ref().map(|mask| mask.form.clone()),
            has_out: out.is_some(),
            out: form,
            blocks_per_sample,
            all_slots,
            prepared,
            scratches: Mutex::new(Vec::new()),
        })
    }

    /// Checks that the call was prepared for these arrays. `Prepared::run` checks which others are given.
    fn check_forms(&self, arrays: &Arrays<'_>) -> PyResult<()> {
        for (form, array) in self.forms.iter().zip([&arrays.q, &arrays.k, &arrays.v]) {
            form.check_prepared(array, 0)?;
        }
        if let (Some(form), Some(mask)) = (&self.mask, &arrays.others.mask) {
            form.check_prepared(mask, 0)?;
        }
        Ok(())
    }

    /// Computes the result in `out`, or in a new array.
    fn call<'py>(
        &self,
        py: Python<'py>,
        q: &Bound<'py, PyAny>,
        arrays: &Arrays<'py>,
        numbers: &Numbers,
        out: Option<&Bound<'py, PyAny>>,
        out_array: Option<Array<'py>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        match (out, out_array) {
            (Some(out), Some(array)) => {
                self.out.check_prepared(&array, 0)?;
                self.run(py, arrays, numbers, &array)?;
                Ok(out.clone())
            }
            _ if self.has_out => Err(Failure::OutMissing { argument: "out" }.into()),
            _ => new_array::like(q, &arrays.q, &self.out.shape, |out| self.run(py, arrays, numbers, out)),
        }
    }

    fn run(&self, py: Python<'_>, arrays: &Arrays<'_>, numbers: &Numbers, out: &Array<'_>) -> PyResult<()> {
        let (query, cache) = (arrays.q.element().stored(), arrays.k.element().stored());
        let run = Run { attend: self, py, arrays, numbers, out };
        for_elements(query, cache, run).map_err(|error| attention_error::raise(py, &error))?
    }

    fn run_cache<T: Float, C: CacheElement>(
        &self,
        py: Python<'_>,
        arrays: &Arrays<'_>,
        numbers: &Numbers,
        out: &Array<'_>,
    ) -> PyResult<()> {
        if let Some(tables) = &arrays.others.tables {
            self.check_tables(py, tables)?;
        }
        if let Some(scales) = &arrays.others.scales {
            self.check_scales(py, scales)?;
        }
        // Copies of small arrays, and of others that are not dense.
        let mask = arrays.others.mask.as_ref().map(|mask| AnyMask::<T>::read(mask)).transpose()?;
        let sinks = arrays.others.sink.as_ref().map(|sink| typed::<T>(sink, T::ELEMENT)).transpose()?;
        let scales = match &arrays.others.scales {
            None => None,
            Some([key, value]) => {
                let is_by_channel = key.form.shape.len() == 2;
                Some(([gather_f32(key)?, gather_f32(value)?], is_by_channel))
            }
        };
        arrays.all().chain([out]).try_for_each(Array::check_unmoved)?;
        for array in arrays.all() {
            check_apart(out, array)?;
        }
        let lists = Lists {
            mask: mask.as_ref().map(AnyMask::as_mask),
            sinks: sinks.as_deref(),
            scales: scales.as_ref().map(|([key, value], is_by_channel)| match is_by_channel {
                true => Scales::Channels { key, value },
                false => Scales::Rows { key, value },
            }),
            starts: numbers.starts.values(),
            block_table: arrays.others.tables.as_ref().map(|tables| tables.values.as_slice()),
        };
        let lengths = numbers.lengths.values().unwrap_or(&self.all_slots);
        let [query, key, value] = [&arrays.q, &arrays.k, &arrays.v].map(memory);
        let (query, key, value, output) = (query?, key?, value?, memory(out)?);
        let threads = self.options.threads.unwrap_or_else(pool::cores);
        let mut scratch = self.take_scratch(threads);
        let run = Borrowed { query, key, value, output, lists, lengths };
        let compute = |run: Borrowed<'_, T>, scratch: &mut Scratch| {
            // SAFETY: All four are memory of arrays that are borrowed until the call is done, with elements of these
            // types. `check_apart` has checked that the output shares no memory with the others. Nothing else uses
            // the memory meanwhile, unless the program writes to one array from two threads. It must not do that, as
            // with NumPy.
            let query = unsafe { run.query.as_slice::<T>() };
            // SAFETY: As before.
            let key = unsafe { run.key.as_slice::<C>() };
            // SAFETY: As before.
            let value = unsafe { run.value.as_slice::<C>() };
            // SAFETY: As before.
            let output = unsafe { run.output.as_uninit::<T>() };
            let Lists { mask, sinks, scales, starts, block_table } = run.lists;
            let valid = Valid::Lengths(run.lengths);
            let inputs =
                Inputs { mask, sinks, scales, starts, block_table, valid, ..Inputs::new(query, key, value) };
            let executor = pool::executor(threads);
            self.prepared.run(&inputs, &mut Outputs::uninit(output), scratch, executor.as_deref())
        };
        let result = if key.bytes >= DETACHED {
            let scratch = &mut scratch;
            py.detach(move || compute(run.into_inner(), scratch))
        } else {
            compute(run, &mut scratch)
        };
        self.scratches.lock().unwrap_or_else(PoisonError::into_inner).push(scratch);
        result.map_err(|error| attention_error::raise(py, &error))?;
        out.note_written()
    }

    fn check_tables(&self, py: Python<'_>, tables: &BlockTables) -> PyResult<()> {
        let expected = self.prepared.output_shape()[0];
        if tables.samples != expected || Some(tables.per_sample) != self.blocks_per_sample {
            let expected = expected * self.blocks_per_sample.unwrap_or(0);
            let operand = kvscatter_attention::Operand::BlockTable;
            let error = AttentionError::Length { operand, got: tables.values.len(), expected };
            return Err(attention_error::raise(py, &error));
        }
        Ok(())
    }

    /// Checks that both scales have a number for each row, or both one for each element of a head.
    fn check_scales(&self, py: Python<'_>, scales: &[Array<'_>; 2]) -> PyResult<()> {
        let [_, key, value] = &self.forms;
        let is_by_channel = scales[0].form.shape.len() == 2;
        for (cache, scale) in [key, value].into_iter().zip(scales) {
            let &[a, b, c, size] = cache.shape.as_slice() else { continue };
            let [samples, heads, rows, size] = self.options.layout.ordered([a, b, c, size]);
            let (argument, got) = (scale.argument, scale.form.shape.as_slice());
            let by_channel: &[usize] = &[heads, size];
            let expected = if is_by_channel { by_channel } else { &[samples, heads, rows] };
            if got != expected {
                let message = format!("{argument} has shape {got:?}, must have {expected:?}");
                return Err(error::raise(
                    py,
                    Class::Shape,
                    "dimension_mismatch",
                    Some(argument),
                    message,
                    &[],
                ));
            }
        }
        Ok(())
    }

    /// Returns working memory that no other call uses.
    fn take_scratch(&self, threads: usize) -> Scratch {
        let kept = self.scratches.lock().unwrap_or_else(PoisonError::into_inner).pop();
        kept.unwrap_or_else(|| self.prepared.scratch(threads))
    }
}

/// A call whose element types are not Rust types yet.
struct Run<'a, 'py> {
    attend: &'a Attend,
    py: Python<'py>,
    arrays: &'a Arrays<'py>,
    numbers: &'a Numbers,
    out: &'a Array<'py>,
}

impl ForElements for Run<'_, '_> {
    type Output = PyResult<()>;

    fn with<T: Float, C: CacheElement>(self) -> PyResult<()> {
        self.attend.run_cache::<T, C>(self.py, self.arrays, self.numbers, self.out)
    }
}

/// What the arrays and lists of a call point to, until it is done.
struct Borrowed<'a, T> {
    query: Memory,
    key: Memory,
    value: Memory,
    output: Memory,
    lists: Lists<'a, T>,
    lengths: &'a [i64],
}

struct Lists<'a, T> {
    mask: Option<Mask<'a, T>>,
    sinks: Option<&'a [T]>,
    scales: Option<Scales<'a>>,
    starts: Option<&'a [i64]>,
    block_table: Option<&'a [i32]>,
}

impl<T> Borrowed<'_, T> {
    /// Returns `self`, so that closures capture the whole and not the fields.
    fn into_inner(self) -> Self {
        self
    }
}

// SAFETY: The arrays at these addresses are borrowed until the call returns, which waits for the closure.
unsafe impl<T: Sync> Send for Borrowed<'_, T> {}

/// The elements of an array from its first to its last one.
#[derive(Clone, Copy)]
struct Memory {
    first: *mut u8,
    bytes: usize,
}

impl Memory {
    /// # Safety
    /// The memory contains elements of this type, and is not written as long as the slice is used.
    unsafe fn as_slice<'a, T>(self) -> &'a [T] {
        if self.bytes == 0 {
            return &[];
        }
        // SAFETY: `memory` has checked the alignment, and an array has the bytes from its first to its last element.
        unsafe { slice::from_raw_parts(self.first.cast(), self.bytes / size_of::<T>()) }
    }

    /// # Safety
    /// Nothing else uses the memory as long as the slice is used.
    unsafe fn as_uninit<'a, T>(self) -> &'a mut [std::mem::MaybeUninit<T>] {
        if self.bytes == 0 {
            return &mut [];
        }
        // SAFETY: As for `as_slice`.
        unsafe { slice::from_raw_parts_mut(self.first.cast(), self.bytes / size_of::<T>()) }
    }
}

/// Returns the memory of an array, whose elements must be aligned.
fn memory(array: &Array<'_>) -> Result<Memory, Failure> {
    let argument = array.argument;
    let bytes = array.element().bits().wrapping_div(8);
    if !array.data().addr().is_multiple_of(bytes) && array.form.extent() > 0 {
        return Err(Failure::Tensor {
            argument,
            why: "has elements at addresses that are not aligned: copy it",
        });
    }
    Ok(Memory { first: array.data(), bytes: array.form.extent().wrapping_mul(bytes) })
}

/// Checks that the output shares no memory with an input.
fn check_apart(out: &Array<'_>, input: &Array<'_>) -> Result<(), Failure> {
    let range = |array: &Array<'_>| -> Range<usize> {
        let bytes = array.form.extent().wrapping_mul(array.element().bits().wrapping_div(8));
        let first = array.data().addr();
        first..first.wrapping_add(bytes)
    };
    let (out_range, input_range) = (range(out), range(input));
    if out_range.start < input_range.end && input_range.start < out_range.end {
        return Err(Failure::Overlap { argument: out.argument, with_: input.argument });
    }
    Ok(())
}

/// Copies the elements of an array that must have this type.
fn typed<T: Copy>(array: &Array<'_>, element: ElementType) -> PyResult<Vec<T>> {
    let got = array.element();
    if got.stored() != element || got.is_padded() {
        return Err(Failure::WrongType { argument: array.argument, element: got, expected: element }.into());
    }
    array.gather()
}

fn gather_f32(array: &Array<'_>) -> PyResult<Vec<f32>> {
    typed(array, ElementType::Float32)
}

/// A copy of a mask.
enum AnyMask<T> {
    Bool(Vec<u8>),
    Float(Vec<T>),
}

impl<T: Float> AnyMask<T> {
    fn read(array: &Array<'_>) -> PyResult<Self> {
        match array.element().ty {
            ElementType::Bool => array.gather().map(Self::Bool),
            _ => typed(array, T::ELEMENT).map(Self::Float),
        }
    }

    fn as_mask(&self) -> Mask<'_, T> {
        match self {
            Self::Bool(mask) => Mask::Bool(mask),
            Self::Float(mask) => Mask::Float(mask),
        }
    }
}

/// Returns the sizes and strides of an array of four dimensions, in their order in the array.
fn dimensions(form: &Form, argument: &'static str) -> PyResult<[[usize; 4]; 2]> {
    let &[a, b, c, size] = form.shape.as_slice() else {
        return Err(Failure::ArrayRank { argument, rank: form.shape.len(), wanted: "4" }.into());
    };
    let strides = form.strides();
    let stride = |dimension: usize| {
        let why = "has a negative stride, which attention does not read: copy it";
        usize::try_from(strides[dimension]).map_err(|_| Failure::Tensor { argument, why })
    };
    let strides = [stride(0)?, stride(1)?, stride(2)?, stride(3)?];
    if size > 1 && strides[3] != 1 {
        let why = "must have the elements of its last dimension next to each other: copy it";
        return Err(Failure::Tensor { argument, why }.into());
    }
    Ok([[a, b, c, size], strides])
}
