//! Caches of codes with scales, compared with the oracle over the values that they stand for.

use half::{bf16, f16};
use kvscatter::ElementType;
use kvscatter_attention::{
    Attention, AttentionError, Float, Inputs, Mask, Operand, Outputs, Scales, Scores, Shapes, Softmax, Valid,
};
use kvscatter_oracle::attention as oracle;
use kvscatter_oracle::cases::Random;

use crate::element::bits;
use crate::executors::Threads;
use crate::extensions::shapes;
use crate::variants::Variant;

/// A call over codes.
#[derive(Clone, Debug)]
struct Scene {
    batch: usize,
    /// The query heads and the heads of keys.
    heads: [usize; 2],
    queries: usize,
    slots: usize,
    /// The sizes of a key and of a value.
    sizes: [usize; 2],
    is_ring: bool,
    is_by_token: bool,
    has_channel_scales: bool,
    op: Attention,
    reference: oracle::Attention,
    lengths: Vec<i64>,
    /// Which slots each query may see, `[queries, slots]`.
    mask: Option<Vec<bool>>,
    query: Vec<f32>,
    /// The codes of keys and of values, by head.
    codes: [Vec<i8>; 2],
    scales: [Vec<f32>; 2],
}

impl Scene {
    fn random(r: &mut Random) -> Self {
        let (batch, heads) = (r.between(1, 2), r.pick(&[[1, 1], [3, 1], [4, 2], [8, 2], [3, 3]]));
        let (queries, is_ring, is_by_token) = (r.pick(&[1, 1, 1, 2, 30]), r.below(4) == 0, r.below(3) == 0);
        let sizes = r.pick(&[[16, 16], [64, 64], [40, 24], [7, 33], [128, 256], [1, 3]]);
        let slots = queries + r.pick(&[0, 3, 70, 200]);
        let window = is_ring.then(|| slots - queries);
        let window = window.or_else(|| r.pick(&[None, Some(5), Some(60)]));
        let (scale, softcap) = (r.pick(&[0.05, 0.3]), r.pick(&[0.0, 0.0, 2.0]));
        let [query_heads, kv_heads] = heads;
        let op = Attention::new().causal(true).scale(scale).softcap(softcap).window(window, None);
        let op = op.cache_element(ElementType::Int8);
        let op = if is_ring { op.ring() } else { op };
        let op = if is_by_token { op.heads(query_heads, kv_heads) } else { op };
        let number = |count: usize| i64::try_from(count).unwrap();
        let reference = oracle::Attention {
            is_causal: true,
            scale: Some(scale.into()),
            softcap: softcap.into(),
            q_num_heads: is_by_token.then(|| number(query_heads)),
            kv_num_heads: is_by_token.then(|| number(kv_heads)),
            left_window_size: window.map_or(-1, number),
            ..oracle::Attention::default()
        };
        let most = if is_ring { 3 * slots } else { slots };
        let lengths = r.many(batch, |r| number(r.between(queries.min(most), most)));
        let mask = (r.below(3) == 0).then(|| r.many(queries * slots, |r| r.below(5) > 0));
        let has_channel_scales = r.below(4) == 0;
        let rows = batch * kv_heads * slots;
        let codes = sizes.map(|size| r.many(rows * size, |r| r.between(0, 254) as u8 as i8));
        let scales = sizes.map(|size| {
            let count = if has_channel_scales { kv_heads * size } else { rows };
            r.many(count, |r| f32::from(u16::try_from(r.between(1, 2000)).unwrap()) / 100_000.0)
        });
        let query =
            r.many(batch * query_heads * queries * sizes[0], |r| r.between(0, 200) as f32 / 100.0 - 1.0);
        Self {
            batch,
            heads,
            queries,
            slots,
            sizes,
            is_ring,
            is_by_token,
            has_channel_scales,
            op,
            reference,
            lengths,
            mask,
            query,
            codes,
            scales,
        }
    }

    /// Returns the shapes of queries, keys and values.
    fn shapes(&self) -> [Vec<usize>; 3] {
        let (Self { batch, queries, slots, .. }, [heads, kv_heads], [size, value]) =
            (self, self.heads, self.sizes);
        match self.is_by_token {
            false => [[heads, *queries, size], [kv_heads, *slots, size], [kv_heads, *slots, value]]
                .map(|[heads, length, size]| vec![*batch, heads, length, size]),
            true => [[*queries, heads * size], [*slots, kv_heads * size], [*slots, kv_heads * value]]
                .map(|[length, hidden]| vec![*batch, length, hidden]),
        }
    }

