//! Errors about the structure of a graph.

use kvscatter::ElementType;

use crate::NodeLabel;

/// An error about the structure of a graph.
#[derive(Debug, thiserror::Error, strum::IntoStaticStr, strum::VariantNames)]
#[strum(serialize_all = "snake_case")]
#[non_exhaustive]
#[expect(missing_docs, reason = "each variant's message names its fields")]
pub enum GraphError {
    /// The model has no graph.
    #[error("the model has no graph")]
    GraphMissing,
    /// The model imports the operator set of a domain twice.
    #[error("opset_import names domain {domain:?} twice")]
    OpsetTwice { domain: String },
    /// The model uses the operator set of a domain but does not import it.
    #[error("opset_import does not name domain {domain:?}")]
    OpsetMissing { domain: String },
    /// The operator set is older than the oldest supported one.
    #[error("version {version} of the operator set is too old: {min} is the oldest supported")]
    OpsetTooOld { version: i64, min: i64 },
    /// Two values have the same name.
    #[error("two values have the name {name:?}")]
    DuplicateName { name: String },
    /// An input, output or initializer has no name.
    #[error("{what} {index} has no name")]
    NameMissing { what: &'static str, index: usize },
    /// A name is too long. Names have a limit because reports repeat them.
    #[error("{what} {index} has a name of {bytes} bytes: the limit is {limit}")]
    NameTooLong { what: &'static str, index: usize, bytes: usize, limit: usize },
    /// No input, initializer or node produces this value.
    #[error("{name:?} is not an input, an initializer or an output of a node")]
    ValueMissing { name: String },
    /// A later node produces the value.
    #[error("{name:?} is used before {producer} produces it")]
    NodeOrder { name: String, producer: Box<NodeLabel> },
    /// The output of the node leads back to its input.
    #[error("the graph has a cycle through this node")]
    Cycle,
    /// The element type of a constant is not float, double, float16 or bfloat16.
    #[error("{element} is not float, double, float16 or bfloat16")]
    NotAFloat { element: ElementType },
    /// A graph input or output has no type.
    #[error("{name:?} has no type")]
    TypeMissing { name: String },
    /// A graph input or output is not a tensor.
    #[error("{name:?} is a {kind}: only dense tensors are supported")]
    NotATensor { name: String, kind: &'static str },
    /// A tensor is sparse.
    #[error("{name:?} is sparse: only dense tensors are supported")]
    Sparse { name: String },
    /// The node has too few or too many inputs.
    #[error("{got} inputs, expected {min} to {max}")]
    InputCount { min: usize, max: usize, got: usize },
    /// The node has too few or too many outputs.
    #[error("{got} outputs, expected exactly 1")]
    OutputCount { got: usize },
    /// An input that the operator requires is absent.
    #[error("input {index} is absent")]
    InputAbsent { index: usize },
    /// The operator does not have this attribute.
    #[error("attribute {name:?} is unknown")]
    AttributeUnknown { name: String },
    /// An attribute is given twice.
    #[error("attribute {name:?} is given twice")]
    AttributeTwice { name: String },
    /// An attribute has the wrong type, or refers to a function's attribute outside a function.
    #[error("attribute {name:?} is not of type {expected}")]
    AttributeType { name: String, expected: &'static str },
    /// The operator set is newer than the newest supported one.
    #[error("version {version} of the operator set is unknown: {max} is the newest supported")]
    OpsetTooNew { version: i64, max: i64 },
    /// No operator set of the default domain up to this version has the operator, or the operator is
    /// deprecated.
    #[error("version {version} of the operator set has no such operator")]
    OperatorUnknown { version: i64 },
    /// The operator changed its meaning, and the newer operator set cannot express the old one.
    #[error("the operator changed between versions {from} and {to} of its set: {what}")]
    OperatorChanged { from: i64, to: i64, what: &'static str },
}

crate::cause!(GraphError, Into::into);
