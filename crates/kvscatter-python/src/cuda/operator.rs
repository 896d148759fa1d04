//! The names that operators give their arguments, the function that prepares each, and the function that
//! raises its errors.

use kvscatter::Prepared;
use kvscatter_cuda::{BufferPair, Cuda, CudaError, DeviceWrite, LaunchArgument, PresentBuffers};

use crate::error::ArgumentNames;

/// The names and functions of an operator.
pub(crate) struct Operator {
    pub(crate) cache: &'static str,
    pub(crate) update: &'static str,
    pub(crate) starts: &'static str,
    pub(crate) row_counts: &'static str,
    /// The name of the argument that is written.
    pub(crate) written: &'static str,
    pub(crate) make: PrepareFn,
    pub(crate) names: ArgumentNames,
}

/// The function that prepares a write, either of pairs or of triples.
#[derive(Clone, Copy)]
pub(crate) enum PrepareFn {
    InPlace(fn(&Cuda, &Prepared, &[BufferPair]) -> Result<DeviceWrite, CudaError>),
    Present(fn(&Cuda, &Prepared, &[PresentBuffers]) -> Result<DeviceWrite, CudaError>),
}

impl PrepareFn {
    /// Returns the name of the argument with the tensors.
    pub(crate) fn argument(self) -> &'static str {
        match self {
            Self::InPlace(_) => "pairs",
            Self::Present(_) => "triples",
        }
    }
}

pub(crate) static ONNX: Operator = Operator {
    cache: "cache",
    update: "update",
    starts: "write_indices",
    row_counts: "lengths",
    written: "cache",
    make: PrepareFn::InPlace(Cuda::prepare),
    names: ArgumentNames::InPlace,
};

pub(crate) static PRESENT: Operator = Operator {
    cache: "past",
    written: "present",
    make: PrepareFn::Present(Cuda::prepare_present),
    names: ArgumentNames::Present,
    ..ONNX
};

pub(crate) static SLOTS: Operator = Operator {
    starts: "slot_mapping",
    make: PrepareFn::InPlace(Cuda::prepare_slots),
    names: ArgumentNames::Slots,
    ..ONNX
};

pub(crate) static TENSORRT: Operator = Operator {
    starts: "writeIndices",
    row_counts: "updateLengths",
    names: ArgumentNames::Specification,
    ..ONNX
};

pub(crate) static ASCEND: Operator = Operator {
    cache: "past",
    update: "newKv",
    starts: "tokenOffset",
    row_counts: "seqLen",
    written: "past",
    make: PrepareFn::InPlace(Cuda::prepare),
    names: ArgumentNames::Specification,
};

impl Operator {
    pub(crate) fn list(&self, list: LaunchArgument) -> &'static str {
        match list {
            LaunchArgument::Positions => self.starts,
            LaunchArgument::Lengths => "lengths",
            LaunchArgument::RowCounts => self.row_counts,
            LaunchArgument::Layer => "layerId",
            _ => "status",
        }
    }
}
