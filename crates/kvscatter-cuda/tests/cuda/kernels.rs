//! Every kernel against the oracle: whole buffers with what lies around them, and the exact status.

use std::collections::HashSet;

use kvscatter_oracle::NegativeIndex;
use kvscatter_oracle::cases::{Call as Operator, Case, Origin, Placed, Random, Values, View, cases};

use crate::abi::{
    CIRCULAR, CUMULATIVE, Call, FROM_END, Job, LENGTHS_I64, PresentJob, REJECT_NEGATIVE, SKIP_ALL, SPANS_I64,
    STARTS_I64, StatusWords,
};
use crate::contract::{self, Contract};
use crate::device::{Memory, Stream};
use crate::launch::{self, List, Threads};
use crate::raw::{Dims, Unit};

const WIDTHS: [usize; 5] = [16, 8, 4, 2, 1];

#[test]
#[ignore = "needs a driver: cargo xtask cuda"]
fn every_kernel_does_what_the_oracle_does() {
    let mut launched = HashSet::new();
    for (number, case) in cases(20, 9_000).enumerate() {
        let random = &mut Random::new(21, number);
        launched.extend(check_in_place(&case, random));
        launched.extend(check_functional(&case, random));
    }
    let forms = ["write", "write_many", "write_lists", "present"];
    let of_widths = forms.iter().flat_map(|form| WIDTHS.map(|width| format!("kvscatter_{form}_{width}")));
    for kernel in of_widths.chain(["kvscatter_write_nibbles".to_owned()]) {
        assert!(launched.contains(&kernel), "no case reaches {kernel}");
    }
}

/// The kernel that was launched; `None` where the host refuses the case.
fn check_in_place(case: &Case, random: &mut Random) -> Option<String> {
    let contract = contract::of(case)?;
    let scene = Scene::new(case, &contract, random);
    let units = scene.units(|unit| scene.dims.in_place(unit, scene.bits));
    let (unit, mut shape) = random.pick(&units);
    let (kernel, is_refusing_all) = scene.kernel(unit, random);

    let caches: Vec<_> = (0..scene.jobs).map(|_| Memory::of(&scene.past)).collect();
    let update = Memory::of(&scene.new);
    let [cache_begin, update_begin] = scene.begins;
    let jobs = caches.iter().map(|cache| match unit {
        Unit::Bytes(_) => Job {
            cache: cache.address + (cache_begin * scene.bits / 8) as u64,
            update: update.address + (update_begin * scene.bits / 8) as u64,
        },
        Unit::Nibble => Job {
            cache: cache.address + (cache_begin / 8 * 4) as u64,
            update: update.address + (update_begin / 2) as u64,
        },
    });
    let jobs: Vec<_> = jobs.collect();
    if unit == Unit::Nibble {
        (shape.dst_begin, shape.src_begin) = (cache_begin as u32 % 8, update_begin as u32 % 2);
    }
    let launches = random.between(1, 2);
    let status = scene.launched(is_refusing_all, launches, random, |call, threads, stream| {
        let runs = Dims::runs(&shape, call.spans != 0);
        launch::write(&kernel, &jobs, &shape, call, threads, runs, stream);
    });

    let is_refused = is_refusing_all && contract.status.bad_samples > 0;
    let expected = if is_refused { &scene.past } else { &scene.in_place };
    for cache in &caches {
        assert_eq!(&cache.read(), expected, "{kernel} {shape:?} {case:#?}");
    }
    assert_eq!(update.read(), scene.new, "{kernel} {case:?}");
    assert_eq!(status, counted(contract.status, launches), "{kernel} {case:?}");
    Some(kernel)
}

