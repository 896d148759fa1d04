//! Rings whose positions only the mask shows, compared with linear caches.

use half::{bf16, f16};
use kvscatter::Executor;
use kvscatter_attention::{Attention, Softmax};
use kvscatter_oracle::cases::Random;

use crate::call::{AnyMask, Operands, Tensor};
use crate::element::{Element, bits};
use crate::executors::{Threads, Times};
use crate::variants::Variant;

/// A step of samples whose queries each see a window.
#[derive(Clone, Debug)]
struct Step {
    /// The query heads and the heads of keys.
    heads: [usize; 2],
    /// The sizes of a key and of a value.
    sizes: [usize; 2],
    queries: usize,
    window: usize,
    ring: usize,
    /// The number of slots of the linear cache.
    linear: usize,
    samples: Vec<Sample>,
}

#[derive(Clone, Copy, Debug)]
struct Sample {
    /// The position of the first query.
    start: usize,
    /// The number of positions before the first token, which are padding.
    padding: usize,
    /// The number of queries that see something.
    real: usize,
}

/// How a mask shows slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Bool,
    /// Minus infinity or the lowest number hides a slot, and the others get 0.
    Float,
    /// The others get a number that depends on their distance from the query.
    Bias,
}

impl Step {
    fn random(r: &mut Random, window: usize, queries: usize) -> Self {
        let is_padded = r.below(3) == 0;
        // One slot more than the window, so that the mask leaves a gap.
        let ring = (window - 1 + queries + r.pick(&[0, 0, 1, 5, 300])).max(window + 1);
        let near = ring + window;
        let count = r.between(1, 3);
        let samples = r.many(count, |r| {
            let most = r.pick(&[1, window, near, 3 * near, 6 * ring]);
            let start = r.below(most);
            let padding = if is_padded { r.below(start + 1) } else { 0 };
            let real = if is_padded { r.below(queries + 1) } else { queries };
            Sample { start, padding, real }
        });
        let end = samples.iter().map(|sample| sample.start + queries).max().unwrap();
        Self {
            heads: r.pick(&[[1, 1], [4, 2], [4, 1], [3, 3]]),
            sizes: r.pick(&[[16, 8], [40, 24], [7, 33], [64, 64], [3, 150]]),
            queries,
            window,
            ring,
            linear: end + r.pick(&[0, 1, 17, 1000]),
            samples,
        }
    }

    /// Returns the positions that a query sees.
    fn seen(&self, sample: Sample, query: usize) -> std::ops::Range<usize> {
        let position = sample.start + query;
        if query >= sample.real || position < sample.padding {
            return 0..0;
        }
        position - (position - sample.padding).min(self.window - 1)..position + 1
    }

    /// Returns a cache of `slots` slots, with NaN where no query sees it.
    fn cache<T: Element>(&self, values: &Tensor<T>, slots: usize) -> Tensor<T> {
        let &[batch, heads, linear, size] = values.shape.as_slice() else { unreachable!("rank 4") };
        let mut data = vec![T::from_f64(f64::NAN); batch * heads * slots * size];
        for (at, sample) in self.samples.iter().enumerate() {
            let positions = (0..self.queries).flat_map(|query| self.seen(*sample, query));
            for (position, head) in positions.flat_map(|p| (0..heads).map(move |head| (p, head))) {
                let (row, from) = (at * heads + head, &values.data);
                data[(row * slots + position % slots) * size..][..size]
                    .copy_from_slice(&from[(row * linear + position) * size..][..size]);
            }
        }
        Tensor { shape: vec![batch, heads, slots, size], data }
    }

    /// Returns the mask of a cache of `slots` slots, `[batch, 1, queries, slots]`.
    fn mask<T: Element>(&self, slots: usize, kind: Kind) -> AnyMask<T> {
        let shape = vec![self.samples.len(), 1, self.queries, slots];
        let mut seen = vec![0; shape.iter().product()];
        let lowest = T::LOWEST;
        let mut added: Vec<T> = (0..seen.len())
            .map(|n| if n % 3 == 0 { T::from_f64(f64::NEG_INFINITY) } else { lowest })
            .collect();
        for (row, (sample, query)) in
            self.samples.iter().flat_map(|sample| (0..self.queries).map(move |q| (sample, q))).enumerate()
        {
            for position in self.seen(*sample, query) {
                let distance = (sample.start + query - position) as f64;
                let slot = row * slots + position % slots;
                seen[slot] = 1 + (position % 3) as u8;
                added[slot] = T::from_f64(if kind == Kind::Bias { -distance / 16.0 } else { 0.0 });
            }
            // A row of which every number is the lowest gives the mean of all slots.
            if self.seen(*sample, query).is_empty() {
                added[row * slots..][..slots].fill(T::from_f64(f64::NEG_INFINITY));
            }
        }
        match kind {
            Kind::Bool => AnyMask::Bool(Tensor { shape, data: seen }),
            _ => AnyMask::Float(Tensor { shape, data: added }),
        }
    }

