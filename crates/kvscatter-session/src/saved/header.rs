//! The header: JSON with the metadata and the description of each tensor.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fmt;
use std::ops::Range;

use kvscatter::ElementType;
use kvscatter_onnx::Fingerprint;
use safetensors::Dtype;
use safetensors::tensor::TensorInfo;
use serde::de::{Error, MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use xxhash_rust::xxh3::xxh3_128;

use super::SavedError;
use super::sample::{METADATA, SavedKind, SavedSample, SavedTensor, TOKENS};

/// The version of the format.
const VERSION: &str = "1";

/// The limit of the length of a header. A header of 100 layers takes about 60 KB.
pub(super) const MAX_HEADER: u64 = 4 << 20;

/// The first bytes of every header. The version and its quotation mark follow.
pub(super) const BEGINNING: &str = r#"{"__metadata__":{"kvscatter.saved":""#;

/// The bytes between the version and the checksum of the header.
const BEFORE_CHECKSUM: &str = r#"","kvscatter.checksum":""#;

/// The number of bytes of a header from which its version can be determined.
const VERSION_END: usize = 64;

const DIGITS: usize = 32;

const SAVED: &str = "kvscatter.saved";
const CHECKSUM: &str = "kvscatter.checksum";
const MODEL: &str = "kvscatter.model";
const POSITION: &str = "kvscatter.position";
/// The keys of the entries of tensors begin with this.
const TENSOR: &str = "kvscatter.tensor.";

/// A header. The values of the tensors follow it in the order of `tokens` and `tensors`.
#[derive(Debug)]
pub(super) struct Header {
    pub(super) model: Fingerprint,
    pub(super) position: usize,
    /// The place of the ids of the tokens.
    pub(super) tokens: Place,
    pub(super) tensors: Vec<(SavedTensor, Place)>,
}

/// Where the values of a tensor are after the header, and their checksum.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) bytes: Range<usize>,
    pub(super) checksum: u128,
}

impl Header {
    /// Places the tensors of a sample, widest elements first. The checksums are 0.
    pub(super) fn new(sample: &SavedSample) -> Result<Self, SavedError> {
        let position = sample.tokens.len();
        SavedSample::check(&sample.tensors, position)?;
        let too_large = |tensor: &SavedTensor| SavedError::Shape {
            tensor: tensor.name.clone(),
            shape: tensor.shape.clone(),
        };
        let mut end = position * size_of::<i64>();
        let tokens = Place { bytes: 0..end, checksum: 0 };
        let mut order: Vec<_> = sample.tensors.iter().collect();
        order.sort_by_key(|tensor| std::cmp::Reverse(tensor.element.bits()));
        let mut tensors = Vec::with_capacity(order.len());
        for tensor in order {
            let next = end.checked_add(tensor.len()).ok_or_else(|| too_large(tensor))?;
            tensors.push((tensor.clone(), Place { bytes: end..next, checksum: 0 }));
            end = next;
        }
        Ok(Self { model: sample.model, position, tokens, tensors })
    }

    /// Returns the bytes of the header. Their number does not depend on the checksums.
    pub(super) fn encode(&self) -> Result<Vec<u8>, SavedError> {
        let mut bytes = serde_json::to_vec(&self.json()?).map_err(json)?;
        // The values begin at a multiple of 64 bytes, after 8 bytes with the length of the header.
        bytes.resize((bytes.len() + 8).next_multiple_of(64) - 8, b' ');
        let len = bytes.len() as u64;
        if len > MAX_HEADER {
            return Err(SavedError::HeaderTooLong { len, limit: MAX_HEADER });
        }
        let checksum = format!("{:0DIGITS$x}", xxh3_128(&bytes));
        let start = BEGINNING.len() + VERSION.len() + BEFORE_CHECKSUM.len();
        if let Some(digits) = bytes.get_mut(start..start + DIGITS) {
            digits.copy_from_slice(checksum.as_bytes());
        }
        Ok(bytes)
    }

