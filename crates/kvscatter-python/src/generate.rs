//! Generation in one call.

use std::ops::ControlFlow;
use std::path::PathBuf;

use kvscatter_session::{
    End, Event, GenerateOptions, Generated, Generator, Progress, Sampling, SessionOptions,
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
use crate::session_error::raise;
use crate::{options, runtime};

/// Continues prompts, all in one batch, in ONNX Runtime. By default, every token is the most likely one.
///
/// A decoder with static caches takes prompts of different lengths, and so does one whose caches
/// `GroupQueryAttention` writes. A decoder whose caches grow runs as it was exported, and its prompts must have
/// the same length. Its tokens are the reference for the decoder with static caches.
///
/// Args:
///     path: The model, an ONNX file.
///     prompts: The token ids of each prompt: sequences of integers, or integer arrays of one dimension.
///     max_new_tokens: The maximum number of tokens to generate for each prompt. With None, a prompt ends with a token
///         of `eos` or when the cache is full.
///     do_sample: Whether to draw tokens at random. `temperature`, `top_k`, `top_p`, `min_p` and `seed` have no effect
///         without it.
///     temperature: The number that divides the logits, above 0. Below 1 it makes likely tokens more likely.
///     top_k: The number of most likely tokens that may be drawn. 0 allows all tokens.
///     top_p: Allows the fewest most likely tokens whose probabilities sum to at least this number, above 0 and at
///         most 1.
///     min_p: Allows tokens that have at least this part of the probability of the most likely token, from 0 to 1.
///     repetition_penalty: The number that divides the positive logits of tokens that occurred before, and multiplies
///         the negative ones, above 0. Above 1 it makes repetitions less likely.
///     seed: The seed of the random numbers. The same seed gives the same tokens after a prompt, also with other
///         prompts in the batch. Equal prompts in one call get different tokens.
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
#[pyo3(signature = (path, prompts, max_new_tokens=None, *, do_sample=false, temperature=1.0, top_k=50, top_p=1.0, min_p=0.0, repetition_penalty=1.0, seed=0, eos=None, capacity=None, threads=None, memory=SessionOptions::default().memory, chunk=CHUNK, draft=0, prefix=None, save_prefix=None, onnxruntime=None, plugin=Plugin::OfPackage(true), progress=None))]
#[pyo3(
    text_signature = "(path, prompts, max_new_tokens=None, *, do_sample=False, temperature=1.0, top_k=50, top_p=1.0, \
    min_p=0.0, repetition_penalty=1.0, seed=0, eos=(), capacity=None, threads=None, memory=17179869184, chunk=512, \
    draft=0, prefix=None, save_prefix=None, onnxruntime=None, plugin=True, progress=None)"
)]
#[expect(clippy::too_many_arguments, reason = "the options of generation, by keyword")]
pub(crate) fn generate<'py>(
    py: Python<'py>,
    path: PathBuf,
    prompts: &Bound<'py, PyAny>,
    #[pyo3(from_py_with = options::max_new_tokens)] max_new_tokens: Option<usize>,
    do_sample: bool,
    #[pyo3(from_py_with = options::temperature)] temperature: f32,
    #[pyo3(from_py_with = options::top_k)] top_k: usize,
    #[pyo3(from_py_with = options::top_p)] top_p: f32,
    #[pyo3(from_py_with = options::min_p)] min_p: f32,
    #[pyo3(from_py_with = options::repetition_penalty)] repetition_penalty: f32,
    #[pyo3(from_py_with = options::seed)] seed: u64,
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
    let sampling = Sampling { temperature, top_k, top_p, min_p, seed };
    let generation = GenerateOptions {
        max_new_tokens,
        eos: list(Indices::of(eos, "eos")?),
        chunk,
        repetition_penalty,
        sampling: do_sample.then_some(sampling),
    };
    let engine = runtime::load(py, onnxruntime, plugin)?;
    let options = SessionOptions { batch: None, capacity, threads, memory, ..SessionOptions::default() };
    let mut raised = None;
    let mut watch = |event: Event<'_>| match Python::attach(|py| report(py, progress.as_ref(), &event)) {
        Ok(()) => ControlFlow::Continue(()),
        Err(error) => {
            raised = Some(error);
            ControlFlow::Break(())
        }
    };
    let generated = py.detach(|| {
        let mut generator = match prefix {
            Some(saved) => Generator::open_after(&engine, &path, &saved, &prompts, &generation, options)?,
            None => Generator::open_for(&engine, &path, &prompts, &generation, options)?,
        };
        generator.draft(draft);
        if let Some(path) = save_prefix {
            generator.save_prompt(path);
        }
        generator.generate(&prompts, &generation, &mut watch)
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

/// Runs pending signal handlers, such as that of Ctrl-C, and calls the callback for progress after a step.
fn report(py: Python<'_>, progress: Option<&Py<PyAny>>, event: &Event<'_>) -> PyResult<()> {
    py.check_signals()?;
    match (progress, event) {
        (Some(progress), Event::Tokens(new)) => {
            let Progress { tokens, samples } = new.progress();
            progress.call1(py, (tokens, samples)).map(drop)
        }
        _ => Ok(()),
    }
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
