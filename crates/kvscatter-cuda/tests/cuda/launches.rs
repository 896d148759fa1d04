//! How launches behave: one for all caches, asynchronous, captured and replayed, from several threads.

use std::thread;

use kvscatter::spec::onnx::TensorScatter;
use kvscatter::{Argument, ElementType, Error as CoreError};
use kvscatter_cuda::{DeviceBuffer, DeviceList, Error, Indices, Pair, Stream as OfCaller};
use kvscatter_oracle::cases::Random;
use kvscatter_oracle::nibbles;

use crate::abi::StatusWords;
use crate::device::{Memory, Stream, device};
use crate::fake::{all_calls, calls, exchanges, is_fake};
use crate::host::cuda;
use crate::rig::{ROW, Rig, SAMPLES, SLOTS, buffer, geometry, written};
use crate::scene::status_of;

fn status(bad_samples: u32, first_sample: u32, first_value: i64) -> StatusWords {
    StatusWords { bad_samples, first_sample, first_value }
}

#[test]
#[ignore = "needs a driver: cargo xtask cuda"]
fn keys_and_values_are_one_launch_that_asks_the_driver_for_nothing_else() {
    let rig = Rig::new(2);
    let write = rig.write();
    rig.starts.fill(&[3_i64, 1].map(i64::to_ne_bytes).concat());
    let before = is_fake().then(|| (calls("cuLaunchKernel"), all_calls()));
    rig.launch(&write).unwrap();
    if let Some((launches, all)) = before {
        assert_eq!((calls("cuLaunchKernel"), all_calls()), (launches + 1, all + 1));
        // The launch has not run yet: nobody has waited for it.
        rig.assert_written(&[]);
    }
    rig.stream.synchronize();
    rig.assert_written(&[[Some(3), Some(1)]]);
    rig.check(&write).unwrap();
}

#[test]
#[ignore = "needs a driver: cargo xtask cuda"]
fn any_number_of_caches_is_written_and_each_sample_counted_once() {
    for (caches, launches) in [(1, 1), (2, 1), (3, 1), (127, 1), (128, 1), (129, 2), (257, 3)] {
        let rig = Rig::new(caches);
        let write = rig.write();
        let before = is_fake().then(|| calls("cuLaunchKernel"));
        assert_eq!(rig.run(&write, [4, 2]), status(1, 0, 4));
        if let Some(before) = before {
            assert_eq!(calls("cuLaunchKernel") - before, launches, "{caches}");
        }
        rig.assert_written(&[[None, Some(2)]]);
        let expected = CoreError::StartOutOfRange {
            argument: Argument::WriteIndices,
            index: 0,
            value: 4,
            rows: 1,
            capacity: SLOTS,
        };
        assert!(matches!(rig.check(&write), Err(Error::Write(error)) if error == expected));

        assert_eq!(rig.run(&write.skip_all(true), [-1, 3]), status(2, 0, 4));
        rig.assert_written(&[[None, Some(2)]]);
    }
}

#[test]
#[ignore = "needs a driver: cargo xtask cuda"]
fn any_number_of_presents_is_filled() {
    for caches in [1, 63, 64, 65, 129] {
        let rig = Rig::new(caches);
        let presents: Vec<_> = (0..caches).map(|_| Memory::of(&[0; SAMPLES * SLOTS * ROW])).collect();
        let write = rig.present(&presents);
        assert_eq!(rig.run(&write, [1, -1]), status(1, 1, -1));
        for (number, present) in presents.iter().enumerate() {
            assert_eq!(present.read(), written(number, &[[Some(1), None]]), "{number} of {caches}");
        }
        rig.assert_written(&[]);
    }
}

/// Launches count on every replay, with the indices of then.
#[test]
#[ignore = "needs a driver: cargo xtask cuda"]
fn a_graph_reads_its_indices_when_it_runs() {
    for caches in [2, 200] {
        let rig = Rig::new(caches);
        let write = rig.write();
        rig.starts.fill(&[9_i64, 9].map(i64::to_ne_bytes).concat());
        let graph = rig.stream.captured(|| rig.launch(&write).unwrap()).unwrap();
        rig.stream.synchronize();
        rig.assert_written(&[]);
        let mut expected = Vec::new();
        let replays = [
            ([0_i64, 1], [Some(0), Some(1)], status(0, 0, 0)),
            ([3, -7], [Some(3), None], status(1, 1, -7)),
            ([4, 2], [None, Some(2)], status(2, 1, -7)),
        ];
        for (starts, slots, counted) in replays {
            rig.starts.fill(&starts.map(i64::to_ne_bytes).concat());
            graph.launch(&rig.stream);
            rig.stream.synchronize();
            expected.push(slots);
            rig.assert_written(&expected);
            assert_eq!(status_of(&rig.status), counted);
        }
    }
}