    /// Returns the JSON: the metadata, then the tensors.
    fn json(&self) -> Result<Pairs<Value>, SavedError> {
        let mut metadata = vec![
            (SAVED.to_owned(), VERSION.to_owned()),
            (CHECKSUM.to_owned(), "0".repeat(DIGITS)),
            (MODEL.to_owned(), self.model.to_string()),
            (POSITION.to_owned(), self.position.to_string()),
        ];
        let mut tensors = Vec::new();
        let mut add = |name: &str, element, shape: &[usize], kind, place: &Place| {
            let info = TensorInfo {
                dtype: dtype(element).ok_or_else(|| SavedError::element(name, element))?,
                shape: shape.to_vec(),
                data_offsets: (place.bytes.start, place.bytes.end),
            };
            tensors.push((name.to_owned(), Value::Tensor(info)));
            let description = Description { kind, checksum: place.checksum };
            metadata.push((format!("{TENSOR}{name}"), description.to_string()));
            Ok::<(), SavedError>(())
        };
        add(TOKENS, ElementType::Int64, &[self.position], None, &self.tokens)?;
        for (tensor, place) in &self.tensors {
            add(&tensor.name, tensor.element, &tensor.shape, Some(tensor.kind), place)?;
        }
        let metadata = (METADATA.to_owned(), Value::Metadata(Pairs(metadata)));
        Ok(Pairs(std::iter::once(metadata).chain(tensors).collect()))
    }

    /// Reads the bytes of a header. `data` is the number of bytes that follow it in the file.
    pub(super) fn decode(bytes: &[u8], data: u64) -> Result<Self, SavedError> {
        check_beginning(bytes)?;
        let Pairs(entries): Pairs<Value> = serde_json::from_slice(bytes).map_err(json)?;
        let (mut metadata, mut infos) = (BTreeMap::new(), Vec::new());
        for (name, value) in entries {
            match value {
                Value::Metadata(Pairs(entries)) if name == METADATA => metadata.extend(entries),
                Value::Tensor(info) if name != METADATA => infos.push((name, info)),
                _ => return Err(SavedError::Json { message: format!("{name:?} describes no tensor") }),
            }
        }
        let mut take =
            |key: &str| metadata.remove(key).ok_or_else(|| SavedError::EntryMissing { key: key.to_owned() });
        take(SAVED)?;
        take(CHECKSUM)?;
        let model = parsed(MODEL, take(MODEL)?, |text| text.parse().ok())?;
        let position = parsed(POSITION, take(POSITION)?, |text| text.parse().ok())?;
        let mut tokens = None;
        let mut tensors = Vec::with_capacity(infos.len());
        let mut end = 0;
        infos.sort_by_key(|(_, info)| info.data_offsets);
        for (name, info) in infos {
            let key = format!("{TENSOR}{name}");
            let described = parsed(&key, take(&key)?, |text| text.parse().ok())?;
            let Description { kind, checksum } = described;
            let element = element(&name, info.dtype)?;
            let len = element.storage_len(&info.shape);
            let len =
                len.ok_or_else(|| SavedError::Shape { tensor: name.clone(), shape: info.shape.clone() })?;
            let (begin, expected) = (info.data_offsets.0, end);
            end = info.data_offsets.1;
            if begin != expected || end.checked_sub(begin) != Some(len) {
                return Err(SavedError::Offsets { tensor: name, begin, end, expected, len });
            }
            let place = Place { bytes: begin..end, checksum };
            let Some(kind) = kind else {
                let is_tokens = name == TOKENS && element == ElementType::Int64 && info.shape == [position];
                tokens = Some(place).filter(|_| is_tokens && tokens.is_none());
                if tokens.is_none() {
                    return Err(SavedError::Tokens { position });
                }
                continue;
            };
            tensors.push((SavedTensor { name, element, shape: info.shape, kind }, place));
        }
        if let Some((key, _)) = metadata.pop_first() {
            return Err(SavedError::EntryUnknown { key });
        }
        let taken = (bytes.len() as u64).saturating_add(8);
        let [expected, got] = [end as u64, data].map(|data| taken.saturating_add(data));
        if expected != got {
            return Err(SavedError::Length { expected, got });
        }
        let tokens = tokens.ok_or(SavedError::Tokens { position })?;
        let described: Vec<_> = tensors.iter().map(|(tensor, _)| tensor.clone()).collect();
        SavedSample::check(&described, position)?;
        Ok(Self { model, position, tokens, tensors })
    }
}

