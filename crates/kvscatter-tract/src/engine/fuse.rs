//! Fuses the nodes around caches that are narrower than float32.
//!
//! A file converts every slot of such a cache to float32 in every step, and then attends to it. Here attention reads
//! float16 and int8 caches as they are, and only the slots that a query sees. One node quantises the new rows of keys
//! and values and writes the codes and scales of both.
//!
//! Nodes that do not have exactly this form stay as they are.

use std::collections::{BTreeSet, HashMap};

use kvscatter::quantize::{MIN_SCALE, SCALE_FACTOR};
use tract_onnx::Onnx;
use tract_onnx::pb::tensor_proto::DataType as TensorType;
use tract_onnx::pb::tensor_shape_proto::Dimension;
use tract_onnx::pb::tensor_shape_proto::dimension::Value as Size;
use tract_onnx::pb::type_proto::Value as Type;
use tract_onnx::pb::{GraphProto, NodeProto, TensorProto};

use crate::error::{is_onnx, label};
use crate::quantize::QuantizeRows;
use crate::{attention, scatter};

/// The operators of fused nodes. The check of operators has refused files with such nodes.
const ATTENTION: &str = "kvscatter.NarrowAttention";
const WRITE: &str = "kvscatter.QuantisedScatter";

/// The index of a node's input `nonpad_kv_seqlen`, which is the last one of `Attention`.
const LENGTHS: usize = 6;

/// Replaces nodes by fused ones, and registers their operators. Nodes that are not read any more stay in the graph.
pub(super) fn fuse(graph: &mut GraphProto, onnx: &mut Onnx) {
    onnx.op_register.insert(ATTENTION, attention::build_narrow);
    onnx.op_register.insert(WRITE, scatter::build_quantised);
    let index = Index::new(graph);
    let (mut readers, mut writers, mut replaced) = (Vec::new(), Vec::new(), BTreeSet::new());
    for (at, node) in graph.node.iter().enumerate().filter(|(_, node)| is_operator(node, "Attention")) {
        let Some((reader, caches)) = index.reader(node) else { continue };
        readers.push((at, reader));
        // Layers may share caches, which are then written once.
        if let Some((writes, writer)) = index.writer(caches)
            && writes.is_disjoint(&replaced)
        {
            replaced.extend(writes);
            writers.push(writer);
        }
    }
    for (at, reader) in readers {
        graph.node[at] = reader;
    }
    let mut kept = (0..).map(|at: usize| !replaced.contains(&at));
    graph.node.retain(|_| kept.next().unwrap_or(true));
    graph.node.extend(writers);
}

/// A cache of keys or of values that attention reads through conversions to float32.
#[derive(Clone, Copy)]
struct Cache<'g> {
    present: &'g str,
    /// The scales of int8 codes.
    scales: Option<&'g str>,
    /// The values in float32, and those before they are multiplied by the scales.
    floats: [&'g str; 2],
}

/// The write of a cache, `TensorScatter`.
struct Write<'g> {
    at: usize,
    node: &'g NodeProto,
    dims: &'g [Dimension],
}

/// The nodes of a graph by the values that they make and read.
struct Index<'g> {
    nodes: &'g [NodeProto],
    makers: HashMap<&'g str, usize>,
    readers: HashMap<&'g str, Vec<usize>>,
    inputs: HashMap<&'g str, (TensorType, &'g [Dimension])>,
    constants: HashMap<&'g str, &'g TensorProto>,
}

