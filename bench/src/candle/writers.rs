//! Engines that write one cache: the core's call with and without a call of candle before it, the adapter's
//! writer and operation, and `cat`.

use bytemuck::Pod;
use candle_core::{CpuStorage, DType, Device, InplaceOp2, Layout, Tensor};
use kvscatter::Prepared;
use kvscatter::spec::onnx;
use kvscatter_bench::{Call, Case, Engine, Failed, Run, Scene, Unsupported};
use kvscatter_candle::{TensorScatter, Writer};

use crate::peers::candle::{Setup, allocated, left_out, publish};

pub(super) const CORE: &str = "the core's call";
pub(super) const FLOOR: &str = "the core's call after an operation of candle";
pub(super) const WRITER: &str = "kvscatter-candle Writer";
pub(super) const OPERATION: &str = "kvscatter-candle InplaceOp3";
pub(super) const CAT: &str = "candle cat";

pub(super) fn engines() -> Vec<Box<dyn Engine>> {
    let core = |beside_candle| Box::new(Core { beside_candle });
    vec![core(false), core(true), Box::new(WithWriter), Box::new(WithOperation), Box::new(Cat)]
}

/// The core's call on vectors, as in candle's tensors, because the scene's own memory may have other pages.
struct Core {
    /// Whether each call follows an in-place operation of candle that does nothing. This is the fixed cost of
    /// any such operation.
    beside_candle: bool,
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

struct CoreRun<T> {
    /// The operands of candle's operation, if there is one. They have one element, because candle checks its
    /// layout fastest.
    operands: Option<[Tensor; 2]>,
    prepared: Prepared,
    /// The cache and the update, each with the index of its first element.
    buffers: Option<[(Vec<T>, usize); 2]>,
    starts: Vec<i64>,
}

impl Engine for Core {
    fn name(&self) -> &str {
        if self.beside_candle { FLOOR } else { CORE }
    }

    fn prepare(&self, case: &Case, _: &Scene) -> Result<Box<dyn Run>, Unsupported> {
        let Setup { dims, .. } = Setup::new(case, 0)?;
        Ok(match dims.bits {
            16 => Box::new(CoreRun::<u16>::new(case, self.beside_candle)?),
            32 => Box::new(CoreRun::<u32>::new(case, self.beside_candle)?),
            bits => return Err(Unsupported(format!("is not compared at {bits} bits"))),
        })
    }
}

impl<T> CoreRun<T> {
    fn new(case: &Case, beside_candle: bool) -> Result<Self, Unsupported> {
        let tensor =
            || Tensor::zeros(1, DType::U8, &Device::Cpu).map_err(|error| Unsupported(error.to_string()));
        let operands = if beside_candle { Some([tensor()?, tensor()?]) } else { None };
        let (cache, update) = (&case.parameters().shape, case.update_shape());
        let prepared = onnx::TensorScatter::new().prepare(case.parameters().element, cache, &update);
        let prepared = prepared.map_err(|error| Unsupported(error.to_string()))?;
        Ok(Self { operands, prepared, buffers: None, starts: Vec::new() })
    }
}

impl<T: Pod> Run for CoreRun<T> {
    fn aim(&mut self, starts: &[i64]) {
        self.starts = starts.to_vec();
    }

    fn run(&mut self, call: &mut Call<'_>) -> Result<(), Failed> {
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
    let elements = bytes.len() / size_of::<T>();
    let mut memory: Vec<T> = Vec::with_capacity(allocated(elements, size_of::<T>()));
    let begin = left_out(memory.as_ptr().addr(), size_of::<T>());
    memory.resize(begin, T::zeroed());
    memory.extend_from_slice(bytemuck::cast_slice(bytes));
    (memory, begin)
}

/// The adapter's writer, which a loop of decode steps keeps.
struct WithWriter;

struct WriterRun {
    setup: Setup,
    ready: Option<(Writer, Tensor)>,
    starts: Vec<i64>,
}

impl Engine for WithWriter {
    fn name(&self) -> &str {
        WRITER
    }

    fn prepare(&self, case: &Case, _: &Scene) -> Result<Box<dyn Run>, Unsupported> {
        Ok(Box::new(WriterRun { setup: Setup::new(case, 0)?, ready: None, starts: Vec::new() }))
    }
}

impl Run for WriterRun {
    fn aim(&mut self, starts: &[i64]) {
        self.starts = starts.to_vec();
    }

    fn run(&mut self, call: &mut Call<'_>) -> Result<(), Failed> {
        let (writer, update) = match &mut self.ready {
            Some(ready) => ready,
            none => {
                let [cache, update] = self.setup.load(call)?;
                none.insert((Writer::new(TensorScatter::new(), &cache)?, update))
            }
        };
        let _ = writer.write(update, &self.starts)?;
        Ok(())
    }

    fn publish(&mut self, call: &mut Call<'_>) -> Result<(), Failed> {
        publish(self.ready.as_ref().map(|(writer, _)| writer.cache()), call)
    }
}

/// The adapter's in-place operation for candle, which checks and prepares everything in every call.
struct WithOperation;

struct OperationRun {
    setup: Setup,
    tensors: Option<[Tensor; 2]>,
    indices: Option<Tensor>,
}

impl Engine for WithOperation {
    fn name(&self) -> &str {
        OPERATION
    }

    fn prepare(&self, case: &Case, _: &Scene) -> Result<Box<dyn Run>, Unsupported> {
        Ok(Box::new(OperationRun { setup: Setup::new(case, 0)?, tensors: None, indices: None }))
    }
}

impl Run for OperationRun {
    fn aim(&mut self, starts: &[i64]) {
        // If this fails, `run` returns an error because it has no indices.
        self.indices = Tensor::new(starts, &Device::Cpu).ok();
    }

    fn run(&mut self, call: &mut Call<'_>) -> Result<(), Failed> {
        let [cache, update] = match &mut self.tensors {
            Some(tensors) => tensors,
            none => none.insert(self.setup.load(call)?),
        };
        let indices = self.indices.as_ref().ok_or("no indices")?;
        Ok(cache.inplace_op3(update, indices, &TensorScatter::new())?)
    }

    fn publish(&mut self, call: &mut Call<'_>) -> Result<(), Failed> {
        publish(self.tensors.as_ref().map(|[cache, _]| cache), call)
    }
}

/// A growing cache: concatenates the cached and the new tokens into a new tensor.
struct Cat;

struct CatRun {
    setup: Setup,
    start: usize,
    /// The cache, the cached tokens and the new ones.
    tensors: Option<[Tensor; 3]>,
    result: Option<Tensor>,
}

impl Engine for Cat {
    fn name(&self) -> &str {
        CAT
    }

    fn prepare(&self, case: &Case, _: &Scene) -> Result<Box<dyn Run>, Unsupported> {
        let (setup, start) = (Setup::new(case, 0)?, one_start(case)?);
        Ok(Box::new(CatRun { setup, start, tensors: None, result: None }))
    }
}

impl Run for CatRun {
    fn run(&mut self, call: &mut Call<'_>) -> Result<(), Failed> {
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

/// Returns the slot at which all samples start, if it is the same for all.
pub(super) fn one_start(case: &Case) -> Result<usize, Unsupported> {
    let starts = case.starts_at(0);
    match starts.first() {
        Some(&first) if starts.iter().all(|&start| start == first) => Ok(first as usize),
        _ => Err(Unsupported("has one position for all samples".to_owned())),
    }
}
