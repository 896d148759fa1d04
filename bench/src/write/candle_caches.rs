//! The caches of candle-nn, and the adapter's caches with the same names.
//!
//! A call appends keys and values, and makes the tensors that the append returns.

use candle_core::{Device, Result, Tensor};
use candle_nn::kv_cache as theirs;
use kvscatter_candle::kv_cache as ours;

use super::candle::{Setup, one_start, publish};
use super::case::Write;
use super::onnxruntime::check_own_memory;
use super::scene::Call;
use super::writer::Writer;
use crate::measure::Failed;

/// Prepares the subject with this name. Returns `None` if there is none.
pub(super) fn prepare(name: &str, case: &Write) -> Option<std::result::Result<Box<dyn Writer>, String>> {
    Some(match name {
        "kvscatter-candle KvCache" => append::<ours::KvCache>(case),
        "candle-nn KvCache" => append::<theirs::KvCache>(case),
        "kvscatter-candle RotatingKvCache" => append::<ours::RotatingKvCache>(case),
        "candle-nn RotatingKvCache" => append::<theirs::RotatingKvCache>(case),
        "kvscatter-candle ScatteredKvCache" => append::<(ours::ScatteredKvCache, ours::IndicesAndMask)>(case),
        "candle-nn ScatteredKvCache" => append::<(theirs::ScatteredKvCache, theirs::IndicesAndMask)>(case),
        _ => return None,
    })
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

fn append<C: Cache>(case: &Write) -> std::result::Result<Box<dyn Writer>, String> {
    let (setup, start) = (Setup::new(case)?, one_start(case)?);
    // The values need a second cache.
    check_own_memory(case, 2 * case.cache_bytes() + case.update_bytes())?;
    Ok(Box::new(Appending::<C> { setup, start, ready: None }))
}

struct Appending<C> {
    setup: Setup,
    start: usize,
    ready: Option<(C, Tensor)>,
}

impl<C: Cache> Writer for Appending<C> {
    fn write(&mut self, call: &mut Call<'_>) -> std::result::Result<(), Failed> {
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
