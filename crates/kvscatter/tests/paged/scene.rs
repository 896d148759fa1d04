//! Executes one write on one pair of views, at every width and in every way.

use std::fmt::Debug;

use kvscatter::spec::paged::PagedWrite;
use kvscatter::{
    Argument, ElementType, Error, Executor, PlannedWrite, Prepared, RawBuffer, WritePlan, write_all,
};
use kvscatter_oracle::Outcome;
use kvscatter_oracle::cases::paged::PagedCase;
use kvscatter_oracle::cases::{Element, Origin, Values, View};
use kvscatter_oracle::paged::PagedRefusal;

use crate::variants::Variant;
use crate::view::AsLayout;

/// One element type of every width.
pub(crate) const EVERY_WIDTH: &[ElementType] = &[
    ElementType::Float4E2M1,
    ElementType::Float8E5M2,
    ElementType::BFloat16,
    ElementType::Float32,
    ElementType::Complex64,
    ElementType::Complex128,
    ElementType::String,
];

/// A write, the views of its tensors, and the oracle's result as indices of elements.
#[derive(Debug)]
pub(crate) struct Scene<'a> {
    pub(crate) case: &'a PagedCase,
    pub(crate) cache: View,
    pub(crate) update: View,
    pub(crate) outcome: &'a Result<Outcome<Origin>, PagedRefusal>,
}

impl Scene<'_> {
    /// Returns the prepared write.
    pub(crate) fn prepare(&self, element: ElementType) -> Result<Prepared, Error> {
        let operator = &self.case.operator;
        let front = PagedWrite::new().axis(operator.axis).skip_negative(operator.skip_negative);
        front.prepare(element, self.cache.layout(), self.update.layout())
    }

    /// Runs the write with these variants and executors. Compares whole buffers, including the guards.
    pub(crate) fn check(&self, element: ElementType, variants: &[Variant], executors: &[&dyn Executor]) {
        let slots = &self.case.slot_mapping;
        let outcome = match self.outcome {
            Ok(outcome) => outcome,
            Err(refusal) => {
                let refused = self.prepare(element).and_then(|prepared| {
                    let plan = prepared.plan(slots)?;
                    let (cache, update) = (&[0_u8; 0][..], &[0_u8; 0][..]);
                    plan.check_bytes(cache, update)
                });
                assert_eq!(refused, Err(error(refusal, self.case.cache_shape.len())), "{self:?}");
                return;
            }
        };
        let painted = |first, count| Values::painted(oracle_element(element), first, count);
        let cache = painted(0, self.cache.total());
        let updates = [1, 2].map(|n| painted(n * self.cache.total(), self.update.total()));
        let expected = updates.each_ref().map(|update| self.expected(element, outcome, &cache, update));
        let prepared = self.prepare(element).unwrap_or_else(|error| panic!("{error:?}, {self:?}"));
        for variant in variants {
            let prepared = variant.apply(&prepared);
            let plan = prepared.plan(slots).unwrap_or_else(|error| panic!("{error:?}, {self:?}"));
            assert_eq!(plan.skipped(), outcome.skipped, "{self:?}");
            let mut plans = vec![plan];
            if variant.has_tiny_limits() {
                plans.extend(executors.iter().map(|&executor| plan.with_executor(executor)));
            }
            for plan in plans {
                match (&cache, &updates) {
                    (Values::Strings(cache), [Values::Strings(update), _]) => {
                        let mut written = cache.clone();
                        let (to, from) = (self.cache.buffer(), self.update.buffer());
                        let _ = plan.write_cloned(&mut written[to], &update[from]).unwrap();
                        assert_eq!(Values::Strings(written), expected[0], "{variant:?}, {self:?}");
                    }
                    (Values::Bytes(cache), [Values::Bytes(k), Values::Bytes(v)]) => {
                        let written = self.write_bytes(element, &plan, cache, [k, v]);
                        for written in written {
                            let written = written.map(Values::Bytes);
                            assert!(written == expected, "{variant:?}, {plan:?}, {self:?}");
                        }
                    }
                    _ => unreachable!("{element:?}"),
                }
            }
        }
    }

    /// Writes two caches by one plan: as slices, and by their addresses.
    fn write_bytes(
        &self,
        element: ElementType,
        plan: &WritePlan<'_>,
        cache: &[u8],
        updates: [&[u8]; 2],
    ) -> [[Vec<u8>; 2]; 2] {
        let bytes = |elements: std::ops::Range<usize>| {
            let bits = element.bits().unwrap();
            elements.start * bits / 8..(elements.end * bits).div_ceil(8)
        };
        let (to, from) = (bytes(self.cache.buffer()), bytes(self.update.buffer()));
        let updates = updates.map(|update| &update[from.clone()]);
        let fresh = || [cache.to_vec(), cache.to_vec()];

        let mut sliced = fresh();
        let [k, v] = &mut sliced;
        write_all(&mut [
            PlannedWrite { plan: *plan, cache: &mut k[to.clone()], update: updates[0] },
            PlannedWrite { plan: *plan, cache: &mut v[to.clone()], update: updates[1] },
        ])
        .unwrap();

        let mut addressed = fresh();
        let raw = |bytes: &mut [u8]| RawBuffer { ptr: bytes.as_mut_ptr(), len: bytes.len() };
        let read = |bytes: &[u8]| RawBuffer { ptr: bytes.as_ptr().cast_mut(), len: bytes.len() };
        let [k, v] = &mut addressed;
        let pairs =
            [(raw(&mut k[to.clone()]), read(updates[0])), (raw(&mut v[to.clone()]), read(updates[1]))];
        // SAFETY: The caches are borrowed exclusively, and nothing writes to the updates.
        let written = unsafe { plan.write_many_raw(pairs) }.unwrap();
        assert_eq!(written.skipped, plan.skipped());
        [sliced, addressed]
    }

    /// Returns the cache's buffer and its guards after the write.
    fn expected(
        &self,
        element: ElementType,
        outcome: &Outcome<Origin>,
        cache: &Values,
        update: &Values,
    ) -> Values {
        let mut origins: Vec<_> = (0..self.cache.total()).map(Origin::Cache).collect();
        let from = self.update.places();
        for (place, origin) in self.cache.places().into_iter().zip(&outcome.present) {
            if let Some(written) = origin.written() {
                origins[place] = Origin::Update(from[written]);
            }
        }
        Values::gathered(oracle_element(element), &origins, cache, update)
    }
}

