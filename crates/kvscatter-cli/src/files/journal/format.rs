//! The bytes of a journal.
//!
//! A journal is a header, the pieces of the write and a checksum of all bytes before it. Every number is
//! little-endian.
//!
//! | bytes | contents |
//! |---|---|
//! | 16 | `kvscatterjournal` |
//! | 4 | the version of the format, 1 |
//! | 4 | the element type, as a code of ONNX |
//! | 8 | the inode of the file |
//! | 8 | the length of the file |
//! | 8, 8 | the offset of the tensor in the file, and its length |
//! | 16 | a hash of its shape, and of how its elements are stored |
//! | 8, 8, n, n | for each piece: its offset in the tensor, its length n, its old and its new bytes |
//! | 16 | the checksum |
//!
//! The pieces ascend and do not overlap. Nothing is allocated for a number in a journal, except one piece of
//! limited length.

use std::io::{self, BufWriter, Read, Write};

use xxhash_rust::xxh3::Xxh3;

use super::rows::{MAX_PIECE, Rows, wide};
use crate::files::error::JournalProblem;

const MAGIC: [u8; 16] = *b"kvscatterjournal";
const VERSION: u32 = 1;
const HEADER: u64 = 72;
const CHECKSUM: u64 = 16;
/// The bytes before the contents of a piece.
const PIECE_HEADER: u64 = 16;

/// The tensor that a journal belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::files) struct Subject {
    /// The element type, as a code of ONNX.
    pub(in crate::files) element: i32,
    pub(in crate::files) inode: u64,
    /// The length of the file.
    pub(in crate::files) file_len: u64,
    /// The offset of the tensor in the file.
    pub(in crate::files) offset: u64,
    /// The length of the tensor in bytes.
    pub(in crate::files) len: u64,
    /// A hash of the shape and of how the elements are stored.
    pub(in crate::files) form: u128,
}

impl Subject {
    /// Returns the hash of a shape, and of whether each byte contains one 4-bit element.
    pub(in crate::files) fn form(is_byte_per_element: bool, shape: &[usize]) -> u128 {
        let mut form = Xxh3::new();
        form.update(&[u8::from(is_byte_per_element)]);
        for dim in shape {
            form.update(&wide(*dim).to_le_bytes());
        }
        form.digest128()
    }
}

/// A journal whose header was read.
pub(super) struct Journal<R> {
    source: Hashed<R>,
    /// The number of bytes after the header.
    left: u64,
    pub(super) subject: Subject,
}

/// Writes a whole journal. `cache` is the tensor before the write.
pub(super) fn write(to: impl Write, subject: &Subject, rows: &Rows<'_>, cache: &[u8]) -> io::Result<()> {
    let mut out = Hashed::new(BufWriter::with_capacity(4 * MAX_PIECE, to));
    out.write_all(&MAGIC)?;
    out.write_all(&VERSION.to_le_bytes())?;
    out.write_all(&subject.element.to_le_bytes())?;
    for number in [subject.inode, subject.file_len, subject.offset, subject.len] {
        out.write_all(&number.to_le_bytes())?;
    }
    out.write_all(&subject.form.to_le_bytes())?;
    rows.for_each_piece(cache, |start, old, new| {
        let len = wide(old.len());
        out.write_all(&start.to_le_bytes())?;
        out.write_all(&len.to_le_bytes())?;
        out.write_all(old)?;
        out.write_all(new)
    })?;
    let checksum = out.hash.digest128();
    out.inner.write_all(&checksum.to_le_bytes())?;
    out.inner.flush()
}

impl<R: Read> Journal<R> {
    /// Reads the header of a journal of `len` bytes.
    ///
    /// # Errors
    /// Returns [`JournalProblem`] if it is not the header of a journal that this version writes.
    pub(super) fn open(source: R, len: u64) -> Result<Self, JournalProblem> {
        let left = len.checked_sub(HEADER).filter(|&left| left >= CHECKSUM);
        let left = left.ok_or(JournalProblem::Damaged)?;
        let mut source = Hashed::new(source);
        if source.array()? != MAGIC {
            return Err(JournalProblem::Damaged);
        }
        let version = u32::from_le_bytes(source.array()?);
        if version != VERSION {
            return Err(JournalProblem::Version { version, known: VERSION });
        }
        let subject = Subject {
            element: i32::from_le_bytes(source.array()?),
            inode: source.number()?,
            file_len: source.number()?,
            offset: source.number()?,
            len: source.number()?,
            form: u128::from_le_bytes(source.array()?),
        };
        Ok(Self { source, left, subject })
    }

    /// Visits every piece, passing its offset in the tensor and its old and new bytes. Then compares the
    /// checksum, so the pieces can be trusted only after this method returns.
    ///
    /// # Errors
    /// Returns [`JournalProblem::Damaged`] if a piece is not inside the tensor or not after the previous one,
    /// or if the checksum is wrong. Returns the errors of `visit`.
    pub(super) fn for_each_piece(
        mut self,
        mut visit: impl FnMut(u64, &[u8], &[u8]) -> Result<(), JournalProblem>,
    ) -> Result<(), JournalProblem> {
        let (mut old, mut new) = (Vec::new(), Vec::new());
        let mut end = 0_u64;
        while self.left > CHECKSUM {
            let (start, len) = (self.source.number()?, self.source.number()?);
            let bytes = usize::try_from(len).ok().filter(|bytes| (1..=MAX_PIECE).contains(bytes));
            let bytes = bytes.ok_or(JournalProblem::Damaged)?;
            let taken = PIECE_HEADER.saturating_add(len.saturating_mul(2));
            let left = self.left.checked_sub(taken).filter(|&left| left >= CHECKSUM);
            self.left = left.ok_or(JournalProblem::Damaged)?;
            let piece_end = start.checked_add(len).filter(|&piece_end| piece_end <= self.subject.len);
            if start < end {
                return Err(JournalProblem::Damaged);
            }
            end = piece_end.ok_or(JournalProblem::Damaged)?;
            for side in [&mut old, &mut new] {
                side.resize(bytes, 0);
                self.source.read_exact(side)?;
            }
            visit(start, &old, &new)?;
        }
        let expected = self.source.hash.digest128();
        if self.left == CHECKSUM && u128::from_le_bytes(self.source.array()?) == expected {
            Ok(())
        } else {
            Err(JournalProblem::Damaged)
        }
    }
}

/// A reader or writer with the hash of the bytes that have passed.
struct Hashed<T> {
    inner: T,
    hash: Xxh3,
}

impl<T> Hashed<T> {
    fn new(inner: T) -> Self {
        Self { inner, hash: Xxh3::new() }
    }
}

impl<T: Write> Hashed<T> {
    fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.hash.update(bytes);
        self.inner.write_all(bytes)
    }
}

impl<T: Read> Hashed<T> {
    fn read_exact(&mut self, bytes: &mut [u8]) -> io::Result<()> {
        self.inner.read_exact(bytes)?;
        self.hash.update(bytes);
        Ok(())
    }

    fn array<const N: usize>(&mut self) -> io::Result<[u8; N]> {
        let mut bytes = [0; N];
        self.read_exact(&mut bytes)?;
        Ok(bytes)
    }

    fn number(&mut self) -> io::Result<u64> {
        self.array().map(u64::from_le_bytes)
    }
}
