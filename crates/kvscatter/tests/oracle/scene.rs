//! Executes one call on one pair of views, at every width and in every way.

use std::fmt::Debug;
use std::mem::MaybeUninit;
use std::sync::LazyLock;

use bytemuck::{AnyBitPattern, NoUninit};
use kvscatter::{ElementType, Error, Executor, RawBuffer, WritePlan};
use kvscatter_oracle::cases::{Call, Element, Origin, Values, View};
use kvscatter_oracle::{Outcome, Refusal, nibbles};

use crate::call::{error, is_reachable, plan, prepare, with_plan};
use crate::variants::{self, Variant};
use crate::view::AsLayout;

/// A call, the views of its tensors, and the oracle's result as indices of elements.
pub(crate) struct Scene<'a> {
    pub(crate) call: &'a Call,
    pub(crate) cache: View,
    pub(crate) update: View,
    pub(crate) outcome: &'a Result<Outcome<Origin>, Refusal>,
}

/// Returns one element type of every width that the call's operator accepts.
pub(crate) fn every_width(call: &Call) -> &'static [ElementType] {
    use ElementType::{
        BFloat16, Complex64, Complex128, Float4E2M1, Float8E5M2, Float16, Float32, Int8, String,
    };
    match call {
        Call::TensorScatter { .. } => {
            &[Float4E2M1, Float8E5M2, BFloat16, Float32, Complex64, Complex128, String]
        }
        Call::KvCacheUpdate { .. } => &[Float32, Float16],
        Call::KvCacheOperation { .. } => &[BFloat16, Int8],
    }
}

/// The number of distinct elements. The buffers of a scene together have fewer.
pub(crate) const PAINTED: usize = 1 << 16;

/// The painted elements by their number, at every width.
struct Paint {
    nibbles: Vec<u8>,
    bytes: Vec<u8>,
    w16: Vec<u16>,
    w32: Vec<u32>,
    w64: Vec<u64>,
    w128: Vec<u128>,
    strings: Vec<String>,
}

static PAINT: LazyLock<Paint> = LazyLock::new(|| {
    let bytes = |element: &str| match Values::painted(Element::named(element).unwrap(), 0, PAINTED) {
        Values::Bytes(bytes) => bytes,
        Values::Strings(_) => unreachable!("{element}"),
    };
    let Values::Strings(strings) = Values::painted(Element::named("string").unwrap(), 0, PAINTED) else {
        unreachable!()
    };
    fn words<W: AnyBitPattern + NoUninit>(bytes: &[u8]) -> Vec<W> {
        bytes.chunks_exact(size_of::<W>()).map(bytemuck::pod_read_unaligned).collect()
    }
    Paint {
        nibbles: nibbles::unpack(&bytes("uint4"), PAINTED),
        bytes: bytes("uint8"),
        w16: words(&bytes("uint16")),
        w32: words(&bytes("uint32")),
        w64: words(&bytes("uint64")),
        w128: words(&bytes("complex128")),
        strings,
    }
});

/// A plan, and the variant that it was prepared for.
struct Way<'a> {
    variant: Variant,
    plan: WritePlan<'a>,
}

impl Debug for Way<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?}, {:?}", self.variant, self.plan)
    }
}

