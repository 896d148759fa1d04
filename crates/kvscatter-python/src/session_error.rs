//! Converts the errors of sessions to exceptions of the classes in [`error`](crate::error).

use kvscatter_onnx::convert::ConvertError;
use kvscatter_ort_engine::RuntimeError;
use kvscatter_session::{SessionError, SessionSetting};
use pyo3::prelude::*;

use crate::error::{Class, Described, Digits, Field, raise as raise_of, sizes};

/// Creates the exception for an error of a session.
#[cold]
pub(crate) fn raise(py: Python<'_>, error: &SessionError) -> PyErr {
    let (class, argument, fields) = describe(error);
    raise_of(py, class, error.kind(), argument, format!("{error}{}", suffix(error)), &fields)
}

/// Creates the exception for a missing or unusable ONNX Runtime or plugin.
#[cold]
pub(crate) fn no_runtime(py: Python<'_>, error: &RuntimeError) -> PyErr {
    let (argument, keyword) = match error {
        RuntimeError::Missing { .. } => ("onnxruntime", " (onnxruntime=)"),
        RuntimeError::PluginUnusable { .. } | RuntimeError::PluginLoaded { .. } => ("plugin", " (plugin=)"),
        _ => ("onnxruntime", ""),
    };
    raise_of(py, Class::Session, error.kind(), Some(argument), format!("{error}{keyword}"), &[])
}

/// Creates the exception for a call of a closed session.
#[cold]
pub(crate) fn closed(py: Python<'_>) -> PyErr {
    raise_of(py, Class::Session, "closed", None, "the session is closed".to_owned(), &[])
}

/// Creates the exception for a call from a signal handler that runs during another call of the session.
#[cold]
pub(crate) fn busy(py: Python<'_>) -> PyErr {
    let message = "a signal handler cannot call a session during its step".to_owned();
    raise_of(py, Class::Session, "busy", None, message, &[])
}

/// Creates the exception for a call of a generator during another call of it.
#[cold]
pub(crate) fn generator_busy(py: Python<'_>) -> PyErr {
    let message = "the generator is busy: read or close its stream, or wait for the other call".to_owned();
    raise_of(py, Class::Session, "busy", None, message, &[])
}

/// Returns the suffix of an error's message: the keyword that the error is about.
fn suffix(error: &SessionError) -> &'static str {
    if let SessionError::Onnx(error) = error
        && matches!(error.cause(), Some(ConvertError::NotConverted { .. }))
    {
        return " (convert=)";
    }
    match error.about() {
        Some(SessionSetting::Memory) => " (memory=)",
        Some(SessionSetting::Capacity) => " (capacity=)",
        // The batch may be the number of prompts, for which there is no keyword.
        _ => "",
    }
}

