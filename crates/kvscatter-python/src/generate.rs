//! Generation with a decoder in this Python's ONNX Runtime. The modules of the package call it.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, OnceLock, TryLockError};

use kvscatter_onnx::convert::CacheType;
use kvscatter_onnx::decoder::Decoder;
use kvscatter_onnx::plain_decoder;
use kvscatter_onnx::source::{ModelSource, Preparation, PrepareOptions};
use kvscatter_session::{
    End, Event, GenerateOptions, Generated, Generator, Interface, Progress, Sampling, SessionError,
    SessionOptions, saved_tokens,
};
use pyo3::exceptions::PyTypeError;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{IntoPyDict, PyBytes, PyString, PyType};

use crate::failure::{Failure, Name, class_name};
use crate::indices::Indices;
use crate::lazy::Lazy;
use crate::runtime::Plugin;
use crate::session::CHUNK;
use crate::session_error::{closed, generator_busy, raise};
use crate::{options, runtime};

/// A decoder that was exported, and the options with which it is converted and loaded.
#[pyclass(frozen, module = "kvscatter._native")]
pub(crate) struct Model {
    source: ModelSource,
    preparation: PrepareOptions,
    session: SessionOptions,
    onnxruntime: Option<PathBuf>,
    plugin: Plugin,
    declared: OnceLock<Declared>,
}

/// What a file declares before an engine loads it.
#[derive(Clone, Copy, Default)]
struct Declared {
    vocabulary: Option<usize>,
    /// The number of tokens that a sample may have. It is not known if the caches grow.
    capacity: Option<usize>,
    grows: bool,
}

