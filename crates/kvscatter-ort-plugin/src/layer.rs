//! The writes and the attention of a layer as one node.
//!
//! A decoder with a static cache has up to twelve nodes between the projections of a layer: `Reshape` and `Split` of a
//! product that contains queries, keys and values, `Transpose` of the three and `RotaryEmbedding` of two, two
//! `TensorScatter`, `Attention`, and `Transpose` and `Reshape` of its output. In a step of one token, each node has
//! little work, so its fixed cost counts. The provider takes them as one group, which the runtime replaces by one node.
//! The group always has both writes and `Attention`. The other nodes belong to it where the graph has them.
//!
//! A cache may have a narrower type than queries. Its rows are then cast before they are written, or stored as codes
//! with scales, and the nodes that read them back belong to the group too.
//!
//! `find` searches a graph for groups: `rows` has the nodes that compute rows, and `find_writes` those that store them.
//! `compute` executes a call of one: `call` reads its inputs, `heads` and `arrange` put new rows into the order in
//! which they are used, `rotation` rotates them, and `stored_rows` converts and writes them, in the memory of
//! `workspace`. `compiled` is the interface of the runtime.

mod arrange;
mod call;
mod compiled;
mod compute;
mod find;
mod find_writes;
mod graph;
mod heads;
mod rotation;
mod rows;
mod stored_rows;

use kvscatter::spec::onnx;
use kvscatter_attention::RotaryOrder;

pub(crate) use compiled::CompiledLayer;
pub(crate) use find::find;
pub(crate) use graph::{NamedGraph, NamedNode};

/// The nodes of one layer. Each value is a number: that of the value in a graph, or the index of an input or output of
/// the node that takes the place of the others.
#[derive(Debug)]
pub(crate) struct Layer {
    /// The numbers of all nodes in the graph.
    pub(crate) nodes: Vec<usize>,
    /// The numbers of `Attention` and of each `TensorScatter`, for which the provider has kernels.
    pub(crate) kernels: Vec<usize>,
    /// The shape and the sizes with which queries, keys and values are cut from one tensor, if they are.
    packed: Option<Packed>,
    query: Rows,
    key: Write,
    value: Write,
    mask: Option<usize>,
    lengths: Option<usize>,
    output: usize,
    is_output_by_token: bool,
    /// The shape that the output gets, if the group has its `Reshape`.
    output_shape: Option<usize>,
}

/// The inputs of a `Reshape` to `[batch, tokens, heads, size]`, and of a `Split` into three along the heads.
#[derive(Debug)]
struct Packed {
    shape: usize,
    sizes: usize,
}

/// New rows of all heads, before they are rotated and transposed.
#[derive(Debug)]
struct Rows {
    value: usize,
    /// The number of the part, if the value is [`Packed`].
    part: usize,
    /// Whether the tensor is `[batch, tokens, heads, size]` and not `[batch, heads, tokens, size]`.
    is_by_token: bool,
    rotation: Option<Rotation>,
    /// Whether each row is then multiplied with the Hadamard matrix.
    has_hadamard: bool,
}

/// A `RotaryEmbedding` whose angles are selected by positions.
#[derive(Debug)]
struct Rotation {
    cos: usize,
    sin: usize,
    positions: usize,
    order: RotaryOrder,
    /// The number of elements of a head that are rotated, or 0 for all.
    size: usize,
}

/// A `TensorScatter` along the slots of a cache, `[batch, heads, slots, size]`.
#[derive(Debug)]
struct Write {
    rows: Rows,
    storage: Storage,
    past: usize,
    present: usize,
    indices: Option<usize>,
    operator: onnx::TensorScatter,
}

/// How new rows are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Storage {
    /// With the type that they have.
    Same,
    /// Cast to a half type.
    Half,
    /// As int8 codes, with a scale for each row in another cache, `[batch, heads, slots, 1]`.
    Codes { past: usize, present: usize },
}

impl Layer {
    /// Returns the past of each cache, also those of scales.
    fn pasts(&self) -> impl Iterator<Item = usize> {
        [&self.key, &self.value].into_iter().flat_map(|write| {
            let scales = match write.storage {
                Storage::Codes { past, .. } => Some(past),
                _ => None,
            };
            [Some(write.past), scales].into_iter().flatten()
        })
    }

    /// Returns all inputs. An input that is used twice is there twice.
    fn inputs_mut(&mut self) -> Vec<&mut usize> {
        let Self { packed, query, key, value, mask, lengths, output_shape, .. } = self;
        let (mut inputs, mut all_rows) = (Vec::new(), vec![query]);
        for Write { rows, storage, past, indices, .. } in [key, value] {
            inputs.push(past);
            inputs.extend(indices);
            all_rows.push(rows);
            if let Storage::Codes { past, .. } = storage {
                inputs.push(past);
            }
        }
        for Rows { value, rotation, .. } in all_rows {
            inputs.push(value);
            if let Some(Rotation { cos, sin, positions, .. }) = rotation {
                inputs.extend([cos, sin, positions]);
            }
        }
        if let Some(Packed { shape, sizes }) = packed {
            inputs.extend([shape, sizes]);
        }
        inputs.extend([mask, lengths, output_shape].into_iter().flatten());
        inputs
    }

    /// Replaces the number of each input and output. Returns `None` if one has no other number.
    fn renumber(
        mut self,
        input: impl Fn(usize) -> Option<usize>,
        output: impl Fn(usize) -> Option<usize>,
    ) -> Option<Self> {
        for value in self.inputs_mut() {
            *value = input(*value)?;
        }
        for write in [&mut self.key, &mut self.value] {
            write.present = output(write.present)?;
            if let Storage::Codes { present, .. } = &mut write.storage {
                *present = output(*present)?;
            }
        }
        self.output = output(self.output)?;
        Some(self)
    }
}
