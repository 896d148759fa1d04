//! Generates inputs for a whole decoder that are consistent with one another and with the given ones.

use std::collections::{BTreeMap, BTreeSet};

use kvscatter_onnx::decoder::{Decoder, InputRole};
use kvscatter_onnx::internal::{DEFAULT_MEMORY_LIMIT, random_inputs};
use kvscatter_onnx::{Data, EvalError, Graph, Model, OnnxError, Tensor, ValueInfo};
use kvscatter_session::{Feed, Interface, Purpose};

use crate::error::CommandError;

/// The sizes of one step of every sample.
struct StepSizes {
    batch: usize,
    /// The tokens of each sample.
    width: usize,
    /// The slots of each static cache, or the length of each growing cache.
    slots: usize,
    grows: bool,
}

/// Returns values for every input that is not given. Tokens are in the vocabulary, and caches have any
/// numbers. Positions, masks, indices and lengths belong to a step that fits. Equal arguments give equal
/// values.
pub(super) fn missing_inputs(
    model: &Model,
    graph: &Graph<'_>,
    given: &BTreeMap<&str, &Tensor>,
    dims: &BTreeMap<String, usize>,
    seed: u64,
) -> Result<BTreeMap<String, Tensor>, CommandError> {
    let mut decoder = Decoder::from_graph(graph).map_err(|cause| {
        let names = graph.input_names().filter(|name| graph.is_input(name));
        let missing = names.filter(|name| !given.contains_key(name)).map(|name| format!("{name:?}"));
        CommandError::InputsNeeded { missing: missing.collect(), cause }
    })?;
    let inputs: Vec<ValueInfo<'_>> = decoder.inputs.iter().map(|input| input.value.clone()).collect();
    let is_free = |role| matches!(role, InputRole::Unread | InputRole::Other);
    decoder.inputs.retain(|input| !is_free(input.role) || !given.contains_key(input.value.name));
    let interface = Interface::new(model, &decoder)?;
    let is_sized =
        |role: InputRole| matches!(role, InputRole::Past(_) | InputRole::State(_)) || role.is_tokens();
    let sized = decoder.inputs.iter().filter(|input| is_sized(input.role));
    let sized: BTreeSet<_> = sized.map(|input| input.value.name).collect();
    let is_sized = |input: &ValueInfo<'_>| sized.contains(input.name);
    let shapes =
        random_inputs::missing_shapes(&inputs, is_sized, given, dims).map_err(CommandError::of_sizes)?;
    let sizes = StepSizes::new(&interface, &shapes, given);
    let caches = interface.caches.iter().map(|cache| (cache.past.as_str(), cache.element));
    let states = decoder.states.iter().map(|state| (state.past, state.element));
    let caches = caches.chain(states).filter_map(|(past, element)| {
        let (name, shape) = shapes.get_key_value(past)?;
        Some((*name, (element, shape.clone())))
    });
    let mut made = random_inputs::tensors(&caches.collect(), seed, DEFAULT_MEMORY_LIMIT)?;
    sizes.check_memory()?;
    let feed = Feed::next(&starts(&sizes, &interface, given, seed)?, sizes.width);
    let last =
        interface.vocabulary.map_or(0, |size| i64::try_from(size).unwrap_or(i64::MAX).saturating_sub(1));
    let tokens = random_inputs::int64s(&(0..=last.max(0)), sizes.batch.saturating_mul(sizes.width), seed);
    let token = |sample: usize, position: usize| {
        let before = feed.samples.get(sample).map_or(0, |sample| sample.start);
        let column = position.saturating_sub(before);
        let index = sample.saturating_mul(sizes.width).saturating_add(column);
        tokens.get(index).copied().unwrap_or_default()
    };
    let slots = if sizes.grows { sizes.slots.saturating_add(sizes.width) } else { sizes.slots };
    let open = inputs.iter().filter(|input| !given.contains_key(input.name));
    let open: BTreeMap<_, _> = open.map(|input| (input.name, input)).collect();
    for (name, tensor) in feed.tensors(&interface, token, slots)? {
        if let Some(input) = open.get(name.as_str()) {
            check_dims(input, tensor.shape(), dims)?;
            let data = Data::Bytes(tensor.bytes().to_vec());
            let tensor = Tensor::new(tensor.element(), tensor.shape().to_vec(), data);
            made.insert(name, tensor.map_err(OnnxError::from)?);
        }
    }
    Ok(made)
}

