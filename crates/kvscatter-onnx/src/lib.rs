//! ONNX files for kvscatter: tensors, models, test directories, the evaluation of `TensorScatter` graphs, and decoders.
//!
//! * [`Tensor`] is a tensor in memory; [`tensor_proto`] reads and writes it as a `.pb` file, for all 24 types and every
//!   field that ONNX stores values in, [`ExternalData`] included.
//! * [`Model`] loads and saves a model without losing what this crate does not know; [`Graph`] is its graph, the
//!   structure checked.
//! * [`eval::Evaluator`] runs graphs of `TensorScatter`, `Identity`, `Constant` and integer `Add`, writes the cache in
//!   place where the graph allows it, and reports where it did. [`random_inputs::inputs`] makes inputs for it.
//! * [`decoder::Decoder`] finds a decoder's caches by following its graph, with their costs and hazards;
//!   [`convert::convert()`] makes caches that grow static, [`lower()`] replaces `TensorScatter`, and
//!   [`Model::save_with_weights`] writes the result with the files of its weights. [`CachePath`] is what lies between one
//!   cache's past and its present, alone.
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
//! Files are taken to come from strangers. For any contents, reading and evaluating them ends in a value or an
//! [`OnnxError`], in time and memory bounded by the file's size and the limits named here: nothing is allocated because
//! a file claims that it will be needed, and nothing is read outside a model's own folder.
#![forbid(unsafe_code)]
#![deny(
    clippy::arithmetic_side_effects,
    clippy::as_conversions,
    clippy::indexing_slicing,
    reason = "files come from strangers: every size and index read from one is checked"
)]

mod attribute;
mod cache_path;
pub mod convert;
pub mod decoder;
mod dynamic_dim;
mod edit;
mod error;
pub mod eval;
mod external;
pub mod file;
mod fold;
mod graph;
mod lower;
mod model;
mod model_file;
mod narrow_types;
mod node_label;
mod opset;
pub mod proto;
pub mod random_inputs;
mod save;
mod tensor;
pub mod tensor_proto;
pub mod test_dir;

/// The limit on the bytes of values that are allocated or read from other files, unless the caller sets another:
/// 16 GiB.
pub const DEFAULT_MEMORY_LIMIT: u64 = 16 << 30;

pub use cache_path::{CachePath, CachePathError};
pub use error::OnnxError;
pub use external::ExternalData;
pub use fold::FoldError;
pub use graph::{Graph, Node, ValueInfo};
pub use kvscatter::spec::Dimension;
pub use lower::{LowerTarget, Lowered, lower};
pub use model::Model;
pub use model_file::ModelFile;
pub use node_label::NodeLabel;
pub use save::{DataFile, DataFileOrigin, WeightTransfer};
pub use tensor::{Data, DataMut, Tensor, TensorError, storage_len};
pub use tensor_proto::{read_tensor_pb, write_tensor_pb};

/// The examples of this crate's README are tested with those of the crate.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
