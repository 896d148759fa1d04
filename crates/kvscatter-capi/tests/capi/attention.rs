//! Compares attention with the oracle, which computes in float64.

use std::ffi::c_void;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::{ptr, thread};

use half::{bf16, f16};
use kvscatter_capi::kvs_element_type_code::*;
use kvscatter_capi::*;
use kvscatter_oracle::attention::{Array, Float, Inputs, Mask, Positions, Scales};
use kvscatter_oracle::cases::Random;
use kvscatter_oracle::cases::attention::{AttentionCase, random};

use crate::attend::{ATTENTION, ATTENTION_CALL, AttentionHandle, attention, in_blocks, with_everything};
use crate::c::{ABSENT, OwnedTensor, narrow, wide};

/// An element type of a tensor.
trait Element: Copy + 'static {
    const CODE: kvs_element_type_code;

    /// Converts a number that the type can represent.
    fn from_f64(number: f64) -> Self;

    fn number(self) -> f64;
}

macro_rules! element {
    ($($element:ty: $code:ident, $of:expr, $number:expr);*) => {$(
        impl Element for $element {
            const CODE: kvs_element_type_code = $code;

            fn from_f64(number: f64) -> Self {
                $of(number)
            }

            fn number(self) -> f64 {
                $number(self)
            }
        }
    )*};
}

element!(
    f32: KVS_FLOAT32, |number| number as f32, f64::from;
    f16: KVS_FLOAT16, f16::from_f64, f16::to_f64;
    bf16: KVS_BFLOAT16, bf16::from_f64, bf16::to_f64;
    i8: KVS_INT8, |number| number as i8, f64::from;
    u8: KVS_BOOL, |number| number as u8, f64::from
);

/// The number of elements before and after a tensor that must not change.
const GUARD: usize = 5;

/// A tensor with its memory, whose rows have random distances.
struct Laid<T> {
    tensor: OwnedTensor,
    /// The memory, with guards and gaps.
    memory: Vec<T>,
    /// Where the first element of each row is in the memory, in the order of a dense tensor.
    rows: Vec<usize>,
    size: usize,
}

impl<T: Element> Laid<T> {
    /// Lays out `[samples, heads, rows, size]`. Gaps and guards contain `garbage`.
    fn new(r: &mut Random, numbers: &Array<f64>, garbage: f64) -> Self {
        let counts = [0, 1, 2].map(|at| numbers.shape[at]);
        let size = numbers.shape[3];
        let order = r.pick(&[[0, 1, 2], [0, 2, 1], [1, 0, 2], [2, 0, 1], [1, 2, 0], [2, 1, 0]]);
        let gap = r.pick(&[0, 0, 3]);
        let (mut strides, mut extent) = ([0; 3], size);
        for dimension in order.into_iter().rev() {
            strides[dimension] = extent + r.below(gap + 1);
            extent = strides[dimension] * counts[dimension];
        }
        let mut memory = vec![T::from_f64(garbage); extent + 2 * GUARD];
        let rows: Vec<_> = (0..counts.iter().product())
            .map(|row| {
                let place = [row / counts[2] / counts[1], row / counts[2] % counts[1], row % counts[2]];
                GUARD + place.iter().zip(strides).map(|(at, stride)| at * stride).sum::<usize>()
            })
            .collect();
        for (&first, row) in rows.iter().zip(numbers.data.chunks_exact(size.max(1))) {
            memory[first..first + size]
                .copy_from_slice(&row.iter().map(|x| T::from_f64(*x)).collect::<Vec<_>>());
        }
        let shape: Vec<_> = numbers.shape.iter().map(|&size| size as i64).collect();
        let [a, b, c] = strides.map(|stride| stride as i64);
        let is_dense = gap == 0 && order == [0, 1, 2] && r.below(2) == 0;
        let tensor = if is_dense {
            OwnedTensor::dense(T::CODE, &shape)
        } else {
            // A stride of a dimension of size 1 does not matter.
            let strides = [a, b, c, if size == 1 { -9 } else { 1 }];
            OwnedTensor::strided(T::CODE, &shape, &strides)
        };
        Self { tensor, memory, rows, size }
    }

