//! Checks that a changed decoder computes the same as the exported one, except for its masks.
//!
//! Both decoders are evaluated in the same steps, and all values that their arithmetic uses are compared.

use std::collections::BTreeSet;
use std::ops::Range;

use super::refusal::ConvertRefusal;
use crate::fold::{Fold, Value, Values};
use crate::{Graph, Node, OnnxError};

/// What a value of the changed graph is compared with.
#[derive(Clone, Copy, Debug)]
pub(super) enum Correspondence<'n> {
    /// With the exported value of this name. Where it has one row, the new value may have a row for each sample.
    Exported(&'n str),
    /// With the exported value of this name, which has an entry for each slot. The new value has more slots.
    WithSlots(&'n str),
    /// With the exported value of this name, for each sample. The samples are a new axis, the first one.
    PerSample(&'n str),
    /// With nothing, because the value is new and checked elsewhere.
    NotCompared,
    /// With nothing, because the value is new. Its elements must not be known.
    Unknown,
}

/// One sample of a batch.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sample {
    pub(super) index: usize,
    pub(super) batch: usize,
}

/// Both decoders, evaluated in one step.
pub(super) struct Comparison<'c, 'a, 'b> {
    pub(super) exported: &'c mut Fold<'a>,
    pub(super) changed: &'c mut Fold<'b>,
    /// Returns what a value of the changed graph is compared with.
    pub(super) correspondence: &'c dyn Fn(&'b str) -> Correspondence<'b>,
    /// The only sample that both evaluations have in common, or `None` if they have all.
    pub(super) sample: Option<Sample>,
    /// Whether new values may be open. They are then computed from open values that both graphs have.
    pub(super) may_be_open: bool,
}

impl<'b> Comparison<'_, '_, 'b> {
    /// Compares all values that both graphs have and the changed one still uses.
    ///
    /// * A value whose elements are known must have the same elements in both graphs wherever arithmetic uses
    ///   it.
    /// * The shapes of all other values must be equal. Values with one entry for each slot are an exception,
    ///   because the changed graph has more slots.
    /// * A value whose shape is open in one graph, such as an expert's input, must be open in both. It is
    ///   then the same in both, because the same nodes produce it from values that are compared.
    ///
    /// # Errors
    /// * Returns [`ConvertRefusal::LengthDependence`], wrapped with the first node that reads a value that
    ///   differs.
    /// * Returns the errors of [`Fold::value`].
    pub(super) fn check(&mut self, changed: &Graph<'b>) -> Result<(), OnnxError> {
        // Many nodes may read the same large value.
        let mut compared = BTreeSet::new();
        for node in changed.nodes() {
            let mut is_arithmetic = false;
            let mut has_slots = false;
            for name in node.outputs() {
                let correspondence = (self.correspondence)(name);
                let Correspondence::Exported(exported) = correspondence else {
                    has_slots |= matches!(correspondence, Correspondence::WithSlots(_));
                    is_arithmetic |= match self.changed.known(name)? {
                        None if self.may_be_open => true,
                        _ => elements(self.changed.value(name)?).is_none(),
                    };
                    continue;
                };
                if self.changed.known(name)?.is_some_and(|after| elements(after).is_some()) {
                    continue;
                }
                is_arithmetic = true;
                if !self.is_same([exported, name], |before, after| reaches(&before.shape, &after.shape))? {
                    return Err(node.error(dependence(name)));
                }
            }
            if is_arithmetic {
                self.check_inputs(node, has_slots, &mut compared)?;
            }
        }
        for name in changed.output_names() {
            if let Correspondence::Exported(exported) = (self.correspondence)(name) {
                let sample = self.sample;
                let is_same = |before: &Value, after: &Value| {
                    before.shape == after.shape && agree(before, after, sample, true)
                };
                if !self.is_same([exported, name], is_same)? {
                    return Err(dependence(name).into());
                }
            }
        }
        Ok(())
    }

    /// Compares the known values that a node reads if the result of the node is not known.
    fn check_inputs(
        &mut self,
        node: &Node<'b>,
        has_slots: bool,
        compared: &mut BTreeSet<&'b str>,
    ) -> Result<(), OnnxError> {
        let sample = self.sample;
        for (slot, name) in node.inputs().enumerate() {
            let Some(name) = name else { continue };
            let is_shape = has_slots && slot == 1 && (node.is("Reshape") || node.is("Expand"));
            if is_shape || !compared.insert(name) {
                continue;
            }
            let is_same = match (self.correspondence)(name) {
                Correspondence::Exported(exported) | Correspondence::WithSlots(exported) => self
                    .is_same([exported, name], |before, after| {
                        agree(before, after, sample, reaches(&before.shape, &after.shape))
                    })?,
                Correspondence::PerSample(exported) => self.is_same([exported, name], |before, after| {
                    agree(before, after, sample, is_row(before, after))
                })?,
                Correspondence::NotCompared => true,
                Correspondence::Unknown => self.changed.known(name)?.and_then(elements).is_none(),
            };
            if !is_same {
                let name = (self.correspondence)(name).exported().unwrap_or(name);
                return Err(node.error(dependence(name)));
            }
        }
        Ok(())
    }

