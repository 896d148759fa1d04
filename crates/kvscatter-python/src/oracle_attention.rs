//! The oracle of attention, in float64.

use kvscatter_oracle::attention::{Array, Attention, AttentionRefusal, Float, Inputs, Mask, Positions};
use numpy::{Element, PyArray1, PyArrayMethods, PyReadonlyArrayDyn, PyUntypedArrayMethods};
use pyo3::prelude::*;

use crate::error::{Class, raise};

/// A tensor of `[batch, heads, rows, size]`.
type Tensor<'py> = PyReadonlyArrayDyn<'py, f64>;

/// The attributes of a call: `is_causal`, `left_window_size`, `scale` and `softcap`.
type Attributes = (bool, i64, Option<f64>, f64);

/// The result, the scores of all slots with their biases, and which slots each row attends to, in row-major order.
type Answer<'py> = (Bound<'py, PyArray1<f64>>, Bound<'py, PyArray1<f64>>, Bound<'py, PyArray1<bool>>);

/// A mask of booleans or of numbers.
#[derive(FromPyObject)]
pub(crate) enum AnyMask<'py> {
    Bool(PyReadonlyArrayDyn<'py, bool>),
    Float(PyReadonlyArrayDyn<'py, f64>),
}

/// Runs the oracle for attention. `element` is the ONNX name of the type of the queries, and `lengths` count the tokens
/// of each sample.
#[pyfunction]
#[pyo3(signature = (element, q, k, v, lengths, ring, mask, attributes))]
#[expect(clippy::too_many_arguments, reason = "the inputs of the operator")]
pub(crate) fn oracle_attention<'py>(
    py: Python<'py>,
    element: &str,
    q: Tensor<'py>,
    k: Tensor<'py>,
    v: Tensor<'py>,
    lengths: Vec<i64>,
    ring: bool,
    mask: Option<AnyMask<'py>>,
    attributes: Attributes,
) -> PyResult<Answer<'py>> {
    let refused = |refusal: AttentionRefusal| {
        raise(py, Class::Shape, "oracle", None, format!("the oracle refuses the call: {refusal:?}"), &[])
    };
    let (is_causal, left_window_size, scale, softcap) = attributes;
    let scores_with_bias = 2;
    let attention = Attention {
        is_causal,
        left_window_size,
        scale,
        softcap,
        qk_matmul_output_mode: scores_with_bias,
        ..Attention::default()
    };
    let mask = match mask {
        None => None,
        Some(AnyMask::Bool(mask)) => Some(Mask::Bool(array(&mask)?)),
        Some(AnyMask::Float(mask)) => Some(Mask::Float(array(&mask)?)),
    };
    let unknown = || {
        raise(py, Class::ElementType, "element_type", None, format!("the oracle has no type {element}"), &[])
    };
    let inputs = Inputs {
        element: Float::ALL.into_iter().find(|float| float.name() == element).ok_or_else(unknown)?,
        q: array(&q)?,
        k: array(&k)?,
        v: array(&v)?,
        mask,
        past_key: None,
        past_value: None,
        positions: if ring { Positions::Ring(lengths) } else { Positions::Lengths(lengths) },
    };
    let outputs = attention.run(&inputs).map_err(refused)?;
    let attends = attention.attends(&inputs).map_err(refused)?;
    Ok((
        PyArray1::from_vec(py, outputs.y.data),
        PyArray1::from_vec(py, outputs.qk_matmul_output.data),
        PyArray1::from_vec(py, attends.data),
    ))
}

fn array<T: Element + Copy>(tensor: &PyReadonlyArrayDyn<'_, T>) -> PyResult<Array<T>> {
    Ok(Array::new(tensor.to_vec()?, tensor.shape()))
}
