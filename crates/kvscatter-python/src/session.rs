//! The class `KvSession`, which runs a decoder with static caches in this Python's ONNX Runtime.

use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use kvscatter_session::{KvSession, MemoryReport, Sample, SessionError, SessionOptions};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyMapping, PyTuple, PyType};

use crate::indices::Indices;
use crate::logits::{PyLogits, PySample};
use crate::runtime::Plugin;
use crate::session_error::{closed, raise};
use crate::{options, runtime};

/// A decoder with static caches in ONNX Runtime. Samples of its batch can be added, extended, truncated and
/// removed.
///
/// The caches are allocated once and written in place. The session counts the cached tokens of each sample,
/// and computes `write_indices`, `position_ids`, masks and `nonpad_kv_seqlen` from these counts. Samples may
/// have different lengths, and a step may add a different number of tokens to each.
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
    /// The session, or `None` after it was closed.
    open: Mutex<Option<KvSession>>,
}

#[pymethods]
impl PyKvSession {
    #[new]
    #[pyo3(signature = (path, *, batch=None, capacity=None, threads=None, memory=SessionOptions::default().memory, onnxruntime=None, plugin=Plugin::OfPackage(true)))]
    #[pyo3(text_signature = "(path, *, batch=None, capacity=None, threads=None, memory=17179869184, \
        onnxruntime=None, plugin=True)")]
    #[expect(clippy::too_many_arguments, reason = "the options of a session, by keyword")]
    fn new(
        py: Python<'_>,
        path: PathBuf,
        #[pyo3(from_py_with = options::batch)] batch: Option<usize>,
        #[pyo3(from_py_with = options::capacity)] capacity: Option<usize>,
        #[pyo3(from_py_with = options::threads)] threads: Option<usize>,
        #[pyo3(from_py_with = options::memory)] memory: u64,
        onnxruntime: Option<PathBuf>,
        plugin: Plugin,
    ) -> PyResult<Self> {
        let engine = runtime::load(py, onnxruntime, plugin)?;
        let options = SessionOptions { batch, capacity, threads, memory, ..SessionOptions::default() };
        let session =
            py.detach(|| KvSession::open(&engine, &path, options)).map_err(|error| raise(py, &error))?;
        let (batch, capacity) = (session.batch(), session.capacity());
        Ok(Self { batch, capacity, engine: runtime::label(&engine), open: Mutex::new(Some(session)) })
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

    /// The number of tokens that the model knows. If the model does not declare it, it is None until the
    /// first step.
    #[getter]
    fn vocabulary(&self, py: Python<'_>) -> PyResult<Option<usize>> {
        self.with(py, |session| Ok(session.vocabulary()))
    }

    /// The samples of the batch, by batch index.
    #[getter]
    fn samples(&self, py: Python<'_>) -> PyResult<Vec<PySample>> {
        self.with(py, |session| Ok(session.samples().map(PySample).collect()))
    }

    /// The number of bytes that the last step wrote into the caches, including padding.
    #[getter]
    fn bytes_written(&self, py: Python<'_>) -> PyResult<u64> {
        self.with(py, |session| Ok(session.bytes_written()))
    }

    /// The bytes of caches that ONNX Runtime copied in the last step instead of writing in place. It should
    /// be 0.
    #[getter]
    fn bytes_copied(&self, py: Python<'_>) -> PyResult<u64> {
        self.with(py, |session| Ok(session.bytes_copied()))
    }

    /// Whether `close` has been called.
    #[getter]
    fn closed(&self, py: Python<'_>) -> bool {
        py.detach(|| self.open.lock().unwrap_or_else(PoisonError::into_inner).is_none())
    }

    /// Adds an empty sample at the first free batch index.
    ///
    /// Raises:
    ///     OptionError: The batch is full.
    fn add(&self, py: Python<'_>) -> PyResult<PySample> {
        self.with(py, |session| session.add().map(PySample))
    }

    /// Removes a sample, which frees its batch index. The other samples keep theirs.
    ///
    /// Raises:
    ///     OptionError: The sample is not in this batch.
    fn remove(&self, py: Python<'_>, sample: &PySample) -> PyResult<()> {
        self.with(py, |session| session.remove(sample.0))
    }

    /// Forgets a sample's tokens from `length` on, without moving a byte.
    ///
    /// Speculative decoding uses this for tokens that were not accepted.
    ///
    /// Raises:
    ///     PositionError: The sample has fewer tokens than `length`, or `length` is negative.
    ///     OptionError: The sample is not in this batch.
    fn truncate(
        &self,
        py: Python<'_>,
        sample: &PySample,
        #[pyo3(from_py_with = options::length)] length: usize,
    ) -> PyResult<()> {
        self.with(py, |session| session.truncate(sample.0, length))
    }

    /// Returns the number of tokens of a sample that are in the cache.
    ///
    /// Raises:
    ///     OptionError: The sample is not in this batch.
    fn cached_tokens(&self, py: Python<'_>, sample: &PySample) -> PyResult<usize> {
        self.with(py, |session| session.cached_tokens(sample.0))
    }

    /// Gives samples their next tokens, any number for each. Samples that are not in the dict stay
    /// unchanged.
    ///
    /// A step is one run of the model. It takes more runs if the padding of a sample would not fit after its
    /// tokens, or if the model returns the logits of the last token only.
    ///
    /// Args:
    ///     tokens: A dict from samples to their tokens. The tokens are a sequence of integers, or an integer
    ///         array of one dimension.
    ///
    /// Returns:
    ///     `Logits`: the logits after every token.
    ///
    /// Raises:
    ///     PositionError: A sample would exceed its capacity, or the model does not have a token. This is
    ///         raised before the model runs.
    ///     OptionError: A sample is not in this batch, a sample has no tokens, or there is no sample. This
    ///         is raised before the model runs.
    ///     SessionError: ONNX Runtime failed. The counts of cached tokens are unchanged, but rows beyond
    ///         them may have been written.
    fn step(&self, py: Python<'_>, tokens: &Bound<'_, PyMapping>) -> PyResult<PyLogits> {
        let token_lists = tokens_of(tokens)?;
        let token_lists = borrowed(&token_lists);
        self.with(py, |session| session.step(&token_lists).map(PyLogits))
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
        let token_lists = tokens_of(tokens)?;
        let token_lists = borrowed(&token_lists);
        self.with(py, |session| session.prefill(&token_lists, chunk).map(PyLogits))
    }

    /// Returns the memory of the caches as a `MemoryReport`.
    fn memory<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        memory(py, &self.with(py, |session| Ok(session.memory()))?)
    }

    /// Frees the memory of the model and the caches after running calls have ended. It may be called again.
    fn close(&self, py: Python<'_>) {
        py.detach(|| drop(self.open.lock().unwrap_or_else(PoisonError::into_inner).take()));
    }

    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, py: Python<'_>, _exception: &Bound<'_, PyTuple>) {
        self.close(py);
    }

    fn __repr__(&self) -> String {
        format!("<kvscatter.KvSession: batch {}, capacity {}>", self.batch, self.capacity)
    }
}