#[pymethods]
impl Model {
    /// Finds the decoder of a path. Nothing is converted or loaded.
    #[new]
    #[pyo3(signature = (path, *, convert=true, max_seq=None, cache_type=None, rotation=true, capacity=None, threads=None, memory=SessionOptions::default().memory, onnxruntime=None, plugin=Plugin::OfPackage(true)))]
    #[pyo3(
        text_signature = "(path, *, convert=True, max_seq=None, cache_type=None, rotation=True, capacity=None, \
        threads=None, memory=17179869184, onnxruntime=None, plugin=True)"
    )]
    #[expect(clippy::too_many_arguments, reason = "the options of a session, by keyword")]
    fn new(
        py: Python<'_>,
        path: PathBuf,
        convert: bool,
        #[pyo3(from_py_with = options::max_seq)] max_seq: Option<usize>,
        #[pyo3(from_py_with = options::cache_type)] cache_type: Option<CacheType>,
        rotation: bool,
        #[pyo3(from_py_with = options::capacity)] capacity: Option<usize>,
        #[pyo3(from_py_with = options::threads)] threads: Option<usize>,
        #[pyo3(from_py_with = options::memory)] memory: u64,
        onnxruntime: Option<PathBuf>,
        plugin: Plugin,
    ) -> PyResult<Self> {
        let source = py.detach(|| ModelSource::find(&path));
        let source = source.map_err(|error| raise(py, &SessionError::Onnx(error)))?;
        let preparation =
            PrepareOptions { convert, max_seq, cache_type, rotation, ..PrepareOptions::default() };
        let session = SessionOptions { batch: None, capacity, threads, memory, ..SessionOptions::default() };
        Ok(Self { source, preparation, session, onnxruntime, plugin, declared: OnceLock::new() })
    }

    /// The folder of the tokenizer.
    #[getter]
    fn folder(&self) -> PathBuf {
        self.source.folder.clone()
    }

    /// The number of tokens that the model knows, if it declares it.
    #[getter]
    fn vocabulary(&self, py: Python<'_>) -> Option<usize> {
        self.declared(py).vocabulary
    }

    /// Whether opening the model converts it, as far as its file tells.
    #[getter]
    fn is_converted(&self, py: Python<'_>) -> bool {
        let is_other = self.preparation.cache_type.is_some();
        self.preparation.convert && (is_other || self.declared(py).grows)
    }

    /// Checks a generation before the model is converted and loaded. If it is converted, `open` checks the length of
    /// the prompts.
    #[pyo3(signature = (prompts, generation, *, prefix=None, save_prefix=None))]
    fn check(
        &self,
        py: Python<'_>,
        prompts: &Prompts,
        generation: &Generation,
        prefix: Option<PathBuf>,
        save_prefix: Option<PathBuf>,
    ) -> PyResult<()> {
        let (declared, is_converted) = (self.declared(py), self.is_converted(py));
        let check = || {
            let capacity = declared.capacity.filter(|_| !is_converted);
            Declared { capacity, ..declared }.check(&prompts.0, &generation.options, prefix.as_deref())?;
            save_prefix.map_or(Ok(()), |path| Generator::check_save(&path, &prompts.0))
        };
        py.detach(check).map_err(|error| raise(py, &error))
    }

    /// Loads the model, after a conversion if its caches are not static.
    ///
    /// It has room for `batch` prompts. If `prompts` is given instead, it has room for these and for the tokens that
    /// `generation` adds to them, after the saved prompt of `prefix`. Before the model is loaded, `report` is called
    /// with what was done (`"nothing"`, `"converted"` or `"reused"`) and a line that describes it.
    #[pyo3(signature = (report, *, batch=Some(1), prompts=None, generation=None, prefix=None))]
    #[pyo3(text_signature = "($self, report, *, batch=1, prompts=None, generation=None, prefix=None)")]
    fn open(
        &self,
        py: Python<'_>,
        report: &Bound<'_, PyAny>,
        #[pyo3(from_py_with = options::batch)] batch: Option<usize>,
        prompts: Option<&Prompts>,
        generation: Option<&Generation>,
        prefix: Option<PathBuf>,
    ) -> PyResult<KeptGenerator> {
        let engine = runtime::load(py, self.onnxruntime.clone(), self.plugin.clone())?;
        let prepared = py.detach(|| self.source.clone().prepare(&self.preparation));
        let prepared = prepared.map_err(|error| raise(py, &SessionError::Onnx(error)))?;
        let what = match prepared.what {
            Preparation::AsItIs => "nothing",
            Preparation::Converted { .. } => "converted",
            Preparation::Reused { .. } => "reused",
        };
        report.call1((what, prepared.to_string()))?;
        let options = generation.map(|generation| generation.options.clone()).unwrap_or_default();
        let (path, session) = (&prepared.model, self.session);
        let open = || {
            let Some(Prompts(prompts)) = prompts else {
                return Generator::open(&engine, path, batch.unwrap_or(1), session);
            };
            if prepared.what != Preparation::AsItIs {
                let declared = Declared::read(path, session).unwrap_or_default();
                declared.check(prompts, &options, prefix.as_deref())?;
            }
            match prefix {
                Some(saved) => Generator::open_after(&engine, path, &saved, prompts, &options, session),
                None => Generator::open_for(&engine, path, prompts, &options, session),
            }
        };
        let generator = py.detach(open).map_err(|error| raise(py, &error))?;
        let (capacity, engine) = (generator.capacity(), runtime::label(&engine));
        let group_query_nodes = runtime::group_query_nodes(generator.group_query_nodes());
        Ok(KeptGenerator { capacity, engine, group_query_nodes, open: Mutex::new(Some(generator)) })
    }
}

impl Model {
    /// Reads what the model declares. If this fails, the error comes when the model is converted or loaded.
    fn declared(&self, py: Python<'_>) -> Declared {
        let read = || Declared::read(&self.source.model, self.session).unwrap_or_default();
        py.detach(|| *self.declared.get_or_init(read))
    }
}

impl Declared {
    /// Reads a decoder in its plain form.
    fn read(path: &Path, options: SessionOptions) -> Result<Self, SessionError> {
        let model = kvscatter_onnx::Model::load(path)?;
        let model = plain_decoder(&model)?.model;
        let graph = model.graph()?;
        let interface = Interface::new(&model, &Decoder::from_graph(&graph)?)?;
        let capacity = if interface.is_copied() { None } else { interface.capacity_or(options.capacity)? };
        Ok(Self { vocabulary: interface.vocabulary, capacity, grows: interface.growth().is_some() })
    }

