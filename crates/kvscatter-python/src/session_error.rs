//! Converts the errors of sessions to exceptions of the classes in [`error`](crate::error).

use kvscatter_onnx::OnnxError;
use kvscatter_onnxruntime::RuntimeError;
use kvscatter_session::{SessionError, SessionSetting};
use pyo3::prelude::*;

use crate::error::{Class, Field, raise as raise_of};

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

/// Returns the suffix of an error's message: the keyword that the error is about, or where the command is that the
/// message names.
fn suffix(error: &SessionError) -> &'static str {
    if matches!(error, SessionError::NotStatic { .. } | SessionError::Ragged { .. }) {
        return " (the command kvscatter is in the crate kvscatter-cli, not in this package)";
    }
    if let SessionError::Onnx(error) = error
        && matches!(error.root(), OnnxError::NotConverted { .. })
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

/// The class, the argument and the fields of an exception.
type Described = (Class, Option<&'static str>, Vec<(&'static str, Field)>);

fn describe(error: &SessionError) -> Described {
    match error {
        SessionError::NoSuchSample { sample }
        | SessionError::SampleTwice { sample }
        | SessionError::Begun { sample }
        | SessionError::NotBegun { sample } => option("sample", vec![("index", sample.batch_index().into())]),
        SessionError::NoTokens { sample } => option("tokens", vec![("index", sample.batch_index().into())]),
        SessionError::NoSamples => option("tokens", vec![]),
        SessionError::NoPrompts => option("prompts", vec![]),
        SessionError::PromptEmpty { prompt } => option("prompts", vec![("index", (*prompt).into())]),
        SessionError::Ragged { first, other, .. } => {
            option("prompts", vec![("got", (*other).into()), ("expected", (*first).into())])
        }
        SessionError::NoChunk => option("chunk", vec![]),
        SessionError::OptionRange { setting, .. } => option(setting.name(), vec![]),
        SessionError::CapacityOpen | SessionError::CapacityUseless => option("capacity", vec![]),
        SessionError::BatchFull { batch } => option("batch", vec![("expected", (*batch).into())]),
        SessionError::NoRoom { needed, free, .. } => {
            option("batch", vec![("value", (*needed).into()), ("max", (*free).into())])
        }
        SessionError::SizeFixed { setting, fixed, got } => {
            option(setting.name(), vec![("got", (*got).into()), ("expected", (*fixed).into())])
        }
        SessionError::Empty { batch: 0, .. } => option("batch", vec![("got", 0_usize.into())]),
        SessionError::Empty { .. } => option("capacity", vec![("got", 0_usize.into())]),
        SessionError::MemoryLimit { needed, limit } => {
            let needed = needed.map(|needed| ("needed", digits(needed)));
            option("memory", needed.into_iter().chain([("limit", digits(*limit))]).collect())
        }
        SessionError::CapacityExceeded { sample, cached, tokens, capacity } => position(
            "tokens",
            vec![
                ("index", sample.batch_index().into()),
                ("value", (*cached).into()),
                ("rows", (*tokens).into()),
                ("capacity", (*capacity).into()),
            ],
        ),
        SessionError::TruncateBeyond { sample, to, cached } => position(
            "length",
            vec![("index", sample.batch_index().into()), ("value", (*to).into()), ("max", (*cached).into())],
        ),
        SessionError::TruncateRing { sample, to, least, .. } => position(
            "length",
            vec![("index", sample.batch_index().into()), ("value", (*to).into()), ("min", (*least).into())],
        ),
        SessionError::TruncateBegun { sample, to, begun } => position(
            "length",
            vec![("index", sample.batch_index().into()), ("value", (*to).into()), ("min", (*begun).into())],
        ),
        SessionError::TruncateState { sample, to, .. } => {
            position("length", vec![("index", sample.batch_index().into()), ("value", (*to).into())])
        }
        SessionError::AcceptBeyond { sample, accepted, fed } => position(
            "tokens",
            vec![
                ("index", sample.batch_index().into()),
                ("value", (*accepted).into()),
                ("max", (*fed).into()),
            ],
        ),
        SessionError::NoSuchParent { index, parent, samples } => {
            let max = samples.checked_sub(1).map(|max| ("max", max.into()));
            let fields = [("index", (*index).into()), ("value", (*parent).into())];
            position("parents", fields.into_iter().chain(max).collect())
        }
        SessionError::SavedTooLong { tokens, capacity, .. } => {
            position("path", vec![("value", (*tokens).into()), ("capacity", (*capacity).into())])
        }
        SessionError::SavedToken { index, token, .. } => {
            position("path", vec![("index", (*index).into()), ("value", (*token).into())])
        }
        SessionError::SavePrompts { prompts } => option("prompts", vec![("got", (*prompts).into())]),
        SessionError::SavedUseless => (Class::Option, None, vec![]),
        SessionError::TokenUnknown { index, token, .. } => {
            position("tokens", vec![("index", (*index).into()), ("value", (*token).into())])
        }
        SessionError::PromptTokenUnknown { index, token, .. } => {
            position("prompts", vec![("index", (*index).into()), ("value", (*token).into())])
        }
        SessionError::EosUnknown { index, token, .. } => {
            position("eos", vec![("index", (*index).into()), ("value", (*token).into())])
        }
        SessionError::PromptTooLong { prompt, tokens, generated, capacity } => position(
            "prompts",
            vec![
                ("index", (*prompt).into()),
                ("value", (*tokens).into()),
                ("rows", (*generated).into()),
                ("capacity", (*capacity).into()),
            ],
        ),
        SessionError::NanLogits { index, .. } => {
            (Class::Session, Some("tokens"), vec![("index", (*index).into())])
        }
        SessionError::UndoMemory { needed } => (Class::Session, None, vec![("needed", digits(*needed))]),
        // Errors of the model or of the engine.
        _ => (Class::Session, None, vec![]),
    }
}

fn option(argument: &'static str, fields: Vec<(&'static str, Field)>) -> Described {
    (Class::Option, Some(argument), fields)
}

fn position(argument: &'static str, fields: Vec<(&'static str, Field)>) -> Described {
    (Class::Position, Some(argument), fields)
}

fn digits(number: u64) -> Field {
    Field::Digits(number.to_string())
}
