//! Greedy generation in one call.

use std::ops::ControlFlow;
use std::path::PathBuf;

use kvscatter_session::{Generated, Generator, GreedyOptions, Progress, SessionOptions};
use pyo3::exceptions::PyTypeError;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyString, PyType};

use crate::failure::{Failure, Name, class_name};
use crate::indices::Indices;
use crate::lazy::Lazy;
use crate::runtime::Plugin;
use crate::session::CHUNK;
use crate::session_error::raise;
use crate::{options, runtime};

/// Continues prompts with the most likely tokens, all in one batch, in ONNX Runtime.
///
/// A decoder with static caches takes prompts of different lengths, and so does one whose caches
/// `GroupQueryAttention` writes. A decoder whose caches grow runs as it was exported, and its prompts must have
/// the same length. Its tokens are the reference for the decoder with static caches.
///
/// Args:
///     path: The model, an ONNX file.
///     prompts: The token ids of each prompt: sequences of integers, or integer arrays of one dimension.
///     tokens: The maximum number of tokens to generate for each prompt.
///     eos: Tokens after which a prompt ends.
///     capacity, threads, memory, onnxruntime, plugin: See `KvSession`.
///     chunk: The maximum number of tokens of one prompt in a run of the model.
///     draft: The maximum number of drafted tokens of each sample in a step, which verifies them. If the last tokens
///         of a sample occurred earlier in its text, the draft is a copy of what followed them there (prompt
///         lookup). Each step drafts as many tokens as are expected to give the most tokens for its cost.
///     prefix: A file of a saved prompt, whose tokens come before those of every prompt.
///     save_prefix: A file that the prompt is saved to. There must be one prompt.
///     progress: A function that is called after the prompts and after every later step. Its arguments are the
///         number of tokens generated for each prompt (with drafts, the smallest number among the prompts that
///         have not ended) and the number of prompts that have not ended. An exception in it ends the generation.
///
/// Ctrl-C interrupts between two steps.
///
/// Returns:
///     `Generated`: the tokens after each prompt, and the cost of generating them.
///
/// Raises:
///     SessionError, OptionError: For the same reasons as `KvSession`. `OptionError` is also raised if there
///         are no prompts or one is empty.
///     PositionError: The model does not have a token of a prompt or of `eos`, or a prompt has no room for its
///         continuation. This is raised before the model runs, except for `eos` if the model does not declare its
///         vocabulary.
#[pyfunction]
#[pyo3(signature = (path, prompts, tokens, *, eos=None, capacity=None, threads=None, memory=SessionOptions::default().memory, chunk=CHUNK, draft=0, prefix=None, save_prefix=None, onnxruntime=None, plugin=Plugin::OfPackage(true), progress=None))]
#[pyo3(
    text_signature = "(path, prompts, tokens, *, eos=(), capacity=None, threads=None, memory=17179869184, chunk=512, \
    draft=0, prefix=None, save_prefix=None, onnxruntime=None, plugin=True, progress=None)"
)]
#[expect(clippy::too_many_arguments, reason = "the options of generation, by keyword")]
pub(crate) fn generate<'py>(
    py: Python<'py>,
    path: PathBuf,
    prompts: &Bound<'py, PyAny>,
    #[pyo3(from_py_with = options::tokens)] tokens: usize,
    eos: Option<&Bound<'py, PyAny>>,
    #[pyo3(from_py_with = options::capacity)] capacity: Option<usize>,
    #[pyo3(from_py_with = options::threads)] threads: Option<usize>,
    #[pyo3(from_py_with = options::memory)] memory: u64,
    #[pyo3(from_py_with = options::chunk)] chunk: usize,
    #[pyo3(from_py_with = options::draft)] draft: usize,
    prefix: Option<PathBuf>,
    save_prefix: Option<PathBuf>,
    onnxruntime: Option<PathBuf>,
    plugin: Plugin,
    progress: Option<Bound<'py, PyAny>>,
) -> PyResult<Bound<'py, PyAny>> {
    if progress.as_ref().is_some_and(|progress| !progress.is_callable()) {
        return Err(PyTypeError::new_err("progress must be callable or None"));
    }
    let progress = progress.map(Bound::unbind);
    let list = |values: Indices| values.values().unwrap_or_default().to_vec();
    let prompts: Vec<Vec<i64>> = lists(prompts)?.into_iter().map(list).collect();
    let greedy = GreedyOptions { tokens, eos: list(Indices::of(eos, "eos")?), chunk };
    let engine = runtime::load(py, onnxruntime, plugin)?;
    let options = SessionOptions { batch: None, capacity, threads, memory, ..SessionOptions::default() };
    let mut raised = None;
    let mut report = |at: Progress| match Python::attach(|py| report_progress(py, progress.as_ref(), at)) {
        Ok(()) => ControlFlow::Continue(()),
        Err(error) => {
            raised = Some(error);
            ControlFlow::Break(())
        }
    };
    let generated = py.detach(|| {
        let mut generator = match prefix {
            Some(saved) => Generator::open_after(&engine, &path, &saved, &prompts, &greedy, options)?,
            None => Generator::open_for(&engine, &path, &prompts, &greedy, options)?,
        };
        generator.draft(draft);
        if let Some(path) = save_prefix {
            generator.save_prompt(path);
        }
        generator.generate(&prompts, &greedy, &mut report)
    });
    match raised {
        Some(error) => Err(error),
        None => python_generated(py, generated.map_err(|error| raise(py, &error))?, runtime::label(&engine)),
    }
}

/// Reads the token ids of each prompt.
fn lists(prompts: &Bound<'_, PyAny>) -> PyResult<Vec<Indices>> {
    let argument = "prompts";
    let is_text = prompts.is_instance_of::<PyString>() || prompts.is_instance_of::<PyBytes>();
    if is_text || !prompts.hasattr(intern!(prompts.py(), "__iter__"))? {
        let class = class_name(&prompts.get_type());
        let expected = "a sequence of prompts, each of which is a sequence of token ids";
        return Err(Failure::Keyword { argument, class, expected }.into());
    }
    let of =
        |(index, prompt): (_, PyResult<_>)| Indices::of_list(&prompt?, Name { argument, list: Some(index) });
    prompts.try_iter()?.enumerate().map(of).collect()
}

/// Runs pending signal handlers, such as that of Ctrl-C, and calls the callback for progress.
fn report_progress(py: Python<'_>, progress: Option<&Py<PyAny>>, at: Progress) -> PyResult<()> {
    py.check_signals()?;
    match progress {
        Some(progress) => progress.call1(py, (at.tokens, at.samples)).map(drop),
        None => Ok(()),
    }
}

fn python_generated(py: Python<'_>, generated: Generated, engine: String) -> PyResult<Bound<'_, PyAny>> {
    static CLASS: Lazy<Py<PyType>> = Lazy::new();
    CLASS.import(py, "kvscatter._session", "Generated")?.call1((
        generated.samples,
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
