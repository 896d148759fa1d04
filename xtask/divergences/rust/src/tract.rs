//! tract with the operators of `kvscatter-tract`.

use std::path::Path;

use anyhow::{Result, bail};
use kvscatter::ElementType;
use kvscatter_onnx::{Data, Tensor};
use kvscatter_tract::register;
use kvscatter_tract::tract_onnx::{self, prelude::*};

/// The types that tract and ONNX have in common, except strings.
const TYPES: [(ElementType, DatumType); 12] = [
    (ElementType::Bool, DatumType::Bool),
    (ElementType::UInt8, DatumType::U8),
    (ElementType::UInt16, DatumType::U16),
    (ElementType::UInt32, DatumType::U32),
    (ElementType::UInt64, DatumType::U64),
    (ElementType::Int8, DatumType::I8),
    (ElementType::Int16, DatumType::I16),
    (ElementType::Int32, DatumType::I32),
    (ElementType::Int64, DatumType::I64),
    (ElementType::Float16, DatumType::F16),
    (ElementType::Float32, DatumType::F32),
    (ElementType::Float64, DatumType::F64),
];

/// Runs a model once. A plan takes its inputs, so every run may write into them. Returns whether the first output is in
/// the memory of the first input.
pub(crate) fn run(folder: &Path, out: &Path, in_place: bool) -> Result<bool> {
    let mut onnx = tract_onnx::onnx();
    register(&mut onnx);
    let plan = onnx.model_for_path(folder.join("model.onnx"))?.into_optimized()?.into_runnable()?;
    let inputs = crate::inputs(folder)?.iter().map(theirs).collect::<Result<Vec<_>>>()?;
    let kept = if in_place { vec![] } else { inputs.clone() };
    let before = inputs.first().map(|cache| cache.as_bytes().as_ptr());
    let results = plan.run(inputs.into_iter().map(Into::into).collect())?;
    drop(kept);
    for (number, result) in results.iter().enumerate() {
        crate::write(out, &format!("output_{number}"), &ours(result)?)?;
    }
    Ok(results.first().map(|present| present.as_bytes().as_ptr()) == before)
}

fn theirs(tensor: &Tensor) -> Result<tract_onnx::prelude::Tensor> {
    let found = TYPES.iter().find(|(element, _)| *element == tensor.element());
    let (Some((_, datum)), Data::Bytes(bytes)) = (found, tensor.data()) else {
        bail!("tract has no {}", tensor.element());
    };
    let mut theirs = tract_onnx::prelude::Tensor::zero_dt(*datum, tensor.shape())?;
    theirs.as_bytes_mut().copy_from_slice(bytes);
    Ok(theirs)
}

fn ours(tensor: &tract_onnx::prelude::Tensor) -> Result<Tensor> {
    let found = TYPES.iter().find(|(_, datum)| *datum == tensor.datum_type());
    let Some((element, _)) = found else { bail!("ONNX has no {:?}", tensor.datum_type()) };
    Ok(Tensor::new(*element, tensor.shape().to_vec(), Data::Bytes(tensor.as_bytes().to_vec()))?)
}
