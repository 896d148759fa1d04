//! Splits caches that have all layers in one tensor.
//!
//! Some exports of Whisper, such as those of sherpa-onnx, have one input for the keys of all layers,
//! `[layers, batch, slots, width]`, one for the values, and one for the number of tokens so far. Each layer slices its
//! used slots, overwrites the last rows, attends to the result, and writes it back. The cross keys and the cross values
//! of all layers are one input each.
//!
//! [`unstack`] returns the decoder in the form of other exporters: each layer has a past to which `Concat` appends the
//! new rows, `[batch, length, heads, head size]`, and the number of tokens so far is the length of the past. The
//! structure of the graph shows which nodes read and write a layer. Evaluations of small steps prove that the indices
//! are those of the rows.

mod layers;
mod proof;

use std::collections::BTreeSet;

use kvscatter::ElementType;

use crate::decoder::{is_float, source_of_slots};
use crate::edit::{Editor, NewNode};
use crate::fold::{Fold, signed};
use crate::{Dimension, Graph, Model, Node, OnnxError, ValueInfo};

use layers::{AXIS, Layer, layers_of, reads, refused};
use proof::Step;

/// A decoder with one cache for each layer.
#[derive(Clone, Debug)]
pub struct Unstacked {
    /// The decoder. Weights are unchanged.
    pub model: Model,
    /// The inputs and outputs that it has in place of others.
    pub stacks: Stacks,
}

/// The inputs of a decoder that have all layers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stacks {
    /// The name of the input with the number of tokens so far.
    pub offset: String,
    /// The type of that input.
    pub offset_element: ElementType,
    /// Its number of dimensions, 0 or 1.
    pub offset_rank: usize,
    /// The inputs with all layers, in the order of the graph.
    pub stacks: Vec<Stack>,
}

/// An input that has all layers, `[layers, batch, length, width]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stack {
    /// The name of the input.
    pub input: String,
    /// The name of the output that returns it with new rows, or `None` for a cross cache.
    pub output: Option<String>,
    /// The number of slots or positions if the model fixes it.
    pub length: Option<usize>,
    /// The name of the input of each layer.
    pub inputs: Vec<String>,
    /// The name of the output of each layer, or none for a cross cache.
    pub outputs: Vec<String>,
}

/// Splits the caches of a decoder that have all layers in one tensor. Returns `None` for any other model.
///
/// # Errors
/// * Returns the errors of [`Model::graph`] for an invalid graph.
/// * Returns [`DecoderError::Stacked`](crate::DecoderError::Stacked), wrapped in [`OnnxError::InNode`], if a node uses
///   such a cache in an unknown way.
pub fn unstack(model: &Model) -> Result<Option<Unstacked>, OnnxError> {
    let graph = model.graph()?;
    let inputs = graph.inputs()?;
    let mut stacked: Vec<_> = inputs.iter().filter(|input| is_stacked(input, &inputs)).collect();
    let mut caches: Vec<StackedCache<'_, '_>> = Vec::new();
    for output in graph.output_names() {
        if let Some((input, writers)) = written(&graph, output)
            && let Some(input) = stacked.iter().find(|stacked| stacked.name == input)
        {
            if let Some(last) =
                writers.last().filter(|_| caches.iter().any(|cache| cache.input.name == input.name))
            {
                return Err(refused(last, input.name, "two outputs return it"));
            }
            caches.push(StackedCache { input, output, layers: layers_of(&graph, input, &writers)? });
        }
    }
    let offset = caches.first().and_then(|cache| offset(&graph, &inputs, cache));
    let (Some(offset), Some(layers)) = (offset, caches.first().map(|cache| cache.layers.len())) else {
        return Ok(None);
    };
    // Other inputs may claim any number of layers.
    stacked.retain(|input| layers_in(input) == Some(layers));
    for cache in &mut caches {
        let Some(first) = cache.layers.first() else { continue };
        let slots = length(cache.input);
        let slots = slots.ok_or_else(|| refused(&first.slots, first.stack, "its number of slots is open"))?;
        for step in Step::all(slots) {
            let mut fold = Fold::new(&graph, None);
            step.feed(&inputs, &stacked, offset, &mut fold)?;
            for (index, layer) in cache.layers.iter_mut().enumerate() {
                step.check(&graph, index, layer, &mut fold)?;
                // A layer's indices are many, and no other layer reads them.
                fold.forget_elements();
            }
        }
    }
    let mut split = model.clone();
    let stacks = Split { graph: &graph, inputs: &inputs, stacked: &stacked, caches: &caches, offset }
        .write(&mut split)?;
    Ok(Some(Unstacked { model: split, stacks }))
}

