//! Makes the encoder of a decoder whose outputs are the decoder's inputs.
//!
//! A decoder with a past takes the keys and values of its attention to the encoder as inputs. Exporters let the decoder
//! of the first step compute them, in every layer and from the states of the encoder alone. [`join_encoder`] copies the
//! nodes that do so into the encoder. One run of the result then computes what the decoder takes for a text, and no
//! decoder of the first step is needed.

mod error;

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

use kvscatter::ElementType;

use crate::decoder::{Decoder, EncoderPart, is_float};
use crate::edit::{Editor, NewNode};
use crate::file::folder_of;
use crate::fold::{Fold, Value, signed};
use crate::names::{Names, replace_captures};
use crate::proto::{ModelProto, NodeProto, TensorProto, ValueInfoProto};
use crate::{
    Data, Dimension, ExportForm, Graph, Model, OnnxError, PlainDecoder, Stacks, Tensor, ValueInfo, merged,
    opset, plain_decoder, tensor_proto,
};
pub use error::EncoderError;

/// Returns an encoder with one output for each input of `decoder` that an encoder computes, under the name of the
/// input.
///
/// An output of the encoder itself is used if it has the name of the input, apart from words such as `past` and
/// `present`. The states of the encoder become the decoder's states. Keys and values that the encoder does not compute
/// are computed by the nodes of `first`, the decoder of the first step or a merged decoder. If the decoder's mask is an
/// input of the encoder, it has no output.
///
/// # Errors
/// * Returns [`EncoderError`] if the models do not belong together, or keep weights in different folders.
/// * Returns the errors of [`Model::graph`] and of [`Decoder::from_graph`].
pub fn join_encoder(encoder: &Model, first: &Model, decoder: &Model) -> Result<Model, OnnxError> {
    let PlainDecoder { model: decoder, form } = plain_decoder(decoder)?;
    let hash = decoder.graph_hash()?;
    let decoder = decoder.graph()?;
    let decoder = Decoder::from_graph(&decoder)?;
    let wanted: Vec<_> = decoder.from_encoder().filter(|(input, _)| !decoder.is_unread(input.name)).collect();
    if wanted.is_empty() {
        return Err(EncoderError::Nothing.into());
    }
    let first = merged::first_step(first)?.map_or(Cow::Borrowed(first), Cow::Owned);
    let [of_encoder, of_first] = [encoder, &first].map(|model| model.path().map(folder_of));
    if of_encoder != of_first && !first.external_files().is_empty() {
        return Err(EncoderError::Folders.into());
    }
    let (mut joined, mut first) = (encoder.proto().clone(), first.proto().clone());
    if joined.opset_import != first.opset_import {
        for model in [&mut joined, &mut first] {
            opset::upgrade(model, opset::NEWEST)?;
        }
    }
    let OwnValues { mut sources, states } = own_values(&Graph::new(&joined)?, &wanted)?;
    if let Some(ExportForm::Stacked(stacks)) = &form {
        sources.extend(split_outputs(&mut joined, stacks, &wanted)?);
    }
    let is_open = |(input, part): &&(&ValueInfo<'_>, EncoderPart)| {
        *part != EncoderPart::Mask && !sources.contains_key(input.name)
    };
    let open: Vec<_> = wanted.iter().filter(is_open).map(|(input, _)| input.name).collect();
    if !open.is_empty() {
        let names = Names::of_graph(&joined.graph);
        let copied = Copied::find(&Graph::new(&first)?, &states?, &open, names)?;
        let graph = joined.graph.get_or_insert_default();
        graph.node.extend(copied.nodes);
        graph.initializer.extend(copied.initializers);
        sources.extend(copied.sources);
    }
    write_outputs(&mut joined, &wanted, &sources)?;
    hash.name_decoder(&mut joined);
    Ok(encoder.with_proto(joined))
}

