//! Generates random inputs for a model. They are reproducible from a seed and always valid.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;

use kvscatter::ElementType;
use rand_core::SeedableRng;
use rand_pcg::Pcg64Mcg;

pub use crate::dynamic_dim::DynamicDim;
use crate::eval::{Evaluator, Op, TensorType, Types, bytes};
use crate::{Data, Dimension, EvalError, Model, OnnxError, Tensor, ValueInfo, storage_len};

mod indices;
mod values;

/// Generates values for every graph input that has no initializer, by name.
///
/// `dims` contains the size of every open dimension under its [key](crate::ValueInfo::dim_key): its symbol,
/// or `input[axis]` if it has no symbol. Equal arguments give equal values on every machine and in all
/// versions with the same major number.
///
/// * Floats are finite, between 0.25 and 4 in magnitude, and short in decimal.
/// * Integers have any bit pattern.
/// * Strings are short words.
/// * Integers from which a `write_indices` is computed, directly or through `Identity` and `Add`, make every
///   write valid. In circular mode they may be any slot, and in linear mode any slot at which the update
///   fits.
///
/// # Errors
/// * Returns [`EvalError::ShapeUnknown`], [`EvalError::DimsMissing`], [`EvalError::DimUnused`],
///   [`EvalError::NoValidIndices`] or [`EvalError::MemoryLimit`] if no values can be generated.
/// * Returns the errors of [`Evaluator::new`] and [`Evaluator::run`] about types and shapes.
pub fn inputs(
    model: &Model,
    dims: &BTreeMap<String, usize>,
    seed: u64,
) -> Result<BTreeMap<String, Tensor>, OnnxError> {
    missing_inputs(&Evaluator::new(model)?, &BTreeMap::new(), dims, seed)
}

/// Generates values like [`inputs`] for the inputs of an existing evaluator that are not given.
///
/// The values are within the evaluator's [memory limit](Evaluator::memory_limit). Open dimensions have the
/// sizes that they have in the given tensors, so `dims` needs only the other sizes. If a given tensor is
/// added to a generated index, the sum is valid.
///
/// # Errors
/// * Returns the errors of [`inputs`].
/// * Returns [`EvalError::InputUnknown`] for a given tensor that is not an input.
/// * Returns [`EvalError::SymbolConflict`] if a given tensor has another size than `dims`.
pub fn missing_inputs(
    evaluator: &Evaluator<'_>,
    given: &BTreeMap<&str, &Tensor>,
    dims: &BTreeMap<String, usize>,
    seed: u64,
) -> Result<BTreeMap<String, Tensor>, OnnxError> {
    let missing = missing_types(evaluator, given, dims)?;
    let given_types = evaluator.inputs().iter().filter_map(|input| {
        let tensor = given.get(input.name)?;
        Some((input.name, TensorType::from_tensor(tensor)))
    });
    let fed = missing.iter().map(|(&name, ty)| (name, ty.clone())).chain(given_types).collect();
    let types = evaluator.infer(&fed)?;
    let ranges = indices::ranges(evaluator, &types, given)?;
    check_memory(missing.values().map(|ty| (ty.element, &*ty.shape)), evaluator.memory_limit)?;
    let mut random = Pcg64Mcg::seed_from_u64(seed);
    let mut inputs = BTreeMap::new();
    for (name, ty) in missing {
        let tensor = match ranges.get(name) {
            Some(range) => {
                let count = storage_len(ty.element, &ty.shape)?.div_euclid(8);
                let ints = values::int64s_within(range, count, &mut random);
                let data = Data::Bytes(ints.flat_map(i64::to_le_bytes).collect());
                Tensor::new(ty.element, ty.shape.to_vec(), data)?
            }
            None => any(ty.element, &ty.shape, &mut random)?,
        };
        inputs.insert(name.to_owned(), tensor);
    }
    Ok(inputs)
}

/// Generates tensors with any values, as [`inputs`] does. They are generated in the order of their names.
///
/// # Errors
/// * Returns [`EvalError::MemoryLimit`] if the tensors take more than `memory_limit` bytes.
/// * Returns [`TensorError`](crate::TensorError) for an impossible shape.
pub fn tensors(
    types: &BTreeMap<&str, (ElementType, Vec<usize>)>,
    seed: u64,
    memory_limit: u64,
) -> Result<BTreeMap<String, Tensor>, OnnxError> {
    check_memory(types.values().map(|(element, shape)| (*element, shape.as_slice())), memory_limit)?;
    let mut random = Pcg64Mcg::seed_from_u64(seed);
    let made = types
        .iter()
        .map(|(&name, (element, shape))| Ok((name.to_owned(), any(*element, shape, &mut random)?)));
    made.collect()
}

/// Generates integers within a range, which must not be empty.
#[must_use]
pub fn int64s(range: &RangeInclusive<i64>, count: usize, seed: u64) -> Vec<i64> {
    let mut random = Pcg64Mcg::seed_from_u64(seed);
    values::int64s_within(range, count, &mut random).collect()
}

