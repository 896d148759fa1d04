//! `.pb`, a file with one ONNX `TensorProto`.

use std::fs::File;

use kvscatter_onnx::internal::tensor_proto::raw_data;
use kvscatter_onnx::{Data, ExternalError, Tensor, read_tensor_pb};

use super::header::Header;
use super::{Location, Problem, source};

pub(super) fn read(location: &Location) -> Result<Tensor, Problem> {
    let (mut file, len) = source::open(location.path())?;
    decode(&source::exactly(&mut file, len)?)
}

/// Finds the `raw_data` of the tensor in a file of `len` bytes.
pub(super) fn find(mut file: &File, len: u64) -> Result<Header, Problem> {
    located(&source::exactly(&mut file, len)?)
}

fn decode(bytes: &[u8]) -> Result<Tensor, Problem> {
    read_tensor_pb(bytes).map_err(|error| match error.cause() {
        Some(ExternalError::WithoutFolder { location }) => {
            Problem::ExternalData { location: location.clone() }
        }
        _ => error.into(),
    })
}

fn located(bytes: &[u8]) -> Result<Header, Problem> {
    let (element, shape, Data::Bytes(values)) = decode(bytes)?.into_parts() else {
        return Err(Problem::StringsInPlace);
    };
    let range = raw_data(bytes).filter(|range| range.len() == values.len());
    let offset = range.ok_or(Problem::TypedDataInPlace)?.start;
    let offset = u64::try_from(offset).unwrap_or(u64::MAX);
    Ok(Header { element, shape, is_unpacked: false, offset, len: values.len() })
}

#[cfg(test)]
mod tests {
    use kvscatter::ElementType;
    use kvscatter_onnx::{Data, Tensor, write_tensor_pb};

    use super::{Problem, decode, located, raw_data};

    fn message() -> Vec<u8> {
        let data = Data::Bytes((10..16).collect());
        write_tensor_pb("k", &Tensor::new(ElementType::Int16, vec![3], data).unwrap()).unwrap()
    }

    /// Checks that the values are at the place in the header.
    fn check(bytes: &[u8]) -> Result<(), Problem> {
        let header = located(bytes)?;
        let values = bytes[usize::try_from(header.offset).unwrap()..][..header.len].to_vec();
        assert_eq!(decode(bytes).unwrap().data(), &Data::Bytes(values));
        Ok(())
    }

    #[test]
    fn the_last_of_two_counts() {
        let twice = [message(), message()].concat();
        assert!(raw_data(&twice).unwrap().start > message().len());
    }

    #[test]
    fn values_in_other_fields_are_refused() {
        let typed = include_bytes!("../../../../testdata/files/typed.pb");
        let strings = include_bytes!("../../../../testdata/files/strings.pb");
        assert!(matches!(located(typed), Err(Problem::TypedDataInPlace)));
        assert!(matches!(located(strings), Err(Problem::StringsInPlace)));
    }

    #[test]
    fn no_bytes_can_make_it_fail_otherwise_than_by_saying_so() {
        let good = message();
        check(&good).unwrap();
        for len in 0..good.len() {
            let _ = check(&good[..len]);
            for flip in 0..=255 {
                let mut bad = good.clone();
                bad[len] = flip;
                let _ = check(&bad);
            }
        }
    }
}
