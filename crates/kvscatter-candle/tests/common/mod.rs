//! Tensors of different numbers, and views of them.

use candle_core::{Device, Tensor};
use kvscatter_oracle::cases::Random;
use kvscatter_oracle::size;

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