fn describe(error: &SessionError) -> Described {
    match *error {
        SessionError::NoSuchSample { sample }
        | SessionError::SampleTwice { sample }
        | SessionError::Begun { sample }
        | SessionError::NotBegun { sample } => option("sample", [("index", sample.batch_index())]),
        SessionError::EncoderMissing { sample, .. } | SessionError::EncoderChanged { sample, .. } => {
            option("sample", [("index", sample.batch_index())])
        }
        SessionError::EncoderLength { got, expected, .. } => {
            option("outputs", [("got", got), ("expected", expected)])
        }
        SessionError::EncoderOutput { .. }
        | SessionError::EncoderOutputMissing { .. }
        | SessionError::EncoderShape { .. } => option("outputs", []),
        SessionError::NoTokens { sample } => option("tokens", [("index", sample.batch_index())]),
        SessionError::NoSamples => option("tokens", []),
        SessionError::NoBlockIds => option("block_ids", []),
        SessionError::BlockCount { tokens, ids, .. } => {
            option("block_ids", [("got", ids), ("expected", tokens)])
        }
        SessionError::BlockId { index, .. }
        | SessionError::BlockOverlap { index, .. }
        | SessionError::BlockSplit { index, .. } => option("block_ids", [("index", index)]),
        SessionError::NoPrompts => option("prompts", []),
        SessionError::PromptEmpty { prompt } => option("prompts", [("index", prompt)]),
        SessionError::Ragged { first, other, .. } => option("prompts", [("got", other), ("expected", first)]),
        SessionError::NoChunk => option("chunk", []),
        SessionError::OptionRange { setting, .. } => option(setting.name(), []),
        SessionError::CapacityOpen | SessionError::CapacityUseless => option("capacity", []),
        SessionError::BatchFull { batch } => option("batch", [("expected", batch)]),
        SessionError::NoRoom { needed, free, .. } => option("batch", [("value", needed), ("max", free)]),
        SessionError::SizeFixed { setting, fixed, got } => {
            option(setting.name(), [("got", got), ("expected", fixed)])
        }
        SessionError::Empty { batch: 0, .. } => option("batch", [("got", 0)]),
        SessionError::Empty { .. } => option("capacity", [("got", 0)]),
        SessionError::MemoryLimit { needed, limit } => {
            let needed = needed.map(|needed| ("needed", digits(needed)));
            let fields = needed.into_iter().chain([("limit", digits(limit))]).collect();
            (Class::Option, Some("memory"), fields)
        }
        SessionError::CapacityExceeded { sample, cached, tokens, capacity } => {
            let index = sample.batch_index();
            let fields = [("index", index), ("value", cached), ("rows", tokens), ("capacity", capacity)];
            position("tokens", fields)
        }
        SessionError::TruncateBeyond { sample, to, cached } => {
            position("length", [("index", sample.batch_index()), ("value", to), ("max", cached)])
        }
        SessionError::TruncateRing { sample, to, least: min, .. }
        | SessionError::TruncateBegun { sample, to, begun: min } => {
            position("length", [("index", sample.batch_index()), ("value", to), ("min", min)])
        }
        SessionError::TruncateState { sample, to, .. } => {
            position("length", [("index", sample.batch_index()), ("value", to)])
        }
        SessionError::AcceptBeyond { sample, accepted, fed } => {
            position("tokens", [("index", sample.batch_index()), ("value", accepted), ("max", fed)])
        }
        SessionError::PathOrder { index, row, before, .. } => {
            position("rows", [("index", index), ("value", row), ("min", before.saturating_add(1))])
        }
        SessionError::PathBeyond { index, row, fed, .. } => {
            let max = fed.checked_sub(1).map(|max| ("max", max.into()));
            let fields = sizes([("index", index), ("value", row)]).into_iter().chain(max).collect();
            (Class::Position, Some("rows"), fields)
        }
        SessionError::NoSuchParent { index, parent, samples } => {
            let max = samples.checked_sub(1).map(|max| ("max", max.into()));
            let fields = sizes([("index", index), ("value", parent)]).into_iter().chain(max).collect();
            (Class::Position, Some("parents"), fields)
        }
        SessionError::SavedTooLong { tokens, capacity, .. } => {
            position("path", [("value", tokens), ("capacity", capacity)])
        }
        SessionError::SavePrompts { prompts } => option("prompts", [("got", prompts)]),
        SessionError::SavedUseless => (Class::Option, None, vec![]),
        SessionError::SavedToken { index, token, .. } => token_error("path", index, token),
        SessionError::TokenUnknown { index, token, .. } => token_error("tokens", index, token),
        SessionError::PromptTokenUnknown { index, token, .. } => token_error("prompts", index, token),
        SessionError::EosUnknown { index, token, .. } => token_error("eos", index, token),
        SessionError::PromptTooLong { prompt, tokens, generated, capacity } => {
            let fields = [("index", prompt), ("value", tokens), ("rows", generated), ("capacity", capacity)];
            position("prompts", fields)
        }
        SessionError::NanLogits { index, .. } => (Class::Session, Some("tokens"), sizes([("index", index)])),
        SessionError::UndoMemory { needed } => (Class::Session, None, vec![("needed", digits(needed))]),
        // Errors of the model or of the engine.
        _ => (Class::Session, None, vec![]),
    }
}

fn option<const N: usize>(argument: &'static str, fields: [(&'static str, usize); N]) -> Described {
    (Class::Option, Some(argument), sizes(fields))
}

fn position<const N: usize>(argument: &'static str, fields: [(&'static str, usize); N]) -> Described {
    (Class::Position, Some(argument), sizes(fields))
}

fn token_error(argument: &'static str, index: usize, token: i64) -> Described {
    (Class::Position, Some(argument), vec![("index", index.into()), ("value", token.into())])
}

fn digits(number: u64) -> Field {
    Digits(number.to_string()).into()
}
