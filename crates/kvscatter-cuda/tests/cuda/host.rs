//! Compares every kernel and the host code with the oracle and the core: whole buffers with the bytes before
//! and after them, the exact status, and the same errors as on the CPU.

use std::collections::HashSet;
use std::path::Path;
use std::sync::OnceLock;

use kvscatter::{Argument, Convention, ElementType, Error as CoreError, Layout, Prepared};
use kvscatter_cuda::{
    BufferPair, Cuda, CudaError, DeviceBuffer, DeviceCallIndices, DeviceList, DeviceStatus, DeviceWrite,
    LaunchConfig, PresentBuffers, StatusWords, Stream as OfCaller,
};
use kvscatter_oracle::cases::{
    Call, Case, Element, Random, SmallCase, Values, View, cases, exhaustive, exhaustive_extensions,
};
use kvscatter_oracle::{OutOfRange, Refusal};

use crate::abi::ROW_COUNT;
use crate::contract;
use crate::core_call::{prepare, with_plan};
use crate::device::{Memory, Stream, device, path};
use crate::fake::{is_fake, kernel};
use crate::scene::{List, Lists, Scene, cache_view, status_of, update_view};

/// Returns the host code on the tests' driver, with the tests' context current.
pub(crate) fn cuda() -> &'static Cuda {
    static CUDA: OnceLock<Cuda> = OnceLock::new();
    device();
    // SAFETY: The file at `path()` is a CUDA driver, or the simulated one, whose functions have the same
    // signatures.
    CUDA.get_or_init(|| unsafe { Cuda::load_from(Path::new(&path())) }.unwrap())
}

/// The layout of a tensor in a buffer, and the beginning of the buffer in its memory.
struct Place<'a> {
    layout: Layout<'a>,
    /// The number of bytes from the beginning of the memory to the buffer.
    begin: usize,
}

impl<'a> Place<'a> {
    /// Returns a place that skips the guard by an address or by an offset. Both have the same effect.
    fn new(view: &'a View, strides: &'a [isize], bits: usize, random: &mut Random) -> Self {
        let guard = view.buffer().start;
        // An address counts whole bytes. For 4-bit elements that straddle bytes, it must be on a whole word.
        let is_address = (guard * bits).is_multiple_of(32) && random.below(2) == 0;
        let offset = view.offset() + if is_address { 0 } else { guard };
        let begin = if is_address { guard * bits / 8 } else { 0 };
        Self { layout: Layout::strided(view.shape(), strides).with_offset(offset), begin }
    }

    fn buffer(&self, memory: &Memory) -> DeviceBuffer {
        DeviceBuffer::new(memory.address + self.begin as u64, memory.bytes - self.begin)
    }
}

fn strides(view: &View) -> Vec<isize> {
    let mut dense = vec![1; view.shape().len()];
    for at in (1..dense.len()).rev() {
        dense[at - 1] = dense[at] * view.shape()[at].cast_signed();
    }
    view.strides().map_or(dense, <[isize]>::to_vec)
}

/// Returns a list as the host code takes it.
pub(crate) fn list(list: &List) -> DeviceList {
    let (address, bytes) = (list.memory.address, list.memory.bytes);
    if list.is_i64 { DeviceList::i64(address, bytes / 8) } else { DeviceList::i32(address, bytes / 4) }
}

fn indices(lists: &Lists) -> DeviceCallIndices {
    let mut indices = lists
        .starts
        .as_ref()
        .map_or(DeviceCallIndices::zero(), |starts| DeviceCallIndices::new(list(starts)));
    if let Some(lengths) = &lists.lengths {
        indices = indices.lengths(list(lengths));
    }
    if let Some(row_counts) = &lists.row_counts {
        indices = indices.row_counts(list(row_counts));
    }
    if let Some(layer) = &lists.layer {
        indices = indices.layer(layer.address);
    }
    indices
}

/// The widths of the kernels, in bytes.
const WIDTHS: [usize; 5] = [16, 8, 4, 2, 1];

/// The number of cases of each kind.
#[derive(Debug, Default, PartialEq, Eq)]
struct Seen {
    in_place: usize,
    present: usize,
    bad: usize,
    nibbles: usize,
    present_nibbles: usize,
    counts: usize,
    apart: usize,
    /// Errors that need a list.
    words: usize,
    /// The kernels that the simulated driver ran.
    kernels: HashSet<String>,
}

