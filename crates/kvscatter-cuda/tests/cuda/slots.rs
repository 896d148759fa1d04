//! Tests slot mappings as engines with paged caches make them, with one slot for each token. A negative slot
//! leaves its token out.

use kvscatter::spec::onnx::TensorScatter;
use kvscatter::{Argument, ElementType, Error as CoreError, Prepared};
use kvscatter_cuda::{BufferPair, CudaError, DeviceCallIndices, DeviceWrite, StatusWords};
use kvscatter_oracle::cases::Random;
use kvscatter_oracle::nibbles;

use crate::device::Memory;
use crate::host::{cuda, list};
use crate::rig::{Rig, buffer};
use crate::scene::List;

/// Compares slot mappings of every width and layout with a copy token by token.
#[test]
#[ignore = "needs a driver: cargo xtask cuda"]
fn slot_mappings_of_every_width_are_right() {
    let elements = [
        ElementType::Complex128,
        ElementType::Float32,
        ElementType::Float16,
        ElementType::Int8,
        ElementType::Int4,
    ];
    for (number, element) in (0..40).flat_map(|_| elements).enumerate() {
        let random = &mut Random::new(51, number);
        let paged = Paged::new(random);
        let mapping = paged.mapping(random);
        let held = Memory::from_bytes(&whole_words(stored(element, 0..paged.elements(paged.slots))));
        let update = Memory::from_bytes(&stored(element, paged.of_update()));
        let is_refusing_all = random.below(4) == 0;
        let write = prepared(&paged.shapes(element), &held, &update).skip_all(is_refusing_all);
        let slots = List::from_values(&mapping, random.below(2) == 0);
        let (rig, indices) = (Rig::new(0), DeviceCallIndices::new(list(&slots)));
        let status = rig.run_with(&write, &indices);
        assert_eq!(status, paged.status(&mapping));
        match rig.check_with(&write, &indices) {
            Ok(()) => assert_eq!(status.bad_samples, 0),
            Err(CudaError::Write(found)) => assert_eq!(found, paged.error(&mapping)),
            Err(other) => panic!("{other:?}"),
        }
        let is_refused = is_refusing_all && status.bad_samples > 0;
        let written = paged.written(if is_refused { &[] } else { &mapping });
        let expected = whole_words(stored(element, written));
        assert_eq!(held.read(), expected, "{mapping:?} {paged:?} {element:?}");
    }
}

/// A cache `[1, heads, slots, head]`, and tokens for it. The elements of the cache are numbers from 0 on, and
/// those of the update follow.
#[derive(Debug)]
struct Paged {
    heads: usize,
    slots: usize,
    head: usize,
    tokens: usize,
}

impl Paged {
    fn new(random: &mut Random) -> Self {
        let (heads, slots, head) = (random.between(1, 3), random.between(1, 30), random.between(1, 9));
        Self { heads, slots, head, tokens: random.between(0, slots.min(12)) }
    }

    fn shapes(&self, element: ElementType) -> Prepared {
        let shape = |rows| [1, self.heads, rows, self.head];
        let write = TensorScatter::new().axis(2);
        write.prepare(element, &shape(self.slots), &shape(self.tokens)).unwrap()
    }

    /// Returns a random mapping. No two tokens have the same slot, because the slot could end with the row of
    /// either.
    fn mapping(&self, random: &mut Random) -> Vec<i64> {
        let mut free: Vec<i64> = (0..self.slots as i64).collect();
        random.many(self.tokens, |random| match random.below(4) {
            0 => random.pick(&[-1, i64::MIN, -7]),
            1 => random.pick(&[self.slots as i64, i64::MAX]),
            _ if free.is_empty() => -1,
            _ => free.remove(random.below(free.len())),
        })
    }

    fn elements(&self, rows: usize) -> usize {
        self.heads * rows * self.head
    }

    fn of_update(&self) -> impl Iterator<Item = usize> + use<> {
        let first = self.elements(self.slots);
        first..first + self.elements(self.tokens)
    }

    /// Returns the number in each element of the cache after the write.
    fn written(&self, mapping: &[i64]) -> Vec<usize> {
        let Self { heads, slots, head, tokens } = *self;
        let mut cache: Vec<usize> = (0..self.elements(slots)).collect();
        for (token, &slot) in mapping.iter().enumerate().filter(|(_, slot)| (0..slots as i64).contains(slot))
        {
            for (row, column) in (0..heads).flat_map(|row| (0..head).map(move |column| (row, column))) {
                cache[(row * slots + slot as usize) * head + column] =
                    self.elements(slots) + (row * tokens + token) * head + column;
            }
        }
        cache
    }

    /// Returns the error for the first slot that does not exist.
    fn error(&self, mapping: &[i64]) -> CoreError {
        let StatusWords { first_sample, first_value: value, .. } = self.status(mapping);
        let (argument, index) = (Argument::WriteIndices, first_sample as usize);
        CoreError::StartOutOfRange { argument, index, value, rows: 1, capacity: self.slots }
    }

    fn status(&self, mapping: &[i64]) -> StatusWords {
        let is_beyond = |slot: &i64| *slot >= self.slots as i64;
        let first = mapping.iter().position(is_beyond);
        StatusWords {
            bad_samples: mapping.iter().filter(|slot| is_beyond(slot)).count() as u32,
            first_sample: first.unwrap_or(0) as u32,
            first_value: first.map_or(0, |at| mapping[at]),
        }
    }
}

/// Returns these numbers as elements whose bytes are all the same.
fn stored(element: ElementType, numbers: impl IntoIterator<Item = usize>) -> Vec<u8> {
    let numbers = numbers.into_iter().map(|number| (number % 251) as u8);
    match element.bits().unwrap() {
        4 => nibbles::pack(&numbers.collect::<Vec<_>>()),
        bits => numbers.flat_map(|number| vec![number; bits / 8]).collect(),
    }
}

fn whole_words(mut bytes: Vec<u8>) -> Vec<u8> {
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes
}

fn prepared(shapes: &Prepared, cache: &Memory, update: &Memory) -> DeviceWrite {
    let pair = BufferPair { cache: buffer(cache), update: buffer(update) };
    cuda().prepare_slots(shapes, &[pair]).unwrap()
}
