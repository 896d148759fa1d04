//! `MatMulNBits` as `DequantizeLinear` and `MatMul`.
//!
//! The weights are `[N, blocks, bytes of a block]`, and the last block is padded. Zero points are packed for each
//! row. `DequantizeLinear` takes `[K, N]`, whose last block may be shorter, and packs without gaps.
//!
//! Without zero points, the operator subtracts half of the range. The numbers then become signed, which is the
//! same subtraction, and `DequantizeLinear` needs no zero points.

use kvscatter::ElementType;

use super::constants::{Constant, Constants, NewWeights, positive};
use crate::OnnxError;
use crate::edit::NewNode;
use crate::standard::node::{Replacing, no_form};
use crate::weights::Transposition;

/// Replaces the operator. The attribute `accuracy_level` allows rounding of the left operand, and is dropped.
pub(super) fn replace(
    new: &mut NewWeights<'_, '_>,
    constants: &Constants<'_, '_>,
    it: &Replacing<'_>,
) -> Result<(), OnnxError> {
    let weights = Weights::of(constants, it)?;
    let Weights { block_size, packed, signed, .. } = weights;
    let element = if weights.zero_points.is_none() { signed } else { packed };
    let matrix = new.transposed(&weights.matrix.0, weights.matrix.1, element)?;
    let scales = new.transposed(&weights.scales.0, weights.scales.1, weights.scales.0.element)?;
    let mut inputs = vec![matrix, scales];
    if let Some((constant, transposition)) = weights.zero_points {
        inputs.push(new.transposed(&constant, transposition, packed)?);
    }
    let inputs: Vec<_> = inputs.iter().map(String::as_str).collect();
    let dequantize = NewNode::new("DequantizeLinear", &inputs).int("axis", 0);
    let matrix = new.editor.add(dequantize.int("block_size", block_size));
    let product = NewNode::new("MatMul", &[it.input(0)?, &matrix]);
    match it.optional(5) {
        None => new.editor.add(product.outputs(&[it.output(0)])),
        Some(bias) => {
            let product = new.editor.add(product);
            new.editor.add(NewNode::new("Add", &[&product, bias]).outputs(&[it.output(0)]))
        }
    };
    Ok(())
}

/// The weights of a node, and how each is transposed.
struct Weights<'m> {
    block_size: i64,
    /// The types of the numbers as they are packed, and after half of the range is subtracted.
    packed: ElementType,
    signed: ElementType,
    matrix: (Constant<'m>, Transposition),
    scales: (Constant<'m>, Transposition),
    zero_points: Option<(Constant<'m>, Transposition)>,
}

impl<'m> Weights<'m> {
    /// Returns the weights of a node.
    ///
    /// # Errors
    /// Returns [`NoStandardForm`](crate::convert::NoStandardForm) if the node is of a form that
    /// `DequantizeLinear` does not have.
    fn of(constants: &Constants<'_, 'm>, it: &Replacing<'_>) -> Result<Self, OnnxError> {
        if it.optional(4).is_some() {
            return Err(no_form("g_idx of MatMulNBits"));
        }
        if it.int("weight_prepacked", 0)? != 0 {
            return Err(no_form("weight_prepacked of MatMulNBits"));
        }
        it.only(
            &[(0, "A"), (1, "B"), (2, "scales"), (3, "zero_points"), (5, "bias")],
            &[(0, "Y")],
            &["K", "N", "bits", "block_size", "accuracy_level", "weight_prepacked"],
        )?;
        let (packed, signed) = match it.int("bits", 4)? {
            4 => (ElementType::UInt4, ElementType::Int4),
            8 => (ElementType::UInt8, ElementType::Int8),
            bits => return Err(no_form(format!("MatMulNBits with bits = {bits}"))),
        };
        let [n, k, block] = ["N", "K", "block_size"].map(|name| positive(it, name, 0));
        let (n, k, block) = (n?, k?, block?);
        let too_large = || no_form(format!("MatMulNBits of K = {k} and N = {n}"));
        let blocks = k.div_ceil(block);
        let bits = packed.bits().unwrap_or(8);
        let packed_bytes = |elements: usize| elements.checked_mul(bits).map(|bits| bits.div_ceil(8));
        let row = packed_bytes(block).and_then(|bytes| bytes.checked_mul(blocks)).ok_or_else(too_large)?;
        let zero_row = packed_bytes(blocks).ok_or_else(too_large)?;
        let transposition = |columns, row_bytes, element, inverts_sign| {
            Transposition::new(n, columns, row_bytes, element, inverts_sign).ok_or_else(too_large)
        };
        let scales = constants.at(it, 2, "scales")?;
        let scale_row =
            blocks.checked_mul(scales.element.bits().unwrap_or(8).div_ceil(8)).ok_or_else(too_large)?;
        let is_float =
            matches!(scales.element, ElementType::Float32 | ElementType::Float16 | ElementType::BFloat16);
        if !is_float {
            return Err(no_form(format!("scales of {}", scales.element)));
        }
        let zero_points = match it.optional(3) {
            None => None,
            Some(_) => {
                let zero_points = constants.at(it, 3, "zero_points")?;
                is_bytes(&zero_points, "zero_points")?;
                Some((zero_points, transposition(blocks, zero_row, packed, false)?))
            }
        };
        let matrix = constants.at(it, 1, "B")?;
        is_bytes(&matrix, "B")?;
        let weights = Self {
            block_size: i64::try_from(block).unwrap_or(i64::MAX),
            packed,
            signed,
            matrix: (matrix, transposition(k, row, packed, zero_points.is_none())?),
            scales: (scales, transposition(blocks, scale_row, scales.element, false)?),
            zero_points,
        };
        let parts =
            [("B", Some(weights.matrix)), ("scales", Some(weights.scales)), ("zero_points", zero_points)];
        for (name, part) in parts {
            let Some((constant, transposition)) = part else { continue };
            let (got, expected) = (constant.bytes, transposition.source_bytes());
            if got != expected {
                return Err(no_form(format!("{name} of {got} bytes, where K and N take {expected},")));
            }
        }
        Ok(weights)
    }
}

/// Checks that numbers are packed in bytes. Zero points may also be floats, which `DequantizeLinear` does not
/// subtract.
fn is_bytes(constant: &Constant<'_>, name: &str) -> Result<(), OnnxError> {
    match constant.element {
        ElementType::UInt8 => Ok(()),
        element => Err(no_form(format!("{name} of {element}"))),
    }
}
