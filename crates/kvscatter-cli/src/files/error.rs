//! What can be wrong with a tensor file.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use kvscatter::ElementType;
use kvscatter_onnx::TensorError;

use super::Location;

/// A problem and the file (or entry of a file) it is in.
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

/// Why a file cannot be read, mapped or written.
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
    #[error("{len} bytes, at most {limit} are possible")]
    TooLong { len: u64, limit: u64 },
    #[error("more than {limit} bytes")]
    StreamTooLong { limit: u64 },
    #[error("no room for the {bytes} bytes to be written: {}", plain_io(.cause))]
    NoRoom { bytes: usize, cause: io::Error },
    #[error("another process is updating this file")]
    Locked,

    #[error(transparent)]
    Tensor(#[from] TensorError),
    #[error("shape {shape:?} of {element} takes {expected} bytes, the file has {got}")]
    DataLength { element: ElementType, shape: Vec<usize>, expected: usize, got: u64 },
    #[error("shape {shape:?} of {element} takes {expected} bytes, the entry has more")]
    MoreData { element: ElementType, shape: Vec<usize>, expected: usize },
    #[error("holds {file}, not {asked}")]
    TypeDiffers { file: ElementType, asked: ElementType },
    #[error("element {index} is {value:#04x}, which is no {element}: 4 bits at most")]
    Nibble { element: ElementType, index: usize, value: u8 },

    #[error(transparent)]
    NpyHeader(#[from] NpyHeader),
    #[error("dimension {axis} is {dim}: must be between 0 and {}", usize::MAX)]
    NpyDimension { axis: usize, dim: i128 },
    #[error("type '{descr}' is none of the 24 element types")]
    NpyType { descr: String },
    #[error("type '{descr}' is only a width: name the element type with --type, such as --type {}", if descr.ends_with('2') { "bfloat16" } else { "float8_e4m3fn" })]
    TypeNeeded { descr: String },
    #[error("type '{descr}' cannot hold {asked}")]
    TypeWidth { descr: String, asked: ElementType },
    #[error("big-endian type '{descr}': convert it with array.astype(array.dtype.newbyteorder('<'))")]
    BigEndian { descr: String },
    #[error("Fortran order: save numpy.ascontiguousarray(array) instead")]
    FortranOrder,
    #[error("object arrays are Python pickles, which are never read; strings go into .pb files")]
    ObjectArray,
    #[error("NumPy strings are cut to a fixed width; strings go into .pb files")]
    NumpyString,
    #[error("strings go into .pb files: this format has no such type")]
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
    #[error("safetensors stores 4-bit tensors in whole bytes: {elements} elements are an odd number")]
    OddSafetensors { elements: usize },
    #[error("has two entries '{entry}'")]
    DuplicateEntry { entry: String },
    #[error("has no entry '{entry}'; it has {}", list(.have))]
    NoEntry { entry: String, have: Vec<String> },
    #[error("{}", if .have.is_empty() { "has no entries".to_owned() } else { format!("has {} entries: add #NAME, one of {}", .have.len(), list(.have)) })]
    WhichEntry { have: Vec<String> },

    #[error(transparent)]
    Pb(#[from] kvscatter_onnx::OnnxError),
    /// A file given on the command line may be anybody's, and so may be the files it names.
    #[error(
        "the values are external data in {location:?}, which is only read for models and test directories"
    )]
    ExternalData { location: String },
    #[error("{0}")]
    NotInPlace(NotInPlace),

    #[error("holds one tensor, but several outputs name it: .npz and .safetensors hold several")]
    OneTensor,
    #[error("is an input of this command, and no input is overwritten")]
    OverInput,
    #[error("two outputs are called '{entry}'")]
    DuplicateOutput { entry: String },
    #[error("'{entry}' is the format's own key and names no tensor")]
    ReservedEntry { entry: &'static str },
    #[error("leads to the same file as {}", .other.display())]
    SameOutput { other: PathBuf },
    #[error("is there already, and other entries would be lost: {}; write a new file", list(.lost))]
    LosesEntries { lost: Vec<String> },
}

impl Problem {
    /// Fails with [`Problem::TypeDiffers`] if `--type` names another type than the file: it is a mistake, not a cast.
    pub(super) fn check_type(file: ElementType, asked: Option<ElementType>) -> Result<(), Self> {
        match asked {
            Some(asked) if asked != file => Err(Self::TypeDiffers { file, asked }),
            _ => Ok(()),
        }
    }
}

/// What can be wrong with a `.npy` header.
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

/// Why a tensor cannot be updated in its file.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NotInPlace {
    #[error("entries of a .npz carry checksums and may be compressed, so none can be updated in place")]
    Npz,
    #[error("the values are not in raw_data, so they cannot be updated in place")]
    TypedData,
    #[error("strings vary in length, so they cannot be updated in place")]
    Strings,
}

/// The operating system's message without Rust's `(os error 2)`.
fn plain_io(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::NotFound => "no such file or directory".to_owned(),
        io::ErrorKind::PermissionDenied => "permission denied".to_owned(),
        io::ErrorKind::UnexpectedEof => "the file ends early".to_owned(),
        _ => plain(error).to_lowercase(),
    }
}

/// A message without the number that Rust adds to the operating system's words.
pub(crate) fn plain(error: &impl fmt::Display) -> String {
    let text = error.to_string();
    match text.find(" (os error ") {
        Some(at) => text.get(..at).unwrap_or_default().to_owned(),
        None => text,
    }
}

/// The first few names: an archive may have thousands.
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
