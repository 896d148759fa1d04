//! The memory that caches take.

use kvscatter::ElementType;

use crate::error::SessionError;
use crate::interface::Interface;

/// The number of bytes that a sample needs besides its caches, for its state and its part of the inputs of a
/// step.
const SAMPLE_BYTES: u64 = 128;

/// The memory that a session's caches take, in bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemoryReport {
    /// The size of every cache, in the order of the model's inputs.
    pub caches: Vec<CacheSize>,
    /// The number of bytes of the caches of each layer, by the index of the layer.
    pub layers: Vec<u64>,
    /// The number of bytes that one token of one sample takes in all caches. In a ring, later tokens take the place of
    /// earlier ones.
    pub per_token: u64,
    /// The number of caches that are rings.
    pub rings: usize,
    /// The number of bytes of all states together, such as those of convolutions. A session has them twice.
    pub states: u64,
    /// The number of bytes allocated for copies of rows and states, with which samples go back. In models without
    /// states, it is 0 until a step overwrites rows of a ring that its slack does not cover.
    pub undo: u64,
    /// The number of bytes of the inputs from an encoder, or 0 before the first text.
    pub encoder: u64,
    /// The number of bytes of all caches together.
    pub total: u64,
}

/// The memory that one cache takes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CacheSize {
    /// The name of the model's input for the cache.
    pub past: String,
    /// The element type, which determines the width of an element.
    pub element: ElementType,
    /// The shape, with the batch and the capacity of the session.
    pub shape: Vec<usize>,
    /// The index of the layer, counted from 0. It is an index into [`MemoryReport::layers`].
    pub layer: usize,
    /// The number of bytes of the whole cache, for all samples and slots.
    pub bytes: u64,
}

impl MemoryReport {
    /// Creates the report on caches of this batch and capacity. Caches of these sizes must have been
    /// allocated or [checked](Self::check).
    pub(crate) fn new(interface: &Interface, batch: usize, capacity: usize) -> Self {
        let rings = interface.rings().count();
        let states = interface.states.iter().map(|port| port.element.storage_len(&port.shape(batch)));
        let states = bytes(states.map(Option::unwrap_or_default).fold(0, usize::saturating_add));
        let (caches, layers) = (Vec::new(), Vec::new());
        let mut report = Self { caches, layers, per_token: 0, rings, states, undo: 0, encoder: 0, total: 0 };
        for port in &interface.caches {
            let len = |shape: &[usize]| bytes(port.element.storage_len(shape).unwrap_or(usize::MAX));
            let of_cache = len(&port.shape(batch, capacity));
            report.layers.resize(report.layers.len().max(port.layer + 1), 0);
            if let Some(layer) = report.layers.get_mut(port.layer) {
                *layer = layer.saturating_add(of_cache);
            }
            report.per_token = report.per_token.saturating_add(len(&port.shape_of_slots(1, 1)));
            report.total = report.total.saturating_add(of_cache);
            report.caches.push(CacheSize {
                past: port.past.clone(),
                element: port.element,
                shape: port.shape(batch, capacity),
                layer: port.layer,
                bytes: of_cache,
            });
        }
        report
    }

    /// Checks that the caches and states, and [`SAMPLE_BYTES`] for each sample, are within a limit.
    pub(crate) fn check(
        interface: &Interface,
        batch: usize,
        capacity: usize,
        limit: u64,
    ) -> Result<(), SessionError> {
        let mut needed = Some(0_u64);
        let caches = interface.caches.iter();
        let caches = caches.map(|port| port.element.storage_len(&port.shape(batch, capacity)));
        let states = interface.states.iter().map(|port| port.element.storage_len(&port.shape(batch)));
        for len in caches.chain(states.flat_map(|len| [len; 2])) {
            needed = needed.zip(len).and_then(|(needed, len)| needed.checked_add(bytes(len)));
        }
        // A model may declare a batch of any size with caches of zero bytes, so the samples count as well.
        let samples = bytes(batch).checked_mul(SAMPLE_BYTES);
        let needed = needed.zip(samples).map(|(needed, samples)| needed.max(samples));
        match needed.filter(|needed| *needed <= limit) {
            Some(_) => Ok(()),
            None => Err(SessionError::MemoryLimit { needed, limit }),
        }
    }
}

/// Converts a number of bytes to the type of limits.
pub(crate) fn bytes(count: usize) -> u64 {
    u64::try_from(count).unwrap_or(u64::MAX)
}
