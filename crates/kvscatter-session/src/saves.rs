//! Samples that are saved to files and loaded from them.

use std::io;
use std::ops::Range;
use std::path::Path;

use kvscatter_onnx::Fingerprint;

use crate::opening::check_tokens;
use crate::saved::{self, SavedFile, SavedKind, SavedSample, SavedTensor};
use crate::{CachePort, KvSession, Sample, SessionError, StatePort};

impl KvSession {
    /// Returns the fingerprint of the model, which identifies what its caches mean.
    ///
    /// The first call reads all weights, and later calls return the same value.
    ///
    /// # Errors
    /// Returns [`SessionError::Onnx`] if the model's files cannot be read, or have changed since the session was
    /// opened.
    pub fn fingerprint(&self) -> Result<Fingerprint, SessionError> {
        Ok(self.model.fingerprint()?)
    }

    /// Saves a sample to a file: its tokens, the rows that they need in all caches, and its states.
    ///
    /// The tokens and the fingerprint identify the rows, because nothing else determines them. A session opens no model
    /// that takes embeddings, images or other unknown inputs, and an initializer that is also an input keeps the value
    /// of the file, which is a part of the fingerprint.
    ///
    /// The file is a safetensors file. It appears whole, or the old file stays, also if the process is killed. It
    /// replaces only a saved sample. Every byte is covered by a checksum.
    ///
    /// # Errors
    /// - Returns [`SessionError::NoSuchSample`] if the sample is not in this batch.
    /// - Returns [`SessionError::CacheLost`] if an earlier run has lost a cache.
    /// - Returns [`SessionError::Saved`] if the file cannot be written, or has other contents than a saved sample.
    /// - Returns the errors of [`fingerprint`](Self::fingerprint).
    pub fn save(&self, sample: Sample, path: impl AsRef<Path>) -> Result<(), SessionError> {
        let tokens = self.tokens(sample)?.to_vec();
        self.caches.check_lost(&self.runner)?;
        let model = self.fingerprint()?;
        let batch_index = sample.batch_index;
        let positions = self.caches.needed(batch_index, tokens.len(), self.samples.rings());
        let ports = self.runner.interface.caches.iter().zip(&positions);
        let caches = ports.map(|(port, positions)| saved_cache(port, positions));
        let tensors = caches.chain(self.runner.interface.states.iter().map(saved_state)).collect();
        let saved = SavedSample { model, tokens, tensors };
        let values =
            |tensor: usize, visit: &mut dyn FnMut(&[u8]) -> io::Result<()>| match positions.get(tensor) {
                Some(positions) => self.caches.visit_rows(tensor, batch_index, positions.clone(), visit),
                None => visit(self.caches.states.of(tensor.saturating_sub(positions.len()), batch_index)),
            };
        Ok(saved::write(path.as_ref(), &saved, &values)?)
    }

    /// Adds a sample that [`save`](Self::save) has saved, from a session of the same model.
    ///
    /// The batch and the capacities may differ. A ring can have another capacity, and must have the same window.
    /// Everything is checked before the first byte of a cache changes.
    ///
    /// # Errors
    /// - Returns [`SessionError::Saved`] if the file is damaged, or not a saved sample.
    /// - Returns [`SessionError::SavedModel`] if the sample was saved with another model.
    /// - Returns [`SessionError::SavedLayout`] if a cache or state has another type, shape or window.
    /// - Returns [`SessionError::SavedTooLong`] if the sample has more tokens than fit.
    /// - Returns [`SessionError::SavedToken`] if the vocabulary does not contain a token.
    /// - Returns [`SessionError::SavedRows`] if the file has fewer rows of a ring than its window needs.
    /// - Returns [`SessionError::BatchFull`] if no batch index is free.
    /// - Returns [`SessionError::CacheLost`] if an earlier run has lost a cache.
    /// - Returns the errors of [`fingerprint`](Self::fingerprint).
    pub fn load(&mut self, path: impl AsRef<Path>) -> Result<Sample, SessionError> {
        let path = path.as_ref();
        self.caches.check_lost(&self.runner)?;
        let mut file = SavedFile::open(path)?;
        let model = self.fingerprint()?;
        let plan = self.plan(file.sample(), model, path)?;
        if self.samples.free() == 0 {
            return Err(SessionError::BatchFull { batch: self.batch() });
        }
        file.verify()?;
        let sample = self.samples.add()?;
        if let Err(error) = self.read(&mut file, &plan, sample.batch_index) {
            // The file has changed since it was verified. A later sample sets the rows to zero.
            self.samples.remove(sample)?;
            return Err(error);
        }
        let tokens = &file.sample().tokens;
        self.caches.clean(sample.batch_index, tokens.len(), &plan.caches);
        for (ring, first) in self.samples.rings_mut().iter_mut().zip(&plan.rings) {
            ring.set_high(sample.batch_index, first + ring.capacity());
        }
        self.samples.extend(sample, tokens);
        Ok(sample)
    }