/// A cache of all layers that every layer writes.
struct StackedCache<'a, 'm> {
    input: &'a ValueInfo<'m>,
    output: &'m str,
    layers: Vec<Layer<'m>>,
}

/// Returns `true` for floats of rank 4 whose second dimension is that of the samples.
fn is_stacked(value: &ValueInfo<'_>, inputs: &[ValueInfo<'_>]) -> bool {
    let tokens = inputs.iter().find(|input| input.rank() == Some(2) && !is_float(input.element));
    let batch = tokens.and_then(|tokens| tokens.shape.as_ref()?.first());
    let Some([layers, samples, _, _]) = value.shape.as_deref() else { return false };
    let is_batch = matches!(samples, Dimension::Symbolic(_)) && batch == Some(samples);
    is_float(value.element) && is_batch && layers.size().is_some_and(|layers| layers > 0)
}

/// Returns the input that scatters return as this output, and the scatters in order.
fn written<'m>(graph: &Graph<'m>, output: &'m str) -> Option<(&'m str, Vec<Node<'m>>)> {
    let (mut value, mut writers) = (output, Vec::new());
    while let Some((node, _)) = graph.producer(value) {
        value = node.input(0).filter(|_| node.is("ScatterND"))?;
        writers.push(node);
    }
    writers.reverse();
    (graph.is_input(value) && !writers.is_empty()).then_some((value, writers))
}

/// Returns the input with the number of tokens so far, from which the end of the slots is computed.
fn offset<'a, 'm>(
    graph: &Graph<'m>,
    inputs: &'a [ValueInfo<'m>],
    cache: &StackedCache<'_, 'm>,
) -> Option<&'a ValueInfo<'m>> {
    let name = source_of_slots(graph, cache.layers.first()?.slots.input(2)?)?;
    let is_integer = |element| matches!(element, ElementType::Int64 | ElementType::Int32);
    let is_one = |shape: &[Dimension<'_>]| shape.iter().all(|dim| dim.size() == Some(1)) && shape.len() < 2;
    let fits = |input: &&ValueInfo<'_>| {
        input.name == name && is_integer(input.element) && input.shape.as_deref().is_some_and(is_one)
    };
    inputs.iter().find(fits)
}

/// What is written in place of stacked inputs.
struct Split<'a, 'm> {
    graph: &'a Graph<'m>,
    inputs: &'a [ValueInfo<'m>],
    stacked: &'a [&'a ValueInfo<'m>],
    caches: &'a [StackedCache<'a, 'm>],
    offset: &'a ValueInfo<'m>,
}

impl Split<'_, '_> {
    fn write(&self, model: &mut Model) -> Result<Stacks, OnnxError> {
        let proto = model.proto_mut();
        let written: BTreeSet<_> = self.caches.iter().map(|cache| cache.output).collect();
        let is_kept = |name: &Option<String>| name.as_deref().is_none_or(|name| !written.contains(name));
        proto.graph.get_or_insert_default().output.retain(|output| is_kept(&output.name));
        let mut editor = Editor::new(proto)?;
        let mut stacks = Vec::new();
        for input in self.stacked {
            stacks.push(match self.caches.iter().find(|cache| cache.input.name == input.name) {
                Some(cache) => self.write_cache(cache, &mut editor)?,
                None => self.write_constant(input, &mut editor)?,
            });
            editor.drop_unread(input.name);
        }
        let ValueInfo { name, element, ref shape } = *self.offset;
        let rank = shape.as_ref().map_or(0, Vec::len);
        let cache = self.caches.first().and_then(|cache| cache.layers.first());
        let past = stacks.iter().find(|stack| stack.output.is_some()).and_then(|stack| stack.inputs.first());
        if let (Some(past), Some(layer)) = (past, cache) {
            editor.at(layer.slots.index());
            let axis = if rank == 0 { editor.scalar_i64(AXIS)? } else { editor.ints(&[AXIS])? };
            let shape = editor.node("Shape", &[past]);
            let length = editor.node("Gather", &[&shape, &axis]);
            let length = editor.cast(&length, ElementType::Int64, element);
            editor.replace_uses(name, &length);
        }
        editor.drop_unread(name);
        editor.finish()?;
        let left = model.graph()?;
        let replaced = self.stacked.iter().map(|input| input.name).chain([name]);
        for input in replaced {
            if let Some((node, _)) = left.uses(input).next() {
                return Err(refused(&node, input, "this node reads all layers"));
            }
        }
        let offset = name.to_owned();
        Ok(Stacks { offset, offset_element: element, offset_rank: rank, stacks })
    }

