//! Transposes matrices of packed elements.
//!
//! 4-bit elements are packed with the first in the low nibble, as in ONNX. The rows of the source begin at whole
//! bytes. The result is packed without gaps.

use kvscatter::ElementType;

/// The number of source bytes of one row that are transposed together.
const TILE_BYTES: usize = 64;
/// The number of columns of a tile of nibbles.
const TILE_NIBBLES: usize = 128;
/// The number of bytes that each row of the result gets from one tile.
const TILE_ROWS: usize = 32;

/// A strip of the source takes whole units of this many bytes. A unit has an even number of nibbles, and a whole
/// number of the widest elements.
const UNIT: usize = 8;

/// A matrix of weights that is written transposed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Transposition {
    rows: usize,
    columns: usize,
    row_bytes: usize,
    width: Width,
    /// Whether the highest bit of each element is inverted.
    inverts_sign: bool,
}

/// The width of an element.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Width {
    Nibble,
    One,
    Two,
    Four,
    Eight,
}

/// Columns of the source that are transposed together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Strip {
    /// The number of columns.
    pub(crate) columns: usize,
    /// The position of the first column in each row, in bytes.
    pub(crate) start: usize,
    /// The number of bytes of each row that have these columns.
    pub(crate) bytes: usize,
}

impl Transposition {
    /// Creates a transposition of a matrix whose rows take `row_bytes` bytes each. Bytes after the last column
    /// are ignored.
    ///
    /// Returns `None` unless these conditions hold:
    ///
    /// 1. Elements have 4, 8, 16, 32 or 64 bits.
    /// 2. The matrix is not empty.
    /// 3. A row has enough bytes for its columns.
    /// 4. The number of nibbles of the source fits `isize`.
    pub(crate) fn new(
        rows: usize,
        columns: usize,
        row_bytes: usize,
        element: ElementType,
        inverts_sign: bool,
    ) -> Option<Self> {
        // Condition 1
        let width = match element.bits()? {
            4 => Width::Nibble,
            8 => Width::One,
            16 => Width::Two,
            32 => Width::Four,
            64 => Width::Eight,
            _ => return None,
        };
        let transposition = Self { rows, columns, row_bytes, width, inverts_sign };
        let nibbles = rows.checked_mul(row_bytes)?.checked_mul(2)?;
        // Conditions 2, 3 and 4
        let fits =
            rows > 0 && columns > 0 && width.bytes(columns)? <= row_bytes && isize::try_from(nibbles).is_ok();
        fits.then_some(transposition)
    }

    /// Returns the number of bytes of the source.
    pub(crate) fn source_bytes(&self) -> usize {
        self.rows.saturating_mul(self.row_bytes)
    }

    /// Returns the number of rows of the source.
    pub(crate) fn rows(&self) -> usize {
        self.rows
    }

    /// Returns the number of columns of the source.
    pub(crate) fn columns(&self) -> usize {
        self.columns
    }

    /// Returns the number of bytes of each row of the source.
    pub(crate) fn row_bytes(&self) -> usize {
        self.row_bytes
    }

    /// Returns the strips of the source, each of at most `limit` bytes or the smallest possible.
    pub(crate) fn strips(&self, limit: usize) -> impl Iterator<Item = Strip> + use<> {
        let used = self.width.bytes(self.columns).unwrap_or(self.row_bytes);
        let each = limit.checked_div(self.rows).unwrap_or_default().max(UNIT);
        let each = each.min(used).next_multiple_of(UNIT);
        let (columns, width) = (self.columns, self.width);
        let per_strip = width.columns(each).max(1);
        let mut done = 0_usize;
        std::iter::from_fn(move || {
            let columns = columns.checked_sub(done).filter(|left| *left > 0)?.min(per_strip);
            let strip = Strip { columns, start: width.bytes(done)?, bytes: width.bytes(columns)? };
            done = done.checked_add(columns)?;
            Some(strip)
        })
    }

    /// Returns the number of bytes of these columns in the result.
    pub(crate) fn result_bytes(&self, columns: usize) -> usize {
        self.width.bytes(self.rows.saturating_mul(columns)).unwrap_or(usize::MAX)
    }

