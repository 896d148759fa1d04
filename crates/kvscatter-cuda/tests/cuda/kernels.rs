//! Compares every kernel with the oracle: whole buffers with the bytes before and after them, and the exact
//! status.

use std::collections::HashSet;
use std::ops::Range;

use kvscatter_oracle::cases::{
    Call as Operator, Case, Element, Random, SmallCase, Values, cases, exhaustive, exhaustive_extensions,
};
use kvscatter_oracle::{NegativeIndex, Refusal};

use crate::abi::{
    CIRCULAR, CUMULATIVE, Call, FROM_END, Job, LENGTHS_I64, POSITIONS_I64, PresentJob, REJECT_NEGATIVE,
    ROW_COUNTS_I64, SKIP_ALL, StatusWords,
};
use crate::contract;
use crate::device::{Memory, Stream};
use crate::launch::{self, Threads};
use crate::raw::{Dims, Unit};
use crate::scene::{Lists, Scene, cache_view, status_of, update_view};

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
    for kernel in of_widths.chain(["write", "present"].map(|form| format!("kvscatter_{form}_nibbles"))) {
        assert!(launched.contains(&kernel), "no case reaches {kernel}");
    }
}

/// Tests every n-th of all calls of a small domain, which combines lengths, starts and policies in every way.
#[test]
#[ignore = "needs a driver: cargo xtask cuda"]
fn small_calls_do_what_the_oracle_does() {
    let elements = ["int8", "float16", "uint4"].map(|name| Element::named(name).unwrap());
    let small = exhaustive().step_by(61).chain(exhaustive_extensions().step_by(53));
    for (number, SmallCase { call, cache_shape, update_shape }) in small.enumerate() {
        let nothing = || Values::Bytes(Vec::new());
        let case = Case {
            name: format!("{number:05}_small"),
            expected: Err(Refusal::UpdateLengthsMissing),
            call,
            elements: [elements[number % elements.len()]; 2],
            cache_shape,
            update_shape,
            cache: nothing(),
            update: nothing(),
        };
        let random = &mut Random::new(22, number);
        check_in_place(&case, random);
        check_functional(&case, random);
    }
}

/// Returns the kernel that was launched, or `None` if no kernel can express the case.
fn check_in_place(case: &Case, random: &mut Random) -> Option<String> {
    let views = [cache_view(case, random), update_view(case, random)];
    let scene = Scene::new(case, views, random)?;
    let dims = Dims::of(&scene)?;
    let units = units(&scene, |unit| dims.in_place(unit, scene.bits));
    let (unit, mut shape) = random.pick(&units);
    let (kernel, is_refusing_all) = kernel(&scene, unit, random);

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
    let status = launched(&scene, is_refusing_all, launches, random, |call, threads, stream| {
        let runs = Dims::runs(&shape, call.row_counts != 0);
        launch::write(&kernel, &jobs, &shape, call, threads, runs, stream);
    });

    let [expected, _] = scene.expected(is_refusing_all);
    for cache in &caches {
        assert_eq!(cache.read(), expected, "{kernel} {shape:?} {case:#?}");
    }
    assert_eq!(update.read(), scene.new, "{kernel} {case:?}");
    assert_eq!(status, scene.status(launches), "{kernel} {case:?}");
    Some(kernel)
}

fn check_functional(case: &Case, random: &mut Random) -> Option<String> {
    let views = [cache_view(case, random), update_view(case, random)];
    let scene = Scene::new(case, views, random)?;
    let dims = Dims::of(&scene)?;
    let units = units(&scene, |unit| dims.functional(unit, scene.bits));
    let (unit, mut shape) = random.pick(&units);
    let kernel = match unit {
        Unit::Bytes(width) => format!("kvscatter_present_{width}"),
        Unit::Nibble => "kvscatter_present_nibbles".to_owned(),
    };
    let is_refusing_all = random.below(4) == 0;

    let (past, update) = (Memory::of(&scene.past), Memory::of(&scene.new));
    let presents: Vec<_> = (0..scene.jobs).map(|_| Guarded::new(unit, scene.kept.len(), random)).collect();
    let [cache_begin, update_begin] = scene.begins.map(|begin| (begin * scene.bits / 8) as u64);
    let job = |present: &Guarded| PresentJob {
        present: present.address(),
        past: past.address + cache_begin,
        update: update.address + update_begin,
    };
    let jobs: Vec<_> = presents.iter().map(job).collect();
    let mut runs = Dims::present_runs(&shape);
    if unit == Unit::Nibble {
        [shape.past_begin, shape.update.src_begin] = scene.begins.map(|begin| begin as u32 % 2);
        runs = Dims::present_lines(&shape);
    }
    let launches = random.between(1, 2);
    let status = launched(&scene, is_refusing_all, launches, random, |call, threads, stream| {
        launch::present(&kernel, &jobs, &shape, call, threads, runs, stream);
    });

    let [_, expected] = scene.expected(is_refusing_all);
    for present in &presents {
        assert_eq!(present.read(), expected, "{kernel} {shape:?} {case:#?}");
    }
    assert_eq!([past.read(), update.read()], [scene.past.as_slice(), &scene.new], "{kernel} {case:?}");
    assert_eq!(status, scene.status(launches), "{kernel} {case:?}");
    Some(kernel)
}

