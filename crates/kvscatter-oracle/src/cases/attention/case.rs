//! One case.

use crate::attention::{Attention, AttentionRefusal, Float, Inputs, Outputs, Positions};

/// One call of attention. Every input is exactly representable in `inputs.element`.
#[derive(Clone, Debug, PartialEq)]
pub struct AttentionCase {
    /// A name that is unique within the generator and describes what is adversarial. It consists of letters,
    /// digits and `_`.
    pub name: String,
    /// The attributes. `scale` and `softcap` are exactly representable in float32.
    pub attention: Attention,
    /// The inputs.
    pub inputs: Inputs,
    /// Whether every key and value that no row attends is NaN or infinite. An implementation that multiplies
    /// hidden slots by 0 fails these cases, as the specification's own function body does.
    pub painted: bool,
}

impl AttentionCase {
    /// Runs the oracle.
    ///
    /// # Errors
    /// Returns the first rule that the case breaks.
    pub fn expected(&self) -> Result<Outputs, AttentionRefusal> {
        self.attention.run(&self.inputs)
    }

    /// Returns how far an element of the first output may be from `expected`. Sums in float32 may be off by
    /// `2e-6` times the largest value, and the half types by one unit in the last place more.
    #[must_use]
    pub fn tolerance(&self, expected: f64) -> f64 {
        let Inputs { element, v, past_value, .. } = &self.inputs;
        let values = v.data.iter().chain(past_value.iter().flat_map(|past| &past.data));
        let largest = values.filter(|value| value.is_finite()).fold(0.0, |most: f64, v| most.max(v.abs()));
        let rounding = if *element == Float::F32 { 0.0 } else { element.unit_in_the_last_place(expected) };
        2e-6 * largest + rounding
    }

    /// Returns the first operator set of ONNX that can express the case: 23, 24 or 25. Returns `None` for
    /// rings.
    #[must_use]
    pub fn operator_set(&self) -> Option<i64> {
        let Attention { left_window_size, right_window_size, .. } = self.attention;
        let columns = self.inputs.mask.as_ref().and_then(|mask| mask.shape().last());
        let short = columns.is_some_and(|&columns| columns < self.total());
        match self.inputs.positions {
            Positions::Ring(_) => None,
            _ if left_window_size != -1 || right_window_size != -1 => Some(25),
            Positions::Lengths(_) => Some(24),
            Positions::Full => Some(if short { 24 } else { 23 }),
        }
    }

    /// Returns the number of slots, with the past.
    fn total(&self) -> usize {
        let rows = |array: &crate::attention::Array<f64>| array.shape[array.shape.len() - 2];
        let keys = if self.inputs.k.shape.len() == 3 { self.inputs.k.shape[1] } else { rows(&self.inputs.k) };
        keys + self.inputs.past_key.as_ref().map_or(0, rows)
    }
}
