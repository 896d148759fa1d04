//! Everything that is timed: kvscatter's kernels, other libraries and the yardsticks.

mod candle;
mod kvscatter;
mod node;
mod raw;
mod run;
mod tract;
mod yardsticks;

use ::kvscatter::Isa;

pub(super) use run::Run;

use super::runtimes::Runtimes;
use super::scene::Scene;
use super::suite::Element;

pub(super) const KVSCATTER: &str = "kvscatter";
pub(super) const KVSCATTER_AVX2: &str = "kvscatter, AVX2";
pub(super) const SMALL_CACHE: &str = "kvscatter, 512 slots";
pub(super) const BY_SAMPLE: &str = "kvscatter, sample by sample";
pub(super) const GROUP_QUERY: &str = "GroupQueryAttention";
pub(super) const ATTENTION: &str = "Attention";
pub(super) const PLUGIN: &str = "Attention, plugin";
pub(super) const PASS: &str = "pass over the bytes";
pub(super) const MULTIPLY_ADDS: &str = "multiply-adds";
pub(super) const MULTIPLY_ADDS_AVX2: &str = "multiply-adds, AVX2";
pub(super) const CONVERTED: &str = "multiply-adds and conversions, AVX2";
pub(super) const CANDLE: &str = "candle";
pub(super) const TRACT: &str = "tract";

/// The names of all subjects.
#[cfg(test)]
pub(super) const NAMES: [&str; 13] = [
    KVSCATTER,
    KVSCATTER_AVX2,
    SMALL_CACHE,
    BY_SAMPLE,
    GROUP_QUERY,
    ATTENTION,
    PLUGIN,
    PASS,
    MULTIPLY_ADDS,
    MULTIPLY_ADDS_AVX2,
    CONVERTED,
    CANDLE,
    TRACT,
];

/// The slots of the small cache in [`SMALL_CACHE`].
const SMALL: usize = 512;

/// Prepares a subject for a case. An error is the reason why it does not do the case.
pub(super) fn prepare(name: &str, scene: &Scene, runtimes: &Runtimes) -> Result<Box<dyn Run>, String> {
    match scene.case.element {
        Element::Float32 => match name {
            TRACT => tract::prepare(scene),
            _ => prepare_any::<f32>(name, scene, runtimes),
        },
        Element::Float16 => prepare_any::<half::f16>(name, scene, runtimes),
    }
}

fn prepare_any<T: candle::Elements>(
    name: &str,
    scene: &Scene,
    runtimes: &Runtimes,
) -> Result<Box<dyn Run>, String> {
    match name {
        KVSCATTER => kvscatter::prepare::<T>(scene, Isa::allowed()),
        KVSCATTER_AVX2 if Isa::allowed() == Isa::Avx512 => kvscatter::prepare::<T>(scene, Isa::Avx2),
        KVSCATTER_AVX2 => Err("the machine has no wider instructions".to_owned()),
        SMALL_CACHE => kvscatter::prepare_small::<T>(scene, SMALL),
        BY_SAMPLE => kvscatter::prepare_by_sample::<T>(scene),
        GROUP_QUERY => node::group_query::<T>(scene, runtimes),
        ATTENTION => node::attention::<T>(scene, runtimes.stock()?),
        PLUGIN => node::attention::<T>(scene, runtimes.plugin()?),
        PASS => Ok(Box::new(yardsticks::Pass::default())),
        MULTIPLY_ADDS => yardsticks::MultiplyAdds::prepare(&scene.case, Isa::allowed()),
        MULTIPLY_ADDS_AVX2 => yardsticks::MultiplyAdds::prepare(&scene.case, Isa::Avx2),
        CONVERTED => yardsticks::MultiplyAdds::prepare_converted(&scene.case),
        CANDLE => candle::prepare::<T>(scene),
        other => Err(format!("{other} does not do {:?}", scene.case.element)),
    }
}