#[test]
#[ignore = "needs a driver: cargo xtask cuda"]
fn every_case_is_written_as_the_oracle_writes_it() {
    let mut seen = Seen::default();
    for (number, case) in cases(30, 9_000).chain(small_cases()).enumerate() {
        let random = &mut Random::new(31, number);
        if contract::expected(&case).is_some() {
            check(&case, random, &mut seen);
        } else {
            check_refused(&case, random, &mut seen);
        }
    }
    let Seen { in_place, present, bad, nibbles, present_nibbles, counts, apart, words, kernels } = seen;
    let all = [in_place, present, bad, nibbles, present_nibbles, counts, apart, words];
    assert!(all.iter().all(|&cases| cases > 50), "{all:?}");
    let forms = ["write", "write_many", "write_lists", "present"];
    let of_widths = forms.iter().flat_map(|form| WIDTHS.map(|width| format!("kvscatter_{form}_{width}")));
    for kernel in of_widths.chain(["write", "present"].map(|form| format!("kvscatter_{form}_nibbles"))) {
        assert!(!is_fake() || kernels.contains(&kernel), "no case reaches {kernel}");
    }
}

/// Returns every n-th of all calls of a small domain, which combines lengths, starts and policies in every way.
fn small_cases() -> impl Iterator<Item = Case> {
    let elements = ["int8", "float16", "uint4"].map(|name| Element::named(name).unwrap());
    let small = exhaustive().step_by(61).chain(exhaustive_extensions().step_by(53));
    small.enumerate().map(move |(number, SmallCase { call, cache_shape, update_shape })| Case {
        name: format!("{number:05}_small"),
        // The contract derives the expected result from the call.
        expected: Err(Refusal::UpdateLengthsMissing),
        call,
        elements: [elements[number % elements.len()]; 2],
        cache_shape,
        update_shape,
        cache: Values::Bytes(Vec::new()),
        update: Values::Bytes(Vec::new()),
    })
}

/// Returns the default spread over a device, or one of any values, also of those that no launch can have.
fn launch_config(random: &mut Random) -> LaunchConfig {
    let mut value = || random.pick(&[0, 1, 2, 3, 64, u32::MAX]);
    let any = LaunchConfig {
        small_table_jobs: value(),
        max_threads_per_block: value(),
        min_threads_per_block: value(),
        max_vectors_per_thread: value(),
        min_blocks_per_multiprocessor: value(),
    };
    random.pick(&[LaunchConfig::DEFAULT, any])
}

fn check(case: &Case, random: &mut Random, seen: &mut Seen) {
    let views = [cache_view(case, random), update_view(case, random)];
    let Some(scene) = Scene::new(case, views, random) else { unreachable!("{case:?}") };
    let element = ElementType::from_name(scene.stored.name).unwrap();
    let [cache, update] = &scene.views;
    let strides = [strides(cache), strides(update)];
    let cache = Place::new(cache, &strides[0], scene.bits, random);
    let update = Place::new(update, &strides[1], scene.bits, random);
    let call = contract::with_policy(&case.call, OutOfRange::Error);
    let prepared = match prepare(&call, element, cache.layout, update.layout) {
        Ok(prepared) => prepared,
        Err(error) => return assert!(matches!(error, CoreError::TooManyLoops { .. }), "{error:?} {case:?}"),
    };
    let (layouts, plain) = ((cache.layout, update.layout), &call);
    let on_cpu = with_plan(plain, element, layouts.0, layouts.1, |_| Ok(()));
    let (lists, new) = (Lists::from_case(case, random), Memory::from_bytes(&scene.new));
    let is_refusing_all = random.below(4) == 0;
    let steps = Steps {
        scene: &scene,
        call: &call,
        prepared: &prepared,
        places: [cache, update],
        lists: &lists,
        new: &new,
        on_cpu,
        is_refusing_all,
    };
    if steps.in_place(random, seen) {
        steps.functional(random, seen);
    }
    assert_eq!(new.read(), scene.new, "{case:?}");
}

/// The parts of a case that are the same for both forms.
struct Steps<'a> {
    scene: &'a Scene<'a>,
    call: &'a Call,
    prepared: &'a Prepared,
    /// The places of the cache and of the update in their memory.
    places: [Place<'a>; 2],
    lists: &'a Lists,
    new: &'a Memory,
    /// The CPU's result for the same call.
    on_cpu: Result<(), CoreError>,
    is_refusing_all: bool,
}