fn check_functional(case: &Case, random: &mut Random) -> Option<String> {
    let contract = contract::of(case)?;
    let scene = Scene::new(case, &contract, random);
    let units = scene.units(|unit| scene.dims.functional(unit, scene.bits));
    let units: Vec<_> = units.into_iter().filter(|(unit, _)| *unit != Unit::Nibble).collect();
    if units.is_empty() {
        return None; // 4-bit elements that do not come in whole bytes have no functional form
    }
    let (unit, shape) = random.pick(&units);
    let Unit::Bytes(width) = unit else { unreachable!() };
    let kernel = format!("kvscatter_present_{width}");
    let is_refusing_all = random.below(4) == 0;

    let (past, update) = (Memory::of(&scene.past), Memory::of(&scene.new));
    let presents: Vec<_> = (0..scene.jobs).map(|_| Memory::of(&vec![0xEE; scene.kept.len()])).collect();
    let [cache_begin, update_begin] = scene.begins.map(|begin| (begin * scene.bits / 8) as u64);
    let job = |present: &Memory| PresentJob {
        present: present.address,
        past: past.address + cache_begin,
        update: update.address + update_begin,
    };
    let jobs: Vec<_> = presents.iter().map(job).collect();
    let launches = random.between(1, 2);
    let status = scene.launched(is_refusing_all, launches, random, |call, threads, stream| {
        launch::present(&kernel, &jobs, &shape, call, threads, Dims::present_runs(&shape), stream);
    });

    let is_refused = is_refusing_all && contract.status.bad_samples > 0;
    let expected = if is_refused { &scene.kept } else { &scene.present };
    for present in &presents {
        assert_eq!(&present.read(), expected, "{kernel} {shape:?} {case:#?}");
    }
    assert_eq!([past.read(), update.read()], [scene.past.as_slice(), &scene.new], "{kernel} {case:?}");
    assert_eq!(status, counted(contract.status, launches), "{kernel} {case:?}");
    Some(kernel)
}

/// What the status says after so many launches: the first one's first sample.
fn counted(of_one: StatusWords, launches: usize) -> StatusWords {
    StatusWords { bad_samples: of_one.bad_samples * launches as u32, ..of_one }
}

/// A case somewhere in memory.
struct Scene<'a> {
    case: &'a Case,
    dims: Dims,
    bits: usize,
    /// Elements before the first one, guards included.
    begins: [usize; 2],
    jobs: usize,
    past: Vec<u8>,
    new: Vec<u8>,
    /// The cache's buffer after the launch.
    in_place: Vec<u8>,
    /// The present after the launch, and what it is where nothing is written.
    present: Vec<u8>,
    kept: Vec<u8>,
}

impl<'a> Scene<'a> {
    fn new(case: &'a Case, contract: &Contract, random: &mut Random) -> Self {
        let (cache, update) = (cache_view(case, random), update_view(case, random));
        let batch = contract::batch(&case.call, &case.update_shape);
        let dims = Dims::of(&case.call, &cache, &update, batch);
        let begins = [&cache, &update].map(|view| view.buffer().start + view.offset());
        let answered = contract.written.as_ref().unwrap_or(case);
        let placed = answered.placed(cache, update);
        let kept = kept(&placed);
        let past = words(&placed.past);
        let (in_place, present) = match &placed.expected {
            Ok(after) if contract.written.is_some() => (words(&after.in_place), bytes(&after.present)),
            _ => (past.clone(), kept.clone()),
        };
        let bits = placed.stored[0].bits.unwrap();
        let new = bytes(&placed.new);
        Self { case, dims, bits, begins, jobs: random.between(1, 3), past, new, in_place, present, kept }
    }

    /// What may move at once here, and what the kernel is told then.
    fn units<S>(&self, shape: impl Fn(Unit) -> Option<S>) -> Vec<(Unit, S)> {
        let is_aligned = |unit: Unit| match unit {
            Unit::Nibble => true,
            Unit::Bytes(width) => {
                self.begins.iter().all(|begin| (begin * self.bits).is_multiple_of(8 * width))
            }
        };
        let nibbles = (self.bits == 4).then_some(Unit::Nibble);
        let units = WIDTHS.map(Unit::Bytes).into_iter().chain(nibbles);
        units.filter(|unit| is_aligned(*unit)).filter_map(|unit| Some((unit, shape(unit)?))).collect()
    }

    /// One of those that can say the call, and whether a bad index refuses all of it.
    fn kernel(&self, unit: Unit, random: &mut Random) -> (String, bool) {
        let Unit::Bytes(width) = unit else {
            return ("kvscatter_write_nibbles".to_owned(), random.below(4) == 0);
        };
        let has_starts_alone = contract::lengths(&self.case.call).is_none()
            && match &self.case.call {
                Operator::TensorScatter { .. } => true,
                Operator::KvCacheUpdate { update_lengths, .. } => update_lengths.is_none(),
                Operator::KvCacheOperation { .. } => false,
            };
        let forms: &[_] = match has_starts_alone {
            true if self.jobs < 3 => &["write", "write_many", "write_lists"],
            true => &["write_many", "write_lists"],
            false => &["write_lists"],
        };
        let form = random.pick(forms);
        (format!("kvscatter_{form}_{width}"), form == "write_lists" && random.below(4) == 0)
    }

