//! Elements as numbers and text, for `verify` to compare and print.

mod float;

use std::fmt;

use kvscatter::ElementType;
use kvscatter_onnx::{Data, Tensor};
use serde::{Deserialize, Serialize};

/// The largest difference between two values that are equal. As in `numpy.allclose`, they are equal if `|got
/// - expected| <= atol + rtol * |expected|`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Tolerance {
    pub(crate) rtol: f64,
    pub(crate) atol: f64,
}

impl Tolerance {
    /// Returns the tolerance that `--rtol` and `--atol` give, or `None` if neither is given. One that is not given
    /// is 0.
    pub(crate) fn of_options(rtol: Option<f64>, atol: Option<f64>) -> Option<Self> {
        match (rtol, atol) {
            (None, None) => None,
            (rtol, atol) => Some(Self { rtol: rtol.unwrap_or(0.0), atol: atol.unwrap_or(0.0) }),
        }
    }
}

/// The first element that differs, and the number of elements that differ.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Difference {
    pub(crate) index: Vec<usize>,
    pub(crate) actual: String,
    pub(crate) expected: String,
    pub(crate) differing: usize,
}

/// Compares two tensors. The caller has checked that their types and shapes are equal. Without a tolerance,
/// every bit must agree, also in a NaN.
pub(crate) fn difference(
    got: &Tensor,
    expected: &Tensor,
    tolerance: Option<Tolerance>,
) -> Option<Difference> {
    if got.data() == expected.data() {
        return None;
    }
    let mut differing = differing(got, expected, tolerance);
    let first = differing.next()?;
    Some(Difference {
        index: unravel(first, expected.shape()),
        actual: text(value(got, first)),
        expected: text(value(expected, first)),
        differing: differing.count().saturating_add(1),
    })
}

/// Returns the indices of the elements that differ, counted from 0 in the order of memory. The caller has
/// checked that types and shapes are equal.
pub(crate) fn differing<'a>(
    got: &'a Tensor,
    expected: &'a Tensor,
    tolerance: Option<Tolerance>,
) -> impl Iterator<Item = usize> + use<'a> {
    (0..expected.elements()).filter(move |&at| !agree(value(got, at), value(expected, at), tolerance))
}

/// The type and the shape of a tensor, and the values of a short list of indices.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Summary {
    #[serde(rename = "type")]
    element: &'static str,
    shape: Vec<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    values: Option<Vec<i128>>,
}

impl Summary {
    pub(crate) fn new(tensor: &Tensor) -> Self {
        const SHORT: usize = 16;
        let element = tensor.element();
        let list = matches!(element, ElementType::Int32 | ElementType::Int64) && tensor.shape().len() == 1;
        let values = (0..SHORT.saturating_add(1)).map_while(|at| match value(tensor, at) {
            Some(Value::Bits(element, bits)) => Some(integer(element, bits)),
            _ => None,
        });
        let values: Vec<_> = if list { values.collect() } else { Vec::new() };
        Self {
            element: element.onnx_name(),
            shape: tensor.shape().to_vec(),
            values: (list && values.len() <= SHORT).then_some(values),
        }
    }

    pub(crate) fn shape(&self) -> &[usize] {
        &self.shape
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {:?}", self.element, self.shape)?;
        match &self.values {
            Some(values) => write!(f, " = {values:?}"),
            None => Ok(()),
        }
    }
}

/// The value of one element.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Value<'a> {
    /// The low [`ElementType::bits`] bits.
    Bits(ElementType, u128),
    String(&'a [u8]),
}

fn value(tensor: &Tensor, at: usize) -> Option<Value<'_>> {
    let element = tensor.element();
    match (tensor.data(), element.bits()) {
        (Data::Strings(strings), _) => Some(Value::String(strings.get(at)?)),
        (Data::Bytes(bytes), Some(4)) => {
            let byte = bytes.get(at / 2)?;
            let nibble = if at.is_multiple_of(2) { byte & 0x0f } else { byte >> 4 };
            Some(Value::Bits(element, u128::from(nibble)))
        }
        (Data::Bytes(bytes), bits) => {
            let bytes = bytes.chunks_exact(bits?.checked_div(8)?).nth(at)?;
            let bits = bytes.iter().rev().fold(0, |bits, &byte| bits << 8 | u128::from(byte));
            Some(Value::Bits(element, bits))
        }
    }
}