impl Steps<'_> {
    /// Runs the case in place, and returns `true` if the host accepts it.
    fn in_place(&self, random: &mut Random, seen: &mut Seen) -> bool {
        let (scene, [cache, update]) = (self.scene, &self.places);
        let caches: Vec<_> = (0..scene.jobs).map(|_| Memory::from_bytes(&scene.past)).collect();
        let pair = |memory| BufferPair { cache: cache.buffer(memory), update: update.buffer(self.new) };
        match cuda().prepare(self.prepared, &caches.iter().map(pair).collect::<Vec<_>>()) {
            Ok(write) => {
                seen.in_place += 1;
                seen.nibbles += usize::from(write.width().is_none());
                seen.bad += usize::from(self.on_cpu.is_err());
                self.run(write, random, seen);
                let [expected, _] = scene.expected(self.is_refusing_all);
                for memory in &caches {
                    assert_eq!(memory.read(), expected, "{:#?}", scene.case);
                }
                true
            }
            Err(CudaError::SamplesNotAdjacent) => {
                let &[samples, rows, _, _] = scene.views[1].shape() else { panic!("{:?}", scene.case) };
                let strides = strides(&scene.views[1]);
                assert!(
                    samples > 1 && rows > 1 && strides[0] != rows.cast_signed() * strides[1],
                    "{:?}",
                    scene.case
                );
                seen.apart += 1;
                false
            }
            Err(error) => panic!("{error} {:?}", scene.case),
        }
    }

    /// Runs the case in functional form, with presents at any byte between guards.
    fn functional(&self, random: &mut Random, seen: &mut Seen) {
        let (scene, [cache, update]) = (self.scene, &self.places);
        let (past, bytes, guard) =
            (Memory::from_bytes(&scene.past), scene.kept.len(), random.pick(&[0, 0, 1, 2, 3]));
        let presents: Vec<_> =
            (0..scene.jobs).map(|_| Memory::from_bytes(&vec![0xEE; bytes + 2 * guard])).collect();
        let triple = |present: &Memory| PresentBuffers {
            present: DeviceBuffer::new(present.address + guard as u64, bytes),
            past: cache.buffer(&past),
            update: update.buffer(self.new),
        };
        let write = cuda()
            .prepare_present(self.prepared, &presents.iter().map(triple).collect::<Vec<_>>())
            .unwrap_or_else(|error| panic!("{error} {:?}", scene.case));
        seen.present += 1;
        seen.present_nibbles += usize::from(write.width().is_none());
        self.run(write, random, seen);
        let [_, expected] = scene.expected(self.is_refusing_all);
        let guards = vec![0xEE; guard];
        for memory in &presents {
            assert_eq!(memory.read(), [&guards, expected, &guards].concat(), "{:#?}", scene.case);
        }
        assert_eq!(past.read(), scene.past, "{:?}", scene.case);
    }

    fn run(&self, write: DeviceWrite, random: &mut Random, seen: &mut Seen) {
        let (scene, indices) = (self.scene, indices(self.lists));
        let write = write.skip_all(self.is_refusing_all).with_launch_config(&launch_config(random));
        let memory = Memory::from_bytes(&[0xAA; size_of::<StatusWords>()]);
        let status = DeviceStatus::at(memory.address).unwrap();
        let stream = Stream::new();
        let of_caller = OfCaller::new(stream.0);
        let launches = random.between(1, 2);
        // SAFETY: The 16 bytes of the status are memory of the context, and live until the stream was waited
        // for.
        unsafe { cuda().clear(status, of_caller) }.unwrap();
        for _ in 0..launches {
            // SAFETY: The buffers of the write, the lists and the status are memory of the context with the
            // sizes given here, and live until the stream was waited for.
            unsafe { write.launch(of_caller, &indices, Some(status)) }.unwrap();
        }
        stream.synchronize();
        if is_fake() {
            seen.kernels.insert(kernel());
        }

        assert_eq!(status_of(&memory), scene.status(launches), "{:?}", scene.case);
        // SAFETY: The 16 bytes of the status, and of each list `len` values of its width, are memory of the
        // context, and the launches have run.
        let checked = unsafe { write.check(status, &indices) };
        match (self.expected(), checked) {
            (Ok(()), Ok(())) => {}
            (Err(expected), Err(CudaError::Write(found))) => assert_eq!(found, expected, "{:?}", scene.case),
            (expected, found) => panic!("{found:?} instead of {expected:?}: {:?}", scene.case),
        }
        // SAFETY: The 16 bytes of the status are memory of the context, and the launches have run.
        let words = unsafe { cuda().read(status) }.unwrap();
        assert_eq!(words, scene.status(launches));
        match (self.expected().map_err(|error| self.error_without_lists(error)), write.check_words(words)) {
            (Ok(()), Ok(())) => {}
            (Err(Some(expected)), Err(CudaError::Write(found))) => {
                assert_eq!(found, expected, "{:?}", scene.case);
            }
            (Err(None), Err(CudaError::BadIndices { bad_samples, first })) => {
                assert_eq!(
                    (bad_samples, Some(first)),
                    (words.bad_samples, words.first()),
                    "{:?}",
                    scene.case
                );
                seen.words += 1;
            }
            (expected, found) => panic!("{found:?} instead of {expected:?}: {:?}", scene.case),
        }
    }

    /// Returns the error that the words of a status alone determine, or `None` if it needs a list. For a bad start, the
    /// words do not contain the number of rows to write, so it has all rows.
    fn error_without_lists(&self, error: CoreError) -> Option<CoreError> {
        match (self.prepared.convention(), error) {
            (Convention::Starts, CoreError::StartOutOfRange { argument, index, value, capacity, .. }) => {
                let rows = self.prepared.device_interface().row_limits().max;
                Some(CoreError::StartOutOfRange { argument, index, value, rows, capacity })
            }
            (Convention::Starts, error) => Some(error),
            (_, CoreError::TokenSum { .. } | CoreError::LayerOutOfRange { .. }) => Some(error),
            (_, CoreError::LengthOutOfRange { argument: Argument::SeqLen, .. }) => Some(error),
            _ => None,
        }
    }

    /// Returns the CPU's error. It is never about a start if the rows of a packed update are bad too.
    fn expected(&self) -> Result<(), CoreError> {
        let is_rows = self.scene.contract.status.first_sample & ROW_COUNT == ROW_COUNT;
        match self.on_cpu {
            Err(CoreError::StartOutOfRange { .. } | CoreError::NegativeStart { .. }) if is_rows => {
                panic!("two errors in {:?}", self.call)
            }
            on_cpu => on_cpu,
        }
    }
}