    /// Gives each layer a past, to which the new rows are appended.
    fn write_cache(&self, cache: &StackedCache<'_, '_>, editor: &mut Editor<'_>) -> Result<Stack, OnnxError> {
        let StackedCache { input, output, layers } = cache;
        let [past_length, present_length] =
            ["past_length", "present_length"].map(|hint| fresh_symbol(self.inputs, hint));
        let (mut inputs, mut outputs) = (Vec::new(), Vec::new());
        for (index, layer) in layers.iter().enumerate() {
            let dims = |length| match (input.shape.as_deref(), layer.heads) {
                (Some(&[_, batch, _, _]), Some(heads)) => {
                    [batch, length].into_iter().chain(heads.map(Dimension::Known)).collect()
                }
                (Some(&[_, batch, _, width]), None) => vec![batch, length, width],
                _ => Vec::new(),
            };
            let past = format!("{}.{index}", input.name);
            let past = editor.add_input(&past, input.element, &dims(Dimension::Symbolic(&past_length)));
            let present = editor.fresh(&format!("{output}.{index}"));
            editor.replacing(layer.writer.index());
            let rows = match layer.heads {
                None => layer.rows.to_owned(),
                Some(heads) => reshaped(layer.rows, &heads.map(signed), editor)?,
            };
            editor.add(NewNode::new("Concat", &[&past, &rows]).int("axis", AXIS).outputs(&[&present]));
            layer.split.iter().for_each(|split| editor.replace_uses(split, &present));
            let merged = match layer.heads {
                None => present.clone(),
                Some(_) => reshaped(&present, &[-1], editor)?,
            };
            // The slots have the same shape.
            for replaced in [layer.writer.output(0), layer.slots.output(0)].into_iter().flatten() {
                editor.replace_uses(replaced, &merged);
            }
            editor.add_output(&present, input.element, &dims(Dimension::Symbolic(&present_length)));
            inputs.push(past);
            outputs.push(present);
        }
        let output = Some((*output).to_owned());
        Ok(Stack { input: input.name.to_owned(), output, length: length(input), inputs, outputs })
    }

    /// Gives each layer an input in place of its part.
    fn write_constant(&self, input: &ValueInfo<'_>, editor: &mut Editor<'_>) -> Result<Stack, OnnxError> {
        let shape = input.shape.as_deref().unwrap_or_default();
        let layers = layers_in(input).unwrap_or_default();
        let dims = shape.get(1..).unwrap_or_default();
        let of_layer = |index| editor.add_input(&format!("{}.{index}", input.name), input.element, dims);
        let inputs: Vec<_> = (0..layers).map(of_layer).collect();
        for read in reads(self.graph, input.name, input.name)? {
            if let Some(of_layer) = inputs.get(read.layer) {
                editor.replace_uses(read.value, of_layer);
            }
        }
        let name = input.name.to_owned();
        Ok(Stack { input: name, output: None, length: length(input), inputs, outputs: Vec::new() })
    }
}

/// Adds a value with other dimensions after the first two. Returns the name.
fn reshaped(value: &str, dims: &[i64], editor: &mut Editor<'_>) -> Result<String, OnnxError> {
    let shape = editor.ints(&[&[0, 0], dims].concat())?;
    Ok(editor.node("Reshape", &[value, &shape]))
}

/// Returns the number of layers of an input.
fn layers_in(input: &ValueInfo<'_>) -> Option<usize> {
    input.shape.as_ref()?.first()?.size()
}

/// Returns a symbol that no input has.
fn fresh_symbol(inputs: &[ValueInfo<'_>], hint: &str) -> String {
    let is_taken = |symbol: &String| {
        let mut dims = inputs.iter().flat_map(|input| input.shape.iter().flatten());
        dims.any(|dim| *dim == Dimension::Symbolic(symbol))
    };
    let mut symbol = hint.to_owned();
    while is_taken(&symbol) {
        symbol.push('_');
    }
    symbol
}

fn length(input: &ValueInfo<'_>) -> Option<usize> {
    input.shape.as_ref()?.get(2)?.size()
}
