//! Generation with a decoder in this Python's ONNX Runtime. The modules of the package call it.

use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::{Mutex, TryLockError};

use kvscatter_onnx::source::{ModelSource, Preparation, PrepareOptions};
use kvscatter_session::{
    End, Event, GenerateOptions, Generated, Generator, Progress, Sampling, SessionError, SessionOptions,
};
use pyo3::exceptions::PyTypeError;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyString, PyType};

use crate::failure::{Failure, Name, class_name};
use crate::indices::Indices;
use crate::lazy::Lazy;
use crate::runtime::Plugin;
use crate::session::CHUNK;
use crate::session_error::{closed, generator_busy, raise};
use crate::{options, runtime};

/// Finds the decoder of a path and converts it if its caches are not static. Returns the path of the model to run, the
/// folder of its tokenizer, what was done (`"nothing"`, `"converted"` or `"reused"`), and a line that describes it.
#[pyfunction]
pub(crate) fn prepare_model(
    py: Python<'_>,
    path: PathBuf,
    convert: bool,
    #[pyo3(from_py_with = options::max_seq)] max_seq: Option<usize>,
) -> PyResult<(PathBuf, PathBuf, &'static str, String)> {
    let options = PrepareOptions { convert, max_seq, ..PrepareOptions::default() };
    let prepared = py.detach(|| ModelSource::find(&path)?.prepare(&options));
    let prepared = prepared.map_err(|error| raise(py, &SessionError::Onnx(error)))?;
    let description = prepared.to_string();
    let what = match prepared.what {
        Preparation::AsItIs => "nothing",
        Preparation::Converted { .. } => "converted",
        Preparation::Reused { .. } => "reused",
    };
    Ok((prepared.model, prepared.folder, what, description))
}

/// The checked options of a generation.
#[pyclass(frozen, module = "kvscatter._native")]
pub(crate) struct Generation {
    options: GenerateOptions,
    draft: usize,
    progress: Option<Py<PyAny>>,
}

#[pymethods]
impl Generation {
    #[new]
    #[pyo3(signature = (max_new_tokens=None, *, do_sample=false, temperature=1.0, top_k=50, top_p=1.0, min_p=0.0, repetition_penalty=1.0, seed=0, eos=None, chunk=CHUNK, draft=0, progress=None))]
    #[pyo3(
        text_signature = "(max_new_tokens=None, *, do_sample=False, temperature=1.0, top_k=50, top_p=1.0, \
        min_p=0.0, repetition_penalty=1.0, seed=0, eos=(), chunk=512, draft=0, progress=None)"
    )]
    #[expect(clippy::too_many_arguments, reason = "the options of generation, by keyword")]
    fn new(
        #[pyo3(from_py_with = options::max_new_tokens)] max_new_tokens: Option<usize>,
        do_sample: bool,
        #[pyo3(from_py_with = options::temperature)] temperature: f32,
        #[pyo3(from_py_with = options::top_k)] top_k: usize,
        #[pyo3(from_py_with = options::top_p)] top_p: f32,
        #[pyo3(from_py_with = options::min_p)] min_p: f32,
        #[pyo3(from_py_with = options::repetition_penalty)] repetition_penalty: f32,
        #[pyo3(from_py_with = options::seed)] seed: u64,
        eos: Option<&Bound<'_, PyAny>>,
        #[pyo3(from_py_with = options::chunk)] chunk: usize,
        #[pyo3(from_py_with = options::draft)] draft: usize,
        progress: Option<Bound<'_, PyAny>>,
    ) -> PyResult<Self> {
        if progress.as_ref().is_some_and(|progress| !progress.is_callable()) {
            return Err(PyTypeError::new_err("progress must be callable or None"));
        }
        let sampling = Sampling { temperature, top_k, top_p, min_p, seed };
        let options = GenerateOptions {
            max_new_tokens,
            eos: list(Indices::of(eos, "eos")?),
            chunk,
            repetition_penalty,
            sampling: do_sample.then_some(sampling),
        };
        Ok(Self { options, draft, progress: progress.map(Bound::unbind) })
    }

    /// Returns the same options with other end tokens.
    fn with_eos(&self, py: Python<'_>, eos: &Bound<'_, PyAny>) -> PyResult<Self> {
        let options = GenerateOptions { eos: list(Indices::of(Some(eos), "eos")?), ..self.options.clone() };
        Ok(Self { options, draft: self.draft, progress: self.progress.as_ref().map(|it| it.clone_ref(py)) })
    }
}

