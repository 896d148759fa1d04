//! The built-in engines: the two yardsticks and kvscatter.

mod hand_loop;
mod kvscatter;
mod memcpy;
mod names;

use std::sync::Arc;

use ::kvscatter::Mode;

use crate::call::Task;
use crate::case::Case;
use crate::engine::Engine;
use crate::layout::segments;
use crate::raw::Pool;

pub use hand_loop::HandLoop;
pub use kvscatter::Kvscatter;
pub(crate) use kvscatter::isa;
pub use memcpy::Memcpy;
pub use names::{HAND_LOOP, KVSCATTER, MEMCPY, SINGLE, UNWRAPPED};

/// Returns the engines for a case: both yardsticks and kvscatter. If the case wraps or uses threads, also
/// returns engines that do not, for comparison.
#[must_use]
pub fn built_in(case: &Case) -> Vec<Box<dyn Engine>> {
    let mut engines: Vec<Box<dyn Engine>> = vec![Box::new(Memcpy::new()), Box::new(HandLoop)];
    if case.parameters().threads > 1 {
        let pool = Arc::new(Pool::new(case.parameters().threads));
        engines.push(Box::new(Memcpy::on(Arc::clone(&pool))));
        engines.push(Box::new(Kvscatter::single()));
        engines.push(Box::new(Kvscatter::on(pool)));
    } else {
        engines.push(Box::new(Kvscatter::new()));
    }
    let wraps = || segments(case, Task::Write, &case.starts_at(0)).len() > case.dims().batch;
    if case.parameters().mode == Mode::Circular && wraps() {
        engines.push(Box::new(Kvscatter::unwrapped()));
    }
    engines
}
