//! Finds errors and hazards in how a decoder uses its caches.

mod conventions;
mod hazard;
mod readers;
mod runtimes;
mod scales;

use super::Decoder;
use super::cache::Growth;
use super::unused;
pub use hazard::{Hazard, PrefixMask, RuntimeBug, WrongSlot};

impl Decoder<'_> {
    /// Returns the hazards that the graph shows without an evaluation. [`check_rings`](crate::check_rings)
    /// finds those of rings.
    ///
    /// The hazards of single caches come first, in the order of the caches. The hazards of several caches
    /// follow, and those of runtimes come last.
    #[must_use]
    pub fn hazards(&self) -> Vec<Hazard> {
        let mut hazards = Vec::new();
        for cache in &self.caches {
            let (past, present) = (cache.past.to_owned(), cache.present.to_owned());
            readers::find(&self.graph, cache, &mut hazards);
            for node in &cache.between {
                hazards.push(Hazard::Between { past: past.clone(), node: node.label() });
            }
            let present_type = cache.present_info.element;
            if present_type != cache.element {
                let (past, present, past_type) = (past.clone(), present.clone(), cache.element);
                hazards.push(Hazard::TypesDiffer { past, present, past_type, present_type });
            }
            match (cache.style.growth(), &cache.writer) {
                (Some(Growth::Joined), _) => hazards.push(Hazard::Grows { past, present }),
                (Some(Growth::ByOperator), Some(writer)) => {
                    hazards.push(Hazard::OperatorWrites { past, writer: writer.label() });
                }
                _ => {}
            }
        }
        let unused = unused::caches(&self.graph, &self.caches).into_iter();
        hazards.extend(unused.map(|cache| Hazard::ResultUnused { past: cache.past.to_owned() }));
        conventions::find(self, &mut hazards);
        scales::find(&self.graph, &mut hazards);
        runtimes::find(self, &mut hazards);
        hazards
    }
}
