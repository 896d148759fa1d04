//! The types and shapes of all values. They are known before anything is computed.

use std::collections::BTreeMap;
use std::rc::Rc;

use kvscatter::spec::PartialTensor;
use kvscatter::{ElementType, Prepared};

use super::op::Op;
use crate::{Dimension, EvalError, GraphError, OnnxError, Tensor, ValueInfo, storage_len};

/// The maximum rank of a value, the same as NumPy's.
pub const MAX_RANK: usize = 64;

/// Checks that tensors match the declarations of a graph's inputs or outputs, as an [`Evaluator`](super::Evaluator)
/// does. A symbolic dimension must have one size in all of them.
///
/// # Errors
/// Returns [`EvalError::ValueType`], [`EvalError::ValueRank`], [`EvalError::ValueDim`] or
/// [`EvalError::SymbolConflict`] for the first tensor that does not match.
pub fn check_declared<'a, 'm: 'a>(
    values: impl IntoIterator<Item = (&'a ValueInfo<'m>, &'a Tensor)>,
) -> Result<(), OnnxError> {
    let mut bindings = Bindings::default();
    for (declared, tensor) in values {
        bindings.check(declared, &TensorType::from_tensor(tensor))?;
    }
    Ok(())
}

/// A type and a shape whose size fits a buffer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TensorType {
    pub(crate) element: ElementType,
    pub(crate) shape: Rc<[usize]>,
}

/// The type of every value, and the part of every `TensorScatter` that depends only on shapes, by the name of
/// its output.
#[derive(Debug, Default)]
pub(crate) struct Types<'m> {
    values: BTreeMap<&'m str, TensorType>,
    prepared: BTreeMap<&'m str, Prepared>,
}

/// The sizes of symbolic dimensions.
#[derive(Debug, Default)]
pub(crate) struct Bindings<'m>(BTreeMap<&'m str, usize>);

impl TensorType {
    pub(crate) fn from_tensor(tensor: &Tensor) -> Self {
        Self { element: tensor.element(), shape: tensor.shape().into() }
    }

    fn dimensions(&self) -> Vec<Dimension<'static>> {
        self.shape.iter().map(|&size| Dimension::Known(size)).collect()
    }

    fn inferred<'a>(&self, dimensions: &'a [Dimension<'a>]) -> PartialTensor<'a> {
        PartialTensor { element: Some(self.element), shape: Some(dimensions) }
    }
}

impl<'m> Types<'m> {
    pub(crate) fn get(&self, name: &str) -> Option<&TensorType> {
        self.values.get(name)
    }

    /// Returns the part of a `TensorScatter` that depends only on shapes.
    pub(crate) fn prepared(&self, present_cache: &str) -> Result<&Prepared, GraphError> {
        self.prepared.get(present_cache).ok_or_else(|| missing(present_cache))
    }

    pub(crate) fn add_value(&mut self, name: &'m str, ty: TensorType) -> Result<(), OnnxError> {
        let rank = ty.shape.len();
        if rank > MAX_RANK {
            return Err(EvalError::RankTooLarge { name: name.to_owned(), rank, limit: MAX_RANK }.into());
        }
        self.values.insert(name, ty);
        Ok(())
    }

    pub(crate) fn add_node(&mut self, op: &Op<'m>) -> Result<(), OnnxError> {
        let ty = match *op {
            Op::Constant { .. } => return Ok(()),
            Op::Identity { input, .. } => self.value(input)?.clone(),
            Op::Add { left, right, .. } => sum(self.value(left)?, self.value(right)?)?,
            Op::TensorScatter { op, past_cache, update, write_indices, present_cache, .. } => {
                let (past, update) = (self.value(past_cache)?, self.value(update)?);
                let indices = write_indices.map(|name| self.value(name)).transpose()?;
                let (past_dims, update_dims) = (past.dimensions(), update.dimensions());
                let indices = indices.map(|ty| (ty, ty.dimensions()));
                op.infer(
                    past.inferred(&past_dims),
                    update.inferred(&update_dims),
                    indices.as_ref().map(|(ty, dims)| ty.inferred(dims)),
                )?;
                let prepared = op.prepare(past.element, &*past.shape, &*update.shape)?;
                let ty = past.clone();
                self.prepared.insert(present_cache, prepared);
                ty
            }
        };
        self.add_value(op.output(), ty)
    }

