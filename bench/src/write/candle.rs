//! candle's operations, and the adapter `kvscatter-candle`.
//!
//! candle's tensors own their memory. So the scene's cache is copied into tensors before the first call, and copied
//! back to be verified. Everything that a host would keep from step to step is kept: the views of each sample, and the
//! indices, which `aim` makes untimed.

use bytemuck::Pod;
use candle_core::{CpuStorage, DType, Device, InplaceOp2, Layout, Storage, Tensor};
use kvscatter::{ElementType, Mode, Prepared};
use kvscatter_candle::{TensorScatter, Writer};

use super::case::{Dims, Form, UpdateLayout, Write};
use super::onnxruntime::check_own_memory;
use super::scene::Call;
use super::writer;
use crate::measure::Failed;

/// The bytes of a page.
const PAGE: usize = 4096;
/// The offset in a page at which every cache and every update begins, as in memory that malloc maps. Smaller
/// allocations begin at any offset, which would affect times more than the compared calls do.
const BEGIN: usize = 16;

type Made = Result<Box<dyn writer::Writer>, String>;

/// Prepares the subject with this name.
pub(super) fn prepare(name: &str, case: &Write) -> Made {
    let setup = Setup::new(case)?;
    let operation = |setup, indices, make| -> Made {
        let (starts, tensor, ready) = (Vec::new(), None, None);
        Ok(Box::new(Operation { setup, indices, make, starts, tensor, ready }))
    };
    match name {
        "the core's call" => core(case, false),
        "the core's call after an operation of candle" => core(case, true),
        "kvscatter-candle Writer" => operation(setup, None, |_, [cache, update]| {
            let mut writer = Writer::new(TensorScatter::new(), &cache)?;
            Ok(Box::new(move |starts, _| Ok(writer.write(&update, starts).map(drop)?)))
        }),
        "kvscatter-candle InplaceOp3" => {
            let indices: Indices = |_, starts| Tensor::new(starts, &Device::Cpu);
            operation(setup, Some(indices), |_, [cache, update]| {
                let operation = TensorScatter::new();
                Ok(Box::new(move |_, indices| {
                    Ok(cache.inplace_op3(&update, indices.ok_or("no indices")?, &operation)?)
                }))
            })
        }
        "candle scatter_set" => {
            check_own_memory(case, case.cache_bytes() + case.update_bytes() + 2 * case.update_bytes())?;
            let indices: Indices = slots;
            operation(setup, Some(indices), |_, [cache, update]| {
                Ok(Box::new(move |_, slots| Ok(cache.scatter_set(slots.ok_or("no slots")?, &update, 2)?)))
            })
        }
        "candle slice_set" => {
            let end = |start: &i64| *start as usize + case.rows;
            if case.starts_at(0).iter().any(|start| end(start) > setup.dims.capacity) {
                return Err("has no ring: it writes one slice per sample".to_owned());
            }
            operation(setup, None, slices)
        }
        "candle cat" => Ok(Box::new(Cat { start: one_start(case)?, setup, tensors: None, result: None })),
        _ => Err(format!("{name} is not known")),
    }
}

/// A call at these starts, with the tensor that [`Indices`] made of them.
type Run = Box<dyn FnMut(&[i64], Option<&Tensor>) -> Result<(), Failed>>;

/// Makes the indices of an operation, untimed.
type Indices = fn(&Setup, &[i64]) -> candle_core::Result<Tensor>;

/// An operation that writes an update into a cache.
struct Operation {
    setup: Setup,
    indices: Option<Indices>,
    make: fn(&Setup, [Tensor; 2]) -> Result<Run, Failed>,
    starts: Vec<i64>,
    tensor: Option<Tensor>,
    /// The cache, and the call on it.
    ready: Option<(Tensor, Run)>,
}

impl writer::Writer for Operation {
    fn aim(&mut self, starts: &[i64]) {
        self.starts = starts.to_vec();
        // If this fails, `write` returns an error because it has no indices.
        self.tensor = self.indices.and_then(|indices| indices(&self.setup, starts).ok());
    }

    fn write(&mut self, call: &mut Call<'_>) -> Result<(), Failed> {
        let (_, run) = match &mut self.ready {
            Some(ready) => ready,
            none => {
                let tensors = self.setup.load(call)?;
                none.insert((tensors[0].clone(), (self.make)(&self.setup, tensors)?))
            }
        };
        run(&self.starts, self.tensor.as_ref())
    }

