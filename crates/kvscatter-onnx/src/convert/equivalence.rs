//! Checks that a converted decoder computes the same as the exported one, except for its masks.
//!
//! Both decoders are evaluated on the same probes, and all values that their arithmetic uses are compared.

use std::collections::BTreeSet;

use super::attention::Sites;
use super::refusal::ConvertRefusal;
use crate::fold::{Fold, Value, Values};
use crate::{Graph, Node, OnnxError};

/// Both decoders, evaluated on one probe.
pub(super) struct Comparison<'c, 'a, 'b> {
    pub(super) exported: &'c mut Fold<'a>,
    pub(super) converted: Fold<'b>,
    /// The names of all values of the exported graph.
    pub(super) names: &'c BTreeSet<&'c str>,
    pub(super) sites: &'c Sites<'a>,
}

impl<'b> Comparison<'_, '_, 'b> {
    /// Compares all values that both graphs have and the converted one still uses.
    ///
    /// * A value whose elements are known must have the same elements in both graphs wherever arithmetic uses
    ///   it.
    /// * The shapes of all other values must be equal. Values with one entry for each slot are an exception,
    ///   because the converted graph has more slots.
    /// * A value whose shape is open in one graph, such as an expert's input, must be open in both. It is
    ///   then the same in both, because the same nodes produce it from values that are compared.
    ///
    /// # Errors
    /// * Returns [`ConvertRefusal::LengthDependence`], wrapped with the first node that reads a value that
    ///   differs.
    /// * Returns the errors of [`Fold::value`].
    pub(super) fn check(&mut self, converted: &Graph<'b>) -> Result<(), OnnxError> {
        for node in converted.nodes() {
            let outputs = node.proto().output.iter().filter(|name| !name.is_empty());
            let mut is_arithmetic = false;
            let mut has_slots = false;
            for name in outputs {
                has_slots |= self.sites.has_slots(name);
                if self.is_new(name) {
                    // New values are caches, scores and masks. Their shapes must be known.
                    is_arithmetic |= elements(self.converted.value(name)?).is_none();
                    continue;
                }
                if self.converted.known(name)?.is_some_and(|after| elements(after).is_some()) {
                    continue;
                }
                is_arithmetic = true;
                if !self.is_same(name, |before, after| reaches(&before.shape, &after.shape))? {
                    return Err(node.error(dependence(name)));
                }
            }
            if is_arithmetic {
                self.check_inputs(node, has_slots)?;
            }
        }
        for name in converted.output_names() {
            if self.is_new(name) {
                continue;
            }
            if !self.is_same(name, |before, after| before.shape == after.shape && agree(before, after))? {
                return Err(dependence(name).into());
            }
        }
        Ok(())
    }

    /// Compares the known values that a node reads if the result of the node is not known.
    fn check_inputs(&mut self, node: &Node<'_>, has_slots: bool) -> Result<(), OnnxError> {
        for (slot, name) in node.proto().input.iter().enumerate() {
            let is_shape = has_slots && slot == 1 && (node.is("Reshape") || node.is("Expand"));
            if name.is_empty() || is_shape || !self.names.contains(name.as_str()) {
                continue;
            }
            if !self.is_same(name, agree)? {
                return Err(node.error(dependence(name)));
            }
        }
        Ok(())
    }

    /// Returns `true` if a value is the same in both graphs. A value that is open in both graphs counts as
    /// the same, because the values that it is computed from are compared.
    fn is_same(&mut self, name: &str, same: impl FnOnce(&Value, &Value) -> bool) -> Result<bool, OnnxError> {
        Ok(match (self.exported.known(name)?, self.converted.known(name)?) {
            (Some(before), Some(after)) => same(before, after),
            (None, None) => true,
            _ => false,
        })
    }

    /// Returns `true` if the exported graph does not have the value, or has it with fewer slots.
    fn is_new(&self, name: &str) -> bool {
        self.sites.has_slots(name) || !self.names.contains(name)
    }
}

fn dependence(name: &str) -> ConvertRefusal {
    ConvertRefusal::LengthDependence { value: name.to_owned() }
}

/// Returns the elements if they are known and there is at least one. Values without elements are compared by
/// their shapes only.
fn elements(value: &Value) -> Option<&Values> {
    value.data.as_ref().filter(|_| !value.shape.contains(&0))
}

/// Returns `true` if both values have the same elements, or if the elements of neither are known. The first
/// value may have its elements once for all samples.
fn agree(before: &Value, after: &Value) -> bool {
    let (first, second) = match (elements(before), elements(after)) {
        (None, None) => return true,
        (Some(first), Some(second)) => (first, second),
        _ => return false,
    };
    reaches(&before.shape, &after.shape)
        && match (first, second) {
            (Values::Ints(first), Values::Ints(second)) => repeats(first, second, |a, b| a == b),
            (Values::Bools(first), Values::Bools(second)) => repeats(first, second, |a, b| a == b),
            (Values::Floats(first), Values::Floats(second)) => {
                repeats(first, second, |&a, &b| is_same_float(a, b))
            }
            _ => false,
        }
}

/// Returns `true` if arithmetic computes the same from both numbers.
///
/// Zeros of different signs differ, because a division shows the sign. All NaNs are the same, because no operator shows
/// their bits, and the bits of a computed NaN depend on the machine.
pub(super) fn is_same_float(a: f64, b: f64) -> bool {
    a.to_bits() == b.to_bits() || (a.is_nan() && b.is_nan())
}

/// Returns `true` if the first shape equals the second one, or equals it with a batch of 1.
fn reaches(before: &[usize], after: &[usize]) -> bool {
    before == after || matches!((before, after), ([1, before @ ..], [_, after @ ..]) if before == after)
}

fn repeats<T>(first: &[T], second: &[T], equal: impl Fn(&T, &T) -> bool) -> bool {
    second.len().is_multiple_of(first.len())
        && second.chunks(first.len()).all(|chunk| chunk.iter().zip(first).all(|(a, b)| equal(a, b)))
}

#[cfg(test)]
mod tests {
    use super::is_same_float;

    #[test]
    fn zeros_have_a_sign_and_nans_have_none() {
        for number in [0.0, -0.0, 1.5, f64::INFINITY, f64::NEG_INFINITY, f64::NAN] {
            assert!(is_same_float(number, number), "{number}");
            assert_eq!(is_same_float(number, f64::NAN), number.is_nan(), "{number}");
        }
        assert!(!is_same_float(0.0, -0.0) && !is_same_float(f64::INFINITY, f64::NEG_INFINITY));
        let other = f64::from_bits(f64::NAN.to_bits() ^ (1 << 63) ^ 1);
        assert!(other.is_nan() && is_same_float(f64::NAN, other));
    }
}
