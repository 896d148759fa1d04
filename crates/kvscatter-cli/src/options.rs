//! Which option is about an error of a library: libraries do not know the command line.

use kvscatter_session::{SessionError, SessionSetting};

/// Returns the option to name after a session's error, such as ` (--memory)`. Empty if no option is about it.
pub(crate) fn of_session(error: &SessionError) -> &'static str {
    match error.about() {
        Some(SessionSetting::Memory) => " (--memory)",
        Some(SessionSetting::Capacity) => " (--capacity)",
        // Where a session is opened, the batch is the number of prompts.
        _ => "",
    }
}

/// As [`of_session`], for an error of a certificate.
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

/// As [`of_session`], for an ONNX Runtime that cannot be loaded.
#[cfg(feature = "onnxruntime")]
pub(crate) fn of_runtime(error: &kvscatter_onnxruntime::RuntimeError) -> &'static str {
    match error {
        kvscatter_onnxruntime::RuntimeError::Missing { .. } => " (--ort-lib)",
        _ => "",
    }
}
