//! Errors of files of saved samples.

use std::io;
use std::path::{Path, PathBuf};

use kvscatter::ElementType;
use kvscatter_onnx::OnnxError;

/// An error of writing or reading the file of a saved sample.
///
/// [`InFile`](Self::InFile) contains the path and wraps the cause, which [`root`](Self::root) returns.
#[derive(Debug, thiserror::Error, strum::IntoStaticStr)]
#[cfg_attr(test, derive(strum::VariantNames))]
#[strum(serialize_all = "snake_case", prefix = "saved_")]
#[non_exhaustive]
#[expect(missing_docs, reason = "each variant's message names its fields")]
pub enum SavedError {
    /// An error in this file.
    #[error("{}: {cause}", path.display())]
    InFile { path: PathBuf, cause: Box<SavedError> },
    /// The file cannot be opened, created or renamed, or it is not a regular file.
    #[error(transparent)]
    File(#[from] OnnxError),
    /// The operating system returned an error while the file was read or written.
    #[error(transparent)]
    Io(#[from] io::Error),

    // The header.
    /// The file does not begin like a saved sample.
    #[error("the file is not a saved sample")]
    NotSaved,
    /// An existing file is not a saved sample, so it is not replaced.
    #[error("the file exists and is not a saved sample, so it is not replaced")]
    NotReplaced,
    /// The format has a version that this program does not know.
    #[error("the format has version {got:?}, must be {expected:?}")]
    Version { got: String, expected: &'static str },
    /// The header is longer than the limit.
    #[error("the header takes {len} bytes, the limit is {limit} bytes")]
    HeaderTooLong { len: u64, limit: u64 },
    /// The file ends too early, or has bytes after its tensors.
    #[error("the header and the tensors take {expected} bytes, the file has {got}")]
    Length {
        /// The number of bytes that the header describes, itself included.
        expected: u64,
        got: u64,
    },
    /// The header has changed since it was written.
    #[error("the checksum of the header differs: the file is damaged")]
    HeaderChecksum,
    /// The header is not JSON, or it describes no tensors.
    #[error("the header is not that of a safetensors file: {message}")]
    Json { message: String },
    /// An entry of the metadata is missing.
    #[error("the metadata has no entry {key:?}")]
    EntryMissing { key: String },
    /// An entry of the metadata is not part of the format.
    #[error("the metadata has the entry {key:?}, which version 1 does not define")]
    EntryUnknown { key: String },
    /// The value of an entry of the metadata has another form.
    #[error("metadata entry {key:?} has the invalid value {value:?}")]
    EntryValue { key: String, value: String },
    /// The ids of the tokens are missing, or are not int64 `[position]`.
    #[error("tensor \"kvscatter.tokens\" must be int64 of shape [{position}]")]
    Tokens { position: usize },

    // The tensors.
    /// The header describes two tensors with one name, or the name is reserved.
    #[error("tensor {tensor:?}: the name is given twice or reserved")]
    Name { tensor: String },
    /// The format has no such elements.
    #[error("tensor {tensor:?} has elements of type {element}: must be a safetensors type of whole bytes")]
    Element { tensor: String, element: String },
    /// The shape is not that of one sample, or too large.
    #[error("tensor {tensor:?} is of shape {shape:?}: dimension 0 must be 1, and the size must be possible")]
    Shape { tensor: String, shape: Vec<usize> },
    /// The sequence dimension does not exist, or is that of the samples.
    #[error("tensor {tensor:?} has rank {rank}, so its sequence dimension cannot be {axis}")]
    Axis {
        tensor: String,
        /// The index of the sequence dimension, counted from 0.
        axis: usize,
        rank: usize,
    },
    /// A cache does not have the rows of the cached tokens.
    #[error("tensor {tensor:?} has {got} rows, the tokens {first} to {position} have {}", position.saturating_sub(*first))]
    Rows { tensor: String, got: usize, first: usize, position: usize },
    /// The sizes of a ring contradict each other.
    #[error("tensor {tensor:?} has {rows} rows of a ring of {capacity} slots for a window of {window}")]
    Ring {
        tensor: String,
        rows: usize,
        capacity: usize,
        /// The number of tokens that a token sees, itself included.
        window: usize,
    },
    /// The tensors overlap, have gaps, or have another length than their shape.
    #[error("tensor {tensor:?} takes the bytes {begin} to {end}, must take {len} from {expected} on")]
    Offsets { tensor: String, begin: usize, end: usize, expected: usize, len: usize },
    /// The bytes of a tensor have changed since they were written.
    #[error("the checksum of tensor {tensor:?} differs: the file is damaged")]
    TensorChecksum { tensor: String },
    /// The memory for a tensor differs from the number of bytes of the tensor.
    #[error("tensor {tensor:?} takes {expected} bytes, got {got}")]
    ByteCount { tensor: String, expected: usize, got: usize },
}

impl SavedError {
    /// Returns the cause without the variant that names the file.
    #[must_use]
    pub fn root(&self) -> &Self {
        let mut error = self;
        while let Self::InFile { cause, .. } = error {
            error = cause;
        }
        error
    }

    /// Returns the stable name of the [`root`](Self::root) cause, such as `saved_length`. An error of opening,
    /// creating or renaming the file has the name of [`OnnxError::kind`].
    ///
    /// The name does not change between versions, even if the variant gets a new name.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        match self {
            Self::InFile { cause, .. } => cause.kind(),
            Self::File(error) => error.kind(),
            Self::Io(_) => "io",
            _ => self.into(),
        }
    }

    /// Adds the path, unless the error has it.
    pub(super) fn in_file(self, path: &Path) -> Self {
        match self {
            Self::File(OnnxError::InFile { .. }) | Self::InFile { .. } => self,
            error => Self::InFile { path: path.to_owned(), cause: Box::new(error) },
        }
    }

    pub(super) fn element(tensor: &str, element: ElementType) -> Self {
        Self::Element { tensor: tensor.to_owned(), element: element.to_string() }
    }
}

#[cfg(test)]
mod tests {
    use strum::VariantNames;

    use super::SavedError;

    #[test]
    fn names_are_stable() {
        let names = "saved_in_file saved_file saved_io saved_not_saved saved_not_replaced saved_version \
            saved_header_too_long saved_length saved_header_checksum saved_json saved_entry_missing \
            saved_entry_unknown saved_entry_value saved_tokens saved_name saved_element saved_shape saved_axis \
            saved_rows saved_ring saved_offsets saved_tensor_checksum saved_byte_count";
        assert_eq!(SavedError::VARIANTS.join(" "), names);
        assert_eq!(SavedError::Io(std::io::ErrorKind::NotFound.into()).kind(), "io");
        assert_eq!(SavedError::HeaderChecksum.kind(), "saved_header_checksum");
    }
}