    /// Transposes the first columns of a source whose rows begin `stride` bytes apart. The result must have
    /// [`result_bytes`](Self::result_bytes) bytes, and its old contents do not matter.
    pub(crate) fn transpose(&self, source: &[u8], stride: usize, columns: usize, result: &mut [u8]) {
        match self.width {
            Width::Nibble if self.rows.is_multiple_of(2) => {
                pairs(source, stride, columns, self.rows, result);
            }
            Width::Nibble => nibbles(source, stride, columns, self.rows, result),
            Width::One => whole::<1>(source, stride, columns, self.rows, result),
            Width::Two => whole::<2>(source, stride, columns, self.rows, result),
            Width::Four => whole::<4>(source, stride, columns, self.rows, result),
            Width::Eight => whole::<8>(source, stride, columns, self.rows, result),
        }
        if self.inverts_sign {
            self.invert_signs(columns, result);
        }
    }

    /// Returns the row and column of an element that is not where it belongs, among the corners and a few
    /// thousand others of a strip.
    pub(crate) fn misplaced(
        &self,
        source: &[u8],
        stride: usize,
        columns: usize,
        result: &[u8],
    ) -> Option<(usize, usize)> {
        const SAMPLES: usize = 4096;
        // Multiples of large odd numbers reach all rows and columns of any number.
        let place = |sample: usize, factor: usize, size: usize| {
            sample
                .wrapping_mul(factor)
                .checked_shr(16)
                .and_then(|at| at.checked_rem(size))
                .unwrap_or_default()
        };
        let spread =
            (0..SAMPLES).map(|at| (place(at, 0x9E37_79B1, self.rows), place(at, 0x85EB_CA77, columns)));
        let [last_row, last_column] = [self.rows.saturating_sub(1), columns.saturating_sub(1)];
        let corners = [(0, 0), (0, last_column), (last_row, 0), (last_row, last_column)];
        corners.into_iter().chain(spread).find(|&(row, column)| {
            let read = source.get(row.saturating_mul(stride)..).and_then(|row| self.width.read(row, column));
            let wanted = read.map(|value| if self.inverts_sign { self.width.inverted(value) } else { value });
            let place = column.saturating_mul(self.rows).saturating_add(row);
            wanted.is_none() || wanted != self.width.read(result, place)
        })
    }

    fn invert_signs(&self, columns: usize, result: &mut [u8]) {
        match self.width {
            Width::Nibble => {
                result.iter_mut().for_each(|byte| *byte ^= 0x88);
                let is_odd = !self.rows.saturating_mul(columns).is_multiple_of(2);
                if let Some(last) = result.last_mut().filter(|_| is_odd) {
                    *last &= 0x0F;
                }
            }
            Width::One => result.iter_mut().for_each(|byte| *byte ^= 0x80),
            Width::Two | Width::Four | Width::Eight => {}
        }
    }
}

impl Width {
    /// Returns the number of bytes of this many elements without gaps.
    fn bytes(self, elements: usize) -> Option<usize> {
        match self {
            Self::Nibble => Some(elements.div_ceil(2)),
            Self::One => Some(elements),
            Self::Two => elements.checked_mul(2),
            Self::Four => elements.checked_mul(4),
            Self::Eight => elements.checked_mul(8),
        }
    }

    /// Returns the number of whole elements in this many bytes.
    fn columns(self, bytes: usize) -> usize {
        match self {
            Self::Nibble => bytes.saturating_mul(2),
            Self::One => bytes,
            Self::Two => bytes.div_euclid(2),
            Self::Four => bytes.div_euclid(4),
            Self::Eight => bytes.div_euclid(8),
        }
    }

    /// Returns the bits of an element.
    fn read(self, bytes: &[u8], at: usize) -> Option<u64> {
        let size = match self {
            Self::Nibble => {
                let byte = u64::from(*bytes.get(at.div_euclid(2))?);
                return Some(if at.is_multiple_of(2) { byte & 15 } else { byte >> 4 });
            }
            Self::One => 1,
            Self::Two => 2,
            Self::Four => 4,
            Self::Eight => 8_usize,
        };
        let start = at.checked_mul(size)?;
        let bytes = bytes.get(start..start.checked_add(size)?)?;
        Some(bytes.iter().rev().fold(0, |value, &byte| (value << 8) | u64::from(byte)))
    }

