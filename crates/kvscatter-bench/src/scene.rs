//! A case in memory.

use crate::engine::{Call, Tensor};
use crate::memory::{Region, available, on_huge_pages};
use crate::paint::paint;
use crate::{Case, Error, Form, Pages};

/// The buffers of a case, painted, and the positions of the step they are at.
///
/// A hot case has one cache; a cold one has the keys and the values of every layer, and one update for each of the
/// two, since a layer's keys and values are new when they are written.
#[derive(Debug)]
pub struct Scene {
    case: Case,
    caches: Vec<Region>,
    updates: Vec<Region>,
    /// In functional form.
    present: Option<Region>,
    starts: Vec<i64>,
}

impl Scene {
    /// Maps, touches and paints every buffer.
    ///
    /// # Errors
    /// [`Error::Memory`] before anything is allocated; [`Error::Pages`] if 2 MiB pages did not come.
    pub fn new(case: &Case) -> Result<Self, Error> {
        let (pages, name) = (case.parameters().pages, case.parameters().name.clone());
        let caches = case.parameters().layers * case.caches_per_call();
        let presents = usize::from(case.parameters().form == Form::Functional);
        let needed = Region::size(case.cache_bytes()).saturating_mul((caches + presents) as u64);
        let needed = needed.saturating_add(Region::size(case.update_bytes()) * case.caches_per_call() as u64);
        let available = available()?;
        if needed > available {
            return Err(Error::Memory { name, needed, available });
        }
        let before = on_huge_pages()?;
        let some = |count, len| (0..count).map(|_| Region::new(len, pages)).collect::<Result<Vec<_>, _>>();
        let mut scene = Self {
            case: case.clone(),
            caches: some(caches, case.cache_bytes())?,
            updates: some(case.caches_per_call(), case.update_bytes())?,
            present: some(presents, case.cache_bytes())?.pop(),
            starts: case.starts_at(0),
        };
        let given = on_huge_pages()?.saturating_sub(before);
        if pages == Pages::Huge && given < needed / 10 * 9 {
            return Err(Error::Pages { name, given, needed });
        }
        scene.repaint();
        Ok(scene)
    }

    /// The case.
    #[must_use]
    pub fn case(&self) -> &Case {
        &self.case
    }

    /// The first slot of every sample, in this step.
    #[must_use]
    pub fn starts(&self) -> &[i64] {
        &self.starts
    }

    /// Goes to another step: other positions.
    pub fn go_to(&mut self, step: usize) {
        self.starts = self.case.starts_at(step);
    }

    /// The buffers of the call that writes a layer.
    ///
    /// # Panics
    /// If there is no such layer.
    pub fn call(&mut self, layer: usize) -> Call<'_> {
        let pair = self.case.caches_per_call();
        let mut present = self.present.as_deref_mut();
        let mut tensors = self.caches[layer * pair..]
            .iter_mut()
            .zip(&self.updates)
            .map(|(cache, update)| Tensor { cache, update, present: present.take().unwrap_or_default() });
        #[expect(clippy::expect_used, reason = "documented: the layer is there")]
        let keys = tensors.next().expect("a layer of the case");
        Call { layer, starts: &self.starts, keys, values: tensors.next() }
    }

    /// Paints everything as it was in the beginning.
    fn repaint(&mut self) {
        for (index, region) in self.caches.iter_mut().chain(&mut self.updates).enumerate() {
            paint(region, index as u64);
        }
        if let Some(present) = &mut self.present {
            present.fill(0);
        }
    }
}