impl<'g> Index<'g> {
    fn new(graph: &'g GraphProto) -> Self {
        let (mut makers, mut readers) = (HashMap::new(), HashMap::<_, Vec<_>>::new());
        for (at, node) in graph.node.iter().enumerate() {
            makers.extend(node.output.iter().map(|output| (output.as_str(), at)));
            node.input.iter().for_each(|input| readers.entry(input.as_str()).or_default().push(at));
        }
        let input = |input: &'g tract_onnx::pb::ValueInfoProto| {
            let Type::TensorType(tensor) = input.r#type.as_ref()?.value.as_ref()?;
            let element = TensorType::try_from(tensor.elem_type).ok()?;
            Some((input.name.as_str(), (element, tensor.shape.as_ref()?.dim.as_slice())))
        };
        Self {
            nodes: &graph.node,
            makers,
            readers,
            inputs: graph.input.iter().filter_map(input).collect(),
            constants: graph.initializer.iter().map(|tensor| (tensor.name.as_str(), tensor)).collect(),
        }
    }

    /// Returns the node of ONNX's operator that makes a value.
    fn maker(&self, value: &str, op_type: &str) -> Option<&'g NodeProto> {
        let node = self.nodes.get(*self.makers.get(value)?)?;
        is_operator(node, op_type).then_some(node)
    }

    /// Returns the node that reads narrow caches in place of `attention`, and these caches.
    fn reader(&self, attention: &'g NodeProto) -> Option<(NodeProto, [Cache<'g>; 2])> {
        let [_, key, value, others @ ..] = attention.input.as_slice() else { return None };
        let has_past = others.iter().skip(1).take(2).any(|past| !past.is_empty());
        let caches = [self.cache(key)?, self.cache(value)?];
        let [of_keys, of_values] = caches.map(|cache| cache.scales);
        if has_past || attention.output.len() != 1 || of_keys.is_some() != of_values.is_some() {
            return None;
        }
        let mut reader = attention.clone();
        ATTENTION.clone_into(&mut reader.op_type);
        reader.input.resize(LENGTHS + 1, String::new());
        for (index, cache) in (1..).zip(caches) {
            cache.present.clone_into(&mut reader.input[index]);
            reader.input.extend(cache.scales.map(str::to_owned));
        }
        Some((reader, caches))
    }

    /// Returns the cache that a value converts to float32.
    fn cache(&self, value: &'g str) -> Option<Cache<'g>> {
        if let Some(present) = self.cast(value) {
            let is_half = self.write(present, TensorType::Float16).is_some();
            return is_half.then_some(Cache { present, scales: None, floats: [value; 2] });
        }
        let [a, b] = self.maker(value, "Mul")?.input.as_slice() else { return None };
        let (floats, scales) = if self.cast(a).is_some() { (a, b) } else { (b, a) };
        let present = self.cast(floats)?;
        let (codes, of_scales) =
            (self.write(present, TensorType::Int8)?, self.write(scales, TensorType::Float)?);
        let ([rows @ .., _], [scaled @ .., one]) = (codes.dims, of_scales.dims) else { return None };
        let same = rows.iter().zip(scaled).all(|(a, b)| a.value.is_some() && a.value == b.value);
        let fits = rows.len() == 3 && scaled.len() == 3 && same && one.value == Some(Size::DimValue(1));
        fits.then_some(Cache { present, scales: Some(scales), floats: [value, floats] })
    }

    /// Returns the value that is cast to float32.
    fn cast(&self, value: &str) -> Option<&'g str> {
        let node = self.maker(value, "Cast")?;
        let to = integer(node, "to")?;
        node.input.first().filter(|_| to == TensorType::Float as i64).map(String::as_str)
    }

    /// Returns the write of a cache of this type that is an input of the model.
    fn write(&self, present: &str, element: TensorType) -> Option<Write<'g>> {
        let node = self.maker(present, "TensorScatter")?;
        let (of_past, dims) = *self.inputs.get(node.input.first()?.as_str())?;
        let write = Write { at: *self.makers.get(present)?, node, dims };
        (of_past == element).then_some(write)
    }

    /// Returns the node that writes codes and scales of these caches, and the nodes that it replaces.
    fn writer(&self, caches: [Cache<'g>; 2]) -> Option<(BTreeSet<usize>, NodeProto)> {
        let (mut writes, mut conversions) = (Vec::new(), Vec::new());
        let mut writer = NodeProto { op_type: WRITE.to_owned(), ..NodeProto::default() };
        for Cache { present, scales, floats } in caches {
            let scales = scales?;
            let pair = [self.write(present, TensorType::Int8)?, self.write(scales, TensorType::Float)?];
            let [codes, of_scales] = pair.each_ref().map(|write| write.node);
            let rows = self.quantised(codes.input.get(1)?, of_scales.input.get(1)?, pair[0].dims)?;
            let inputs = [codes.input.first()?.as_str(), of_scales.input.first()?, rows];
            writer.input.extend(inputs.map(str::to_owned));
            writer.output.extend([present, scales].map(str::to_owned));
            conversions.extend(floats.iter().filter_map(|value| self.makers.get(value)));
            writes.extend(pair);
        }
        let first = writes.first()?.node;
        let rules = |node: &'g NodeProto| (&node.attribute, node.input.get(2));
        // New rows must not be computed from the presents, because one node writes all of them.
        let all: BTreeSet<usize> = writes.iter().map(|write| write.at).collect();
        let last = *all.last()?;
        let made = caches.iter().flat_map(|of| of.floats.into_iter().chain([of.present]).chain(of.scales));
        let mut readers = made.filter_map(|value| self.readers.get(value)).flatten();
        if all.len() != writes.len()
            || writes.iter().any(|write| rules(write.node) != rules(first))
            || readers.any(|at| *at < last && !conversions.contains(&at))
        {
            return None;
        }
        writer.name = label(first);
        writer.attribute.clone_from(&first.attribute);
        writer.input.extend(first.input.get(2).cloned());
        Some((all, writer))
    }

    /// Returns the rows whose codes and scales these are, if the nodes compute what
    /// [`quantize_row`](kvscatter::quantize::quantize_row) does for rows of these dimensions.
    fn quantised(&self, codes: &str, scales: &str, dims: &[Dimension]) -> Option<&'g str> {
        let quantise = self.maker(codes, "QuantizeLinear")?;
        let [rows, of_rows] = quantise.input.as_slice() else { return None };
        let Some(Size::DimValue(size)) = dims.last()?.value else { return None };
        let is_whole = QuantizeRows::new(quantise).ok()?.takes_rows(dims.len(), size);
        let at_least = self.maker(scales, "Max")?;
        let scaled = self.maker(at_least.input.first()?, "Mul")?;
        let most = self.maker(scaled.input.first()?, "ReduceMax")?;
        let magnitudes = self.maker(most.input.first()?, "Abs")?;
        let axes = self.constants.get(most.input.get(1)?.as_str())?;
        let is_last =
            [-1_i64, 3].iter().any(|axis| axes.raw_data == axis.to_le_bytes() || axes.int64_data == [*axis]);
        let is_same = is_whole
            && of_rows == scales
            && magnitudes.input.first() == Some(rows)
            && is_last
            && integer(most, "keepdims").unwrap_or(1) == 1
            && self.is_number(at_least, MIN_SCALE)
            && self.is_number(scaled, SCALE_FACTOR);
        is_same.then_some(rows)
    }

    /// Returns `true` if a node has two inputs, and the second is a constant float32 number of these bits.
    fn is_number(&self, node: &NodeProto, number: f32) -> bool {
        let [_, constant] = node.input.as_slice() else { return false };
        self.constants.get(constant.as_str()).is_some_and(|tensor| {
            let is_scalar =
                tensor.data_type == TensorType::Float as i32 && tensor.dims.iter().all(|dim| *dim == 1);
            is_scalar && (tensor.raw_data == number.to_le_bytes() || tensor.float_data == [number])
        })
    }
}

fn is_operator(node: &NodeProto, op_type: &str) -> bool {
    is_onnx(node) && node.op_type == op_type
}

fn integer(node: &NodeProto, name: &str) -> Option<i64> {
    node.attribute.iter().find(|attribute| attribute.name == name).map(|attribute| attribute.i)
}
