//! Who is in a running batch, and how long each is.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::{Sample, SessionError};

/// The places of a batch.
pub(crate) struct Batch {
    capacity: usize,
    places: Vec<Option<Taken>>,
}

#[derive(Clone, Copy)]
struct Taken {
    serial: u64,
    length: usize,
}

/// Serial numbers are never used twice, so that a sample of one session is never taken for another's.
static NEXT: AtomicU64 = AtomicU64::new(0);

impl Batch {
    pub(crate) fn new(batch: usize, capacity: usize) -> Self {
        Self { capacity, places: vec![None; batch] }
    }

    pub(crate) fn batch(&self) -> usize {
        self.places.len()
    }

    pub(crate) fn capacity(&self) -> usize {
        self.capacity
    }

    /// Takes the first free place.
    pub(crate) fn add(&mut self) -> Result<Sample, SessionError> {
        let batch = self.batch();
        let (place, free) = self
            .places
            .iter_mut()
            .enumerate()
            .find(|(_, taken)| taken.is_none())
            .ok_or(SessionError::BatchFull { batch })?;
        let serial = NEXT.fetch_add(1, Ordering::Relaxed);
        *free = Some(Taken { serial, length: 0 });
        Ok(Sample { place, serial })
    }

    pub(crate) fn remove(&mut self, sample: Sample) -> Result<(), SessionError> {
        self.taken(sample)?;
        if let Some(place) = self.places.get_mut(sample.place) {
            *place = None;
        }
        Ok(())
    }

    pub(crate) fn length(&self, sample: Sample) -> Result<usize, SessionError> {
        self.taken(sample).map(|taken| taken.length)
    }

    pub(crate) fn truncate(&mut self, sample: Sample, to: usize) -> Result<(), SessionError> {
        let length = self.length(sample)?;
        if to > length {
            return Err(SessionError::TruncateBeyond { sample, to, length });
        }
        self.set_length(sample, to);
        Ok(())
    }

    /// That a sample is here and has room for this many tokens more.
    pub(crate) fn check_room(&self, sample: Sample, tokens: usize) -> Result<(), SessionError> {
        let (length, capacity) = (self.length(sample)?, self.capacity);
        if length.checked_add(tokens).is_none_or(|after| after > capacity) {
            return Err(SessionError::CapacityExceeded { sample, length, tokens, capacity });
        }
        Ok(())
    }

    /// The length of every place; 0 for those that are free.
    pub(crate) fn lengths(&self) -> Vec<usize> {
        self.places.iter().map(|taken| taken.map_or(0, |taken| taken.length)).collect()
    }

    /// After [`check_room`](Self::check_room), or shorter than before.
    pub(crate) fn set_length(&mut self, sample: Sample, length: usize) {
        if let Some(Some(taken)) = self.places.get_mut(sample.place) {
            taken.length = length;
        }
    }

    pub(crate) fn samples(&self) -> impl Iterator<Item = Sample> {
        let places = self.places.iter().enumerate();
        places.filter_map(|(place, taken)| taken.map(|taken| Sample { place, serial: taken.serial }))
    }

    fn taken(&self, sample: Sample) -> Result<Taken, SessionError> {
        let taken = self.places.get(sample.place).copied().flatten();
        taken.filter(|taken| taken.serial == sample.serial).ok_or(SessionError::NoSuchSample { sample })
    }
}

#[cfg(test)]
mod tests {
    use super::Batch;
    use crate::SessionError;

    #[test]
    fn a_place_that_is_taken_again_is_another_sample() {
        let mut places = Batch::new(2, 4);
        let (first, second) = (places.add().unwrap(), places.add().unwrap());
        assert!(matches!(places.add(), Err(SessionError::BatchFull { batch: 2 })));
        places.remove(first).unwrap();
        assert!(matches!(places.length(first), Err(SessionError::NoSuchSample { .. })));
        assert!(matches!(places.remove(first), Err(SessionError::NoSuchSample { .. })));
        let third = places.add().unwrap();
        assert_eq!((third.index(), first.index()), (0, 0));
        assert!(matches!(places.truncate(first, 0), Err(SessionError::NoSuchSample { .. })));
        assert_eq!(places.samples().collect::<Vec<_>>(), [third, second]);
    }

    #[test]
    fn a_sample_of_another_session_is_a_stranger() {
        let (mut here, mut there) = (Batch::new(1, 4), Batch::new(1, 4));
        let (sample, other) = (here.add().unwrap(), there.add().unwrap());
        assert!(matches!(here.length(other), Err(SessionError::NoSuchSample { .. })));
        assert_eq!(here.length(sample).unwrap(), 0);
    }

    #[test]
    fn a_length_is_cut_and_never_stretched() {
        let mut places = Batch::new(1, 4);
        let sample = places.add().unwrap();
        places.check_room(sample, 4).unwrap();
        places.set_length(sample, 3);
        for tokens in [2, usize::MAX] {
            let refused = places.check_room(sample, tokens);
            assert!(matches!(refused, Err(SessionError::CapacityExceeded { length: 3, capacity: 4, .. })));
        }
        assert!(matches!(
            places.truncate(sample, 4),
            Err(SessionError::TruncateBeyond { to: 4, length: 3, .. })
        ));
        places.truncate(sample, 1).unwrap();
        assert_eq!(places.lengths(), [1]);
    }
}