    fn at(&self) -> kvs_tensor {
        self.tensor.at(self.memory.as_ptr().wrapping_add(GUARD).cast_mut())
    }

    /// Returns the numbers of the rows.
    fn numbers(&self) -> Vec<f64> {
        let row = |&first: &usize| self.memory[first..first + self.size].iter().map(|x| x.number());
        self.rows.iter().flat_map(row).collect()
    }

    /// Checks that all elements outside the rows are `garbage`.
    fn check_gaps(&self, garbage: f64) {
        let mut is_row = vec![false; self.memory.len()];
        self.rows.iter().for_each(|&first| is_row[first..first + self.size].fill(true));
        let gaps = self.memory.iter().zip(is_row).filter(|(_, is_row)| !is_row);
        assert!(gaps.clone().all(|(element, _)| element.number() == garbage), "outside the rows");
        assert!(gaps.count() >= 2 * GUARD);
    }
}

/// Returns `[batch, rows, heads * size]` as `[batch, heads, rows, size]`.
fn by_head(array: &Array<f64>, heads: Option<i64>) -> Array<f64> {
    let (&[batch, rows, hidden], Some(heads)) = (array.shape.as_slice(), heads) else { return array.clone() };
    let (heads, mut data) = (heads as usize, Vec::new());
    let size = hidden / heads;
    for (sample, head) in (0..batch).flat_map(|sample| (0..heads).map(move |head| (sample, head))) {
        for row in 0..rows {
            data.extend_from_slice(&array.data[((sample * rows + row) * heads + head) * size..][..size]);
        }
    }
    Array::new(data, &[batch, heads, rows, size])
}

/// Returns a case with rank 4 that this interface can express, or `None`.
fn expressible(mut case: AttentionCase) -> Option<AttentionCase> {
    // A scale of 0 is the default here, and a past has no place.
    if case.inputs.past_key.is_some() || case.attention.scale == Some(0.0) {
        return None;
    }
    let (query_heads, heads) = (case.attention.q_num_heads.take(), case.attention.kv_num_heads.take());
    case.inputs.q = by_head(&case.inputs.q, query_heads);
    case.inputs.k = by_head(&case.inputs.k, heads);
    case.inputs.v = by_head(&case.inputs.v, heads);
    Some(case)
}

fn options_of(case: &AttentionCase) -> kvs_attention_options {
    let op = &case.attention;
    kvs_attention_options {
        is_causal: op.is_causal.into(),
        mode: matches!(case.inputs.positions, Positions::Ring(_)).into(),
        scale: op.scale.unwrap_or(0.0) as f32,
        // A negative cap means none in the oracle, and the library refuses it.
        softcap: op.softcap.max(0.0) as f32,
        window_left: op.left_window_size,
        window_right: op.right_window_size,
        ..ATTENTION
    }
}

/// A mask with its memory, which is dense.
struct DenseMask<T> {
    tensor: OwnedTensor,
    bytes: Vec<u8>,
    numbers: Vec<T>,
}

impl<T: Element> DenseMask<T> {
    fn new(mask: &Mask) -> Self {
        let shape: Vec<_> = mask.shape().iter().map(|&size| size as i64).collect();
        let dense = |code| OwnedTensor::dense(code, &shape);
        match mask {
            // Every byte except 0 is true.
            Mask::Bool(mask) => Self {
                tensor: dense(KVS_BOOL),
                bytes: mask
                    .data
                    .iter()
                    .zip([1, 2, 255].into_iter().cycle())
                    .map(|(s, b)| u8::from(*s) * b)
                    .collect(),
                numbers: Vec::new(),
            },
            Mask::Float(mask) => Self {
                tensor: dense(T::CODE),
                bytes: Vec::new(),
                numbers: mask.data.iter().map(|x| T::from_f64(*x)).collect(),
            },
        }
    }

    fn at(&self) -> kvs_tensor {
        if self.tensor.code == KVS_BOOL as i32 {
            self.tensor.at(self.bytes.as_ptr().cast_mut())
        } else {
            self.tensor.at(self.numbers.as_ptr().cast_mut())
        }
    }
}

