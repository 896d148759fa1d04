//! candle: `Tensor::scatter_set`, which its `ScatteredKvCache` calls too.

use std::path::Path;

use anyhow::{Context, Result, bail};
use candle_core::{DType, Device, Tensor as Theirs};
use kvscatter::ElementType;
use kvscatter_onnx::{Data, Tensor};

/// The types that candle and ONNX have in common.
const TYPES: [(ElementType, DType); 10] = [
    (ElementType::UInt8, DType::U8),
    (ElementType::UInt32, DType::U32),
    (ElementType::Int16, DType::I16),
    (ElementType::Int32, DType::I32),
    (ElementType::Int64, DType::I64),
    (ElementType::BFloat16, DType::BF16),
    (ElementType::Float16, DType::F16),
    (ElementType::Float32, DType::F32),
    (ElementType::Float64, DType::F64),
    (ElementType::Float8E4M3Fn, DType::F8E4M3),
];

/// Writes the update into the cache. The cache is written to OUT after an error, too.
pub(crate) fn run(folder: &Path, out: &Path, axis: &str, mode: &str) -> Result<bool> {
    let inputs = crate::inputs(folder)?;
    let (cache, update) = (inputs.first().context("no cache")?, inputs.get(1).context("no update")?);
    let (past, new) = (theirs(cache)?, theirs(update)?);
    let done = scatter(&past, &new, inputs.get(2), axis.parse()?, mode == "circular");
    let present = ours(&past, cache.element())?;
    crate::write(out, "cache", &present)?;
    done?;
    crate::write(out, "output_0", &present)?;
    Ok(true)
}

fn scatter(past: &Theirs, new: &Theirs, starts: Option<&Tensor>, axis: i64, is_ring: bool) -> Result<()> {
    let axis = usize::try_from(if axis < 0 { axis + i64::try_from(past.rank())? } else { axis })?;
    let (capacity, rows) = (i64::try_from(past.dim(axis)?)?, i64::try_from(new.dim(axis)?)?);
    let starts = match starts {
        Some(starts) => starts.int64s().context("write_indices are not int64")?.collect(),
        None => vec![0; past.dim(0)?],
    };
    // candle takes a slot for each element of the update.
    let slots = starts.iter().flat_map(|start| (0..rows).map(move |row| start.wrapping_add(row)));
    let slots: Vec<i64> = slots.map(|slot| if is_ring && capacity > 0 { slot % capacity } else { slot }).collect();
    let mut shape = vec![1; past.rank()];
    for (place, extent) in [(0, starts.len()), (axis, usize::try_from(rows)?)] {
        *shape.get_mut(place).context("axis")? = extent;
    }
    let slots = Theirs::from_vec(slots, shape, &Device::Cpu)?.broadcast_as(new.shape())?.contiguous()?;
    past.scatter_set(&slots, new, axis)?;
    Ok(())
}

fn theirs(tensor: &Tensor) -> Result<Theirs> {
    let found = TYPES.iter().find(|(element, _)| *element == tensor.element());
    let (Some((_, dtype)), Data::Bytes(bytes)) = (found, tensor.data()) else {
        bail!("candle has no {}", tensor.element());
    };
    Ok(Theirs::from_raw_buffer(bytes, *dtype, tensor.shape(), &Device::Cpu)?)
}

fn ours(tensor: &Theirs, element: ElementType) -> Result<Tensor> {
    let flat = tensor.flatten_all()?;
    let bytes: Vec<u8> = match tensor.dtype() {
        DType::U8 => flat.to_vec1::<u8>()?,
        DType::U32 => flat.to_vec1::<u32>()?.iter().flat_map(|value| value.to_le_bytes()).collect(),
        DType::I16 => flat.to_vec1::<i16>()?.iter().flat_map(|value| value.to_le_bytes()).collect(),
        DType::I32 => flat.to_vec1::<i32>()?.iter().flat_map(|value| value.to_le_bytes()).collect(),
        DType::I64 => flat.to_vec1::<i64>()?.iter().flat_map(|value| value.to_le_bytes()).collect(),
        DType::BF16 => flat.to_vec1::<half::bf16>()?.iter().flat_map(|value| value.to_le_bytes()).collect(),
        DType::F16 => flat.to_vec1::<half::f16>()?.iter().flat_map(|value| value.to_le_bytes()).collect(),
        DType::F32 => flat.to_vec1::<f32>()?.iter().flat_map(|value| value.to_le_bytes()).collect(),
        DType::F64 => flat.to_vec1::<f64>()?.iter().flat_map(|value| value.to_le_bytes()).collect(),
        DType::F8E4M3 => flat.to_vec1::<float8::F8E4M3>()?.iter().map(|value| value.to_bits()).collect(),
        other => bail!("{other:?} is not in the list of types"),
    };
    Ok(Tensor::new(element, tensor.dims().to_vec(), Data::Bytes(bytes))?)
}