impl Scene<'_> {
    /// Runs the call at one width, in place and functional, on this thread and with executors, with every
    /// variant. Compares whole buffers, including the guards.
    pub(crate) fn check(&self, element: ElementType) {
        self.check_on(element, &Variant::for_small(), variants::ODD);
    }

    /// Does the same with these variants and executors.
    pub(crate) fn check_on(&self, element: ElementType, variants: &[Variant], executors: &[&dyn Executor]) {
        let outcome = match self.outcome {
            Ok(outcome) => outcome,
            Err(refusal) => return self.check_refused(element, refusal),
        };
        let prepared = prepare(self.call, element, self.cache.layout(), self.update.layout());
        let prepared = prepared.unwrap_or_else(|error| panic!("{error:?}, {self:?}"));
        let variants: Vec<_> = variants.iter().map(|&variant| (variant, variant.apply(&prepared))).collect();
        let mut ways = Vec::new();
        for (variant, prepared) in &variants {
            let plan = plan(prepared, self.call).unwrap_or_else(|error| panic!("{error:?}, {self:?}"));
            assert_eq!(plan.skipped(), outcome.skipped, "skipped, {self:?}");
            ways.push(Way { variant: *variant, plan });
            // With the real limits, the tensors of a scene are too small to be shared.
            if variant.has_tiny_limits() {
                let shared = executors.iter().map(|&executor| plan.with_executor(executor));
                ways.extend(shared.map(|plan| Way { variant: *variant, plan }));
            }
        }
        match element.bits() {
            Some(4) => self.check_packed(&ways, outcome),
            Some(8) => self.check_words(&ways, outcome, &PAINT.bytes),
            Some(16) => self.check_words(&ways, outcome, &PAINT.w16),
            Some(32) => self.check_words(&ways, outcome, &PAINT.w32),
            Some(64) => self.check_words(&ways, outcome, &PAINT.w64),
            Some(128) => self.check_words(&ways, outcome, &PAINT.w128),
            // Strings have no kernels.
            _ => self.check_strings(&ways[0].plan, outcome),
        }
    }

    fn check_refused(&self, element: ElementType, refusal: &Refusal) {
        if !is_reachable(refusal) {
            return;
        }
        let checked =
            with_plan(self.call, element, self.cache.layout(), self.update.layout(), |_| Ok::<_, Error>(()));
        let expected = error(refusal, self.call, self.cache.shape(), self.update.shape(), element);
        assert_eq!(checked, Err(expected), "{self:?}");
    }

    /// Returns the numbers of the elements in the cache's buffer after a write in place. The cache's elements
    /// have the numbers `0..total`, and the update's elements have the following numbers.
    fn after_in_place(&self, outcome: &Outcome<Origin>) -> Vec<usize> {
        let mut numbers: Vec<_> = (0..self.cache.total()).collect();
        let from = self.update.places();
        for (place, origin) in self.cache.places().into_iter().zip(&outcome.present) {
            if let Some(written) = origin.written() {
                numbers[place] = self.cache.total() + from[written];
            }
        }
        numbers
    }

    /// Returns the numbers of the elements of `present`, which is dense.
    fn present(&self, outcome: &Outcome<Origin>) -> Vec<usize> {
        let (past, from) = (self.cache.places(), self.update.places());
        let number = |origin: &Origin| match *origin {
            Origin::Cache(kept) => past[kept],
            Origin::Update(written) => self.cache.total() + from[written],
        };
        outcome.present.iter().map(number).collect()
    }

    fn check_words<W>(&self, ways: &[Way<'_>], outcome: &Outcome<Origin>, paint: &[W])
    where
        W: NoUninit + AnyBitPattern + PartialEq + Debug,
    {
        let past = &paint[..self.cache.total()];
        let update = &paint[self.cache.total()..][self.update.buffer()];
        let look_up = |numbers: Vec<usize>| numbers.into_iter().map(|n| paint[n]).collect::<Vec<_>>();
        let (in_place, present) = (look_up(self.after_in_place(outcome)), look_up(self.present(outcome)));
        let guard = paint[paint.len() - 1];
        for way in ways {
            self.check_in_place(way, past, update, &in_place);
            self.check_functional(way, &past[self.cache.buffer()], update, &present, guard);
        }
    }

    fn check_in_place<W>(&self, way: &Way<'_>, past: &[W], update: &[W], expected: &[W])
    where
        W: NoUninit + AnyBitPattern + PartialEq + Debug,
    {
        let (plan, buffer) = (&way.plan, self.cache.buffer());
        let mut cache = past.to_vec();
        let written = plan.write(&mut cache[buffer.clone()], update);
        assert_eq!(written.map(|written| written.skipped), Ok(plan.skipped()), "{self:?}");
        assert_eq!(cache, expected, "in place, {way:?}, {self:?}");

        // The second buffer begins one byte after an aligned address, so its words are not aligned.
        let mut bytes = vec![0; size_of_val(past) + 1];
        bytes[1..].copy_from_slice(bytemuck::cast_slice(past));
        let buffer = 1 + buffer.start * size_of::<W>()..1 + buffer.end * size_of::<W>();
        // SAFETY: One buffer is borrowed exclusively, and nothing writes to the other.
        let _ =
            unsafe { plan.write_raw(raw(&mut bytes[buffer]), read(bytemuck::cast_slice(update))) }.unwrap();
        let expected: &[u8] = bytemuck::cast_slice(expected);
        assert_eq!(&bytes[1..], expected, "in place, by address, {way:?}, {self:?}");
    }

    fn check_functional<W>(&self, way: &Way<'_>, past: &[W], update: &[W], expected: &[W], guard: W)
    where
        W: NoUninit + AnyBitPattern + PartialEq + Debug,
    {
        let plan = &way.plan;
        let mut guarded = vec![guard; expected.len() + 2];
        let inner = 1..=expected.len();
        let _ = plan.write_present(past, update, &mut guarded[inner.clone()]).unwrap();
        assert_eq!(guarded[inner], *expected, "functional, {way:?}, {self:?}");
        let guards = [guarded[0], guarded[expected.len() + 1]];
        assert_eq!(guards, [guard; 2], "functional guards, {way:?}, {self:?}");

        let mut memory = vec![MaybeUninit::uninit(); expected.len()];
        let (present, _) = plan.write_present_uninit(past, update, &mut memory).unwrap();
        assert_eq!(present, expected, "functional, uninitialised, {way:?}, {self:?}");
    }

    fn check_packed(&self, ways: &[Way<'_>], outcome: &Outcome<Origin>) {
        let (cache_buffer, update_buffer) = (self.cache.buffer(), self.update.buffer());
        let past = nibbles::pack(&PAINT.nibbles[..self.cache.total()]);
        let update = nibbles::pack(&PAINT.nibbles[self.cache.total()..][..self.update.total()]);
        let update = &update[packed(update_buffer)];
        let look_up = |numbers: Vec<usize>| numbers.into_iter().map(|n| PAINT.nibbles[n]).collect::<Vec<_>>();
        let in_place = nibbles::pack(&look_up(self.after_in_place(outcome)));
        let present = nibbles::pack(&look_up(self.present(outcome)));

        let (past_buffer, inner) = (&past[packed(cache_buffer.clone())], 1..=present.len());
        for way in ways {
            let (plan, mut cache) = (&way.plan, past.clone());
            let buffer = raw(&mut cache[packed(cache_buffer.clone())]);
            // SAFETY: One buffer is borrowed exclusively, and nothing writes to the other.
            let _ = unsafe { plan.write_raw(buffer, read(update)) }.unwrap();
            assert_eq!(cache, in_place, "in place, {way:?}, {self:?}");

            let mut guarded = vec![0xA5; present.len() + 2];
            let buffer = raw(&mut guarded[inner.clone()]);
            // SAFETY: The result is borrowed exclusively, and nothing writes to the others.
            let _ = unsafe { plan.write_present_raw(read(past_buffer), read(update), buffer) }.unwrap();
            assert_eq!(guarded[inner.clone()], present, "functional, {way:?}, {self:?}");
            let guards = [guarded[0], guarded[present.len() + 1]];
            assert_eq!(guards, [0xA5; 2], "functional guards, {way:?}, {self:?}");
        }
    }

    fn check_strings(&self, plan: &WritePlan<'_>, outcome: &Outcome<Origin>) {
        let (cache_buffer, update_buffer) = (self.cache.buffer(), self.update.buffer());
        let past = &PAINT.strings[..self.cache.total()];
        let update = &PAINT.strings[self.cache.total()..][update_buffer];
        let same = |strings: &[String], numbers: Vec<usize>| {
            assert_eq!(strings.len(), numbers.len());
            strings.iter().zip(numbers).all(|(string, n)| *string == PAINT.strings[n])
        };

        let mut cache = past.to_vec();
        let _ = plan.write_cloned(&mut cache[cache_buffer.clone()], update).unwrap();
        assert!(same(&cache, self.after_in_place(outcome)), "in place {cache:?}, {self:?}");

        let mut present = vec![String::new(); outcome.present.len()];
        let _ = plan.write_present_cloned(&past[cache_buffer], update, &mut present).unwrap();
        assert!(same(&present, self.present(outcome)), "functional {present:?}, {self:?}");
    }
}

impl Debug for Scene<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "{:?}\ncache {:?}\nupdate {:?}\noracle {:?}",
            self.call, self.cache, self.update, self.outcome
        )
    }
}

/// Returns the bytes of a range of 4-bit elements that begins at a byte.
fn packed(nibbles: std::ops::Range<usize>) -> std::ops::Range<usize> {
    assert!(nibbles.start.is_multiple_of(2));
    nibbles.start / 2..nibbles.end.div_ceil(2)
}

fn raw(bytes: &mut [u8]) -> RawBuffer {
    RawBuffer { ptr: bytes.as_mut_ptr(), len: bytes.len() }
}

/// Returns a buffer that may only be read.
fn read(bytes: &[u8]) -> RawBuffer {
    RawBuffer { ptr: bytes.as_ptr().cast_mut(), len: bytes.len() }
}
