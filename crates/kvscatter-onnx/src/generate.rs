//! Inputs for a model that nobody gave values for: reproducible from a seed, and valid by construction.

use std::collections::BTreeMap;

use kvscatter::ElementType;
use rand_core::SeedableRng;
use rand_pcg::Pcg64Mcg;

use crate::eval::{Evaluator, Op, TensorType, Types};
use crate::{Data, Dimension, Error, Model, Tensor, ValueInfo, storage_len};

mod indices;
mod values;

/// How much [`inputs`] allocates at most: 16 GiB.
pub const DEFAULT_MEMORY_LIMIT: usize = 16 << 30;

/// Values for every graph input that has no initializer, by name.
///
/// `dims` gives the size of every symbolic dimension, by its name, and of every dimension of which nothing is
/// declared, as `input[axis]`. Equal arguments give equal values, on every machine and in every version of one
/// major number.
///
/// Floats are finite, between 0.25 and 4 in magnitude, and short in decimal; integers are any bit pattern; strings
/// are short words. Integers that reach a `write_indices`, directly, through `Identity` or through `Add`, are such
/// that every write is valid: anywhere in a ring, anywhere the update fits otherwise.
///
/// # Errors
/// [`Error::ShapeUnknown`], [`Error::DimMissing`], [`Error::DimUnused`], [`Error::NoValidIndices`],
/// [`Error::MemoryLimit`], and those of [`Evaluator::new`] and [`Evaluator::run`] about types and shapes.
pub fn inputs(
    model: &Model,
    dims: &BTreeMap<String, usize>,
    seed: u64,
) -> Result<BTreeMap<String, Tensor>, Error> {
    inputs_within(&Evaluator::new(model)?, dims, seed, DEFAULT_MEMORY_LIMIT)
}

/// [`inputs`] for an evaluator that is there already, allocating no more than `limit` bytes.
///
/// # Errors
/// As [`inputs`].
pub fn inputs_within(
    evaluator: &Evaluator<'_>,
    dims: &BTreeMap<String, usize>,
    seed: u64,
    limit: usize,
) -> Result<BTreeMap<String, Tensor>, Error> {
    let fed = resolve(evaluator, dims)?;
    let types = evaluator.infer(&fed)?;
    let ranges = indices::ranges(evaluator, &types)?;
    let mut random = Pcg64Mcg::seed_from_u64(seed);
    let mut left = limit;
    let mut inputs = BTreeMap::new();
    for (name, ty) in fed {
        let len = storage_len(ty.element, &ty.shape)?;
        let bytes = match ty.element {
            ElementType::String => len.saturating_mul(values::STRING_FOOTPRINT),
            _ => len,
        };
        left = left.checked_sub(bytes).ok_or(Error::MemoryLimit { limit })?;
        let data = match ranges.get(name) {
            Some(range) => Data::Bytes(values::int64s_within(range, len, &mut random)),
            None => values::any(ty.element, len, &mut random),
        };
        inputs.insert(name.to_owned(), Tensor::new(ty.element, ty.shape.to_vec(), data)?);
    }
    Ok(inputs)
}

/// The type of every input that must be fed.
fn resolve<'m>(
    evaluator: &Evaluator<'m>,
    dims: &BTreeMap<String, usize>,
) -> Result<BTreeMap<&'m str, TensorType>, Error> {
    let mut unused: std::collections::BTreeSet<&str> = dims.keys().map(String::as_str).collect();
    let mut fed = BTreeMap::new();
    for input in evaluator.required_inputs() {
        let shape =
            input.shape.as_ref().ok_or_else(|| Error::ShapeUnknown { name: input.name.to_owned() })?;
        let mut sizes = Vec::with_capacity(shape.len());
        for (axis, dim) in shape.iter().enumerate() {
            sizes.push(size(input, axis, dim, dims, &mut unused)?);
        }
        let ty = TensorType { element: input.element, shape: sizes.into() };
        fed.insert(input.name, ty);
    }
    match unused.first() {
        Some(&dim) => Err(Error::DimUnused { dim: dim.to_owned() }),
        None => Ok(fed),
    }
}

fn size<'d>(
    input: &ValueInfo<'_>,
    axis: usize,
    dim: &Dimension<'_>,
    dims: &'d BTreeMap<String, usize>,
    unused: &mut std::collections::BTreeSet<&'d str>,
) -> Result<usize, Error> {
    let key = match *dim {
        Dimension::Known(size) => return Ok(size),
        Dimension::Symbolic(_) | Dimension::Unknown => input.dim_key(axis).unwrap_or_default(),
    };
    let Some((given, &size)) = dims.get_key_value(&key) else {
        return Err(Error::DimMissing { name: input.name.to_owned(), dim: key });
    };
    unused.remove(given.as_str());
    Ok(size)
}
