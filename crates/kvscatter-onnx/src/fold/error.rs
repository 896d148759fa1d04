//! Why a value cannot be known.

use kvscatter::ElementType;

/// Why the shape or the values of something in a graph cannot be computed from what is given.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "each variant's message names its fields")]
pub enum FoldError {
    /// Nothing is known of the operator.
    #[error("what this operator computes is not known here")]
    NoRule,
    /// The value was needed before, and could not be computed then.
    #[error("{name:?} was needed before and could not be computed")]
    FailedBefore { name: String },
    /// A form of the operator of which nothing is known.
    #[error("what this operator computes with {what} is not known here")]
    NoForm { what: &'static str },
    /// A shape depends on values that are not known.
    #[error(
        "the shape of its output depends on the values of input {input}, of which only the shape is known"
    )]
    ValuesUnknown { input: usize },
    /// An input of a type that the operator does not take.
    #[error("input {input} is {element}, {expected} is needed")]
    InputType { input: usize, element: ElementType, expected: &'static str },
    /// An input of a shape that the operator does not take.
    #[error("input {input} has shape {shape:?}, {expected} is needed")]
    InputShape { input: usize, shape: Vec<usize>, expected: &'static str },
    /// An attribute that the operator needs.
    #[error("attribute {name:?} is missing")]
    AttributeMissing { name: &'static str },
    /// An attribute with a value that does not exist.
    #[error("attribute {name:?} = {value} is not possible")]
    AttributeValue { name: &'static str, value: String },
    /// An axis that the shape does not have.
    #[error("axis {axis} of rank {rank}")]
    Axis { axis: i64, rank: usize },
    /// An axis that is named twice.
    #[error("axis {axis} is named twice")]
    AxisTwice { axis: usize },
    /// A dimension that cannot be.
    #[error("a dimension of {dim}")]
    Dim { dim: i64 },
    /// A shape that values cannot take.
    #[error("shape {from:?} cannot become {to:?}")]
    Reshape { from: Vec<usize>, to: Vec<i64> },
    /// An index outside of its dimension.
    #[error("index {index} of a dimension of {limit}")]
    Index { index: i64, limit: usize },
    /// A position outside of its values.
    #[error("position {position} of {count} values")]
    Position { position: usize, count: usize },
    /// The result of integer arithmetic that its type does not have.
    #[error("a result leaves the range of {element}")]
    Overflow { element: ElementType },
    /// An integer divided by zero.
    #[error("an integer is divided by zero")]
    DivisionByZero,
    /// A number that the type does not have.
    #[error("{value} as {element} is not defined")]
    Cast { value: String, element: ElementType },
    /// Values that are not as many, or not of the kind, that a shape and a type ask for.
    #[error("shape {shape:?} of {element} is given {got} values of its own or another kind")]
    Values { element: ElementType, shape: Vec<usize>, got: usize },
    /// More dimensions than any value may have here.
    #[error("rank {rank}, at most {limit} is possible")]
    RankTooLarge { rank: usize, limit: usize },
    /// An output that the operator does not make.
    #[error("output {output} is not made by this operator")]
    NoOutput { output: usize },
    /// Functions that call functions, too deep.
    #[error("functions call each other more than {limit} deep")]
    TooDeep { limit: usize },
    /// More to compute than is allowed.
    #[error("more than {limit} bytes of values would have to be computed")]
    TooMuch { limit: u64 },
}
