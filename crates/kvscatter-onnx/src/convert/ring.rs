//! The rings of a converted decoder.
//!
//! A layer with a window of `W` tokens needs the last `W` tokens, and as many slots more as a step writes and as may
//! be taken back. [`kvscatter::ring`] has the rule and its proof.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use kvscatter::ring::{Feeding, Ring, least_capacity};

use crate::Model;
use crate::decoder::Decoder;

/// The entry of a converted model's metadata with the sizes of its rings.
pub(super) const METADATA: &str = "kvscatter.rings";

/// The entry of the metadata of a converted model without linear caches. It is the number of tokens that a sample can
/// have.
pub const MOST_TOKENS: &str = "kvscatter.most_tokens";

/// The number of tokens of a sample that has no other limit, which is the largest int32.
pub const UNLIMITED: usize = (1 << 31) - 1;

/// The size of a ring, and what it is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
pub struct RingSize {
    /// The number of slots of each sample.
    pub capacity: usize,
    /// The number of tokens that a token sees, itself included.
    pub window: usize,
    /// The largest number of rows that a step may write, padding included.
    pub chunk: usize,
    /// The number of tokens below the furthest one that a sample may be taken back.
    pub rewind: usize,
}

/// The rings of a converted decoder.
#[derive(Clone, Debug, Default)]
pub(super) struct Rings {
    pub(super) by_past: BTreeMap<String, RingSize>,
    pub(super) by_present: BTreeMap<String, RingSize>,
    /// The number of attention operations that read rings of each size.
    pub(super) readers: BTreeMap<RingSize, usize>,
    /// The number of tokens that a sample can have if all caches are rings.
    pub(super) most_tokens: Option<usize>,
}

/// The sizes of all caches of a converted decoder.
#[derive(Clone, Copy, Debug)]
pub(super) struct Slots<'r> {
    /// The number of slots of a linear cache.
    pub(super) max_seq: usize,
    pub(super) rings: &'r Rings,
}

/// Writes the numbers as the metadata of a converted model contains them.
impl fmt::Display for RingSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { capacity, window, chunk, rewind } = self;
        write!(f, "capacity={capacity} window={window} chunk={chunk} rewind={rewind}")
    }
}

/// Reads the numbers as [`Display`](fmt::Display) writes them.
impl FromStr for RingSize {
    type Err = RingSizeError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut numbers = text.split(' ');
        let mut number = |key: &str| {
            let (found, number) = numbers.next().and_then(|entry| entry.split_once('='))?;
            number.parse().ok().filter(|_| found == key)
        };
        let given = |number: Option<usize>| number.ok_or_else(|| RingSizeError { text: text.to_owned() });
        Ok(Self {
            capacity: given(number("capacity"))?,
            window: given(number("window"))?,
            chunk: given(number("chunk"))?,
            rewind: given(number("rewind"))?,
        })
    }
}

/// A text that is not the size of a ring.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not capacity=C window=W chunk=S rewind=R")]
pub struct RingSizeError {
    text: String,
}

impl RingSize {
    /// Reads the sizes of the rings of a converted model from its metadata. A model without rings has none.
    ///
    /// # Errors
    /// Returns [`RingSizeError`] if the metadata has another form.
    pub fn of_model(model: &Model) -> Result<Vec<Self>, RingSizeError> {
        let sizes = model.metadata(METADATA).unwrap_or_default();
        sizes.split("; ").filter(|size| !size.is_empty()).map(str::parse).collect()
    }

    /// Returns the ring for [tests of single steps](kvscatter::ring).
    #[must_use]
    pub fn ring(&self) -> Ring {
        Ring::new(self.capacity, self.window)
    }

    /// Returns `true` if a ring of this capacity serves the window, the chunk and the rewind.
    #[must_use]
    pub fn is_sound(&self) -> bool {
        let least = least_capacity(self.window, self.chunk, self.rewind, Feeding::Idle);
        self.window > 0 && self.chunk > 0 && least <= self.capacity
    }

    /// Returns the least ring for a window, for samples that may idle.
    pub(super) fn new(window: usize, chunk: usize, rewind: usize) -> Self {
        let capacity = least_capacity(window, chunk, rewind, Feeding::Idle);
        Self { capacity, window, chunk, rewind }
    }
}

impl<'r> Slots<'r> {
    /// Returns the sizes of caches that are all linear.
    pub(super) fn linear(max_seq: usize) -> Self {
        static NONE: Rings = Rings {
            by_past: BTreeMap::new(),
            by_present: BTreeMap::new(),
            readers: BTreeMap::new(),
            most_tokens: None,
        };
        Self { max_seq, rings: &NONE }
    }

    /// Returns the number of slots of a cache.
    pub(super) fn capacity(self, past: &str) -> usize {
        self.rings.by_past.get(past).map_or(self.max_seq, |ring| ring.capacity)
    }

    /// Returns the past of the first cache that is linear, or `None` if all are rings.
    pub(super) fn first_linear<'m>(self, decoder: &Decoder<'m>) -> Option<&'m str> {
        let linear = |past: &&str| !self.rings.by_past.contains_key(*past);
        decoder.caches.iter().map(|cache| cache.past).find(linear)
    }

    /// Returns the largest number of rows of a step that no ring is too small for.
    pub(super) fn most_rows(self) -> usize {
        self.rings.by_past.values().map(|ring| ring.capacity).min().unwrap_or(usize::MAX)
    }
}

impl Rings {
    #[cfg(test)]
    pub(super) fn insert(&mut self, past: &str, ring: RingSize) {
        self.by_past.insert(past.to_owned(), ring);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.by_past.is_empty()
    }

    /// Returns each size once, with the number of its caches.
    pub(super) fn sizes(&self) -> BTreeMap<RingSize, usize> {
        let mut sizes = BTreeMap::new();
        self.by_past.values().for_each(|ring| add_one(&mut sizes, *ring));
        sizes
    }
}

/// Returns the sizes of the rings of a model, each with the number of its caches, and the number of tokens that a
/// sample can have, as the metadata describe them.
pub(super) fn described(model: &Model, decoder: &Decoder<'_>) -> (BTreeMap<RingSize, usize>, Option<usize>) {
    let (known, mut sizes) = (RingSize::of_model(model).unwrap_or_default(), BTreeMap::new());
    for ring in decoder.rings() {
        let size = known.iter().find(|size| ring.fixed_capacity() == Some(size.capacity));
        size.into_iter().for_each(|size| add_one(&mut sizes, *size));
    }
    (sizes, model.metadata(MOST_TOKENS).and_then(|most| most.parse().ok()))
}

pub(super) fn add_one<K: Ord>(counts: &mut BTreeMap<K, usize>, key: K) {
    let count = counts.entry(key).or_default();
    *count = count.saturating_add(1);
}