    /// Returns the type of a value that a node reads, which is known because the nodes of a graph are in
    /// order.
    pub(super) fn value(&self, name: &str) -> Result<&TensorType, GraphError> {
        self.get(name).ok_or_else(|| missing(name))
    }
}

pub(super) fn missing(name: &str) -> GraphError {
    GraphError::ValueMissing { name: name.to_owned() }
}

impl<'m> Bindings<'m> {
    /// Checks that a value matches its declaration, and that its symbolic dimensions have the same sizes as
    /// elsewhere.
    pub(crate) fn check(&mut self, declared: &ValueInfo<'m>, ty: &TensorType) -> Result<(), EvalError> {
        let name = || declared.name.to_owned();
        if declared.element != ty.element {
            return Err(EvalError::ValueType { name: name(), expected: declared.element, got: ty.element });
        }
        let Some(dims) = &declared.shape else {
            return Ok(());
        };
        if dims.len() != ty.shape.len() {
            return Err(EvalError::ValueRank { name: name(), expected: dims.len(), got: ty.shape.len() });
        }
        for (axis, (dim, &got)) in dims.iter().zip(ty.shape.iter()).enumerate() {
            match *dim {
                Dimension::Known(expected) if expected != got => {
                    return Err(EvalError::ValueDim { name: name(), axis, expected, got });
                }
                Dimension::Symbolic(symbol) => {
                    let expected = *self.0.entry(symbol).or_insert(got);
                    if expected != got {
                        return Err(EvalError::SymbolConflict {
                            name: name(),
                            axis,
                            symbol: symbol.to_owned(),
                            expected,
                            got,
                        });
                    }
                }
                Dimension::Known(_) | Dimension::Unknown => {}
            }
        }
        Ok(())
    }
}

/// Returns the type of a sum. Both operands must be integers of one type, and shapes broadcast as in NumPy.
fn sum(left: &TensorType, right: &TensorType) -> Result<TensorType, OnnxError> {
    if left.element != right.element {
        return Err(EvalError::AddTypes { left: left.element, right: right.element }.into());
    }
    if !is_integer(left.element) {
        return Err(EvalError::AddType { element: left.element }.into());
    }
    let shape: Rc<[usize]> = broadcast(&left.shape, &right.shape)?.into();
    storage_len(left.element, &shape)?;
    Ok(TensorType { element: left.element, shape })
}

/// Returns the shape that two shapes broadcast to, as in NumPy.
///
/// # Errors
/// Returns [`EvalError::Broadcast`] if two dimensions differ and neither is 1.
pub(crate) fn broadcast(left: &[usize], right: &[usize]) -> Result<Vec<usize>, EvalError> {
    let rank = left.len().max(right.len());
    let dim = |(left_dim, right_dim)| match (left_dim, right_dim) {
        (1, dim) | (dim, 1) => Ok(dim),
        (left_dim, right_dim) if left_dim == right_dim => Ok(left_dim),
        _ => Err(EvalError::Broadcast { left: left.to_vec(), right: right.to_vec() }),
    };
    aligned(left, rank).zip(aligned(right, rank)).map(dim).collect()
}

fn aligned(shape: &[usize], rank: usize) -> impl Iterator<Item = usize> {
    std::iter::repeat_n(1, rank.saturating_sub(shape.len())).chain(shape.iter().copied())
}

fn is_integer(element: ElementType) -> bool {
    use ElementType::{Int8, Int16, Int32, Int64, UInt8, UInt16, UInt32, UInt64};
    matches!(element, Int8 | Int16 | Int32 | Int64 | UInt8 | UInt16 | UInt32 | UInt64)
}
