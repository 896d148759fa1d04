//! The wire format of protobuf: a message is a list of fields, and a field is a tag with a value.

/// The field number and the wire type at the start of a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tag {
    pub(crate) number: u32,
    pub(crate) wire: u8,
}

/// The wire type of integers and enumerations.
pub(crate) const VARINT: u8 = 0;
/// The wire type of doubles.
pub(crate) const FIXED64: u8 = 1;
/// The wire type of strings, bytes, messages and packed lists: a length and as many bytes.
pub(crate) const BYTES: u8 = 2;
/// The wire type of a group, which ONNX does not use. The fields of the group and [`GROUP_END`] follow.
pub(crate) const GROUP: u8 = 3;
/// The wire type of the end of a group.
pub(crate) const GROUP_END: u8 = 4;
/// The wire type of floats.
pub(crate) const FIXED32: u8 = 5;

/// The reason why bytes are not a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "the messages describe the variants")]
pub enum DecodeError {
    #[error("unexpected end of buffer")]
    UnexpectedEnd,
    #[error("varint exceeded maximum length of 10 bytes")]
    VarintTooLong,
    #[error("invalid wire type: {0}")]
    InvalidWireType(u8),
    #[error("invalid field number")]
    InvalidFieldNumber,
    #[error("wire type mismatch on field {number}: expected {expected}, got {got}")]
    WireTypeMismatch { number: u32, expected: u8, got: u8 },
    #[error("invalid UTF-8 in string field")]
    InvalidUtf8,
    #[error("invalid end-group tag: field number {0}")]
    InvalidGroupEnd(u32),
    #[error("more than {limit} levels of nesting")]
    TooDeep { limit: u32 },
    #[error("its messages and strings take more than {limit} bytes of memory")]
    TooMuchMemory { limit: usize },
    #[error("more than 2 GiB")]
    TooLarge,
}

/// The limit on the nesting of messages and groups. It is the limit of other implementations as well.
const MAX_DEPTH: u32 = 100;

/// The limit on the memory of messages and of the elements of lists of strings, which take more bytes in memory
/// than in the file.
///
/// A node with its names and attributes takes about 1 KiB. The limit therefore allows graphs of about 250,000
/// nodes.
const MAX_MEMORY: usize = 256 << 20;

/// Reads the fields of a message.
#[derive(Debug)]
pub struct Reader<'a> {
    /// The unread bytes of the message or packed list that is being read.
    rest: &'a [u8],
    /// The number of levels that may still be entered.
    depth: u32,
    /// The number of bytes of memory that may still be allocated.
    memory: usize,
}

