//! A case in memory.

use std::fmt;
use std::hint::black_box;

use crate::call::{Buffers, Call};
use crate::case::{Case, Form, Pages};
use crate::error::BenchError;
use crate::machine::Machine;
use crate::memory::{Region, available, on_huge_pages};
use crate::paint::paint;
use crate::raw::checksum;

/// The painted buffers of a case, and the positions of the current step.
///
/// A hot case has one cache. A cold case has a key and a value cache in every layer, and one update for each
/// of the two kinds. All layers use the same updates, because the updates of a decoder are warm when they are
/// written.
#[derive(Debug)]
pub struct Scene {
    case: Case,
    caches: Vec<Region>,
    updates: Vec<Region>,
    /// The present in functional form, or `None` in place.
    present: Option<Region>,
    /// A buffer of the size of the last-level CPU cache, in flushed cases. `None` in other cases.
    sweep: Option<Region>,
    starts: Vec<i64>,
}

/// One cache of a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum KeysOrValues {
    /// The keys, or the only cache.
    Keys,
    /// The values.
    Values,
}

/// The maximum number of bytes that are swept. A larger last-level CPU cache is swept only in part.
const MOST_SWEPT: usize = 512 << 20;

impl Scene {
    /// Allocates, touches and paints every buffer.
    ///
    /// # Errors
    /// - Returns [`BenchError::Memory`] if the buffers do not fit into memory. Nothing is allocated then.
    /// - Returns [`BenchError::Pages`] if the system does not provide 2 MiB pages.
    pub fn new(case: &Case) -> Result<Self, BenchError> {
        let (pages, name) = (case.parameters().pages, case.parameters().name.clone());
        let caches = case.parameters().layers * case.caches_per_call();
        let presents = usize::from(case.parameters().form == Form::Functional);
        let is_flushed = case.parameters().temperature.is_flushed();
        let swept = is_flushed.then(|| swept_bytes(&name)).transpose()?;
        let of_caches = Region::size(case.cache_bytes()).saturating_mul((caches + presents) as u64);
        let of_updates = Region::size(case.update_bytes()).saturating_mul(case.caches_per_call() as u64);
        let painted = of_caches.saturating_add(of_updates);
        // While an engine is checked, the expected result is in memory as well.
        let needed = painted
            .saturating_add(Region::size(case.cache_bytes()))
            .saturating_add(Region::size(case.update_bytes()))
            .saturating_add(swept.map_or(0, Region::size));
        let available = available()?;
        if needed > available {
            return Err(BenchError::Memory { name, needed, available });
        }
        let sweep = swept.map(|bytes| Region::new(bytes, Pages::Huge)).transpose()?;
        let some = |count, len| (0..count).map(|_| Region::new(len, pages)).collect::<Result<Vec<_>, _>>();
        let mut scene = Self {
            case: case.clone(),
            caches: some(caches, case.cache_bytes())?,
            updates: some(case.caches_per_call(), case.update_bytes())?,
            present: some(presents, case.cache_bytes())?.pop(),
            sweep,
            starts: case.starts_at(0),
        };
        if pages == Pages::Huge {
            let given = on_huge_pages(scene.caches.iter().chain(&scene.updates).chain(&scene.present))?;
            if given < painted / 10 * 9 {
                return Err(BenchError::Pages { name, given, needed: painted });
            }
        }
        for (index, region) in scene.caches.iter_mut().enumerate() {
            paint(region, index as u64);
        }
        scene.repaint();
        Ok(scene)
    }

    /// Returns the case that the buffers belong to.
    #[must_use]
    pub fn case(&self) -> &Case {
        &self.case
    }

    /// Returns the first slot of every sample in the current step.
    #[must_use]
    pub fn starts(&self) -> &[i64] {
        &self.starts
    }

    /// Moves to another step, which has other positions.
    pub fn go_to(&mut self, step: usize) {
        self.starts = self.case.starts_at(step);
    }

    /// Returns the buffers of the call that writes a layer.
    ///
    /// # Panics
    /// Panics if there is no such layer.
    pub fn call(&mut self, layer: usize) -> Call<'_> {
        let pair = self.case.caches_per_call();
        let mut present = self.present.as_deref_mut();
        let mut buffers = self.caches[layer * pair..]
            .iter_mut()
            .zip(&self.updates)
            .map(|(cache, update)| Buffers { cache, update, present: present.take().unwrap_or_default() });
        #[expect(clippy::expect_used, reason = "the documented panic")]
        let keys = buffers.next().expect("a layer of the case");
        Call { layer, starts: &self.starts, keys, values: buffers.next() }
    }

    /// Paints the first layer, the updates and the present as in a new scene.
    pub(crate) fn repaint(&mut self) {
        for side in KeysOrValues::of(&self.case) {
            paint(&mut self.caches[side as usize], side.cache_seed());
            paint(&mut self.updates[side as usize], side.update_seed());
        }
        if let Some(present) = &mut self.present {
            present.fill(0);
        }
    }

    /// Returns the painted contents of the cache and the update of one side of the first layer.
    pub(crate) fn painted(&self, side: KeysOrValues) -> [Vec<u8>; 2] {
        let seeds =
            [(self.case.cache_bytes(), side.cache_seed()), (self.case.update_bytes(), side.update_seed())];
        seeds.map(|(len, seed)| {
            let mut buffer = vec![0; len];
            paint(&mut buffer, seed);
            buffer
        })
    }

    /// Evicts the contents of the CPU caches, in flushed cases.
    pub(crate) fn sweep(&self) {
        if let Some(sweep) = &self.sweep {
            black_box(checksum(sweep));
        }
    }

    /// Reads the updates, because in a decoder a projection has just written them.
    pub(crate) fn touch_updates(&self) {
        for update in &self.updates {
            black_box(checksum(update));
        }
    }
}

impl KeysOrValues {
    /// Returns the sides that one call writes.
    pub(crate) fn of(case: &Case) -> impl Iterator<Item = Self> + use<> {
        [Self::Keys, Self::Values].into_iter().take(case.caches_per_call())
    }

    fn cache_seed(self) -> u64 {
        self as u64
    }

    fn update_seed(self) -> u64 {
        const BEHIND_ALL_CACHES: u64 = 1 << 19;
        BEHIND_ALL_CACHES + self as u64
    }
}

impl fmt::Display for KeysOrValues {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Keys => "keys",
            Self::Values => "values",
        })
    }
}

/// Returns the number of bytes that must be read to sweep the last-level CPU cache.
fn swept_bytes(name: &str) -> Result<usize, BenchError> {
    let bytes = Machine::read().last_level_cache().ok_or_else(|| BenchError::Case {
        name: name.to_owned(),
        reason: "temperature flushed: the system does not report the size of its last-level cache".to_owned(),
    })?;
    Ok(bytes.min(MOST_SWEPT))
}
