//! Converts between the two ways to store 4-bit elements.
//!
//! - ONNX, and [`Tensor`](kvscatter_onnx::Tensor) here, pack two elements into a byte. The first is in the
//!   low nibble.
//! - Arrays of `ml_dtypes`, and so `.npy` files, store one element per byte.

use kvscatter::ElementType;

use super::Problem;

/// Packs values from one per byte to two per byte. If their number is odd, the last nibble is 0.
///
/// # Errors
/// Returns [`Problem::Nibble`] if a value does not fit 4 bits. An `int4` value may be sign-extended.
pub(crate) fn pack(element: ElementType, values: &[u8]) -> Result<Vec<u8>, Problem> {
    let nibble = |index: usize, value: u8| {
        let negative = element == ElementType::Int4 && value >= 0xf8;
        if value <= 0x0f || negative {
            Ok(value & 0x0f)
        } else {
            Err(Problem::Nibble { element, index, value })
        }
    };
    let mut packed = vec![0; values.len().div_ceil(2)];
    for ((at, pair), byte) in values.chunks(2).enumerate().zip(&mut packed) {
        for (index, &value) in pair.iter().enumerate() {
            let value = nibble(at.saturating_mul(2).saturating_add(index), value)?;
            *byte |= if index == 0 { value } else { value << 4 };
        }
    }
    Ok(packed)
}

/// Unpacks `count` values to one per byte. The upper nibble is 0, as `ml_dtypes` stores it.
pub(crate) fn unpack(packed: &[u8], count: usize) -> Vec<u8> {
    packed.iter().flat_map(|byte| [byte & 0x0f, byte >> 4]).take(count).collect()
}

#[cfg(test)]
mod tests {
    use kvscatter::ElementType;

    use super::{Problem, pack, unpack};

    #[test]
    fn every_pair_goes_there_and_back() {
        for low in 0..16 {
            for high in 0..16 {
                let values = [low, high, high];
                let packed = pack(ElementType::UInt4, &values).unwrap();
                assert_eq!(packed, [low | high << 4, high]);
                assert_eq!(unpack(&packed, 3), values);
            }
        }
        assert!(pack(ElementType::UInt4, &[]).unwrap().is_empty());
    }

    #[test]
    fn only_int4_may_be_sign_extended() {
        assert_eq!(pack(ElementType::Int4, &[0xff, 0xf8]).unwrap(), [0x8f]);
        for (element, value) in [
            (ElementType::Int4, 0xf7),
            (ElementType::Int4, 0x10),
            (ElementType::UInt4, 0xff),
            (ElementType::Float4E2M1, 0x1f),
        ] {
            let Err(Problem::Nibble { index, value: got, .. }) = pack(element, &[1, 2, 3, value]) else {
                panic!("{element} takes {value:#x}");
            };
            assert_eq!((index, got), (3, value));
        }
    }
}
