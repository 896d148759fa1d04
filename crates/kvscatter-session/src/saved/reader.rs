//! Reads the file of a saved sample. All checksums are compared before values are copied, and again while they are
//! copied.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::ops::Range;
use std::path::{Path, PathBuf};

use kvscatter_onnx::internal::file;
use xxhash_rust::xxh3::Xxh3Default;

use super::SavedError;
use super::header::{Header, MAX_HEADER, Place};
use super::sample::{Parts, SavedSample, TOKENS};

/// The number of bytes that are read or written, and hashed, at a time. They fit into the second level of the
/// processor's cache. Pieces of 64 KiB are a tenth slower.
pub(super) const PIECE: usize = 256 << 10;

/// An open file with a sample. The header and the ids of the tokens are checked, the other values are not yet.
#[derive(Debug)]
pub(crate) struct SavedFile<R = File> {
    file: R,
    path: PathBuf,
    sample: SavedSample,
    /// The place of each tensor of the sample.
    places: Vec<Place>,
    /// The offset of the first value in the file.
    start: u64,
    scratch: Vec<u8>,
}

impl SavedFile {
    /// Opens a regular file. Errors have the path.
    pub(crate) fn open(path: &Path) -> Result<Self, SavedError> {
        let (file, len) = file::open(path)?;
        Self::from_reader(file, len, path).map_err(|error| error.in_file(path))
    }
}

impl<R: Read + Seek> SavedFile<R> {
    /// Reads the header and the tokens of a file of `file_len` bytes. Allocates no more than a multiple of the header's
    /// length, which is limited, and of the number of tokens that the file contains.
    pub(super) fn from_reader(mut file: R, file_len: u64, path: &Path) -> Result<Self, SavedError> {
        let rest = file_len.checked_sub(8).ok_or(SavedError::NotSaved)?;
        let mut header_len = [0; 8];
        file.read_exact(&mut header_len)?;
        let len = u64::from_le_bytes(header_len);
        let is_within = len <= MAX_HEADER;
        let bytes = usize::try_from(len).ok().filter(|_| is_within);
        let bytes = bytes.ok_or(SavedError::HeaderTooLong { len, limit: MAX_HEADER })?;
        let start = len.saturating_add(8);
        let data = rest.checked_sub(len).ok_or(SavedError::Length { expected: start, got: file_len })?;
        let mut header = vec![0; bytes];
        file.read_exact(&mut header)?;
        let Header { model, tokens: place, tensors, position: _ } = Header::decode(&header, data)?;
        let (tensors, places) = tensors.into_iter().unzip();
        let sample = SavedSample { model, tokens: Vec::new(), tensors };
        let path = path.to_owned();
        let mut opened = Self { file, path, sample, places, start, scratch: vec![0; PIECE] };
        opened.read_tokens(&place)?;
        Ok(opened)
    }

    /// Returns the sample. Its tensors are in the order of the file.
    pub(crate) fn sample(&self) -> &SavedSample {
        &self.sample
    }

    /// Reads all tensors and compares their checksums. Returns [`SavedError::TensorChecksum`] and [`SavedError::Io`],
    /// with the path.
    pub(crate) fn verify(&mut self) -> Result<(), SavedError> {
        (0..self.places.len())
            .try_for_each(|tensor| self.verify_tensor(tensor))
            .map_err(|error| self.named(error))
    }

    /// Reads the rows of a tensor from row `skip` on into ranges of `target`, in order: the rows at the first index of
    /// the dimensions before the sequence, then those at the next. A state is one row. Compares the checksum of the
    /// whole tensor, skipped rows included.
    ///
    /// A range may end anywhere, also within a row. All errors have the path.
    ///
    /// - Returns [`SavedError::ByteCount`] before anything is written if the ranges are not in `target`, or not as
    ///   long as these rows.
    /// - Returns [`SavedError::TensorChecksum`] and [`SavedError::Io`]. Then the ranges may have been written.
    pub(crate) fn read(
        &mut self,
        tensor: usize,
        skip: usize,
        target: &mut [u8],
        ranges: impl IntoIterator<Item = Range<usize>>,
    ) -> Result<(), SavedError> {
        let ranges = ranges.into_iter().collect();
        self.read_into(tensor, skip, target, ranges).map_err(|error| self.named(error))
    }

