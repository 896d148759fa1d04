//! The sizes of new rows, and where a tensor has each row.

use kvscatter::ElementType;

use crate::input::Role;
use crate::status::CallError;

/// The sizes of new rows, whose product of sizes fits `isize` in elements of 8 bytes.
#[derive(Clone, Copy)]
pub(super) struct Heads {
    pub(super) batch: usize,
    pub(super) heads: usize,
    pub(super) tokens: usize,
    pub(super) size: usize,
    pub(super) is_by_token: bool,
    /// The number of the first head among all heads of the tensor.
    pub(super) first: usize,
    pub(super) all: usize,
}

/// A sample, a token and a head.
pub(super) type Place = [usize; 3];

impl Heads {
    /// Returns the sizes of the rows of a tensor of rank 4. If it is split along the heads, `part` has the sizes of all
    /// parts, and the number of the one that these rows are. Returns an error for another rank, a tensor that is too
    /// large, and parts that do not add up to its heads.
    pub(super) fn new(
        shape: &[i64],
        is_by_token: bool,
        part: Option<(&[i64], usize)>,
        role: impl Role,
    ) -> Result<Self, CallError> {
        let sizes: Result<Vec<_>, _> = shape.iter().map(|&size| usize::try_from(size)).collect();
        let Ok(&[batch, one, two, size]) = sizes.as_deref() else {
            return Err(role.failure(format!("has shape {shape:?}, must have rank 4")));
        };
        if ElementType::Float64.storage_len(&[batch, one, two, size]).is_none() {
            return Err(role.failure(format!("has shape {shape:?}, which is too large")));
        }
        let (all, tokens) = if is_by_token { (two, one) } else { (one, two) };
        let mut rows = Self { batch, heads: all, tokens, size, is_by_token, first: 0, all };
        if let Some((parts, number)) = part {
            let parts: Result<Vec<_>, _> = parts.iter().map(|&part| usize::try_from(part)).collect();
            let parts = parts.unwrap_or_default();
            let sum = parts.iter().try_fold(0, |sum: usize, part| sum.checked_add(*part));
            let (true, 3, Some(&part)) = (sum == Some(all), parts.len(), parts.get(number)) else {
                return Err(CallError::fail(format!(
                    "Split: {parts:?} must be three sizes that add up to {all}"
                )));
            };
            (rows.heads, rows.first) = (part, parts.iter().take(number).sum());
        }
        Ok(rows)
    }

    /// Returns the sizes of the output of attention to these queries.
    pub(super) fn output(self, size: usize, is_by_token: bool) -> Self {
        Self { size, is_by_token, first: 0, all: self.heads, ..self }
    }

    pub(super) fn len(&self) -> usize {
        self.batch * self.heads * self.tokens * self.size
    }

    pub(super) fn shape(&self) -> [i64; 4] {
        let (one, two) = if self.is_by_token { (self.tokens, self.heads) } else { (self.heads, self.tokens) };
        [self.batch, one, two, self.size].map(|size| size as i64)
    }

    /// Returns whether the rows have the order of a tensor of these heads alone, after the element `first_element`.
    pub(super) fn keeps_order(&self, by_token: bool) -> bool {
        let is_whole = self.heads == self.all || self.batch * self.tokens == 1;
        is_whole && (self.is_by_token == by_token || self.tokens == 1 || self.heads == 1)
    }

    /// Returns the index of the first element of the tensor that belongs to these heads.
    pub(super) fn first_element(&self) -> usize {
        self.first * self.size
    }

    /// Returns the index of the first element of a row in the tensor.
    pub(super) fn source(&self, place: Place) -> usize {
        let whole = Self { heads: self.all, ..*self };
        self.first_element() + whole.dense(self.is_by_token, place)
    }

    /// Returns the index of the first element of a row in a tensor of these heads alone.
    pub(super) fn dense(&self, by_token: bool, [sample, token, head]: Place) -> usize {
        let row = match by_token {
            true => (sample * self.tokens + token) * self.heads + head,
            false => (sample * self.heads + head) * self.tokens + token,
        };
        row * self.size
    }

    /// Returns the places of all rows, token after token.
    pub(super) fn places(self) -> impl Iterator<Item = Place> {
        let tokens =
            (0..self.batch).flat_map(move |sample| (0..self.tokens).map(move |token| [sample, token]));
        tokens.flat_map(move |[sample, token]| (0..self.heads).map(move |head| [sample, token, head]))
    }
}

/// Returns the shape that `Reshape` gives to a tensor.
pub(super) fn reshaped(shape: &[i64], from: &[i64]) -> Result<Vec<i64>, CallError> {
    let refused =
        || CallError::fail(format!("Reshape: a tensor of shape {from:?} cannot have shape {shape:?}"));
    let product = |dims: &[i64]| dims.iter().try_fold(1_i64, |product, &dim| product.checked_mul(dim));
    let all = product(from).ok_or_else(refused)?;
    let kept = |(index, &dim): (usize, &i64)| if dim == 0 { from.get(index).copied() } else { Some(dim) };
    let mut dims = shape.iter().enumerate().map(kept).collect::<Option<Vec<_>>>().ok_or_else(refused)?;
    if let Some(index) = dims.iter().position(|&dim| dim == -1) {
        dims[index] = 1;
        let rest = product(&dims).ok_or_else(refused)?;
        dims[index] = all.checked_div(rest).ok_or_else(refused)?;
    }
    if dims.iter().any(|&dim| dim < 0) || product(&dims) != Some(all) {
        return Err(refused());
    }
    Ok(dims)
}

#[cfg(test)]
mod tests {
    use super::reshaped;

    #[test]
    fn shapes_are_those_of_reshape() {
        for (shape, from, expected) in [
            (&[0, 0, 15, 64][..], &[2, 3, 960][..], Some(&[2, 3, 15, 64][..])),
            (&[0, 0, 576], &[2, 3, 9, 64], Some(&[2, 3, 576])),
            (&[-1, 0, 576], &[2, 3, 9, 64], Some(&[2, 3, 576])),
            (&[0, 0, 15, 64], &[2, 3, 961], None),
            (&[0, 0, 0, 0], &[2, 3, 960], None),
            (&[-1, -1, 960], &[2, 3, 960], None),
            (&[-1, 7], &[2, 3, 960], None),
            (&[-2, 3, 960], &[2, 3, 960], None),
            (&[-1, 0], &[2, 0], None),
            (&[i64::MAX, i64::MAX], &[2, 3], None),
        ] {
            assert_eq!(reshaped(shape, from).ok().as_deref(), expected, "{shape:?} {from:?}");
        }
    }
}
