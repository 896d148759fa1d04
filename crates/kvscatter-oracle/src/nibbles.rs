//! ONNX's storage of 4-bit elements. They are packed over the whole tensor, and the first element is in the
//! low nibble. After an odd number of elements, the pad nibble is 0.

/// Packs two elements into a byte. Only the low four bits of each element are used.
#[must_use]
pub fn pack(elements: &[u8]) -> Vec<u8> {
    elements.chunks(2).map(|pair| (pair[0] & 0xF) | (pair.get(1).unwrap_or(&0) & 0xF) << 4).collect()
}

/// Returns the first `count` elements of packed storage.
#[must_use]
pub fn unpack(bytes: &[u8], count: usize) -> Vec<u8> {
    bytes.iter().flat_map(|byte| [byte & 0xF, byte >> 4]).take(count).collect()
}

#[cfg(test)]
mod tests {
    use super::{pack, unpack};

    #[test]
    fn first_element_in_the_low_nibble_and_the_pad_nibble_is_zero() {
        assert_eq!(pack(&[1, 2, 3]), [0x21, 0x03]);
        assert_eq!(pack(&[0xF, 0xA]), [0xAF]);
        assert_eq!(pack(&[]), []);
    }

    #[test]
    fn unpacking_stops_before_the_pad() {
        assert_eq!(unpack(&[0x21, 0xF3], 3), [1, 2, 3]);
        assert_eq!(unpack(&[0x21, 0xF3], 4), [1, 2, 3, 15]);
    }
}