#[test]
#[ignore = "needs a driver: cargo xtask cuda"]
fn threads_launch_at_once() {
    const STEPS: usize = 100;
    let shared = Rig::new(3);
    let (write, status) = (shared.write(), shared.status());
    let launched = &write;
    thread::scope(|scope| {
        // The same write on streams of their own, all with the same rows: whoever is last, they are there.
        for _ in 0..3 {
            scope.spawn(move || {
                device();
                let (starts, stream) = (Memory::of_i64(&[2, 0]), Stream::new());
                let indices = Indices::new(DeviceList::i64(starts.address, SAMPLES));
                for _ in 0..STEPS {
                    // SAFETY: all of it is memory of the context, and waited for below.
                    unsafe { launched.launch(OfCaller::new(stream.0), &indices, Some(status)) }.unwrap();
                }
                stream.synchronize();
            });
        }
        // And writes that are prepared meanwhile.
        for caches in [1, 2, 130] {
            scope.spawn(move || {
                device();
                let rig = Rig::new(caches);
                for step in 0..STEPS {
                    let write = rig.write();
                    let slot = (step % SLOTS) as i64;
                    assert_eq!(rig.run(&write, [slot, 9]).bad_samples, step as u32 + 1);
                }
                let all = (0..SLOTS).map(|slot| [Some(slot), None]).collect::<Vec<_>>();
                rig.assert_written(&all);
            });
        }
    });
    shared.assert_written(&[[Some(2), Some(0)]]);
    shared.check(&write).unwrap();
}

/// vLLM's `slot_mapping`: a token to a slot, -1 for padding.
#[test]
#[ignore = "needs a driver: cargo xtask cuda"]
fn a_slot_mapping_leaves_out_what_is_negative() {
    const TOKENS: usize = 6;
    const ALL_SLOTS: usize = 40;
    // Of heads that lie apart in the update, as in a fused QKV.
    let shapes = TensorScatter::new().axis(1);
    let shapes = shapes.prepare(ElementType::Float16, &[1, ALL_SLOTS, 2, 4], &[1, TOKENS, 2, 4]).unwrap();
    let cache = Memory::of(&[0xEE; ALL_SLOTS * 16]);
    let update = Memory::of(&(0..TOKENS * 16).map(|at| at as u8).collect::<Vec<_>>());
    let rig = Rig::new(0);
    let write = cuda()
        .prepare_slots(shapes.geometry(), &[Pair { cache: buffer(&cache), update: buffer(&update) }])
        .unwrap();
    let mut expected = vec![0xEE; ALL_SLOTS * 16];
    let mut run = |slots: [i64; TOKENS], is_i64: bool| {
        let narrow: Vec<i32> = slots.iter().map(|&slot| slot as i32).collect();
        let memory = if is_i64 { Memory::of_i64(&slots) } else { Memory::of_i32(&narrow) };
        let list = if is_i64 { DeviceList::i64 } else { DeviceList::i32 };
        let indices = Indices::new(list(memory.address, TOKENS));
        rig.status.fill(&[0; 16]);
        rig.launch_with(&write, &indices).unwrap();
        rig.stream.synchronize();
        for (token, &slot) in slots.iter().enumerate() {
            if let Some(slot) = usize::try_from(slot).ok().filter(|&slot| slot < ALL_SLOTS) {
                let row: Vec<u8> = (token * 16..token * 16 + 16).map(|at| at as u8).collect();
                expected[slot * 16..][..16].copy_from_slice(&row);
            }
        }
        assert_eq!(cache.read(), expected);
        // SAFETY: all of it is memory of the context.
        let checked = unsafe { write.check(rig.status(), &indices) };
        (status_of(&rig.status), checked)
    };
    let (found, checked) = run([5, -1, 39, 0, -1, 7], true);
    assert_eq!(found, status(0, 0, 0));
    checked.unwrap();
    let (found, checked) = run([3, 40, -5, 0, 99, 8], false);
    assert_eq!(found, status(2, 1, 40));
    assert!(
        matches!(
            checked,
            Err(Error::Write(CoreError::StartOutOfRange {
                index: 1,
                value: 40,
                rows: 1,
                capacity: ALL_SLOTS,
                ..
            }))
        ),
        "{checked:?}"
    );
}

