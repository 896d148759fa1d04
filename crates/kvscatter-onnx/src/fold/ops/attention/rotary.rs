//! Rotary position embeddings.

use super::heads::{Heads, Rows, head_count, share};
use crate::OnnxError;
use crate::fold::call::{Call, Outputs};
use crate::fold::shapes::{signed, spread};
use crate::fold::{FoldError, Value, number};

/// Tables of cosines and sines, `[rows, columns]`. A column belongs to a pair of elements.
pub(super) struct Rotation<'a> {
    pub(super) cos: &'a [f64],
    pub(super) sin: &'a [f64],
    pub(super) columns: usize,
    /// Whether the elements of a pair are neighbours. Otherwise they are half of the rotated elements apart.
    pub(super) is_interleaved: bool,
}

impl Rotation<'_> {
    /// Rotates the first elements of a row by one row of the tables. Each pair `(a, b)` becomes
    /// `(a cos - b sin, a sin + b cos)`.
    ///
    /// # Errors
    /// Returns [`FoldError::Index`] if the tables have no such row.
    pub(super) fn turn(&self, values: &[f64], row: i64) -> Result<Vec<f64>, OnnxError> {
        let columns = self.columns;
        let rows = self.cos.len().checked_div(columns).unwrap_or_default();
        let outside = || FoldError::Index { index: row, limit: rows };
        let row_at = usize::try_from(row).ok().filter(|&row| row < rows).ok_or_else(outside)?;
        let mut turned = values.to_vec();
        for column in 0..columns {
            let table_at = row_at.saturating_mul(columns).saturating_add(column);
            let (Some(&cos), Some(&sin)) = (self.cos.get(table_at), self.sin.get(table_at)) else {
                return Err(outside().into());
            };
            let (first, second) = match self.is_interleaved {
                true => (column.saturating_mul(2), column.saturating_mul(2).saturating_add(1)),
                false => (column, column.saturating_add(columns)),
            };
            let (Some(&a), Some(&b)) = (values.get(first), values.get(second)) else { continue };
            for (at, value) in [(first, a * cos - b * sin), (second, a * sin + b * cos)] {
                turned.get_mut(at).into_iter().for_each(|turned| *turned = value);
            }
        }
        Ok(turned)
    }

    /// Rotates every row by the row of the tables at the position of its sample and token.
    pub(super) fn turn_all(
        &self,
        rows: &Rows<'_>,
        position: impl Fn(usize, usize) -> i64,
    ) -> Result<Rows<'static>, OnnxError> {
        let mut elements = Vec::new();
        for place in rows.heads.places() {
            elements.extend(self.turn(rows.at(place), position(place.batch, place.token))?);
        }
        Ok(Rows { heads: rows.heads, elements: elements.into() })
    }
}

/// Evaluates ONNX `RotaryEmbedding`.
pub(in crate::fold::ops) fn rotary(call: &Call<'_>) -> Outputs {
    evaluate(call, [1, 2, 3], false)
}

/// Evaluates ONNX Runtime's `RotaryEmbedding`. A single position is that of the first token of every sample.
pub(in crate::fold::ops) fn microsoft_rotary(call: &Call<'_>) -> Outputs {
    evaluate(call, [2, 3, 1], true)
}

fn evaluate(call: &Call<'_>, [cos, sin, positions]: [usize; 3], is_microsoft: bool) -> Outputs {
    let input = call.input(0)?;
    call.mapped(input, |_| {
        let columns = call.input(cos)?.shape.last().copied().unwrap_or_default();
        let (cos, sin) = (call.input(cos)?.known_floats()?, call.input(sin)?.known_floats()?);
        let heads = heads(call, columns)?;
        let rows = Rows::read(input, heads)?;
        let table = Rotation { cos, sin, columns, is_interleaved: call.flag("interleaved", false)? };
        let tokens = [heads.batch, heads.length];
        let places: Vec<i64> = match call.optional(positions) {
            // Without positions, the tables have one row for each token.
            None => (0..signed(heads.batch.saturating_mul(heads.length))).collect(),
            Some(positions) => match positions.known_ints()? {
                &[first] if is_microsoft && positions.rank() == 1 => {
                    let token = 0..signed(heads.length);
                    (0..heads.batch).flat_map(|_| token.clone().map(|it| first.saturating_add(it))).collect()
                }
                known => {
                    let at = spread(&positions.shape, &tokens);
                    at.into_iter().filter_map(|at| known.get(at).copied()).collect()
                }
            },
        };
        let position = |sample: usize, token: usize| {
            let at = sample.saturating_mul(heads.length).saturating_add(token);
            places.get(at).copied().unwrap_or(-1)
        };
        let scale = if is_microsoft { call.float("scale", 1.0)? } else { 1.0 };
        let turned = table.turn_all(&rows, position)?.like(input);
        Ok(number::rounded(input.element, turned.into_iter().map(|it| it * scale)))
    })
}

/// Returns the heads of input 0. Without a number of heads, each head is as wide as the tables allow.
fn heads(call: &Call<'_>, columns: usize) -> Result<Heads, OnnxError> {
    let input: &Value = call.input(0)?;
    match *input.shape.as_slice() {
        [batch, length, hidden] => {
            let heads = match call.int("num_heads", 0)? {
                0 => hidden.checked_div(columns.saturating_mul(2)).unwrap_or_default().max(1),
                _ => head_count(call, "num_heads")?,
            };
            let size = share(call, 0, hidden, heads)?;
            Ok(Heads { batch, heads, length, size })
        }
        [batch, heads, length, size] => Ok(Heads { batch, heads, length, size }),
        _ => Err(call.bad_shape(0, "rank 3 or 4")),
    }
}