fn oracle_element(element: ElementType) -> &'static Element {
    let mut elements = Element::all().iter();
    elements.find(|same| ElementType::from_name(same.name) == Some(element)).unwrap()
}

/// Returns the core's error for a rule that is broken according to the oracle, for a cache of this rank.
pub(crate) fn error(refusal: &PagedRefusal, cache_rank: usize) -> Error {
    /// The ranks of caches and updates.
    static RANKS: [usize; 9] = [0, 1, 2, 3, 4, 5, 6, 7, 8];
    match *refusal {
        PagedRefusal::CacheRank { rank } => {
            Error::Rank { argument: Argument::Cache, rank, expected: &RANKS[2..] }
        }
        PagedRefusal::Axis { axis, rank } if axis == 0 || axis == -(rank as i64) => {
            Error::AxisIsBatch { axis, rank }
        }
        PagedRefusal::Axis { axis, rank } => Error::AxisOutOfRange { axis, rank },
        PagedRefusal::UpdateRank { rank } => {
            Error::Rank { argument: Argument::Update, rank, expected: &RANKS[cache_rank - 1..cache_rank] }
        }
        PagedRefusal::Dimension { dimension, cache, update } => Error::DimensionMismatch {
            argument: Argument::Update,
            dimension,
            expected: cache,
            got: update,
            hint: None,
        },
        PagedRefusal::Count { list, given, needed } => {
            let argument = match list {
                "slot_mapping" => Argument::SlotMapping,
                "block_tables" => Argument::BlockTables,
                "new_tokens" => Argument::NewTokens,
                unknown => unreachable!("{unknown}"),
            };
            Error::ListLength { argument, got: given, expected: needed }
        }
        PagedRefusal::NegativeSlot { token, slot } => {
            Error::NegativeStart { argument: Argument::SlotMapping, index: token, value: slot }
        }
        PagedRefusal::SlotOutOfRange { token, slot, slots } => {
            Error::SlotOutOfRange { argument: Argument::SlotMapping, index: token, value: slot, slots }
        }
        PagedRefusal::DuplicateSlot { token, earlier, slot } => {
            Error::DuplicateSlot { argument: Argument::SlotMapping, index: token, value: slot, earlier }
        }
        PagedRefusal::NewTokens { sample, new_tokens, most } => Error::LengthOutOfRange {
            argument: Argument::NewTokens,
            index: sample,
            value: new_tokens,
            min: 0,
            max: most,
        },
        PagedRefusal::SeqLen { sample, seq_len, least, most } => Error::LengthOutOfRange {
            argument: Argument::SeqLens,
            index: sample,
            value: seq_len,
            min: least,
            max: most,
        },
        PagedRefusal::Block { sample, column, block, blocks } => Error::BlockOutOfRange {
            argument: Argument::BlockTables,
            sample,
            index: column,
            value: block,
            blocks,
        },
    }
}