/// Checks the version and the checksum of a header.
fn check_beginning(bytes: &[u8]) -> Result<(), SavedError> {
    let rest = bytes.strip_prefix(BEGINNING.as_bytes()).ok_or(SavedError::NotSaved)?;
    let version: Vec<u8> = rest.iter().copied().take(VERSION_END).take_while(|byte| *byte != b'"').collect();
    if version != VERSION.as_bytes() {
        let got = String::from_utf8_lossy(&version).into_owned();
        return Err(SavedError::Version { got, expected: VERSION });
    }
    let start = BEGINNING.len() + VERSION.len() + BEFORE_CHECKSUM.len();
    let mut zeroed = bytes.to_vec();
    let is_placed =
        rest.get(VERSION.len()..).is_some_and(|rest| rest.starts_with(BEFORE_CHECKSUM.as_bytes()));
    let digits = zeroed.get_mut(start..start + DIGITS).filter(|_| is_placed);
    let digits = digits.ok_or(SavedError::EntryMissing { key: CHECKSUM.to_owned() })?;
    let given = digits.to_vec();
    digits.fill(b'0');
    if given != format!("{:0DIGITS$x}", xxh3_128(&zeroed)).as_bytes() {
        return Err(SavedError::HeaderChecksum);
    }
    Ok(())
}

/// Parses the value of an entry, which must be written as this program writes it.
fn parsed<T: fmt::Display>(
    key: &str,
    value: String,
    parse: impl FnOnce(&str) -> Option<T>,
) -> Result<T, SavedError> {
    let exact = parse(&value).filter(|kind| kind.to_string() == value);
    exact.ok_or_else(|| SavedError::EntryValue { key: key.to_owned(), value })
}

/// The entry of a tensor. The tokens have no kind.
struct Description {
    kind: Option<SavedKind>,
    checksum: u128,
}

impl fmt::Display for Description {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.kind {
            None => f.write_str("tokens")?,
            Some(SavedKind::State) => f.write_str("state")?,
            Some(SavedKind::Encoder { axis }) => write!(f, "encoder axis={axis}")?,
            Some(SavedKind::Linear { axis }) => write!(f, "linear axis={axis}")?,
            Some(SavedKind::Ring { axis, capacity, window, first }) => {
                write!(f, "ring axis={axis} capacity={capacity} window={window} first={first}")?;
            }
        }
        write!(f, " checksum={:0DIGITS$x}", self.checksum)
    }
}

impl std::str::FromStr for Description {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let mut words = text.split(' ');
        let name = words.next();
        let mut value = |key: &str| words.next()?.strip_prefix(key)?.strip_prefix('=');
        let mut number = |key: &str| value(key)?.parse().ok();
        let kind = match name {
            Some("tokens") => None,
            Some("state") => Some(SavedKind::State),
            Some("encoder") => Some(SavedKind::Encoder { axis: number("axis").ok_or(())? }),
            Some("linear") => Some(SavedKind::Linear { axis: number("axis").ok_or(())? }),
            Some("ring") => Some(SavedKind::Ring {
                axis: number("axis").ok_or(())?,
                capacity: number("capacity").ok_or(())?,
                window: number("window").ok_or(())?,
                first: number("first").ok_or(())?,
            }),
            _ => return Err(()),
        };
        let checksum = value("checksum").and_then(|digits| u128::from_str_radix(digits, 16).ok());
        Ok(Self { kind, checksum: checksum.ok_or(())? })
    }
}

/// The value of a key of the JSON.
#[derive(Deserialize, Serialize)]
#[serde(untagged)]
enum Value {
    Metadata(Pairs<String>),
    Tensor(TensorInfo),
}

/// The entries of an object, in order and with different keys.
struct Pairs<T>(Vec<(String, T)>);

impl<T: Serialize> Serialize for Pairs<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(key, value)| (key, value)))
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Pairs<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Object<T>(std::marker::PhantomData<T>);

        impl<'de, T: Deserialize<'de>> Visitor<'de> for Object<T> {
            type Value = Pairs<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut entries = BTreeMap::<String, T>::new();
                while let Some((key, value)) = map.next_entry()? {
                    match entries.entry(key) {
                        Entry::Vacant(free) => free.insert(value),
                        Entry::Occupied(taken) => {
                            return Err(A::Error::custom(format_args!("{:?} is given twice", taken.key())));
                        }
                    };
                }
                Ok(Pairs(entries.into_iter().collect()))
            }
        }

        deserializer.deserialize_map(Object(std::marker::PhantomData))
    }
}

fn json(error: serde_json::Error) -> SavedError {
    SavedError::Json { message: error.to_string() }
}

fn element(tensor: &str, dtype: Dtype) -> Result<ElementType, SavedError> {
    let name = dtype.to_string();
    ElementType::from_safetensors_name(&name)
        .ok_or(SavedError::Element { tensor: tensor.to_owned(), element: name })
}

/// Returns the type of the crate with the same name. The serialised form of a type is its name.
fn dtype(element: ElementType) -> Option<Dtype> {
    serde_json::from_value(element.safetensors_name()?.into()).ok()
}
