//! `.npy`, the array file of NumPy, in versions 1 to 3.
//!
//! NumPy has no names for the types of `ml_dtypes` and saves only their width. It saves bfloat16 as `<V2`,
//! and most 8-bit floats and the 4-bit types as `<V1`. `ml_dtypes` stores **one value per byte** for 4-bit
//! types. Such a file gives its shape but not its type, so the user gives the type (`--type`). Only
//! `float8_e5m2` is saved with a name, `<f1`, which NumPy does not load. This module reads it, and writes it
//! by width as the others.

mod header;
mod literal;

use std::fs::File;
use std::io::BufReader;

use kvscatter::ElementType;
use kvscatter_onnx::{Data, Tensor};

use super::error::Problem;
use super::header::Header;
use super::nibbles::unpack;
pub(super) use header::read_header;

/// Reads the header of a file, which must have exactly the data that it describes.
pub(super) fn find(file: &File, file_len: u64, ty: Option<ElementType>) -> Result<Header, Problem> {
    let header = read_header(&mut BufReader::new(file), ty)?;
    check_len(&header, file_len)?;
    Ok(header)
}

/// Checks that a file of this length has exactly the data that its header describes.
pub(super) fn check_len(header: &Header, file_len: u64) -> Result<(), Problem> {
    let got = file_len.saturating_sub(header.offset);
    if u64::try_from(header.len) == Ok(got) {
        return Ok(());
    }
    let (element, shape) = (header.element, header.shape.clone());
    Err(Problem::DataLength { element, shape, expected: header.len, got })
}

/// Returns the bytes of an `.npy` file.
///
/// # Errors
/// Returns [`Problem::StringsOnlyInPb`] for strings, because NumPy stores them as Python pickles.
pub(super) fn encode(tensor: &Tensor) -> Result<Vec<u8>, Problem> {
    let Data::Bytes(bytes) = tensor.data() else {
        return Err(Problem::StringsOnlyInPb);
    };
    let element = tensor.element();
    let unpacked;
    let data = if element.bits() == Some(4) {
        unpacked = unpack(bytes, tensor.elements());
        &unpacked
    } else {
        bytes
    };
    let mut file = header::encode(element, tensor.shape())?;
    file.extend_from_slice(data);
    Ok(file)
}

#[cfg(test)]
mod tests {
    use kvscatter::ElementType;
    use kvscatter_onnx::{Data, Tensor};

    use super::{encode, read_header};

    #[test]
    fn written_arrays_read_back() {
        for element in ElementType::ALL {
            let Some(bits) = element.bits() else { continue };
            for shape in [vec![], vec![3], vec![2, 0], vec![3, 5]] {
                let count: usize = shape.iter().product();
                let len = (count * bits).div_ceil(8);
                let mut bytes: Vec<u8> = (0..=u8::MAX).map(|byte| byte | 0x50).cycle().take(len).collect();
                if count * bits % 8 == 4 {
                    *bytes.last_mut().unwrap() &= 0x0f;
                }
                let tensor = Tensor::new(element, shape, Data::Bytes(bytes)).unwrap();
                let file = encode(&tensor).unwrap();
                let mut source = file.as_slice();
                let header = read_header(&mut source, Some(element)).unwrap();
                assert_eq!(header.offset % 64, 0);
                assert_eq!(header.len, source.len());
                assert_eq!(header.tensor(source.to_vec()).unwrap(), tensor);
            }
        }
    }
}
