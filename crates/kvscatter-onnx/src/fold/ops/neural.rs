//! Operators for neural networks, mainly products.
//!
//! Most outputs get only a shape here, because masks and positions do not depend on their elements.

use std::collections::BTreeMap;

use kvscatter::ElementType;

use super::reduce::total;
use crate::fold::call::{Call, Outputs, dim};
use crate::fold::number::{self, fit, round};
use crate::fold::shapes::{broadcast, elements, spread};
use crate::fold::values::{Elements, Uncomputed};
use crate::fold::{FoldError, Value, Values, shapes};
use crate::{OnnxError, attribute};

/// Evaluates `MatMul` as NumPy defines it. The last two axes are matrices, the axes before them broadcast,
/// and a vector is a row or a column.
pub(super) fn mat_mul(call: &Call<'_>) -> Outputs {
    let [left, right] = [call.input(0)?, call.input(1)?];
    call.check_type(1, left.element, "input 0's type")?;
    let product = Product::new(call, &left.shape, &right.shape)?;
    call.output(left.element, product.shape(), |_| {
        product.values(call, left.element, left.known()?, right.known()?)
    })
}

/// A product of stacks of matrices.
struct Product<'a> {
    left: &'a [usize],
    right: &'a [usize],
    left_batch: &'a [usize],
    right_batch: &'a [usize],
    batch: Vec<usize>,
    rows: usize,
    inner: usize,
    columns: usize,
}

impl<'a> Product<'a> {
    fn new(call: &Call<'_>, left: &'a [usize], right: &'a [usize]) -> Result<Self, OnnxError> {
        let (left_batch, rows, left_inner) = match left {
            [] => return Err(call.bad_shape(0, "rank 1 at least")),
            &[inner] => (&[][..], 1, inner),
            &[ref batch @ .., rows, inner] => (batch, rows, inner),
        };
        let (right_batch, inner, columns) = match right {
            [] => return Err(call.bad_shape(1, "rank 1 at least")),
            &[inner] => (&[][..], inner, 1),
            &[ref batch @ .., inner, columns] => (batch, inner, columns),
        };
        if left_inner != inner {
            return Err(call.bad_shape(1, "as many rows as input 0 has columns"));
        }
        let batch = broadcast(left_batch, right_batch)?;
        Ok(Self { left, right, left_batch, right_batch, batch, rows, inner, columns })
    }

    fn shape(&self) -> Vec<usize> {
        let rows = (self.left.len() > 1).then_some(self.rows);
        let columns = (self.right.len() > 1).then_some(self.columns);
        self.batch.iter().copied().chain(rows).chain(columns).collect()
    }

    fn values(&self, call: &Call<'_>, element: ElementType, left: &Values, right: &Values) -> Elements {
        let size = [elements(&self.batch), self.rows, self.columns];
        call.work.charge(elements(&size).saturating_mul(self.inner))?;
        Ok(match (left, right) {
            (Values::Ints(l), Values::Ints(r)) => {
                let dot = |l: &[i64], r: &[i64]| {
                    let mut pairs = l.iter().zip(r);
                    let sum = pairs
                        .try_fold(0_i64, |sum, (l, &r)| l.checked_mul(r).and_then(|lr| sum.checked_add(lr)));
                    fit(element, sum)
                };
                Values::Ints(self.dots(l, r, dot)?)
            }
            (Values::Floats(l), Values::Floats(r)) => {
                let dot =
                    |l: &[f64], r: &[f64]| Ok(round(element, total(l.iter().zip(r).map(|(l, r)| l * r))));
                Values::Floats(self.dots(l, r, dot)?)
            }
            _ => return Err(Uncomputed::Unknown),
        })
    }

