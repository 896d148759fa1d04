//! Reads, writes, evaluates and converts ONNX files for kvscatter.
//!
//! * [`Tensor`] is a tensor in memory. [`tensor_proto`] reads and writes it as a `.pb` file. All 24 types,
//!   every field that ONNX stores values in and [`ExternalData`] are supported.
//! * [`Model`] loads and saves a model without losing the fields that this crate does not know. [`Graph`] is
//!   the model's graph with its structure checked.
//! * [`eval::Evaluator`] runs graphs of `TensorScatter`, `Identity`, `Constant` and integer `Add`. It writes
//!   the cache in place where the graph allows it, and reports where it did. [`random_inputs::inputs`] makes
//!   inputs for it.
//! * [`decoder::Decoder`] finds the caches of a decoder by following its graph, and reports their costs and
//!   hazards.
//! * [`declared`] compares a decoder with the configuration of the original model.
//! * [`unmerge`] takes the decoder with a past out of a merged decoder.
//! * [`convert::convert()`] converts growing caches to static ones. [`lower()`] replaces `TensorScatter` with
//!   older operators. [`Model::save_with_weights`] writes a model together with the files of its weights.
//! * [`CachePath`] is a model that contains only the nodes between the past and the present of one cache.
//! * [`test_dir`] finds, reads and writes ONNX test directories.
//!
//! ```
//! use std::collections::BTreeMap;
//! use kvscatter_onnx::{Model, random_inputs, eval::{Evaluator, Feed, Placement}};
//!
//! # let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../testdata/onnx-node/test_tensorscatter_circular");
//! let model = Model::load(&std::path::Path::new(folder).join("model.onnx"))?;
//! let inputs = random_inputs::inputs(&model, &BTreeMap::new(), 42)?;
//! let feeds = inputs.iter().map(|(name, tensor)| (name.as_str(), Feed::Donated(tensor.clone()))).collect();
//! let done = Evaluator::new(&model)?.run(feeds, Placement::Auto)?;
//! assert!(done.report.is_in_place());
//! # Ok::<(), kvscatter_onnx::OnnxError>(())
//! ```
//!
//! # Modules
//!
//! A module imports only modules that this table names before it. A test of `xtask` checks that.
//!
//! | for | modules, in order |
//! |---|---|
//! | names and numbers in messages | `text`, `node_label`, `runtime_version`, `dynamic_dim`, `narrow_types` |
//! | errors, protobuf and files | `error`, `proto`, `names`, `file`, `graph_error` |
//! | tensors and their files | `tensor`, `external`, `tensor_proto`, `config_file`, `visit`, `attribute` |
//! | models and graphs | `fingerprint`, `ir`, `graph`, `model_file`, `model`, `save`, `test_dir`, `edit`, `opset` |
//! | evaluation | `eval`, `random_inputs`, `fold`, `prove` |
//! | decoders | `passing`, `decoder`, `cache_path` |
//! | changes of decoders | `standard`, `merged`, `convert`, `lower` |
//! | models as people store them | `declared`, `source` |
//!
//! # Terms
//!
//! * The *past* of a cache is the graph input that contains the cache before a step. The *present* is the
//!   graph output that contains it after the step, with the new rows. The present of one step is the past of
//!   the next.
//! * A dimension is *open* if the model does not declare its size. It may have a symbol, such as `batch`.
//! * A cache is *static* if its capacity is fixed and new rows overwrite old ones. It *grows* if every
//!   present is longer than its past.
//! * To *lower* a model means to replace `TensorScatter` with operators that every engine supports.
//!
//! # Untrusted files
//!
//! This crate treats every file as untrusted. Reading or evaluating a file returns a value or an
//! [`OnnxError`] for any contents. Time and memory are bounded by the size of the file and by the limits that
//! are documented here. No memory is allocated only because a file claims to need it, and no file outside the
//! folder of a model is read.
#![forbid(unsafe_code)]
#![deny(
    clippy::arithmetic_side_effects,
    clippy::as_conversions,
    clippy::indexing_slicing,
    reason = "files are untrusted: every size and index read from a file is checked"
)]

mod attribute;
mod cache_path;
mod config_file;
pub mod convert;
pub mod declared;
pub mod decoder;
mod dynamic_dim;
mod edit;
mod error;
pub mod eval;
mod external;
pub mod file;
mod fingerprint;
mod fold;
mod graph;
mod graph_error;
mod ir;
mod lower;
mod merged;
mod model;
mod model_file;
mod names;
mod narrow_types;
mod node_label;
mod opset;
mod passing;
pub mod proto;
mod prove;
pub mod random_inputs;
mod runtime_version;
mod save;
pub mod source;
mod standard;
mod tensor;
pub mod tensor_proto;
pub mod test_dir;
pub mod text;
mod visit;

#[cfg(test)]
extern crate self as kvscatter_onnx;

/// The helpers of the integration tests.
#[cfg(test)]
#[path = "../tests/onnx/support.rs"]
#[expect(dead_code, unused_imports, unused_macros, reason = "a unit test uses a part")]
pub(crate) mod support;

pub use cache_path::{CachePath, CachePathError};
pub use decoder::error::DecoderError;
pub use error::{Cause, OnnxError};
pub(crate) use error::{ErrorPlace, cause};
pub use eval::error::EvalError;
pub use external::{ExternalData, ExternalError};
pub use file::FileError;
pub use fingerprint::{Fingerprint, ParseFingerprintError};
pub use fold::FoldError;
pub use graph::{Graph, Node, ValueInfo};
pub use graph_error::GraphError;
pub use kvscatter::spec::Dimension;
pub use lower::{LowerError, LowerTarget, Lowered, lower};
pub use merged::{TakenBranch, Unmerged, unmerge};
pub use model::Model;
pub use model_file::ModelFile;
pub use node_label::NodeLabel;
pub use proto::ProtoError;
pub use runtime_version::{ParseRuntimeVersionError, RuntimeVersion};
pub use save::{DataFile, DataFileOrigin, WeightTransfer};
pub use tensor::{DEFAULT_MEMORY_LIMIT, Data, DataMut, Tensor, TensorError, storage_len};
pub use tensor_proto::error::TensorProtoError;
pub use tensor_proto::{read_tensor_pb, write_tensor_pb};

/// The examples of this crate's README are tested with those of the crate.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
