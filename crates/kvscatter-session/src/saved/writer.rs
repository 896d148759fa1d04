//! Writes the file of a saved sample. Each piece is hashed just before it is written, and the header is written last,
//! so the values are read once.

use std::fs::File;
use std::io::{self, BufWriter, Read, Seek, SeekFrom, Write};
use std::path::Path;

use kvscatter_onnx::internal::file;
use xxhash_rust::xxh3::Xxh3Default;

use super::header::{BEGINNING, Header};
use super::sample::SavedSample;
use super::{SavedError, reader};

/// The values of a sample's tensors. It calls the given function with the bytes of the tensor with this index, in
/// order, in pieces of any lengths.
pub(crate) type Runs<'r> = dyn Fn(usize, &mut dyn FnMut(&[u8]) -> io::Result<()>) -> io::Result<()> + 'r;

/// Writes a file with a sample, or leaves the old file.
///
/// `runs` is called once for each tensor, in any order. The file replaces a saved sample or no file, as
/// [`file::replace`] describes. Nothing is flushed to the disk. After a loss of power the checksums show whether the
/// file is complete. Errors have the path. A file of another kind is not replaced ([`SavedError::NotReplaced`]).
pub(crate) fn write(path: &Path, sample: &SavedSample, runs: &Runs<'_>) -> Result<(), SavedError> {
    let write = || {
        replaceable(path)?;
        let header = Header::new(sample)?;
        file::replace(path, |file| fill(file, header, sample, runs))
    };
    write().map_err(|error: SavedError| error.in_file(path))
}

/// Checks that [`write`] may replace what is at a path: no file, an empty file or a saved sample. Errors have the path.
pub(crate) fn check_target(path: &Path) -> Result<(), SavedError> {
    replaceable(path).map_err(|error| error.in_file(path))
}

fn replaceable(path: &Path) -> Result<(), SavedError> {
    match std::fs::metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Ok(meta) if meta.is_file() && meta.len() == 0 => return Ok(()),
        _ => {}
    }
    let mut bytes = [0; 8 + BEGINNING.len()];
    let (mut file, _) = file::open(path)?;
    let is_saved = file.read_exact(&mut bytes).is_ok() && bytes.ends_with(BEGINNING.as_bytes());
    if is_saved { Ok(()) } else { Err(SavedError::NotReplaced) }
}

/// Writes the values and then the header, whose checksums are known then. Its length is known before.
fn fill(
    file: &mut File,
    mut header: Header,
    sample: &SavedSample,
    runs: &Runs<'_>,
) -> Result<(), SavedError> {
    let start = header.encode()?.len() as u64 + 8;
    let mut out = BufWriter::with_capacity(reader::PIECE, file);
    out.seek(SeekFrom::Start(start))?;
    let mut hash = Xxh3Default::new();
    for token in &sample.tokens {
        let bytes = token.to_le_bytes();
        hash.update(&bytes);
        out.write_all(&bytes)?;
    }
    header.tokens.checksum = hash.digest128();
    for (tensor, place) in &mut header.tensors {
        let index = sample.tensors.iter().position(|other| other.name == tensor.name);
        let index = index.ok_or_else(|| SavedError::Name { tensor: tensor.name.clone() })?;
        let (expected, mut got) = (tensor.len(), 0);
        hash.reset();
        runs(index, &mut |bytes| {
            // Each piece is still in the processor's cache when it is written.
            for piece in bytes.chunks(reader::PIECE) {
                hash.update(piece);
                out.write_all(piece)?;
            }
            got += bytes.len();
            Ok(())
        })?;
        if got != expected {
            return Err(SavedError::ByteCount { tensor: tensor.name.clone(), expected, got });
        }
        place.checksum = hash.digest128();
    }
    let bytes = header.encode()?;
    out.seek(SeekFrom::Start(0))?;
    out.write_all(&(bytes.len() as u64).to_le_bytes())?;
    out.write_all(&bytes)?;
    out.flush()?;
    Ok(())
}