fn agree(got: Option<Value<'_>>, expected: Option<Value<'_>>, tolerance: Option<Tolerance>) -> bool {
    if got == expected {
        return true;
    }
    let (Some(tolerance), Some(Value::Bits(element, got)), Some(Value::Bits(_, expected))) =
        (tolerance, got, expected)
    else {
        return false;
    };
    numbers(element, got).iter().zip(&numbers(element, expected)).all(|(got, expected)| {
        match (got, expected) {
            (Some(got), Some(expected)) => close(*got, *expected, tolerance),
            (None, None) => true,
            _ => false,
        }
    })
}

fn close(got: f64, expected: f64, tolerance: Tolerance) -> bool {
    got == expected
        || (got.is_nan() && expected.is_nan())
        || (expected.is_finite()
            && (got - expected).abs() <= tolerance.atol + tolerance.rtol * expected.abs())
}

/// Returns the element as one number, or as two numbers if it is complex.
fn numbers(element: ElementType, bits: u128) -> [Option<f64>; 2] {
    match complex(element, bits) {
        Some((part, parts)) => parts.map(|bits| float::value(part, bits)),
        None => [float::value(element, bits).or_else(|| Some(rounded(integer(element, bits)))), None],
    }
}

/// Returns the type of the parts of a complex element, and the bits of its real and imaginary part.
fn complex(element: ElementType, bits: u128) -> Option<(ElementType, [u128; 2])> {
    match element {
        ElementType::Complex64 => Some((ElementType::Float32, [bits, bits >> 32])),
        ElementType::Complex128 => Some((ElementType::Float64, [bits, bits >> 64])),
        _ => None,
    }
}

#[expect(
    clippy::as_conversions,
    clippy::cast_precision_loss,
    reason = "a tolerance is given only if rounding is allowed"
)]
fn rounded(integer: i128) -> f64 {
    integer as f64
}

/// Returns an integer of the type. Signed types are two's complement.
fn integer(element: ElementType, bits: u128) -> i128 {
    let width = element.bits().unwrap_or(128);
    let signed = matches!(
        element,
        ElementType::Int4 | ElementType::Int8 | ElementType::Int16 | ElementType::Int32 | ElementType::Int64
    );
    let unused = u32::try_from(128_usize.saturating_sub(width)).unwrap_or(0);
    let top = bits.checked_shl(unused).unwrap_or(0);
    if signed { top.cast_signed() >> unused } else { (top >> unused).cast_signed() }
}

/// Formats a value. Types whose different values could print alike also show the bits.
fn text(value: Option<Value<'_>>) -> String {
    match value {
        None => "nothing".to_owned(),
        Some(Value::String(bytes)) => format!("{:?}", String::from_utf8_lossy(bytes)),
        Some(Value::Bits(ElementType::Bool, bits)) if bits < 2 => (bits == 1).to_string(),
        Some(Value::Bits(element, bits)) => {
            let digits = element.bits().unwrap_or(0) / 4;
            let number = match complex(element, bits) {
                None => float::text(element, bits),
                Some((part, parts)) => {
                    let [re, im] = parts.map(|bits| float::text(part, bits).unwrap_or_default());
                    let plus = if im.starts_with('-') { "" } else { "+" };
                    Some(format!("{re}{plus}{im}i"))
                }
            };
            match number {
                Some(number) => format!("{number} (0x{bits:0digits$x})"),
                None => integer(element, bits).to_string(),
            }
        }
    }
}

fn unravel(mut at: usize, shape: &[usize]) -> Vec<usize> {
    let mut index: Vec<_> = shape
        .iter()
        .rev()
        .map(|&dim| {
            let position = at.checked_rem(dim).unwrap_or(0);
            at = at.checked_div(dim).unwrap_or(0);
            position
        })
        .collect();
    index.reverse();
    index
}

#[cfg(test)]
mod tests {
    use kvscatter::ElementType;
    use kvscatter_onnx::{Data, Tensor};

    use super::{Tolerance, difference};