    fn verify_tensor(&mut self, tensor: usize) -> Result<(), SavedError> {
        let Some(place) = self.places.get(tensor).cloned() else { return Ok(()) };
        let mut pass = self.pass(&place)?;
        pass.skip(place.bytes.len())?;
        pass.finish(&place).then_some(()).ok_or_else(|| self.damaged(tensor))
    }

    fn read_into(
        &mut self,
        tensor: usize,
        skip: usize,
        target: &mut [u8],
        ranges: Vec<Range<usize>>,
    ) -> Result<(), SavedError> {
        let (described, place) = match (self.sample.tensors.get(tensor), self.places.get(tensor)) {
            (Some(tensor), Some(place)) => (tensor, place.clone()),
            _ => return Ok(()),
        };
        let Parts { count, len, row } = described.parts();
        let skipped = row.saturating_mul(skip).min(len);
        let expected = count * (len - skipped);
        let got =
            ranges.iter().map(|range| target.get(range.clone()).map(<[u8]>::len)).sum::<Option<usize>>();
        if got != Some(expected) {
            let (tensor, got) = (described.name.clone(), got.unwrap_or_default());
            return Err(SavedError::ByteCount { tensor, expected, got });
        }
        let mut pass = self.pass(&place)?;
        // The number of bytes of the current part that are still to be read.
        let mut left = 0;
        for mut range in ranges {
            while !range.is_empty() {
                if left == 0 {
                    pass.skip(skipped)?;
                    left = len - skipped;
                }
                let end = range.end.min(range.start.saturating_add(left));
                if let Some(target) = target.get_mut(range.start..end) {
                    pass.fill(target)?;
                }
                left -= end - range.start;
                range.start = end;
            }
        }
        if expected == 0 {
            pass.skip(place.bytes.len())?;
        }
        pass.finish(&place).then_some(()).ok_or_else(|| self.damaged(tensor))
    }

    fn read_tokens(&mut self, place: &Place) -> Result<(), SavedError> {
        let mut tokens = Vec::new();
        let mut pass = self.pass(place)?;
        // The list grows with what is read, because a file can have a large hole.
        for begin in place.bytes.clone().step_by(PIECE) {
            let len = PIECE.min(place.bytes.end - begin);
            let (ids, _) = pass.read(len)?.as_chunks();
            tokens.extend(ids.iter().map(|id| i64::from_le_bytes(*id)));
        }
        if !pass.finish(place) {
            return Err(SavedError::TensorChecksum { tensor: TOKENS.to_owned() });
        }
        self.sample.tokens = tokens;
        Ok(())
    }

    /// Begins to read a tensor.
    fn pass(&mut self, place: &Place) -> Result<Pass<'_, R>, SavedError> {
        self.file.seek(SeekFrom::Start(self.start.saturating_add(place.bytes.start as u64)))?;
        Ok(Pass { file: &mut self.file, scratch: &mut self.scratch, hash: Xxh3Default::new() })
    }

    fn damaged(&self, tensor: usize) -> SavedError {
        let name = self.sample.tensors.get(tensor).map(|tensor| tensor.name.clone());
        SavedError::TensorChecksum { tensor: name.unwrap_or_default() }
    }

    fn named(&self, error: SavedError) -> SavedError {
        error.in_file(&self.path)
    }
}

/// One pass over the bytes of a tensor.
struct Pass<'r, R> {
    file: &'r mut R,
    scratch: &'r mut [u8],
    hash: Xxh3Default,
}

impl<R: Read> Pass<'_, R> {
    /// Reads and hashes at most [`PIECE`] bytes.
    fn read(&mut self, len: usize) -> Result<&[u8], SavedError> {
        let piece = self.scratch.get_mut(..len).unwrap_or_default();
        self.file.read_exact(piece)?;
        self.hash.update(piece);
        Ok(piece)
    }

    fn skip(&mut self, len: usize) -> Result<(), SavedError> {
        for begin in (0..len).step_by(PIECE) {
            self.read(PIECE.min(len - begin))?;
        }
        Ok(())
    }

    /// Reads and hashes pieces. Each piece is still in the processor's cache when it is hashed.
    fn fill(&mut self, target: &mut [u8]) -> Result<(), SavedError> {
        for piece in target.chunks_mut(PIECE) {
            self.file.read_exact(piece)?;
            self.hash.update(piece);
        }
        Ok(())
    }

    fn finish(self, place: &Place) -> bool {
        self.hash.digest128() == place.checksum
    }
}