    /// Returns the rows of a cache, `[batch, heads, slots, size]`, in the order of this scene.
    fn ordered<T: Copy>(&self, rows: &[T], size: usize) -> Vec<T> {
        let Self { batch, slots, is_by_token, heads: [_, heads], .. } = *self;
        if !is_by_token {
            return rows.to_vec();
        }
        let row =
            |sample, slot, head| rows[((sample * heads + head) * slots + slot) * size..][..size].to_vec();
        let tokens = (0..batch).flat_map(|sample| (0..slots).map(move |slot| (sample, slot)));
        tokens.flat_map(|(sample, slot)| (0..heads).flat_map(move |head| row(sample, slot, head))).collect()
    }

    /// Returns the numbers that the codes stand for, by head.
    fn values(&self, of: usize) -> Vec<f64> {
        let (Self { slots, heads: [_, heads], .. }, size) = (self, self.sizes[of]);
        let scale = |at: usize| match self.has_channel_scales {
            true => self.scales[of][at / size / slots % heads * size + at % size],
            false => self.scales[of][at / size],
        };
        let codes = self.codes[of].iter().enumerate();
        codes.map(|(at, code)| f64::from(*code) * f64::from(scale(at))).collect()
    }

    fn inputs(&self) -> oracle::Inputs {
        let [q, k, v] = self.shapes();
        let lengths = self.lengths.clone();
        let mask = |mask: &Vec<bool>| {
            oracle::Mask::Bool(oracle::Array::new(mask.clone(), &[self.queries, self.slots]))
        };
        oracle::Inputs {
            element: oracle::Float::F32,
            q: oracle::Array::new(self.query.iter().copied().map(f64::from).collect(), &q),
            k: oracle::Array::new(self.ordered(&self.values(0), self.sizes[0]), &k),
            v: oracle::Array::new(self.ordered(&self.values(1), self.sizes[1]), &v),
            mask: self.mask.as_ref().map(mask),
            past_key: None,
            past_value: None,
            positions: if self.is_ring {
                oracle::Positions::Ring(lengths)
            } else {
                oracle::Positions::Lengths(lengths)
            },
        }
    }

    /// Makes the scales of slots that no query sees NaN.
    fn poison(&mut self) {
        let seen = self.reference.attends(&self.inputs()).unwrap();
        let (Self { queries, slots, .. }, [heads, kv_heads]) = (&*self, self.heads);
        let (queries, slots, group) = (*queries, *slots, heads / kv_heads);
        for (row, scales) in
            self.scales.iter_mut().flat_map(|scales| scales.chunks_exact_mut(slots).enumerate())
        {
            for (slot, scale) in scales.iter_mut().enumerate() {
                let mut rows = row * group * queries..(row + 1) * group * queries;
                if !rows.any(|row| seen.data[row * slots + slot]) {
                    *scale = f32::NAN;
                }
            }
        }
    }

    fn run<T: Float>(&self, variant: Variant, threads: usize) -> Vec<T> {
        let shapes = self.shapes();
        let mask_shape = [self.queries, self.slots];
        let mask: Option<Vec<u8>> =
            self.mask.as_ref().map(|mask| mask.iter().map(|seen| u8::from(*seen)).collect());
        let prepared = self.op.prepare(&Shapes {
            element: T::ELEMENT,
            query: &shapes[0],
            key: &shapes[1],
            value: &shapes[2],
            mask: mask.as_ref().map(|_| &mask_shape[..]),
            past: None,
        });
        let prepared = variant.apply(prepared.unwrap());
        let query: Vec<_> = self.query.iter().map(|x| T::of_f32(*x)).collect();
        let [key, value] = [0, 1].map(|of| self.ordered(&self.codes[of], self.sizes[of]));
        let [of_key, of_value] = &self.scales;
        let scales = match self.has_channel_scales {
            true => Scales::Channels { key: of_key, value: of_value },
            false => Scales::Rows { key: of_key, value: of_value },
        };
        let inputs = Inputs {
            mask: mask.as_deref().map(Mask::Bool),
            valid: Valid::Lengths(&self.lengths),
            scales: Some(scales),
            ..Inputs::new(&query, &key, &value)
        };
        let count = prepared.output_shape().iter().product();
        let mut y = vec![T::of_f32(f32::NAN); count];
        let scratch = &mut prepared.scratch(threads);
        prepared.run(&inputs, &mut Outputs::new(&mut y), scratch, Some(&Threads(threads - 1))).unwrap();
        y
    }
}