    /// Returns `true` if a value is the same in both graphs, where it may have two names. A value that is open in both
    /// graphs counts as the same, because the values that it is computed from are compared.
    fn is_same(
        &mut self,
        [exported, changed]: [&str; 2],
        same: impl FnOnce(&Value, &Value) -> bool,
    ) -> Result<bool, OnnxError> {
        Ok(match (self.exported.known(exported)?, self.changed.known(changed)?) {
            (Some(before), Some(after)) => same(before, after),
            (None, None) => true,
            _ => false,
        })
    }
}

impl<'n> Correspondence<'n> {
    /// Returns the name of the exported value.
    fn exported(self) -> Option<&'n str> {
        match self {
            Self::Exported(name) | Self::WithSlots(name) | Self::PerSample(name) => Some(name),
            Self::NotCompared | Self::Unknown => None,
        }
    }
}

impl Sample {
    /// Returns the places of the sample's elements in a value, or those of all elements if the value has no axis for
    /// the samples.
    fn elements(self, value: &Value) -> Range<usize> {
        if value.shape.first() != Some(&self.batch) {
            return 0..value.len();
        }
        let size = value.len().checked_div(self.batch).unwrap_or_default();
        let start = size.saturating_mul(self.index);
        start..start.saturating_add(size)
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

/// Returns `true` if both values have the same elements, or if the elements of neither are known. The first value may
/// have them once for all samples, if its shape `fits`.
fn agree(before: &Value, after: &Value, sample: Option<Sample>, fits: bool) -> bool {
    let own = sample.map_or(0..after.len(), |sample| sample.elements(after));
    let is_same = match (elements(before), elements(after)) {
        (None, None) => return true,
        (Some(Values::Ints(first)), Some(Values::Ints(second))) => repeats(first, second, own, |a, b| a == b),
        (Some(Values::Bools(first)), Some(Values::Bools(second))) => {
            repeats(first, second, own, |a, b| a == b)
        }
        (Some(Values::Floats(first)), Some(Values::Floats(second))) => {
            repeats(first, second, own, |&a, &b| is_same_float(a, b))
        }
        _ => false,
    };
    fits && is_same
}

/// Returns `true` if arithmetic computes the same from both numbers.
///
/// Zeros of different signs differ, because a division shows the sign. All NaNs are the same, because no operator shows
/// their bits, and the bits of a computed NaN depend on the machine.
fn is_same_float(a: f64, b: f64) -> bool {
    a.to_bits() == b.to_bits() || (a.is_nan() && b.is_nan())
}

/// Returns `true` if the first shape equals the second one, or equals it with a batch of 1.
fn reaches(before: &[usize], after: &[usize]) -> bool {
    before == after || matches!((before, after), ([1, before @ ..], [_, after @ ..]) if before == after)
}

/// Returns `true` if the first value is as large as one sample of the second one.
fn is_row(before: &Value, after: &Value) -> bool {
    after.shape.first().and_then(|&samples| before.len().checked_mul(samples)) == Some(after.len())
}

/// Returns `true` if the second list repeats the first one at these places.
fn repeats<T>(first: &[T], second: &[T], own: Range<usize>, equal: impl Fn(&T, &T) -> bool) -> bool {
    let mut pairs = first.iter().cycle().zip(second).take(own.end).skip(own.start);
    pairs.all(|(a, b)| equal(a, b))
}

#[cfg(test)]
mod tests {
    use kvscatter::ElementType;

    use super::{Sample, agree, is_same_float};
    use crate::fold::{Value, Values};

    #[test]
    fn zeros_have_a_sign_and_nans_have_none() {
        let other = f64::from_bits(f64::NAN.to_bits() ^ (1 << 63) ^ 1);
        let numbers = [0.0, -0.0, 1.5, f64::INFINITY, f64::NEG_INFINITY, f64::NAN, other];
        let value =
            |number| Value::new(ElementType::Float32, vec![1], Some(Values::Floats(vec![number]))).unwrap();
        for (at, before) in numbers.into_iter().enumerate() {
            for (other, after) in numbers.into_iter().enumerate() {
                let is_same = at == other || (before.is_nan() && after.is_nan());
                assert_eq!(is_same_float(before, after), is_same, "{before} {after}");
                assert_eq!(agree(&value(before), &value(after), None, true), is_same, "{before} {after}");
            }
        }
    }

    #[test]
    fn one_sample_is_compared_with_its_row_or_with_the_row_of_all_samples() {
        let value = |shape: &[usize], numbers: &[i64]| {
            Value::new(ElementType::Int64, shape.to_vec(), Some(Values::Ints(numbers.to_vec()))).unwrap()
        };
        let after = value(&[2, 2], &[1, 2, 3, 4]);
        for (before, same) in [
            (value(&[2, 2], &[1, 2, 3, 4]), [true; 2]),
            (value(&[2, 2], &[1, 2, 9, 4]), [true, false]),
            (value(&[1, 2], &[3, 4]), [false, true]),
            (value(&[2], &[1, 2]), [true, false]),
        ] {
            for (index, is_same) in same.into_iter().enumerate() {
                let sample = Some(Sample { index, batch: 2 });
                assert_eq!(agree(&before, &after, sample, true), is_same, "{before:?} {index}");
            }
            assert_eq!(agree(&before, &after, None, true), same == [true; 2], "{before:?}");
            assert!(!agree(&before, &after, None, false));
        }
    }
}
