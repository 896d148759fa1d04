//! `.pb`, a file with one ONNX `TensorProto`.

use std::ops::Range;

use kvscatter_onnx::internal::tensor_proto::raw_data;
use kvscatter_onnx::{Data, ExternalError, Tensor, read_tensor_pb};

use super::error::NotInPlace;
use super::{Location, Problem, source};

pub(super) fn read(location: &Location) -> Result<Tensor, Problem> {
    decode(&source::read_all(location.path())?)
}

fn decode(bytes: &[u8]) -> Result<Tensor, Problem> {
    read_tensor_pb(bytes).map_err(|error| match error.cause() {
        Some(ExternalError::WithoutFolder { location }) => {
            Problem::ExternalData { location: location.clone() }
        }
        _ => error.into(),
    })
}

/// Returns the tensor, and the range of its `raw_data` in the file.
pub(super) fn find(bytes: &[u8]) -> Result<(Tensor, Range<usize>), Problem> {
    let tensor = decode(bytes)?;
    let Data::Bytes(values) = tensor.data() else {
        return Err(Problem::NotInPlace(NotInPlace::Strings));
    };
    match raw_data(bytes) {
        Some(range) if range.len() == values.len() => Ok((tensor, range)),
        _ => Err(Problem::NotInPlace(NotInPlace::TypedData)),
    }
}

#[cfg(test)]
mod tests {
    use kvscatter::ElementType;
    use kvscatter_onnx::{Data, Tensor, write_tensor_pb};

    use super::{NotInPlace, Problem, find, raw_data};

    fn message() -> Vec<u8> {
        let data = Data::Bytes((10..16).collect());
        write_tensor_pb("k", &Tensor::new(ElementType::Int16, vec![3], data).unwrap()).unwrap()
    }

    #[test]
    fn the_range_is_where_the_values_are() {
        let bytes = message();
        let (tensor, range) = find(&bytes).unwrap();
        assert_eq!(tensor.data(), &Data::Bytes(bytes[range].to_vec()));
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
        assert!(matches!(find(typed), Err(Problem::NotInPlace(NotInPlace::TypedData))));
        assert!(matches!(find(strings), Err(Problem::NotInPlace(NotInPlace::Strings))));
    }

    #[test]
    fn no_bytes_can_make_it_fail_otherwise_than_by_saying_so() {
        let good = message();
        for len in 0..good.len() {
            let _ = find(&good[..len]);
            for flip in 0..=255 {
                let mut bad = good.clone();
                bad[len] = flip;
                if let Ok((tensor, range)) = find(&bad) {
                    assert_eq!(tensor.data(), &Data::Bytes(bad[range].to_vec()));
                }
            }
        }
    }
}
