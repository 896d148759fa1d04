//! `.safetensors`, a file with a JSON header and the tensors after it.

use std::fmt;
use std::fs::File;
use std::io::Read;
use std::path::Path;

use kvscatter::ElementType;
use kvscatter_onnx::{Data, Tensor};
use safetensors::tensor::{Metadata, TensorInfo, TensorView};
use safetensors::{Dtype, SafeTensorError};
use serde::de::{IgnoredAny, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};

use super::header::Header;
use super::{Problem, source};

/// The limit of the header in the reference implementation.
const MAX_HEADER: u64 = 100_000_000;

/// The key of the header that does not name a tensor.
const METADATA: &str = "__metadata__";

/// Reads the header and finds the given entry, or the only entry if none is given.
pub(super) fn find(file: &File, file_len: u64, asked: Option<&str>) -> Result<Header, Problem> {
    let (metadata, data_offset) = header(file, file_len)?;
    let names = metadata.offset_keys();
    let name = match (asked, names.as_slice()) {
        (Some(asked), _) => asked,
        (None, [only]) => only,
        (None, _) => return Err(Problem::WhichEntry { have: names }),
    };
    let Some(info) = metadata.info(name) else {
        return Err(Problem::NoEntry { entry: name.to_owned(), have: names });
    };
    located(info, data_offset)
}

/// Returns the names of the tensors in a file.
pub(super) fn names(path: &Path) -> Result<Vec<String>, Problem> {
    let (file, file_len) = source::open(path)?;
    let (metadata, _) = header(&file, file_len)?;
    Ok(metadata.offset_keys())
}

fn located(info: &TensorInfo, data_offset: u64) -> Result<Header, Problem> {
    let dtype = info.dtype.to_string();
    let element = ElementType::from_safetensors_name(&dtype).ok_or(Problem::SafetensorsType { dtype })?;
    let (begin, end) = info.data_offsets;
    // `header` has compared the last end with the length of the file. The crate has compared the offsets.
    Ok(Header {
        element,
        shape: info.shape.clone(),
        is_unpacked: false,
        offset: data_offset.saturating_add(u64::try_from(begin).unwrap_or(u64::MAX)),
        len: end.saturating_sub(begin),
    })
}

/// Returns the header, and the offset of the data after it.
fn header(mut file: &File, file_len: u64) -> Result<(Metadata, u64), Problem> {
    let mut len = [0; 8];
    file.read_exact(&mut len).map_err(|_| SafeTensorError::HeaderTooSmall)?;
    let len = u64::from_le_bytes(len);
    if len > MAX_HEADER {
        return Err(Problem::TooLong { len, limit: MAX_HEADER });
    }
    let data_offset = len.saturating_add(8);
    if data_offset > file_len {
        return Err(SafeTensorError::InvalidHeaderLength.into());
    }
    let text = source::exactly(&mut file, len)?;
    // The crate silently keeps the last of two tensors of one name.
    let Names(mut names) =
        serde_json::from_slice(&text).map_err(SafeTensorError::InvalidHeaderDeserialization)?;
    names.sort_unstable();
    if let Some([name, _]) = names.array_windows().find(|[one, next]| one == next) {
        return Err(Problem::DuplicateEntry { entry: name.clone() });
    }
    let metadata: Metadata =
        serde_json::from_slice(&text).map_err(SafeTensorError::InvalidHeaderDeserialization)?;
    let data_len = u64::try_from(metadata.data_len()).unwrap_or(u64::MAX);
    if data_offset.saturating_add(data_len) != file_len {
        return Err(SafeTensorError::MetadataIncompleteBuffer.into());
    }
    Ok((metadata, data_offset))
}

/// The keys of a JSON object, with repeated keys.
struct Names(Vec<String>);

impl<'de> Deserialize<'de> for Names {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Keys;

        impl<'de> Visitor<'de> for Keys {
            type Value = Names;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a map of tensors")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Names, A::Error> {
                let mut names = Vec::new();
                while let Some((name, IgnoredAny)) = map.next_entry()? {
                    names.push(name);
                }
                Ok(Names(names))
            }
        }

        deserializer.deserialize_map(Keys)
    }
}

/// Returns the bytes of a file with these tensors.
pub(super) fn encode(entries: &[(&str, &Tensor)]) -> Result<Vec<u8>, Problem> {
    if entries.iter().any(|(name, _)| *name == METADATA) {
        return Err(Problem::ReservedEntry { entry: METADATA });
    }
    let views = entries
        .iter()
        .map(|(name, tensor)| Ok((*name, view(tensor)?)))
        .collect::<Result<Vec<_>, Problem>>()?;
    Ok(safetensors::serialize(views, None)?)
}

fn view(tensor: &Tensor) -> Result<TensorView<'_>, Problem> {
    let element = tensor.element();
    let Data::Bytes(bytes) = tensor.data() else {
        return Err(Problem::StringsOnlyInPb);
    };
    let dtype = dtype(element).ok_or(Problem::NoSafetensorsType { element })?;
    TensorView::new(dtype, tensor.shape().to_vec(), bytes).map_err(|error| match error {
        SafeTensorError::MisalignedSlice => Problem::OddSafetensors { elements: tensor.elements() },
        error => error.into(),
    })
}

/// Returns the type of the crate with the same name. The serialised form of a type is its name.
fn dtype(element: ElementType) -> Option<Dtype> {
    let name = serde_json::Value::from(element.safetensors_name()?);
    serde_json::from_value(name).ok()
}

#[cfg(test)]
mod tests {
    use kvscatter::ElementType;

    #[test]
    fn the_crate_knows_every_name_and_width_of_the_table() {
        for element in ElementType::ALL {
            let Some(name) = element.safetensors_name() else {
                assert!(super::dtype(element).is_none());
                continue;
            };
            let dtype = super::dtype(element).unwrap();
            assert_eq!(dtype.to_string(), name);
            assert_eq!(Some(dtype.bitsize()), element.bits());
        }
    }
}