    fn publish(&mut self, call: &mut Call<'_>) -> Result<(), Failed> {
        publish(self.ready.as_ref().map(|(cache, _)| cache), call)
    }
}

/// Returns one `slice_set` if all samples have the same start, and one for each sample otherwise.
fn slices(setup: &Setup, [cache, update]: [Tensor; 2]) -> Result<Run, Failed> {
    let sample = |index| Ok([cache.narrow(0, index, 1)?, update.narrow(0, index, 1)?]);
    let samples = (0..setup.dims.batch).map(sample).collect::<candle_core::Result<Vec<_>>>()?;
    Ok(Box::new(move |starts, _| {
        if let &[first, ref rest @ ..] = starts
            && rest.iter().all(|&start| start == first)
        {
            return Ok(cache.slice_set(&update, 2, first as usize)?);
        }
        for ([cache, update], &start) in samples.iter().zip(starts) {
            cache.slice_set(update, 2, start as usize)?;
        }
        Ok(())
    }))
}

/// Returns the slot of every element of the update.
fn slots(setup: &Setup, starts: &[i64]) -> candle_core::Result<Tensor> {
    let Dims { batch, outer, capacity, inner, .. } = setup.dims;
    let mut slots = Vec::with_capacity(batch * outer * setup.rows * inner);
    for &start in starts {
        let rows = (0..setup.rows).map(|row| ((start as usize + row) % capacity) as u32);
        let head: Vec<u32> = rows.flat_map(|slot| std::iter::repeat_n(slot, inner)).collect();
        (0..outer).for_each(|_| slots.extend_from_slice(&head));
    }
    Tensor::from_vec(slots, (batch, outer, setup.rows, inner), &Device::Cpu)
}

/// The parts of a case that all subjects of candle need.
pub(super) struct Setup {
    pub(super) dims: Dims,
    pub(super) rows: usize,
    dtype: DType,
}

impl Setup {
    pub(super) fn new(case: &Write) -> Result<Self, String> {
        check_own_memory(case, case.cache_bytes() + case.update_bytes())?;
        if case.form == Form::Functional {
            return Err("writes in place only".to_owned());
        }
        if case.update != UpdateLayout::Dense {
            return Err("needs a contiguous update".to_owned());
        }
        let dtype = match case.element {
            ElementType::Float16 => DType::F16,
            ElementType::BFloat16 => DType::BF16,
            ElementType::Float32 => DType::F32,
            ElementType::UInt8 => DType::U8,
            other => return Err(format!("has no {other}")),
        };
        Ok(Self { dims: case.dims(), rows: case.rows, dtype })
    }

    /// Copies the cache and the update into tensors.
    pub(super) fn load(&self, call: &Call<'_>) -> candle_core::Result<[Tensor; 2]> {
        let Dims { batch, outer, capacity, inner, .. } = self.dims;
        let tensor = |bytes, rows| self.placed(bytes, &[batch, outer, rows, inner]);
        Ok([tensor(call.keys.cache, capacity)?, tensor(call.keys.update, self.rows)?])
    }

    fn placed(&self, bytes: &[u8], shape: &[usize]) -> candle_core::Result<Tensor> {
        let size = self.dtype.size_in_bytes();
        let elements = bytes.len() / size;
        let memory = Tensor::zeros(elements + PAGE / size, self.dtype, &Device::Cpu)?;
        let placed = memory.narrow(0, left_out(address(&memory)?, size), elements)?.reshape(shape)?;
        placed.slice_set(&Tensor::from_raw_buffer(bytes, self.dtype, shape, &Device::Cpu)?, 0, 0)?;
        Ok(placed)
    }
}

