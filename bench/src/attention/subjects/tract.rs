//! tract's flash attention.

use std::time::{Duration, Instant};

use ndarray::{Array4, ArrayView4, s};
use tract_transformers::ops::flash_sdpa::FlashSdpaOp;

use super::run::settle;
use crate::attention::case::Attention;
use crate::attention::scene::{Layout, Scene, elements};
use crate::measure::{Failed, Prepared, Subject};

/// Prepares a call on views of the scene's memory.
pub(super) fn prepare(scene: &Scene) -> Prepared<Scene> {
    let &[valid] = scene.case.valid.as_slice() else {
        return Err("it takes no lengths".to_owned());
    };
    let pool = rayon::ThreadPoolBuilder::new().num_threads(scene.case.threads).build();
    let pool = pool.map_err(|error| error.to_string())?;
    Ok(Box::new(Tract { pool, valid, output: None }))
}

struct Tract {
    pool: rayon::ThreadPool,
    valid: usize,
    output: Option<Array4<f32>>,
}

impl Subject<Scene> for Tract {
    fn time(&mut self, scene: &mut Scene, calls: usize) -> Result<Duration, Failed> {
        settle(&scene.case);
        let Attention { query_heads, heads, head_size, capacity, queries, .. } = scene.case;
        let query = (1, query_heads, queries, head_size);
        let query = ArrayView4::from_shape(query, elements::<f32>(scene.query.bytes()))?;
        let cache = |cache| ArrayView4::from_shape((1, heads, capacity, head_size), cache);
        let keys = cache(elements::<f32>(scene.key.bytes()))?;
        let values = cache(elements::<f32>(scene.value.bytes()))?;
        let [keys, values] = [&keys, &values].map(|cache| cache.slice(s![.., .., ..self.valid, ..]));
        let op = FlashSdpaOp { causal: queries > 1, scale: None };
        let run = || {
            let mut output = None;
            let began = Instant::now();
            for _ in 0..calls {
                output = Some(op.flash_attention_gqa(query, keys, values, None));
            }
            (output, began.elapsed())
        };
        let (output, elapsed) = self.pool.install(run);
        self.output = output;
        Ok(elapsed)
    }

    fn check(&mut self, scene: &mut Scene) -> Result<(), String> {
        self.time(scene, 1).map_err(|error| error.to_string())?;
        let output = self.output.as_ref().and_then(|output| output.as_slice());
        scene.check(output.ok_or("there is no output")?, Layout::Heads)
    }
}
