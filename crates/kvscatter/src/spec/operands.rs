//! From tensors of a specification to the operands of a geometry: which dimension has which role.

use alloc::vec::Vec;

use crate::argument::{Argument, ArgumentNames};
use crate::element::ElementType;
use crate::error::Error;
use crate::geometry::{ByTensor, Dim, Operands, View};

/// Two tensors of one rank that differ only in the batch and in the sequence, the dimension at `axis`.
///
/// # Errors
/// [`Error::RankMismatch`]; [`Error::DimensionMismatch`] at the first other dimension that differs.
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
    let roles = Roles::of(cache.dims(), axis).zip(Roles::of(update.dims(), axis));
    let (of_cache, of_update) = roles.ok_or(mismatch)?;
    Ok(Operands {
        names,
        element,
        cache,
        update,
        layers: Dim::ONE,
        batch: ByTensor { cache: of_cache.sample, update: Some(of_update.sample) },
        rows: ByTensor { cache: of_cache.rows, update: of_update.rows },
        outer: pair_dimensions(argument, 1, of_cache.outer, of_update.outer)?,
        inner: pair_dimensions(argument, axis.saturating_add(1), of_cache.inner, of_update.inner)?,
    })
}

/// The dimensions of a tensor by their roles. The sequence is the one at `axis`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Roles<'a> {
    pub(super) sample: Dim,
    pub(super) outer: &'a [Dim],
    pub(super) rows: Dim,
    pub(super) inner: &'a [Dim],
}

impl<'a> Roles<'a> {
    /// `None` if `axis` is 0 or not a dimension.
    pub(super) fn of(dims: &'a [Dim], axis: usize) -> Option<Self> {
        let ([sample, outer @ ..], [rows, inner @ ..]) = dims.split_at_checked(axis)? else {
            return None;
        };
        Some(Self { sample: *sample, outer, rows: *rows, inner })
    }
}

/// The dimensions of cache and update that must agree, paired.
///
/// # Errors
/// [`Error::DimensionMismatch`] at the first that does not agree; `first` is the place of the first pair in the update's
/// shape.
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
            return Err(Error::DimensionMismatch { argument, dimension, expected, got });
        }
    }
    Ok(pairs.collect())
}
