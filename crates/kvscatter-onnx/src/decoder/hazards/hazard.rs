//! The hazards as data.

use kvscatter::ElementType;

use crate::NodeLabel;
use crate::decoder::cache::WriterStyle;
use crate::decoder::roles::InputRole;

/// A property of the graph that prevents a cache from being written in place, or makes its use incorrect.
#[derive(Clone, Debug, PartialEq, Eq, strum::IntoStaticStr)]
#[cfg_attr(test, derive(strum::VariantNames))]
#[strum(serialize_all = "kebab-case")]
#[non_exhaustive]
pub enum Hazard {
    /// A node other than the writer reads the past, or hands it on to an output. If the cache is written in place,
    /// this node may see old or new rows. An output with the name of the past itself is not found.
    PastReadElsewhere {
        /// The name of the cache's past.
        past: String,
        /// The node that reads it.
        reader: NodeLabel,
    },
    /// A node other than an attention reads the present.
    PresentReadElsewhere {
        /// The name of the cache's present.
        present: String,
        /// The node that reads it.
        reader: NodeLabel,
    },
    /// The attention of another layer takes the present as its past, so both layers share one cache.
    SharedCache {
        /// The name of the cache's present.
        present: String,
        /// The attention of the other layer.
        reader: NodeLabel,
    },
    /// Several outputs return the present, so all but one of them are copies.
    PresentGivenTwice {
        /// The name of the cache's present.
        present: String,
        /// The names of the other outputs that return it.
        copies: Vec<String>,
    },
    /// No output depends on the attention over the cache. The exporter lost a part of the model, so its results are
    /// not those of the original model.
    ResultUnused {
        /// The name of the cache's past.
        past: String,
    },
    /// Two nodes write to the same past, neither to the result of the other. The rows of one node are lost,
    /// or the cache is copied.
    WrittenTwice {
        /// The name of the cache's past.
        past: String,
        /// The node that produces the present.
        first: NodeLabel,
        /// The other node.
        second: NodeLabel,
    },
    /// A node writes to the result of another node that writes the cache.
    WrittenInTurn {
        /// The name of the cache's past.
        past: String,
        /// The node that writes first.
        first: NodeLabel,
        /// The node that writes to the result of the first one.
        second: NodeLabel,
    },
    /// An attention reads a ring and hides slots by their index. The slots of a ring are not in the order of their
    /// tokens.
    CircularPrefixMask {
        /// The name of the cache's past.
        past: String,
        /// The attention node.
        attention: NodeLabel,
        /// The input or attribute that hides slots by their index.
        by: PrefixMask,
        /// A slot that it shows or hides incorrectly.
        wrong: WrongSlot,
    },
    /// The mask of an attention does not follow the rule of the ring that it reads.
    RingMask {
        /// The name of the cache's past.
        past: String,
        /// The attention node.
        attention: NodeLabel,
        /// A slot that the mask shows or hides incorrectly.
        wrong: WrongSlot,
    },
    /// A ring has too few slots for its window and its steps. A step overwrites rows that it still needs, and no
    /// error shows it.
    RingTooSmall {
        /// The name of the cache's past.
        past: String,
        /// The number of slots.
        capacity: usize,
        /// The number of tokens that a token sees.
        window: usize,
        /// The number of new tokens of a step.
        rows: usize,
        /// The number of tokens that a sample may be taken back.
        rewind: usize,
        /// The least number of slots that would be enough.
        least: usize,
    },
    /// The metadata of a converted model declares another window than the masks show.
    RingDiffers {
        /// The name of the cache's past.
        past: String,
        /// The number of tokens that a token sees.
        window: usize,
        /// The declared window.
        declared: usize,
    },
    /// It is not known whether a node reads a ring correctly.
    RingUnchecked {
        /// The name of the cache's past.
        past: String,
        /// The node that reads it, if there is one.
        reader: Option<NodeLabel>,
        /// The reason.
        reason: String,
    },
    /// A node between past and present makes another tensor of the cache's size.
    #[strum(serialize = "node-between")]
    Between {
        /// The name of the cache's past.
        past: String,
        /// The node that produces the tensor.
        node: NodeLabel,
    },
    /// Past and present have different types, so they cannot share memory.
    TypesDiffer {
        /// The name of the cache's past.
        past: String,
        /// The name of the cache's present.
        present: String,
        /// The declared type of the past.
        past_type: ElementType,
        /// The declared type of the present.
        present_type: ElementType,
    },
    /// The present is longer than the past by the new rows, so they cannot share memory.
    Grows {
        /// The name of the cache's past.
        past: String,
        /// The name of the cache's present.
        present: String,
    },
    /// An operator of ONNX Runtime writes the cache itself. It copies the whole cache unless past and present
    /// share memory.
    OperatorWrites {
        /// The name of the cache's past.
        past: String,
        /// The node of that operator.
        writer: NodeLabel,
    },
    /// Caches of one model are written in different ways.
    MixedStyles {
        /// Each style, with the past of the first cache of that style and the number of such caches.
        styles: Vec<(WriterStyle, String, usize)>,
    },
    /// Static caches of one model have different capacities.
    MixedCapacities {
        /// Each capacity in slots, with the past of the first such cache and the number of such caches.
        capacities: Vec<(usize, String, usize)>,
    },
    /// Caches of one model are written at different positions.
    MixedWriteIndices {
        /// The name of one cache's past.
        past: String,
        /// The name of the value with the positions of this cache, or `None` if it is always written at
        /// position 0.
        write_indices: Option<String>,
        /// The name of the other cache's past.
        other: String,
        /// The name of the value with the positions of the other cache, or `None` for position 0.
        other_write_indices: Option<String>,
    },
    /// A static cache has no `write_indices`, so every step overwrites the first rows.
    NoWriteIndices {
        /// The name of the cache's past.
        past: String,
        /// The node that writes the cache.
        writer: NodeLabel,
    },
    /// Two nodes use one input as different positions: a start, a length after the write, or that length less
    /// 1.
    TwoConventions {
        /// The name of the graph input.
        input: String,
        /// How the first node uses the input.
        first: InputRole,
        /// A node that uses the input.
        first_node: NodeLabel,
        /// How the second node uses the input.
        second: InputRole,
        /// A later node that uses the input in another way.
        second_node: NodeLabel,
    },
    /// One scale is computed from all samples and tokens of a step. The results for a sample therefore depend
    /// on the other samples of the batch, on padding, and on how its prompt is divided into steps.
    TensorWideScale {
        /// The node that computes the scale.
        node: NodeLabel,
    },
    /// A file beside the model declares a sliding window, but no attention of the graph has one. Texts that are
    /// longer than the window give other results than the original model.
    WindowMissing {
        /// The name of the file.
        file: String,
        /// The declared window in tokens.
        window: usize,
    },
    /// A file beside the model declares a sliding window, and an attention has one of another length.
    WindowDiffers {
        /// The name of the file.
        file: String,
        /// The declared window in tokens.
        window: usize,
        /// The attention, or `None` if it consists of separate nodes.
        node: Option<NodeLabel>,
        /// The window of the attention in tokens.
        found: usize,
    },
    /// A file beside the model declares a bias by position (ALiBi), but no attention of the graph adds one.
    AlibiMissing {
        /// The name of the file.
        file: String,
    },
    /// A file beside the model declares a longer context than a table of positions of the graph has rows.
    ContextShorter {
        /// The name of the file.
        file: String,
        /// The declared context in tokens.
        context: usize,
        /// The name of the table.
        table: String,
        /// The number of positions that the table has rows for.
        rows: usize,
    },
    /// A file beside the model could not be read, so it was not compared with the graph.
    FileUnread {
        /// The name of the file.
        file: String,
        /// The reason.
        reason: String,
    },
    /// A runtime has a known bug that affects a node of this model.
    #[strum(serialize = "runtime")]
    RuntimeBug {
        /// The known bug.
        bug: RuntimeBug,
        /// The first affected node.
        node: NodeLabel,
    },
}

