//! Finds the decoder in the folder of an export, and converts it once if its caches grow.
//!
//! [`ModelSource::find`] takes the path of an .onnx file or of a folder:
//!
//! * If the folder has a `genai_config.json`, the decoder is the file that `model.decoder.filename` names.
//! * Otherwise it is the only .onnx file of the folder. If there is none, it is the only one in the folder `onnx`, or
//!   else `decoder/model.onnx`.
//! * Optimum's `decoder_model_merged.onnx`, `decoder_with_past_model.onnx` and `decoder_model.onnx` are forms of one
//!   decoder. The first of them that exists is used.
//!
//! The folder is untrusted. No file outside of it is read or used, also not through a link. A snapshot in the cache of
//! the Hugging Face Hub has links to other files of its repository, which are used.
//!
//! [`ModelSource::prepare`] returns the model to run. If its caches grow, or if `GroupQueryAttention` writes them, that
//! is a [conversion](crate::convert::convert()), which is kept in a [folder](PrepareOptions::cache). Every conversion
//! is a folder with three kinds of files: `model.onnx`, the files of its weights, and `source.json`, which describes
//! what it was made from.
//!
//! * A conversion is used again only if `source.json` still describes the exported model and the files of the
//!   conversion. The exported model and the converted one are compared by a hash of all bytes. Weights in other files
//!   can have many gigabytes, so they are compared by length, times of modification and change, and inode. A conversion
//!   that does not match is made again and replaced.
//! * Weights are copied. Hard links would take no space, but ONNX's own loader and checker refuse files with two names,
//!   so they would refuse the export, too.
//! * A conversion is made in a folder with another name, which is renamed at the end. So several threads and processes
//!   may prepare one model at once, and no unfinished conversion is used.
//! * Making a conversion removes others whose exported model no longer exists, and what killed processes have left.

mod cache;
mod error;
mod find;
mod prepare;

pub use error::FolderError;
pub use find::ModelSource;
pub use prepare::{Preparation, PrepareOptions, Prepared, default_max_seq};
