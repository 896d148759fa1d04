//! ONNX's storage of 4-bit elements: packed flat over the whole tensor, first element in the low nibble, the pad nibble
//! after an odd number of elements 0.

/// Two elements to a byte. Only the low four bits of an element count.
#[must_use]
pub fn pack(elements: &[u8]) -> Vec<u8> {
    elements.chunks(2).map(|pair| (pair[0] & 0xF) | (pair.get(1).unwrap_or(&0) & 0xF) << 4).collect()
}

/// The first `count` elements of packed storage.
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