/// Checks that shapes and numbers of indices that the CPU rejects are rejected before anything is launched.
fn check_refused(case: &Case, random: &mut Random, seen: &mut Seen) {
    let Case { call, elements, cache_shape, update_shape, .. } = case;
    if elements[0] != elements[1] || elements[0].bits.is_none() {
        return;
    }
    let element = ElementType::from_name(elements[0].name).unwrap();
    let layouts = (Layout::dense(cache_shape), Layout::dense(update_shape));
    let Ok(prepared) = prepare(call, element, layouts.0, layouts.1) else { return };
    let Err(on_cpu) = with_plan(call, element, layouts.0, layouts.1, |_| Ok(())) else { return };
    if matches!(on_cpu, CoreError::ListLength { argument: Argument::LayerId, .. }) {
        return; // On the device, the layer is one address.
    }
    let buffer = |bytes: Option<usize>| {
        let bytes = bytes.unwrap().next_multiple_of(4);
        (Memory::from_bytes(&vec![0xEE; bytes]), bytes)
    };
    let ((cache, cache_bytes), (update, update_bytes)) =
        (buffer(prepared.geometry().cache_bytes()), buffer(prepared.geometry().update_bytes()));
    let pair = BufferPair {
        cache: DeviceBuffer::new(cache.address, cache_bytes),
        update: DeviceBuffer::new(update.address, update_bytes),
    };
    let (lists, stream) = (Lists::from_case(case, random), Stream::new());
    let write = cuda().prepare(&prepared, &[pair]).unwrap();
    // SAFETY: The cache, the update and the lists are memory of the context with the sizes given here, and
    // live until the end of this function.
    let launched = unsafe { write.launch(OfCaller::new(stream.0), &indices(&lists), None) };
    match launched {
        Err(CudaError::Write(error)) => assert_eq!(error, on_cpu, "{case:?}"),
        other => panic!("{other:?} instead of {on_cpu:?}: {case:?}"),
    }
    stream.synchronize();
    assert_eq!(cache.read(), vec![0xEE; cache_bytes]);
    seen.counts += 1;
}