impl StepSizes {
    fn new(
        interface: &Interface,
        shapes: &BTreeMap<&str, Vec<usize>>,
        given: &BTreeMap<&str, &Tensor>,
    ) -> Self {
        let size = |name: &str, axis: usize| {
            let shape = given.get(name).map(|tensor| tensor.shape());
            let shape = shape.or_else(|| shapes.get(name).map(Vec::as_slice)).unwrap_or_default();
            shape.get(axis).copied().unwrap_or_default()
        };
        let tokens = interface.feeds.iter().find(|feed| feed.purpose.is_tokens());
        let tokens = tokens.map_or("", |tokens| tokens.name.as_str());
        let cache = interface.caches.first();
        Self {
            batch: size(tokens, 0),
            width: size(tokens, 1),
            slots: cache.map_or(0, |cache| size(&cache.past, cache.axis)),
            grows: cache.is_none_or(|cache| cache.growth.is_some()),
        }
    }

    /// Checks the memory that the values need. If the caches are empty, a mask may be the only large value.
    fn check_memory(&self) -> Result<(), CommandError> {
        let values = self.batch.saturating_mul(self.width.saturating_add(self.slots).saturating_add(1));
        let needed = u64::try_from(values.saturating_mul(8)).unwrap_or(u64::MAX);
        let limit = DEFAULT_MEMORY_LIMIT;
        match needed > limit {
            true => Err(OnnxError::from(EvalError::MemoryLimit { needed, limit }).into()),
            false => Ok(()),
        }
    }
}

/// Returns the first slot of each sample. This is the given slot, the length of a growing cache, or any slot
/// at which the step fits.
fn starts(
    sizes: &StepSizes,
    interface: &Interface,
    given: &BTreeMap<&str, &Tensor>,
    seed: u64,
) -> Result<Vec<usize>, CommandError> {
    let indices = interface.feeds.iter().find(|feed| feed.purpose == Purpose::WriteIndices);
    let indices = indices.and_then(|feed| Some((&feed.name, given.get(feed.name.as_str())?)));
    if let Some((input, values)) = indices.and_then(|(name, tensor)| Some((name, tensor.int64s()?))) {
        let start = |(index, value): (usize, i64)| {
            usize::try_from(value).map_err(|_| CommandError::NotAPosition {
                input: input.clone(),
                index,
                value,
            })
        };
        return values.enumerate().map(start).collect();
    }
    if sizes.grows {
        return Ok(vec![sizes.slots; sizes.batch]);
    }
    let room = sizes.slots.checked_sub(sizes.width);
    let room = room.ok_or(CommandError::StepTooLong { width: sizes.width, capacity: sizes.slots })?;
    let drawn = random_inputs::int64s(&(0..=i64::try_from(room).unwrap_or(i64::MAX)), sizes.batch, seed);
    Ok(drawn.into_iter().map(|start| usize::try_from(start).unwrap_or_default()).collect())
}

/// Checks that the generated inputs have the sizes of `--dim`.
fn check_dims(
    input: &ValueInfo<'_>,
    shape: &[usize],
    dims: &BTreeMap<String, usize>,
) -> Result<(), OnnxError> {
    for (axis, &got) in shape.iter().enumerate() {
        let asked = input.dim_key(axis).and_then(|key| dims.get_key_value(&key));
        if let Some((symbol, &expected)) = asked.filter(|(_, expected)| **expected != got) {
            let (name, symbol) = (input.name.to_owned(), symbol.clone());
            return Err(EvalError::SymbolConflict { name, axis, symbol, expected, got }.into());
        }
    }
    Ok(())
}