/// The values of an encoder that a decoder may take under other names.
#[derive(Clone, Debug)]
pub struct EncoderValues<'m> {
    /// The name of the states, which are the only output of floats and rank 3, or the error if there is not one.
    pub states: Result<&'m str, EncoderError>,
    /// The input with the mask of the text.
    pub mask: Option<ValueInfo<'m>>,
}

impl<'m> EncoderValues<'m> {
    /// Finds the values in the graph of an encoder.
    ///
    /// # Errors
    /// Returns the errors of [`Graph::inputs`].
    pub fn of_graph(encoder: &Graph<'m>) -> Result<Self, OnnxError> {
        let (inputs, outputs) = (encoder.inputs()?, encoder.outputs()?);
        let states = match outputs.iter().filter(|output| has_states(output)).collect::<Vec<_>>().as_slice() {
            [states] => Ok(states.name),
            all => Err(EncoderError::States { count: all.len() }),
        };
        let is_mask = |input: &ValueInfo<'_>| {
            input.name == "attention_mask" && input.rank() == Some(2) && !is_float(input.element)
        };
        let mask = inputs.into_iter().find(|input| is_mask(input) && encoder.is_input(input.name));
        Ok(Self { states, mask })
    }
}

/// The values that an encoder computes itself.
struct OwnValues {
    /// Those that are inputs of the decoder, by the name of the input.
    sources: BTreeMap<String, String>,
    /// The states, or the error if there are none.
    states: Result<String, EncoderError>,
}

/// Finds the values of an encoder that are inputs of the decoder.
fn own_values(encoder: &Graph<'_>, wanted: &[(&ValueInfo<'_>, EncoderPart)]) -> Result<OwnValues, OnnxError> {
    let outputs = encoder.outputs()?;
    let EncoderValues { states, mask } = EncoderValues::of_graph(encoder)?;
    let (states, mask) = (states.map(str::to_owned), mask.map(|mask| mask.name.to_owned()));
    let mut sources = BTreeMap::new();
    for (input, part) in wanted {
        let own = outputs.iter().find(|output| layer_name(output.name) == layer_name(input.name));
        let own = own.map(|output| output.name.to_owned());
        let source = match part {
            EncoderPart::States if own.is_none() => Some(states.clone()?),
            EncoderPart::Mask => own.or_else(|| mask.clone()),
            EncoderPart::States | EncoderPart::Keys | EncoderPart::Values => own,
        };
        sources.extend(source.map(|source| (input.name.to_owned(), source)));
    }
    Ok(OwnValues { sources, states })
}

