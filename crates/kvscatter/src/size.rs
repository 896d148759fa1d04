//! How many elements and bytes a shape takes, checked (G1).

/// Elements of a tensor of these dimensions, or `None` if the product of the *non-zero* ones, in elements or
/// in bytes, exceeds `isize::MAX`: a zero in one place does not excuse an absurd size in another, and strides
/// computed from the rest stay representable.
pub(crate) fn elements(shape: &[usize], bits: usize) -> Option<usize> {
    let product = shape.iter().filter(|&&dim| dim != 0).try_fold(1_usize, |n, &dim| n.checked_mul(dim))?;
    bytes(product, bits)?;
    Some(if shape.contains(&0) { 0 } else { product })
}

/// Bytes that this many elements take, 4-bit ones packed two to a byte; `None` if the elements or the bytes
/// exceed `isize::MAX`.
pub(crate) fn bytes(elements: usize, bits: usize) -> Option<usize> {
    isize::try_from(elements).ok()?;
    let bytes = if bits < 8 { elements.div_ceil(2) } else { elements.checked_mul(bits.div_ceil(8))? };
    isize::try_from(bytes).ok()?;
    Some(bytes)
}

/// What an element takes, for counting in bytes what was checked in elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Width {
    Bytes(usize),
    /// Two to a byte: for offsets and lengths that are even.
    Nibble,
}

impl Width {
    /// Bytes of so many elements of one tensor.
    #[inline(always)]
    pub(crate) fn bytes(self, elements: usize) -> usize {
        match self {
            Self::Bytes(width) => elements.wrapping_mul(width), // G1
            Self::Nibble => elements / 2,
        }
    }

    /// Bytes of a stride of so many elements.
    pub(crate) fn step(self, elements: isize) -> isize {
        match self {
            Self::Bytes(width) => elements.wrapping_mul(width.cast_signed()), // G1
            Self::Nibble => elements / 2,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{bytes, elements};

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
    fn odd_nibbles_round_up() {
        assert_eq!(bytes(0, 4), Some(0));
        assert_eq!(bytes(3, 4), Some(2));
        assert_eq!(bytes(3, 128), Some(48));
    }
}