    fn dots<T: Copy>(
        &self,
        left: &[T],
        right: &[T],
        dot: impl Fn(&[T], &[T]) -> Result<T, OnnxError>,
    ) -> Result<Vec<T>, OnnxError> {
        let (left_size, right_size) =
            (self.rows.saturating_mul(self.inner), self.inner.saturating_mul(self.columns));
        let matrix = |values: &[T], at: usize, size: usize| -> Vec<T> {
            values.iter().skip(at.saturating_mul(size)).take(size).copied().collect()
        };
        let mut results = Vec::new();
        let batches = spread(self.left_batch, &self.batch).zip(spread(self.right_batch, &self.batch));
        for (l, r) in batches {
            let (l, r) = (matrix(left, l, left_size), matrix(right, r, right_size));
            let column = |column: usize| -> Vec<T> {
                r.iter().skip(column).step_by(self.columns.max(1)).copied().collect()
            };
            let columns: Vec<Vec<T>> = (0..self.columns).map(column).collect();
            for row in 0..self.rows {
                let from = row.saturating_mul(self.inner);
                let row = l.get(from..from.saturating_add(self.inner)).unwrap_or_default();
                for column in &columns {
                    results.push(dot(row, column)?);
                }
            }
        }
        Ok(results)
    }
}

/// Returns the shapes of a causal convolution along the last axis and of its state, the last columns that the
/// next step needs.
pub(super) fn causal_conv_with_state(call: &Call<'_>) -> Outputs {
    let [input, weight] = [call.input(0)?, call.input(1)?];
    let (&[samples, channels, _], &[_, _, kernel]) = (input.shape.as_slice(), weight.shape.as_slice()) else {
        return Err(call.bad_shape(0, "rank 3, and weights of rank 3"));
    };
    let state = vec![samples, channels, kernel.saturating_sub(1)];
    if call.optional(3).is_some_and(|past| past.shape != state) {
        return Err(call.bad_shape(3, "[batch, channels, kernel size - 1]"));
    }
    call.shaped([(input.element, input.shape.clone()), (input.element, state)])
}

/// Returns the shape of a convolution.
pub(super) fn conv(call: &Call<'_>) -> Outputs {
    let [input, weight] = [call.input(0)?, call.input(1)?];
    let (&[samples, _, ref sizes @ ..], &[channels, _, ref kernel @ ..]) =
        (input.shape.as_slice(), weight.shape.as_slice())
    else {
        return Err(call.bad_shape(0, "rank 3 at least, as the weights"));
    };
    if kernel.len() != sizes.len() {
        return Err(call.bad_shape(1, "the rank of input 0"));
    }
    if !["NOTSET", "VALID"].contains(&call.string("auto_pad", "NOTSET")?) {
        return Err(FoldError::NoForm { what: "auto_pad" }.into());
    }
    let listed = |name, default, at: usize| -> Result<usize, OnnxError> {
        let ints = call.attribute(name).map(attribute::ints).transpose()?.unwrap_or_default();
        Ok(dim(ints.get(at).copied().unwrap_or(default))?)
    };
    let mut shape = vec![samples, channels];
    for (axis, (&size, &kernel)) in sizes.iter().zip(kernel).enumerate() {
        let pads = [listed("pads", 0, axis)?, listed("pads", 0, axis.saturating_add(sizes.len()))?];
        let padded = pads.into_iter().fold(size, usize::saturating_add);
        let covered = listed("dilations", 1, axis)?.saturating_mul(kernel.saturating_sub(1));
        let Some(last) = padded.checked_sub(covered.saturating_add(1)) else {
            return Err(call.bad_shape(0, "at least the size of the kernel"));
        };
        let stride = listed("strides", 1, axis)?.max(1);
        shape.push(last.checked_div(stride).unwrap_or_default().saturating_add(1));
    }
    call.shaped([(input.element, shape)])
}

/// Returns the shape of `MatMulInteger`, whose elements are int32.
pub(super) fn mat_mul_integer(call: &Call<'_>) -> Outputs {
    let [left, right] = [call.input(0)?, call.input(1)?];
    let product = Product::new(call, &left.shape, &right.shape)?;
    call.shaped([(ElementType::Int32, product.shape())])
}

/// Returns the shape of `Gemm`.
pub(super) fn gemm(call: &Call<'_>) -> Outputs {
    let [left, right] = [call.input(0)?, call.input(1)?];
    let turned = |value: &Value, index: usize, name: &str| match *value.shape.as_slice() {
        [rows, columns] if call.flag(name, false)? => Ok([columns, rows]),
        [rows, columns] => Ok([rows, columns]),
        _ => Err(call.bad_shape(index, "rank 2")),
    };
    let [rows, inner] = turned(left, 0, "transA")?;
    let [right_inner, columns] = turned(right, 1, "transB")?;
    if inner != right_inner {
        return Err(call.bad_shape(1, "as many rows as input 0 has columns"));
    }
    call.shaped([(left.element, vec![rows, columns])])
}

