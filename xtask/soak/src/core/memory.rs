//! Painted buffers of one element type, and what they contain after a write.

use std::ops::Range;

use kvscatter::{Error, WritePlan};
use kvscatter_oracle::cases::{Element, Values, View};

/// The bytes in front of and after the present.
const GUARD: [u8; 3] = [0xA5; 3];

/// The buffers of a cache and an update, in their storage format.
pub(super) struct Memory {
    /// The bits of an element. Strings are handles of 8 bytes, which are cloned.
    bits: usize,
    is_cloned: bool,
    /// The offsets of the cache's elements in row-major order.
    places: Vec<usize>,
    past: Vec<u8>,
    update: Vec<u8>,
    /// The bytes of the buffers that calls get. The others are guards.
    cache_bytes: Range<usize>,
    update_bytes: Range<usize>,
    /// What calls write to, and what it must contain afterwards.
    in_place: [Vec<u8>; 2],
    present: [Vec<u8>; 2],
}

impl Memory {
    pub(super) fn new(element: &Element, cache: &View, update: &View) -> Self {
        let bits = element.bits.unwrap_or(64);
        let stored = Element::all().iter().find(|stored| stored.bits == Some(bits) && stored.name != "bool");
        let painted = |first, count| match stored.map(|stored| Values::painted(stored, first, count)) {
            Some(Values::Bytes(bytes)) => bytes,
            _ => unreachable!("every width has an element type"),
        };
        let bytes = |elements: Range<usize>| elements.start * bits / 8..(elements.end * bits).div_ceil(8);
        let (places, past) = (cache.places(), painted(0, cache.total()));
        let present = [&GUARD[..], &vec![0; (places.len() * bits).div_ceil(8)], &GUARD].concat();
        Self {
            bits,
            is_cloned: element.bits.is_none(),
            update: painted(cache.total(), update.total()),
            cache_bytes: bytes(cache.buffer()),
            update_bytes: bytes(update.buffer()),
            in_place: [past.clone(), past.clone()],
            present: [present.clone(), present],
            places,
            past,
        }
    }

    /// Runs the plan in both forms and compares the whole buffers. `rows` calls its argument with the offsets of each
    /// element that is written, in the buffers of the cache and of the update.
    pub(super) fn check(
        &mut self,
        plan: &WritePlan<'_>,
        rows: impl FnOnce(&mut dyn FnMut(&[usize], &[usize])),
    ) -> Result<(), String> {
        let bits = self.bits;
        let [got, expected] = &mut self.in_place;
        got.copy_from_slice(&self.past);
        expected.copy_from_slice(&self.past);
        rows(&mut |to, from| {
            assert_eq!(to.len(), from.len());
            for (&to, &from) in to.iter().zip(from) {
                copy(bits, expected, to, &self.update, from);
            }
        });
        let [cache, update] = [self.cache_bytes.clone(), self.update_bytes.clone()];
        let update = &self.update[update];
        let result = if self.is_cloned {
            on_handles(&mut got[cache.clone()], [update], |cache, [update]| plan.write_cloned(cache, update))
        } else {
            plan.write_bytes(&mut got[cache.clone()], update)
        };
        expect(plan, &result)?;
        same("the cache", got, expected)?;

        let [present, expected_present] = &mut self.present;
        let inner = GUARD.len()..present.len() - GUARD.len();
        present[inner.clone()].fill(0x5A);
        let dense = &mut expected_present[inner.clone()];
        for (to, &from) in self.places.iter().enumerate() {
            copy(bits, dense, to, expected, from);
        }
        let past = &self.past[cache];
        let result = if self.is_cloned {
            on_handles(&mut present[inner], [past, update], |present, [past, update]| {
                plan.write_present_cloned(past, update, present)
            })
        } else {
            plan.write_present_bytes(past, update, &mut present[inner])
        };
        expect(plan, &result)?;
        same("the present", present, expected_present)
    }

    /// Checks that a plan refuses a buffer without the cache's last element, and changes no byte.
    pub(super) fn check_short(&mut self, plan: &WritePlan<'_>) -> Result<(), String> {
        let (cache, update) = (self.cache_bytes.clone(), self.update_bytes.clone());
        // A strided cache may have a longer buffer than it needs.
        let Some(last) = self.places.iter().max().filter(|_| !self.is_cloned) else { return Ok(()) };
        let [got, _] = &mut self.in_place;
        got.copy_from_slice(&self.past);
        let result = plan.write_bytes(&mut got[cache.start..last * self.bits / 8], &self.update[update]);
        if !matches!(result, Err(Error::BufferLength { .. })) {
            return Err(format!("a buffer that is too short gives {result:?}"));
        }
        same("the cache after an error", got, &self.past)
    }
}

/// Copies one element.
fn copy(bits: usize, to_bytes: &mut [u8], to: usize, from_bytes: &[u8], from: usize) {
    if bits == 4 {
        let nibble = from_bytes[from / 2] >> (4 * (from % 2)) & 0xF;
        let shift = 4 * (to % 2);
        to_bytes[to / 2] = to_bytes[to / 2] & !(0xF << shift) | nibble << shift;
    } else {
        let width = bits / 8;
        to_bytes[to * width..][..width].copy_from_slice(&from_bytes[from * width..][..width]);
    }
}

/// Runs a write of values that are cloned. The buffers contain their handles.
fn on_handles<const N: usize>(
    written: &mut [u8],
    read: [&[u8]; N],
    write: impl FnOnce(&mut [Vec<u8>], [&[Vec<u8>]; N]) -> Result<kvscatter::Written, Error>,
) -> Result<kvscatter::Written, Error> {
    let handles = |bytes: &[u8]| bytes.chunks(8).map(<[u8]>::to_vec).collect::<Vec<_>>();
    let (mut to, read) = (handles(written), read.map(handles));
    let result = write(&mut to, read.each_ref().map(Vec::as_slice));
    written.copy_from_slice(&to.concat());
    result
}

fn expect(plan: &WritePlan<'_>, result: &Result<kvscatter::Written, Error>) -> Result<(), String> {
    match result {
        Ok(written) if written.skipped == plan.skipped() => Ok(()),
        result => Err(format!("a write of a valid plan gives {result:?}")),
    }
}

fn same(what: &str, got: &[u8], expected: &[u8]) -> Result<(), String> {
    if got == expected {
        return Ok(());
    }
    let first = got.iter().zip(expected).position(|(got, expected)| got != expected);
    Err(format!("{what} differs from byte {first:?} on:\ngot      {got:?}\nexpected {expected:?}"))
}
