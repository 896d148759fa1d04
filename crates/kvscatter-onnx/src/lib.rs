//! Reads, writes, evaluates and converts ONNX files for kvscatter.
//!
//! * [`Model`] loads and saves a model without losing the fields that this crate does not know. [`Graph`] is
//!   the model's graph with its structure checked.
//! * [`decoder::Decoder`] finds the caches of a decoder by following its graph, and reports their costs and
//!   hazards. [`hazards_beside`] compares it with the configuration of the original model.
//! * [`convert::convert()`] converts growing caches to static ones. [`lower()`] replaces `TensorScatter` with
//!   older operators. [`plain_decoder`] splits merged decoders and stacked caches, and
//!   [`join_encoder`] makes an encoder that computes all that a decoder takes from it.
//! * [`Model::save_with_weights`] writes a model together with the files of its weights. [`ModelFile`] is a file
//!   that an engine can load.
//! * [`source::ModelSource`] finds the model of a folder and prepares it, and keeps its conversion.
//! * [`Tensor`] is a tensor in memory. [`load_tensor_pb`], [`read_tensor_pb`] and [`write_tensor_pb`] read and write
//!   it as a `.pb` file. All 24 types and every field that ONNX stores values in are supported.
//! * [`OnnxError`] is the error of all these, and [`OnnxError::cause`] returns its cause.
//!
//! ```
//! use kvscatter_onnx::{Model, convert::convert, decoder::Decoder};
//!
//! # let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../testdata/mobius-llama-dynamic");
//! let exported = Model::load(&std::path::Path::new(folder).join("model.onnx"))?;
//! let graph = exported.graph()?;
//! let decoder = Decoder::from_graph(&graph)?;
//! assert!(decoder.caches.iter().all(|cache| cache.style.growth().is_some()));
//! let converted = convert(&exported, 64)?;
//! assert_eq!(converted.report.caches.count, decoder.caches.len());
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
//! | models and graphs | `fingerprint`, `ir`, `order`, `graph`, `slice`, `model_file`, `model`, `save`, `test_dir`, `edit`, `opset`, `onnx_attention` |
//! | evaluation | `eval`, `random_inputs`, `fold`, `prove` |
//! | decoders | `passing`, `mask_elements`, `decoder`, `cache_path` |
//! | changes of decoders | `standard`, `merged`, `stacked`, `plain`, `encoder_model`, `convert`, `soundness`, `lower` |
//! | models as people store them | `declared`, `source`, `internal` |
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
mod declared;
pub mod decoder;
mod dynamic_dim;
mod edit;
mod encoder_model;
mod error;
mod eval;
mod external;
mod file;
mod fingerprint;
mod fold;
mod graph;
mod graph_error;
#[doc(hidden)]
pub mod internal;
mod ir;
mod lower;
mod mask_elements;
mod merged;
mod model;
mod model_file;
mod names;
mod narrow_types;
mod node_label;
mod onnx_attention;
mod opset;
mod order;
mod passing;
mod plain;
mod proto;
mod prove;
mod random_inputs;
mod runtime_version;
mod save;
mod slice;
mod soundness;
pub mod source;
mod stacked;
mod standard;
mod tensor;
mod tensor_proto;
mod test_dir;
mod text;
mod visit;

#[cfg(test)]
extern crate self as kvscatter_onnx;

/// The helpers of the integration tests.
#[cfg(test)]
#[path = "../tests/onnx/support.rs"]
#[expect(dead_code, reason = "a unit test uses a part")]
pub(crate) mod support;

pub use declared::hazards_beside;
pub use decoder::error::DecoderError;
pub use encoder_model::{EncoderError, join_encoder};
pub use error::{Cause, OnnxError};
pub(crate) use error::{ErrorPlace, cause};
pub use eval::error::EvalError;
pub(crate) use external::ExternalData;
pub use external::ExternalError;
pub use file::FileError;
pub use fingerprint::{DECODER, Fingerprint, ParseFingerprintError};
pub use graph::{Graph, Node, ValueInfo};
pub use graph_error::GraphError;
pub use kvscatter::spec::Dimension;
pub use lower::{LowerError, LowerTarget, Lowered, lower};
pub use merged::{TakenBranch, Unmerged, unmerge};
pub use model::Model;
pub use model_file::ModelFile;
pub use node_label::NodeLabel;
pub use plain::{ExportForm, PlainDecoder, plain_decoder};
pub use proto::ProtoError;
pub use runtime_version::{ParseRuntimeVersionError, RuntimeVersion};
pub use save::{DataFile, DataFileOrigin, WeightTransfer};
pub use soundness::{CheckedRing, check_rings};
pub use stacked::{Stack, Stacks, Unstacked, unstack};
pub(crate) use tensor::{DEFAULT_MEMORY_LIMIT, storage_len};
pub use tensor::{Data, Tensor, TensorError};
pub use tensor_proto::error::TensorProtoError;
pub use tensor_proto::{load_tensor_pb, read_tensor_pb, write_tensor_pb};

/// The examples of this crate's README are tested with those of the crate.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