    fn inverted(self, value: u64) -> u64 {
        match self {
            Self::Nibble => value ^ 8,
            Self::One => value ^ 0x80,
            Self::Two | Self::Four | Self::Eight => value,
        }
    }
}

/// Transposes nibbles of an even number of rows, two rows at a time. Two nibbles of one column are one byte of
/// the result.
fn pairs(source: &[u8], stride: usize, columns: usize, rows: usize, result: &mut [u8]) {
    let (two, row_pairs) = (stride.max(1).saturating_mul(2), rows.div_euclid(2));
    let used = columns.div_ceil(2);
    let mut tile = [[0; TILE_ROWS]; TILE_NIBBLES];
    for (block, some) in source.chunks(two.saturating_mul(TILE_ROWS)).enumerate() {
        for first in (0..used).step_by(TILE_BYTES) {
            let last = first.saturating_add(TILE_BYTES).min(used);
            for (at, pair) in some.chunks(two).enumerate() {
                let Some((upper, lower)) = pair.split_at_checked(stride) else { continue };
                let (Some(upper), Some(lower)) = (upper.get(first..last), lower.get(first..last)) else {
                    continue;
                };
                for ([even, odd], (&upper, &lower)) in
                    tile.as_chunks_mut::<2>().0.iter_mut().zip(upper.iter().zip(lower))
                {
                    if let (Some(even), Some(odd)) = (even.get_mut(at), odd.get_mut(at)) {
                        *even = (upper & 15) | (lower << 4);
                        *odd = (upper >> 4) | (lower & 0xF0);
                    }
                }
            }
            let column = first.saturating_mul(2);
            flush(&tile, column, block.saturating_mul(TILE_ROWS), row_pairs, result);
        }
    }
}

/// Transposes nibbles one by one.
fn nibbles(source: &[u8], stride: usize, columns: usize, rows: usize, result: &mut [u8]) {
    result.fill(0);
    for (row, bytes) in source.chunks(stride.max(1)).enumerate() {
        let nibbles = bytes.iter().flat_map(|byte| [byte & 15, byte >> 4]);
        for (column, nibble) in nibbles.take(columns).enumerate() {
            let place = column.saturating_mul(rows).saturating_add(row);
            if let Some(byte) = result.get_mut(place.div_euclid(2)) {
                *byte |= if place.is_multiple_of(2) { nibble } else { nibble << 4 };
            }
        }
    }
}

/// Transposes elements of `W` bytes.
fn whole<const W: usize>(source: &[u8], stride: usize, columns: usize, rows: usize, result: &mut [u8]) {
    let mut tile = [[[0; W]; TILE_ROWS]; TILE_BYTES];
    let stride = stride.max(1);
    let (cells, _) = result.as_chunks_mut::<W>();
    for (block, some) in source.chunks(stride.saturating_mul(TILE_ROWS)).enumerate() {
        for first in (0..columns).step_by(TILE_BYTES) {
            for (at, row) in some.chunks(stride).enumerate() {
                let elements = row.as_chunks::<W>().0.get(first..).unwrap_or_default();
                for (cells, element) in tile.iter_mut().zip(elements) {
                    if let Some(cell) = cells.get_mut(at) {
                        *cell = *element;
                    }
                }
            }
            flush(&tile, first, block.saturating_mul(TILE_ROWS), rows, cells);
        }
    }
}

/// Copies a tile to rows of the result, from row `first` on. The tile's first element belongs to position `at` of
/// each row, and a row has `length` elements. Elements of the tile after the end of the result are left out.
fn flush<T: Copy, const C: usize>(
    tile: &[[T; TILE_ROWS]; C],
    first: usize,
    at: usize,
    length: usize,
    result: &mut [T],
) {
    let end = at.saturating_add(TILE_ROWS).min(length);
    for (row, cells) in result.chunks_exact_mut(length.max(1)).skip(first).zip(tile) {
        if let Some((row, cells)) =
            row.get_mut(at..end).and_then(|row| Some((&mut *row, cells.get(..end.checked_sub(at)?)?)))
        {
            row.copy_from_slice(cells);
        }
    }
}

