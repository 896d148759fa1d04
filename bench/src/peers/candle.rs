//! candle's `slice_set`, which writes one slice, and `scatter_set`, which takes an index per element.
//!
//! candle's tensors own their memory. So the scene's caches are copied into tensors before the first call,
//! and copied back to be verified. Everything that a host would keep from step to step is kept: the views of
//! each sample, and the indices, which [`aim`](Run::aim) makes untimed.

use candle_core::{CpuStorage, DType, Device, Storage, Tensor};
use kvscatter::ElementType;
use kvscatter_bench::{CacheDims, Call, Case, Engine, Failed, Form, Run, Scene, Unsupported, UpdateLayout};

use super::limits::{check_own_memory, unsupported};

pub(crate) fn engines() -> [Box<dyn Engine>; 2] {
    [Box::new(SliceSet), Box::new(ScatterSet)]
}

struct SliceSet;

struct ScatterSet;

impl Engine for SliceSet {
    fn name(&self) -> &str {
        "candle slice_set"
    }

    fn prepare(&self, case: &Case, _: &Scene) -> Result<Box<dyn Run>, Unsupported> {
        let setup = Setup::new(case, 0)?;
        if setup.wraps(&case.starts_at(0)) {
            return unsupported("has no ring: it writes one slice per sample");
        }
        Ok(Box::new(Slices { setup, tensors: None, offsets: Vec::new() }))
    }
}

impl Engine for ScatterSet {
    fn name(&self) -> &str {
        "candle scatter_set"
    }

    fn prepare(&self, case: &Case, _: &Scene) -> Result<Box<dyn Run>, Unsupported> {
        let indices = case.update_bytes() / (case.dims().bits / 8).max(1) * size_of::<u32>();
        Ok(Box::new(Scatter { setup: Setup::new(case, indices)?, tensors: None, indices: None }))
    }
}

/// The bytes of a page.
const PAGE: usize = 4096;
/// The offset in a page at which every cache and every update begins, as in memory that malloc maps. Smaller
/// allocations begin at any offset, which would affect times more than the compared calls do.
const BEGIN: usize = 16;

/// Returns how many elements of this size to skip from this address, so that the data begins at [`BEGIN`].
pub(crate) fn left_out(address: usize, size: usize) -> usize {
    (BEGIN + PAGE - address % PAGE) % PAGE / size
}

/// Returns how many elements to allocate for so many, including skipped ones.
pub(crate) fn allocated(elements: usize, size: usize) -> usize {
    elements + PAGE / size
}

/// The parts of a case that all engines of candle need.
pub(crate) struct Setup {
    pub(crate) dims: CacheDims,
    pub(crate) rows: usize,
    dtype: DType,
}

impl Setup {
    pub(crate) fn new(case: &Case, more_bytes: usize) -> Result<Self, Unsupported> {
        check_own_memory(case, case.cache_bytes() + case.update_bytes() + more_bytes)?;
        let parameters = case.parameters();
        if parameters.form == Form::Functional {
            return unsupported("writes in place only");
        }
        if parameters.update != UpdateLayout::Dense {
            return unsupported("needs a contiguous update");
        }
        let dtype = match parameters.element {
            ElementType::Float16 => DType::F16,
            ElementType::BFloat16 => DType::BF16,
            ElementType::Float32 => DType::F32,
            ElementType::UInt8 => DType::U8,
            other => return unsupported(format!("has no {other}")),
        };
        Ok(Self { dims: case.dims(), rows: parameters.rows, dtype })
    }

    fn wraps(&self, starts: &[i64]) -> bool {
        starts.iter().any(|&start| start as usize + self.rows > self.dims.capacity)
    }

    /// Copies the cache and the update into tensors.
    pub(crate) fn load(&self, call: &mut Call<'_>) -> candle_core::Result<[Tensor; 2]> {
        let CacheDims { batch, outer, capacity, inner, .. } = self.dims;
        let tensor = |bytes, rows| self.placed(bytes, &[batch, outer, rows, inner]);
        Ok([tensor(call.keys.cache, capacity)?, tensor(call.keys.update, self.rows)?])
    }

    fn placed(&self, bytes: &[u8], shape: &[usize]) -> candle_core::Result<Tensor> {
        let size = self.dtype.size_in_bytes();
        let elements = bytes.len() / size;
        let memory = Tensor::zeros(allocated(elements, size), self.dtype, &Device::Cpu)?;
        let placed = memory.narrow(0, left_out(address(&memory)?, size), elements)?.reshape(shape)?;
        placed.slice_set(&Tensor::from_raw_buffer(bytes, self.dtype, shape, &Device::Cpu)?, 0, 0)?;
        Ok(placed)
    }
}