    fn floats(shape: &[usize], values: &[f32]) -> Tensor {
        let bytes = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        Tensor::new(ElementType::Float32, shape.to_vec(), Data::Bytes(bytes)).unwrap()
    }

    #[test]
    fn the_first_difference_is_named_and_all_are_counted() {
        let expected = floats(&[2, 3], &[0.0, 1.0, 2.0, 3.0, 4.0, 5.0]);
        let got = floats(&[2, 3], &[0.0, 1.0, 2.0, 3.0, 4.5, 6.0]);
        let first = difference(&got, &expected, None).unwrap();
        assert_eq!(first.index, [1, 1]);
        assert_eq!(
            (first.actual.as_str(), first.expected.as_str()),
            ("4.5 (0x40900000)", "4.0 (0x40800000)")
        );
        assert_eq!(first.differing, 2);
        assert_eq!(difference(&expected, &expected, None), None);
    }

    #[test]
    fn nan_payloads_and_the_sign_of_zero_are_bits_too() {
        let expected = floats(&[2], &[f32::from_bits(0x7fc0_0001), 0.0]);
        let got = floats(&[2], &[f32::from_bits(0x7fc0_0002), -0.0]);
        assert_eq!(difference(&got, &expected, None).unwrap().differing, 2);
        let tolerance = Tolerance { rtol: 0.0, atol: 0.0 };
        assert_eq!(difference(&got, &expected, Some(tolerance)), None);
    }

    #[test]
    fn a_tolerance_is_relative_to_the_wanted_value() {
        let expected = floats(&[3], &[100.0, 0.0, f32::INFINITY]);
        for (got, atol, differ) in [
            ([101.0, 0.0, f32::INFINITY], 0.0, 0),
            ([101.1, 0.0, f32::INFINITY], 0.0, 1),
            ([100.0, 0.5, f32::INFINITY], 0.0, 1),
            ([100.0, 0.5, f32::INFINITY], 0.5, 0),
            ([100.0, 0.0, f32::MAX], 1e300, 1),
            ([f32::NAN, 0.0, f32::INFINITY], 1e300, 1),
        ] {
            let tolerance = Tolerance { rtol: 0.01, atol };
            let first = difference(&floats(&[3], &got), &expected, Some(tolerance));
            assert_eq!(first.map_or(0, |first| first.differing), differ, "{got:?}");
        }
    }

    #[test]
    fn values_print_as_people_write_them() {
        let tensor = |element, bytes: &[u8], shape: &[usize]| {
            Tensor::new(element, shape.to_vec(), Data::Bytes(bytes.to_vec())).unwrap()
        };
        for (element, got, expected, text) in [
            (ElementType::Int4, &[0x8f_u8][..], &[0x0f_u8][..], ("-8", "0")),
            (ElementType::UInt4, &[0x8f], &[0x0f], ("8", "0")),
        ] {
            let first =
                difference(&tensor(element, got, &[2]), &tensor(element, expected, &[2]), None).unwrap();
            assert_eq!((first.actual.as_str(), first.expected.as_str()), text);
            assert_eq!(first.index, [1]);
        }
        for (element, got, text) in [
            (ElementType::Bool, &[1_u8][..], "true"),
            (ElementType::Int8, &[0xff], "-1"),
            (ElementType::UInt64, &[0xff; 8], "18446744073709551615"),
            (ElementType::Float32, &[0xcd, 0xcc, 0xcc, 0x3d], "0.1 (0x3dcccccd)"),
            (ElementType::Float16, &[0x00, 0x7e], "NaN (0x7e00)"),
            (ElementType::Float64, &[0, 0, 0, 0, 0, 0, 0, 1], "7.291122019556398e-304 (0x0100000000000000)"),
            (ElementType::BFloat16, &[0x80, 0xbf], "-1.0 (0xbf80)"),
            (ElementType::Complex64, &[0, 0, 0x80, 0x3f, 0, 0, 0, 0xc0], "1.0-2.0i (0xc00000003f800000)"),
        ] {
            let zero = tensor(element, &vec![0; got.len()], &[1]);
            assert_eq!(difference(&tensor(element, got, &[1]), &zero, None).unwrap().actual, text);
        }
    }
}