/// Returns the shapes of the inputs that must be generated because they have no initializer and are not
/// given.
///
/// Open dimensions have the sizes that `dims` contains under their [keys](crate::ValueInfo::dim_key), or the
/// sizes that they have in the given tensors.
///
/// # Errors
/// * Returns [`EvalError::ShapeUnknown`] or [`EvalError::DimsMissing`] if a shape is not known.
/// * Returns [`EvalError::DimUnused`] if no input has a dimension for one of the sizes.
/// * Returns [`EvalError::InputUnknown`] or [`EvalError::SymbolConflict`] for a given tensor that does not
///   match.
pub fn missing_shapes<'m>(
    inputs: &[ValueInfo<'m>],
    is_made: impl Fn(&ValueInfo<'m>) -> bool,
    given: &BTreeMap<&str, &Tensor>,
    dims: &BTreeMap<String, usize>,
) -> Result<BTreeMap<&'m str, Vec<usize>>, OnnxError> {
    let sizes = sizes(inputs, given, dims)?;
    let mut unused: BTreeSet<&str> = dims.keys().map(String::as_str).collect();
    let mut open: Vec<DynamicDim> = Vec::new();
    let mut seen = BTreeSet::new();
    let mut shapes = BTreeMap::new();
    for input in inputs {
        let is_made = is_made(input) && !given.contains_key(input.name);
        let Some(shape) = &input.shape else {
            match is_made {
                true => return Err(EvalError::ShapeUnknown { name: input.name.to_owned() }.into()),
                false => continue,
            }
        };
        let mut known = Vec::with_capacity(shape.len());
        for (axis, dim) in shape.iter().enumerate() {
            match (*dim, input.dim_key(axis)) {
                (Dimension::Known(size), _) => known.push(size),
                (_, Some(dim)) => {
                    unused.remove(dim.as_str());
                    match sizes.get(&dim) {
                        Some(&size) => known.push(size),
                        None if is_made && seen.insert(dim.clone()) => {
                            open.push(DynamicDim { dim, input: input.name.to_owned() });
                        }
                        None => {}
                    }
                }
                (_, None) => {}
            }
        }
        if is_made {
            shapes.insert(input.name, known);
        }
    }
    if !open.is_empty() {
        return Err(EvalError::DimsMissing { open }.into());
    }
    match unused.first() {
        Some(&dim) => Err(EvalError::DimUnused { dim: dim.to_owned() }.into()),
        None => Ok(shapes),
    }
}

/// Returns the type of every input that must be fed and has no value.
fn missing_types<'m>(
    evaluator: &Evaluator<'m>,
    given: &BTreeMap<&str, &Tensor>,
    dims: &BTreeMap<String, usize>,
) -> Result<BTreeMap<&'m str, TensorType>, OnnxError> {
    let required: BTreeSet<&str> = evaluator.required_inputs().map(|input| input.name).collect();
    let mut inputs = evaluator.inputs().to_vec();
    inputs.retain(|input| required.contains(input.name) || given.contains_key(input.name));
    let mut shapes = missing_shapes(&inputs, |_| true, given, dims)?;
    let typed = inputs.iter().filter_map(|input| {
        let shape = shapes.remove(input.name)?.into();
        Some((input.name, TensorType { element: input.element, shape }))
    });
    Ok(typed.collect())
}

/// Returns the sizes of open dimensions from `dims` and from the given tensors.
fn sizes(
    inputs: &[ValueInfo<'_>],
    given: &BTreeMap<&str, &Tensor>,
    dims: &BTreeMap<String, usize>,
) -> Result<BTreeMap<String, usize>, OnnxError> {
    let mut sizes = dims.clone();
    for (&name, tensor) in given {
        let input = inputs.iter().find(|input| input.name == name);
        let input = input.ok_or_else(|| EvalError::InputUnknown { name: name.to_owned() })?;
        for (axis, &got) in tensor.shape().iter().enumerate() {
            let Some(key) = input.dim_key(axis) else { continue };
            let expected = *sizes.entry(key.clone()).or_insert(got);
            if expected != got {
                return Err(EvalError::SymbolConflict {
                    name: name.to_owned(),
                    axis,
                    symbol: key,
                    expected,
                    got,
                }
                .into());
            }
        }
    }
    Ok(sizes)
}

fn check_memory<'a>(
    types: impl Iterator<Item = (ElementType, &'a [usize])>,
    limit: u64,
) -> Result<(), OnnxError> {
    let mut needed = 0_u64;
    for (element, shape) in types {
        let len = bytes(storage_len(element, shape)?);
        let footprint = if element == ElementType::String { values::STRING_FOOTPRINT } else { 1 };
        needed = needed.saturating_add(len.saturating_mul(footprint));
    }
    if needed > limit { Err(EvalError::MemoryLimit { needed, limit }.into()) } else { Ok(()) }
}

fn any(element: ElementType, shape: &[usize], random: &mut Pcg64Mcg) -> Result<Tensor, OnnxError> {
    let data = values::any(element, storage_len(element, shape)?, random);
    Ok(Tensor::new(element, shape.to_vec(), data)?)
}
