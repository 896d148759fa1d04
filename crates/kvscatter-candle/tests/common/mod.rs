//! Writes of tensors of different numbers, and views of them, with the oracle's results.

use candle_core::{DType, Device, Tensor};
use kvscatter::Mode;
use kvscatter_candle::{CandleError, TensorScatter};
use kvscatter_oracle::cases::Random;
use kvscatter_oracle::{OutOfRange, Outcome, onnx, size};

/// Returns a tensor in which every element is different.
pub(crate) fn numbered(shape: &[usize], first: u32) -> Tensor {
    let end = first + size(shape) as u32;
    Tensor::arange(first, end, &Device::Cpu).unwrap().reshape(shape).unwrap()
}

/// Returns a view of this shape and its storage. The view begins anywhere in the larger storage, with its
/// dimensions in any order.
pub(crate) fn view(random: &mut Random, shape: &[usize], first: u32) -> (Tensor, Tensor) {
    let mut order: Vec<usize> = (0..shape.len()).collect();
    for place in (1..order.len()).rev() {
        order.swap(place, random.below(place + 1));
    }
    let margins = random.many(shape.len(), |random| [random.below(2), random.below(2)]);
    let stored: Vec<_> = order.iter().map(|&dim| shape[dim] + margins[dim][0] + margins[dim][1]).collect();
    let whole = numbered(&stored, first);
    let mut part = whole.clone();
    for (place, &dim) in order.iter().enumerate() {
        part = part.narrow(place, margins[dim][0], shape[dim]).unwrap();
    }
    let back: Vec<_> =
        (0..shape.len()).map(|dim| order.iter().position(|&other| other == dim).unwrap()).collect();
    (part.permute(back).unwrap(), whole)
}

pub(crate) fn values(tensor: &Tensor) -> Vec<u32> {
    if tensor.elem_count() == 0 {
        return Vec::new(); // candle panics here
    }
    tensor.flatten_all().unwrap().to_vec1().unwrap()
}

/// Checks that every field of an error is as expected.
pub(crate) fn assert_error(refused: impl Into<CandleError>, expected: impl Into<CandleError>) {
    assert_eq!(format!("{:?}", refused.into()), format!("{:?}", expected.into()));
}

/// A write of an update into a cache of rank 4.
pub(crate) struct Case {
    pub(crate) scatter: TensorScatter,
    pub(crate) operator: onnx::TensorScatter,
    pub(crate) cache: [usize; 4],
    pub(crate) update: [usize; 4],
    pub(crate) starts: Vec<i64>,
    pub(crate) lengths: Option<Vec<i64>>,
}

impl Case {
    /// Returns a case in a ring, or in a linear cache where one position in ten does not fit.
    pub(crate) fn random(random: &mut Random, fewest_rows: usize) -> Self {
        let (circular, axis) = (random.below(2) == 0, random.between(1, 3));
        let mut cache = [(); 4].map(|()| random.between(1, 3));
        cache[axis] = random.between(1, 5);
        let mut update = cache;
        update[axis] = random.between(fewest_rows, cache[axis]);
        let room = cache[axis] - update[axis];
        let starts = random.many(cache[0], |random| match (circular, random.below(10)) {
            (true, _) => random.below(40) as i64 - 20,
            (false, 0) => [-1, room as i64 + 1, i64::MAX][random.below(3)],
            (false, _) => random.below(room + 1) as i64,
        });
        let lengths = (random.below(3) == 0)
            .then(|| random.many(cache[0], |random| random.below(update[axis] + 1) as i64));
        let (mode, name) = if circular { (Mode::Circular, "circular") } else { (Mode::Linear, "linear") };
        Self {
            scatter: TensorScatter::new().axis(axis as i64).mode(mode),
            operator: onnx::TensorScatter { axis: axis as i64, mode: name.to_owned(), ..Default::default() },
            cache,
            update,
            starts,
            lengths,
        }
    }

    /// Returns the elements of the storage `whole` after a write into its view `cache`, and the number of samples that
    /// are skipped. Returns `None` if the operator refuses the write.
    pub(crate) fn expected(
        &self,
        policy: OutOfRange,
        [cache, whole]: [&Tensor; 2],
        update: &Tensor,
    ) -> Option<(Vec<u32>, usize)> {
        let operator = onnx::TensorScatter { out_of_range: policy, ..self.operator.clone() };
        let (past, update) = (values(cache), values(update));
        let past = kvscatter_oracle::Tensor::new(&past, &self.cache);
        let update = kvscatter_oracle::Tensor::new(&update, &self.update);
        let written = operator.run(past, update, Some(&self.starts), self.lengths.as_deref());
        let Outcome { present, skipped } = written.ok()?;
        let (mut all, layout) = (values(whole), cache.layout());
        for (flat, value) in present.into_iter().enumerate() {
            let (mut rest, mut at) = (flat, layout.start_offset());
            for (dim, stride) in cache.dims().iter().zip(layout.stride()).rev() {
                at += rest % dim * stride;
                rest /= dim;
            }
            all[at] = value;
        }
        Some((all, skipped))
    }
}

/// Checks that elements of every type with arithmetic move bit for bit. `write` writes an update of two samples at
/// the slots 3 and 0 of a cache with four slots.
pub(crate) fn every_type_moves(device: &Device, write: impl Fn(&Tensor, &Tensor)) {
    use DType as D;
    for dtype in [D::U8, D::U32, D::I16, D::I32, D::I64, D::BF16, D::F16, D::F32, D::F64, D::F8E4M3] {
        let typed = |shape: &[usize], first| {
            let floats = numbered(shape, first).to_dtype(D::F32).unwrap();
            floats.to_dtype(dtype).unwrap().to_device(device).unwrap()
        };
        let floats = |tensor: &Tensor| -> Vec<f32> {
            let here = tensor.to_device(&Device::Cpu).unwrap().to_dtype(D::F32).unwrap();
            here.flatten_all().unwrap().to_vec1().unwrap()
        };
        let (cache, update) = (typed(&[2, 1, 4, 3], 0), typed(&[2, 1, 1, 3], 100));
        let (mut present, new) = (floats(&cache), floats(&update));
        present[9..12].copy_from_slice(&new[..3]);
        present[12..15].copy_from_slice(&new[3..]);
        write(&cache, &update);
        assert_eq!(floats(&cache), present, "{dtype:?}");
    }
}
