//! Computes the elements and bytes of a shape with checked arithmetic (G1).
//!
//! The crate documentation defines G1.

/// Returns the number of elements of a tensor with these dimensions.
///
/// Returns `None` if the product of the *non-zero* dimensions exceeds `isize::MAX`, in elements or in bytes.
/// A zero dimension does not excuse an overflow of the others, so strides computed from the others stay
/// representable.
pub(crate) fn elements(shape: &[usize], bits: usize) -> Option<usize> {
    let product = shape.iter().filter(|&&dim| dim != 0).try_fold(1_usize, |n, &dim| n.checked_mul(dim))?;
    bytes(product, bits)?;
    Some(if shape.contains(&0) { 0 } else { product })
}

/// Returns the bytes that this many elements take, with 4-bit elements packed two to a byte.
///
/// Returns `None` if the elements or the bytes exceed `isize::MAX`.
pub(crate) fn bytes(elements: usize, bits: usize) -> Option<usize> {
    isize::try_from(elements).ok()?;
    let bytes = if bits < 8 { elements.div_ceil(2) } else { elements.checked_mul(bits.div_ceil(8))? };
    isize::try_from(bytes).ok()?;
    Some(bytes)
}

/// The width of an element, used to convert checked element counts to bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Width {
    Bytes(usize),
    /// Half a byte. Offsets and lengths must be even.
    Nibble,
}

impl Width {
    /// Returns the bytes of this many elements of one tensor.
    #[inline(always)]
    pub(crate) fn bytes(self, elements: usize) -> usize {
        match self {
            Self::Bytes(width) => elements.wrapping_mul(width), // G1
            Self::Nibble => elements / 2,
        }
    }

    /// Returns the bytes of a stride of this many elements.
    pub(crate) fn step(self, elements: isize) -> isize {
        match self {
            Self::Bytes(width) => elements.wrapping_mul(width.cast_signed()), // G1
            Self::Nibble => elements / 2,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Width, bytes, elements};

    const MAX: usize = isize::MAX.unsigned_abs();

    #[test]
    fn products_up_to_the_limit_and_not_beyond() {
        assert_eq!(elements(&[], 8), Some(1));
        assert_eq!(elements(&[MAX], 8), Some(MAX));
        assert_eq!(elements(&[MAX, 1], 4), Some(MAX));
        assert_eq!(elements(&[MAX], 16), None);
        assert_eq!(elements(&[MAX, 2], 4), None);
        assert_eq!(elements(&[usize::MAX], 4), None);
    }

    #[test]
    fn a_zero_hides_no_overflow() {
        assert_eq!(elements(&[0, 7], 8), Some(0));
        assert_eq!(elements(&[0, MAX, 2], 8), None);
        assert_eq!(elements(&[0, MAX], 128), None);
    }

    #[test]
    fn two_nibbles_are_a_byte() {
        assert_eq!((Width::Nibble.bytes(6), Width::Nibble.step(-6)), (3, -3));
        assert_eq!((Width::Bytes(2).bytes(6), Width::Bytes(2).step(-6)), (12, -12));
    }

    #[test]
    fn odd_nibbles_round_up() {
        assert_eq!(bytes(0, 4), Some(0));
        assert_eq!(bytes(3, 4), Some(2));
        assert_eq!(bytes(3, 128), Some(48));
    }
}
