//! A call of the oracle in the types of this crate.

use kvscatter::Executor;
use kvscatter_attention::{
    Attention, AttentionError, Attributes, Inputs, Mask, Outputs, Prepared, Scratch, Shapes, Valid,
};
use kvscatter_oracle::attention as oracle;

use super::element::{Element, elements};

/// The number of elements before and after each output that must not change.
const GUARD: usize = 3;

/// What outputs and guards contain before a call. No result is near.
const GARBAGE: f64 = -777.0;

#[derive(Clone, Debug)]
pub(crate) struct Operands<T> {
    pub(crate) query: Tensor<T>,
    pub(crate) key: Tensor<T>,
    pub(crate) value: Tensor<T>,
    pub(crate) mask: Option<AnyMask<T>>,
    pub(crate) past: Option<[Tensor<T>; 2]>,
    /// The lengths, or `None` if all slots contain tokens.
    pub(crate) lengths: Option<Vec<i64>>,
}

/// Elements with a shape, which need not fit each other.
#[derive(Clone, Debug)]
pub(crate) struct Tensor<T> {
    pub(crate) shape: Vec<usize>,
    pub(crate) data: Vec<T>,
}

impl<T: Element> Tensor<T> {
    /// Returns `[batch, heads, rows, size]` as `[batch, rows, heads * size]`.
    pub(crate) fn flat(&self) -> Self {
        let &[batch, heads, rows, size] = self.shape.as_slice() else { unreachable!("rank 4") };
        self.regrouped([heads, rows], size, vec![batch, rows, heads * size])
    }

    /// Returns `[batch, rows, heads * size]` as `[batch, heads, rows, size]`.
    pub(crate) fn by_head(&self, heads: usize) -> Self {
        let &[batch, rows, hidden] = self.shape.as_slice() else { unreachable!("rank 3") };
        self.regrouped([rows, heads], hidden / heads, vec![batch, heads, rows, hidden / heads])
    }

    /// Exchanges the dimensions `outer` and `inner` of `[batch, outer, inner, size]`.
    fn regrouped(&self, [outer, inner]: [usize; 2], size: usize, shape: Vec<usize>) -> Self {
        let rows = (0..shape[0])
            .flat_map(|sample| (0..inner).flat_map(move |i| (0..outer).map(move |o| (sample, o, i))));
        let row = |(sample, o, i): (usize, usize, usize)| {
            self.data[((sample * outer + o) * inner + i) * size..][..size].iter().copied()
        };
        Self { data: rows.flat_map(row).collect(), shape }
    }
}

#[derive(Clone, Debug)]
pub(crate) enum AnyMask<T> {
    Bool(Tensor<u8>),
    Float(Tensor<T>),
}

/// The outputs of a call.
#[derive(Clone, Debug)]
pub(crate) struct Results<T> {
    pub(crate) y: Vec<T>,
    pub(crate) present: Option<[Vec<T>; 2]>,
    pub(crate) scores: Option<Vec<T>>,
}

/// Returns the operator with these attributes and no output of scores, or `None` if they break a rule.
pub(crate) fn operator(attention: &oracle::Attention, positions: &oracle::Positions) -> Option<Attention> {
    let attributes = Attributes {
        is_causal: Some(attention.is_causal.into()),
        kv_num_heads: attention.kv_num_heads,
        left_window_size: Some(attention.left_window_size),
        q_num_heads: attention.q_num_heads,
        qk_matmul_output_mode: Some(attention.qk_matmul_output_mode),
        right_window_size: Some(attention.right_window_size),
        scale: attention.scale.map(|scale| scale as f32),
        // A negative cap means none in the oracle, and the crate refuses it.
        softcap: Some(attention.softcap.max(0.0) as f32),
        softmax_precision: attention.softmax_precision,
    };
    let op = attributes.operator(false).ok()?;
    Some(if matches!(positions, oracle::Positions::Ring(_)) { op.ring() } else { op })
}

impl<T: Element> Operands<T> {
    /// Returns the operands of a call of the oracle, or `None` if only one part of the past is given.
    pub(crate) fn new(inputs: &oracle::Inputs) -> Option<Self> {
        let past = match (&inputs.past_key, &inputs.past_value) {
            (Some(key), Some(value)) => Some([key, value].map(Tensor::new)),
            (None, None) => None,
            _ => return None,
        };
        Some(Self {
            query: Tensor::new(&inputs.q),
            key: Tensor::new(&inputs.k),
            value: Tensor::new(&inputs.v),
            mask: inputs.mask.as_ref().map(|mask| match mask {
                oracle::Mask::Bool(mask) => AnyMask::Bool(Tensor {
                    shape: mask.shape.clone(),
                    // Every byte except 0 is true.
                    data: mask
                        .data
                        .iter()
                        .zip([1, 2, 255].into_iter().cycle())
                        .map(|(&seen, byte)| u8::from(seen) * byte)
                        .collect(),
                }),
                oracle::Mask::Float(mask) => AnyMask::Float(Tensor::new(mask)),
            }),
            past,
            lengths: match &inputs.positions {
                oracle::Positions::Full => None,
                oracle::Positions::Lengths(lengths) | oracle::Positions::Ring(lengths) => {
                    Some(lengths.clone())
                }
            },
        })
    }

