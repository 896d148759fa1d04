//! The heads of queries, keys and values.

use std::borrow::Cow;

use crate::OnnxError;
use crate::fold::call::Call;
use crate::fold::shapes::{strides, walk};
use crate::fold::values::Uncomputed;
use crate::fold::{FoldError, Value};

/// The dimensions of queries, keys or values.
#[derive(Clone, Copy, Debug)]
pub(super) struct Heads {
    pub(super) batch: usize,
    pub(super) heads: usize,
    pub(super) length: usize,
    pub(super) size: usize,
}

/// One row of queries, keys or values.
#[derive(Clone, Copy)]
pub(super) struct Place {
    pub(super) batch: usize,
    pub(super) head: usize,
    pub(super) token: usize,
}

/// The elements of queries, keys or values, `[batch, heads, length, size]`.
#[derive(Clone, Debug)]
pub(super) struct Rows<'a> {
    pub(super) heads: Heads,
    pub(super) elements: Cow<'a, [f64]>,
}

impl Heads {
    /// Reads a shape `[batch, heads, length, size]`, or `[batch, length, heads * size]` with the number of
    /// heads in an attribute.
    pub(super) fn new(call: &Call<'_>, index: usize, count: &'static str) -> Result<Self, OnnxError> {
        match *call.input(index)?.shape.as_slice() {
            [batch, heads, length, size] => Ok(Self { batch, heads, length, size }),
            [batch, length, hidden] => {
                let heads = head_count(call, count)?;
                let size = share(call, index, hidden, heads)?;
                Ok(Self { batch, heads, length, size })
            }
            _ => Err(call.bad_shape(index, "rank 3 or 4")),
        }
    }

    /// Returns the shape `[batch, heads, length, size]`.
    pub(super) fn shape(self) -> [usize; 4] {
        [self.batch, self.heads, self.length, self.size]
    }

    /// Returns the place of every row, in the order of the elements.
    pub(super) fn places(self) -> impl Iterator<Item = Place> {
        (0..self.batch).flat_map(move |batch| {
            (0..self.heads)
                .flat_map(move |head| (0..self.length).map(move |token| Place { batch, head, token }))
        })
    }
}

impl<'a> Rows<'a> {
    /// Reads the elements of a value that is `[batch, heads, length, size]` or `[batch, length, heads *
    /// size]`.
    pub(super) fn read(value: &'a Value, heads: Heads) -> Result<Self, Uncomputed> {
        let elements = value.known_floats()?;
        let elements = match value.rank() {
            3 => Cow::Owned(turned(elements, [heads.batch, heads.length, heads.heads, heads.size])),
            _ => Cow::Borrowed(elements),
        };
        Ok(Self { heads, elements })
    }

    /// Creates rows whose elements `row` returns.
    pub(super) fn make<I: IntoIterator<Item = f64>>(heads: Heads, row: impl Fn(Place) -> I) -> Self {
        Self { heads, elements: heads.places().flat_map(row).collect() }
    }

    /// Returns one row, or an empty one if it does not exist.
    pub(super) fn at(&self, Place { batch, head, token }: Place) -> &[f64] {
        let Heads { heads, length, size, .. } = self.heads;
        let row =
            batch.saturating_mul(heads).saturating_add(head).saturating_mul(length).saturating_add(token);
        let start = row.saturating_mul(size);
        self.elements.get(start..start.saturating_add(size)).unwrap_or_default()
    }

    /// Returns the rows of a past of this length followed by these.
    pub(super) fn after(self, past: Option<&'a Value>, length: usize) -> Result<Self, Uncomputed> {
        let Some(past) = past else { return Ok(self) };
        let past = Rows::read(past, Heads { length, ..self.heads })?;
        let heads = Heads { length: length.saturating_add(self.heads.length), ..self.heads };
        let row = |at: Place| match at.token.checked_sub(length) {
            None => past.at(at),
            Some(token) => self.at(Place { token, ..at }),
        };
        Ok(Self::make(heads, |at| row(at).iter().copied()))
    }

    /// Returns the elements in the layout of a value of rank 3 or 4, as [`read`](Self::read) reads them.
    pub(super) fn like(self, value: &Value) -> Vec<f64> {
        if value.rank() == 3 { self.by_token() } else { self.elements.into_owned() }
    }

    /// Returns the elements as `[batch, length, heads * size]`.
    pub(super) fn by_token(&self) -> Vec<f64> {
        turned(&self.elements, self.heads.shape())
    }
}

/// Exchanges the axes 1 and 2 of `[a, b, c, d]`.
fn turned(values: &[f64], [a, b, c, d]: [usize; 4]) -> Vec<f64> {
    let [step_a, step_b, step_c, step_d] = match *strides(&[a, b, c, d]) {
        [a, b, c, d] => [a, b, c, d],
        _ => [0; 4],
    };
    let positions = walk(&[a, c, b, d], 0, &[step_a, step_c, step_b, step_d]);
    positions.into_iter().filter_map(|at| values.get(at).copied()).collect()
}

/// Returns the number of rows of a past, or 0 without a past.
pub(super) fn past_length(call: &Call<'_>, index: usize) -> Result<usize, OnnxError> {
    match call.optional(index).map(|past| past.shape.as_slice()) {
        None => Ok(0),
        Some(&[_, _, length, _]) => Ok(length),
        Some(_) => Err(call.bad_shape(index, "rank 4")),
    }
}

/// Returns a number of heads, which must be an attribute greater than 0.
pub(super) fn head_count(call: &Call<'_>, name: &'static str) -> Result<usize, OnnxError> {
    let count = call.int(name, 0)?;
    let positive = usize::try_from(count).ok().filter(|&count| count > 0);
    positive.ok_or_else(|| FoldError::AttributeValue { name, value: count.to_string() }.into())
}

/// Returns the part of the last axis that belongs to each head.
pub(super) fn share(call: &Call<'_>, index: usize, hidden: usize, heads: usize) -> Result<usize, OnnxError> {
    let is_even = hidden.checked_rem(heads) == Some(0);
    let share = hidden.checked_div(heads).filter(|_| is_even);
    share.ok_or_else(|| call.bad_shape(index, "a last axis that its heads share"))
}