/// A present between guards. If its 4-bit elements straddle bytes, it begins at any byte.
struct Guarded {
    memory: Memory,
    place: Range<usize>,
}

impl Guarded {
    const GUARD: u8 = 0xEE;

    fn new(unit: Unit, bytes: usize, random: &mut Random) -> Self {
        let before = match unit {
            Unit::Bytes(width) => width,
            Unit::Nibble => random.between(0, 5),
        };
        let place = before..before + bytes;
        Self { memory: Memory::of(&vec![Self::GUARD; place.end + random.between(0, 5)]), place }
    }

    fn address(&self) -> u64 {
        self.memory.address + self.place.start as u64
    }

    /// Returns the present, and checks that nothing else has changed.
    fn read(&self) -> Vec<u8> {
        let mut all = self.memory.read();
        let present = all.drain(self.place.clone()).collect();
        assert!(all.iter().all(|&byte| byte == Self::GUARD), "{all:?}");
        present
    }
}

/// Returns the units that the kernel may move here, each with the shape for it.
fn units<S>(scene: &Scene<'_>, shape: impl Fn(Unit) -> Option<S>) -> Vec<(Unit, S)> {
    let is_aligned = |unit: Unit| match unit {
        Unit::Nibble => true,
        Unit::Bytes(width) => scene.begins.iter().all(|begin| (begin * scene.bits).is_multiple_of(8 * width)),
    };
    let nibbles = (scene.bits == 4).then_some(Unit::Nibble);
    let units = WIDTHS.map(Unit::Bytes).into_iter().chain(nibbles);
    units.filter(|unit| is_aligned(*unit)).filter_map(|unit| Some((unit, shape(unit)?))).collect()
}

/// Returns a random kernel that can express the call, and whether a bad index makes the whole call write
/// nothing.
fn kernel(scene: &Scene<'_>, unit: Unit, random: &mut Random) -> (String, bool) {
    let Unit::Bytes(width) = unit else {
        return ("kvscatter_write_nibbles".to_owned(), random.below(4) == 0);
    };
    let has_starts_alone = contract::lengths(&scene.case.call).is_none()
        && match &scene.case.call {
            Operator::TensorScatter { .. } => true,
            Operator::KvCacheUpdate { update_lengths, .. } => update_lengths.is_none(),
            Operator::KvCacheOperation { .. } => false,
        };
    let forms: &[_] = match has_starts_alone {
        true if scene.jobs < 3 => &["write", "write_many", "write_lists"],
        true => &["write_many", "write_lists"],
        false => &["write_lists"],
    };
    let form = random.pick(forms);
    (format!("kvscatter_{form}_{width}"), form == "write_lists" && random.below(4) == 0)
}

/// Launches the kernel on a new stream, waits, and returns the status.
fn launched(
    scene: &Scene<'_>,
    is_refusing_all: bool,
    launches: usize,
    random: &mut Random,
    launch: impl Fn(&Call, Threads, &Stream),
) -> StatusWords {
    let lists = Lists::of(scene.case, random);
    let mut call = call_of(&lists, scene.case);
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

/// Returns the `Call` of a launch with a case's lists.
fn call_of(lists: &Lists, case: &Case) -> Call {
    let [starts, lengths, row_counts] = [&lists.starts, &lists.lengths, &lists.row_counts]
        .map(|list| list.as_ref().map_or((0, false), |list| (list.memory.address, list.is_i64)));
    let mut flags = [(starts, POSITIONS_I64), (lengths, LENGTHS_I64), (row_counts, ROW_COUNTS_I64)]
        .iter()
        .fold(0, |flags, ((_, is_i64), flag)| if *is_i64 { flags | flag } else { flags });
    let capacity = case.cache_shape.get(2).copied().unwrap_or(0) as u32;
    let (min_rows, max_rows) = match (&case.call, case.update_shape.as_slice()) {
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
    let layer = lists.layer.as_ref().map_or(0, |layer| layer.address);
    Call {
        positions: starts.0,
        lengths: lengths.0,
        row_counts: row_counts.0,
        layer,
        flags,
        min_rows,
        max_rows,
        ..Call::default()
    }
}
