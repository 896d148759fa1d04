//! Ways to lay out the operands of a call: rows at random distances, and blocks in random order.

use core::ops::Range;

use kvscatter::Executor;
use kvscatter_attention::{
    Attention, AttentionError, CacheElement, Inputs, Mask, Outputs, Prepared, Shapes, Strides, Valid,
};
use kvscatter_oracle::cases::Random;

use super::call::{AnyMask, Operands, Tensor};
use super::element::Element;
use super::executors::Threads;
use super::variants::Variant;

/// Rows at random distances, in a buffer whose other elements are garbage.
pub(crate) struct Laid<T> {
    pub(crate) strides: [usize; 3],
    pub(crate) data: Vec<T>,
}

impl<T: Copy> Laid<T> {
    /// Lays out the rows of a dense tensor, `[samples, heads, rows, size]`.
    pub(crate) fn new(r: &mut Random, shape: [usize; 4], dense: &[T], garbage: T) -> Self {
        let [samples, heads, rows, size] = shape;
        let counts = [samples, heads, rows];
        let order = r.pick(&[[0, 1, 2], [0, 2, 1], [1, 0, 2], [2, 0, 1], [1, 2, 0], [2, 1, 0]]);
        let (mut strides, mut extent) = ([0; 3], size);
        for dimension in order.into_iter().rev() {
            strides[dimension] = extent + r.below(3);
            extent = strides[dimension] * counts[dimension];
        }
        let mut data = vec![garbage; extent];
        for (number, row) in dense.chunks_exact(size.max(1)).enumerate() {
            let place = [number / rows / heads, number / rows % heads, number % rows];
            let first: usize = place.iter().zip(strides).map(|(index, stride)| index * stride).sum();
            data[first..first + size].copy_from_slice(row);
        }
        Self { strides, data }
    }
}

/// Blocks that the slots of samples are in.
pub(crate) struct Pages {
    /// The number of slots of a block.
    pub(crate) size: usize,
    pub(crate) per_sample: usize,
    /// The number of all blocks.
    pub(crate) count: usize,
    pub(crate) table: Vec<i32>,
}

impl Pages {
    /// Returns blocks in random order for so many slots of each sample, of which those in `used` are seen. Entries
    /// for other slots are garbage.
    pub(crate) fn random(r: &mut Random, slots: usize, used: &[Range<usize>]) -> Self {
        let size = r.pick(&[1, 2, 3, 16, 16, 64]);
        let per_sample = slots.div_ceil(size) + r.below(2);
        let count = used.len() * per_sample + r.below(3);
        let mut free: Vec<_> = (0..i32::try_from(count).unwrap()).collect();
        let mut table = Vec::new();
        for used in used {
            let blocks = used.start / size..used.end.div_ceil(size);
            table.extend((0..per_sample).map(|number| match blocks.contains(&number) {
                true => free.swap_remove(r.below(free.len())),
                false => r.pick(&[-1, i32::MIN, i32::MAX, i32::try_from(count).unwrap()]),
            }));
        }
        Self { size, per_sample, count, table }
    }

    /// Returns the blocks of a cache `[batch, heads, slots, size]`, as `[blocks, heads, slots of a block, size]`.
    pub(crate) fn blocks<T: Copy>(
        &self,
        [batch, heads, slots, size]: [usize; 4],
        cache: &[T],
        garbage: T,
    ) -> Vec<T> {
        let mut blocks = vec![garbage; self.count * heads * self.size * size];
        for (sample, slot) in (0..batch).flat_map(|sample| (0..slots).map(move |slot| (sample, slot))) {
            let block = self.table[sample * self.per_sample + slot / self.size];
            let Some(block) = usize::try_from(block).ok().filter(|block| *block < self.count) else {
                continue;
            };
            for head in 0..heads {
                let from = ((sample * heads + head) * slots + slot) * size;
                let to = ((block * heads + head) * self.size + slot % self.size) * size;
                blocks[to..to + size].copy_from_slice(&cache[from..from + size]);
            }
        }
        blocks
    }
}

fn four(shape: &[usize]) -> [usize; 4] {
    shape.try_into().unwrap()
}

impl<T: Element> Operands<T> {
    /// Returns these operands with rank 4.
    pub(crate) fn by_head(&self, op: &Attention) -> Self {
        let Some((query, key)) = op.head_counts().filter(|_| self.query.shape.len() == 3) else {
            return self.clone();
        };
        let by_head = |tensor: &Tensor<T>, heads| tensor.by_head(heads);
        Self {
            query: by_head(&self.query, query),
            key: by_head(&self.key, key),
            value: by_head(&self.value, key),
            ..self.clone()
        }
    }

    fn mask(&self) -> Option<(&[usize], Mask<'_, T>)> {
        self.mask.as_ref().map(|mask| match mask {
            AnyMask::Bool(mask) => (&mask.shape[..], Mask::Bool(&mask.data)),
            AnyMask::Float(mask) => (&mask.shape[..], Mask::Float(&mask.data)),
        })
    }

