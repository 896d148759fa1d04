//! Errors about values that cannot be computed.

use kvscatter::ElementType;

/// The reason why the shape or the elements of a value cannot be computed from the given values. The messages describe
/// the variants.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub(crate) enum FoldError {
    #[error("kvscatter cannot evaluate this operator")]
    NoRule,
    #[error("{name:?} was needed before and could not be computed")]
    FailedBefore { name: String },
    #[error("this operator is not supported with {what}")]
    NoForm { what: &'static str },
    #[error(
        "the shape of its output depends on the values of input {input}, of which only the shape is known"
    )]
    ValuesUnknown { input: usize },
    #[error("input {input} is {element}, expected {expected}")]
    InputType { input: usize, element: ElementType, expected: &'static str },
    #[error("input {input} has shape {shape:?}, expected {expected}")]
    InputShape { input: usize, shape: Vec<usize>, expected: &'static str },
    #[error("attribute {name:?} is missing")]
    AttributeMissing { name: &'static str },
    #[error("attribute {name:?} = {} is not possible", value.escape_debug())]
    AttributeValue { name: &'static str, value: String },
    #[error("axis {axis} is out of range for rank {rank}")]
    Axis { axis: i64, rank: usize },
    #[error("axis {axis} is named twice")]
    AxisTwice { axis: usize },
    #[error("a dimension cannot be {dim}")]
    Dim { dim: i64 },
    #[error("shape {from:?} cannot become {to:?}")]
    Reshape { from: Vec<usize>, to: Vec<i64> },
    #[error("index {index} is out of range for a dimension of {limit}")]
    Index { index: i64, limit: usize },
    #[error("position {position} is out of range for {count} values")]
    Position { position: usize, count: usize },
    #[error("a result is out of range for {element}")]
    Overflow { element: ElementType },
    #[error("an integer is divided by zero")]
    DivisionByZero,
    #[error("converting {} to {element} is not defined", value.escape_debug())]
    Cast { value: String, element: ElementType },
    #[error("shape {shape:?} of {element} does not match {got} values, or they are of another kind")]
    Values { element: ElementType, shape: Vec<usize>, got: usize },
    #[error("rank {rank}, at most {limit} is supported")]
    RankTooLarge { rank: usize, limit: usize },
    #[error("this operator does not have output {output}")]
    NoOutput { output: usize },
    #[error("functions call each other more than {limit} deep")]
    TooDeep { limit: usize },
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
