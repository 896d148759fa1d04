//! Reads and writes tensor files: `.npy`, `.npz`, `.pb` and `.safetensors`.
//!
//! Before anything is allocated, the sizes in a header are compared with the bytes of the file.

mod error;
mod header;
mod in_place;
mod location;
mod nibbles;
mod npy;
mod npz;
mod os;
mod pb;
mod reserve;
mod safetensors;
mod source;
mod write;

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::Path;

use kvscatter::ElementType;
use kvscatter_onnx::Tensor;

use error::Problem;
pub(crate) use error::{FileError, plain};
use header::Header;
pub(crate) use in_place::InPlaceFile;
use location::Format;
pub(crate) use location::{Location, LocationError};
pub(crate) use nibbles::unpack;
pub(crate) use os::{positions, split_at};
#[cfg(feature = "certify")]
pub(crate) use write::check_page;
pub(crate) use write::{write_bytes, write_page, write_tensors};

/// Reads a whole tensor.
///
/// `ty` is the element type of a `.npy` array that gives only its width (`|V1`, `|V2`). If the file names its
/// type, `ty` must be the same type.
///
/// # Errors
/// Returns [`FileError`] with the name of the file if it cannot be read or is not exactly one tensor.
pub(crate) fn read(location: &Location, ty: Option<ElementType>) -> Result<Tensor, FileError> {
    load(location, ty)
        .and_then(|tensor| Problem::check_type(tensor.element(), ty).map(|()| tensor))
        .map_err(|problem| FileError::new(location, problem))
}

/// Reads a whole tensor of any type. `hint` is the type of a `.npy` array that gives only its width.
///
/// # Errors
/// Returns the errors of [`read`], except that the file may name another type.
pub(crate) fn read_hinted(location: &Location, hint: ElementType) -> Result<Tensor, FileError> {
    load(location, Some(hint)).map_err(|problem| FileError::new(location, problem))
}

fn load(location: &Location, ty: Option<ElementType>) -> Result<Tensor, Problem> {
    match location.format() {
        Format::Npz => npz::read(location, ty),
        Format::Pb => pb::read(location),
        Format::Npy | Format::Safetensors => {
            let (mut file, file_len) = source::open(location.path())?;
            let header = find(&file, file_len, location, ty)?;
            file.seek(SeekFrom::Start(header.offset))?;
            let data = source::exactly(&mut file, u64::try_from(header.len).unwrap_or(u64::MAX))?;
            header.tensor(data)
        }
    }
}

/// Returns the type and the shape of a tensor. Only the header is read if the format has one.
pub(crate) fn describe(
    location: &Location,
    ty: Option<ElementType>,
) -> Result<(ElementType, Vec<usize>), FileError> {
    let described = || {
        let (element, shape) = match location.format() {
            Format::Pb => {
                let (element, shape, _) = pb::read(location)?.into_parts();
                (element, shape)
            }
            Format::Npz => {
                let header = npz::describe(location, ty)?;
                (header.element, header.shape)
            }
            Format::Npy | Format::Safetensors => {
                let (file, file_len) = source::open(location.path())?;
                let header = find(&file, file_len, location, ty)?;
                (header.element, header.shape)
            }
        };
        Problem::check_type(element, ty)?;
        Ok((element, shape))
    };
    described().map_err(|problem| FileError::new(location, problem))
}

/// Finds the bytes of a tensor in a file that was just opened. An archive does not contain them as they are.
fn find(file: &File, file_len: u64, location: &Location, ty: Option<ElementType>) -> Result<Header, Problem> {
    match location.format() {
        Format::Npy => npy::find(file, file_len, ty),
        Format::Npz => Err(Problem::NpzInPlace),
        Format::Pb => pb::find(file, file_len),
        Format::Safetensors => safetensors::find(file, file_len, location.entry()),
    }
}

/// Reads a small file of another kind.
///
/// # Errors
/// Returns [`FileError`] if the file cannot be read or is longer than `limit`.
pub(crate) fn read_bytes(path: &Path, limit: u64) -> Result<Vec<u8>, FileError> {
    let read = || {
        let (mut file, len) = source::open(path)?;
        if len <= limit { source::exactly(&mut file, len) } else { Err(Problem::TooLong { len, limit }) }
    };
    read().map_err(|problem| FileError::at_path(path, problem))
}

/// Reads standard input to its end.
///
/// # Errors
/// Returns [`FileError`] if standard input cannot be read or is longer than `limit`.
pub(crate) fn read_stdin(limit: u64) -> Result<Vec<u8>, FileError> {
    let read = || {
        let mut bytes = Vec::new();
        let len = io::stdin().lock().take(limit.saturating_add(1)).read_to_end(&mut bytes)?;
        match u64::try_from(len) {
            Ok(len) if len <= limit => Ok(bytes),
            _ => Err(Problem::StreamTooLong { limit }),
        }
    };
    read().map_err(|problem: Problem| FileError::at_name("standard input".to_owned(), problem))
}

/// Checks that a path is a folder.
///
/// # Errors
/// Returns [`FileError`] if the path does not exist or is not a folder.
pub(crate) fn check_folder(path: &Path) -> Result<(), FileError> {
    match std::fs::metadata(path) {
        Ok(meta) if meta.is_dir() => Ok(()),
        Ok(_) => Err(FileError::at_path(path, Problem::NotAFolder)),
        Err(error) => Err(FileError::at_path(path, error)),
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;
    use std::path::Path;

    use super::{InPlaceFile, Location, describe, read};

    /// Reads every fixture, cut at every third length, and with every eighth byte changed. None of them panics.
    #[test]
    fn damaged_files_are_read_or_refused() {
        let folder = tempfile::tempdir().unwrap();
        let testdata = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/files");
        for (name, entry) in [
            ("float32.npy", ""),
            ("two.npz", "#k"),
            ("compressed.npz", ""),
            ("two.safetensors", "#k"),
            ("float16.pb", ""),
            ("typed.pb", ""),
        ] {
            let whole = std::fs::read(testdata.join(name)).unwrap();
            let cuts = (0..whole.len()).step_by(3).map(|len| whole[..len].to_vec());
            let changes = (0..whole.len()).step_by(8).map(|at| {
                let mut changed = whole.clone();
                changed[at] = changed[at].wrapping_mul(31).wrapping_add(97);
                changed
            });
            let path = folder.path().join(name);
            let location = Location::try_from(OsStr::new(&format!("{}{entry}", path.display()))).unwrap();
            for damaged in cuts.chain(changes) {
                std::fs::write(&path, damaged).unwrap();
                let (described, tensor) = (describe(&location, None), read(&location, None));
                let in_place = InPlaceFile::open(&location, None);
                // The header of a file that is read describes the tensor.
                if let Ok(tensor) = tensor {
                    assert_eq!(described.unwrap(), (tensor.element(), tensor.shape().to_vec()), "{name}");
                    assert!(in_place.is_ok() || !name.ends_with(".npy"), "{name}");
                }
            }
        }
    }
}
