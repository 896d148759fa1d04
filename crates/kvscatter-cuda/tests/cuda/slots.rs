//! Tests slot mappings as engines with paged caches make them, with one slot for each token. A negative slot
//! leaves its token out.

use kvscatter::spec::onnx::TensorScatter;
use kvscatter::{ElementType, Error as CoreError, Prepared};
use kvscatter_cuda::{BufferPair, CudaError, DeviceCallIndices, DeviceList, DeviceWrite, StatusWords};
use kvscatter_oracle::cases::Random;
use kvscatter_oracle::nibbles;

use crate::device::Memory;
use crate::host::cuda;
use crate::rig::{Rig, buffer};
use crate::scene::status_of;

/// Tests vLLM's `slot_mapping`, which has one slot for each token, and -1 for padding.
#[test]
#[ignore = "needs a driver: cargo xtask cuda"]
fn a_slot_mapping_leaves_out_what_is_negative() {
    const TOKENS: usize = 6;
    const SLOTS: usize = 40;
    // The heads are not adjacent in the update, as in a fused QKV.
    let shapes = TensorScatter::new().axis(1);
    let shapes = shapes.prepare(ElementType::Float16, &[1, SLOTS, 2, 4], &[1, TOKENS, 2, 4]).unwrap();
    let cache = Memory::from_bytes(&[0xEE; SLOTS * 16]);
    let update = Memory::from_bytes(&(0..TOKENS * 16).map(|at| at as u8).collect::<Vec<_>>());
    let write = prepared(&shapes, &cache, &update);
    let mut expected = vec![0xEE; SLOTS * 16];
    let mut run = |slots: [i64; TOKENS], is_i64: bool| {
        let narrow: Vec<i32> = slots.iter().map(|&slot| slot as i32).collect();
        let memory = if is_i64 { Memory::of_i64(&slots) } else { Memory::of_i32(&narrow) };
        let list = if is_i64 { DeviceList::i64 } else { DeviceList::i32 };
        let (status, checked) = launched(&write, list(memory.address, TOKENS));
        for (token, &slot) in slots.iter().enumerate() {
            if let Some(slot) = usize::try_from(slot).ok().filter(|&slot| slot < SLOTS) {
                let row: Vec<u8> = (token * 16..token * 16 + 16).map(|at| at as u8).collect();
                expected[slot * 16..][..16].copy_from_slice(&row);
            }
        }
        assert_eq!(cache.read(), expected);
        (status, checked)
    };
    let (found, checked) = run([5, -1, 39, 0, -1, 7], true);
    assert_eq!(found, StatusWords::default());
    checked.unwrap();
    let (found, checked) = run([3, 40, -5, 0, 99, 8], false);
    assert_eq!(found, StatusWords { bad_samples: 2, first_sample: 1, first_value: 40 });
    match checked {
        Err(CudaError::Write(CoreError::StartOutOfRange { index, value, rows, capacity, .. })) => {
            assert_eq!((index, value, rows, capacity), (1, 40, 1, SLOTS));
        }
        other => panic!("{other:?}"),
    }
}

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
        let list = Memory::of_i64(&mapping);
        let (status, _) = launched(&write, DeviceList::i64(list.address, paged.tokens));
        assert_eq!(status, paged.status(&mapping));
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

    /// Returns the number of elements in this number of rows.
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

/// Launches the write with a separate status and waits. Returns the status and the result of `check`.
fn launched(write: &DeviceWrite, slots: DeviceList) -> (StatusWords, Result<(), CudaError>) {
    let (rig, indices) = (Rig::new(0), DeviceCallIndices::new(slots));
    rig.launch_with(write, &indices).unwrap();
    rig.stream.synchronize();
    // SAFETY: The status of `rig` and the list of slots are memory of the context, and the launch has run.
    let checked = unsafe { write.check(rig.status(), &indices) };
    (status_of(&rig.status), checked)
}