    /// Returns a call over a cache of `slots` slots, for an operator with a mask or with positions.
    fn call<T: Element>(&self, r: &mut Random, slots: usize, kind: Option<Kind>) -> Operands<T> {
        let batch = self.samples.len();
        let ([query_heads, heads], [head_size, value_size]) = (self.heads, self.sizes);
        let query = Tensor::random(r, [batch, query_heads, self.queries, head_size]);
        let key = Tensor::random(r, [batch, heads, self.linear, head_size]);
        let value = Tensor::random(r, [batch, heads, self.linear, value_size]);
        let tokens = self.samples.iter().map(|sample| sample.start + self.queries);
        let lengths = tokens.map(|tokens| if kind.is_some() { tokens.min(slots) } else { tokens } as i64);
        Operands {
            query,
            key: self.cache(&key, slots),
            value: self.cache(&value, slots),
            mask: kind.map(|kind| self.mask(slots, kind)),
            past: None,
            lengths: Some(lengths.collect()),
        }
    }

    /// Returns whether the rule of positions shows what the mask shows.
    fn has_rule(&self) -> bool {
        self.samples.iter().all(|sample| sample.padding == 0 && sample.real == self.queries)
    }
}

impl<T: Element> Operands<T> {
    /// Returns the same call over tensors of rank 3.
    fn flat(mut self) -> Self {
        for tensor in [&mut self.query, &mut self.key, &mut self.value] {
            *tensor = tensor.flat();
        }
        self
    }
}

/// Compares a step over a ring with the same step over linear caches.
fn check<T: Element>(step: &Step, seed: usize) {
    let call = |slots, kind| step.call::<T>(&mut Random::new(41, seed), slots, kind);
    let other = [Attention::new().softcap(3.0), Attention::new().softmax(Softmax::Float64)][seed % 2];
    for op in [Attention::new(), other] {
        for variant in Variant::all() {
            let run =
                |operands: &Operands<T>, op: Attention, threads: usize, executor: Option<&dyn Executor>| {
                    let prepared = variant.apply(operands.prepare(&op).unwrap());
                    let mut scratch = prepared.scratch(threads);
                    bits(&operands.run_on(&prepared, &op, false, &mut scratch, executor).unwrap().y)
                };
            let name = |what: &str| format!("{what} {variant:?} {op:?} {step:?}");
            let expected = run(&call(step.linear, Some(Kind::Bool)), op, 1, None);
            let nan = bits(&[T::from_f64(f64::NAN)])[0];
            assert!(!expected.contains(&nan), "{}", name("a hidden slot has an influence"));
            let ring = call(step.ring, Some(Kind::Bool));
            assert!(run(&ring, op, 1, None) == expected, "{}", name("a ring"));
            for (executor, threads) in [(&Times(3) as &dyn Executor, 3), (&Threads(2), 2)] {
                assert!(run(&ring, op, threads, Some(executor)) == expected, "{}", name("threads"));
            }
            assert!(run(&call(step.ring, Some(Kind::Float)), op, 1, None) == expected, "{}", name("numbers"));
            if step.has_rule() {
                let op = op.causal(true).window(Some(step.window - 1), None);
                assert!(run(&call(step.linear, None), op, 1, None) == expected, "{}", name("a rule"));
                assert!(run(&call(step.ring, None), op.ring(), 1, None) == expected, "{}", name("positions"));
            }
            let of_heads = op.heads(step.heads[0], step.heads[1]);
            let by_slot = |slots| run(&call(slots, Some(Kind::Bool)).flat(), of_heads, 1, None);
            assert!(by_slot(step.ring) == by_slot(step.linear), "{}", name("rank 3"));
            let biased = |slots| run(&call(slots, Some(Kind::Bias)), op, 1, None);
            assert!(biased(step.ring) == biased(step.linear), "{}", name("a bias"));
        }
    }
}

#[test]
fn a_mask_of_a_ring_gives_the_bits_of_a_linear_cache() {
    let r = &mut Random::new(40, 0);
    for n in 0..60 {
        let window = r.pick(&[1, 2, 3, 8, 16, 100, 129, 513]);
        let queries = r.pick(&[1, 1, 2, 3, 5, 9, 20]);
        let step = Step::random(r, window, queries);
        match n % 3 {
            0 => check::<f32>(&step, n),
            1 => check::<f16>(&step, n),
            _ => check::<bf16>(&step, n),
        }
    }
}

#[test]
fn a_window_of_several_chunks_gives_the_bits_of_a_linear_cache() {
    let r = &mut Random::new(42, 0);
    for (n, (window, queries)) in
        [(1024, 1), (1025, 1), (2500, 1), (1030, 3), (2100, 19)].into_iter().enumerate()
    {
        let step = Step { heads: [2, 1], sizes: [40, 24], ..Step::random(r, window, queries) };
        check::<f32>(&step, n);
        check::<f16>(&step, n);
    }
}

/// Every ring of a few slots, at every position of its first turns.
#[test]
fn every_small_ring_gives_the_bits_of_a_linear_cache() {
    for (window, queries) in (1..5).flat_map(|window| (1..4).map(move |queries| (window, queries))) {
        for ring in (window - 1 + queries).max(window + 1)..window + queries + 3 {
            let samples = (0..3 * ring).map(|start| Sample { start, padding: 0, real: queries }).collect();
            let linear = 3 * ring + queries;
            let step = Step { heads: [2, 1], sizes: [5, 3], queries, window, ring, linear, samples };
            check::<f32>(&step, ring);
        }
    }
}
