//! The fingerprint of a model: a hash of its graph and its weights (XXH3, 128 bits).
//!
//! Everything that an engine computes with counts: operator sets, functions, the names and types of inputs and outputs,
//! nodes with their attributes, and the values of all tensors. Names of nodes and graphs, documentation, the producer,
//! types of inner values, metadata and the places of values in other files do not count. Values that are in the model
//! count as a part of the graph, so moving them to another file changes the fingerprint.
//!
//! A conversion depends on sizes that do not change what caches contain, such as the number of slots. A converted
//! model therefore has an entry of metadata with two hashes: that of the exported graph and the other options, and
//! that of the converted graph. If the graph still has the second hash, the first one takes its place in the
//! fingerprint. If the graph was edited, the entry has no effect.
//! [`lower`](crate::lower()) writes the second hash again.

mod message;

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use xxhash_rust::xxh3::{Xxh3Default, xxh3_128};

use crate::proto::{ModelProto, metadata, set_metadata};
use crate::visit::visit_external;
use crate::{ExternalData, OnnxError, external, tensor_proto};

/// The entry of a converted model's metadata, `exported=HASH converted=HASH`.
const METADATA: &str = "kvscatter.source";

/// The entry of metadata with the hash of the exported decoder from which a decoder was converted, or to which an
/// encoder belongs.
pub const DECODER: &str = "kvscatter.decoder";

/// The form of converted caches. It must change if a later conversion of the same model gives the caches another
/// meaning.
const FORM: u8 = 1;

/// The first byte that is hashed for a converted model, and for another model.
const CONVERTED: [u8; 1] = *b"c";
const OTHER: [u8; 1] = *b"o";

/// A 128-bit hash (XXH3) of a model. It detects other models, and accidental changes of a model. It is not a
/// cryptographic hash, so a model with a given fingerprint can be constructed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Fingerprint(u128);

impl Fingerprint {
    /// Creates a fingerprint of these bits.
    #[must_use]
    pub const fn from_bits(bits: u128) -> Self {
        Self(bits)
    }

    /// Returns the bits.
    #[must_use]
    pub const fn to_bits(self) -> u128 {
        self.0
    }
}

/// Writes 32 hexadecimal digits.
impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

/// Reads the digits as [`Display`](fmt::Display) writes them.
impl FromStr for Fingerprint {
    type Err = ParseFingerprintError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let bits = u128::from_str_radix(text, 16).ok().map(Self);
        let is_exact = |it: &Self| it.to_string() == text;
        bits.filter(is_exact).ok_or_else(|| ParseFingerprintError { text: text.to_owned() })
    }
}

/// A text that is not a fingerprint.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not 32 lower-case hexadecimal digits")]
pub struct ParseFingerprintError {
    text: String,
}

/// A hash of a graph with the values that are in the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct GraphHash(u128);

impl GraphHash {
    /// Computes the hash of a model's graph.
    pub(crate) fn from_model(model: &ModelProto) -> Result<Self, OnnxError> {
        message::hash(model).map(Self)
    }

    /// Returns the hash of an exported graph together with the options of a conversion that change how values are
    /// rounded. `caches` describes their type, and is empty if it is that of the export.
    pub(crate) fn with_options(self, options: [bool; 2], caches: &str) -> Self {
        let mut bytes = self.0.to_le_bytes().to_vec();
        bytes.push(FORM);
        bytes.extend(options.map(u8::from));
        bytes.extend(caches.as_bytes());
        Self(xxh3_128(&bytes))
    }

    /// Reads the hash of the exported graph from the metadata of a converted model whose graph has this hash. Returns
    /// `None` for other models, and if the graph was edited after the conversion.
    pub(crate) fn of_exported(self, model: &ModelProto) -> Option<Self> {
        let entry = metadata(model, METADATA)?;
        let (exported, _) = entry.strip_prefix("exported=")?.split_once(' ')?;
        let exported = Self(exported.parse::<Fingerprint>().ok()?.to_bits());
        (entry == exported.entry(self)).then_some(exported)
    }

    /// Writes this hash, of the exported graph, and that of the converted graph into the metadata.
    pub(crate) fn set(self, converted: Self, model: &mut ModelProto) {
        set_metadata(model, METADATA, &self.entry(converted));
    }

    /// Writes this hash, of the exported decoder, into the metadata of a converted decoder or of its encoder.
    pub(crate) fn name_decoder(self, model: &mut ModelProto) {
        set_metadata(model, DECODER, &Fingerprint(self.0).to_string());
    }

    fn entry(self, converted: Self) -> String {
        format!("exported={} converted={}", Fingerprint(self.0), Fingerprint(converted.0))
    }
}

/// Computes the fingerprint of a model as it is in its file.
///
/// `external` limits the number of bytes that are read. The values of tensors that share their bytes are read once.
///
/// # Errors
/// Returns the errors about external data, wrapped in [`OnnxError::InTensor`].
pub(crate) fn of_model(model: &ModelProto, external: &ExternalData) -> Result<Fingerprint, OnnxError> {
    let own = GraphHash::from_model(model)?;
    let mut hash = Xxh3Default::new();
    let (kind, graph) = match own.of_exported(model) {
        Some(exported) => (CONVERTED, exported),
        None => (OTHER, own),
    };
    hash.update(&kind);
    hash.update(&graph.0.to_le_bytes());
    // Tensors in subgraphs may change their order in a conversion.
    let mut hashes = external_hashes(model, external)?;
    hashes.sort_unstable();
    hashes.iter().for_each(|tensor| hash.update(&tensor.to_le_bytes()));
    Ok(Fingerprint(hash.digest128()))
}

/// Returns a hash of the name, the type, the shape and the values of each tensor with external data.
fn external_hashes(model: &ModelProto, data: &ExternalData) -> Result<Vec<u128>, OnnxError> {
    let (mut hashes, mut read) = (Vec::new(), BTreeMap::new());
    visit_external(model, &mut |tensor| {
        let entries = &tensor.external_data;
        let expected = tensor_proto::external_bytes(tensor)?;
        let place = (external::place(entries)?, expected);
        let values = match read.get(&place) {
            Some(values) => *values,
            None => {
                let mut hash = Xxh3Default::new();
                data.visit_bytes(entries, expected, &mut |part| hash.update(part))?;
                *read.entry(place).or_insert(hash.digest128())
            }
        };
        let mut bytes = message::header(tensor)?;
        bytes.extend(values.to_le_bytes());
        hashes.push(xxh3_128(&bytes));
        Ok(())
    })?;
    Ok(hashes)
}

#[cfg(test)]
mod tests {
    use super::Fingerprint;

    #[test]
    fn the_digits_lead_back() {
        for bits in [0, 1, u128::MAX, 0x0123_4567_89ab_cdef << 60] {
            let print = Fingerprint::from_bits(bits);
            assert_eq!((print.to_string().len(), print.to_string().parse()), (32, Ok(print)));
        }
        let digits = "0123456789abcdef".repeat(2);
        assert!(digits.parse::<Fingerprint>().is_ok());
        for text in ["", "1", &digits[1..], &format!("{digits}0"), &digits.to_uppercase()] {
            assert!(text.parse::<Fingerprint>().is_err(), "{text}");
        }
        assert!(format!("+{}", &digits[1..]).parse::<Fingerprint>().is_err());
    }
}
