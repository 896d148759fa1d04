//! The write alone, one cache: the core's call, the adapter twice, and `cat`.

use bytemuck::Pod;
use candle_core::{Device, Tensor};
use kvscatter::Prepared;
use kvscatter::spec::onnx;
use kvscatter_bench::{Call, Case, Engine, Failed, Run, Scene, Unsupported};
use kvscatter_candle::{TensorScatter, Writer};

use crate::peers::candle::{Setup, publish};

pub(super) const CORE: &str = "the core's call";
pub(super) const WRITER: &str = "kvscatter-candle Writer";
pub(super) const OPERATION: &str = "kvscatter-candle InplaceOp3";
pub(super) const CAT: &str = "candle cat";

pub(super) fn engines() -> Vec<Box<dyn Engine>> {
    vec![Box::new(Core), Box::new(WithWriter), Box::new(WithOperation), Box::new(Cat)]
}

/// The core on vectors, which is what candle's tensors are made of: on the scene's own memory the pages may differ.
struct Core;

struct CoreRun<T> {
    prepared: Prepared,
    buffers: Option<[Vec<T>; 2]>,
    starts: Vec<i64>,
}

impl Engine for Core {
    fn name(&self) -> &str {
        CORE
    }

    fn prepare(&self, case: &Case, _: &Scene) -> Result<Box<dyn Run>, Unsupported> {
        let Setup { sides, .. } = Setup::new(case, 0)?;
        Ok(match sides.bits {
            16 => Box::new(CoreRun::<u16>::new(case)?),
            32 => Box::new(CoreRun::<u32>::new(case)?),
            bits => return Err(Unsupported(format!("is not compared at {bits} bits"))),
        })
    }
}

impl<T> CoreRun<T> {
    fn new(case: &Case) -> Result<Self, Unsupported> {
        let (cache, update) = (&case.parameters().shape, case.update_shape());
        let prepared = onnx::TensorScatter::new().prepare(case.parameters().element, cache, &update);
        let prepared = prepared.map_err(|error| Unsupported(error.to_string()))?;
        Ok(Self { prepared, buffers: None, starts: Vec::new() })
    }
}

impl<T: Pod> Run for CoreRun<T> {
    fn aim(&mut self, starts: &[i64]) {
        self.starts = starts.to_vec();
    }

    fn run(&mut self, call: &mut Call<'_>) -> Result<(), Failed> {
        let load = |bytes: &[u8]| bytemuck::cast_slice::<u8, T>(bytes).to_vec();
        let buffers = &mut self.buffers;
        let [cache, update] = buffers.get_or_insert_with(|| [load(call.keys.cache), load(call.keys.update)]);
        self.prepared.in_place(cache, update, &self.starts)?;
        Ok(())
    }

    fn publish(&mut self, call: &mut Call<'_>) -> Result<(), Failed> {
        let [cache, _] = self.buffers.as_ref().ok_or("nothing was written")?;
        call.keys.cache.copy_from_slice(bytemuck::cast_slice(cache));
        Ok(())
    }
}

/// What a loop of decode steps keeps.
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
        writer.write(update, &self.starts)?;
        Ok(())
    }

    fn publish(&mut self, call: &mut Call<'_>) -> Result<(), Failed> {
        publish(self.ready.as_ref().map(|(writer, _)| writer.cache()), call)
    }
}

/// Candle's own form: everything is checked and prepared in every call.
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
        // A failure shows in `run`, which then has no indices.
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

/// What a cache that grows does: the tokens so far and the new ones, in a new tensor.
struct Cat;

struct CatRun {
    setup: Setup,
    start: usize,
    /// The cache, the tokens so far, the new ones.
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
        // What it holds, and behind it what the cache had there.
        cache.slice_set(result, 2, 0)?;
        publish(Some(cache), call)
    }
}

/// The one slot where all samples are written.
pub(super) fn one_start(case: &Case) -> Result<usize, Unsupported> {
    let starts = case.starts_at(0);
    match starts.first() {
        Some(&first) if starts.iter().all(|&start| start == first) => Ok(first as usize),
        _ => Err(Unsupported("has one position for all samples".to_owned())),
    }
}
