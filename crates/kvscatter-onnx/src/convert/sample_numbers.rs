//! Values of which each element is the number of its sample, to see whether an order of rows keeps samples together.

use std::iter::repeat_n;

use kvscatter::ElementType;

use crate::OnnxError;
use crate::fold::{MAX_VALUES, Value, Values, elements, to_float};

/// Returns a value whose samples are in its first axis. Only its shape is known if it has more than [`MAX_VALUES`]
/// elements.
///
/// # Errors
/// Returns the errors of [`Value::new`].
pub(super) fn numbered_by_sample(element: ElementType, shape: Vec<usize>) -> Result<Value, OnnxError> {
    let samples = shape.first().copied().unwrap_or_default();
    let count = elements(&shape);
    let of_sample = count.checked_div(samples).unwrap_or_default();
    let numbers = (0..samples).flat_map(|sample| repeat_n(to_float(sample), of_sample));
    let known = (count <= MAX_VALUES).then(|| Values::Floats(numbers.collect()));
    Value::new(element, shape, known)
}

/// Returns `true` if a value is known, and has equally many elements of sample 0, then of sample 1, and so on.
pub(super) fn is_by_sample(value: &Value, samples: usize) -> bool {
    let found = value.as_floats().unwrap_or_default();
    let of_sample = found.len().checked_div(samples).unwrap_or_default().max(1);
    let mut by_sample = found.chunks(of_sample).enumerate();
    !found.is_empty()
        && by_sample.all(|(sample, numbers)| numbers.iter().all(|&number| number == to_float(sample)))
}