    /// Launches it on a stream of its own, waits, and reads the status.
    fn launched(
        &self,
        is_refusing_all: bool,
        launches: usize,
        random: &mut Random,
        launch: impl Fn(&Call, Threads, &Stream),
    ) -> StatusWords {
        let lists = Lists::of(self.case, random);
        let mut call = lists.call(self.case);
        if is_refusing_all {
            call.flags |= SKIP_ALL;
        }
        let status = Memory::of(&[0; size_of::<StatusWords>()]);
        call.status = status.address;
        let threads = Threads {
            block: [random.pick(&[1, 2, 4, 8, 32]), random.between(1, 8) as u32],
            per_thread: random.between(1, 4) as u32,
            spare: random.below(2) as u32,
        };
        let stream = Stream::new();
        (0..launches).for_each(|_| launch(&call, threads, &stream));
        stream.synchronize();
        status_of(&status)
    }
}

/// The lists of a call on the device.
struct Lists {
    starts: Option<List>,
    lengths: Option<List>,
    spans: Option<List>,
    layer: Option<Memory>,
}

impl Lists {
    fn of(case: &Case, random: &mut Random) -> Self {
        let mut list = |values: &[i64]| List::of(values, random.below(2) == 0);
        let call = &case.call;
        let starts = contract::starts_of(call).as_deref().map(&mut list);
        let lengths = contract::lengths(call).map(&mut list);
        let (spans, layer) = match call {
            Operator::KvCacheUpdate { update_lengths: Some(totals), .. } => {
                (Some(totals.iter().map(|&total| total.into()).collect::<Vec<i64>>()), None)
            }
            Operator::KvCacheOperation { layer_id, .. } => {
                (Some(contract::spans_of(call, &case.update_shape)), Some(Memory::of_i32(layer_id)))
            }
            _ => (None, None),
        };
        Self { starts, lengths, spans: spans.as_deref().map(list), layer }
    }

    fn call(&self, case: &Case) -> Call {
        let [starts, lengths, spans] = [&self.starts, &self.lengths, &self.spans]
            .map(|list| list.as_ref().map_or((0, false), |list| (list.memory.address, list.is_i64)));
        let mut flags = [(starts, STARTS_I64), (lengths, LENGTHS_I64), (spans, SPANS_I64)]
            .iter()
            .fold(0, |flags, ((_, is_i64), flag)| if *is_i64 { flags | flag } else { flags });
        let capacity = case.cache_shape.get(2).copied().unwrap_or(0) as u32;
        let (least, most) = match (&case.call, case.update_shape.as_slice()) {
            (Operator::KvCacheOperation { .. }, &[_, rows, _, _]) => (rows as u32, rows as u32),
            (Operator::KvCacheOperation { .. }, _) => (1, capacity),
            _ => (0, capacity),
        };
        match &case.call {
            Operator::TensorScatter { operator, .. } if operator.mode == "circular" => {
                flags |= CIRCULAR;
                if operator.negative_index == NegativeIndex::Reject {
                    flags |= REJECT_NEGATIVE;
                }
            }
            Operator::TensorScatter { .. } => {}
            Operator::KvCacheUpdate { .. } => flags |= CUMULATIVE,
            Operator::KvCacheOperation { .. } => flags |= FROM_END,
        }
        let layer = self.layer.as_ref().map_or(0, |layer| layer.address);
        Call {
            starts: starts.0,
            lengths: lengths.0,
            spans: spans.0,
            layer,
            flags,
            least,
            most,
            ..Call::default()
        }
    }
}

/// Where a cache lies: in one piece or not, between guards of any number of elements.
fn cache_view(case: &Case, random: &mut Random) -> View {
    let guard = random.pick(&[0, 1, 2, 3, 8, 16]);
    match random.below(2) {
        0 => View::dense(&case.cache_shape, guard),
        _ => View::strided(&case.cache_shape, guard, random),
    }
}

fn update_view(case: &Case, random: &mut Random) -> View {
    let guard = random.pick(&[0, 1, 2, 3, 8, 16]);
    // The kernels know one step from token to token of a packed update.
    let is_one_list_of_rows =
        matches!(case.call, Operator::KvCacheOperation { .. }) && case.update_shape.len() == 4;
    match random.below(3) {
        0 => View::dense(&case.update_shape, guard),
        _ if is_one_list_of_rows => View::dense(&case.update_shape, guard),
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

/// The cache as a dense tensor before the call.
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

/// Ends with a whole word, as a cache of 4-bit elements must.
fn words(values: &Values) -> Vec<u8> {
    let mut bytes = bytes(values);
    bytes.resize(bytes.len().next_multiple_of(4), 0x5A);
    bytes
}
