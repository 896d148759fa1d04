//! Finds the nodes that store the rows of a cache and read them back.
//!
//! Rows are stored with the type that they have, or cast to a half type, or as int8 codes with a scale for each row
//! ([`kvscatter::quantize`]). The nodes of a group must compute exactly what one of these does, so their attributes and
//! constants are compared too.

use kvscatter::ElementType;
use kvscatter::quantize::{MIN_SCALE, SCALE_FACTOR};

use super::graph::NamedNode;
use super::rows::{FreeNodes, rows};
use super::{Storage, Write};
use crate::node::Attributes;
use crate::operators::{Operator, TensorScatter, tensor_scatter};
use crate::status::CallError;

/// Returns the write of a cache that an `Attention` node reads as `read`. Adds its nodes to `nodes`, and those with a
/// kernel of the provider also to `kernels`.
pub(super) fn write(
    graph: &FreeNodes<'_, '_>,
    attention: &NamedNode<'_>,
    read: usize,
    nodes: &mut Vec<usize>,
    kernels: &mut Vec<usize>,
) -> Result<Option<Write>, CallError> {
    // Only `Attention` may read the keys and values, so no input of the group depends on them.
    let Some((index, node)) = graph.producer(read).filter(|_| graph.graph.is_read_once(read)) else {
        return Ok(None);
    };
    if node.node.is(TensorScatter::NAME)? {
        let Some(scatter) = Scatter::read(graph, read)? else { return Ok(None) };
        let given = (scatter.update, &[scatter.node][..]);
        return scatter.write(graph, given, Storage::Same, nodes, kernels).map(Some);
    }
    let is_float32 =
        |node: &NamedNode<'_>| Ok::<_, CallError>(element(node, 0)? == Some(ElementType::Float32));
    if !is_float32(attention)? || graph.graph.outputs.contains(&read) {
        return Ok(None);
    }
    if node.node.is(c"Cast")?
        && let Some(scatter) =
            node.input(0).map(|present| Scatter::read(graph, present)).transpose()?.flatten()
        && matches!(scatter.element, ElementType::Float16 | ElementType::BFloat16)
        && let Some((cast, before)) = graph.inner_producer(scatter.update, &[scatter.node])
        && before.node.is(c"Cast")?
        && is_float32(before)?
        && let Some(given) = before.input(0)
        && graph.graph.is_read_once(scatter.present)
    {
        nodes.extend([index, cast]);
        let storage = Storage::Half(scatter.element);
        return scatter.write(graph, (given, &[cast]), storage, nodes, kernels).map(Some);
    }
    codes(graph, (index, node), nodes, kernels)
}

/// A `TensorScatter` from an input of the graph to an output.
struct Scatter {
    node: usize,
    update: usize,
    past: usize,
    present: usize,
    indices: Option<usize>,
    axis: Option<i64>,
    mode: Option<String>,
    element: ElementType,
    /// The numbers of slots and of elements of a row, if the graph declares them.
    slots: Option<usize>,
    size: Option<usize>,
}

impl Scatter {
    fn read(graph: &FreeNodes<'_, '_>, present: usize) -> Result<Option<Self>, CallError> {
        let Some((index, node)) = graph.producer(present) else { return Ok(None) };
        if !node.node.is(TensorScatter::NAME)? || !graph.graph.outputs.contains(&present) {
            return Ok(None);
        }
        let (Some(past), Some(update)) = (node.input(0), node.input(1)) else { return Ok(None) };
        let (axis, inputs) = (node.node.integer(c"axis")?, node.node.inputs()?);
        let Some(info) = inputs.first().filter(|past| past.rank() == Some(4)) else { return Ok(None) };
        if !graph.graph.inputs.contains(&past) || !matches!(axis, None | Some(2 | -2)) {
            return Ok(None);
        }
        let Some(element) = info.element() else { return Ok(None) };
        Ok(Some(Self {
            node: index,
            update,
            past,
            present,
            indices: node.input(2),
            axis,
            mode: node.node.short_string(c"mode")?,
            element,
            slots: info.size(2),
            size: info.size(3),
        }))
    }

