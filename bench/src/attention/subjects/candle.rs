//! candle's flash attention on the CPU.

use std::time::{Duration, Instant};

use candle_core::{Device, Tensor, WithDType};
use candle_nn::attention::{AttnMask, flash_attn};
use kvscatter_attention::Float;

use super::run::settle;
use crate::attention::case::Attention;
use crate::attention::scene::{Layout, Scene, elements};
use crate::measure::{Failed, Prepared, Subject};

/// Elements that both libraries have.
pub(super) trait Elements: Float + WithDType + num_traits::Float {}

impl<T: Float + WithDType + num_traits::Float> Elements for T {}

/// Prepares a call on copies of the operands.
pub(super) fn prepare<T: Elements>(scene: &Scene) -> Prepared<Scene> {
    let Attention { query_heads, heads, head_size, capacity, queries, threads, .. } = scene.case;
    let &[valid] = scene.case.valid.as_slice() else {
        return Err("it copies the caches of a batch".to_owned());
    };
    // Prefill uses a pool of its size, and decoding uses rayon's.
    if queries > 1 && threads != candle_core::utils::barrier_pool().n_workers() + 1 {
        return Err("its pool has another number of threads".to_owned());
    }
    let copied = |tensor: &kvscatter_session::Tensor, heads: usize, length: usize| {
        Tensor::from_slice(elements::<T>(tensor.bytes()), (1, heads, length, head_size), &Device::Cpu)
    };
    // It takes `[batch, length, heads, head size]`, by strides.
    let turned = |tensor: Tensor, length: usize| tensor.narrow(2, 0, length)?.transpose(1, 2);
    let load = || -> candle_core::Result<_> {
        Ok([
            turned(copied(&scene.query, query_heads, queries)?, queries)?,
            turned(copied(&scene.key, heads, capacity)?, valid)?,
            turned(copied(&scene.value, heads, capacity)?, valid)?,
        ])
    };
    let operands = load().map_err(|error| error.to_string())?;
    let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build();
    let pool = pool.map_err(|error| error.to_string())?;
    let offset = (queries > 1).then(|| valid - queries);
    Ok(Box::new(Candle { operands, pool, offset, output: None, element: std::marker::PhantomData::<T> }))
}

struct Candle<T> {
    operands: [Tensor; 3],
    pool: rayon::ThreadPool,
    /// The position of the first query, if there are several.
    offset: Option<usize>,
    output: Option<Tensor>,
    element: std::marker::PhantomData<T>,
}

impl<T: Elements> Subject<Scene> for Candle<T> {
    fn time(&mut self, scene: &mut Scene, calls: usize) -> Result<Duration, Failed> {
        settle(&scene.case);
        let [query, key, value] = &self.operands;
        let (offset, scale) = (self.offset, 1.0 / (scene.case.head_size as f32).sqrt());
        let run = || {
            let mut output = None;
            let began = Instant::now();
            for _ in 0..calls {
                let mask = offset.map_or(AttnMask::None, AttnMask::causal_with_offset);
                output = Some(flash_attn::<T>(query, key, value, scale, mask, None, None)?);
            }
            Ok::<_, candle_core::Error>((output, began.elapsed()))
        };
        let (output, elapsed) = self.pool.install(run)?;
        self.output = output;
        Ok(elapsed)
    }

    fn check(&mut self, scene: &mut Scene) -> Result<(), String> {
        self.time(scene, 1).map_err(|error| error.to_string())?;
        let output = self.output.as_ref().ok_or("there is no output")?;
        // Its results of half types are float32 in some kernels.
        let output = output.to_dtype(T::DTYPE).and_then(|output| output.flatten_all()?.to_vec1::<T>());
        scene.check(&output.map_err(|error| error.to_string())?, Layout::Heads)
    }
}