#[cfg(test)]
#[expect(clippy::arithmetic_side_effects, clippy::as_conversions, reason = "the sizes of a test are small")]
mod tests {
    use kvscatter::ElementType;

    use super::{Strip, Transposition};

    /// Returns the bits of the element at a position of a packed array.
    fn element(bytes: &[u8], at: usize, bits: usize) -> u64 {
        let byte = |at: usize| u64::from(bytes[at]);
        match bits {
            4 => (byte(at / 2) >> (4 * (at % 2))) & 15,
            _ => (0..bits / 8).map(|part| byte(at * bits / 8 + part) << (8 * part)).sum(),
        }
    }

    fn transposed(it: &Transposition, source: &[u8], limit: usize) -> Vec<u8> {
        let mut all = Vec::new();
        for Strip { columns, start, bytes } in it.strips(limit) {
            let rows = source.chunks(it.row_bytes());
            let strip: Vec<u8> = rows.flat_map(|row| &row[start..][..bytes]).copied().collect();
            let mut result = vec![0xAA; it.result_bytes(columns)];
            it.transpose(&strip, bytes, columns, &mut result);
            assert_eq!(it.misplaced(&strip, bytes, columns, &result), None);
            all.extend(result);
        }
        all
    }

    #[test]
    fn every_element_moves_to_its_place() {
        let rows = [1, 2, 3, 31, 32, 33, 64, 65, 66];
        let columns = [1, 2, 3, 63, 64, 65, 128, 129];
        let elements = [
            ElementType::UInt4,
            ElementType::UInt8,
            ElementType::Float16,
            ElementType::Float32,
            ElementType::Float64,
        ];
        for element_type in elements {
            let bits = element_type.bits().unwrap();
            for (rows, columns) in rows.iter().flat_map(|&rows| columns.map(|columns| (rows, columns))) {
                for (padding, limit, inverts) in [(0, usize::MAX, false), (8, 4096, bits <= 8), (8, 1, false)]
                {
                    let row_bytes = (columns * bits).div_ceil(8) + padding;
                    let it = Transposition::new(rows, columns, row_bytes, element_type, inverts).unwrap();
                    let source: Vec<u8> = (0..it.source_bytes()).map(|at| (at * 7 % 251) as u8).collect();
                    let result = transposed(&it, &source, limit);
                    assert_eq!(result.len(), (rows * columns * bits).div_ceil(8));
                    for row in 0..rows {
                        for column in 0..columns {
                            let mut wanted = element(&source[row * row_bytes..], column, bits);
                            wanted ^= u64::from(inverts) << (bits - 1);
                            let got = element(&result, column * rows + row, bits);
                            assert_eq!(got, wanted, "{element_type} [{row}, {column}] of {rows} × {columns}");
                        }
                    }
                    if bits == 4 && !(rows * columns).is_multiple_of(2) {
                        assert_eq!(result.last().unwrap() >> 4, 0, "the unused nibble");
                    }
                }
            }
        }
    }

    #[test]
    fn a_changed_element_is_found() {
        let it = Transposition::new(2, 3, 3, ElementType::UInt8, false).unwrap();
        let mut result = vec![0; 6];
        it.transpose(&[1, 2, 3, 4, 5, 6], 3, 3, &mut result);
        assert_eq!(result, [1, 4, 2, 5, 3, 6]);
        result[3] = 0;
        assert_eq!(it.misplaced(&[1, 2, 3, 4, 5, 6], 3, 3, &result), Some((1, 1)));
    }

    #[test]
    fn what_cannot_be_transposed() {
        let new =
            |rows, columns, row_bytes, element| Transposition::new(rows, columns, row_bytes, element, false);
        assert!(new(1, 1, 1, ElementType::UInt4).is_some());
        assert!(new(1, 1, 1, ElementType::String).is_none());
        assert!(new(0, 1, 1, ElementType::UInt4).is_none());
        assert!(new(1, 0, 1, ElementType::UInt4).is_none());
        assert!(new(1, 3, 1, ElementType::UInt4).is_none());
        assert!(new(usize::MAX / 4, 1, 1, ElementType::UInt8).is_some());
        assert!(new(usize::MAX / 4 + 1, 1, 1, ElementType::UInt8).is_none());
    }
}
