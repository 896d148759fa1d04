//! `GatherBlockQuantized` as `Gather` and `DequantizeLinear` of the gathered rows.
//!
//! `Gather` does not take 4-bit types. The new nodes gather bytes and split each into two numbers, so that the
//! whole table is never dequantized.

use kvscatter::ElementType;

use super::constants::{Constant, Constants, NewWeights, positive};
use crate::edit::NewNode;
use crate::proto::TensorProto;
use crate::standard::node::{Replacing, no_form};
use crate::{Data, OnnxError, Tensor};

/// A table, and how its numbers are packed.
struct Table<'m> {
    block_size: usize,
    rows: usize,
    columns: usize,
    blocks: usize,
    bits: usize,
    /// The table and the zero points as types of 4 bits, or `None` if they are bytes.
    nibbles: Option<Nibbles<'m>>,
}

/// A table of a type of 4 bits.
struct Nibbles<'m> {
    table: Constant<'m>,
    zero_points: Option<Constant<'m>>,
    is_signed: bool,
}

/// Replaces the operator.
pub(super) fn replace(
    new: &mut NewWeights<'_, '_>,
    constants: &Constants<'_, '_>,
    it: &Replacing<'_>,
) -> Result<(), OnnxError> {
    let table = Table::of(constants, it)?;
    let (data, indices, scales) = (it.input(0)?, it.input(1)?, it.input(2)?);
    let [rows, columns, blocks] = [table.rows, table.columns, table.blocks];
    let (data, zero_points) = match &table.nibbles {
        None => (data.to_owned(), it.optional(3).map(str::to_owned)),
        Some(nibbles) => {
            let zero_points = nibbles.zero_points.as_ref().map(|zeros| as_bytes(new, zeros, rows, blocks));
            (as_bytes(new, &nibbles.table, rows, columns), zero_points)
        }
    };
    let picked = new.editor.node("Gather", &[&data, indices]);
    let picked = unpacked(new, &table, &picked, indices, columns)?;
    let scales = new.editor.node("Gather", &[scales, indices]);
    let zero_points = match zero_points {
        Some(zero_points) => {
            let zero_points = new.editor.node("Gather", &[&zero_points, indices]);
            Some(unpacked(new, &table, &zero_points, indices, blocks)?)
        }
        None => {
            let value = match (&table.nibbles, table.bits) {
                (Some(Nibbles { is_signed: false, .. }), _) => None,
                (Some(_), _) | (None, 4) => Some(8),
                (None, _) => Some(128),
            };
            let expanded = |value| {
                let value = byte(new, value)?;
                let shape = new.editor.node("Shape", &[&scales]);
                Ok::<_, OnnxError>(new.editor.node("Expand", &[&value, &shape]))
            };
            value.map(expanded).transpose()?
        }
    };
    let mut inputs = vec![picked.as_str(), &scales];
    inputs.extend(zero_points.as_deref());
    let block_size = i64::try_from(table.block_size).unwrap_or(i64::MAX);
    let dequantize = NewNode::new("DequantizeLinear", &inputs).int("axis", -1).int("block_size", block_size);
    new.editor.add(dequantize.outputs(&[it.output(0)]));
    Ok(())
}

