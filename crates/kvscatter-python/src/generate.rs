//! Greedy generation in one call.

use std::path::PathBuf;

use kvscatter_session::{Generated, Generator, Greedy, SessionOptions};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyType;

use crate::indices::Indices;
use crate::runtime;
use crate::session::CHUNK;
use crate::session_error::raise;

/// Continues prompts with the most likely tokens, together in one batch, in ONNX Runtime.
///
/// A decoder with a static cache takes prompts of different lengths. One whose caches grow, as it was exported, takes
/// those of one length: what it gives is what the static one must give.
///
/// Args:
///     path: The model, an ONNX file.
///     prompts: Token ids: sequences of integers, or integer arrays of one dimension.
///     tokens: How many tokens to generate for each prompt, at most.
///     eos: Tokens after which a prompt ends.
///     capacity, threads, memory, onnxruntime: Those of `KvSession`.
///     chunk: The most tokens of one prompt in a run of the model.
///
/// Returns:
///     `Generated`: the tokens after each prompt, and what they cost.
///
/// Raises:
///     SessionError, OptionError: As `KvSession`; for no prompt or an empty one.
///     PositionError: Before anything is run, for a token that the model does not have, and for a prompt that has no room
///         for its continuation.
#[pyfunction]
#[pyo3(signature = (path, prompts, tokens, *, eos=None, capacity=None, threads=None, memory=SessionOptions::default().memory, chunk=CHUNK, onnxruntime=None))]
#[pyo3(
    text_signature = "(path, prompts, tokens, *, eos=(), capacity=None, threads=None, memory=17179869184, chunk=512, \
    onnxruntime=None)"
)]
#[expect(clippy::too_many_arguments, reason = "what generation takes, by keyword")]
pub(crate) fn generate<'py>(
    py: Python<'py>,
    path: PathBuf,
    prompts: &Bound<'py, PyAny>,
    tokens: usize,
    eos: Option<&Bound<'py, PyAny>>,
    capacity: Option<usize>,
    threads: Option<usize>,
    memory: u64,
    chunk: usize,
    onnxruntime: Option<PathBuf>,
) -> PyResult<Bound<'py, PyAny>> {
    let list = |values: Indices| values.values().unwrap_or_default().to_vec();
    let prompts = prompts.try_iter()?.map(|prompt| Ok(list(Indices::of(Some(&prompt?), "prompts")?)));
    let prompts = prompts.collect::<PyResult<Vec<Vec<i64>>>>()?;
    let greedy = Greedy { tokens, eos: list(Indices::of(eos, "eos")?), chunk };
    let engine = runtime::load(py, onnxruntime)?;
    let options = SessionOptions { batch: None, capacity, threads, memory };
    let generated = py.detach(|| {
        let generator = Generator::open(&engine, &path, prompts.len(), options)?;
        generator.generate(&prompts, &greedy, &mut |_| {})
    });
    told(py, generated.map_err(|error| raise(py, &error))?)
}

fn told(py: Python<'_>, generated: Generated) -> PyResult<Bound<'_, PyAny>> {
    static CLASS: PyOnceLock<Py<PyType>> = PyOnceLock::new();
    CLASS.import(py, "kvscatter._session", "Generated")?.call1((
        generated.samples,
        generated.prompt_tokens,
        generated.prefill.as_secs_f64(),
        generated.steps,
        generated.decoded,
        generated.decode.as_secs_f64(),
        generated.written_per_step,
        generated.copied,
    ))
}
