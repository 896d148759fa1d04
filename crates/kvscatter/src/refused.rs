//! Errors for indices that somebody else has read: a backend whose lists lie on a device.

use crate::call::{Anchor, Call, Positions, Spans};
use crate::geometry::Geometry;
use crate::lists::Lists;
use crate::{Error, Lengths, Starts};

/// A value of a call's lists that does not fit, and what belongs to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Refused {
    /// The layer.
    Layer {
        /// Its number.
        value: i64,
    },
    /// A sample's position.
    Start {
        /// Which sample.
        sample: usize,
        /// Its position.
        value: i64,
        /// Rows that the sample brings.
        span: usize,
        /// Rows of them that are to be written.
        length: usize,
    },
    /// The rows to be written of a sample.
    Length {
        /// Which sample.
        sample: usize,
        /// Its length.
        value: i64,
        /// Rows that the sample brings.
        span: usize,
    },
    /// The rows that a sample of a packed update brings, in a list of such numbers ([`Lists::Ends`]).
    Span {
        /// Which sample.
        sample: usize,
        /// Its rows.
        value: i64,
    },
    /// Two neighbours in a list of running totals ([`Lists::RunningTotals`]).
    Totals {
        /// Which sample they are for: the place of the first.
        sample: usize,
        /// The first.
        previous: i64,
        /// The second.
        value: i64,
    },
    /// The rows that all samples of a packed update bring.
    Sum {
        /// As many as the lists say.
        value: i64,
    },
}

impl Geometry {
    /// The error that `plan` returns for such a value; `None` if it fits after all.
    #[must_use]
    pub fn refuse(&self, refused: Refused) -> Option<Error> {
        let anchor = match self.lists() {
            Lists::Ends => Anchor::End,
            Lists::Starts | Lists::RunningTotals => Anchor::First,
        };
        let (spans, lengths) = (Spans::Uniform, Lengths::Full);
        let call = Call { layer: 0, starts: Starts::Zero, anchor, spans, lengths };
        let positions = Positions::new(self, call);
        match refused {
            Refused::Layer { value } => positions.layer(value).err(),
            Refused::Start { sample, value, span, length } => {
                positions.slot_at(sample, value, span, length).err()
            }
            Refused::Length { sample, value, span } => positions.length(sample, value, span).err(),
            Refused::Span { sample, value } => positions.span(sample, value).err(),
            Refused::Totals { sample, previous, value } => {
                let error = positions.order(sample, previous, value).err();
                // `order` has seen two numbers from 0 on: their difference fits.
                error.or_else(|| positions.span_between(sample, value.wrapping_sub(previous)).err())
            }
            Refused::Sum { value } => positions.check_total(value).err(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Refused;
    use crate::spec::{ascend::KvCacheOperation, onnx::TensorScatter, tensorrt::KvCacheUpdate};
    use crate::{ElementType, Error, Lengths, Mode, NegativeIndex};

    const EDGES: [i64; 12] = [i64::MIN, -7, -6, -1, 0, 1, 2, 3, 4, 5, 6, i64::MAX];

    /// What a list says is refused as its plan refuses it, and nothing else is.
    fn agree(plan: Result<(), Error>, refused: Option<Error>, value: i64) {
        assert_eq!(plan.err(), refused, "{value}");
    }

    #[test]
    fn starts_and_lengths_are_refused_as_plans_refuse_them() {
        let ring = TensorScatter::new().mode(Mode::Circular).negative_index(NegativeIndex::Reject);
        for operator in [TensorScatter::new(), ring] {
            let write = operator.prepare(ElementType::Int8, &[2, 5, 1], &[2, 3, 1]).unwrap();
            for value in EDGES {
                let refuse = |refused| write.geometry().refuse(refused);
                let start = Refused::Start { sample: 1, value, span: 3, length: 2 };
                agree(write.plan_lengths(&[0, value], &[0, 2]).map(drop), refuse(start), value);
                let length = Refused::Length { sample: 1, value, span: 3 };
                agree(write.plan_lengths(&[0, 0], &[0, value]).map(drop), refuse(length), value);
            }
        }
    }

    #[test]
    fn running_totals_are_refused_as_plans_refuse_them() {
        let write = KvCacheUpdate::new();
        let write = write.prepare_packed(ElementType::Float32, &[3, 1, 4, 1], &[6, 1, 1]).unwrap();
        for (previous, value) in EDGES.into_iter().flat_map(|value| [(0, value), (3, value), (1, value)]) {
            let (Ok(before), Ok(after)) = (i32::try_from(previous), i32::try_from(value)) else { continue };
            let refused = write.geometry().refuse(Refused::Totals { sample: 1, previous, value });
            let plan = write.plan(&[0_i64; 2], &[0, before, after]).map(drop);
            let sum = write.geometry().refuse(Refused::Sum { value });
            agree(plan, refused.or(sum), value);
            let first = write.geometry().refuse(Refused::Totals { sample: 0, previous: value, value });
            if value != 0 {
                agree(write.plan(&[0_i64; 1], &[after, after]).map(drop), first, value);
            }
        }
    }

    #[test]
    fn ends_spans_and_layers_are_refused_as_plans_refuse_them() {
        let half = ElementType::Float16;
        let packed = KvCacheOperation::new().prepare(half, &[4, 2], &[2, 2, 5, 2]).unwrap();
        let padded = KvCacheOperation::new().prepare(half, &[2, 2, 1, 2], &[2, 2, 5, 2]).unwrap();
        for value in EDGES.into_iter().filter(|&value| i32::try_from(value).is_ok()) {
            let number = i32::try_from(value).unwrap();
            for (write, span) in [(&packed, 2), (&padded, 2)] {
                let refuse = |refused| write.geometry().refuse(refused);
                let end = Refused::Start { sample: 1, value, span, length: 1 };
                let lengths = Lengths::from(&[0_i64, 1]);
                agree(write.plan_lengths(&[1], &[5, number], &[2, 2], lengths).map(drop), refuse(end), value);
                agree(
                    write.plan(&[number], &[2, 2], &[2, 2]).map(drop),
                    refuse(Refused::Layer { value }),
                    value,
                );
                let spans = refuse(Refused::Span { sample: 1, value });
                let sum = if write.geometry().is_packed() {
                    refuse(Refused::Sum { value: 2 + value })
                } else {
                    None
                };
                agree(write.plan(&[1], &[5, 5], &[2, number]).map(drop), spans.or(sum), value);
            }
        }
    }
}
