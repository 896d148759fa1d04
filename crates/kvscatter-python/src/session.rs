//! The class `KvSession`, which runs a decoder with static caches in this Python's ONNX Runtime.

use std::path::PathBuf;
use std::sync::Arc;

use kvscatter_session::{KvSession, MemoryReport, Sample, SessionOptions, Tensor, by_name};
use pyo3::prelude::*;
use pyo3::types::{PyMapping, PyTuple, PyType};

use crate::array::Array;
use crate::failure::Failure;
use crate::indices::Indices;
use crate::lazy::Lazy;
use crate::logits::{PyLogits, PySample};
use crate::runtime::Plugin;
use crate::session_error::raise;
use crate::shared_session::SharedSession;
use crate::transaction::PyTransaction;
use crate::{options, runtime};

/// The id of a block that marks text.
const TEXT: i64 = -1;

/// A decoder with static caches in ONNX Runtime. Samples of its batch can be added, extended, truncated, copied
/// and removed.
///
/// The caches are allocated once and written in place. The session counts the cached tokens of each sample,
/// and computes `write_indices`, `position_ids`, masks and `nonpad_kv_seqlen` from these counts. Samples may
/// have different lengths, and a step may add a different number of tokens to each.
///
/// A step happens as a whole or not at all. After an exception every sample is as it was before the call, and the
/// session can be used. `begin` and `transaction` do the same for several steps.
///
/// Other Python threads can run while the model runs. Calls of one session wait for each other. Use the
/// session as a context manager, or call `close`, to free its memory early.
///
/// Args:
///     path: The model, an ONNX file with static caches, such as `kvscatter convert` writes, or with caches that
///         `GroupQueryAttention` writes.
///     batch: The maximum number of samples. If the model fixes it, that number is the default, otherwise 1.
///     capacity: The maximum number of tokens of a sample. It is required if the model leaves it open.
///     threads: The number of threads of one operator. By default ONNX Runtime chooses it.
///     memory: The maximum number of bytes of the caches. This limit is necessary because a file can declare
///         any size.
///     refuse_nan: Whether a step whose logits contain NaN raises an exception.
///     onnxruntime: The library of ONNX Runtime, or a folder that contains it. The default is the library of
///         the installed package `onnxruntime`, and otherwise the library that `KVSCATTER_ORT_LIB` or
///         `ORT_DYLIB_PATH` names. A process can load only one library. Loading it runs its code.
///     plugin: Whether ONNX Runtime uses kvscatter's kernels, which this package contains. A path names
///         another build of the plugin. A process can load only one plugin.
///
/// Raises:
///     SessionError: There is no usable ONNX Runtime or plugin, the file is not a model, or the model cannot
///         run in place.
///     OptionError: The model has another batch or capacity, the caches need more than `memory`, or a number
///         is out of range. The maximum number of threads is 1024.
#[pyclass(frozen, name = "KvSession", module = "kvscatter")]
pub(crate) struct PyKvSession {
    batch: usize,
    capacity: usize,
    engine: String,
    group_query_nodes: (usize, usize),
    shared: Arc<SharedSession>,
}

