//! Kernels of `kvscatter-attention` for caches of each type, next to queries in float32.

use std::time::{Duration, Instant};

use ::kvscatter::quantize::quantize_row;
use ::kvscatter::{ElementType, Isa};
use half::{bf16, f16};
use kvscatter_attention::{self as ours, CacheElement, Inputs, Outputs, Scales, Scratch, Shapes, Valid};

use super::run::with_threads;
use crate::attention::scene::{Layout, Scene, elements};
use crate::measure::{Failed, Prepared, Subject};

/// A part of the names of all these subjects, such as "int8 caches" and "int8 caches, AVX2".
pub(super) const NAMED: &str = " caches";

/// Prepares a call on caches of the type that the name begins with.
pub(super) fn prepare(name: &str, scene: &Scene) -> Prepared<Scene> {
    let isa = if name.ends_with("AVX2") { Isa::Avx2 } else { Isa::Avx512 };
    if Isa::allowed() < isa {
        return Err(format!("the machine lacks {isa}"));
    }
    // Values are between -1 and 1. A stored one differs from its float32 by at most 2^-12 in float16, 2^-9 in bfloat16
    // and 2^-8 in int8, and so do products with queries of up to 4, which change the weights.
    match name.split(' ').next() {
        Some("float32") => Layers::prepare(scene, isa, 1e-5, <[f32]>::copy_from_slice),
        Some("float16") => Layers::prepare(scene, isa, 1e-3, |to, from| each(to, from, f16::from_f32)),
        Some("bfloat16") => Layers::prepare(scene, isa, 1e-2, |to, from| each(to, from, bf16::from_f32)),
        Some("int8") => Layers::prepare_scaled(scene, isa, 1e-2),
        _ => Err(format!("{name} is no subject")),
    }
}

fn each<C>(to: &mut [C], from: &[f32], convert: fn(f32) -> C) {
    to.iter_mut().zip(from).for_each(|(to, &from)| *to = convert(from));
}

/// The caches of several layers, which all have the same contents. A call reads the next layer, so that its caches are
/// where those of a model are.
struct Layers<C> {
    prepared: ours::Prepared,
    scratch: Scratch,
    output: Vec<f32>,
    /// Keys and values of each layer.
    layers: Vec<[Vec<C>; 2]>,
    /// The scales of the rows of keys and of values, if they have scales.
    scales: Option<[Vec<f32>; 2]>,
    next: usize,
    /// The largest difference of an element from the result with the scene's caches.
    tolerance: f64,
}

impl<C: CacheElement> Layers<C> {
    fn prepare(scene: &Scene, isa: Isa, tolerance: f64, store: fn(&mut [C], &[f32])) -> Prepared<Scene> {
        let caches = [&scene.key, &scene.value].map(|cache| {
            let from = elements::<f32>(cache.bytes());
            let mut to = vec![C::zeroed(); from.len()];
            store(&mut to, from);
            to
        });
        Self::boxed(scene, isa, tolerance, caches, None)
    }

    fn boxed(
        scene: &Scene,
        isa: Isa,
        tolerance: f64,
        caches: [Vec<C>; 2],
        scales: Option<[Vec<f32>; 2]>,
    ) -> Prepared<Scene> {
        let [query, key, value] = [&scene.query, &scene.key, &scene.value].map(|tensor| tensor.shape());
        let shapes = Shapes { element: ElementType::Float32, query, key, value, mask: None, past: None };
        let attention = ours::Attention::new().causal(true).cache_element(C::ELEMENT);
        let prepared = attention.prepare(&shapes).map_err(|error| error.to_string())?.with_isa(isa);
        let scratch = prepared.scratch(scene.case.threads);
        let output = vec![0.0; query.iter().product()];
        let layers = vec![caches; scene.case.layers];
        Ok(Box::new(Self { prepared, scratch, output, layers, scales, next: 0, tolerance }))
    }
}

impl Layers<i8> {
    /// Prepares a call on codes, with a scale for each row.
    fn prepare_scaled(scene: &Scene, isa: Isa, tolerance: f64) -> Prepared<Scene> {
        let size = scene.case.head_size;
        let quantized = [&scene.key, &scene.value].map(|cache| {
            let from = elements::<f32>(cache.bytes());
            let mut codes = vec![0; from.len()];
            let rows = codes.chunks_exact_mut(size).zip(from.chunks_exact(size));
            let scales = rows.map(|(codes, row)| quantize_row(row, codes)).collect();
            (codes, scales)
        });
        let [(keys, of_keys), (values, of_values)] = quantized;
        Self::boxed(scene, isa, tolerance, [keys, values], Some([of_keys, of_values]))
    }
}

impl<C: CacheElement> Subject<Scene> for Layers<C> {
    fn time(&mut self, scene: &mut Scene, calls: usize) -> Result<Duration, Failed> {
        with_threads(&scene.case, |executor| {
            let began = Instant::now();
            for _ in 0..calls {
                let [key, value] = &self.layers[self.next];
                self.next = (self.next + 1) % self.layers.len();
                let scales = self.scales.as_ref().map(|[key, value]| Scales::Rows { key, value });
                let valid = Valid::Lengths(&scene.lengths);
                let inputs =
                    Inputs { valid, scales, ..Inputs::new(elements(scene.query.bytes()), key, value) };
                let mut outputs = Outputs::new(&mut self.output);
                self.prepared.run(&inputs, &mut outputs, &mut self.scratch, executor)?;
            }
            Ok(began.elapsed())
        })
    }

    fn check(&mut self, scene: &mut Scene) -> Result<(), String> {
        self.time(scene, 1).map_err(|error| error.to_string())?;
        scene.check_within(self.tolerance, &self.output, Layout::Heads)
    }
}