/// A loaded decoder whose caches keep the samples of the last call.
///
/// It has room for `batch` prompts. If `prompts` is given instead, it has room for these and for the tokens that
/// `generation` adds to them, after the saved prompt of `prefix`.
#[pyclass(frozen, module = "kvscatter._native")]
pub(crate) struct KeptGenerator {
    capacity: Option<usize>,
    engine: String,
    /// The generator, or `None` after it was closed.
    open: Mutex<Option<Generator>>,
}

#[pymethods]
impl KeptGenerator {
    #[new]
    #[pyo3(signature = (path, *, batch=Some(1), prompts=None, generation=None, prefix=None, capacity=None, threads=None, memory=SessionOptions::default().memory, onnxruntime=None, plugin=Plugin::OfPackage(true)))]
    #[pyo3(text_signature = "(path, *, batch=1, prompts=None, generation=None, prefix=None, capacity=None, \
        threads=None, memory=17179869184, onnxruntime=None, plugin=True)")]
    #[expect(clippy::too_many_arguments, reason = "the options of a session, by keyword")]
    fn new(
        py: Python<'_>,
        path: PathBuf,
        #[pyo3(from_py_with = options::batch)] batch: Option<usize>,
        prompts: Option<&Bound<'_, PyAny>>,
        generation: Option<&Generation>,
        prefix: Option<PathBuf>,
        #[pyo3(from_py_with = options::capacity)] capacity: Option<usize>,
        #[pyo3(from_py_with = options::threads)] threads: Option<usize>,
        #[pyo3(from_py_with = options::memory)] memory: u64,
        onnxruntime: Option<PathBuf>,
        plugin: Plugin,
    ) -> PyResult<Self> {
        let prompts = prompts.map(lists).transpose()?;
        let options = generation.map(|generation| generation.options.clone()).unwrap_or_default();
        let engine = runtime::load(py, onnxruntime, plugin)?;
        let of = SessionOptions { batch: None, capacity, threads, memory, ..SessionOptions::default() };
        let generator = py.detach(|| match (&prompts, prefix) {
            (Some(prompts), Some(saved)) => {
                Generator::open_after(&engine, &path, &saved, prompts, &options, of)
            }
            (Some(prompts), None) => Generator::open_for(&engine, &path, prompts, &options, of),
            (None, _) => Generator::open(&engine, &path, batch.unwrap_or(1), of),
        });
        let generator = generator.map_err(|error| raise(py, &error))?;
        let (capacity, engine) = (generator.capacity(), runtime::label(&engine));
        Ok(Self { capacity, engine, open: Mutex::new(Some(generator)) })
    }

    /// The maximum number of tokens of a sample, or None if the caches grow.
    #[getter]
    fn capacity(&self) -> Option<usize> {
        self.capacity
    }

    /// The name and version of ONNX Runtime and its plugin.
    #[getter]
    fn engine(&self) -> &str {
        &self.engine
    }

    /// The number of tokens that the model knows, if it declares it.
    #[getter]
    fn vocabulary(&self, py: Python<'_>) -> PyResult<Option<usize>> {
        self.with(py, |generator| Ok(generator.vocabulary()))
    }

    /// Generates the tokens after prompts.
    ///
    /// `watch` is called with an empty list before each part of the prompts, and then after each step with the new
    /// tokens of each prompt. It returns pairs of a prompt and the number of new tokens after which the prompt ends. An
    /// exception in it ends the generation.
    #[pyo3(signature = (prompts, generation, *, watch=None, save_prefix=None))]
    fn generate<'py>(
        &self,
        py: Python<'py>,
        prompts: &Bound<'py, PyAny>,
        generation: &Generation,
        watch: Option<Py<PyAny>>,
        save_prefix: Option<PathBuf>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let prompts = lists(prompts)?;
        let mut raised = None;
        let mut report = |event: Event<'_>| {
            let reported = Python::attach(|py| generation.report(py, watch.as_ref(), prompts.len(), event));
            match reported {
                Ok(()) => ControlFlow::Continue(()),
                Err(error) => {
                    raised = Some(error);
                    ControlFlow::Break(())
                }
            }
        };
        let generated = self.with(py, |generator| {
            generator.draft(generation.draft);
            if let Some(path) = save_prefix {
                generator.save_prompt(path);
            }
            generator.generate(&prompts, &generation.options, &mut report)
        });
        match raised {
            Some(error) => Err(error),
            None => python_generated(py, generated?, self.engine.clone()),
        }
    }

    /// Frees the model and the caches.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        self.with_open(py, |open| drop(open.take()))
    }
}