    /// Reads the values of a file to the batch index of a new sample.
    fn read(&mut self, file: &mut SavedFile, plan: &Plan, batch_index: usize) -> Result<(), SessionError> {
        self.caches.record(batch_index, file.sample().tokens.len());
        for (cache, (source, positions)) in plan.sources.iter().zip(&plan.caches).enumerate() {
            let (target, runs) = self.caches.rows_mut(cache, batch_index, positions.clone());
            file.read(source.tensor, positions.start - source.first, target, runs)?;
        }
        for (state, tensor) in plan.states.iter().enumerate() {
            if let Some((target, range)) = self.caches.states.of_mut(state, batch_index) {
                file.read(*tensor, 0, target, [range])?;
            }
        }
        Ok(())
    }

    /// Compares a file with the model, and determines the rows that are read.
    fn plan(&self, saved: &SavedSample, model: Fingerprint, path: &Path) -> Result<Plan, SessionError> {
        let path = || path.to_owned();
        if saved.model != model {
            return Err(SessionError::SavedModel { path: path(), saved: saved.model, model });
        }
        let (tokens, capacity) = (saved.tokens.len(), self.capacity());
        if tokens > capacity {
            return Err(SessionError::SavedTooLong { path: path(), tokens, capacity });
        }
        let vocabulary = self.vocabulary();
        check_tokens(&saved.tokens, vocabulary, |index, token| SessionError::SavedToken {
            path: path(),
            index,
            token,
            vocabulary,
        })?;
        let interface = &self.runner.interface;
        let expected = interface.caches.len() + interface.states.len();
        if saved.tensors.len() != expected {
            let got = saved.tensors.len();
            return Err(SessionError::SavedTensors { path: path(), got, expected });
        }
        let find = |port: &SavedTensor| {
            let tensor = saved.tensors.iter().position(|tensor| tensor.name == port.name);
            let of_file = tensor.and_then(|tensor| saved.tensors.get(tensor));
            let first = of_file.and_then(|tensor| first_of(tensor, port));
            tensor.zip(first).map(|(tensor, first)| Source { tensor, first }).ok_or_else(|| {
                SessionError::SavedLayout {
                    path: path(),
                    name: port.name.clone(),
                    saved: of_file.map(ToString::to_string),
                    expected: port.to_string(),
                }
            })
        };
        let caches = interface.caches.iter().map(|port| find(&saved_cache(port, &(0..tokens))));
        let sources = caches.collect::<Result<Vec<_>, _>>()?;
        let states = interface.states.iter().map(|port| find(&saved_state(port)).map(|source| source.tensor));
        let states = states.collect::<Result<Vec<_>, _>>()?;
        let mut rings: Vec<_> = self.samples.rings().iter().map(|ring| ring.first_needed(tokens)).collect();
        for (cache, source) in sources.iter().enumerate() {
            if let Some(ring) = self.caches.ring(cache)
                && let (Some(first), Some(of)) = (rings.get_mut(ring), self.samples.rings().get(ring))
            {
                *first = source.first.max(*first);
                let seen = of.first_seen(tokens);
                if *first > seen {
                    let name = interface.caches.get(cache).map(|port| port.past.clone()).unwrap_or_default();
                    let (rows, needed) = (tokens - *first, tokens - seen);
                    return Err(SessionError::SavedRows { path: path(), name, rows, needed });
                }
            }
        }
        let positions = |cache| {
            self.caches.ring(cache).and_then(|ring| rings.get(ring)).map_or(0, |first| *first)..tokens
        };
        let caches = (0..sources.len()).map(positions).collect();
        Ok(Plan { sources, caches, states, rings })
    }
}

/// Returns the tokens of a saved sample, without its values.
///
/// # Errors
/// Returns [`SessionError::Saved`] if the file is damaged, or not a saved sample.
pub fn saved_tokens(path: &Path) -> Result<Vec<i64>, SessionError> {
    Ok(SavedFile::open(path)?.sample().tokens.clone())
}

/// What is read from a file.
struct Plan {
    /// The tensor of each cache.
    sources: Vec<Source>,
    /// The positions of the rows of each cache.
    caches: Vec<Range<usize>>,
    /// The tensor of each state.
    states: Vec<usize>,
    /// The first position that each ring gets.
    rings: Vec<usize>,
}