/// Splits the outputs that have all layers. Returns the value of each layer by the name of the decoder's input.
fn split_outputs(
    model: &mut ModelProto,
    stacks: &Stacks,
    wanted: &[(&ValueInfo<'_>, EncoderPart)],
) -> Result<BTreeMap<String, String>, OnnxError> {
    let outputs = Graph::new(model)?.outputs()?;
    let mut found = Vec::new();
    for stack in &stacks.stacks {
        let of_layer = stack.inputs.first();
        let of_layer = of_layer.and_then(|name| wanted.iter().find(|(input, _)| input.name == name));
        let fits = |output: &&ValueInfo<'_>| {
            of_layer.is_some_and(|(input, _)| has_layers(output, stack.inputs.len(), input))
                && layer_name(output.name) == layer_name(&stack.input)
        };
        found.extend(outputs.iter().find(fits).map(|output| (stack, output.name.to_owned())));
    }
    let graph = model.graph.get_or_insert_default();
    let mut names = Names::of_graph(graph);
    let mut sources = BTreeMap::new();
    for (stack, output) in found {
        for (layer, input) in stack.inputs.iter().enumerate() {
            let index = names.fresh("layer");
            let number = Data::Bytes(signed(layer).to_le_bytes().to_vec());
            let number = Tensor::new(ElementType::Int64, Vec::new(), number)?;
            graph.initializer.push(tensor_proto::encode(&index, &number));
            let part = names.fresh(&format!("{output}.{layer}"));
            graph.node.push(NodeProto::new("Gather", &[&output, &index], &[&part]));
            sources.insert(input.clone(), part);
        }
    }
    Ok(sources)
}

/// Returns `true` if an output has so many layers of the type and the shape of a decoder's input.
fn has_layers(output: &ValueInfo<'_>, layers: usize, input: &ValueInfo<'_>) -> bool {
    let Some((count, of_layer)) = output.shape.as_deref().and_then(<[_]>::split_first) else { return false };
    let inner = input.shape.as_deref().unwrap_or_default();
    let is_same = |(one, other): (&Dimension<'_>, &Dimension<'_>)| {
        one.size().is_none() || other.size().is_none() || one.size() == other.size()
    };
    count.size() == Some(layers)
        && output.element == input.element
        && of_layer.len() == inner.len()
        && of_layer.iter().zip(inner).all(is_same)
}

/// Returns the name of a cache without the words for its time, so that a past and its present have the same name.
fn layer_name(name: &str) -> String {
    ["past_key_values", "present_key_values", "present", "past"]
        .iter()
        .find_map(|word| name.contains(word).then(|| name.replacen(word, "", 1)))
        .unwrap_or_else(|| name.to_owned())
}

/// The nodes of a decoder that compute values from the states of the encoder, with new names.
struct Copied {
    nodes: Vec<NodeProto>,
    initializers: Vec<TensorProto>,
    /// The new name of each value, by the name of the decoder's input.
    sources: BTreeMap<String, String>,
}

impl Copied {
    /// Finds the nodes that compute the outputs that belong to these inputs. `states` is the name that their states
    /// get, and `names` has the names that are taken.
    fn find(first: &Graph<'_>, states: &str, inputs: &[&str], mut names: Names) -> Result<Self, OnnxError> {
        let outputs: BTreeMap<_, _> = first.output_names().map(|name| (layer_name(name), name)).collect();
        let mut found = BTreeMap::new();
        for &input in inputs {
            let output = outputs.get(&layer_name(input)).copied();
            let output = output.ok_or(EncoderError::NotComputed { input: input.to_owned() })?;
            found.insert(input, output);
        }
        let mut batch = BatchSize::new(first)?;
        let mut new_names: BTreeMap<&str, String> = BTreeMap::new();
        let (mut needed, mut initializers, mut counts) = (BTreeSet::new(), Vec::new(), Vec::new());
        let mut from: Option<&str> = None;
        for &output in found.values() {
            let mut pending = vec![output];
            while let Some(value) = pending.pop() {
                if value.is_empty() || new_names.contains_key(value) {
                    continue;
                }
                let is_states = first.is_input(value) && first.initializer(value).is_none();
                let other = is_states && from.is_some_and(|from| from != value);
                if other || (is_states && !first.declared(value).is_some_and(|value| has_states(&value))) {
                    let (output, input) = (output.to_owned(), value.to_owned());
                    return Err(EncoderError::Depends { output, input }.into());
                }
                if is_states {
                    from = Some(value);
                    new_names.insert(value, states.to_owned());
                    continue;
                }
                let new = names.fresh(value);
                if let Some(rank) = batch.rank_of(value) {
                    let index = names.fresh("first");
                    let shape = names.fresh("shape");
                    let zero = Data::Bytes(0_i64.to_le_bytes().to_vec());
                    let zero = Tensor::new(ElementType::Int64, vec![1; rank], zero)?;
                    initializers.push(tensor_proto::encode(&index, &zero));
                    counts.push(NodeProto::new("Shape", &[states], &[&shape]));
                    counts.push(NodeProto::new("Gather", &[&shape, &index], &[&new]));
                    new_names.insert(value, new);
                    continue;
                }
                if let Some(tensor) = first.initializer(value) {
                    initializers.push(TensorProto { name: Some(new.clone()), ..tensor.clone() });
                }
                new_names.insert(value, new);
                if let Some((node, _)) = first.producer(value)
                    && needed.insert(node.index())
                {
                    pending.extend(node.reads().into_iter().chain(node.outputs()));
                }
            }
        }
        let nodes = first.nodes().iter().filter(|node| needed.contains(&node.index()));
        let nodes = counts.into_iter().chain(nodes.map(|node| renamed(node.proto(), &new_names))).collect();
        let new = |(input, output): (&str, &str)| {
            (input.to_owned(), new_names.get(output).cloned().unwrap_or_default())
        };
        Ok(Self { nodes, initializers, sources: found.into_iter().map(new).collect() })
    }
}

/// Finds the values of a decoder that are the number of samples. Exporters take it from the shape of the tokens, and it
/// is also that of the states.
struct BatchSize<'m> {
    /// Evaluations with these numbers of samples.
    folds: [(i64, Fold<'m>); 2],
}

impl<'m> BatchSize<'m> {
    fn new(first: &Graph<'m>) -> Result<Self, OnnxError> {
        let mut inputs = first.inputs()?;
        inputs.retain(|input| first.is_input(input.name));
        let fold = |batch: usize| {
            let mut fold = Fold::new(first, None);
            for input in &inputs {
                let size = |(axis, dim): (usize, &Dimension<'_>)| {
                    dim.size().unwrap_or(if axis == 0 { batch } else { LENGTH })
                };
                let shape = input.shape.iter().flatten().enumerate().map(size).collect();
                fold.set(input.name, Value::shaped(input.element, shape)?)?;
            }
            Ok::<_, OnnxError>((signed(batch), fold))
        };
        // No size of a real model is likely to be both.
        Ok(Self { folds: [fold(11)?, fold(13)?] })
    }

    /// Returns the rank of a value that is the number of samples, 0 or 1.
    fn rank_of(&mut self, value: &'m str) -> Option<usize> {
        let mut rank = None;
        for (batch, fold) in &mut self.folds {
            let value = fold.value(value).ok().filter(|value| value.element == ElementType::Int64)?;
            if value.as_ints() != Some(&[*batch]) || value.shape.len() > 1 {
                return None;
            }
            rank = Some(value.shape.len());
        }
        rank
    }
}

/// The size of other open dimensions in an evaluation.
const LENGTH: usize = 5;

/// Returns `true` if a value can be the states of an encoder.
fn has_states(value: &ValueInfo<'_>) -> bool {
    is_float(value.element) && value.rank() == Some(3)
}

fn renamed(node: &NodeProto, new_names: &BTreeMap<&str, String>) -> NodeProto {
    let mut node = NodeProto { name: None, ..node.clone() };
    for (old, new) in new_names {
        replace_captures(&mut node, old, new);
    }
    for name in node.input.iter_mut().chain(&mut node.output) {
        if let Some(new) = new_names.get(name.as_str()) {
            new.clone_into(name);
        }
    }
    node
}

/// Gives an encoder one output for each source, with the name of the decoder's input, and drops the other outputs.
fn write_outputs(
    model: &mut ModelProto,
    wanted: &[(&ValueInfo<'_>, EncoderPart)],
    sources: &BTreeMap<String, String>,
) -> Result<(), OnnxError> {
    let own = Graph::new(model)?.inputs()?;
    let own: BTreeMap<_, _> = own.into_iter().map(|input| (input.name.to_owned(), input.element)).collect();
    let graph = model.graph.get_or_insert_default();
    graph.output.clear();
    for (input, _) in wanted {
        let Some(source) = sources.get(input.name) else { continue };
        // The mask may be an input of the encoder, which its caller has in the same type.
        if own.get(source) == Some(&input.element) {
            continue;
        }
        if source != input.name {
            let node = NewNode::cast(source, input.element).outputs(&[input.name]);
            let node = node.into_proto(&mut Names::of_graph(graph));
            graph.node.push(node);
        }
        let open = |dim: &Dimension<'_>| dim.size().map_or(Dimension::Unknown, Dimension::Known);
        let dims: Vec<_> = input.shape.iter().flatten().map(open).collect();
        graph.output.push(ValueInfoProto::tensor(input.name, input.element.onnx_code(), &dims));
    }
    Editor::new(model)?.finish().map(drop)
}