#[pymethods]
impl PyKvSession {
    #[new]
    #[pyo3(signature = (path, *, batch=None, capacity=None, threads=None, memory=SessionOptions::default().memory, refuse_nan=false, onnxruntime=None, plugin=Plugin::OfPackage(true)))]
    #[pyo3(text_signature = "(path, *, batch=None, capacity=None, threads=None, memory=17179869184, \
        refuse_nan=False, onnxruntime=None, plugin=True)")]
    #[expect(clippy::too_many_arguments, reason = "the options of a session, by keyword")]
    fn new(
        py: Python<'_>,
        path: PathBuf,
        #[pyo3(from_py_with = options::batch)] batch: Option<usize>,
        #[pyo3(from_py_with = options::capacity)] capacity: Option<usize>,
        #[pyo3(from_py_with = options::threads)] threads: Option<usize>,
        #[pyo3(from_py_with = options::memory)] memory: u64,
        refuse_nan: bool,
        onnxruntime: Option<PathBuf>,
        plugin: Plugin,
    ) -> PyResult<Self> {
        let engine = runtime::load(py, onnxruntime, plugin)?;
        let options = SessionOptions { batch, capacity, threads, memory, refuse_nan };
        let session =
            py.detach(|| KvSession::open(&engine, &path, options)).map_err(|error| raise(py, &error))?;
        let (batch, capacity) = (session.batch(), session.capacity());
        let group_query_nodes = runtime::group_query_nodes(session.group_query_nodes());
        let (engine, shared) = (runtime::label(&engine), Arc::new(SharedSession::new(session)));
        Ok(Self { batch, capacity, engine, group_query_nodes, shared })
    }

    /// The maximum number of samples.
    #[getter]
    fn batch(&self) -> usize {
        self.batch
    }

    /// The maximum number of tokens of a sample.
    #[getter]
    fn capacity(&self) -> usize {
        self.capacity
    }

    /// The name and version of ONNX Runtime and its plugin, such as
    /// `ONNX Runtime 1.31.1 with plugin kvscatter 0.1.0`.
    #[getter]
    fn engine(&self) -> &str {
        &self.engine
    }

    /// How many nodes of `GroupQueryAttention` the plugin computes, and how many the model has. Both are 0 for a model
    /// without such nodes.
    #[getter]
    fn group_query_nodes(&self) -> (usize, usize) {
        self.group_query_nodes
    }

    /// The number of tokens that the model knows. If the model does not declare it, it is None until the
    /// first step.
    #[getter]
    fn vocabulary(&self, py: Python<'_>) -> PyResult<Option<usize>> {
        self.shared.with(py, |session| Ok(session.vocabulary()))
    }

    /// The samples of the batch, by batch index.
    #[getter]
    fn samples(&self, py: Python<'_>) -> PyResult<Vec<PySample>> {
        self.shared.with(py, |session| Ok(session.samples().map(PySample).collect()))
    }

    /// The number of bytes that the last step wrote into the caches, including padding and repeated runs.
    #[getter]
    fn bytes_written(&self, py: Python<'_>) -> PyResult<u64> {
        self.shared.with(py, |session| Ok(session.bytes_written()))
    }

    /// The bytes of caches that ONNX Runtime copied in the last step instead of writing in place. It should
    /// be 0.
    #[getter]
    fn bytes_copied(&self, py: Python<'_>) -> PyResult<u64> {
        self.shared.with(py, |session| Ok(session.bytes_copied()))
    }

    /// Whether `close` has been called.
    #[getter]
    fn closed(&self, py: Python<'_>) -> bool {
        // A session that runs is open.
        self.shared.with_open(py, |session| session.is_none()).unwrap_or(false)
    }

    /// Adds an empty sample at the first free batch index.
    ///
    /// Raises:
    ///     OptionError: The batch is full.
    fn add(&self, py: Python<'_>) -> PyResult<PySample> {
        self.shared.with(py, |session| session.add().map(PySample))
    }

    /// Gives a sample what an encoder has computed for its text, before its first token.
    ///
    /// No step changes or copies these arrays, forks and beams of the sample attend to the same text, and `save` saves
    /// it with the sample. Samples with texts of different lengths need a decoder with a mask of the encoder's
    /// positions.
    ///
    /// Args:
    ///     sample: A sample without cached tokens.
    ///     outputs: An array for each input of the decoder that comes from the encoder, by the name of the input, each
    ///         with a batch of 1. Without the mask, all positions are real.
    ///
    /// Raises:
    ///     OptionError: The sample is not in this batch or has cached tokens, an input is absent, unknown or has
    ///         another type or shape, or the arrays need more than `memory`.
    fn set_encoder_outputs(
        &self,
        py: Python<'_>,
        sample: &PySample,
        outputs: &Bound<'_, PyMapping>,
    ) -> PyResult<()> {
        let pair = |item: Bound<'_, PyAny>| {
            let (name, array): (String, Bound<'_, PyAny>) = item.extract()?;
            Ok((name, tensor(py, &Array::read(&array, "outputs")?)?))
        };
        let outputs = outputs.items()?.iter().map(pair).collect::<PyResult<Vec<_>>>()?;
        self.shared.with(py, move |session| session.set_encoder_outputs(sample.0, &by_name(&outputs)))
    }

    /// Removes a sample, which frees its batch index. The other samples keep theirs.
    ///
    /// Raises:
    ///     OptionError: The sample is not in this batch.
    fn remove(&self, py: Python<'_>, sample: &PySample) -> PyResult<()> {
        self.shared.with(py, |session| session.remove(sample.0))
    }

    /// Drops a sample's tokens from `length` on.
    ///
    /// No byte moves, unless rows of a ring were overwritten since `begin`.
    ///
    /// Raises:
    ///     PositionError: `length` is negative, the sample has fewer tokens, or it had more at `begin`. If the model
    ///         has rings, a ring no longer has the rows that the next tokens would see. If it has states, `length` is
    ///         not 0, not the number of tokens at `begin`, and not one of the last lengths since then whose states
    ///         the session has kept.
    ///     OptionError: The sample is not in this batch.
    fn truncate(
        &self,
        py: Python<'_>,
        sample: &PySample,
        #[pyo3(from_py_with = options::length)] length: usize,
    ) -> PyResult<()> {
        self.shared.with(py, |session| session.truncate(sample.0, length))
    }

    /// Returns the number of tokens of a sample that are in the cache.
    ///
    /// Raises:
    ///     OptionError: The sample is not in this batch.
    fn cached_tokens(&self, py: Python<'_>, sample: &PySample) -> PyResult<usize> {
        self.shared.with(py, |session| session.cached_tokens(sample.0))
    }

    /// Returns the ids of the cached tokens of a sample, in order.
    ///
    /// Raises:
    ///     OptionError: The sample is not in this batch.
    fn tokens(&self, py: Python<'_>, sample: &PySample) -> PyResult<Vec<i64>> {
        self.shared.with(py, |session| session.tokens(sample.0).map(<[i64]>::to_vec))
    }

    /// Sets a point that a sample can go back to. Any number of steps may follow, until `commit`, `rollback` or
    /// `accept` ends it.
    ///
    /// This copies the sample's states, if the model has any, and no rows. A later step copies a row of a ring before
    /// it overwrites it, if the ring has no slack for it. `memory` returns the bytes of these copies.
    ///
    /// Raises:
    ///     OptionError: The sample is not in this batch, or has such a point already.
    fn begin(&self, py: Python<'_>, sample: &PySample) -> PyResult<()> {
        self.shared.with(py, |session| session.begin(sample.0))
    }

    /// Returns the number of cached tokens at `begin`, or None if the sample has no such point.
    ///
    /// Raises:
    ///     OptionError: The sample is not in this batch.
    fn begun(&self, py: Python<'_>, sample: &PySample) -> PyResult<Option<usize>> {
        self.shared.with(py, |session| session.begun(sample.0))
    }

    /// Keeps everything since `begin`.
    ///
    /// Raises:
    ///     OptionError: The sample is not in this batch, or has no point of `begin`.
    fn commit(&self, py: Python<'_>, sample: &PySample) -> PyResult<()> {
        self.shared.with(py, |session| session.commit(sample.0))
    }

    /// Returns a sample to the point of `begin`. Its next logits are the same as if the steps since then had not
    /// happened.
    ///
    /// Raises:
    ///     OptionError: The sample is not in this batch, or has no point of `begin`.
    fn rollback(&self, py: Python<'_>, sample: &PySample) -> PyResult<()> {
        self.shared.with(py, |session| session.rollback(sample.0))
    }

    /// Keeps the first `tokens` tokens that were fed since `begin`, and undoes the others.
    ///
    /// Speculative decoding uses this to keep the drafted tokens that the model would have chosen. It works like
    /// `accept_all` for one sample.
    ///
    /// Raises:
    ///     PositionError: `tokens` is negative, or fewer tokens were fed.
    ///     OptionError: The sample is not in this batch, or has no point of `begin`.
    ///     SessionError: ONNX Runtime failed, or the logits contain NaN and the session refuses that.
    fn accept(
        &self,
        py: Python<'_>,
        sample: &PySample,
        #[pyo3(from_py_with = options::tokens)] tokens: usize,
    ) -> PyResult<()> {
        self.shared.with_signals(py, |session| session.accept(sample.0, tokens))
    }

    /// Keeps the first tokens, as many as `tokens` maps each sample to, that were fed since `begin`, and undoes the
    /// others.
    ///
    /// This runs nothing if dropped tokens have left only rows, or states of convolutions that the model returns for
    /// each token. In other models with states, a sample that keeps some of its tokens goes back to its point, and the
    /// kept tokens run again. The same happens if later rows of a ring have overwritten some that the kept tokens need.
    /// All samples run again in one step.
    ///
    /// If a run fails, all these samples are at their points, which are still set. Nothing changes before other
    /// exceptions.
    ///
    /// Raises:
    ///     PositionError: A number is negative, or fewer tokens were fed.
    ///     OptionError: A sample is not in this batch, or has no point of `begin`.
    ///     SessionError: ONNX Runtime failed, or the logits contain NaN and the session refuses that.
    fn accept_all(&self, py: Python<'_>, tokens: &Bound<'_, PyMapping>) -> PyResult<()> {
        let pair = |item: Bound<'_, PyAny>| {
            let (sample, tokens): (Bound<'_, PySample>, Bound<'_, PyAny>) = item.extract()?;
            Ok((sample.get().0, options::tokens(&tokens)?))
        };
        let tokens = tokens.items()?.iter().map(pair).collect::<PyResult<Vec<_>>>()?;
        self.shared.with_signals(py, |session| session.accept_all(&tokens))
    }

    /// Keeps some of the tokens that were fed since `begin`, for example a path of a tree of drafts, and undoes the
    /// others.
    ///
    /// The tokens before the first gap are kept as by `accept`. The tokens after it run again, because they have seen
    /// dropped tokens and have other positions now. So the sample is as if only the kept tokens had been fed.
    ///
    /// Args:
    ///     sample: A sample with a point of `begin`.
    ///     rows: The indices of the tokens to keep among those that were fed, in ascending order: a sequence of
    ///         integers or an integer array of one dimension.
    ///
    /// Raises:
    ///     PositionError: An index is negative, is not larger than the one before it, or is that of a token that was
    ///         not fed.
    ///     OptionError, SessionError: For the same reasons as `accept`.
    fn accept_rows(&self, py: Python<'_>, sample: &PySample, rows: &Bound<'_, PyAny>) -> PyResult<()> {
        let rows = Indices::read(Some(rows), "rows")?.sizes()?;
        self.shared.with_signals(py, |session| session.accept_rows(sample.0, &rows))
    }

    /// Returns a context manager that keeps the steps of its block, or undoes them if the block raises an exception.
    ///
    /// It calls `begin` for each sample at the start of the block. At its end it calls `commit`, or `rollback` after
    /// an exception, for each sample that still has a point of `begin`. The block can also end a sample's point itself
    /// or remove the sample. The exception is raised further.
    ///
    /// Raises:
    ///     OptionError: At the start of the block, a sample is not in this batch, or has a point of `begin` already.
    ///         No sample then has a new point.
    #[pyo3(signature = (*samples), text_signature = "($self, *samples)")]
    fn transaction(&self, samples: Vec<Py<PySample>>) -> PyTransaction {
        let samples = samples.iter().map(|sample| sample.get().0).collect();
        PyTransaction { session: Arc::clone(&self.shared), samples }
    }

    /// Adds samples with the same past as `sample`, and returns them.
    ///
    /// The rows that the past needs are copied, and no others. The copies have no point of `begin`.
    ///
    /// Args:
    ///     sample: The sample to copy.
    ///     copies: The number of samples to add. It may be 0.
    ///
    /// Raises:
    ///     OptionError: The sample is not in this batch, `copies` is negative, or fewer batch indices are free. No
    ///         sample is then added.
    fn fork(
        &self,
        py: Python<'_>,
        sample: &PySample,
        #[pyo3(from_py_with = options::copies)] copies: usize,
    ) -> PyResult<Vec<PySample>> {
        let copies = self.shared.with(py, |session| session.fork(sample.0, copies))?;
        Ok(copies.into_iter().map(PySample).collect())
    }

    /// Replaces samples by continuations of them, as a beam search does between two steps.
    ///
    /// The result has one sample for each entry of `parents`, which continues the sample of `samples` with that
    /// index. The first child of a sample is that sample itself, and moves no byte. Other children are copies. Samples
    /// without children are removed.
    ///
    /// Args:
    ///     samples: The samples to replace, a sequence. Other samples do not change.
    ///     parents: Indices into `samples`, a sequence of integers or an integer array of one dimension.
    ///
    /// Raises:
    ///     PositionError: A parent is not an index into `samples`. Negative indices do not count from the end.
    ///     OptionError: A sample is not in this batch or is listed twice, or the copies need more batch indices than
    ///         are free.
    fn reorder(
        &self,
        py: Python<'_>,
        samples: Vec<Py<PySample>>,
        parents: &Bound<'_, PyAny>,
    ) -> PyResult<Vec<PySample>> {
        let samples: Vec<_> = samples.iter().map(|sample| sample.get().0).collect();
        let parents = Indices::read(Some(parents), "parents")?.sizes()?;
        let children = self.shared.with(py, |session| session.reorder(&samples, &parents))?;
        Ok(children.into_iter().map(PySample).collect())
    }

    /// Gives samples their next tokens, any number for each. Samples that are not in the dict stay
    /// unchanged.
    ///
    /// A step is one run of the model or several, each of neighbouring samples. It takes more runs if the padding
    /// of a sample would not fit after its tokens, or if the model returns the logits of the last token only. It is
    /// repeated with single tokens if the logits after one of several tokens contain NaN. Ctrl-C interrupts between two
    /// runs. After any exception, every sample is as it was before the step.
    ///
    /// Args:
    ///     tokens: A dict from samples to their tokens. The tokens are a sequence of integers, or an integer
    ///         array of one dimension.
    ///     block_ids: A dict from samples to the ids of the blocks of their tokens. Tokens of a block see each other,
    ///         such as those of an image in Gemma 3. Text has the id -1, and so have all tokens of a sample that is not
    ///         in the dict. All tokens of a block must be in one step. Each sample with blocks runs alone, and is not
    ///         repeated after NaN.
    ///
    /// Returns:
    ///     `Logits`: the logits after every token.
    ///
    /// Raises:
    ///     PositionError: A sample would exceed its capacity, or the model does not have a token. This is
    ///         raised before the model runs.
    ///     OptionError: A sample is not in this batch, a sample has no tokens, or there is no sample. The model
    ///         takes no ids of blocks, or ids are not one for each token, below -1, or those of blocks that
    ///         overlap or that one run cannot take. This is raised before the model runs.
    ///     SessionError: ONNX Runtime failed, or the logits contain NaN and the session refuses that.
    #[pyo3(signature = (tokens, *, block_ids=None), text_signature = "($self, tokens, *, block_ids=None)")]
    fn step(
        &self,
        py: Python<'_>,
        tokens: &Bound<'_, PyMapping>,
        block_ids: Option<&Bound<'_, PyMapping>>,
    ) -> PyResult<PyLogits> {
        let token_lists = lists_of(tokens, "tokens")?;
        let token_lists = borrowed(&token_lists);
        let Some(block_ids) = block_ids else {
            return self.shared.with_signals(py, |session| session.step(&token_lists).map(PyLogits));
        };
        let id_lists = lists_of(block_ids, "block_ids")?;
        let id_lists = borrowed(&id_lists);
        let text = vec![TEXT; token_lists.iter().map(|(_, tokens)| tokens.len()).max().unwrap_or_default()];
        let ids_of = |of: Sample| id_lists.iter().find(|(sample, _)| *sample == of).map(|(_, ids)| *ids);
        let mut given: Vec<(Sample, &[i64], &[i64])> = Vec::new();
        for &(sample, tokens) in &token_lists {
            let text = text.get(..tokens.len()).unwrap_or_default();
            given.push((sample, tokens, ids_of(sample).unwrap_or(text)));
        }
        // A sample without tokens is an error.
        let has_tokens = |of: Sample| token_lists.iter().any(|(sample, _)| *sample == of);
        given.extend(
            id_lists
                .iter()
                .filter(|(sample, _)| !has_tokens(*sample))
                .map(|&(sample, ids)| (sample, &[][..], ids)),
        );
        self.shared.with_signals(py, |session| session.step_with_blocks(&given).map(PyLogits))
    }

    /// Works like `step`, in runs of at most `chunk` tokens of each sample, and keeps only the logits after
    /// the last tokens.
    ///
    /// Use this for long prompts, because the logits after every token of a long prompt would need much
    /// memory.
    ///
    /// Raises:
    ///     PositionError, OptionError, SessionError: For the same reasons as `step`. `OptionError` is also
    ///         raised for a chunk of 0.
    #[pyo3(signature = (tokens, *, chunk=CHUNK), text_signature = "($self, tokens, *, chunk=512)")]
    fn prefill(
        &self,
        py: Python<'_>,
        tokens: &Bound<'_, PyMapping>,
        #[pyo3(from_py_with = options::chunk)] chunk: usize,
    ) -> PyResult<PyLogits> {
        let token_lists = lists_of(tokens, "tokens")?;
        let token_lists = borrowed(&token_lists);
        self.shared.with_signals(py, |session| session.prefill(&token_lists, chunk).map(PyLogits))
    }

    /// Returns the fingerprint of the model as 32 hexadecimal digits. A saved sample can be loaded only with the
    /// same fingerprint.
    ///
    /// It depends on the graph and on every weight, and not on capacities that `kvscatter convert` chose. The first
    /// call reads all weights.
    ///
    /// Raises:
    ///     SessionError: A file of the model has changed since the session was opened.
    fn fingerprint(&self, py: Python<'_>) -> PyResult<String> {
        self.shared.with(py, |session| session.fingerprint().map(|fingerprint| fingerprint.to_string()))
    }

    /// Saves a sample to a file: its tokens, the rows that they need in all caches, and its states.
    ///
    /// The file is a safetensors file with checksums. It replaces only a saved sample, and as a whole, also if the
    /// process is killed.
    ///
    /// Raises:
    ///     SessionError: The file cannot be written, or has other contents than a saved sample.
    ///     OptionError: The sample is not in this batch.
    fn save(&self, py: Python<'_>, sample: &PySample, path: PathBuf) -> PyResult<()> {
        self.shared.with(py, |session| session.save(sample.0, path))
    }

    /// Adds a sample that `save` has saved, from a session of the same model.
    ///
    /// The batch and the capacities may differ. Everything is checked before a cache changes.
    ///
    /// Returns:
    ///     `Sample`: the new sample.
    ///
    /// Raises:
    ///     SessionError: The file is damaged, belongs to another model, or has caches of another type, shape or window.
    ///     PositionError: The sample has more tokens than fit, or a token that the model does not have.
    ///     OptionError: The batch is full.
    fn load(&self, py: Python<'_>, path: PathBuf) -> PyResult<PySample> {
        self.shared.with(py, |session| session.load(path).map(PySample))
    }

    /// Returns the memory of the caches and of copied rows as a `MemoryReport`.
    fn memory<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        memory_report(py, &self.shared.with(py, |session| Ok(session.memory()))?)
    }

    /// Frees the memory of the model and the caches after running calls have ended. It may be called again.
    ///
    /// Raises:
    ///     SessionError: A signal handler calls this during a step of the session.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        self.shared.with_open(py, |session| drop(session.take()))
    }

    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, py: Python<'_>, _exception: &Bound<'_, PyTuple>) -> PyResult<()> {
        self.close(py)
    }

    fn __repr__(&self) -> String {
        format!("<kvscatter.KvSession: batch {}, capacity {}>", self.batch, self.capacity)
    }
}

