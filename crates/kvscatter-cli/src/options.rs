//! Adds options of the command line to errors of libraries, which do not know these options.

use kvscatter_session::{SessionError, SessionSetting};

/// Returns the option to name after an error of a session, such as ` (--memory)`, or what to do about it. Returns an
/// empty string if no option belongs to the error.
pub(crate) fn of_session(error: &SessionError) -> &'static str {
    match error.about() {
        Some(SessionSetting::Memory) => " (--memory)",
        Some(SessionSetting::Capacity) => " (--capacity)",
        None if matches!(error, SessionError::Load { engine, message, .. } if engine.starts_with("tract") && !is_misfit(message)) => {
            "; --engine ort also runs operators that tract lacks, and growing caches (kvscatter inspect shows whether they \
             can be made static)"
        }
        // The batch of a session is the number of prompts, so no option sets it.
        _ => "",
    }
}

/// Returns `true` if tract reports known sizes that do not fit. Another engine refuses such a model too.
fn is_misfit(message: &str) -> bool {
    message.contains("unify Val(") && message.contains("with Val(")
        || message.contains("are not a multiple of")
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
pub(crate) fn of_runtime(error: &kvscatter_ort_engine::RuntimeError) -> &'static str {
    match error {
        kvscatter_ort_engine::RuntimeError::Missing { .. } => " (--ort-lib)",
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use kvscatter_session::SessionError;

    use super::of_session;

    #[test]
    fn another_engine_is_named_where_it_may_help() {
        let advice = |engine: &str, message: &str| {
            let error = SessionError::Load {
                path: "m".into(),
                engine: engine.to_owned(),
                message: message.to_owned(),
            };
            !of_session(&error).is_empty()
        };
        for (message, expected) in [
            ("node \"y\" (Einsum): tract does not have this operator", true),
            ("node \"y\" (Flatten): Can not compute a shape with square of symbols", true),
            ("node \"y\" (GroupQueryAttention): Wrong number of outputs.", true),
            ("node \"y\" (GroupQueryAttention): packed QKV (absent key/value) is unsupported", true),
            ("node \"y\" (Reshape): Reshape volume mismatch: input [Sym(batch_size), Val(4)]", true),
            ("node \"y\" (InferenceConcat): Impossible to unify Val(1) with Val(2).", false),
            ("node \"y\" (Attention): 2 heads of Q are not a multiple of 3 heads of K", false),
        ] {
            assert_eq!(advice("tract 0.23.9", message), expected, "{message}");
            assert!(!advice("ONNX Runtime 1.32.0", message), "{message}");
        }
    }
}