/// The caches of a case, in the order in which they are laid out, and what a call gives for them.
struct Caches {
    key: Array<f64>,
    value: Array<f64>,
    /// The scales of keys and of values, of rank 2 or 3.
    scales: Option<[Array<f64>; 2]>,
    /// The block table, and the number of entries of each sample.
    blocks: Option<(Vec<i32>, usize)>,
    /// The first position of each sample.
    starts: Option<Vec<i64>>,
}

const GARBAGE: f64 = -77.0;

/// Runs a case with random strides. `T` is the type of queries and `C` that of the cache. Returns the output.
fn run<T: Element, C: Element>(r: &mut Random, case: &AttentionCase, caches: &Caches) -> Vec<f64> {
    let inputs = &case.inputs;
    // A code has no NaN.
    let garbage = if C::CODE == KVS_INT8 { 99.0 } else { f64::NAN };
    let query = Laid::<T>::new(r, &inputs.q, f64::NAN);
    let key = Laid::<C>::new(r, &caches.key, garbage);
    let value = Laid::<C>::new(r, &caches.value, garbage);
    let shape = [inputs.q.shape[0], inputs.q.shape[1], inputs.q.shape[2], inputs.v.shape[3]];
    let fresh = Array::new(vec![GARBAGE; shape.iter().product()], &shape);
    let output = Laid::<T>::new(r, &fresh, GARBAGE);
    let mask = inputs.mask.as_ref().map(DenseMask::<T>::new);
    let blocks_per_sample = caches.blocks.as_ref().map_or(0, |(_, count)| *count);
    let options = kvs_attention_options { blocks_per_sample, ..options_of(case) };
    let tensors = [query.at(), key.at(), value.at(), output.at()];
    let mask = mask.as_ref().map(DenseMask::at);
    let handle = AttentionHandle::new(&options, tensors.each_ref(), mask.as_ref()).expect(&case.name);
    let mut call = ATTENTION_CALL;
    call.mask = mask.as_ref().map_or(ptr::null(), ptr::from_ref);
    let lengths = match &inputs.positions {
        // In blocks, the last entries of a sample may be garbage, so a call needs lengths.
        Positions::Full if caches.blocks.is_some() => {
            call.query_positions = kvs_query_positions::KVS_QUERIES_FIRST as i32;
            Some(vec![inputs.k.shape[2] as i64; shape[0]])
        }
        Positions::Full => None,
        Positions::Lengths(lengths) | Positions::Ring(lengths) => Some(lengths.clone()),
    };
    let lengths = lengths.map(|lengths| Numbers::new(r, lengths));
    let starts = caches.starts.clone().map(|starts| Numbers::new(r, starts));
    call.lengths = lengths.as_ref().map_or(ABSENT, Numbers::given);
    call.starts = starts.as_ref().map_or(ABSENT, Numbers::given);
    if let Some((table, _)) = &caches.blocks {
        call.block_table = narrow(table);
    }
    let scales = caches.scales.as_ref().map(|scales| {
        scales.each_ref().map(|scales| {
            let shape: Vec<_> = scales.shape.iter().map(|&size| size as i64).collect();
            let numbers: Vec<_> = scales.data.iter().map(|&x| x as f32).collect();
            (OwnedTensor::dense(KVS_FLOAT32, &shape), numbers)
        })
    });
    let scales = scales
        .as_ref()
        .map(|scales| scales.each_ref().map(|(tensor, numbers)| tensor.at(numbers.as_ptr().cast_mut())));
    if let Some([key, value]) = &scales {
        (call.key_scales, call.value_scales) = (key, value);
    }
    let mut scratch = handle.scratch(2);
    handle.run(&call, tensors.each_ref(), &mut scratch).expect(&case.name);
    output.check_gaps(GARBAGE);
    output.numbers()
}

/// Numbers of 64 bits, or of 32 bits if they fit.
enum Numbers {
    Wide(Vec<i64>),
    Narrow(Vec<i32>),
}