/// A slot mapping of every width and layout, token by token as it is meant.
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
    for (number, element) in (0..40).flat_map(|round| elements.map(|element| (round, element))).enumerate() {
        let (random, (_, element)) = (&mut Random::new(51, number), element);
        let (heads, slots, head) = (random.between(1, 3), random.between(1, 30), random.between(1, 9));
        let tokens = random.between(0, slots.min(12));
        let write = TensorScatter::new().axis(2);
        let (past, new) = ([1, heads, slots, head], [1, heads, tokens, head]);
        let geometry = write.prepare(element, &past, &new).unwrap().geometry().clone();
        // Of a slot that two tokens have, either's row may be left.
        let mut free: Vec<i64> = (0..slots as i64).collect();
        let mapping = random.many(tokens, |random| match random.below(4) {
            0 => random.pick(&[-1, i64::MIN, -7]),
            1 => random.pick(&[slots as i64, i64::MAX]),
            _ if free.is_empty() => -1,
            _ => free.remove(random.below(free.len())),
        });
        let bits = element.bits().unwrap();
        let stored = |elements: usize, first: usize| {
            let numbers = (first..first + elements).map(|at| (at % 251) as u8);
            if bits == 4 {
                nibbles::pack(&numbers.collect::<Vec<_>>())
            } else {
                numbers.flat_map(|n| vec![n; bits / 8]).collect()
            }
        };
        let (cache_elements, update_elements) = (heads * slots * head, heads * tokens * head);
        let mut cache: Vec<usize> = (0..cache_elements).collect();
        for (token, &slot) in mapping.iter().enumerate().filter(|(_, slot)| (0..slots as i64).contains(slot))
        {
            for (row, column) in (0..heads).flat_map(|row| (0..head).map(move |column| (row, column))) {
                cache[(row * slots + slot as usize) * head + column] =
                    cache_elements + (row * tokens + token) * head + column;
            }
        }
        let words = |mut bytes: Vec<u8>| {
            bytes.resize(bytes.len().next_multiple_of(4), 0);
            bytes
        };
        let expected: Vec<u8> = cache.iter().map(|&from| (from % 251) as u8).collect();
        let expected = match bits {
            4 => nibbles::pack(&expected),
            _ => expected.into_iter().flat_map(|n| vec![n; bits / 8]).collect(),
        };

        let held = Memory::of(&words(stored(cache_elements, 0)));
        let update = Memory::of(&stored(update_elements, cache_elements));
        let write = cuda()
            .prepare_slots(&geometry, &[Pair { cache: buffer(&held), update: buffer(&update) }])
            .unwrap();
        let (rig, list) = (Rig::new(0), Memory::of_i64(&mapping));
        rig.launch_with(&write, &Indices::new(DeviceList::i64(list.address, tokens))).unwrap();
        rig.stream.synchronize();
        assert_eq!(held.read(), words(expected), "{mapping:?} {past:?} {element:?}");
        let beyond = |slot: &i64| *slot >= slots as i64;
        let bad = mapping.iter().filter(|slot| beyond(slot)).count() as u32;
        let first = mapping.iter().position(beyond).map_or((0, 0), |at| (at as u32, mapping[at]));
        assert_eq!(status_of(&rig.status), status(bad, first.0, first.1));
    }
}

/// What rows of a launch have in common is exchanged: a plain store would undo what another thread has put there.
#[test]
#[ignore = "needs a driver: cargo xtask cuda"]
fn words_that_rows_share_are_exchanged() {
    // 3 samples of 5 half bytes: elements 0 to 7 are one word, 8 to 14 another. Rows begin at 0, 5 and 10.
    let write = TensorScatter::new().axis(1).prepare(ElementType::UInt4, &[3, 1, 5], &[3, 1, 5]).unwrap();
    let (cache, update) =
        (Memory::of(&[0; 8]), Memory::of(&[0xBA, 0xDC, 0xFE, 0x21, 0x43, 0x65, 0x87, 0x09]));
    let pair = Pair { cache: buffer(&cache), update: buffer(&update) };
    let write = cuda().prepare(write.geometry(), &[pair]).unwrap();
    let rig = Rig::new(0);
    let before = is_fake().then(exchanges);
    rig.launch_with(&write, &Indices::zero()).unwrap();
    rig.stream.synchronize();
    assert_eq!(cache.read(), update.read());
    if let Some(before) = before {
        // One row in the first word, one in both, one in the second; and again, where one has come in between.
        assert!((4..=8).contains(&(exchanges() - before)));
    }
}

/// No samples, no rows, rows of nothing: nothing is written, nothing is asked of the memory, and indices are checked as on
/// the CPU.
#[test]
#[ignore = "needs a driver: cargo xtask cuda"]
fn writes_of_nothing_report_what_is_bad() {
    let nothing = DeviceBuffer::new(0, 0);
    for (cache, update, bad) in [
        ([0, 4, 8], [0, 1, 8], None),
        ([2, 4, 8], [2, 0, 8], Some(5)),
        ([2, 4, 0], [2, 1, 0], Some(4)),
        ([2, 0, 8], [2, 0, 8], Some(1)),
    ] {
        let write = TensorScatter::new().axis(1).prepare(ElementType::Int4, &cache, &update).unwrap();
        let held = Memory::of(&vec![0xEE; write.geometry().cache_bytes().unwrap().next_multiple_of(4)]);
        let of_cache = if held.bytes == 0 { nothing } else { buffer(&held) };
        let write = cuda().prepare(write.geometry(), &[Pair { cache: of_cache, update: nothing }]).unwrap();
        let rig = Rig::new(0);
        let starts = Memory::of_i64(&[0, bad.unwrap_or(0)][..update[0]]);
        let indices = Indices::new(DeviceList::i64(starts.address, update[0]));
        rig.launch_with(&write, &indices).unwrap();
        rig.stream.synchronize();
        let expected = bad.map_or(status(0, 0, 0), |bad| status(1, 1, bad));
        assert_eq!(status_of(&rig.status), expected, "{cache:?}");
        assert_eq!(held.read(), vec![0xEE; held.bytes]);
    }
    let no_caches = cuda().prepare(&geometry(), &[]).unwrap();
    let rig = Rig::new(0);
    rig.launch(&no_caches).unwrap();
    rig.stream.synchronize();
}
