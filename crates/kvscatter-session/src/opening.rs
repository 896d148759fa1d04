//! The checks of a decoder before it runs.

use std::collections::BTreeSet;
use std::path::Path;

use kvscatter_onnx::decoder::{Decoder, Growth, Hazard, InputRole};
use kvscatter_onnx::{Model, ModelFile};

use crate::error::SessionError;
use crate::interface::{CachePort, CacheWriter, Interface, Purpose, TEXT};
use crate::tensor::check_value;

/// Returns the checked file of a decoder, with its inputs and outputs. The model itself is dropped because it
/// can be large.
pub(crate) fn read(path: &Path) -> Result<(ModelFile, Interface), SessionError> {
    let model = Model::load(path)?;
    Ok((model.file()?, interface(&model)?))
}

/// Returns the inputs and outputs of a decoder that a session or a generator may run.
pub(crate) fn interface(model: &Model) -> Result<Interface, SessionError> {
    let graph = model.graph()?;
    let decoder = Decoder::from_graph(&graph)?;
    check_caches_known(&decoder)?;
    check_embeddings(&decoder)?;
    check_readers(&decoder)?;
    Interface::new(model, &decoder)
}

impl Interface {
    /// Determines the inputs and outputs of a decoder, if one operator writes all caches in place.
    ///
    /// # Errors
    /// - Returns [`SessionError::Scattered`] for a cache that a scatter writes at positions that all samples share.
    /// - Returns [`SessionError::NotScattered`] for a cache whose writer is not known.
    /// - Returns [`SessionError::NotStatic`] or [`SessionError::MixedWriters`] for caches that grow or are written by
    ///   different operators.
    /// - Returns the errors of [`new`](Self::new).
    pub fn in_place(model: &Model, decoder: &Decoder<'_>) -> Result<Self, SessionError> {
        check_caches_known(decoder)?;
        let interface = Self::new(model, decoder)?;
        check_in_place(&interface)?;
        Ok(interface)
    }
}

/// Checks that one operator writes all caches in place.
fn check_in_place(interface: &Interface) -> Result<(), SessionError> {
    let find = |growth| interface.caches.iter().find(|cache| cache.growth == growth);
    if let Some(cache) = find(Some(Growth::Joined)) {
        return Err(SessionError::NotStatic { input: cache.past.clone(), growth: Growth::Joined });
    }
    match (interface.writer(), find(None)) {
        (CacheWriter::GroupQueryAttention, Some(cache)) => {
            Err(SessionError::MixedWriters { input: cache.past.clone() })
        }
        _ => Ok(()),
    }
}

/// Checks that known operators write all caches of a decoder.
fn check_caches_known(decoder: &Decoder<'_>) -> Result<(), SessionError> {
    // `lower` makes scatters that write other slots for each sample.
    let are_shared = decoder.input(InputRole::SharedPositions).is_some();
    for cache in decoder.caches.iter().filter(|cache| are_shared && cache.is_scattered()) {
        if let Some(writer) = cache.writer {
            let (input, op_type) = (cache.past.to_owned(), writer.op_type().to_owned());
            return Err(SessionError::Scattered { input, op_type });
        }
    }
    if let Some((past, why)) = decoder.unknown() {
        return Err(SessionError::NotScattered { input: past.to_owned(), why: why.to_string() });
    }
    Ok(())
}

/// Checks that a decoder takes token ids. A session has no embedding table.
fn check_embeddings(decoder: &Decoder<'_>) -> Result<(), SessionError> {
    match decoder.input(InputRole::Embeddings) {
        Some(input) => Err(SessionError::Embeddings { input: input.name.to_owned() }),
        None => Ok(()),
    }
}

/// Checks that only the writer of a cache that is written in place reads the cache's past. An engine does not
/// know that past and present are one buffer, so it may run another reader before or after the write.
fn check_readers(decoder: &Decoder<'_>) -> Result<(), SessionError> {
    let caches = decoder.caches.iter().filter(|cache| cache.style.growth() != Some(Growth::Joined));
    let in_place: BTreeSet<_> = caches.map(|cache| cache.past).collect();
    let reader = decoder.hazards().into_iter().find_map(|hazard| match hazard {
        Hazard::PastReadElsewhere { past, reader } | Hazard::WrittenTwice { past, second: reader, .. } => {
            in_place.contains(past.as_str()).then_some((past, reader))
        }
        _ => None,
    });
    match reader {
        Some((input, reader)) => Err(SessionError::PastRead { input, reader: reader.to_string() }),
        None => Ok(()),
    }
}

/// Checks that one operator writes all caches in place, that they have rows of whole bytes, and that an input
/// determines the slots of each sample.
pub(crate) fn check_writers(interface: &Interface) -> Result<(), SessionError> {
    check_in_place(interface)?;
    let has_whole_rows = |cache: &CachePort| cache.element.bits().is_some_and(|bits| bits >= 8);
    if let Some(cache) = interface.caches.iter().find(|cache| !has_whole_rows(cache)) {
        return Err(SessionError::CacheElement { input: cache.past.clone(), element: cache.element });
    }
    let takes = |purpose| interface.takes(purpose);
    match interface.writer() {
        CacheWriter::TensorScatter if !takes(Purpose::WriteIndices) => Err(SessionError::NoWriteIndices),
        CacheWriter::GroupQueryAttention if !takes(Purpose::LengthMask) && !takes(Purpose::SeqlensK) => {
            Err(SessionError::NoLengths)
        }
        _ => Ok(()),
    }
}

/// Checks that the types of inputs can represent every value that the session will feed. Tokens are checked
/// by [`KvSession::check_known`].
pub(crate) fn check_types(interface: &Interface, capacity: usize) -> Result<(), SessionError> {
    let capacity = i64::try_from(capacity).unwrap_or(i64::MAX);
    interface.feeds.iter().try_for_each(|feed| {
        let most = match feed.purpose {
            Purpose::Tokens | Purpose::Embeddings { .. } => 0,
            Purpose::Unread => return Ok(()),
            Purpose::BlockIds => TEXT,
            Purpose::Mask | Purpose::LengthMask | Purpose::Condition(_) => 1,
            Purpose::Positions
            | Purpose::SharedPositions
            | Purpose::WriteIndices
            | Purpose::NonpadKvSeqlen
            | Purpose::SeqlensK
            | Purpose::TotalLength => capacity,
        };
        check_value(feed.element, most)
    })
}

/// Checks that the tokens are in the vocabulary.
pub(crate) fn check_tokens(
    tokens: &[i64],
    vocabulary: Option<usize>,
    error: impl Fn(usize, i64) -> SessionError,
) -> Result<(), SessionError> {
    let is_known = |token: i64| {
        usize::try_from(token).is_ok_and(|token| vocabulary.is_none_or(|vocabulary| token < vocabulary))
    };
    match tokens.iter().enumerate().find(|(_, token)| !is_known(**token)) {
        Some((index, &token)) => Err(error(index, token)),
        None => Ok(()),
    }
}
