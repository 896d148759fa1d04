//! Everything that is timed: kvscatter's kernels, other libraries and the yardsticks.

mod caches;
mod candle;
mod kvscatter;
mod node;
mod raw;
mod run;
mod tract;
mod yardsticks;

use ::kvscatter::Isa;

use self::kvscatter::Placement;
use super::case::Element;
use super::scene::Scene;
use crate::measure::Prepared;
use crate::runtimes::Runtimes;

/// The slots of the small cache.
const SMALL: usize = 512;

/// Prepares a subject for a case. An error is the reason why it does not do the case.
pub(super) fn prepare(name: &str, scene: &Scene, runtimes: &Runtimes) -> Prepared<Scene> {
    match scene.case.element {
        Element::Float32 => match name {
            "tract" => tract::prepare(scene),
            _ if name.contains(caches::NAMED) => caches::prepare(name, scene),
            _ => prepare_any::<f32>(name, scene, runtimes),
        },
        Element::Float16 => prepare_any::<half::f16>(name, scene, runtimes),
    }
}

fn prepare_any<T: candle::Elements>(name: &str, scene: &Scene, runtimes: &Runtimes) -> Prepared<Scene> {
    match name {
        "kvscatter" => kvscatter::prepare::<T>(scene, Isa::allowed()),
        "kvscatter, AVX2" if Isa::allowed() == Isa::Avx512 => kvscatter::prepare::<T>(scene, Isa::Avx2),
        "kvscatter, AVX2" => Err("the machine has no wider instructions".to_owned()),
        "kvscatter, 512 slots" => kvscatter::prepare_small::<T>(scene, SMALL),
        "kvscatter, by token" => {
            kvscatter::prepare_placed::<T>(scene, Placement { is_by_token: true, block: None })
        }
        "kvscatter, blocks of 16" => {
            kvscatter::prepare_placed::<T>(scene, Placement { is_by_token: false, block: Some(16) })
        }
        "kvscatter, blocks of 64" => {
            kvscatter::prepare_placed::<T>(scene, Placement { is_by_token: false, block: Some(64) })
        }
        "kvscatter, blocks of 16 by token" => {
            kvscatter::prepare_placed::<T>(scene, Placement { is_by_token: true, block: Some(16) })
        }
        "kvscatter, blocks of 64 by token" => {
            kvscatter::prepare_placed::<T>(scene, Placement { is_by_token: true, block: Some(64) })
        }
        "kvscatter, sample by sample" => kvscatter::prepare_by_sample::<T>(scene),
        "GroupQueryAttention" => node::group_query::<T>(scene, runtimes),
        "Attention" => node::attention::<T>(scene, runtimes.stock()?),
        "Attention, plugin" => node::attention::<T>(scene, runtimes.plugin()?),
        "pass over the bytes" => Ok(Box::new(yardsticks::Pass::default())),
        "multiply-adds" => yardsticks::MultiplyAdds::prepare(&scene.case, Isa::allowed()),
        "multiply-adds, AVX2" => yardsticks::MultiplyAdds::prepare(&scene.case, Isa::Avx2),
        "multiply-adds and conversions, AVX2" => yardsticks::MultiplyAdds::prepare_converted(&scene.case),
        "candle" => candle::prepare::<T>(scene),
        "tract" => Err("has no float16 here".to_owned()),
        other => Err(format!("{other} is no subject")),
    }
}