    /// Returns the write of the rows `given`, which only `readers` read.
    fn write(
        &self,
        graph: &FreeNodes<'_, '_>,
        (given, readers): (usize, &[usize]),
        storage: Storage,
        nodes: &mut Vec<usize>,
        kernels: &mut Vec<usize>,
    ) -> Result<Write, CallError> {
        nodes.push(self.node);
        kernels.push(self.node);
        Ok(Write {
            rows: rows(graph, given, readers, nodes)?,
            storage,
            past: self.past,
            present: self.present,
            indices: self.indices,
            operator: tensor_scatter::operator(self.axis, self.mode.clone())?,
        })
    }
}

/// Returns the write of codes and scales that `node` multiplies.
fn codes(
    graph: &FreeNodes<'_, '_>,
    (index, node): (usize, &NamedNode<'_>),
    nodes: &mut Vec<usize>,
    kernels: &mut Vec<usize>,
) -> Result<Option<Write>, CallError> {
    let (Some(one), Some(other)) = (node.input(0), node.input(1)) else { return Ok(None) };
    let mut group = vec![index];
    let (codes, scales) = if node.node.is(c"Mul")? {
        let cast = |value| -> Result<_, CallError> {
            let Some((cast, before)) = graph.inner_producer(value, &[index]) else { return Ok(None) };
            let codes = if before.node.is(c"Cast")? { before.input(0) } else { None };
            Ok(codes.map(|codes| (cast, codes)))
        };
        let (cast, codes, scales) = match (cast(one)?, cast(other)?) {
            (Some((cast, codes)), None) => (cast, codes, other),
            (None, Some((cast, codes))) => (cast, codes, one),
            _ => return Ok(None),
        };
        group.push(cast);
        (codes, scales)
    } else if is_blocked(node, c"DequantizeLinear")? {
        (one, other)
    } else {
        return Ok(None);
    };
    let (Some(of_codes), Some(of_scales)) = (Scatter::read(graph, codes)?, Scatter::read(graph, scales)?)
    else {
        return Ok(None);
    };
    let is_one_write = (of_codes.indices, of_codes.axis, &of_codes.mode)
        == (of_scales.indices, of_scales.axis, &of_scales.mode);
    let types = (of_codes.element, of_scales.element, of_scales.size);
    // `Mul` broadcasts the scales of one slot. A call checks the numbers that the graph does not declare.
    let may_fit = of_codes.slots.zip(of_scales.slots).is_none_or(|(codes, scales)| codes == scales);
    let block = of_codes.size.and_then(|size| i64::try_from(size).ok());
    let (Some(block), true) = (block, is_one_write && may_fit) else { return Ok(None) };
    let blocks = |node: &NamedNode<'_>| Ok::<_, CallError>(node.node.integer(c"block_size")? == Some(block));
    if types != (ElementType::Int8, ElementType::Float32, Some(1))
        || (group.len() == 1 && !blocks(node)?)
        || ![codes, scales].into_iter().all(|present| graph.graph.is_read_once(present))
    {
        return Ok(None);
    }
    let quantize = graph.inner_producer(of_codes.update, &[of_codes.node]);
    let Some((quantize, node)) = quantize else { return Ok(None) };
    let (Some(given), Some(scale)) = (node.input(0), node.input(1)) else { return Ok(None) };
    if !is_blocked(node, c"QuantizeLinear")?
        || !blocks(node)?
        || !divides_float32_to_int8(node)?
        || scale != of_scales.update
    {
        return Ok(None);
    }
    let Some([max, factor, reduce, abs]) = scale_nodes(graph, scale, (quantize, of_scales.node), given)?
    else {
        return Ok(None);
    };
    group.extend([quantize, max, factor, reduce, abs, of_scales.node]);
    nodes.extend(group);
    kernels.push(of_scales.node);
    let storage = Storage::Codes { past: of_scales.past, present: of_scales.present };
    of_codes.write(graph, (given, &[quantize, abs]), storage, nodes, kernels).map(Some)
}

/// Returns the nodes that compute `scale` from the rows `given`: `Max`, `Mul`, `ReduceMax` and `Abs`. Each reads the
/// output of the next one alone, and only `quantize` and `scatter` read the scale.
fn scale_nodes(
    graph: &FreeNodes<'_, '_>,
    scale: usize,
    (quantize, scatter): (usize, usize),
    given: usize,
) -> Result<Option<[usize; 4]>, CallError> {
    let step = |value, readers: &[usize], operator, constant| -> Result<Option<(usize, usize)>, CallError> {
        let Some((index, node)) = graph.inner_producer(value, readers) else { return Ok(None) };
        if !node.node.is(operator)? {
            return Ok(None);
        }
        let Some(constant) = constant else { return Ok(node.input(0).map(|input| (index, input))) };
        let (Some(one), Some(other), None) = (node.input(0), node.input(1), node.input(2)) else {
            return Ok(None);
        };
        let input = match (is_scalar(graph, one, constant)?, is_scalar(graph, other, constant)?) {
            (true, false) => other,
            (false, true) => one,
            _ => return Ok(None),
        };
        Ok(Some((index, input)))
    };
    let readers = [quantize, scatter];
    let Some((max, product)) = step(scale, &readers, c"Max", Some(MIN_SCALE))? else { return Ok(None) };
    let Some((factor, absmax)) = step(product, &[max], c"Mul", Some(SCALE_FACTOR))? else { return Ok(None) };
    let Some((reduce, magnitudes)) = step(absmax, &[factor], c"ReduceMax", None)? else { return Ok(None) };
    let Some((abs, of)) = step(magnitudes, &[reduce], c"Abs", None)? else { return Ok(None) };
    Ok((of == given && reduces_rows(graph, reduce)?).then_some([max, factor, reduce, abs]))
}

/// ONNX's numbers of float and int8.
const FLOAT: i64 = 1;
const INT8: i64 = 3;

/// Returns whether a `QuantizeLinear` divides float32 by float32 and rounds to int8.
fn divides_float32_to_int8(node: &NamedNode<'_>) -> Result<bool, CallError> {
    let divides_float32 = matches!(node.node.integer(c"precision")?, None | Some(0 | FLOAT));
    let is_int8 = node.node.integer(c"output_dtype")? == Some(INT8);
    Ok(divides_float32 && is_int8 && element(node, 0)? == Some(ElementType::Float32))
}

/// Returns the element type of an input.
fn element(node: &NamedNode<'_>, input: usize) -> Result<Option<ElementType>, CallError> {
    Ok(node.node.inputs()?.get(input).and_then(|input| input.element()))
}

/// Returns whether a node is this operator with one scale for each row and without zero points.
fn is_blocked(node: &NamedNode<'_>, operator: &core::ffi::CStr) -> Result<bool, CallError> {
    let is_along_rows = || Ok::<_, CallError>(matches!(node.node.integer(c"axis")?, Some(3 | -1)));
    Ok(node.node.is(operator)? && node.input(2).is_none() && is_along_rows()?)
}

/// Returns whether a value is a constant with this number and nothing else.
fn is_scalar(graph: &FreeNodes<'_, '_>, value: usize, number: f32) -> Result<bool, CallError> {
    let Some(constant) = graph.graph.constant(value)? else { return Ok(false) };
    let is_one = constant.has_element(ElementType::Float32) && constant.shape().iter().all(|size| *size == 1);
    Ok(is_one && matches!(*constant.floats::<f32>()?, [it] if it.to_bits() == number.to_bits()))
}

/// Returns whether a `ReduceMax` reduces the last of four dimensions and keeps it.
fn reduces_rows(graph: &FreeNodes<'_, '_>, index: usize) -> Result<bool, CallError> {
    let Some(node) = graph.node(index) else { return Ok(false) };
    let axes = node.input(1).map(|axes| graph.graph.constant(axes)).transpose()?.flatten();
    let axes = axes.map(|axes| axes.list::<i64>()).transpose()?;
    Ok(matches!(axes.as_deref(), Some([3 | -1])) && matches!(node.node.integer(c"keepdims")?, None | Some(1)))
}