    /// Checks prompts, which follow a saved prompt if there is a prefix.
    fn check(
        self,
        prompts: &[Vec<i64>],
        options: &GenerateOptions,
        prefix: Option<&Path>,
    ) -> Result<(), SessionError> {
        let prefix = prefix.map_or(Ok(0), |path| saved_tokens(path).map(|saved| saved.len()))?;
        options.check(prompts, prefix, self.vocabulary, self.capacity)
    }
}

/// Prompts of token ids.
#[pyclass(frozen, module = "kvscatter._native")]
pub(crate) struct Prompts(Vec<Vec<i64>>);

#[pymethods]
impl Prompts {
    /// Reads the token ids of each prompt.
    #[new]
    fn new(prompts: &Bound<'_, PyAny>) -> PyResult<Self> {
        let argument = "prompts";
        let is_text = prompts.is_instance_of::<PyString>() || prompts.is_instance_of::<PyBytes>();
        if is_text || !prompts.hasattr(intern!(prompts.py(), "__iter__"))? {
            let class = class_name(&prompts.get_type());
            let wanted = "a text, or a sequence of texts or of sequences of token ids";
            return Err(Failure::Keyword { argument, class, wanted }.into());
        }
        let read = |(index, prompt): (_, PyResult<_>)| {
            Indices::read_list(&prompt?, Name { argument, list: Some(index) }).map(list)
        };
        prompts.try_iter()?.enumerate().map(read).collect::<PyResult<_>>().map(Self)
    }

    fn __len__(&self) -> usize {
        self.0.len()
    }
}

/// The checked options of a generation.
#[pyclass(frozen, module = "kvscatter._native")]
pub(crate) struct Generation {
    options: GenerateOptions,
    has_eos: bool,
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
            eos: list(Indices::read(eos, "eos")?),
            chunk,
            repetition_penalty,
            sampling: do_sample.then_some(sampling),
        };
        Ok(Self { options, has_eos: eos.is_some(), draft, progress: progress.map(Bound::unbind) })
    }

    /// Whether the options name the end tokens, or that there are none.
    #[getter]
    fn has_eos(&self) -> bool {
        self.has_eos
    }

    /// Returns the same options with other end tokens.
    fn with_eos(&self, py: Python<'_>, eos: &Bound<'_, PyAny>) -> PyResult<Self> {
        let options = GenerateOptions { eos: list(Indices::read(Some(eos), "eos")?), ..self.options.clone() };
        let progress = self.progress.as_ref().map(|it| it.clone_ref(py));
        Ok(Self { options, has_eos: true, draft: self.draft, progress })
    }
}

/// A loaded decoder whose caches keep the samples of the last call.
#[pyclass(frozen, module = "kvscatter._native")]
pub(crate) struct KeptGenerator {
    capacity: Option<usize>,
    engine: String,
    group_query_nodes: (usize, usize),
    /// The generator, or `None` after it was closed.
    open: Mutex<Option<Generator>>,
}

#[pymethods]
impl KeptGenerator {
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
        prompts: &Prompts,
        generation: &Generation,
        watch: Option<Py<PyAny>>,
        save_prefix: Option<PathBuf>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let prompts = &prompts.0;
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
            generator.generate(prompts, &generation.options, &mut report)
        });
        match raised {
            Some(error) => Err(error),
            None => python_generated(py, generated?, self),
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
            let tokens: Vec<_> = (0..prompts).map(|prompt| new.tokens(prompt).to_vec()).collect();
            let stops: Vec<(usize, usize)> = watch.call1(py, (tokens,))?.extract(py)?;
            stops.into_iter().for_each(|(prompt, keep)| new.stop(prompt, keep));
        }
        Ok(())
    }
}

fn list(values: Indices) -> Vec<i64> {
    values.values().unwrap_or_default().to_vec()
}

fn python_generated<'py>(
    py: Python<'py>,
    generated: Generated,
    generator: &KeptGenerator,
) -> PyResult<Bound<'py, PyAny>> {
    static CLASS: Lazy<Py<PyType>> = Lazy::new();
    // A tuple of arguments has at most twelve elements.
    let nodes = [("group_query_nodes", generator.group_query_nodes)].into_py_dict(py)?;
    let arguments = (
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
        &generator.engine,
    );
    CLASS.import(py, "kvscatter._session", "Generated")?.call(arguments, Some(&nodes))
}