/// A tensor of a file.
struct Source {
    tensor: usize,
    /// The position of its first row.
    first: usize,
}

fn saved_cache(port: &CachePort, positions: &Range<usize>) -> SavedTensor {
    let kind = match port.ring {
        None => SavedKind::Linear { axis: port.axis },
        Some(ring) => SavedKind::Ring {
            axis: port.axis,
            capacity: ring.capacity,
            window: ring.window,
            first: positions.start,
        },
    };
    let shape = port.shape_of_slots(1, positions.len());
    SavedTensor { name: port.past.clone(), element: port.element, shape, kind }
}

fn saved_state(port: &StatePort) -> SavedTensor {
    SavedTensor {
        name: port.past.clone(),
        element: port.element,
        shape: port.shape(1),
        kind: SavedKind::State,
    }
}

/// Returns the first position of a tensor of a file, if it has the layout that is expected. The number of rows and the
/// capacity of a ring may differ.
fn first_of(saved: &SavedTensor, expected: &SavedTensor) -> Option<usize> {
    let (first, axis) = match (saved.kind, expected.kind) {
        (SavedKind::State, SavedKind::State) => (0, None),
        (SavedKind::Linear { axis }, SavedKind::Linear { axis: of }) if axis == of => (0, Some(axis)),
        (SavedKind::Ring { axis, window, first, .. }, SavedKind::Ring { axis: of, window: wanted, .. })
            if axis == of && window == wanted =>
        {
            (first, Some(axis))
        }
        _ => return None,
    };
    let same = |(index, (got, wanted)): (usize, (&usize, &usize))| Some(index) == axis || got == wanted;
    let fits = saved.element == expected.element
        && saved.shape.len() == expected.shape.len()
        && saved.shape.iter().zip(&expected.shape).enumerate().all(same);
    fits.then_some(first)
}

#[cfg(test)]
mod tests {
    use kvscatter::ElementType;

    use super::first_of;
    use crate::saved::{SavedKind, SavedTensor};

    #[test]
    fn a_tensor_with_another_layout_is_not_taken() {
        let tensor = |element, shape: &[usize], kind| SavedTensor {
            name: "past".to_owned(),
            element,
            shape: shape.to_vec(),
            kind,
        };
        let (f16, f32) = (ElementType::Float16, ElementType::Float32);
        let ring = |axis, capacity, window, first| SavedKind::Ring { axis, capacity, window, first };
        let linear = |axis| SavedKind::Linear { axis };
        let of = |kind| tensor(f16, &[1, 3, 7, 4], kind);
        for (expected, saved, first) in [
            (of(linear(2)), of(linear(2)), Some(0)),
            // The number of rows and the capacity of a ring may differ.
            (of(linear(2)), tensor(f16, &[1, 3, 9, 4], linear(2)), Some(0)),
            (of(ring(2, 8, 4, 0)), tensor(f16, &[1, 3, 5, 4], ring(2, 6, 4, 3)), Some(3)),
            (of(SavedKind::State), of(SavedKind::State), Some(0)),
            (of(linear(2)), of(linear(1)), None),
            (of(linear(2)), of(ring(2, 8, 4, 0)), None),
            (of(linear(2)), of(SavedKind::State), None),
            (of(ring(2, 8, 4, 0)), of(linear(2)), None),
            (of(ring(2, 8, 4, 0)), of(ring(1, 8, 4, 0)), None),
            (of(ring(2, 8, 4, 0)), of(ring(2, 8, 5, 0)), None),
            (of(linear(2)), tensor(f32, &[1, 3, 7, 4], linear(2)), None),
            (of(linear(2)), tensor(f16, &[1, 3, 7], linear(2)), None),
            (of(linear(2)), tensor(f16, &[1, 2, 7, 4], linear(2)), None),
            (of(SavedKind::State), tensor(f16, &[1, 3, 8, 4], SavedKind::State), None),
        ] {
            assert_eq!(first_of(&saved, &expected), first, "{saved} for {expected}");
        }
        let texts = [linear(2), ring(2, 6, 4, 3), SavedKind::State].map(|kind| of(kind).to_string());
        assert_eq!(
            texts,
            [
                "float16 [1, 3, 7, 4], linear along dimension 2",
                "float16 [1, 3, 7, 4], a ring along dimension 2 for a window of 4",
                "float16 [1, 3, 7, 4], a state",
            ]
        );
    }
}
