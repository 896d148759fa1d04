//! Converts the tensors of a specification to the operands of a geometry, by giving each dimension a role.

use alloc::vec::Vec;

use crate::argument::{Argument, ArgumentNames};
use crate::element::ElementType;
use crate::error::{Error, SequenceHint};
use crate::geometry::{ByTensor, Dim, Operands, UpdateBatch, View};

/// Pairs two tensors of the same rank that differ only in the batch and in the sequence. The sequence is the
/// dimension `axis`.
///
/// # Errors
/// * Returns [`Error::RankMismatch`] if the ranks differ.
/// * Returns [`Error::DimensionMismatch`] for the first other dimension that differs. The error has a hint if
///   that dimension seems to be the sequence.
pub(super) fn padded<'a>(
    names: &'static ArgumentNames,
    element: ElementType,
    cache: &'a View,
    update: &'a View,
    axis: usize,
) -> Result<Operands<'a>, Error> {
    let (argument, ranks) = (names.update, (cache.dims().len(), update.dims().len()));
    let mismatch = Error::RankMismatch { argument, cache: ranks.0, update: ranks.1 };
    if ranks.0 != ranks.1 {
        return Err(mismatch);
    }
    let roles = Roles::new(cache.dims(), axis).zip(Roles::new(update.dims(), axis));
    let (of_cache, of_update) = roles.ok_or(mismatch)?;
    let pair = |first, of_cache, of_update| {
        let pairs = pair_dimensions(argument, first, of_cache, of_update);
        pairs.map_err(|error| with_hint(error, names.axis, [cache.dims(), update.dims()], axis))
    };
    Ok(Operands {
        names,
        element,
        cache,
        update,
        layers: Dim::ONE,
        batch: ByTensor { cache: of_cache.sample, update: UpdateBatch::Padded(of_update.sample) },
        rows: ByTensor { cache: of_cache.rows, update: of_update.rows },
        outer: pair(1, of_cache.outer, of_update.outer)?,
        inner: pair(axis.saturating_add(1), of_cache.inner, of_update.inner)?,
    })
}

/// Adds a hint to a dimension mismatch, if the two shapes suggest one. `attribute` chooses the axis, if the
/// operator has such an attribute.
///
/// The usual cause is a tensor with the order `[batch, sequence, heads, head_size]`. If both tensors have
/// that order, all other dimensions agree. If only one of them has it, the update fits after two of its
/// dimensions are exchanged.
fn with_hint(error: Error, attribute: Option<Argument>, [cache, update]: [&[Dim]; 2], axis: usize) -> Error {
    let Error::DimensionMismatch { argument, dimension, expected, got, .. } = error else { return error };
    let fit = |sequence: usize, update: &[Dim]| {
        let mut pairs = cache.iter().zip(update).enumerate().skip(1);
        pairs.all(
            |(at, (cache, update))| {
                if at == sequence { update.size <= cache.size } else { update.size == cache.size }
            },
        )
    };
    let exchanged = || {
        let mut update = update.to_vec();
        update.swap(axis, dimension);
        update
    };
    let hint = if fit(dimension, update) {
        Some(if attribute.is_some() { SequenceHint::SetAxis } else { SequenceHint::GiveStrides })
    } else if fit(axis, &exchanged()) || fit(dimension, &exchanged()) {
        Some(SequenceHint::GiveStrides)
    } else {
        None
    };
    Error::DimensionMismatch { argument, dimension, expected, got, hint }
}

/// Returns a dimension of a tensor of this rank, counted from the front. A negative `axis` counts from the end.
///
/// # Errors
/// * Returns [`Error::AxisOutOfRange`] if the axis lies outside `[-rank, rank)`.
/// * Returns [`Error::AxisIsBatch`] if the axis is 0 or `-rank`.
pub(super) fn axis_from_front(axis: i64, rank: usize) -> Result<usize, Error> {
    let from_front = match usize::try_from(axis) {
        Ok(axis) => Some(axis),
        Err(_) => axis.checked_neg().and_then(|back| rank.checked_sub(usize::try_from(back).ok()?)),
    };
    match from_front {
        Some(0) => Err(Error::AxisIsBatch { axis, rank }),
        Some(axis) if axis < rank => Ok(axis),
        _ => Err(Error::AxisOutOfRange { axis, rank }),
    }
}

/// Checks that an operator accepts this element type.
///
/// # Errors
/// Returns [`Error::ElementType`] if the operator does not accept it.
pub(super) fn check_accepted(
    argument: Argument,
    element: ElementType,
    accepted: &'static [ElementType],
) -> Result<(), Error> {
    if accepted.contains(&element) { Ok(()) } else { Err(Error::ElementType { argument, element, accepted }) }
}

/// Checks that the cache and another tensor have the same element type, and returns the type. `argument` is
/// the other tensor.
///
/// # Errors
/// Returns [`Error::ElementTypeMismatch`] if the types differ.
pub fn same_element_type(
    cache: ElementType,
    argument: Argument,
    element: ElementType,
) -> Result<ElementType, Error> {
    if cache == element { Ok(cache) } else { Err(Error::ElementTypeMismatch { cache, argument, element }) }
}

/// The dimensions of a tensor by their roles. The sequence is the dimension `axis`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Roles<'a> {
    pub(super) sample: Dim,
    pub(super) outer: &'a [Dim],
    pub(super) rows: Dim,
    pub(super) inner: &'a [Dim],
}

impl<'a> Roles<'a> {
    /// Assigns the roles. Returns `None` if `axis` is 0 or not a dimension.
    pub(super) fn new(dims: &'a [Dim], axis: usize) -> Option<Self> {
        let ([sample, outer @ ..], [rows, inner @ ..]) = dims.split_at_checked(axis)? else {
            return None;
        };
        Some(Self { sample: *sample, outer, rows: *rows, inner })
    }
}

/// Pairs the dimensions of the cache and the update that must agree.
///
/// `first` is the index of the first pair in the shape of the update.
///
/// # Errors
/// Returns [`Error::DimensionMismatch`] for the first pair whose sizes differ.
pub(super) fn pair_dimensions(
    argument: Argument,
    first: usize,
    cache: &[Dim],
    update: &[Dim],
) -> Result<Vec<ByTensor>, Error> {
    let pairs = cache.iter().zip(update).map(|(&cache, &update)| ByTensor { cache, update });
    for (dimension, pair) in (first..).zip(pairs.clone()) {
        let (expected, got) = (pair.cache.size, pair.update.size);
        if expected != got {
            return Err(Error::DimensionMismatch { argument, dimension, expected, got, hint: None });
        }
    }
    Ok(pairs.collect())
}