#[test]
fn codes_are_read_as_the_values_that_they_stand_for() {
    for seed in 0..150 {
        let mut scene = Scene::random(&mut Random::new(60, seed));
        let expected = scene.reference.run(&scene.inputs()).unwrap().y.data;
        let most = scene.values(1).into_iter().fold(0.0, |most: f64, value| most.max(value.abs()));
        if !scene.has_channel_scales {
            scene.poison();
        }
        for variant in Variant::all() {
            let y = scene.run::<f32>(variant, 1);
            for (at, (y, expected)) in y.iter().zip(&expected).enumerate() {
                let error = (f64::from(*y) - expected).abs();
                assert!(error <= 4e-6 * most, "{seed} {variant:?} [{at}] {y} {expected}: {scene:?}");
            }
            assert_eq!(bits(&scene.run::<f32>(variant, 3)), bits(&y), "{seed} {variant:?}");
        }
    }
}

/// The type of queries and results is not that of the cache.
#[test]
fn queries_over_codes_may_be_halves() {
    fn check<T: Float>(scene: &Scene, unit: f64) {
        let mut scene = scene.clone();
        scene.query.iter_mut().for_each(|x| *x = T::of_f32(*x).to_f32());
        let expected = scene.reference.run(&scene.inputs()).unwrap().y.data;
        let most = scene.values(1).into_iter().fold(0.0, |most: f64, value| most.max(value.abs()));
        for (y, expected) in scene.run::<T>(Variant::USUAL, 1).iter().zip(&expected) {
            let error = (f64::from(y.to_f32()) - expected).abs();
            assert!(error <= 4e-6 * most + unit * expected.abs(), "{y:?} {expected}", y = y.to_f32());
        }
    }
    for seed in 0..20 {
        let scene = Scene::random(&mut Random::new(61, seed));
        check::<f16>(&scene, 2_f64.powi(-11));
        check::<bf16>(&scene, 2_f64.powi(-8));
    }
}

/// A row whose scale is NaN makes those queries NaN that see it, and no others.
#[test]
fn a_scale_that_is_nan_reaches_the_queries_that_see_it() {
    const SLOTS: usize = 40;
    let (query, cache) = ([1, 2, 30, 16], [1, 1, SLOTS, 16]);
    let op = Attention::new().causal(true).window(Some(4), None).cache_element(ElementType::Int8);
    let shapes = shapes(&query, &cache);
    let codes = [3_i8; SLOTS * 16];
    for (variant, of) in Variant::all().into_iter().flat_map(|variant| [0, 1].map(|of| (variant, of))) {
        let mut scales = [[0.01; SLOTS]; 2];
        scales[of][20] = f32::NAN;
        let [key, value] = &scales;
        let inputs =
            Inputs { scales: Some(Scales::Rows { key, value }), ..Inputs::new(&[0.5; 960], &codes, &codes) };
        let prepared = variant.apply(op.prepare(&shapes).unwrap());
        let mut y = [f32::INFINITY; 960];
        prepared.run(&inputs, &mut Outputs::new(&mut y), &mut prepared.scratch(1), None).unwrap();
        for (at, row) in y.chunks_exact(16).enumerate() {
            let sees = (20..=24).contains(&(at % 30));
            assert!(row.iter().all(|y| y.is_nan() == sees), "{variant:?} {of} {at} {row:?}");
        }
    }
}

