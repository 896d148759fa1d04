//! Errors about nodes that have no standard form.

/// The reason why a node cannot be expressed in operators of ONNX.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "each variant's message names its fields")]
pub enum NoStandardForm {
    /// An input, an output or an attribute has no counterpart.
    #[error("{what} has no form in operators of ONNX")]
    Form { what: String },
    /// The new nodes compute other values than the operator's documentation describes.
    #[error("its standard form computes other values: output {output} differs by {difference}")]
    Differs { output: usize, difference: f64 },
    /// The elements of an output could not be computed on random values.
    #[error("its standard form could not be checked: output {output} could not be evaluated")]
    Unknown { output: usize },
}

crate::cause!(NoStandardForm, |_| "no_standard_form");
