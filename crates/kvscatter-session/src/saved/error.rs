//! Errors of files of saved samples.

use std::io;
use std::path::{Path, PathBuf};

use kvscatter::ElementType;
use kvscatter_onnx::OnnxError;

/// An error of writing or reading the file of a saved sample.
///
/// [`InFile`](Self::InFile) contains the path and wraps the cause, which [`root`](Self::root) returns.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SavedError {
    /// An error in this file.
    #[error("{}: {cause}", path.display())]
    InFile {
        /// The path of the file.
        path: PathBuf,
        /// The error.
        cause: Box<SavedError>,
    },
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
    Version {
        /// The version of the file.
        got: String,
        /// The version that this program reads and writes.
        expected: &'static str,
    },
    /// The header is longer than the limit.
    #[error("the header takes {len} bytes, the limit is {limit} bytes")]
    HeaderTooLong {
        /// The length of the header.
        len: u64,
        /// The limit.
        limit: u64,
    },
    /// The file ends too early, or has bytes after its tensors.
    #[error("the header and the tensors take {expected} bytes, the file has {got}")]
    Length {
        /// The number of bytes that the header describes, itself included.
        expected: u64,
        /// The number of bytes of the file.
        got: u64,
    },
    /// The header has changed since it was written.
    #[error("the checksum of the header differs: the file is damaged")]
    HeaderChecksum,
    /// The header is not JSON, or it describes no tensors.
    #[error("the header is not that of a safetensors file: {message}")]
    Json {
        /// The message of the parser.
        message: String,
    },
    /// An entry of the metadata is missing.
    #[error("the metadata has no entry {key:?}")]
    EntryMissing {
        /// The key of the entry.
        key: String,
    },
    /// An entry of the metadata is not part of the format.
    #[error("the metadata has the entry {key:?}, which version 1 does not define")]
    EntryUnknown {
        /// The key of the entry.
        key: String,
    },
    /// The value of an entry of the metadata has another form.
    #[error("metadata entry {key:?} has the invalid value {value:?}")]
    EntryValue {
        /// The key of the entry.
        key: String,
        /// The value.
        value: String,
    },
    /// The ids of the tokens are missing, or are not int64 `[position]`.
    #[error("tensor \"kvscatter.tokens\" must be int64 of shape [{position}]")]
    Tokens {
        /// The number of cached tokens.
        position: usize,
    },

    // The tensors.
    /// The header describes two tensors with one name, or the name is reserved.
    #[error("tensor {tensor:?}: the name is given twice or reserved")]
    Name {
        /// The name of the tensor.
        tensor: String,
    },
    /// The format has no such elements.
    #[error("tensor {tensor:?} has elements of type {element}: must be a safetensors type of whole bytes")]
    Element {
        /// The name of the tensor.
        tensor: String,
        /// The name of the type.
        element: String,
    },
    /// The shape is not that of one sample, or too large.
    #[error("tensor {tensor:?} is of shape {shape:?}: dimension 0 must be 1, and the size must be possible")]
    Shape {
        /// The name of the tensor.
        tensor: String,
        /// The shape.
        shape: Vec<usize>,
    },
    /// The sequence dimension does not exist, or is that of the samples.
    #[error("tensor {tensor:?} has rank {rank}, so its sequence dimension cannot be {axis}")]
    Axis {
        /// The name of the tensor.
        tensor: String,
        /// The index of the sequence dimension, counted from 0.
        axis: usize,
        /// The number of dimensions.
        rank: usize,
    },
    /// A cache does not have the rows of the cached tokens.
    #[error("tensor {tensor:?} has {got} rows, the tokens {first} to {position} have {}", position.saturating_sub(*first))]
    Rows {
        /// The name of the tensor.
        tensor: String,
        /// The number of rows.
        got: usize,
        /// The position of the first row.
        first: usize,
        /// The number of cached tokens.
        position: usize,
    },
    /// The sizes of a ring contradict each other.
    #[error("tensor {tensor:?} has {rows} rows of a ring of {capacity} slots for a window of {window}")]
    Ring {
        /// The name of the tensor.
        tensor: String,
        /// The number of rows.
        rows: usize,
        /// The number of slots.
        capacity: usize,
        /// The number of tokens that a token sees, itself included.
        window: usize,
    },
    /// The tensors overlap, have gaps, or have another length than their shape.
    #[error("tensor {tensor:?} takes the bytes {begin} to {end}, must take {len} from {expected} on")]
    Offsets {
        /// The name of the tensor.
        tensor: String,
        /// The offset of the first byte.
        begin: usize,
        /// The offset after the last byte.
        end: usize,
        /// The offset at which the tensor before it ends.
        expected: usize,
        /// The number of bytes of the tensor's shape.
        len: usize,
    },
    /// The bytes of a tensor have changed since they were written.
    #[error("the checksum of tensor {tensor:?} differs: the file is damaged")]
    TensorChecksum {
        /// The name of the tensor.
        tensor: String,
    },
    /// The memory for a tensor differs from the number of bytes of the tensor.
    #[error("tensor {tensor:?} takes {expected} bytes, got {got}")]
    ByteCount {
        /// The name of the tensor.
        tensor: String,
        /// The number of bytes of the tensor.
        expected: usize,
        /// The number of bytes that were given.
        got: usize,
    },
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
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::InFile { cause, .. } => cause.kind(),
            Self::File(error) => error.kind(),
            Self::Io(_) => "io",
            Self::NotSaved => "saved_not_saved",
            Self::NotReplaced => "saved_not_replaced",
            Self::Version { .. } => "saved_version",
            Self::HeaderTooLong { .. } => "saved_header_too_long",
            Self::Length { .. } => "saved_length",
            Self::HeaderChecksum => "saved_header_checksum",
            Self::Json { .. } => "saved_json",
            Self::EntryMissing { .. } => "saved_entry_missing",
            Self::EntryUnknown { .. } => "saved_entry_unknown",
            Self::EntryValue { .. } => "saved_entry_value",
            Self::Tokens { .. } => "saved_tokens",
            Self::Name { .. } => "saved_name",
            Self::Element { .. } => "saved_element",
            Self::Shape { .. } => "saved_shape",
            Self::Axis { .. } => "saved_axis",
            Self::Rows { .. } => "saved_rows",
            Self::Ring { .. } => "saved_ring",
            Self::Offsets { .. } => "saved_offsets",
            Self::TensorChecksum { .. } => "saved_tensor_checksum",
            Self::ByteCount { .. } => "saved_byte_count",
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