impl<'m> Table<'m> {
    /// Returns how the table of a node is packed.
    ///
    /// # Errors
    /// Returns [`NoStandardForm`](crate::convert::NoStandardForm) if the new nodes do not have its form.
    fn of(constants: &Constants<'_, 'm>, it: &Replacing<'_>) -> Result<Self, OnnxError> {
        it.only(
            &[(0, "data"), (1, "indices"), (2, "scales"), (3, "zero_points")],
            &[(0, "output")],
            &["bits", "block_size", "gather_axis", "quantize_axis"],
        )?;
        let (gather_axis, quantize_axis) = (it.int("gather_axis", 0)?, it.int("quantize_axis", 1)?);
        if gather_axis != 0 || !matches!(quantize_axis, 1 | -1) {
            return Err(no_form(format!("gather_axis = {gather_axis} with quantize_axis = {quantize_axis}")));
        }
        let block_size = positive(it, "block_size", 128)?;
        let table = constants.at(it, 0, "data")?;
        let scales = constants.at(it, 2, "scales")?;
        let &[rows, blocks] = scales.message.dims.as_slice() else {
            return Err(no_form(format!("scales of rank {}", scales.message.dims.len())));
        };
        let [rows, blocks] = [rows, blocks].map(|size| usize::try_from(size).unwrap_or_default());
        let zero_points = it.optional(3).map(|_| constants.at(it, 3, "zero_points")).transpose()?;
        let (bits, nibbles) = match table.element {
            ElementType::UInt8 => (positive(it, "bits", 4)?, None),
            ElementType::UInt4 | ElementType::Int4 => {
                let is_signed = table.element == ElementType::Int4;
                (4, Some(Nibbles { table, zero_points, is_signed }))
            }
            element => return Err(no_form(format!("data of {element}"))),
        };
        if !matches!(bits, 4 | 8) {
            return Err(no_form(format!("GatherBlockQuantized with bits = {bits}")));
        }
        let columns = table.bytes.checked_div(rows).and_then(|bytes| bytes.checked_mul(8)?.checked_div(bits));
        let columns = columns.unwrap_or_default();
        // Rows of nibbles begin at a whole byte only if they have an even number.
        let is_whole = |row: usize, bytes: usize| {
            let row = row.checked_mul(bits).map(|bits| bits.div_ceil(8));
            row.and_then(|row| row.checked_mul(rows)) == Some(bytes)
        };
        let has_blocks = columns > 0 && columns.div_ceil(block_size) == blocks;
        let zeros_fit =
            zero_points.is_none_or(|zeros| zeros.element == table.element && is_whole(blocks, zeros.bytes));
        let is_even = nibbles.is_none() || columns.is_multiple_of(2);
        if !has_blocks || !is_whole(columns, table.bytes) || !zeros_fit || !is_even {
            return Err(no_form(format!(
                "GatherBlockQuantized of {rows} rows of {columns} elements in {blocks} blocks"
            )));
        }
        if nibbles.is_some() && zero_points.is_some() && !blocks.is_multiple_of(2) {
            return Err(no_form(format!("zero_points of {} in {blocks} blocks", table.element)));
        }
        Ok(Self { block_size, rows, columns, blocks, bits, nibbles })
    }
}

/// Adds the bytes of a tensor of nibbles as an initializer. Each row has a whole number of bytes.
fn as_bytes(new: &mut NewWeights<'_, '_>, constant: &Constant<'_>, rows: usize, columns: usize) -> String {
    let name = constant.message.name.as_deref().unwrap_or("weight");
    let key = (name.to_owned(), "bytes".to_owned());
    if let Some(made) = new.made.get(&key) {
        return made.clone();
    }
    let dims = [rows, columns.div_euclid(2)].map(|size| i64::try_from(size).unwrap_or(i64::MAX));
    let message = TensorProto {
        data_type: Some(ElementType::UInt8.onnx_code()),
        dims: dims.to_vec(),
        ..constant.message.clone()
    };
    let made = new.editor.initializer(&format!("{name}_bytes"), message);
    new.made.insert(key, made.clone());
    made
}

/// Adds nodes that make a byte of each number of gathered rows. Signed numbers become unsigned ones with a zero
/// point of 8.
fn unpacked(
    new: &mut NewWeights<'_, '_>,
    table: &Table<'_>,
    bytes: &str,
    indices: &str,
    columns: usize,
) -> Result<String, OnnxError> {
    if table.bits != 4 {
        return Ok(bytes.to_owned());
    }
    let bytes = match &table.nibbles {
        Some(Nibbles { is_signed: true, .. }) => {
            let signs = byte(new, 0x88)?;
            new.editor.node("BitwiseXor", &[bytes, &signs])
        }
        _ => bytes.to_owned(),
    };
    let [low_bits, four] = [byte(new, 15)?, byte(new, 4)?];
    let last = new.editor.ints(&[-1])?;
    let low = new.editor.node("BitwiseAnd", &[&bytes, &low_bits]);
    let high = new.editor.add(NewNode::new("BitShift", &[&bytes, &four]).string("direction", "RIGHT"));
    let [low, high] = [low, high].map(|half| new.editor.node("Unsqueeze", &[&half, &last]));
    let both = new.editor.add(NewNode::new("Concat", &[&low, &high]).int("axis", -1));
    let picked = new.editor.node("Shape", &[indices]);
    // The last byte of a row may have one number only.
    let packed = columns.next_multiple_of(2);
    let [columns, packed] = [columns, packed].map(|size| i64::try_from(size).unwrap_or(i64::MAX));
    let width = new.editor.ints(&[packed])?;
    let shape = new.editor.add(NewNode::new("Concat", &[&picked, &width]).int("axis", 0));
    let all = new.editor.node("Reshape", &[&both, &shape]);
    if columns == packed {
        return Ok(all);
    }
    let [start, end] = [new.editor.ints(&[0])?, new.editor.ints(&[columns])?];
    Ok(new.editor.node("Slice", &[&all, &start, &end, &last]))
}

/// Adds a constant of one byte.
fn byte(new: &mut NewWeights<'_, '_>, value: u8) -> Result<String, OnnxError> {
    new.editor.constant(&Tensor::new(ElementType::UInt8, Vec::new(), Data::Bytes(vec![value]))?)
}
