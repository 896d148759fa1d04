//! Adds options of the command line to errors of libraries, which do not know these options.

use kvscatter_session::{SessionError, SessionSetting};

/// Returns the option to name after an error of a session, such as ` (--memory)`, or what to do about it. Returns an
/// empty string if no option belongs to the error.
pub(crate) fn of_session(error: &SessionError) -> &'static str {
    match error.about() {
        Some(SessionSetting::Memory) => " (--memory)",
        Some(SessionSetting::Capacity) => " (--capacity)",
        None if matches!(error, SessionError::Load { engine, .. } if engine.starts_with("tract")) => {
            "; --engine ort also runs operators that tract lacks, and growing caches (kvscatter inspect shows whether they \
             can be made static)"
        }
        // The batch of a session is the number of prompts, so no option sets it.
        _ => "",
    }
}

/// Returns the options to name after an error of a certificate, as [`of_session`] does.
#[cfg(feature = "certify")]
pub(crate) fn of_certify(error: &kvscatter_certify::CertifyError) -> &'static str {
    use kvscatter_certify::CertifyError;

    match error {
        CertifyError::Session(error) if error.about() == Some(SessionSetting::Batch) => {
            " (--prompt, --batch)"
        }
        CertifyError::Session(error) => of_session(error),
        CertifyError::PromptCount { .. } => " (--prompt, --batch)",
        CertifyError::PromptTooLong { .. } => " (--prompt, --steps)",
        CertifyError::TooSmall { .. } => " (--batch, --capacity)",
        _ => "",
    }
}

/// Returns the option to name if ONNX Runtime cannot be loaded, as [`of_session`] does.
#[cfg(feature = "onnxruntime")]
pub(crate) fn of_runtime(error: &kvscatter_onnxruntime::RuntimeError) -> &'static str {
    match error {
        kvscatter_onnxruntime::RuntimeError::Missing { .. } => " (--ort-lib)",
        _ => "",
    }
}
