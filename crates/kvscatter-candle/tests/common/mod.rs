//! The oracle's cases as candle's tensors.

use candle_core::{DType, Device, Tensor};
use kvscatter::{Mode, NegativeIndex, OutOfRange};
use kvscatter_candle::{CandleError, TensorScatter};
use kvscatter_oracle::cases::{self, Call, Element, Random, Values};
use kvscatter_oracle::{self as oracle, Outcome, size};

/// Returns a tensor in which every element differs from others as much as its type allows.
fn painted(element: &Element, shape: &[usize], first: usize) -> Tensor {
    let Values::Bytes(bytes) = Values::painted(element, first, size(shape)) else {
        unreachable!("no strings")
    };
    Tensor::from_raw_buffer(&bytes, dtype(element).unwrap(), shape, &Device::Cpu).unwrap()
}

/// Returns candle's type, if candle has arithmetic for it.
fn dtype(element: &Element) -> Option<DType> {
    let names = "uint8=u8 uint32=u32 int16=i16 int32=i32 int64=i64 bfloat16=bf16 float16=f16 float=f32 \
        double=f64 float8e4m3fn=f8e4m3";
    names.split(' ').find_map(|pair| pair.strip_prefix(element.name)?.strip_prefix('=')?.parse().ok())
}

pub(crate) fn bytes(tensor: &Tensor) -> Vec<u8> {
    let mut bytes = Vec::new();
    if tensor.elem_count() > 0 {
        tensor.to_device(&Device::Cpu).unwrap().write_bytes(&mut bytes).unwrap(); // panics for empty tensors
    }
    bytes
}

/// Checks that every field of an error is as expected.
pub(crate) fn assert_error(refused: impl Into<CandleError>, expected: impl Into<CandleError>) {
    assert_eq!(format!("{:?}", refused.into()), format!("{:?}", expected.into()));
}

/// A view of a larger tensor. It begins anywhere there, with its dimensions in any order.
pub(crate) struct View {
    pub(crate) part: Tensor,
    pub(crate) whole: Tensor,
}

impl View {
    pub(crate) fn new(random: &mut Random, element: &Element, shape: &[usize], device: &Device) -> Self {
        let swaps: Vec<_> = (1..shape.len()).rev().map(|dim| (dim, random.below(dim + 1))).collect();
        let margins = random.many(shape.len(), |random| [random.below(2), random.below(2)]);
        let sides = shape.iter().zip(&margins);
        let mut stored: Vec<_> = sides.map(|(size, margins)| size + margins[0] + margins[1]).collect();
        swaps.iter().for_each(|&(dim, other)| stored.swap(dim, other));
        let whole = painted(element, &stored, random.below(1000)).to_device(device).unwrap();
        let mut part = whole.clone();
        for (dim, other) in swaps.into_iter().rev() {
            part = part.transpose(dim, other).unwrap();
        }
        for (dim, margins) in margins.iter().enumerate() {
            part = part.narrow(dim, margins[0], shape[dim]).unwrap();
        }
        Self { part, whole }
    }
}

/// A call of the operator on tensors with candle's types.
pub(crate) struct Case {
    pub(crate) oracle: cases::Case,
    pub(crate) scatter: TensorScatter,
    pub(crate) starts: Vec<i64>,
    pub(crate) lengths: Option<Vec<i64>>,
}

impl Case {
    /// Returns those of the oracle's cases that candle can express. candle writes no empty caches. Views of higher
    /// ranks may need more loops than the core has.
    pub(crate) fn all(seed: u64, count: usize) -> impl Iterator<Item = Self> {
        cases::cases(seed, count).filter_map(|oracle| {
            let Call::TensorScatter { operator, write_indices, lengths } = &oracle.call else { return None };
            let (shape, has_types) =
                (&oracle.cache_shape, oracle.elements.iter().all(|element| dtype(element).is_some()));
            (has_types && shape.len() <= 4 && !shape.contains(&0)).then_some(())?;
            let mode = ["linear", "circular"].iter().position(|mode| *mode == operator.mode)?;
            let is_rejected = operator.negative_index == oracle::NegativeIndex::Reject;
            let is_skipped = operator.out_of_range == oracle::OutOfRange::SkipSample;
            let zeros = || vec![0; shape.first().copied().unwrap_or(1)];
            Some(Self {
                scatter: TensorScatter::new()
                    .axis(operator.axis)
                    .mode([Mode::Linear, Mode::Circular][mode])
                    .negative_index([NegativeIndex::Modulo, NegativeIndex::Reject][usize::from(is_rejected)])
                    .out_of_range([OutOfRange::Error, OutOfRange::SkipSample][usize::from(is_skipped)]),
                starts: write_indices.clone().unwrap_or_else(zeros),
                lengths: lengths.clone(),
                oracle,
            })
        })
    }

    /// Returns the bytes of a view's storage after the write of an update, and the number of samples that are
    /// skipped. Returns `None` if the operator refuses the write.
    pub(crate) fn expected(&self, cache: &View, update: &Tensor) -> Option<(Vec<u8>, usize)> {
        let (oracle, layout, width) = (&self.oracle, cache.part.layout(), cache.part.dtype().size_in_bytes());
        oracle.call.check_elements(oracle.elements).ok()?;
        let written = oracle.call.run_on_origins(&oracle.cache_shape, &oracle.update_shape);
        let Outcome { present, skipped } = written.ok()?;
        let (mut all, new) = (bytes(&cache.whole), bytes(update));
        for (flat, origin) in present.into_iter().enumerate() {
            let Some(row) = origin.written() else { continue };
            let (mut rest, mut place) = (flat, layout.start_offset());
            for (size, stride) in layout.dims().iter().zip(layout.stride()).rev() {
                place += rest % size * stride;
                rest /= size;
            }
            all[place * width..][..width].copy_from_slice(&new[row * width..][..width]);
        }
        Some((all, skipped))
    }
}