impl KeptGenerator {
    /// Calls a function with the generator. Other threads run Python meanwhile.
    fn with<T: Send>(
        &self,
        py: Python<'_>,
        call: impl FnOnce(&mut Generator) -> Result<T, SessionError> + Send,
    ) -> PyResult<T> {
        let called = self.with_open(py, |open| open.as_mut().map(call))?;
        called.ok_or_else(|| closed(py))?.map_err(|error| raise(py, &error))
    }

    /// Calls a function with the generator, or with `None` if it was closed. A call during another one does not wait,
    /// because a stream only goes on when its caller reads it.
    fn with_open<T: Send>(
        &self,
        py: Python<'_>,
        call: impl FnOnce(&mut Option<Generator>) -> T + Send,
    ) -> PyResult<T> {
        let called = py.detach(|| match self.open.try_lock() {
            Ok(mut open) => Some(call(&mut open)),
            // The next call begins anew.
            Err(TryLockError::Poisoned(open)) => Some(call(&mut open.into_inner())),
            Err(TryLockError::WouldBlock) => None,
        });
        called.ok_or_else(|| generator_busy(py))
    }
}

impl Generation {
    /// Runs pending signal handlers, such as that of Ctrl-C, and calls the callbacks.
    fn report(
        &self,
        py: Python<'_>,
        watch: Option<&Py<PyAny>>,
        prompts: usize,
        event: Event<'_>,
    ) -> PyResult<()> {
        py.check_signals()?;
        let mut new = match event {
            Event::Tokens(new) => new,
            Event::Prefill { .. } => {
                return watch.map_or(Ok(()), |watch| watch.call1(py, (Vec::<i64>::new(),)).map(drop));
            }
        };
        if let Some(progress) = &self.progress {
            let Progress { tokens, samples } = new.progress();
            progress.call1(py, (tokens, samples))?;
        }
        if let Some(watch) = watch {
            let tokens: Vec<_> = (0..prompts).map(|prompt| new.of(prompt).to_vec()).collect();
            let stops: Vec<(usize, usize)> = watch.call1(py, (tokens,))?.extract(py)?;
            stops.into_iter().for_each(|(prompt, keep)| new.stop(prompt, keep));
        }
        Ok(())
    }
}

/// Reads the token ids of each prompt.
fn lists(prompts: &Bound<'_, PyAny>) -> PyResult<Vec<Vec<i64>>> {
    let argument = "prompts";
    let is_text = prompts.is_instance_of::<PyString>() || prompts.is_instance_of::<PyBytes>();
    if is_text || !prompts.hasattr(intern!(prompts.py(), "__iter__"))? {
        let class = class_name(&prompts.get_type());
        let expected = "a text, or a sequence of texts or of sequences of token ids";
        return Err(Failure::Keyword { argument, class, expected }.into());
    }
    let of = |(index, prompt): (_, PyResult<_>)| {
        Indices::of_list(&prompt?, Name { argument, list: Some(index) }).map(list)
    };
    prompts.try_iter()?.enumerate().map(of).collect()
}

fn list(values: Indices) -> Vec<i64> {
    values.values().unwrap_or_default().to_vec()
}

fn python_generated(py: Python<'_>, generated: Generated, engine: String) -> PyResult<Bound<'_, PyAny>> {
    static CLASS: Lazy<Py<PyType>> = Lazy::new();
    CLASS.import(py, "kvscatter._session", "Generated")?.call1((
        generated.samples,
        generated.ends.into_iter().map(End::name).collect::<Vec<_>>(),
        generated.prompt_tokens,
        generated.prefill.as_secs_f64(),
        generated.steps,
        generated.decoded,
        generated.drafted,
        generated.accepted,
        generated.decode.as_secs_f64(),
        generated.written_per_step,
        generated.copied,
        engine,
    ))
}