/// Returns how many elements of this size to skip from this address, so that the data begins at [`BEGIN`].
fn left_out(address: usize, size: usize) -> usize {
    (BEGIN + PAGE - address % PAGE) % PAGE / size
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

/// Copies a cache back, so that it can be compared.
pub(super) fn publish(cache: Option<&Tensor>, call: &mut Call<'_>) -> Result<(), Failed> {
    let mut bytes = &mut *call.keys.cache;
    Ok(cache.ok_or("nothing was written")?.write_bytes(&mut bytes)?)
}

/// Returns the slot at which all samples start, if it is the same for all.
pub(super) fn one_start(case: &Write) -> Result<usize, String> {
    let starts = case.starts_at(0);
    match starts.first() {
        Some(&first) if starts.iter().all(|&start| start == first) => Ok(first as usize),
        _ => Err("has one position for all samples".to_owned()),
    }
}

/// Returns the core's call on vectors, as in candle's tensors, because the scene's own memory may have other pages.
fn core(case: &Write, beside_candle: bool) -> Made {
    match case.dims().bits {
        16 => Ok(Box::new(Core::<u16>::new(case, beside_candle)?)),
        32 => Ok(Box::new(Core::<u32>::new(case, beside_candle)?)),
        bits => Err(format!("is not compared at {bits} bits")),
    }
}

struct Core<T> {
    /// The operands of an in-place operation of candle that does nothing, if each call follows one. This is the fixed
    /// cost of any such operation. They have one element, because candle checks its layout fastest.
    operands: Option<[Tensor; 2]>,
    prepared: Prepared,
    /// The cache and the update, each with the index of its first element.
    buffers: Option<[(Vec<T>, usize); 2]>,
    starts: Vec<i64>,
}

struct Nothing;

impl InplaceOp2 for Nothing {
    fn name(&self) -> &'static str {
        "nothing"
    }

    fn cpu_fwd(&self, _: &mut CpuStorage, _: &Layout, _: &CpuStorage, _: &Layout) -> candle_core::Result<()> {
        Ok(())
    }
}

impl<T> Core<T> {
    fn new(case: &Write, beside_candle: bool) -> Result<Self, String> {
        let tensor = || Tensor::zeros(1, DType::U8, &Device::Cpu).map_err(|error| error.to_string());
        let operands = if beside_candle { Some([tensor()?, tensor()?]) } else { None };
        Ok(Self { operands, prepared: case.prepare(Mode::Linear)?, buffers: None, starts: Vec::new() })
    }
}

impl<T: Pod> writer::Writer for Core<T> {
    fn aim(&mut self, starts: &[i64]) {
        self.starts = starts.to_vec();
    }

    fn write(&mut self, call: &mut Call<'_>) -> Result<(), Failed> {
        if let Some([written, read]) = &self.operands {
            written.inplace_op2(read, &Nothing)?;
        }
        let buffers = &mut self.buffers;
        let [(cache, cache_begin), (update, update_begin)] =
            buffers.get_or_insert_with(|| [placed(call.keys.cache), placed(call.keys.update)]);
        let _ = self.prepared.write(&mut cache[*cache_begin..], &update[*update_begin..], &self.starts)?;
        Ok(())
    }

    fn publish(&mut self, call: &mut Call<'_>) -> Result<(), Failed> {
        let [(cache, begin), _] = self.buffers.as_ref().ok_or("nothing was written")?;
        call.keys.cache.copy_from_slice(bytemuck::cast_slice(&cache[*begin..]));
        Ok(())
    }
}

/// Copies the bytes into a vector, and returns it with the index where they begin.
fn placed<T: Pod>(bytes: &[u8]) -> (Vec<T>, usize) {
    let size = size_of::<T>();
    let mut memory: Vec<T> = Vec::with_capacity((bytes.len() + PAGE) / size);
    let begin = left_out(memory.as_ptr().addr(), size);
    memory.resize(begin, T::zeroed());
    memory.extend_from_slice(bytemuck::cast_slice(bytes));
    (memory, begin)
}

/// A growing cache: concatenates the cached and the new tokens into a new tensor.
struct Cat {
    setup: Setup,
    start: usize,
    /// The cache, the cached tokens and the new ones.
    tensors: Option<[Tensor; 3]>,
    result: Option<Tensor>,
}

impl writer::Writer for Cat {
    fn write(&mut self, call: &mut Call<'_>) -> Result<(), Failed> {
        let [_, past, update] = match &mut self.tensors {
            Some(tensors) => tensors,
            none => {
                let [cache, update] = self.setup.load(call)?;
                let past = cache.narrow(2, 0, self.start)?.contiguous()?;
                none.insert([cache, past, update])
            }
        };
        self.result = Some(Tensor::cat(&[&*past, &*update], 2)?);
        Ok(())
    }

    fn publish(&mut self, call: &mut Call<'_>) -> Result<(), Failed> {
        let (Some([cache, ..]), Some(result)) = (&self.tensors, &self.result) else {
            return Err("nothing was written".into());
        };
        // After the result's rows, the cache keeps the rows that it had there.
        cache.slice_set(result, 2, 0)?;
        publish(Some(cache), call)
    }
}