impl Numbers {
    /// Chooses a width.
    fn new(r: &mut Random, numbers: Vec<i64>) -> Self {
        let short: Option<_> = numbers.iter().map(|&number| i32::try_from(number).ok()).collect();
        short.filter(|_| r.below(2) == 0).map_or(Self::Wide(numbers), Self::Narrow)
    }

    fn given(&self) -> kvs_indices {
        match self {
            Self::Wide(numbers) => wide(numbers),
            Self::Narrow(numbers) => narrow(numbers),
        }
    }
}

/// Compares a result with the oracle's.
fn check(case: &AttentionCase, got: &[f64], expected: &[f64]) {
    assert_eq!(got.len(), expected.len(), "{}", case.name);
    for (at, (&got, &expected)) in got.iter().zip(expected).enumerate() {
        let agrees = got == expected
            || got.is_nan() && expected.is_nan()
            || (got - expected).abs() <= case.tolerance(expected)
            || got == case.inputs.element.round(expected);
        assert!(agrees, "{}: Y[{at}] is {got}, not {expected}", case.name);
    }
}

/// Runs a case in its own type, or with queries of one type over a cache of another.
fn check_as<T: Element, C: Element>(r: &mut Random, case: &AttentionCase, caches: &Caches) {
    let expected = case.expected().unwrap();
    check(case, &run::<T, C>(r, case, caches), &expected.y.data);
}

fn as_they_are(inputs: &Inputs) -> Caches {
    Caches { key: inputs.k.clone(), value: inputs.v.clone(), scales: None, blocks: None, starts: None }
}

/// Returns the number of random calls of a test, which `KVSCATTER_ATTENTION_CALLS` may set.
fn calls() -> usize {
    std::env::var("KVSCATTER_ATTENTION_CALLS").ok().and_then(|calls| calls.parse().ok()).unwrap_or(300)
}

#[test]
fn random_calls_agree_with_the_oracle() {
    let mut checked = 0;
    for (seed, case) in random(60, calls()).filter_map(expressible).enumerate() {
        let r = &mut Random::new(61, seed);
        let caches = as_they_are(&case.inputs);
        match case.inputs.element {
            Float::F32 => check_as::<f32, f32>(r, &case, &caches),
            Float::F16 => check_as::<f16, f16>(r, &case, &caches),
            Float::Bf16 => check_as::<bf16, bf16>(r, &case, &caches),
        }
        checked += 1;
    }
    assert!(checked > 150, "{checked}");
}

/// The queries are float32, and the numbers of the cache fit both types. A mask of numbers could contain the lowest
/// number of the other type, which hides no slot here.
#[test]
fn queries_may_have_another_type_than_the_cache() {
    let mut checked = 0;
    for (seed, mut case) in random(62, calls()).filter_map(expressible).enumerate() {
        let r = &mut Random::new(63, seed);
        if matches!(case.inputs.mask, Some(Mask::Float(_))) {
            continue;
        }
        let caches = as_they_are(&case.inputs);
        match std::mem::replace(&mut case.inputs.element, Float::F32) {
            Float::F32 => continue,
            Float::F16 => check_as::<f32, f16>(r, &case, &caches),
            Float::Bf16 => check_as::<f32, bf16>(r, &case, &caches),
        }
        checked += 1;
    }
    assert!(checked > 50, "{checked}");
}

/// Returns the blocks of `[batch, heads, slots, size]` rows, as `[blocks, heads, slots of a block, size]`.
fn into_blocks(array: &Array<f64>, (table, size): (&[i32], usize), count: usize) -> Array<f64> {
    let &[batch, heads, slots, row] = array.shape.as_slice() else { unreachable!("rank 4") };
    let per_sample = table.len() / batch.max(1);
    let mut data = vec![f64::NAN; count * heads * size * row];
    for (sample, slot) in (0..batch).flat_map(|sample| (0..slots).map(move |slot| (sample, slot))) {
        let Ok(block) = usize::try_from(table[sample * per_sample + slot / size]) else { continue };
        for head in 0..heads {
            let from = ((sample * heads + head) * slots + slot) * row;
            let to = ((block * heads + head) * size + slot % size) * row;
            data[to..to + row].copy_from_slice(&array.data[from..from + row]);
        }
    }
    Array::new(data, &[count, heads, size, row])
}

