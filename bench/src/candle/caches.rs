//! Engines for the caches of candle-nn, and for the adapter's caches with the same names.
//!
//! A call appends keys and values, and makes the tensors that the append returns.

use std::marker::PhantomData;

use candle_core::{Device, Result, Tensor};
use candle_nn::kv_cache as theirs;
use kvscatter_bench::{Call, Case, Engine, Failed, Run, Scene, Unsupported};
use kvscatter_candle::kv_cache as ours;

use super::writers::one_start;
use crate::peers::candle::{Setup, publish};

/// The names of each pair of engines: the adapter's and candle-nn's.
pub(super) const PAIRS: [[&str; 2]; 3] = [
    ["kvscatter-candle KvCache", "candle-nn KvCache"],
    ["kvscatter-candle RotatingKvCache", "candle-nn RotatingKvCache"],
    ["kvscatter-candle ScatteredKvCache", "candle-nn ScatteredKvCache"],
];

pub(super) fn engines() -> Vec<Box<dyn Engine>> {
    let [growing, rings, scattered] = PAIRS;
    vec![
        append::<ours::KvCache>(growing[0]),
        append::<theirs::KvCache>(growing[1]),
        append::<ours::RotatingKvCache>(rings[0]),
        append::<theirs::RotatingKvCache>(rings[1]),
        append::<(ours::ScatteredKvCache, ours::IndicesAndMask)>(scattered[0]),
        append::<(theirs::ScatteredKvCache, theirs::IndicesAndMask)>(scattered[1]),
    ]
}

/// A cache of keys and values. The same update is appended to both.
trait Cache: Sized + 'static {
    /// Creates a cache with these slots that appends `rows` rows at `start`.
    fn new(slots: &Tensor, start: usize, rows: usize) -> Result<Self>;

    /// Appends the update, and leaves the cache ready for another append at the same start.
    fn append(&mut self, update: &Tensor) -> Result<()>;

    /// Returns all slots of the keys and of the values.
    fn slots(&self) -> [Option<Tensor>; 2];
}

fn append<C: Cache>(name: &'static str) -> Box<dyn Engine> {
    Box::new(Append::<C> { name, cache: PhantomData })
}

struct Append<C> {
    name: &'static str,
    cache: PhantomData<C>,
}

struct Appending<C> {
    setup: Setup,
    start: usize,
    ready: Option<(C, Tensor)>,
}

impl<C: Cache> Engine for Append<C> {
    fn name(&self) -> &str {
        self.name
    }

    fn prepare(&self, case: &Case, _: &Scene) -> std::result::Result<Box<dyn Run>, Unsupported> {
        // The values need a second cache.
        let setup = Setup::new(case, case.cache_bytes())?;
        Ok(Box::new(Appending::<C> { setup, start: one_start(case)?, ready: None }))
    }
}

impl<C: Cache> Run for Appending<C> {
    fn run(&mut self, call: &mut Call<'_>) -> std::result::Result<(), Failed> {
        let (cache, update) = match &mut self.ready {
            Some(ready) => ready,
            none => {
                let [slots, update] = self.setup.load(call)?;
                none.insert((C::new(&slots, self.start, self.setup.rows)?, update))
            }
        };
        Ok(cache.append(update)?)
    }

    fn publish(&mut self, call: &mut Call<'_>) -> std::result::Result<(), Failed> {
        let (cache, _) = self.ready.as_ref().ok_or("nothing was written")?;
        let [keys, values] = cache.slots();
        publish(values.as_ref(), call)?;
        let written = call.keys.cache.to_vec();
        publish(keys.as_ref(), call)?;
        if call.keys.cache == written { Ok(()) } else { Err("keys and values differ".into()) }
    }
}

impl Cache for ours::KvCache {
    fn new(slots: &Tensor, start: usize, _: usize) -> Result<Self> {
        let mut cache = Self::new(2, slots.dim(2)?);
        cache.append(slots, slots)?;
        cache.truncate(start)?;
        Ok(cache)
    }

    fn append(&mut self, update: &Tensor) -> Result<()> {
        let length = self.current_seq_len();
        self.append(update, update)?;
        self.truncate(length)
    }

    fn slots(&self) -> [Option<Tensor>; 2] {
        [self.k_cache(), self.v_cache()].map(|cache| cache.all_data().clone())
    }
}

/// This cache cannot be truncated. Each append goes to a clone, which shares the memory.
impl Cache for theirs::KvCache {
    fn new(slots: &Tensor, start: usize, _: usize) -> Result<Self> {
        let mut cache = Self::new(2, slots.dim(2)?);
        let past = slots.narrow(2, 0, start)?.contiguous()?;
        cache.append(&past, &past)?;
        for all in [cache.k_cache(), cache.v_cache()] {
            all.all_data().as_ref().map(|all| all.slice_set(slots, 2, 0)).transpose()?;
        }
        Ok(cache)
    }

    fn append(&mut self, update: &Tensor) -> Result<()> {
        self.clone().append(update, update).map(drop)
    }

    fn slots(&self) -> [Option<Tensor>; 2] {
        [self.k_cache(), self.v_cache()].map(|cache| cache.all_data().clone())
    }
}

/// Implements [`Cache`] for types that have the same names and methods in both crates.
macro_rules! rings_and_scattered {
    ($caches:ident) => {
        /// A ring needs no truncation: each call appends after the last one.
        impl Cache for $caches::RotatingKvCache {
            fn new(slots: &Tensor, start: usize, _: usize) -> Result<Self> {
                let mut cache = Self::new(2, slots.dim(2)?);
                cache.append(slots, slots)?;
                let again = slots.narrow(2, 0, start)?;
                cache.append(&again, &again)?;
                Ok(cache)
            }

            fn append(&mut self, update: &Tensor) -> Result<()> {
                self.append(update, update).map(drop)
            }

            fn slots(&self) -> [Option<Tensor>; 2] {
                [self.k_cache(), self.v_cache()].map(|cache| cache.all_data().clone())
            }
        }

        /// One set of starts and masks serves all layers of a step, so it is made before the append is timed.
        impl Cache for ($caches::ScatteredKvCache, $caches::IndicesAndMask) {
            fn new(slots: &Tensor, start: usize, rows: usize) -> Result<Self> {
                let (batch, heads, context, size) = slots.dims4()?;
                let mut builder =
                    $caches::ScatteredCacheBuilder::new(batch, context, slots.dtype(), &Device::Cpu)?;
                let cache = builder.make_cache(heads, size)?;
                cache.k().slice_set(slots, 2, 0)?;
                cache.v().slice_set(slots, 2, 0)?;
                let active = vec![true; batch];
                for _ in 0..start {
                    builder.indices_and_mask(1, &active)?;
                }
                Ok((cache, builder.indices_and_mask(rows, &active)?))
            }

            fn append(&mut self, update: &Tensor) -> Result<()> {
                self.0.append(update, update, &self.1).map(drop)
            }

            fn slots(&self) -> [Option<Tensor>; 2] {
                [self.0.k(), self.0.v()].map(|slots| Some(slots.clone()))
            }
        }
    };
}

rings_and_scattered!(ours);
rings_and_scattered!(theirs);