impl<'a> Reader<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes, depth: MAX_DEPTH, memory: MAX_MEMORY }
    }

    /// Returns the unread bytes.
    pub(crate) fn rest(&self) -> &'a [u8] {
        self.rest
    }

    pub(crate) fn tag(&mut self) -> Result<Tag, DecodeError> {
        let tag = u32::try_from(self.varint()?).map_err(|_| DecodeError::InvalidFieldNumber)?;
        let [wire, ..] = (tag & 7).to_le_bytes();
        match tag >> 3 {
            _ if wire > FIXED32 => Err(DecodeError::InvalidWireType(wire)),
            0 => Err(DecodeError::InvalidFieldNumber),
            number => Ok(Tag { number, wire }),
        }
    }

    pub(crate) fn varint(&mut self) -> Result<u64, DecodeError> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let [byte] = self.array()?;
            if shift == 63 && byte > 1 {
                break;
            }
            value |= u64::from(byte & 0x7F) << shift;
            if byte < 0x80 {
                return Ok(value);
            }
        }
        Err(DecodeError::VarintTooLong)
    }

    /// Reads a number of a fixed size.
    pub(crate) fn array<const N: usize>(&mut self) -> Result<[u8; N], DecodeError> {
        let (array, rest) = self.rest.split_first_chunk().ok_or(DecodeError::UnexpectedEnd)?;
        self.rest = rest;
        Ok(*array)
    }

    /// Reads a length and returns as many bytes.
    pub(crate) fn bytes(&mut self) -> Result<&'a [u8], DecodeError> {
        let len = usize::try_from(self.varint()?).ok();
        let (bytes, rest) =
            len.and_then(|len| self.rest.split_at_checked(len)).ok_or(DecodeError::UnexpectedEnd)?;
        self.rest = rest;
        Ok(bytes)
    }

    /// Reads a length, and calls `read` until it has read as many bytes.
    pub(crate) fn each(
        &mut self,
        mut read: impl FnMut(&mut Self) -> Result<(), DecodeError>,
    ) -> Result<(), DecodeError> {
        let inner = self.bytes()?;
        let outer = std::mem::replace(&mut self.rest, inner);
        while !self.rest.is_empty() {
            read(self)?;
        }
        self.rest = outer;
        Ok(())
    }

    /// Calls `read` one level deeper.
    pub(crate) fn nested(
        &mut self,
        read: impl FnOnce(&mut Self) -> Result<(), DecodeError>,
    ) -> Result<(), DecodeError> {
        let outer = self.depth;
        self.depth = outer.checked_sub(1).ok_or(DecodeError::TooDeep { limit: MAX_DEPTH })?;
        read(self)?;
        self.depth = outer;
        Ok(())
    }

    /// Counts memory that is about to be allocated.
    pub(crate) fn allocate(&mut self, bytes: usize) -> Result<(), DecodeError> {
        let left = self.memory.checked_sub(bytes);
        self.memory = left.ok_or(DecodeError::TooMuchMemory { limit: MAX_MEMORY })?;
        Ok(())
    }

    /// Reads the value of a field and drops it.
    pub(crate) fn skip(&mut self, tag: Tag) -> Result<(), DecodeError> {
        match tag.wire {
            VARINT => self.varint().map(drop),
            FIXED64 => self.array::<8>().map(drop),
            BYTES => self.bytes().map(drop),
            FIXED32 => self.array::<4>().map(drop),
            GROUP => self.nested(|reader| {
                loop {
                    match reader.tag()? {
                        Tag { number, wire: GROUP_END } if number == tag.number => return Ok(()),
                        Tag { number, wire: GROUP_END } => return Err(DecodeError::InvalidGroupEnd(number)),
                        inner => reader.skip(inner)?,
                    }
                }
            }),
            wire => Err(DecodeError::InvalidWireType(wire)),
        }
    }
}

/// Writes fields in two passes, because the length of a message precedes its bytes. The first pass only counts bytes.
#[derive(Debug)]
pub struct Writer {
    /// The number of bytes up to here.
    len: usize,
    /// The lengths of the messages and packed lists, in the order in which they begin.
    lengths: Vec<usize>,
    /// The number of these that have begun.
    begun: usize,
    /// The bytes up to here, in the second pass.
    bytes: Option<Vec<u8>>,
}

impl Writer {
    /// Returns the writer of the first pass.
    pub(crate) fn new() -> Self {
        Self { len: 0, lengths: Vec::new(), begun: 0, bytes: None }
    }

    /// Returns the writer of the second pass, for the same message.
    pub(crate) fn second_pass(self) -> Self {
        Self { len: 0, lengths: self.lengths, begun: 0, bytes: Some(Vec::with_capacity(self.len)) }
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn into_bytes(self) -> Vec<u8> {
        self.bytes.unwrap_or_default()
    }

    pub(crate) fn put(&mut self, bytes: &[u8]) {
        self.len = self.len.saturating_add(bytes.len());
        if let Some(written) = &mut self.bytes {
            written.extend_from_slice(bytes);
        }
    }

    pub(crate) fn tag(&mut self, number: u32, wire: u8) {
        self.varint(u64::from(number) << 3 | u64::from(wire));
    }

    pub(crate) fn varint(&mut self, mut value: u64) {
        loop {
            let [low, ..] = value.to_le_bytes();
            value >>= 7;
            if value == 0 {
                return self.put(&[low]);
            }
            self.put(&[low | 0x80]);
        }
    }

    pub(crate) fn bytes(&mut self, bytes: &[u8]) {
        self.length(bytes.len());
        self.put(bytes);
    }

    /// Writes the number of bytes that `write` writes, and then these bytes.
    pub(crate) fn nested(&mut self, write: &dyn Fn(&mut Self)) {
        let at = self.begun;
        self.begun = at.saturating_add(1);
        if let Some(&length) = self.lengths.get(at) {
            self.length(length);
            return write(self);
        }
        self.lengths.push(0);
        let start = self.len;
        write(self);
        let length = self.len.saturating_sub(start);
        if let Some(slot) = self.lengths.get_mut(at) {
            *slot = length;
        }
        self.length(length);
    }

    fn length(&mut self, len: usize) {
        self.varint(u64::try_from(len).unwrap_or(u64::MAX));
    }
}