#[test]
fn caches_in_blocks_agree_with_the_oracle() {
    let mut checked = 0;
    for (seed, case) in random(64, calls()).filter_map(expressible).enumerate() {
        let r = &mut Random::new(65, seed);
        let inputs = &case.inputs;
        let (batch, slots) = (inputs.k.shape[0], inputs.k.shape[2]);
        let lengths = match &inputs.positions {
            Positions::Ring(_) => continue,
            Positions::Full => vec![slots; batch],
            Positions::Lengths(lengths) => lengths.iter().map(|&length| length as usize).collect(),
        };
        let size = r.pick(&[1, 2, 3, 16]);
        let per_sample = slots.div_ceil(size) + 1;
        let count = batch * per_sample + 1;
        let mut free: Vec<_> = (0..count as i32).collect();
        let mut table = Vec::new();
        for length in lengths {
            let used = length.div_ceil(size);
            table.extend((0..used).map(|_| free.swap_remove(r.below(free.len()))));
            table.extend((used..per_sample).map(|_| -1));
        }
        let [key, value] = [&inputs.k, &inputs.v].map(|cache| into_blocks(cache, (&table, size), count));
        let blocks = Some((table, per_sample));
        let caches = Caches { key, value, scales: None, blocks, starts: None };
        match inputs.element {
            Float::F32 => check_as::<f32, f32>(r, &case, &caches),
            Float::F16 => check_as::<f16, f16>(r, &case, &caches),
            Float::Bf16 => check_as::<bf16, bf16>(r, &case, &caches),
        }
        checked += 1;
    }
    assert!(checked > 80, "{checked}");
}

/// Padding on the left is hidden as by a mask that is false there, which the oracle gets.
#[test]
fn starts_agree_with_the_oracle() {
    let mut checked = 0;
    for (seed, mut case) in random(74, 400).filter_map(expressible).enumerate() {
        let r = &mut Random::new(75, seed);
        // A mask is indexed by slot, which differs from the position in a ring.
        if case.inputs.mask.is_some() || matches!(case.inputs.positions, Positions::Ring(_)) {
            continue;
        }
        let &[batch, _, slots, _] = case.inputs.k.shape.as_slice() else { unreachable!("rank 4") };
        let starts = r.many(batch, |r| r.below(slots + 2) as i64);
        let caches = Caches { starts: Some(starts.clone()), ..as_they_are(&case.inputs) };
        let got = match case.inputs.element {
            Float::F32 => run::<f32, f32>(r, &case, &caches),
            Float::F16 => run::<f16, f16>(r, &case, &caches),
            Float::Bf16 => run::<bf16, bf16>(r, &case, &caches),
        };
        let shown = starts.iter().flat_map(|&start| (0..slots).map(move |slot| slot as i64 >= start));
        case.inputs.mask = Some(Mask::Bool(Array::new(shown.collect(), &[batch, 1, 1, slots])));
        check(&case, &got, &case.expected().unwrap().y.data);
        checked += 1;
    }
    assert!(checked > 60, "{checked}");
}

