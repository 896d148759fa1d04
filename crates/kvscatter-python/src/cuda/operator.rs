//! What the operators call their arguments, and how the core's errors are told of each.

use kvscatter::Argument;
use kvscatter_cuda::List;

use crate::error::{self, Refuse};

/// An operator's words.
pub(crate) struct Operator {
    pub(crate) cache: &'static str,
    pub(crate) update: &'static str,
    pub(crate) starts: &'static str,
    pub(crate) spans: &'static str,
    /// What is written.
    pub(crate) written: &'static str,
    pub(crate) refuse: Refuse,
}

pub(crate) static ONNX: Operator = Operator {
    cache: "cache",
    update: "update",
    starts: "write_indices",
    spans: "lengths",
    written: "cache",
    refuse: error::core_in_place,
};

pub(crate) static PRESENT: Operator =
    Operator { cache: "past", written: "present", refuse: error::core_present, ..ONNX };

pub(crate) static SLOTS: Operator = Operator { starts: "slot_mapping", refuse: error::core_slots, ..ONNX };

pub(crate) static TENSORRT: Operator = Operator {
    starts: "writeIndices",
    spans: "updateLengths",
    refuse: |py, refused| error::core_about(py, refused, Argument::Cache, Argument::Update),
    ..ONNX
};

pub(crate) static ASCEND: Operator = Operator {
    cache: "past",
    update: "newKv",
    starts: "tokenOffset",
    spans: "seqLen",
    written: "past",
    refuse: |py, refused| error::core_about(py, refused, Argument::Past, Argument::NewKv),
};

impl Operator {
    pub(crate) fn list(&self, list: List) -> &'static str {
        match list {
            List::Starts => self.starts,
            List::Lengths => "lengths",
            List::Spans => self.spans,
            List::Layer => "layerId",
            _ => "status",
        }
    }
}
