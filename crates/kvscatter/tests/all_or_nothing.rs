//! Tests X1: after an error, no byte of any cache has changed, in calls over many buffers too.
#![cfg(test)]

use kvscatter::Prepared;
use kvscatter::error::LengthUnit;
use kvscatter::spec::onnx::TensorScatter;
use kvscatter::{Argument, BufferPairs, ElementType, Error};
use proptest::prelude::*;

const CACHE: usize = 2 * 4 * 3;
const UPDATE: usize = 2 * 2 * 3;

fn prepared() -> Prepared {
    TensorScatter::new().prepare(ElementType::UInt16, &[2, 4, 3], &[2, 2, 3]).unwrap()
}

/// Returns pairs of buffers whose contents differ from each other.
fn pairs(count: usize) -> Vec<(Vec<u16>, Vec<u16>)> {
    let paint = |pair: usize, len| (0..len as u16).map(|i| i + 1000 * pair as u16).collect();
    (0..count).map(|pair| (paint(2 * pair, CACHE), paint(2 * pair + 1, UPDATE))).collect()
}

/// A set of pairs that is not a slice.
struct Set<'a>(&'a mut Vec<(Vec<u16>, Vec<u16>)>);

impl BufferPairs<u16> for Set<'_> {
    fn count(&self) -> usize {
        self.0.len()
    }

    fn pair(&mut self, index: usize) -> (&mut [u16], &[u16]) {
        let (cache, update) = &mut self.0[index];
        (cache, update)
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn many_writes_are_single_writes(count in 0_usize..6, starts in [0_i64..=2, 0..=2]) {
        let write = prepared();
        let mut expected = pairs(count);
        for (cache, update) in &mut expected {
            let _ = write.write(cache, update, &starts).unwrap();
        }
        let (mut vector, mut slice, mut set) = (pairs(count), pairs(count), pairs(count));
        let _ = write.write_many(&mut vector, &starts).unwrap();
        let _ = write.write_many(slice.as_mut_slice(), &starts).unwrap();
        let _ = write.write_many(&mut Set(&mut set), &starts).unwrap();
        prop_assert_eq!(&slice, &expected);
        prop_assert_eq!(&vector, &expected);
        prop_assert_eq!(&set, &expected);
    }

    #[test]
    fn one_wrong_length_stops_all(
        count in 1_usize..6,
        bad in any::<prop::sample::Index>(),
        in_update: bool,
        longer: bool,
    ) {
        let write = prepared();
        let bad = bad.index(count);
        let mut before = pairs(count);
        let (argument, expected) = if in_update { (Argument::Update, UPDATE) } else { (Argument::PastCache, CACHE) };
        let buffer = if in_update { &mut before[bad].1 } else { &mut before[bad].0 };
        buffer.resize(if longer { expected + 1 } else { expected - 1 }, 7);
        let got = buffer.len();

        let (mut slice, mut set) = (before.clone(), before.clone());
        let refused = Error::BufferLength { argument, pair: bad, got, expected, unit: LengthUnit::Elements, exact: true };
        prop_assert_eq!(write.write_many(&mut slice, &[0_i64, 1]), Err(refused));
        prop_assert_eq!(write.write_many(&mut Set(&mut set), &[0_i64, 1]), Err(refused));
        prop_assert_eq!(&slice, &before);
        prop_assert_eq!(&set, &before);
    }
}

/// Neither sample is written if the last one is bad and the first one is good.
#[test]
fn a_bad_index_stops_all_samples_of_all_buffers() {
    let write = prepared();
    let refused = Err(Error::StartOutOfRange {
        argument: Argument::WriteIndices,
        index: 1,
        value: 3,
        rows: 2,
        capacity: 4,
    });
    let mut many = pairs(3);
    assert_eq!(write.write_many(&mut many, &[0_i64, 3]), refused);
    assert_eq!(many, pairs(3));
    let (mut cache, update) = pairs(1).remove(0);
    let mut present = cache.clone();
    assert_eq!(write.write(&mut cache, &update, &[0_i64, 3]), refused);
    assert_eq!(write.write_present(&cache, &update, &mut present, &[0_i64, 3]), refused);
    assert_eq!((&cache, &present), (&pairs(1)[0].0, &pairs(1)[0].0));
}