/// The default number of tokens of a prompt in one run of the model.
pub(crate) const CHUNK: usize = 512;

/// Reads a dict from samples to integers. They are copied, because another thread may change an array at any time.
fn lists_of(given: &Bound<'_, PyMapping>, argument: &'static str) -> PyResult<Vec<(Sample, Indices)>> {
    let pair = |item: Bound<'_, PyAny>| {
        let (sample, numbers): (Bound<'_, PySample>, Bound<'_, PyAny>) = item.extract()?;
        Ok((sample.get().0, Indices::read(Some(&numbers), argument)?))
    };
    given.items()?.iter().map(pair).collect()
}

fn borrowed(given: &[(Sample, Indices)]) -> Vec<(Sample, &[i64])> {
    given.iter().map(|(sample, numbers)| (*sample, numbers.values().unwrap_or_default())).collect()
}

/// Copies an array to a tensor. Strings and 4-bit values are refused, because no decoder takes them from an encoder.
fn tensor(py: Python<'_>, array: &Array<'_>) -> PyResult<Tensor> {
    let bytes = match array.element().bits() {
        8 => array.gather::<[u8; 1]>()?.into_flattened(),
        16 => array.gather::<[u8; 2]>()?.into_flattened(),
        32 => array.gather::<[u8; 4]>()?.into_flattened(),
        _ => array.gather::<[u8; 8]>()?.into_flattened(),
    };
    let mut tensor =
        Tensor::zeros(array.element().ty, &array.form.shape).map_err(|error| raise(py, &error))?;
    match tensor.bytes().len() == bytes.len() {
        true => tensor.bytes_mut().copy_from_slice(&bytes),
        false => return Err(Failure::NotContiguous { argument: array.argument }.into()),
    }
    Ok(tensor)
}

/// Creates the `MemoryReport` of a session.
fn memory_report<'py>(py: Python<'py>, report: &MemoryReport) -> PyResult<Bound<'py, PyAny>> {
    static CACHE: Lazy<Py<PyType>> = Lazy::new();
    static REPORT: Lazy<Py<PyType>> = Lazy::new();
    let caches = report.caches.iter().map(|cache| {
        let shape = PyTuple::new(py, &cache.shape)?;
        let fields = (&cache.past, cache.element.numpy_name(), shape, cache.layer, cache.bytes);
        CACHE.import(py, "kvscatter._session", "CacheMemory")?.call1(fields)
    });
    let caches = PyTuple::new(py, caches.collect::<PyResult<Vec<_>>>()?)?;
    let layers = PyTuple::new(py, &report.layers)?;
    REPORT.import(py, "kvscatter._session", "MemoryReport")?.call1((
        caches,
        layers,
        report.per_token,
        report.rings,
        report.states,
        report.undo,
        report.encoder,
        report.total,
    ))
}
