//! The tensor of a cache, which clones share until one of them is written.

use std::sync::Arc;

use candle_core::{Layout, Tensor};
use kvscatter::Argument;

use crate::element::element_of_both;
use crate::scatter::WriteLayouts;
use crate::{CacheWrite, CandleError, TensorScatter, WriteAt, Writer};

/// The slots of a cache.
#[derive(Clone, Debug)]
pub(super) struct Store {
    /// Never `None`. It is an option because the caches return a reference to an `Option<Tensor>`.
    tensor: Option<Tensor>,
    writer: Writer,
    /// A reference that all clones share. A store may write while it has the only reference.
    sole: Arc<()>,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct StoreRequirements {
    pub(super) scatter: TensorScatter,
    /// The sequence dimension.
    pub(super) dim: usize,
    pub(super) capacity: usize,
    /// The number of slots, from the first, whose contents must be kept.
    pub(super) kept: usize,
}

impl Store {
    /// Creates a store from a tensor that nothing else writes.
    pub(super) fn new(tensor: Tensor, scatter: TensorScatter) -> Result<Self, CandleError> {
        let writer = Writer::new(scatter, &tensor)?;
        Ok(Self { tensor: Some(tensor), writer, sole: Arc::new(()) })
    }

    pub(super) fn tensor(&self) -> &Tensor {
        self.writer.cache()
    }

    /// Returns `true` if no clone shares the slots. This does not change during a write, which borrows the
    /// store exclusively, because cloning would have to borrow the store.
    fn is_sole(&self) -> bool {
        Arc::strong_count(&self.sole) == 1
    }

    /// Copies the slots if a clone shares them.
    pub(super) fn make_sole(&mut self) -> Result<(), CandleError> {
        if !self.is_sole() {
            *self = Self::new(self.tensor().copy()?, self.writer.scatter())?;
        }
        Ok(())
    }

    pub(super) fn as_option(store: Option<&Self>) -> &Option<Tensor> {
        store.map_or(&None, |store| &store.tensor)
    }

    pub(super) fn write<'w>(&'w mut self, update: &'w Tensor, at: WriteAt<'w>) -> CacheWrite<'w> {
        CacheWrite { writer: &mut self.writer, update, at }
    }

    /// Returns a store with the required slots that no clone shares. If another tensor is needed, the kept
    /// slots are copied to it. The contents of the cache are unchanged, even after an error.
    pub(super) fn with_room<'s>(
        store: &'s mut Option<Self>,
        needs: &StoreRequirements,
        update: &Tensor,
    ) -> Result<&'s mut Self, CandleError> {
        let fits = |store: &Self| {
            let tensor = store.tensor();
            let has_room = tensor.dims().get(needs.dim) == Some(&needs.capacity);
            let alike =
                needs.kept > 0 || (tensor.dtype() == update.dtype() && differs_in(needs.dim, tensor, update));
            has_room && alike && store.is_sole()
        };
        if let Some(last) = store
            && !fits(last)
        {
            *last = Self::reallocated(Some(last), needs, update)?;
        }
        match store {
            Some(store) => Ok(store),
            none => Ok(none.insert(Self::reallocated(None, needs, update)?)),
        }
    }

    /// Returns new slots with the same contents.
    fn reallocated(
        last: Option<&Self>,
        needs: &StoreRequirements,
        update: &Tensor,
    ) -> Result<Self, CandleError> {
        let model = last.filter(|_| needs.kept > 0).map_or(update, Self::tensor);
        let mut shape = model.dims().to_vec();
        match shape.get_mut(needs.dim) {
            Some(slots) => *slots = needs.capacity,
            None => return Err(CandleError::Dim { dim: needs.dim, rank: model.rank() }),
        }
        // An update with another type is rejected before anything is allocated for it.
        let element = element_of_both(model.dtype(), update.dtype())?;
        // candle multiplies dimensions without a check for overflow.
        if shape.iter().try_fold(1_usize, |product, dim| product.checked_mul((*dim).max(1))).is_none() {
            return Err(kvscatter::Error::TooLarge { argument: Argument::PastCache }.into());
        }
        let cache = Layout::contiguous(shape.as_slice());
        let one_row = (update.dims().get(needs.dim) > Some(&0)).then_some(0..1);
        needs.scatter.prepare(&WriteLayouts {
            element,
            cache: &cache,
            update: update.layout(),
            rows: one_row,
        })?;

        let zeros = Tensor::zeros(shape, model.dtype(), model.device())?;
        let mut other = Self::new(zeros, needs.scatter)?;
        if let Some(last) = last.filter(|_| needs.kept > 0) {
            let at = WriteAt::new(&[0_i64]).rows(0..needs.kept);
            let _ = other.writer.write(last.tensor(), at)?;
        }
        Ok(other)
    }
}

/// Returns `true` if two shapes are equal in all other dimensions.
fn differs_in(dim: usize, one: &Tensor, other: &Tensor) -> bool {
    let pairs = one.dims().iter().zip(other.dims()).enumerate();
    one.rank() == other.rank() && pairs.into_iter().all(|(index, (one, other))| index == dim || one == other)
}
