//! Places a case in the memory of a device, with the expected memory after the launch.

use kvscatter_cuda::StatusWords;
use kvscatter_oracle::cases::{Call as Operator, Case, Element, Origin, Placed, Random, Values, View};

use crate::contract::{self, Contract};
use crate::device::Memory;

/// A case in memory, with its expected results.
pub(crate) struct Scene<'a> {
    pub(crate) case: &'a Case,
    pub(crate) contract: Contract,
    /// The views of the cache and of the update.
    pub(crate) views: [View; 2],
    pub(crate) stored: &'static Element,
    pub(crate) bits: usize,
    /// The number of caches that are written from one update.
    pub(crate) jobs: usize,
    pub(crate) past: Vec<u8>,
    pub(crate) new: Vec<u8>,
    /// The cache's buffer after a launch in place.
    pub(crate) in_place: Vec<u8>,
    /// The present after a launch. `kept` is the present if nothing is written.
    pub(crate) present: Vec<u8>,
    pub(crate) kept: Vec<u8>,
}

impl<'a> Scene<'a> {
    /// Returns `None` if the host rejects the case and launches nothing.
    pub(crate) fn new(case: &'a Case, views: [View; 2], random: &mut Random) -> Option<Self> {
        let contract = contract::expected(case)?;
        let answered = contract.written.as_ref().unwrap_or(case);
        let [cache, update] = views.clone();
        let placed = answered.placed(cache, update);
        let kept = kept(&placed);
        let past = words(&placed.past);
        let (in_place, present) = match &placed.expected {
            Ok(after) if contract.written.is_some() => (words(&after.in_place), bytes(&after.present)),
            _ => (past.clone(), kept.clone()),
        };
        let (stored, jobs) = (placed.stored[0], random.between(1, 3));
        let (bits, new) = (stored.bits.unwrap(), bytes(&placed.new));
        Some(Self { case, contract, views, stored, bits, jobs, past, new, in_place, present, kept })
    }

    /// Returns the expected buffer of the cache and the expected present. A launch may skip all samples
    /// because of one.
    pub(crate) fn expected(&self, is_refusing_all: bool) -> [&[u8]; 2] {
        if is_refusing_all && self.contract.status.bad_samples > 0 {
            [&self.past, &self.kept]
        } else {
            [&self.in_place, &self.present]
        }
    }

    /// Returns the status after this number of launches, with the first sample of the first launch.
    pub(crate) fn status(&self, launches: usize) -> StatusWords {
        let of_one = self.contract.status;
        StatusWords { bad_samples: of_one.bad_samples * launches as u32, ..of_one }
    }
}

/// The lists of a call on the device.
pub(crate) struct Lists {
    pub(crate) starts: Option<List>,
    pub(crate) lengths: Option<List>,
    pub(crate) row_counts: Option<List>,
    pub(crate) layer: Option<Memory>,
}

impl Lists {
    pub(crate) fn from_case(case: &Case, random: &mut Random) -> Self {
        let mut list = |values: &[i64]| List::from_values(values, random.below(2) == 0);
        let call = &case.call;
        let starts = contract::starts_of(call).as_deref().map(&mut list);
        let lengths = contract::lengths(call).map(&mut list);
        let (row_counts, layer) = match call {
            Operator::KvCacheUpdate { update_lengths: Some(cumulative), .. } => {
                (Some(cumulative.iter().map(|&length| length.into()).collect::<Vec<i64>>()), None)
            }
            Operator::KvCacheOperation { layer_id, .. } => {
                (Some(contract::row_counts_of(call, &case.update_shape)), Some(Memory::of_i32(layer_id)))
            }
            _ => (None, None),
        };
        Self { starts, lengths, row_counts: row_counts.as_deref().map(list), layer }
    }
}

/// Returns a view of the cache, contiguous or not, between guards of any number of elements.
pub(crate) fn cache_view(case: &Case, random: &mut Random) -> View {
    let guard = random.pick(&[0, 1, 2, 3, 8, 16]);
    match random.below(2) {
        0 => View::dense(&case.cache_shape, guard),
        _ => View::strided(&case.cache_shape, guard, random),
    }
}

/// Returns a view of the update, whose positions may overlap.
pub(crate) fn update_view(case: &Case, random: &mut Random) -> View {
    let guard = random.pick(&[0, 1, 2, 3, 8, 16]);
    match random.below(3) {
        _ if case.update_shape.is_empty() => View::dense(&case.update_shape, guard),
        0 => View::dense(&case.update_shape, guard),
        1 => View::strided(&case.update_shape, guard, random),
        _ => View::broadcast(&case.update_shape, guard, random),
    }
}

pub(crate) fn status_of(memory: &Memory) -> StatusWords {
    let bytes = memory.read();
    let word = |from: usize| u32::from_ne_bytes(bytes[from..from + 4].try_into().unwrap());
    StatusWords {
        bad_samples: word(0),
        first_sample: word(4),
        first_value: i64::from_ne_bytes(bytes[8..16].try_into().unwrap()),
    }
}

/// Returns the cache before the call as a dense tensor.
fn kept(placed: &Placed) -> Vec<u8> {
    let origins: Vec<_> = placed.cache.places().into_iter().map(Origin::Cache).collect();
    bytes(&Values::gathered(placed.stored[0], &origins, &placed.past, &placed.new))
}

fn bytes(values: &Values) -> Vec<u8> {
    match values {
        Values::Bytes(bytes) => bytes.clone(),
        Values::Strings(_) => unreachable!("stored as numbers"),
    }
}

/// Returns the bytes up to a whole word, as a cache of 4-bit elements needs.
fn words(values: &Values) -> Vec<u8> {
    let mut bytes = bytes(values);
    bytes.resize(bytes.len().next_multiple_of(4), 0x5A);
    bytes
}

/// A list of integers on the device, and whether they are 64 bits wide.
pub(crate) struct List {
    pub(crate) memory: Memory,
    pub(crate) is_i64: bool,
}

impl List {
    /// Returns a list of 32-bit integers if `may_be_short` is set and all values fit, and of 64-bit integers
    /// otherwise.
    pub(crate) fn from_values(values: &[i64], may_be_short: bool) -> Self {
        let short: Result<Vec<i32>, _> = values.iter().map(|&value| i32::try_from(value)).collect();
        match short {
            Ok(short) if may_be_short => Self { memory: Memory::of_i32(&short), is_i64: false },
            _ => Self { memory: Memory::of_i64(values), is_i64: true },
        }
    }
}
