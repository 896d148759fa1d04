//! The hazards as data.

use kvscatter::ElementType;

use crate::NodeLabel;
use crate::decoder::cache::WriterStyle;
use crate::decoder::roles::InputRole;

/// A property of the graph that prevents a cache from being written in place, or makes its use incorrect.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Hazard {
    /// A node besides the writer reads the past. If the cache is written in place, the node may see old rows
    /// or new ones.
    PastReadElsewhere {
        /// The cache.
        past: String,
        /// The reader.
        reader: NodeLabel,
    },
    /// A node that is not an attention reads the present.
    PresentReadElsewhere {
        /// The cache.
        present: String,
        /// The reader.
        reader: NodeLabel,
    },
    /// More than one output returns the present, so one of them is a copy.
    PresentGivenTwice {
        /// The cache.
        present: String,
        /// The other outputs.
        copies: Vec<String>,
    },
    /// Two nodes write to the same past independently. The rows of one are lost, or the cache is copied.
    WrittenTwice {
        /// The cache.
        past: String,
        /// The writer that makes the present.
        first: NodeLabel,
        /// The other writer.
        second: NodeLabel,
    },
    /// A node writes to the result of another writer.
    WrittenInTurn {
        /// The cache.
        past: String,
        /// The earlier writer.
        first: NodeLabel,
        /// The later one.
        second: NodeLabel,
    },
    /// An attention reads a ring and hides slots by their index, with `nonpad_kv_seqlen` or `is_causal`. The
    /// slots of a ring are not in the order of their tokens.
    CircularPrefixMask {
        /// The cache.
        past: String,
        /// The attention.
        attention: NodeLabel,
        /// The input or attribute that hides slots by their index.
        by: PrefixMask,
    },
    /// A node between past and present makes another tensor of the cache's size.
    Between {
        /// The cache.
        past: String,
        /// The node.
        node: NodeLabel,
    },
    /// Past and present have different types, so they cannot share memory.
    TypesDiffer {
        /// The cache.
        past: String,
        /// The present.
        present: String,
        /// The type of the past.
        past_type: ElementType,
        /// The type of the present.
        present_type: ElementType,
    },
    /// The present is longer than the past by the new rows, so they cannot share memory.
    Grows {
        /// The cache.
        past: String,
        /// The present.
        present: String,
    },
    /// An operator of ONNX Runtime writes the cache itself. It copies the whole cache unless past and present
    /// share memory.
    OperatorWrites {
        /// The cache.
        past: String,
        /// The operator.
        writer: NodeLabel,
    },
    /// Caches of one model are written in different ways.
    MixedStyles {
        /// The styles, each with a cache of that style and the number of such caches.
        styles: Vec<(WriterStyle, String, usize)>,
    },
    /// Static caches of one model have different capacities.
    MixedCapacities {
        /// The capacities, each with a cache of that capacity and the number of such caches.
        capacities: Vec<(usize, String, usize)>,
    },
    /// Caches of one model are written at different positions.
    MixedWriteIndices {
        /// A cache.
        past: String,
        /// The positions at which this cache is written, or `None` for position 0.
        write_indices: Option<String>,
        /// Another cache.
        other: String,
        /// The positions at which the other cache is written.
        other_write_indices: Option<String>,
    },
    /// A static cache has no `write_indices`, so every step overwrites the first rows.
    NoWriteIndices {
        /// The cache.
        past: String,
        /// The writer.
        writer: NodeLabel,
    },
    /// Two nodes use one input as different positions: a start, a length after the write, or that length less
    /// 1.
    TwoConventions {
        /// The input.
        input: String,
        /// The meaning of the input for the first node.
        first: InputRole,
        /// The first node.
        first_node: NodeLabel,
        /// The meaning of the input for the second node.
        second: InputRole,
        /// The second node.
        second_node: NodeLabel,
    },
    /// One scale is computed from all samples and tokens of a step. A sample's numbers therefore depend on
    /// its neighbours in the batch, on padding, and on how its prompt is cut into steps.
    TensorWideScale {
        /// The node that computes the scale.
        node: NodeLabel,
    },
    /// A runtime has a known bug that affects a node of this model.
    RuntimeBug {
        /// The bug.
        bug: RuntimeBug,
        /// The first affected node.
        node: NodeLabel,
    },
}

/// The way in which an attention hides slots by their index.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PrefixMask {
    /// The input `nonpad_kv_seqlen`.
    NonpadKvSeqlen,
    /// The attribute `is_causal`.
    IsCausal,
}

/// A known bug of a runtime.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum RuntimeBug {
    /// ONNX Runtime before 1.25 has no kernel for `TensorScatter`.
    NoKernel,
    /// ONNX Runtime's kernel supports 13 of the 24 types. It has no strings, complex numbers, 8-bit floats or
    /// 4-bit types.
    NoKernelForType(ElementType),
    /// ONNX Runtime up to 1.29 refuses an invalid index only after it has written the samples before it.
    RowsLeftWritten,
    /// ONNX Runtime's CUDA kernel clamps an index that is out of range, and so overwrites other rows.
    IndexClamped,
    /// ONNX Runtime 1.25 aligns the mask of a causal `Attention` with `nonpad_kv_seqlen` at the top left.
    /// This is wrong for several rows in the middle of a cache.
    MaskTopLeft,
    /// ONNX up to 1.22 evaluates `mode = circular` modulo the capacity in every coordinate.
    ModuloEverywhere,
}