fn address(tensor: &Tensor) -> candle_core::Result<usize> {
    match &*tensor.storage_and_layout().0 {
        Storage::Cpu(CpuStorage::U8(values)) => Ok(values.as_ptr().addr()),
        Storage::Cpu(CpuStorage::F16(values)) => Ok(values.as_ptr().addr()),
        Storage::Cpu(CpuStorage::BF16(values)) => Ok(values.as_ptr().addr()),
        Storage::Cpu(CpuStorage::F32(values)) => Ok(values.as_ptr().addr()),
        _ => candle_core::bail!("a type that is not compared"),
    }
}

struct Slices {
    setup: Setup,
    tensors: Option<Views>,
    offsets: Vec<usize>,
}

/// The cache and the update as a whole, and the views of each sample.
struct Views {
    whole: [Tensor; 2],
    samples: Vec<[Tensor; 2]>,
}

impl Views {
    fn new(whole: [Tensor; 2], batch: usize) -> candle_core::Result<Self> {
        let [cache, update] = &whole;
        let sample = |index| Ok([cache.narrow(0, index, 1)?, update.narrow(0, index, 1)?]);
        Ok(Self { samples: (0..batch).map(sample).collect::<candle_core::Result<_>>()?, whole })
    }
}

impl Run for Slices {
    fn aim(&mut self, starts: &[i64]) {
        self.offsets = starts.iter().map(|&start| start as usize).collect();
    }

    fn run(&mut self, call: &mut Call<'_>) -> Result<(), Failed> {
        let views = match &mut self.tensors {
            Some(views) => views,
            none => none.insert(Views::new(self.setup.load(call)?, self.setup.dims.batch)?),
        };
        match self.offsets[..] {
            [first, ref rest @ ..] if rest.iter().all(|&offset| offset == first) => {
                let [cache, update] = &views.whole;
                cache.slice_set(update, 2, first)?;
            }
            ref offsets => {
                for ([cache, update], &offset) in views.samples.iter().zip(offsets) {
                    cache.slice_set(update, 2, offset)?;
                }
            }
        }
        Ok(())
    }

    fn publish(&mut self, call: &mut Call<'_>) -> Result<(), Failed> {
        publish(self.tensors.as_ref().map(|views| &views.whole[0]), call)
    }
}

struct Scatter {
    setup: Setup,
    tensors: Option<[Tensor; 2]>,
    indices: Option<Tensor>,
}

impl Scatter {
    /// Returns the slot of every element of the update.
    fn indices(&self, starts: &[i64]) -> candle_core::Result<Tensor> {
        let CacheDims { batch, outer, capacity, inner, .. } = self.setup.dims;
        let rows = self.setup.rows;
        let mut slots = Vec::with_capacity(batch * outer * rows * inner);
        for &start in starts {
            let rows = (0..rows).map(|row| ((start as usize + row) % capacity) as u32);
            let head: Vec<u32> = rows.flat_map(|slot| std::iter::repeat_n(slot, inner)).collect();
            (0..outer).for_each(|_| slots.extend_from_slice(&head));
        }
        Tensor::from_vec(slots, (batch, outer, rows, inner), &Device::Cpu)
    }
}

impl Run for Scatter {
    fn aim(&mut self, starts: &[i64]) {
        // If this fails, `run` returns an error because it has no indices.
        self.indices = self.indices(starts).ok();
    }

    fn run(&mut self, call: &mut Call<'_>) -> Result<(), Failed> {
        let [cache, update] = match &mut self.tensors {
            Some(tensors) => tensors,
            none => none.insert(self.setup.load(call)?),
        };
        let indices = self.indices.as_ref().ok_or("no indices")?;
        Ok(cache.scatter_set(indices, update, 2)?)
    }

    fn publish(&mut self, call: &mut Call<'_>) -> Result<(), Failed> {
        publish(self.tensors.as_ref().map(|[cache, _]| cache), call)
    }
}

pub(crate) fn publish(cache: Option<&Tensor>, call: &mut Call<'_>) -> Result<(), Failed> {
    let mut bytes = &mut *call.keys.cache;
    Ok(cache.ok_or("nothing was written")?.write_bytes(&mut bytes)?)
}
