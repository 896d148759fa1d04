use super::Element;
use crate::nibbles;

/// Elements in their storage format.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Values {
    /// Dense little-endian bytes. 4-bit elements are packed as [`nibbles`] describes.
    Bytes(Vec<u8>),
    /// One string per element.
    Strings(Vec<String>),
}

/// The origin of a value: an element of the cache or of the update, by its offset in row-major order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// An element that was in the cache before the call.
    Cache(usize),
    /// An element of the update, which was written.
    Update(usize),
}

impl Origin {
    /// Returns the index of the update's element that was written here, or `None` if none was.
    #[must_use]
    pub fn written(self) -> Option<usize> {
        match self {
            Self::Cache(_) => None,
            Self::Update(offset) => Some(offset),
        }
    }

    /// Returns a cache and an update in index space, where every element is its origin.
    #[must_use]
    pub fn tensors(cache_len: usize, update_len: usize) -> (Vec<Self>, Vec<Self>) {
        ((0..cache_len).map(Self::Cache).collect(), (0..update_len).map(Self::Update).collect())
    }
}

impl Values {
    /// Returns `count` elements numbered from `first`. Each differs from the others as much as its width
    /// allows.
    #[must_use]
    pub fn painted(element: &Element, first: usize, count: usize) -> Self {
        let numbers = first..first + count;
        let Some(bits) = element.bits else {
            return Self::Strings(numbers.map(|n| "κ".repeat(n % 3) + &n.to_string()).collect());
        };
        if element.name == "bool" {
            // The sequence has no period that a stride of the tensor could match.
            return Self::Bytes(numbers.map(|n| u8::from((n * n / 3 + n / 7) % 2 == 1)).collect());
        }
        if bits == 4 {
            return Self::Bytes(nibbles::pack(
                &numbers.map(|n| (n % 13 + n / 13 % 3) as u8).collect::<Vec<_>>(),
            ));
        }
        Self::Bytes(numbers.flat_map(|n| (0..bits / 8).map(move |byte| paint(n, byte))).collect())
    }

    /// Returns the elements that `origins` lists.
    #[must_use]
    pub fn gathered(element: &Element, origins: &[Origin], cache: &Self, update: &Self) -> Self {
        match (cache, update) {
            (Self::Strings(cache), Self::Strings(update)) => Self::Strings(gather(origins, cache, update)),
            (Self::Bytes(cache), Self::Bytes(update)) if element.bits == Some(4) => {
                let (cache, update) =
                    (nibbles::unpack(cache, 2 * cache.len()), nibbles::unpack(update, 2 * update.len()));
                Self::Bytes(nibbles::pack(&gather(origins, &cache, &update)))
            }
            (Self::Bytes(cache), Self::Bytes(update)) => {
                let width = element.bits.unwrap_or(8) / 8;
                let elements = |bytes: &[u8]| bytes.chunks(width).map(<[u8]>::to_vec).collect::<Vec<_>>();
                Self::Bytes(gather(origins, &elements(cache), &elements(update)).concat())
            }
            _ => unreachable!("types that differ are refused before anything is gathered"),
        }
    }
}

fn gather<E: Clone>(origins: &[Origin], cache: &[E], update: &[E]) -> Vec<E> {
    let find = |&origin: &Origin| match origin {
        Origin::Cache(place) => cache[place].clone(),
        Origin::Update(place) => update[place].clone(),
    };
    origins.iter().map(find).collect()
}

/// Returns a byte of element `n`. The modulus is the prime 251, so that no power-of-two distance repeats. Two
/// bytes together distinguish the first 251² elements, and no two bytes of an element stay equal for long.
fn paint(n: usize, byte: usize) -> u8 {
    ((n + (byte + 1) * (n / 251) + 37 * byte) % 251) as u8
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::{Origin, Values};
    use crate::cases::Element;

    #[test]
    fn painted_elements_are_distinct_where_the_width_allows() {
        for element in Element::all().iter().filter(|element| element.bits.is_some_and(|bits| bits > 8)) {
            let Values::Bytes(bytes) = Values::painted(element, 0, 60_000) else { panic!("{element:?}") };
            let distinct: HashSet<_> = bytes.chunks(element.bits.unwrap() / 8).collect();
            assert_eq!(distinct.len(), 60_000, "{element:?}");
        }
        let Values::Strings(strings) = Values::painted(Element::named("string").unwrap(), 0, 60_000) else {
            panic!()
        };
        assert_eq!(strings.iter().collect::<HashSet<_>>().len(), 60_000);
    }

    #[test]
    fn painted_floats_include_nans_with_payloads() {
        let Values::Bytes(bytes) = Values::painted(Element::named("float16").unwrap(), 0, 60_000) else {
            panic!()
        };
        let nan = |pair: &[u8]| u16::from_le_bytes([pair[0], pair[1]]) & 0x7FFF > 0x7C00;
        assert!(bytes.chunks(2).any(nan));
    }

    #[test]
    fn bool_is_zero_or_one() {
        let Values::Bytes(bytes) = Values::painted(Element::named("bool").unwrap(), 0, 1000) else {
            panic!()
        };
        assert!(bytes.contains(&0) && bytes.contains(&1) && bytes.iter().all(|&byte| byte < 2));
    }

    #[test]
    fn gathering_moves_whole_elements() {
        let origins = [Origin::Cache(0), Origin::Update(2), Origin::Cache(2)];
        let four = Element::named("uint4").unwrap();
        let gathered = Values::gathered(
            four,
            &origins,
            &Values::Bytes(vec![0x21, 0x03]),
            &Values::Bytes(vec![0xBA, 0x0C]),
        );
        assert_eq!(gathered, Values::Bytes(vec![0xC1, 0x03]));
        let two = Element::named("int16").unwrap();
        let gathered = Values::gathered(
            two,
            &origins,
            &Values::Bytes(vec![1, 2, 3, 4, 5, 6]),
            &Values::Bytes(vec![11, 12, 13, 14, 15, 16]),
        );
        assert_eq!(gathered, Values::Bytes(vec![1, 2, 15, 16, 5, 6]));
    }
}
