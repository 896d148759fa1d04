//! The errors of tensor files.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use kvscatter::ElementType;
use kvscatter_onnx::TensorError;

use super::Location;

/// A problem, and the file or the entry of a file that has it.
#[derive(Debug, thiserror::Error)]
#[error("{place}: {problem}")]
pub(crate) struct FileError {
    /// The file as the user named it.
    place: Box<str>,
    problem: Problem,
}

impl FileError {
    pub(crate) fn new(location: &Location, problem: Problem) -> Self {
        Self { place: location.to_string().into(), problem }
    }

    pub(crate) fn at_name(name: String, problem: impl Into<Problem>) -> Self {
        Self { place: name.into(), problem: problem.into() }
    }

    pub(crate) fn at_path(path: &Path, problem: impl Into<Problem>) -> Self {
        Self { place: path.display().to_string().into(), problem: problem.into() }
    }
}

/// The reason why a file cannot be read, mapped or written.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Problem {
    #[error("{}", plain_io(.0))]
    Io(#[from] io::Error),
    #[error("not a regular file")]
    NotAFile,
    #[error("not a folder")]
    NotAFolder,
    #[error("{bytes} bytes do not fit into memory")]
    TooLarge { bytes: u64 },
    #[error("has {len} bytes, must have at most {limit}")]
    TooLong { len: u64, limit: u64 },
    #[error("has more than {limit} bytes, which is the limit")]
    StreamTooLong { limit: u64 },
    #[error("cannot reserve space for the {bytes} bytes to be written: {}", plain_io(.cause))]
    NoRoom { bytes: usize, cause: io::Error },
    #[error("another process is updating this file")]
    Locked,

    #[error(transparent)]
    Tensor(#[from] TensorError),
    #[error("shape {shape:?} of {element} takes {expected} bytes, the file has {got}")]
    DataLength { element: ElementType, shape: Vec<usize>, expected: usize, got: u64 },
    #[error("shape {shape:?} of {element} takes {expected} bytes, the entry has more")]
    MoreData { element: ElementType, shape: Vec<usize>, expected: usize },
    #[error("contains {file}, not {asked}")]
    TypeDiffers { file: ElementType, asked: ElementType },
    #[error("element {index} is {value:#04x}: must fit the 4 bits of {element}")]
    Nibble { element: ElementType, index: usize, value: u8 },

    #[error(transparent)]
    NpyHeader(#[from] NpyHeader),
    #[error("dimension {axis} is {dim}: must be between 0 and {}", usize::MAX)]
    NpyDimension { axis: usize, dim: i128 },
    #[error("type '{descr}' is none of the 24 element types")]
    NpyType { descr: String },
    #[error("type '{descr}' gives only the width: add the element type, such as --type {}", if descr.ends_with('2') { "bfloat16" } else { "float8_e4m3fn" })]
    TypeNeeded { descr: String },
    #[error("type '{descr}' does not have the width of {asked}")]
    TypeWidth { descr: String, asked: ElementType },
    #[error("big-endian type '{descr}': convert it with array.astype(array.dtype.newbyteorder('<'))")]
    BigEndian { descr: String },
    #[error("Fortran order: save numpy.ascontiguousarray(array) instead")]
    FortranOrder,
    #[error("object arrays are Python pickles, which are never read; use a .pb file for strings")]
    ObjectArray,
    #[error("NumPy strings have a fixed width and are not supported; use a .pb file for strings")]
    NumpyString,
    #[error("this format has no strings: use a .pb file")]
    StringsOnlyInPb,

    #[error("not a readable zip archive: {0}")]
    Zip(#[from] zip::result::ZipError),
    #[error("compressed data expands to more than {limit} bytes: unpack the archive first")]
    Inflates { limit: usize },
    #[error(transparent)]
    Safetensors(#[from] ::safetensors::SafeTensorError),
    #[error("dtype {dtype} is none of the 24 element types")]
    SafetensorsType { dtype: String },
    #[error("{element} has no safetensors dtype: write .npy or .pb")]
    NoSafetensorsType { element: ElementType },
    #[error(
        "safetensors stores 4-bit tensors in whole bytes: the number of elements must be even, is {elements}"
    )]
    OddSafetensors { elements: usize },
    #[error("has two entries '{entry}'")]
    DuplicateEntry { entry: String },
    #[error("has no entry '{entry}'; it has {}", list(.have))]
    NoEntry { entry: String, have: Vec<String> },
    #[error("{}", if .have.is_empty() { "has no entries".to_owned() } else { format!("has {} entries: add #NAME, one of {}", .have.len(), list(.have)) })]
    WhichEntry { have: Vec<String> },

    #[error("{}", .0.cause().map_or_else(|| .0.to_string(), plain_io))]
    Pb(#[from] kvscatter_onnx::OnnxError),
    /// A tensor file names another file for its values. The tensor file may come from a stranger, so the
    /// other file is not read.
    #[error(
        "the values are external data in {location:?}, which is only read for models and test directories"
    )]
    ExternalData { location: String },
    #[error("entries of a .npz have checksums and may be compressed, so they cannot be updated in place")]
    NpzInPlace,
    #[error("the values are not in raw_data, so they cannot be updated in place")]
    TypedDataInPlace,
    #[error("strings vary in length, so they cannot be updated in place")]
    StringsInPlace,

    #[error("takes one tensor, but several outputs name it: use .npz or .safetensors for several")]
    OneTensor,
    #[error("is an input of this command, and no input is overwritten")]
    OverInput,
    #[error("two outputs are called '{entry}'")]
    DuplicateOutput { entry: String },
    #[error("'{entry}' is a reserved key of the format: give the tensor another name")]
    ReservedEntry { entry: &'static str },
    #[error("leads to the same file as {}", .other.display())]
    SameOutput { other: PathBuf },
    #[error("exists, and these entries would be lost: {}; name a new file", list(.lost))]
    LosesEntries { lost: Vec<String> },
}

impl Problem {
    /// Returns [`Problem::TypeDiffers`] if `--type` names another type than the file. Such a `--type` is a
    /// mistake and not a cast.
    pub(super) fn check_type(file: ElementType, asked: Option<ElementType>) -> Result<(), Self> {
        match asked {
            Some(asked) if asked != file => Err(Self::TypeDiffers { file, asked }),
            _ => Ok(()),
        }
    }
}

/// The reason why a `.npy` header is refused.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum NpyHeader {
    #[error("the header ends early")]
    EndsEarly,
    #[error("the header does not begin with the bytes \\x93NUMPY")]
    Magic,
    #[error("the header has version {major}: must be 1, 2 or 3")]
    Version { major: u8 },
    #[error("the header takes {len} bytes: must be at most {limit}")]
    TooLong { len: u32, limit: usize },
    #[error("the header is not UTF-8")]
    NotUtf8,
    #[error("the header is not the dictionary of a plain array (fields and nested types are not supported)")]
    NotPlain,
    #[error("{rank} dimensions do not fit into a header of 65535 bytes")]
    TooManyDimensions { rank: usize },
}

/// Returns the message of the operating system without Rust's `(os error 2)`.
fn plain_io(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::NotFound => "no such file or directory".to_owned(),
        io::ErrorKind::PermissionDenied => "permission denied".to_owned(),
        io::ErrorKind::UnexpectedEof => "the file ends early".to_owned(),
        _ => plain(error).to_lowercase(),
    }
}

/// Returns a message without the number that Rust adds to messages of the operating system.
pub(crate) fn plain(error: &impl fmt::Display) -> String {
    let text = error.to_string();
    match text.find(" (os error ") {
        Some(at) => text.get(..at).unwrap_or_default().to_owned(),
        None => text,
    }
}

/// Lists the first few names, because an archive may have thousands.
fn list(names: &[String]) -> String {
    const SHOWN: usize = 5;
    match names {
        [] => "none".to_owned(),
        names if names.len() <= SHOWN => names.join(", "),
        names => format!(
            "{} and {} more",
            names.get(..SHOWN).unwrap_or_default().join(", "),
            names.len().saturating_sub(SHOWN)
        ),
    }
}