    /// Runs a call of rank 4 whose operands have random strides, and returns `Y` with its garbage removed.
    pub(crate) fn run_strided(&self, r: &mut Random, variant: Variant, op: &Attention) -> Vec<T> {
        let nan = T::from_f64(f64::NAN);
        let [query, key, value] =
            [&self.query, &self.key, &self.value].map(|of| Laid::new(r, four(&of.shape), &of.data, nan));
        let mut output_shape = four(&self.query.shape);
        output_shape[3] = self.value.shape[3];
        let marks: Vec<_> = (0..output_shape.iter().product()).map(|_| T::from_f64(1.0)).collect();
        let laid = Laid::new(r, output_shape, &marks, T::from_f64(-7.0));
        let strides = Strides {
            query: Some(query.strides),
            key: Some(key.strides),
            value: Some(value.strides),
            output: Some(laid.strides),
        };
        let mask = self.mask();
        let shapes = Shapes {
            element: T::ELEMENT,
            query: &self.query.shape,
            key: &self.key.shape,
            value: &self.value.shape,
            mask: mask.map(|(shape, _)| shape),
            past: None,
        };
        let prepared = variant.apply(op.prepare_strided(&shapes, &strides).unwrap());
        let valid = self.lengths.as_deref().map_or(Valid::All, Valid::Lengths);
        let mask = mask.map(|(_, mask)| mask);
        let inputs = Inputs { mask, valid, ..Inputs::new(&query.data, &key.data, &value.data) };
        let mut y = laid.data.clone();
        let mut outputs = Outputs::new(&mut y);
        prepared.run(&inputs, &mut outputs, &mut prepared.scratch(2), Some(&Threads(2))).unwrap();
        let is_row = |at: &usize| laid.data[*at].bits() == T::from_f64(1.0).bits();
        for at in (0..y.len()).filter(|at| !is_row(at)) {
            assert_eq!(y[at].bits(), laid.data[at].bits(), "an element between rows has changed");
        }
        // The rows in the order of a dense tensor.
        let [samples, heads, rows, size] = output_shape;
        let row = |[sample, head, row]: [usize; 3]| {
            let [a, b, c] = laid.strides;
            y[sample * a + head * b + row * c..][..size].to_vec()
        };
        let places = (0..samples)
            .flat_map(|sample| (0..heads).flat_map(move |head| (0..rows).map(move |at| [sample, head, at])));
        places.flat_map(row).collect()
    }

    /// Runs a call of rank 4 whose keys and values are in blocks. Returns `None` for operands that cannot be.
    pub(crate) fn run_in_blocks(&self, r: &mut Random, variant: Variant, op: &Attention) -> Vec<T> {
        let [batch, _, slots, _] = four(&self.key.shape);
        // Without lengths, query `i` has the position `i`.
        let all = vec![i64::try_from(slots).unwrap(); batch];
        let valid = self.lengths.as_deref().map_or(Valid::Prompt(&all), Valid::Lengths);
        let used: Vec<_> = self
            .lengths
            .as_ref()
            .unwrap_or(&all)
            .iter()
            .map(|length| 0..usize::try_from(*length).unwrap())
            .collect();
        let pages = Pages::random(r, slots, &used);
        let nan = T::from_f64(f64::NAN);
        let [key, value] = [&self.key, &self.value].map(|of| {
            let shape = four(&of.shape);
            let blocks = pages.blocks(shape, &of.data, nan);
            let shape = [pages.count, shape[1], pages.size, shape[3]];
            (shape, Laid::new(r, shape, &blocks, nan))
        });
        let mask = self.mask();
        let shapes = Shapes {
            element: T::ELEMENT,
            query: &self.query.shape,
            key: &key.0,
            value: &value.0,
            mask: mask.map(|(shape, _)| shape),
            past: None,
        };
        let strides =
            Strides { key: Some(key.1.strides), value: Some(value.1.strides), ..Strides::default() };
        let prepared = op.blocks(pages.per_sample).prepare_strided(&shapes, &strides).unwrap();
        let prepared = variant.apply(prepared);
        let inputs = Inputs {
            mask: mask.map(|(_, mask)| mask),
            valid,
            block_table: Some(&pages.table),
            ..Inputs::new(&self.query.data, &key.1.data, &value.1.data)
        };
        run(&prepared, &inputs, Some(&Threads(2))).unwrap()
    }
}

pub(crate) fn run<T: Element, C: CacheElement>(
    prepared: &Prepared,
    inputs: &Inputs<'_, T, C>,
    executor: Option<&dyn Executor>,
) -> Result<Vec<T>, AttentionError> {
    let mut y = vec![T::from_f64(-7.0); prepared.output_shape().iter().product()];
    let result = prepared.run(inputs, &mut Outputs::new(&mut y), &mut prepared.scratch(2), executor);
    assert!(result.is_ok() || y.iter().all(|y| y.bits() == T::from_f64(-7.0).bits()));
    result.map(|()| y)
}

/// Returns whether results have the same bits. The compiler chooses the sign of a NaN.
pub(crate) fn are_same<T: Element>(one: &[T], other: &[T]) -> bool {
    let same = |(one, other): (&T, &T)| {
        one.bits() == other.bits() || one.to_f32().is_nan() && other.to_f32().is_nan()
    };
    one.len() == other.len() && one.iter().zip(other).all(same)
}