/// The default number of tokens of a prompt in one run of the model.
pub(crate) const CHUNK: usize = 512;

impl PyKvSession {
    /// Calls a function with the session. Other threads run Python meanwhile, because another call may use
    /// the session for long.
    fn with<T: Send>(
        &self,
        py: Python<'_>,
        call: impl FnOnce(&mut KvSession) -> Result<T, SessionError> + Send,
    ) -> PyResult<T> {
        let called = py.detach(|| {
            // A call that panicked has not set a length that it did not reach.
            let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
            open.as_mut().map(call)
        });
        called.ok_or_else(|| closed(py))?.map_err(|error| raise(py, &error))
    }
}

/// Copies the tokens, because another thread may change an array at any time.
fn tokens_of(tokens: &Bound<'_, PyMapping>) -> PyResult<Vec<(Sample, Indices)>> {
    let pair = |item: Bound<'_, PyAny>| {
        let (sample, tokens): (Bound<'_, PySample>, Bound<'_, PyAny>) = item.extract()?;
        Ok((sample.get().0, Indices::of(Some(&tokens), "tokens")?))
    };
    tokens.items()?.iter().map(pair).collect()
}

fn borrowed(given: &[(Sample, Indices)]) -> Vec<(Sample, &[i64])> {
    given.iter().map(|(sample, tokens)| (*sample, tokens.values().unwrap_or_default())).collect()
}

fn memory<'py>(py: Python<'py>, report: &MemoryReport) -> PyResult<Bound<'py, PyAny>> {
    static CACHE: PyOnceLock<Py<PyType>> = PyOnceLock::new();
    static REPORT: PyOnceLock<Py<PyType>> = PyOnceLock::new();
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
        report.total,
    ))
}