#[test]
fn every_method_checks_every_buffer_first() {
    let write = prepared();
    let plan = write.plan(&[0_i64, 1]).unwrap();
    let (cache, update) = pairs(1).remove(0);
    let resized = |len: usize| vec![9_u16; len];
    let refused_in = |unit, argument, got, expected| {
        Err(Error::BufferLength { argument, pair: 0, got, expected, unit, exact: true })
    };
    let refused = |argument, got, expected| refused_in(LengthUnit::Elements, argument, got, expected);
    for got in [0, CACHE - 1, CACHE + 1] {
        let mut wrong = resized(got);
        let as_cache = refused(Argument::PastCache, got, CACHE);
        assert_eq!(plan.write(&mut wrong, &update), as_cache);
        assert_eq!(plan.write_cloned(&mut wrong, &update), as_cache);
        assert_eq!(plan.write_present(&wrong, &update, &mut resized(CACHE)), as_cache);
        assert_eq!(plan.write_present_cloned(&wrong, &update, &mut resized(CACHE)), as_cache);
        let as_present = refused(Argument::PresentCache, got, CACHE);
        assert_eq!(plan.write_present(&cache, &update, &mut wrong), as_present);
        assert_eq!(plan.write_present_cloned(&cache, &update, &mut wrong), as_present);
        assert_eq!(wrong, resized(got));
        let as_bytes = refused_in(LengthUnit::Bytes, Argument::PastCache, 2 * got, 2 * CACHE);
        assert_eq!(
            plan.write_bytes(bytemuck::cast_slice_mut(&mut wrong), bytemuck::cast_slice(&update)),
            as_bytes
        );
    }
    for got in [0, UPDATE - 1, UPDATE + 1] {
        let as_update = refused(Argument::Update, got, UPDATE);
        let (mut past, mut present) = (cache.clone(), resized(CACHE));
        assert_eq!(plan.write(&mut past, &resized(got)), as_update);
        assert_eq!(plan.write_cloned(&mut past, &resized(got)), as_update);
        assert_eq!(plan.write_present(&past, &resized(got), &mut present), as_update);
        assert_eq!(plan.write_present_cloned(&past, &resized(got), &mut present), as_update);
        assert_eq!((past, present), (cache.clone(), resized(CACHE)));
    }
}

#[test]
fn elements_of_another_width_are_refused() {
    let element = ElementType::UInt16;
    let write = prepared();
    let plan = write.plan(&[0_i64, 1]).unwrap();
    let refused = |got| Err(Error::ElementWidth { got, element });
    assert_eq!(plan.write(&mut [0_u8; CACHE], &[0_u8; UPDATE]), refused(8));
    assert_eq!(plan.write(&mut [0_u32; CACHE], &[0_u32; UPDATE]), refused(32));
    assert_eq!(plan.write_present(&[0_f64; CACHE], &[0.0; UPDATE], &mut [0.0; CACHE]), refused(64));
    assert_eq!(plan.write_many(&mut [(&mut [(); CACHE], &[(); UPDATE])]), refused(0));
}

#[test]
fn packed_nibbles_and_strings_need_other_methods() {
    let refused = |element, got| Err(Error::ElementWidth { got, element });
    let int4 = TensorScatter::new().prepare(ElementType::Int4, &[1, 3, 1], &[1, 1, 1]).unwrap();
    assert_eq!(int4.write(&mut [0_u8; 2], &[0], &[0_i64]), refused(ElementType::Int4, 8));
    let string = TensorScatter::new().prepare(ElementType::String, &[1, 3, 1], &[1, 1, 1]).unwrap();
    let plan = string.plan(&[0_i64]).unwrap();
    assert_eq!(plan.write_bytes(&mut [0; 3], &[0]), refused(ElementType::String, 8));
    assert_eq!(plan.write(&mut [0_u128; 3], &[0]), refused(ElementType::String, 128));
}

/// A plan can be checked before caches of other shapes and element types are written.
#[test]
fn a_checked_write_returns_no_error() {
    let codes = TensorScatter::new().prepare(ElementType::Int4, &[2, 4, 3], &[2, 2, 3]).unwrap();
    let (write, starts) = (prepared(), [1_i64, 2]);
    let (wide, narrow) = (write.plan(&starts).unwrap(), codes.plan(&starts).unwrap());
    let (cache, update, bytes) = ([7_u16; CACHE], [9_u16; UPDATE], [0x77_u8; CACHE / 2]);
    assert_eq!(wide.check(&cache, &update), Ok(()));
    assert_eq!(narrow.check_bytes(&bytes, &bytes[..UPDATE / 2]), Ok(()));
    for (checked, written) in [
        (wide.check(&cache[1..], &update), wide.write(&mut { cache }[1..], &update)),
        (wide.check(&cache, &update[1..]), wide.write(&mut { cache }, &update[1..])),
        (wide.check(&bytes, &bytes), wide.write(&mut { bytes }, &bytes)),
        (narrow.check(&bytes, &bytes), narrow.write(&mut { bytes }, &bytes)),
        (narrow.check_bytes(&bytes, &bytes), narrow.write_bytes(&mut { bytes }, &bytes)),
    ] {
        assert_eq!(Err(checked.unwrap_err()), written);
    }
}
