//! Errors about values that cannot be computed.

use kvscatter::ElementType;

/// The reason why the shape or the elements of a value cannot be computed from the given values.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub(crate) enum FoldError {
    /// The evaluation does not support this operator.
    #[error("kvscatter cannot evaluate this operator")]
    NoRule,
    /// The value was requested before and could not be computed then.
    #[error("{name:?} was needed before and could not be computed")]
    FailedBefore { name: String },
    /// The evaluation does not support this form of the operator.
    #[error("this operator is not supported with {what}")]
    NoForm { what: &'static str },
    /// A shape depends on values that are not known.
    #[error(
        "the shape of its output depends on the values of input {input}, of which only the shape is known"
    )]
    ValuesUnknown { input: usize },
    /// The operator does not accept the type of an input.
    #[error("input {input} is {element}, expected {expected}")]
    InputType { input: usize, element: ElementType, expected: &'static str },
    /// The operator does not accept the shape of an input.
    #[error("input {input} has shape {shape:?}, expected {expected}")]
    InputShape { input: usize, shape: Vec<usize>, expected: &'static str },
    /// A required attribute of the operator is missing.
    #[error("attribute {name:?} is missing")]
    AttributeMissing { name: &'static str },
    /// The value of the attribute is not possible.
    #[error("attribute {name:?} = {} is not possible", value.escape_debug())]
    AttributeValue { name: &'static str, value: String },
    /// The shape does not have this axis.
    #[error("axis {axis} is out of range for rank {rank}")]
    Axis { axis: i64, rank: usize },
    /// An axis is named twice.
    #[error("axis {axis} is named twice")]
    AxisTwice { axis: usize },
    /// A computed dimension is not possible.
    #[error("a dimension cannot be {dim}")]
    Dim { dim: i64 },
    /// The number of values does not match the new shape.
    #[error("shape {from:?} cannot become {to:?}")]
    Reshape { from: Vec<usize>, to: Vec<i64> },
    /// An index is outside its dimension.
    #[error("index {index} is out of range for a dimension of {limit}")]
    Index { index: i64, limit: usize },
    /// A position is beyond the last of its values.
    #[error("position {position} is out of range for {count} values")]
    Position { position: usize, count: usize },
    /// The result of integer arithmetic does not fit its type.
    #[error("a result is out of range for {element}")]
    Overflow { element: ElementType },
    /// An integer is divided by zero.
    #[error("an integer is divided by zero")]
    DivisionByZero,
    /// A number cannot be cast to the type.
    #[error("converting {} to {element} is not defined", value.escape_debug())]
    Cast { value: String, element: ElementType },
    /// The number or the kind of the values does not match the shape and the type.
    #[error("shape {shape:?} of {element} does not match {got} values, or they are of another kind")]
    Values { element: ElementType, shape: Vec<usize>, got: usize },
    /// A value has more dimensions than the evaluation supports.
    #[error("rank {rank}, at most {limit} is supported")]
    RankTooLarge { rank: usize, limit: usize },
    /// The operator does not have this output.
    #[error("this operator does not have output {output}")]
    NoOutput { output: usize },
    /// Functions call each other more deeply than the limit.
    #[error("functions call each other more than {limit} deep")]
    TooDeep { limit: usize },
    /// The evaluation would need more work than the limit.
    #[error("computing this needs more than {limit} bytes of values")]
    TooMuch { limit: u64 },
}

crate::cause!(FoldError, |_| "fold");

#[cfg(test)]
mod tests {
    use kvscatter::ElementType;

    use super::FoldError;

    #[test]
    fn strings_of_a_model_do_not_break_the_line() {
        let (name, value) = ("approximate", "a\nb".to_owned());
        let error = FoldError::AttributeValue { name, value: value.clone() };
        assert_eq!(error.to_string(), r#"attribute "approximate" = a\nb is not possible"#);
        let error = FoldError::Cast { value, element: ElementType::Int64 };
        assert_eq!(error.to_string(), r"converting a\nb to int64 is not defined");
    }
}