#[test]
fn codes_agree_with_the_oracle() {
    let mut checked = 0;
    for (seed, mut case) in random(66, calls()).filter_map(expressible).enumerate() {
        let r = &mut Random::new(67, seed);
        let is_finite = |array: &Array<f64>| array.data.iter().all(|number| number.is_finite());
        if !is_finite(&case.inputs.k) || !is_finite(&case.inputs.v) {
            continue;
        }
        let [key, value] = [&case.inputs.k, &case.inputs.v].map(Scales::quantize);
        let [k, v] = [&key, &value].map(|[codes, _]| codes);
        let caches = |scales| Caches { key: k.clone(), value: v.clone(), scales, blocks: None, starts: None };
        let run = |r: &mut Random, case: &AttentionCase, caches: &Caches| match case.inputs.element {
            Float::F32 => run::<f32, i8>(r, case, caches),
            Float::F16 => run::<f16, i8>(r, case, caches),
            Float::Bf16 => run::<bf16, i8>(r, case, caches),
        };

        // A scale for each row.
        let scales = Scales { key: key[1].clone(), value: value[1].clone() };
        let codes = Inputs { k: k.clone(), v: v.clone(), ..case.inputs.clone() };
        let expected = case.attention.run_scaled(&codes, &scales).unwrap().y;
        let got = run(r, &case, &caches(Some([key[1].clone(), value[1].clone()])));
        check(&case, &got, &expected.data);

        // A scale for each element of a head.
        let mut of_channels = |codes: &Array<f64>| {
            let &[_, heads, slots, size] = codes.shape.as_slice() else { unreachable!("rank 4") };
            let scales = r.many(heads * size, |r| f64::from(r.between(1, 100) as f32 / 8192.0));
            let scale = |at: usize| scales[at / size / slots % heads * size + at % size];
            let data = codes.data.iter().enumerate().map(|(at, code)| code * scale(at)).collect();
            (Array::new(data, &codes.shape), Array::new(scales.clone(), &[heads, size]))
        };
        let ((k, of_keys), (v, of_values)) = (of_channels(&key[0]), of_channels(&value[0]));
        (case.inputs.k, case.inputs.v) = (k, v);
        let got = run(r, &case, &caches(Some([of_keys, of_values])));
        check(&case, &got, &case.expected().unwrap().y.data);
        checked += 1;
    }
    assert!(checked > 30, "{checked}");
}

/// A sink of score 0 has the weight of a slot whose key and value are zeros.
#[test]
fn a_sink_is_a_slot_of_zeros() {
    let r = &mut Random::new(68, 0);
    let mut many = |count: usize| r.many(count, |r| r.between(0, 200) as f32 / 100.0 - 1.0);
    let (mut query, mut key, mut value) = (many(32), many(128), many(192));
    key.chunks_exact_mut(32).for_each(|head| head[..4].fill(0.0));
    value.chunks_exact_mut(48).for_each(|head| head[..6].fill(0.0));
    let mut outputs = [[0_f32; 48]; 2];
    let mut sinks = [0_f32; 4];
    let shape = OwnedTensor::dense(KVS_FLOAT32, &[4]);
    let sinks = shape.at(&raw mut sinks);
    let mut scene = attention();
    for (has_sinks, output) in [false, true].into_iter().zip(&mut outputs) {
        let skipped = usize::from(has_sinks);
        if has_sinks {
            scene = scene.with_options(|options| options.has_sinks = 1);
            for cache in [1, 2] {
                let size = scene.tensors[cache].shape[3];
                scene = scene.tensor(cache, |cache| {
                    cache.shape[2] = 7;
                    cache.strides = Some(vec![16 * size, 8 * size, size, 1]);
                });
            }
            scene = scene.called(|call| {
                call.lengths = wide(&[7, 2]);
                call.sinks = &sinks;
            });
        }
        let [q, k, v, o] = &scene.tensors;
        let k = k.at(key.as_mut_ptr().wrapping_add(4 * skipped));
        let v = v.at(value.as_mut_ptr().wrapping_add(6 * skipped));
        let tensors = [q.at(query.as_mut_ptr()), k, v, o.at(output.as_mut_ptr())];
        let handle = scene.try_prepare().unwrap();
        handle.run(&scene.call, tensors.each_ref(), &mut handle.scratch(1)).unwrap();
    }
    let [slot, sink] = outputs;
    assert!(slot.iter().any(|y| y.abs() > 0.05));
    assert!(slot.iter().zip(&sink).all(|(slot, sink)| (slot - sink).abs() < 2e-6), "{slot:?} {sink:?}");
}

/// The number of calls of [`on_threads`].
static BROADCASTS: AtomicUsize = AtomicUsize::new(0);

