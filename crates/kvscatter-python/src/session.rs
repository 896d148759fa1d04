//! A decoder with a static cache that runs in the caller's ONNX Runtime: `KvSession`.

use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use kvscatter_session::{KvSession, MemoryReport, Sample, SessionError, SessionOptions};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyMapping, PyTuple, PyType};

use crate::indices::Indices;
use crate::logits::{PyLogits, PySample};
use crate::session_error::{closed, raise};
use crate::{options, runtime};

/// A decoder with a static cache in ONNX Runtime. Samples of its batch can be added, extended, truncated and removed.
///
/// The caches are allocated once and written in place. The session counts the cached tokens of each
/// sample; `write_indices`, `position_ids`, masks and `nonpad_kv_seqlen` follow from these counts. Samples may have different
/// lengths, and a step may give each another number of tokens.
///
/// Calls let other threads run Python while the model runs, and wait for each other. As a context manager, or by
/// `close`, a session gives its memory back early.
///
/// Args:
///     path: The model: an ONNX file whose caches are static, as `kvscatter convert` makes them.
///     batch: The most samples at a time; the model's if it is fixed, else 1 if not given.
///     capacity: Tokens that a sample can have; to be given where the model leaves it open.
///     threads: Threads of one operator; ONNX Runtime's choice if not given.
///     memory: The most bytes that the caches may take: a file may claim anything.
///     onnxruntime: ONNX Runtime's library, or a folder with it. If not given, that of the package `onnxruntime` of this
///         Python, else what `KVSCATTER_ORT_LIB` or `ORT_DYLIB_PATH` names. A process can have one. Loading it runs its
///         code.
///
/// Raises:
///     SessionError: No ONNX Runtime that can be used; a file that is no model, or none that runs in place.
///     OptionError: A batch or a capacity that the model does not have, caches beyond `memory`, or a number that is out
///         of range: threads are at most 1024.
#[pyclass(frozen, name = "KvSession", module = "kvscatter")]
pub(crate) struct PyKvSession {
    batch: usize,
    capacity: usize,
    /// `None` once it is closed.
    open: Mutex<Option<KvSession>>,
}

#[pymethods]
impl PyKvSession {
    #[new]
    #[pyo3(signature = (path, *, batch=None, capacity=None, threads=None, memory=SessionOptions::default().memory, onnxruntime=None))]
    #[pyo3(
        text_signature = "(path, *, batch=None, capacity=None, threads=None, memory=17179869184, onnxruntime=None)"
    )]
    fn new(
        py: Python<'_>,
        path: PathBuf,
        #[pyo3(from_py_with = options::batch)] batch: Option<usize>,
        #[pyo3(from_py_with = options::capacity)] capacity: Option<usize>,
        #[pyo3(from_py_with = options::threads)] threads: Option<usize>,
        #[pyo3(from_py_with = options::memory)] memory: u64,
        onnxruntime: Option<PathBuf>,
    ) -> PyResult<Self> {
        let engine = runtime::load(py, onnxruntime)?;
        let options = SessionOptions { batch, capacity, threads, memory };
        let session =
            py.detach(|| KvSession::open(&engine, &path, options)).map_err(|error| raise(py, &error))?;
        let (batch, capacity) = (session.batch(), session.capacity());
        Ok(Self { batch, capacity, open: Mutex::new(Some(session)) })
    }

    /// How many samples there is room for.
    #[getter]
    fn batch(&self) -> usize {
        self.batch
    }

    /// Tokens that a sample can have.
    #[getter]
    fn capacity(&self) -> usize {
        self.capacity
    }

    /// Tokens that the model knows; None until the first step if it does not declare it.
    #[getter]
    fn vocabulary(&self, py: Python<'_>) -> PyResult<Option<usize>> {
        self.with(py, |session| Ok(session.vocabulary()))
    }

    /// The samples of the batch, by batch index.
    #[getter]
    fn samples(&self, py: Python<'_>) -> PyResult<Vec<PySample>> {
        self.with(py, |session| Ok(session.samples().map(PySample).collect()))
    }

    /// Bytes that the last step wrote into the caches, padding included.
    #[getter]
    fn bytes_written(&self, py: Python<'_>) -> PyResult<u64> {
        self.with(py, |session| Ok(session.bytes_written()))
    }

    /// Bytes of caches that ONNX Runtime copied in the last step instead of writing them in place. It should be 0.
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

    /// Forgets a sample's tokens from `length` on, as speculative decoding does with those that were not accepted. No byte
    /// moves.
    ///
    /// Raises:
    ///     PositionError: The sample is not that long, or the length is negative.
    ///     OptionError: The sample is not in this batch.
    fn truncate(
        &self,
        py: Python<'_>,
        sample: &PySample,
        #[pyo3(from_py_with = options::length)] length: usize,
    ) -> PyResult<()> {
        self.with(py, |session| session.truncate(sample.0, length))
    }

    /// How many tokens of a sample are in the cache.
    ///
    /// Raises:
    ///     OptionError: The sample is not in this batch.
    fn cached_tokens(&self, py: Python<'_>, sample: &PySample) -> PyResult<usize> {
        self.with(py, |session| session.cached_tokens(sample.0))
    }

    /// Gives samples their next tokens, as many for each as it likes; samples that are not named stay as they are.
    ///
    /// One run of the model; more where the padding of a sample would not fit after it, or where the model gives logits
    /// of the last token only.
    ///
    /// Args:
    ///     tokens: A dict from samples to their tokens: a sequence of integers, or an integer array of one dimension.
    ///
    /// Returns:
    ///     `Logits`: the logits after every token.
    ///
    /// Raises:
    ///     PositionError: Before anything is run, for a sample that would outgrow its capacity, and for a token that the
    ///         model does not have.
    ///     OptionError: Before anything is run, for a sample that is not in this batch, for one without tokens, for no
    ///         sample.
    ///     SessionError: ONNX Runtime failed; the counts of cached tokens are as they were, rows beyond them may have been written.
    fn step(&self, py: Python<'_>, tokens: &Bound<'_, PyMapping>) -> PyResult<PyLogits> {
        let token_lists = tokens_of(tokens)?;
        let token_lists = borrowed(&token_lists);
        self.with(py, |session| session.step(&token_lists).map(PyLogits))
    }

    /// As `step`, in runs of at most `chunk` tokens of each sample, and with the logits after the last tokens alone: what
    /// long prompts need, whose logits all together would be large.
    ///
    /// Raises:
    ///     PositionError, OptionError, SessionError: As `step`; `OptionError` for a chunk of 0.
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

    /// What the caches take: a `MemoryReport`.
    fn memory<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        memory(py, &self.with(py, |session| Ok(session.memory()))?)
    }

    /// Gives the model's and the caches' memory back, after calls that still run. May be called again.
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

/// Tokens of a prompt in one run of the model, if the caller does not say.
pub(crate) const CHUNK: usize = 512;

impl PyKvSession {
    /// Calls a function with the session, while other threads run Python: another call may hold it for long.
    fn with<T: Send>(
        &self,
        py: Python<'_>,
        call: impl FnOnce(&mut KvSession) -> Result<T, SessionError> + Send,
    ) -> PyResult<T> {
        let called = py.detach(|| {
            // A call that panicked has set no length that it did not reach.
            let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
            open.as_mut().map(call)
        });
        called.ok_or_else(|| closed(py))?.map_err(|error| raise(py, &error))
    }
}

/// Copies of the tokens, since another thread may change an array at any time.
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