/// How an attention hides slots by their index.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PrefixMask {
    /// The input `nonpad_kv_seqlen`.
    NonpadKvSeqlen,
    /// The attribute `is_causal`.
    IsCausal,
    /// The attribute `left_window_size` or `right_window_size`.
    Window,
}

/// A slot of a ring that a token sees although it should not, or the other way round.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct WrongSlot {
    /// The position of the token.
    pub position: usize,
    /// The slot.
    pub slot: usize,
    /// Whether the token sees the slot.
    pub is_seen: bool,
    /// The number of new tokens of the step.
    pub tokens: usize,
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
    /// ONNX Runtime up to 1.29 reports an invalid index only after it has written the earlier samples.
    RowsLeftWritten,
    /// ONNX Runtime's CUDA kernel clamps an index that is out of range, so it overwrites other rows.
    IndexClamped,
    /// ONNX Runtime 1.25 aligns the mask of a causal `Attention` with `nonpad_kv_seqlen` at the top left.
    /// This is wrong for several rows in the middle of a cache.
    MaskTopLeft,
    /// ONNX Runtime before 1.27 caps the scores of `Attention` after the mask, so that hidden slots count. The
    /// standard caps them before.
    CapAfterMask,
    /// ONNX up to 1.22 evaluates `mode = circular` modulo the capacity in every coordinate.
    ModuloEverywhere,
}
