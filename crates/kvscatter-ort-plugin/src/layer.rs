//! The writes and the attention of a layer as one node.
//!
//! A decoder with a static cache has up to twelve nodes between the projections of a layer: `Reshape` and `Split` of a
//! product that contains queries, keys and values, `Transpose` of the three and `RotaryEmbedding` of two, two
//! `TensorScatter`, `Attention`, and `Transpose` and `Reshape` of its output. In a step of one token, each node has
//! little work, so its fixed cost counts. The provider takes them as one group, which the runtime replaces by one node.
//! The group always has both writes and `Attention`. The other nodes belong to it where the graph has them.
//!
//! `find` searches a graph for groups. `compute` executes a call of one: `call` reads its inputs, `heads` and `arrange`
//! put new rows into the order in which they are used, `rotation` rotates them, and `workspace` is the memory for both.
//! `compiled` is the interface of the runtime.

mod arrange;
mod call;
mod compiled;
mod compute;
mod find;
mod graph;
mod heads;
mod rotation;
mod workspace;

use kvscatter::spec::onnx;

pub(crate) use compiled::CompiledLayer;
pub(crate) use find::find;
pub(crate) use graph::{NamedGraph, NamedNode};
pub(crate) use workspace::Workspace;

/// The nodes of one layer. `V` is how a value is identified: by its name in a graph, or by the index of an input or
/// output of the node that takes the place of the others.
#[derive(Debug)]
pub(crate) struct Layer<V> {
    /// The numbers of all nodes in the graph.
    pub(crate) nodes: Vec<usize>,
    /// The numbers of `Attention` and of both `TensorScatter`, for which the provider has kernels.
    pub(crate) kernels: [usize; 3],
    /// The shape and the sizes with which queries, keys and values are cut from one tensor, if they are.
    packed: Option<Packed<V>>,
    query: Rows<V>,
    key: Write<V>,
    value: Write<V>,
    mask: Option<V>,
    lengths: Option<V>,
    output: V,
    is_output_by_token: bool,
    /// The shape that the output gets, if the group has its `Reshape`.
    output_shape: Option<V>,
}

/// The inputs of a `Reshape` to `[batch, tokens, heads, size]`, and of a `Split` into three along the heads.
#[derive(Debug)]
struct Packed<V> {
    shape: V,
    sizes: V,
}

/// New rows of all heads, before they are rotated and transposed.
#[derive(Debug)]
struct Rows<V> {
    value: V,
    /// The number of the part, if the value is [`Packed`].
    part: usize,
    /// Whether the tensor is `[batch, tokens, heads, size]` and not `[batch, heads, tokens, size]`.
    is_by_token: bool,
    rotation: Option<Rotation<V>>,
}

/// A `RotaryEmbedding` whose angles are selected by positions.
#[derive(Debug)]
struct Rotation<V> {
    cos: V,
    sin: V,
    positions: V,
    is_interleaved: bool,
    /// The number of elements of a head that are rotated, or 0 for all.
    size: usize,
}

/// A `TensorScatter` along the slots of a cache, `[batch, heads, slots, size]`.
#[derive(Debug)]
struct Write<V> {
    node: usize,
    rows: Rows<V>,
    past: V,
    present: V,
    indices: Option<V>,
    operator: onnx::TensorScatter,
}

impl<V> Layer<V> {
    /// Returns all inputs. An input that is used twice is there twice.
    fn inputs(&self) -> Vec<&V> {
        let Self { packed, query, key, value, mask, lengths, output_shape, .. } = self;
        let rows = [query, &key.rows, &value.rows];
        let rotations = rows.into_iter().filter_map(|rows| rows.rotation.as_ref());
        let mut inputs: Vec<_> = rows.into_iter().map(|rows| &rows.value).collect();
        inputs.extend(rotations.flat_map(|Rotation { cos, sin, positions, .. }| [cos, sin, positions]));
        inputs.extend(
            [key, value].into_iter().flat_map(|write| [Some(&write.past), write.indices.as_ref()]).flatten(),
        );
        inputs.extend(packed.iter().flat_map(|Packed { shape, sizes }| [shape, sizes]));
        inputs.extend([mask, lengths, output_shape].into_iter().flatten());
        inputs
    }
}

impl Layer<String> {
    /// Returns the layer with inputs and outputs in place of names, or `None` if a name has none.
    fn resolve(
        &self,
        input: impl Fn(&String) -> Option<usize>,
        output: impl Fn(&String) -> Option<usize>,
    ) -> Option<Layer<usize>> {
        let write = |write: &Write<String>| {
            Some(Write {
                node: write.node,
                rows: write.rows.resolve(&input)?,
                past: input(&write.past)?,
                present: output(&write.present)?,
                indices: optional(write.indices.as_ref(), &input)?,
                operator: write.operator,
            })
        };
        Some(Layer {
            nodes: self.nodes.clone(),
            kernels: self.kernels,
            packed: match &self.packed {
                Some(Packed { shape, sizes }) => Some(Packed { shape: input(shape)?, sizes: input(sizes)? }),
                None => None,
            },
            query: self.query.resolve(&input)?,
            key: write(&self.key)?,
            value: write(&self.value)?,
            mask: optional(self.mask.as_ref(), &input)?,
            lengths: optional(self.lengths.as_ref(), &input)?,
            output: output(&self.output)?,
            is_output_by_token: self.is_output_by_token,
            output_shape: optional(self.output_shape.as_ref(), &input)?,
        })
    }
}

impl Rows<String> {
    fn resolve(&self, input: impl Fn(&String) -> Option<usize>) -> Option<Rows<usize>> {
        let rotation = self.rotation.as_ref().map(|rotation| {
            Some(Rotation {
                cos: input(&rotation.cos)?,
                sin: input(&rotation.sin)?,
                positions: input(&rotation.positions)?,
                is_interleaved: rotation.is_interleaved,
                size: rotation.size,
            })
        });
        let rotation = match rotation {
            Some(rotation) => Some(rotation?),
            None => None,
        };
        Some(Rows { value: input(&self.value)?, part: self.part, is_by_token: self.is_by_token, rotation })
    }
}

/// Returns the index of an optional input. The outer `None` means that the name has no index.
fn optional(name: Option<&String>, input: impl Fn(&String) -> Option<usize>) -> Option<Option<usize>> {
    name.map_or(Some(None), |name| input(name).map(Some))
}