/// Evaluates ONNX Runtime's product, whose operands may be transposed and whose result is scaled.
pub(super) fn fused_mat_mul(call: &Call<'_>) -> Outputs {
    let (left, right) =
        (turned(call, 0, ["transBatchA", "transA"])?, turned(call, 1, ["transBatchB", "transB"])?);
    let element = left.element;
    let product = Product::new(call, &left.shape, &right.shape)?;
    call.output(element, product.shape(), |_| {
        let alpha = call.float("alpha", 1.0)?;
        match product.values(call, element, left.known()?, right.known()?)? {
            Values::Floats(values) => Ok(number::rounded(element, values.iter().map(|value| alpha * value))),
            _ => Err(Uncomputed::Unknown),
        }
    })
}

/// Returns an operand after its transpositions. `batch` moves the first axis to the end of the batch's
/// axes, and `last` exchanges the last two axes after that.
fn turned(call: &Call<'_>, index: usize, [batch, last]: [&str; 2]) -> Result<Value, OnnxError> {
    let value = call.input(index)?;
    let mut axes: Vec<usize> = (0..value.rank()).collect();
    if call.flag(batch, false)?
        && let Some((_, before)) = axes.split_last_mut()
        && !before.is_empty()
    {
        before.rotate_left(1);
    }
    if call.flag(last, false)?
        && let [.., a, b] = axes.as_mut_slice()
    {
        std::mem::swap(a, b);
    }
    let strides = shapes::strides(&value.shape);
    let dim = |axis: &usize| {
        let size = value.shape.get(*axis).copied().unwrap_or_default();
        (size, strides.get(*axis).copied().unwrap_or_default())
    };
    let (shape, steps): (Vec<_>, Vec<_>) = axes.iter().map(dim).unzip();
    let data = match &value.data {
        Some(data) if call.values => Some(data.pick(&shapes::walk(&shape, 0, &steps))?),
        _ => None,
    };
    Value::new(value.element, shape, data)
}

/// Returns the shape of `Einsum` for equations without an ellipsis.
pub(super) fn einsum(call: &Call<'_>) -> Outputs {
    let equation: String =
        call.string("equation", "")?.chars().filter(|letter| !letter.is_whitespace()).collect();
    if equation.contains('.') {
        return Err(FoldError::NoForm { what: "an ellipsis" }.into());
    }
    let (terms, result) = match equation.split_once("->") {
        Some((terms, result)) => (terms, Some(result)),
        None => (equation.as_str(), None),
    };
    let inputs = call.all_inputs()?;
    let terms: Vec<Vec<char>> = terms.split(',').map(|term| term.chars().collect()).collect();
    if terms.len() != inputs.len() {
        return Err(call.bad_shape(terms.len(), "a term of the equation"));
    }
    // The size of each letter and the number of its occurrences.
    let mut letters = BTreeMap::new();
    for (index, (term, input)) in terms.iter().zip(&inputs).enumerate() {
        if term.len() != input.rank() {
            return Err(call.bad_shape(index, "a letter of the equation for each axis"));
        }
        for (&letter, &size) in term.iter().zip(&input.shape) {
            let (known, count) = letters.entry(letter).or_insert((size, 0_usize));
            *count = count.saturating_add(1);
            if *known == 1 {
                *known = size;
            } else if size != 1 && size != *known {
                return Err(call.bad_shape(index, "one size for each letter of the equation"));
            }
        }
    }
    // Without an explicit result, the result consists of the letters that occur once, in order.
    let once = letters.iter().filter(|(_, (_, count))| *count == 1).map(|(&letter, _)| letter);
    let result: Vec<char> = result.map_or_else(|| once.collect(), |result| result.chars().collect());
    let size = |letter: &char| {
        let refused = || FoldError::AttributeValue { name: "equation", value: equation.clone() };
        letters.get(letter).map(|&(size, _)| size).ok_or_else(refused)
    };
    let shape = result.iter().map(size).collect::<Result<Vec<_>, _>>()?;
    call.shaped([(call.input(0)?.element, shape)])
}