#[test]
fn scales_are_given_for_codes_only() {
    let shape = [1, 2, 3, 4];
    let shapes = shapes(&shape, &shape);
    let op = Attention::new().cache_element(ElementType::Int8);
    let prepared = op.prepare(&shapes).unwrap();
    let run = |scales| {
        let inputs = Inputs { scales, ..Inputs::new(&[0.0; 24], &[0_i8; 24], &[0_i8; 24]) };
        prepared.run(&inputs, &mut Outputs::new(&mut [0.0; 24]), &mut prepared.scratch(1), None)
    };
    let (key, value) = (&[1.0; 6][..], &[1.0; 6][..]);
    assert_eq!(run(Some(Scales::Rows { key, value })), Ok(()));
    assert_eq!(run(Some(Scales::Channels { key: &[1.0; 8], value: &[1.0; 8] })), Ok(()));
    let operand = Operand::KeyScales;
    assert_eq!(run(None), Err(AttentionError::Presence { operand, is_expected: true }));
    let short = |operand, got, expected| Err(AttentionError::Length { operand, got, expected });
    assert_eq!(run(Some(Scales::Rows { key: &[1.0; 5], value })), short(operand, 5, 6));
    assert_eq!(run(Some(Scales::Rows { key, value: &[1.0; 7] })), short(Operand::ValueScales, 7, 6));
    let channels = Scales::Channels { key: &[1.0; 8], value: &[1.0; 6] };
    assert_eq!(run(Some(channels)), short(Operand::ValueScales, 6, 8));
    let floats = Attention::new().prepare(&shapes).unwrap();
    let inputs = Inputs {
        scales: Some(Scales::Rows { key, value }),
        ..Inputs::new(&[0.0; 24], &[0.0; 24], &[0.0; 24])
    };
    let refused = floats.run(&inputs, &mut Outputs::new(&mut [0.0; 24]), &mut floats.scratch(1), None);
    assert_eq!(refused, Err(AttentionError::Presence { operand, is_expected: false }));
    let past = Shapes { past: Some([&shape, &shape]), ..shapes };
    assert_eq!(op.prepare(&past).err(), Some(AttentionError::Codes { operand: Operand::PastKey }));
}

/// Weights that are an output do not contain the scales of values.
#[test]
fn weights_are_stored_before_the_scales_of_values() {
    let (query, cache) = ([1, 1, 1, 1], [1, 1, 3, 1]);
    let shapes = shapes(&query, &cache);
    let op = Attention::new().cache_element(ElementType::Int8).scores(Scores::Weights);
    for variant in Variant::all() {
        let prepared = variant.apply(op.prepare(&shapes).unwrap());
        let scales = Some(Scales::Rows { key: &[1.0, 0.5, 0.25], value: &[1.0, 2.0, 3.0] });
        let inputs = Inputs { scales, ..Inputs::new(&[1.0], &[1_i8, 2, 4], &[1_i8, 1, 1]) };
        let (mut y, mut weights) = ([0.0], [0.0; 3]);
        let outputs = &mut Outputs::new(&mut y).scores(&mut weights);
        prepared.run(&inputs, outputs, &mut prepared.scratch(1), None).unwrap();
        let is_near = |(one, two): (&f32, f32)| (one - two).abs() < 1e-6;
        assert!(weights.iter().zip([1.0 / 3.0; 3]).all(is_near), "{weights:?}");
        assert!(is_near((&y[0], 2.0)), "{y:?}");
    }
}

/// A weight in float64 may be below the smallest normal float32, and its value so large that it counts.
#[test]
fn small_weights_in_float64_count() {
    let (query, cache) = ([1, 1, 1, 1], [1, 1, 2, 1]);
    let shapes = shapes(&query, &cache);
    let op = Attention::new().cache_element(ElementType::Int8).softmax(Softmax::Float64).scale(1.0);
    let prepared = op.prepare(&shapes).unwrap();
    for (scale, expected) in [(1e36, 127e36 * (-90_f64).exp()), (f32::NAN, f64::NAN)] {
        let scales = Some(Scales::Rows { key: &[1.0, 1.0], value: &[1.0, scale] });
        let inputs = Inputs { scales, ..Inputs::new(&[1.0], &[0_i8, -90], &[0_i8, 127]) };
        let mut y = [0.0_f32];
        prepared.run(&inputs, &mut Outputs::new(&mut y), &mut prepared.scratch(1), None).unwrap();
        let is_near = (f64::from(y[0]) / expected - 1.0).abs() < 1e-3;
        assert!(is_near || (expected.is_nan() && y[0].is_nan()), "{y:?} {expected}");
    }
}