    pub(crate) fn prepare(&self, op: &Attention) -> Result<Prepared, AttentionError> {
        op.prepare(&Shapes {
            element: T::ELEMENT,
            query: &self.query.shape,
            key: &self.key.shape,
            value: &self.value.shape,
            mask: self.mask.as_ref().map(|mask| match mask {
                AnyMask::Bool(mask) => mask.shape.as_slice(),
                AnyMask::Float(mask) => &mask.shape,
            }),
            past: self.past.as_ref().map(|[key, value]| [key.shape.as_slice(), &value.shape]),
        })
    }

    pub(crate) fn inputs(&self) -> Inputs<'_, T> {
        Inputs {
            mask: self.mask.as_ref().map(|mask| match mask {
                AnyMask::Bool(mask) => Mask::Bool(&mask.data),
                AnyMask::Float(mask) => Mask::Float(&mask.data),
            }),
            past: self.past.as_ref().map(|[key, value]| [key.data.as_slice(), &value.data]),
            valid: self.lengths.as_deref().map_or(Valid::All, Valid::Lengths),
            ..Inputs::new(&self.query.data, &self.key.data, &self.value.data)
        }
    }

    /// Runs a prepared call, and checks that nothing outside the outputs has changed, and nothing at all if the
    /// call fails.
    pub(crate) fn run_on(
        &self,
        prepared: &Prepared,
        op: &Attention,
        with_present: bool,
        scratch: &mut Scratch,
        executor: Option<&dyn Executor>,
    ) -> Result<Results<T>, AttentionError> {
        let has_scores = op.has_scores();
        let mut y = Guarded::new(&prepared.output_shape());
        let mut present = prepared.present_shapes().map(|shape| Guarded::new(&shape));
        let mut scores = Guarded::new(&prepared.scores_shape());
        let result = {
            let mut outputs = Outputs::new(y.inner());
            if with_present {
                let [key, value] = &mut present;
                outputs = outputs.present(key.inner(), value.inner());
            }
            if has_scores {
                outputs = outputs.scores(scores.inner());
            }
            prepared.run(&self.inputs(), &mut outputs, scratch, executor)
        };
        let unchanged = result.is_err();
        let [key, value] = present.map(|present| present.finish(unchanged || !with_present));
        let y = y.finish(unchanged);
        let scores = scores.finish(unchanged || !has_scores);
        result.map(|()| Results {
            y,
            present: with_present.then_some([key, value]),
            scores: has_scores.then_some(scores),
        })
    }

    /// Prepares a call and runs it on this thread, with every output.
    pub(crate) fn run(&self, op: &Attention) -> Result<Results<T>, AttentionError> {
        let prepared = self.prepare(op)?;
        self.run_on(&prepared, op, true, &mut prepared.scratch(1), None)
    }
}

impl<T: Element> Tensor<T> {
    fn new(array: &oracle::Array<f64>) -> Self {
        Self { shape: array.shape.clone(), data: elements(&array.data) }
    }
}

/// An output between elements that no call may change.
struct Guarded<T>(Vec<T>);

impl<T: Element> Guarded<T> {
    fn new(shape: &[usize]) -> Self {
        Self(vec![T::from_f64(GARBAGE); shape.iter().product::<usize>() + 2 * GUARD])
    }

    fn inner(&mut self) -> &mut [T] {
        let end = self.0.len() - GUARD;
        &mut self.0[GUARD..end]
    }

    /// Checks the guards, or the whole buffer, and returns the elements between the guards.
    fn finish(mut self, unchanged: bool) -> Vec<T> {
        let end = self.0.len() - GUARD;
        let is_garbage = |element: &T| element.bits() == T::from_f64(GARBAGE).bits();
        assert!(self.0[..GUARD].iter().chain(&self.0[end..]).all(is_garbage), "a guard has changed");
        assert!(!unchanged || self.0.iter().all(is_garbage), "an output has changed");
        self.inner().to_vec()
    }
}
