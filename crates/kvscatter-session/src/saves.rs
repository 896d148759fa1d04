//! Samples that are saved to files and loaded from them.

use std::io;
use std::ops::Range;
use std::path::Path;

use kvscatter_onnx::Fingerprint;

use crate::error::SessionError;
use crate::interface::{CachePort, EncoderPort, Interface, StatePort};
use crate::memory_report::bytes;
use crate::opening::check_tokens;
use crate::runner::Runner;
use crate::sample::Sample;
use crate::sample_store::SampleStore;
use crate::saved::{self, SavedFile, SavedKind, SavedSample, SavedTensor};
use crate::tensor::{Tensor, by_name};

/// Saves a sample to a file: its tokens, the rows that they need in all caches, and its states.
pub(crate) fn save(
    store: &SampleStore,
    interface: &Interface,
    model: Fingerprint,
    sample: Sample,
    path: &Path,
) -> Result<(), SessionError> {
    let tokens = store.batch().tokens(sample)?.to_vec();
    let (caches, batch_index) = (store.caches(), sample.batch_index());
    let positions = store.needed(sample)?;
    let ports = interface.caches.iter().zip(&positions);
    let saved_caches = ports.map(|(port, positions)| saved_cache(port, positions));
    let of_encoder = caches.encoder().of_sample(batch_index);
    let of_encoder = of_encoder.map(|(port, length)| saved_encoder(port, length));
    let tensors = saved_caches.chain(interface.states.iter().map(saved_state)).chain(of_encoder).collect();
    let saved = SavedSample { model, tokens, tensors };
    let values = |tensor: usize, visit: &mut dyn FnMut(&[u8]) -> io::Result<()>| match positions.get(tensor) {
        Some(positions) => caches.visit_rows(tensor, batch_index, positions.clone(), visit),
        None => match tensor.saturating_sub(positions.len()) {
            state if state < interface.states.len() => {
                visit(caches.states().sample_bytes(state, batch_index))
            }
            later => caches.encoder().visit(later - interface.states.len(), batch_index, visit),
        },
    };
    Ok(saved::write(path, &saved, &values)?)
}

/// Adds a sample that [`save`] has saved, from a session of the same model. Everything is checked before the first byte
/// of a cache changes.
pub(crate) fn load(
    store: &mut SampleStore,
    runner: &Runner,
    model: Fingerprint,
    file: &mut SavedFile,
    path: &Path,
) -> Result<Sample, SessionError> {
    let plan = plan(store, &runner.interface, file.sample(), model, path)?;
    if store.batch().free() == 0 {
        return Err(SessionError::BatchFull { batch: store.batch().size() });
    }
    file.verify()?;
    let sample = store.add()?;
    if let Err(error) = read(store, runner, file, &plan, sample) {
        // The file has changed since it was verified, or the text of the encoder does not fit beside the others. A
        // later sample sets the rows to zero.
        store.remove(sample)?;
        return Err(error);
    }
    store.keep_read(sample, &file.sample().tokens, &plan.caches, &plan.rings);
    Ok(sample)
}

/// Reads the values of a file to the batch index of a new sample.
fn read(
    store: &mut SampleStore,
    runner: &Runner,
    file: &mut SavedFile,
    plan: &Plan,
    sample: Sample,
) -> Result<(), SessionError> {
    let mut outputs = Vec::new();
    for &tensor in &plan.encoder {
        let Some(described) = file.sample().tensors.get(tensor).cloned() else { continue };
        let mut output = Tensor::zeros(described.element, &described.shape)?;
        let len = output.len();
        file.read(tensor, 0, output.bytes_mut(), std::iter::once(0..len))?;
        outputs.push((described.name, output));
    }
    if !outputs.is_empty() {
        store.set_encoder_outputs(runner, sample, &by_name(&outputs))?;
    }
    for (cache, (source, positions)) in plan.sources.iter().zip(&plan.caches).enumerate() {
        let (target, runs) = store.rows_mut(cache, sample, positions.clone());
        file.read(source.tensor, positions.start - source.first, target, runs)?;
    }
    for (state, tensor) in plan.states.iter().enumerate() {
        if let Some((target, range)) = store.state_mut(state, sample) {
            file.read(*tensor, 0, target, [range])?;
        }
    }
    Ok(())
}