/// Calls the work on three threads.
unsafe extern "C" fn on_threads(
    _: *mut c_void,
    work: Option<unsafe extern "C" fn(context: *mut c_void)>,
    context: *mut c_void,
) {
    BROADCASTS.fetch_add(1, Ordering::Relaxed);
    let context = context.addr();
    thread::scope(|threads| {
        for _ in 0..3 {
            // SAFETY: `broadcast` passes a `work` that may be called with `context` until this returns.
            threads.spawn(move || unsafe { work.unwrap()(ptr::with_exposed_provenance_mut(context)) });
        }
    });
}

/// Long calls use an executor, and many threads may use one handle. All results have the same bits.
#[test]
fn threads_do_not_change_the_result() {
    const SLOTS: usize = 5000;
    let dense = |shape: &[i64]| OwnedTensor::dense(KVS_FLOAT16, shape);
    let (query, cache) = (dense(&[1, 8, 1, 64]), dense(&[1, 2, SLOTS as i64, 64]));
    let r = &mut Random::new(69, 0);
    let mut many = |count: usize| r.many(count, |r| f16::from_f64(r.between(0, 200) as f64 / 100.0 - 1.0));
    let (q, k, v) = (many(512), many(2 * SLOTS * 64), many(2 * SLOTS * 64));
    let with = |tensor: &OwnedTensor, data: &[f16]| tensor.at(data.as_ptr().cast_mut());
    let inputs = || [with(&query, &q), with(&cache, &k), with(&cache, &v)];
    let [a, b, c] = inputs();
    let handle = AttentionHandle::new(&ATTENTION, [&a, &b, &c, &query.anywhere()], None).unwrap();
    let run = |threads: usize, executor: *const kvs_executor| {
        let mut output = vec![f16::NAN; 512];
        let lengths = [SLOTS as i64 - 3];
        let call = kvs_attention_call { lengths: wide(&lengths), executor, ..ATTENTION_CALL };
        let [a, b, c] = inputs();
        let mut scratch = handle.scratch(threads);
        for _ in 0..3 {
            let y = query.at(output.as_mut_ptr());
            handle.run(&call, [&a, &b, &c, &y], &mut scratch).unwrap();
        }
        output.into_iter().map(f16::to_bits).collect::<Vec<_>>()
    };
    let expected = run(1, ptr::null());
    let executor = kvs_executor { broadcast: Some(on_threads), user: ptr::null_mut() };
    for threads in [2, 3, 4, 9] {
        let before = BROADCASTS.load(Ordering::Relaxed);
        assert!(run(threads, &executor) == expected, "{threads}");
        assert_eq!(BROADCASTS.load(Ordering::Relaxed), before + 3);
    }
    thread::scope(|threads| {
        for _ in 0..4 {
            threads.spawn(|| assert!(run(1, ptr::null()) == expected));
        }
    });
}

/// A scratch fits each handle with the same shapes, and no other.
#[test]
fn a_scratch_belongs_to_its_shapes() {
    let (one, same) = (attention().try_prepare().unwrap(), attention().try_prepare().unwrap());
    let other = attention().tensor(1, |key| key.shape[2] = 7).tensor(2, |value| value.shape[2] = 7);
    let other = other.try_prepare().unwrap();
    let (mut query, mut key, mut value, mut output) = ([1_f32; 32], [1_f32; 128], [3_f32; 192], [0_f32; 48]);
    let [q, k, v, y] = attention().tensors;
    let tensors = [q.at(&raw mut query), k.at(&raw mut key), v.at(&raw mut value), y.at(&raw mut output)];
    let call = ATTENTION_CALL;
    assert_eq!(one.run(&call, tensors.each_ref(), &mut same.scratch(1)), Ok(()));
    assert_eq!(output, [3.0; 48]);
    let refused = one.run(&call, tensors.each_ref(), &mut other.scratch(1)).unwrap_err();
    assert_eq!((refused.code, refused.argument), ("KVS_ERROR_SCRATCH", Some("scratch")));
}

/// The scenes of the tests of errors are valid.
#[test]
fn scenes_are_valid() {
    for scene in [attention(), with_everything(), in_blocks()] {
        assert_eq!(scene.try_run(|_| ()), Ok(()));
    }
}