/// Compares a file with the model, and determines the rows that are read.
fn plan(
    store: &SampleStore,
    interface: &Interface,
    saved: &SavedSample,
    model: Fingerprint,
    path: &Path,
) -> Result<Plan, SessionError> {
    let path = || path.to_owned();
    if saved.model != model {
        return Err(SessionError::SavedModel { path: path(), saved: saved.model, model });
    }
    let (tokens, capacity) = (saved.tokens.len(), store.batch().capacity());
    if tokens > capacity {
        return Err(SessionError::SavedTooLong { path: path(), tokens, capacity });
    }
    let vocabulary = interface.vocabulary;
    check_tokens(&saved.tokens, vocabulary, |index, token| SessionError::SavedToken {
        path: path(),
        index,
        token,
        vocabulary,
    })?;
    // A sample without tokens may have no text.
    let is_encoder = |tensor: &SavedTensor| matches!(tensor.kind, SavedKind::Encoder { .. });
    let has_text = saved.tensors.iter().any(is_encoder) || tokens > 0;
    let encoder_ports = if has_text { interface.encoder.as_slice() } else { &[] };
    let expected = interface.caches.len() + interface.states.len() + encoder_ports.len();
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
    let of_encoder =
        encoder_ports.iter().map(|port| find(&saved_encoder(port, 0)).map(|source| source.tensor));
    let encoder = of_encoder.collect::<Result<Vec<_>, _>>()?;
    let sizes = encoder.iter().filter_map(|tensor| saved.tensors.get(*tensor)).map(SavedTensor::len);
    store.caches().encoder().check_size(Some(bytes(sizes.fold(0, usize::saturating_add))))?;
    let rings = store.batch().rings();
    let mut firsts: Vec<_> = rings.iter().map(|ring| ring.first_needed(tokens)).collect();
    for (cache, source) in sources.iter().enumerate() {
        if let Some(ring) = store.caches().ring(cache)
            && let (Some(first), Some(of)) = (firsts.get_mut(ring), rings.get(ring))
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
        store.caches().ring(cache).and_then(|ring| firsts.get(ring)).map_or(0, |first| *first)..tokens
    };
    let caches = (0..sources.len()).map(positions).collect();
    Ok(Plan { sources, caches, states, encoder, rings: firsts })
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
    /// The tensor of each input from an encoder.
    encoder: Vec<usize>,
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

/// Describes an input from an encoder of this many positions.
fn saved_encoder(port: &EncoderPort, length: usize) -> SavedTensor {
    let kind = SavedKind::Encoder { axis: port.axis };
    SavedTensor { name: port.name.clone(), element: port.element, shape: port.shape(1, length), kind }
}

/// Returns the first position of a tensor of a file, if it has the layout that is expected. The number of rows and the
/// capacity of a ring may differ.
fn first_of(saved: &SavedTensor, expected: &SavedTensor) -> Option<usize> {
    let (first, axis) = match (saved.kind, expected.kind) {
        (SavedKind::State, SavedKind::State) => (0, None),
        (SavedKind::Linear { axis }, SavedKind::Linear { axis: of })
        | (SavedKind::Encoder { axis }, SavedKind::Encoder { axis: of })
            if axis == of =>
        {
            (0, Some(axis))
        }
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
        let kept_as = |kind| tensor(f16, &[1, 3, 7, 4], kind);
        for (expected, saved, first) in [
            (kept_as(linear(2)), kept_as(linear(2)), Some(0)),
            // The number of rows and the capacity of a ring may differ.
            (kept_as(linear(2)), tensor(f16, &[1, 3, 9, 4], linear(2)), Some(0)),
            (kept_as(ring(2, 8, 4, 0)), tensor(f16, &[1, 3, 5, 4], ring(2, 6, 4, 3)), Some(3)),
            (kept_as(SavedKind::State), kept_as(SavedKind::State), Some(0)),
            (kept_as(linear(2)), kept_as(linear(1)), None),
            (kept_as(linear(2)), kept_as(ring(2, 8, 4, 0)), None),
            (kept_as(linear(2)), kept_as(SavedKind::State), None),
            (kept_as(ring(2, 8, 4, 0)), kept_as(linear(2)), None),
            (kept_as(ring(2, 8, 4, 0)), kept_as(ring(1, 8, 4, 0)), None),
            (kept_as(ring(2, 8, 4, 0)), kept_as(ring(2, 8, 5, 0)), None),
            (kept_as(linear(2)), tensor(f32, &[1, 3, 7, 4], linear(2)), None),
            (kept_as(linear(2)), tensor(f16, &[1, 3, 7], linear(2)), None),
            (kept_as(linear(2)), tensor(f16, &[1, 2, 7, 4], linear(2)), None),
            (kept_as(SavedKind::State), tensor(f16, &[1, 3, 8, 4], SavedKind::State), None),
        ] {
            assert_eq!(first_of(&saved, &expected), first, "{saved} for {expected}");
        }
        let texts = [linear(2), ring(2, 6, 4, 3), SavedKind::State].map(|kind| kept_as(kind).to_string());
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
