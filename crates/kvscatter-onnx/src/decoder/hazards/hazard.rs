//! The hazards and their texts.

use kvscatter::ElementType;

use crate::NodeLabel;
use crate::decoder::cache::WriterStyle;
use crate::decoder::roles::InputRole;

/// A property of the graph that prevents a cache from being written in place, or makes its use incorrect.
///
/// `past` and `present` are the names of these values of a cache, and `file` is the name of a file beside the model.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error, strum::IntoStaticStr)]
#[cfg_attr(test, derive(strum::VariantNames))]
#[strum(serialize_all = "kebab-case")]
#[non_exhaustive]
#[expect(missing_docs, reason = "each variant's message names its fields")]
pub enum Hazard {
    /// A node other than the writer reads the past, or hands it on to an output. If the cache is written in place,
    /// this node may see old or new rows. An output with the name of the past itself is not found.
    #[error("{past:?} is also read by {reader:#}, which may see old or new rows if the write is in place")]
    PastReadElsewhere { past: String, reader: NodeLabel },
    /// A node other than an attention reads the present.
    #[error("{present:?} is read by {reader:#}, which is not an attention")]
    PresentReadElsewhere { present: String, reader: NodeLabel },
    /// The attention of another layer takes the present as its past and appends to it, so both layers share one cache.
    #[error("{present:?} is the past of {reader:#}: this layer appends to the cache of another layer")]
    SharedCache { present: String, reader: NodeLabel },
    /// Several outputs return the present, so all but one of them are copies.
    #[error("{present:?} is also returned as {}: only one of them can be in place", quoted(copies))]
    PresentGivenTwice { present: String, copies: Vec<String> },
    /// No output depends on the attention over the cache. The exporter lost a part of the model, so its results are
    /// not those of the original model.
    #[error("no output depends on the attention over {past:?}, so the export lost a part of the model")]
    ResultUnused { past: String },
    /// Two nodes write to the same past, neither to the result of the other. The rows of one node are lost,
    /// or the cache is copied. The first node produces the present.
    #[error("{past:?} is written by {first:#} and independently by {second:#}")]
    WrittenTwice { past: String, first: NodeLabel, second: NodeLabel },
    /// A node writes to the result of another node that writes the cache.
    #[error("{past:?} is written by {first:#} and then again by {second:#}")]
    WrittenInTurn { past: String, first: NodeLabel, second: NodeLabel },
    /// An attention reads a ring and hides slots by their index. The slots of a ring are not in the order of their
    /// tokens.
    #[error("{past:?} is a ring, but {attention:#} hides slots by their index ({by}): {wrong}")]
    CircularPrefixMask { past: String, attention: NodeLabel, by: PrefixMask, wrong: WrongSlot },
    /// The mask of an attention does not follow the rule of the ring that it reads.
    #[error("{past:?} is a ring, and the mask of {attention:#} is wrong: {wrong}")]
    RingMask { past: String, attention: NodeLabel, wrong: WrongSlot },
    /// A ring has too few slots for its window and its steps. A step overwrites rows that it still needs, and no
    /// error shows it. The window, the rows of a step and the rewind are in tokens.
    #[error(
        "{past:?} has {capacity} slots, but a window of {window}, steps of {rows} and rewinds of {rewind} need \
         {least}: the results are wrong, and no error shows it"
    )]
    RingTooSmall { past: String, capacity: usize, window: usize, rows: usize, rewind: usize, least: usize },
    /// The metadata of a converted model declares another window than the masks show. Both are in tokens.
    #[error("{past:?} is a ring whose mask shows a window of {window}, but the metadata declares {declared}")]
    RingDiffers { past: String, window: usize, declared: usize },
    /// It is not known whether a node reads a ring correctly. The reader is `None` if no node reads it.
    #[error("{past:?} is a ring{}, which was not checked: {reason}", read_by(reader))]
    RingUnchecked { past: String, reader: Option<NodeLabel>, reason: String },
    /// A node between past and present makes another tensor of the cache's size.
    #[error("{node:#} is between {past:?} and its present: the whole cache is copied")]
    #[strum(serialize = "node-between")]
    Between { past: String, node: NodeLabel },
    /// Past and present have different types, so they cannot share memory.
    #[error("{past:?} is {past_type} and {present:?} {present_type}: they cannot share memory")]
    TypesDiffer { past: String, present: String, past_type: ElementType, present_type: ElementType },
    /// The present is longer than the past by the new rows, so they cannot share memory.
    #[error("{present:?} is longer than {past:?}: they cannot share memory, all rows are copied")]
    Grows { past: String, present: String },
    /// An operator of ONNX Runtime writes the cache itself. It copies the whole cache unless past and present
    /// share memory.
    #[error(
        "{past:?} is written by {writer:#} itself: ONNX Runtime copies the whole cache, unless past and present are \
         bound to one buffer"
    )]
    OperatorWrites { past: String, writer: NodeLabel },
    /// Caches of one model are written in different ways. Each style has the past of its first cache and the number of
    /// its caches.
    #[error("{}", mixed("are written in", "ways", "by", styles))]
    MixedStyles { styles: Vec<(WriterStyle, String, usize)> },
    /// Static caches of one model have different capacities in slots. Each capacity has the past of its first cache and
    /// the number of its caches.
    #[error("{}", mixed("have", "capacities", "of", capacities))]
    MixedCapacities { capacities: Vec<(usize, String, usize)> },
    /// Caches of one model are written at different positions. `write_indices` is the name of the value with the
    /// positions of `past`, or `None` if it is always written at position 0, and so for the `other` past.
    #[error(
        "{past:?} is written at {}, {other:?} at {}",
        written_at(write_indices),
        written_at(other_write_indices)
    )]
    MixedWriteIndices {
        past: String,
        write_indices: Option<String>,
        other: String,
        other_write_indices: Option<String>,
    },
    /// A static cache has no `write_indices`, so every step overwrites the first rows.
    #[error("{past:?} is written without write_indices by {writer:#}: always at position 0")]
    NoWriteIndices { past: String, writer: NodeLabel },
    /// Two nodes use one input as different positions: a start, a length after the write, or that length less
    /// 1.
    #[error("{input:?} is {} for {first_node:#} but {} for {second_node:#}", position(*first), position(*second))]
    TwoConventions {
        input: String,
        first: InputRole,
        first_node: NodeLabel,
        second: InputRole,
        second_node: NodeLabel,
    },
    /// One scale is computed from all samples and tokens of a step. The results for a sample therefore depend
    /// on the other samples of the batch, on padding, and on how its prompt is divided into steps.
    #[error(
        "{node:#} computes one scale for a whole tensor: a sample's logits depend on its neighbours in the batch, on \
         padding and on how its prompt is cut"
    )]
    TensorWideScale { node: NodeLabel },
    /// A file beside the model declares a sliding window, but no attention of the graph has one. Texts that are
    /// longer than the window give other results than the original model.
    #[error(
        "{file} declares a sliding window of {window} tokens, but no attention of the graph has one: the results for \
         longer texts are not those of the original model"
    )]
    WindowMissing { file: String, window: usize },
    /// A file beside the model declares a sliding window, and an attention has one of another length. Both are in
    /// tokens. The node is `None` if the attention consists of separate nodes.
    #[error(
        "{file} declares a sliding window of {window} tokens, but that of {} is {found}",
        node.as_ref().map_or("an attention".to_owned(), |node| format!("{node:#}"))
    )]
    WindowDiffers { file: String, window: usize, node: Option<NodeLabel>, found: usize },
    /// A file beside the model declares a bias by position (ALiBi), but no attention of the graph adds one.
    #[error(
        "{file} declares a bias by position (ALiBi), but no attention of the graph adds one: the results are not \
         those of the original model"
    )]
    AlibiMissing { file: String },
    /// A file beside the model declares a longer context than a table of positions of the graph has rows.
    #[error(
        "{file} declares a context of {context} tokens, but {table:?} has rows for {rows} positions only"
    )]
    ContextShorter { file: String, context: usize, table: String, rows: usize },
    /// A file beside the model could not be read, so it was not compared with the graph.
    #[error("{file} was not compared with the graph: {reason}")]
    FileUnread { file: String, reason: String },
    /// A runtime has a known bug that affects a node of this model. It is the first of these nodes.
    #[error("{bug} ({node:#})")]
    #[strum(serialize = "runtime")]
    RuntimeBug { bug: RuntimeBug, node: NodeLabel },
}

/// How an attention hides slots by their index. `Display` writes the names of the inputs or attributes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, strum::Display)]
#[strum(serialize_all = "snake_case")]
pub enum PrefixMask {
    /// The input `nonpad_kv_seqlen`.
    NonpadKvSeqlen,
    /// The attribute `is_causal`.
    IsCausal,
    /// The attribute `left_window_size` or `right_window_size`.
    #[strum(to_string = "left_window_size or right_window_size")]
    Window,
}

/// A slot of a ring that a token sees although it should not, or the other way round.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[error(
    "in a step of {tokens} token{}, the token at position {position} {} slot {slot} and {}",
    if *.tokens == 1 { "" } else { "s" },
    if *.is_seen { "sees" } else { "does not see" },
    if *.is_seen { "should not" } else { "should" }
)]
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
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum RuntimeBug {
    /// ONNX Runtime before 1.25 has no kernel for `TensorScatter`.
    #[error("ONNX Runtime before 1.25 has no TensorScatter")]
    NoKernel,
    /// ONNX Runtime's kernel supports 13 of the 24 types. It has no strings, complex numbers, 8-bit floats or
    /// 4-bit types.
    #[error("ONNX Runtime has no TensorScatter of {0}")]
    NoKernelForType(ElementType),
    /// ONNX Runtime up to 1.29 reports an invalid index only after it has written the earlier samples.
    #[error("ONNX Runtime up to 1.29 refuses a bad index after writing the samples before it")]
    RowsLeftWritten,
    /// ONNX Runtime's CUDA kernel clamps an index that is out of range, so it overwrites other rows.
    #[error("ONNX Runtime on CUDA clamps an invalid index and overwrites valid rows")]
    IndexClamped,
    /// ONNX Runtime 1.25 aligns the mask of a causal `Attention` with `nonpad_kv_seqlen` at the top left.
    /// This is wrong for several rows in the middle of a cache.
    #[error(
        "ONNX Runtime 1.25 aligns this causal mask at the top left, which is wrong for several rows in mid-cache"
    )]
    MaskTopLeft,
    /// ONNX Runtime before 1.27 caps the scores of `Attention` after the mask, so that hidden slots count. The
    /// standard caps them before.
    #[error("ONNX Runtime before 1.27 caps these scores after the mask, so that hidden slots count")]
    CapAfterMask,
    /// ONNX up to 1.22 evaluates `mode = circular` modulo the capacity in every coordinate.
    #[error("onnx up to 1.22 evaluates circular mode incorrectly: do not use it as a reference")]
    ModuloEverywhere,
}

impl Hazard {
    /// Returns a stable name for the kind of hazard, for use by programs.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        self.into()
    }

    /// Returns the affected cache, or `None` if several caches are affected. The result is the name of the
    /// past, or of the present if only the present matters.
    #[must_use]
    pub fn cache(&self) -> Option<&str> {
        match self {
            Self::PastReadElsewhere { past, .. }
            | Self::ResultUnused { past }
            | Self::WrittenTwice { past, .. }
            | Self::WrittenInTurn { past, .. }
            | Self::CircularPrefixMask { past, .. }
            | Self::RingMask { past, .. }
            | Self::RingTooSmall { past, .. }
            | Self::RingDiffers { past, .. }
            | Self::RingUnchecked { past, .. }
            | Self::Between { past, .. }
            | Self::TypesDiffer { past, .. }
            | Self::Grows { past, .. }
            | Self::OperatorWrites { past, .. }
            | Self::NoWriteIndices { past, .. }
            | Self::MixedWriteIndices { past, .. } => Some(past),
            Self::PresentReadElsewhere { present, .. }
            | Self::SharedCache { present, .. }
            | Self::PresentGivenTwice { present, .. } => Some(present),
            Self::MixedStyles { .. }
            | Self::MixedCapacities { .. }
            | Self::TwoConventions { .. }
            | Self::TensorWideScale { .. }
            | Self::WindowMissing { .. }
            | Self::WindowDiffers { .. }
            | Self::AlibiMissing { .. }
            | Self::ContextShorter { .. }
            | Self::FileUnread { .. }
            | Self::RuntimeBug { .. } => None,
        }
    }

    /// Returns the node that causes the hazard.
    #[must_use]
    pub fn node(&self) -> Option<&NodeLabel> {
        match self {
            Self::PastReadElsewhere { reader: node, .. }
            | Self::PresentReadElsewhere { reader: node, .. }
            | Self::SharedCache { reader: node, .. }
            | Self::WrittenTwice { second: node, .. }
            | Self::WrittenInTurn { second: node, .. }
            | Self::CircularPrefixMask { attention: node, .. }
            | Self::RingMask { attention: node, .. }
            | Self::Between { node, .. }
            | Self::NoWriteIndices { writer: node, .. }
            | Self::OperatorWrites { writer: node, .. }
            | Self::TwoConventions { second_node: node, .. }
            | Self::TensorWideScale { node }
            | Self::RuntimeBug { node, .. } => Some(node),
            Self::WindowDiffers { node, .. } | Self::RingUnchecked { reader: node, .. } => node.as_ref(),
            Self::RingTooSmall { .. }
            | Self::RingDiffers { .. }
            | Self::PresentGivenTwice { .. }
            | Self::ResultUnused { .. }
            | Self::TypesDiffer { .. }
            | Self::Grows { .. }
            | Self::MixedStyles { .. }
            | Self::MixedCapacities { .. }
            | Self::MixedWriteIndices { .. }
            | Self::WindowMissing { .. }
            | Self::AlibiMissing { .. }
            | Self::ContextShorter { .. }
            | Self::FileUnread { .. } => None,
        }
    }
}

fn read_by(reader: &Option<NodeLabel>) -> String {
    reader.as_ref().map_or(String::new(), |reader| format!(", read by {reader:#}"))
}

/// Returns `caches have 2 capacities: 3 of 64 ("past_k"), 1 of 32 ("past_v")`.
fn mixed(
    verb: &str,
    noun: &str,
    preposition: &str,
    groups: &[(impl std::fmt::Display, String, usize)],
) -> String {
    let each = groups.iter().map(|(value, past, count)| format!("{count} {preposition} {value} ({past:?})"));
    format!("caches {verb} {} {noun}: {}", groups.len(), each.collect::<Vec<_>>().join(", "))
}

/// Returns the name of the value that contains the positions at which a cache is written.
fn written_at(write_indices: &Option<String>) -> String {
    write_indices.as_deref().map_or("position 0".to_owned(), |indices| format!("{indices:?}"))
}

/// Returns a description of the number that an input with this role contains.
fn position(role: InputRole) -> &'static str {
    match role {
        InputRole::WriteIndices => "the first slot written",
        InputRole::NonpadKvSeqlen => "the length after the write",
        InputRole::SeqlensK => "the length after the write less 1",
        _ => "another number",
    }
}

fn quoted(names: &[String]) -> String {
    names.iter().map(|name| format!("{name:?}")).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use strum::VariantNames;

    use super::Hazard;

    /// The names are an interface: scripts compare them.
    #[test]
    fn kinds_are_stable() {
        let kinds = "past-read-elsewhere present-read-elsewhere shared-cache present-given-twice result-unused \
            written-twice written-in-turn circular-prefix-mask ring-mask ring-too-small ring-differs \
            ring-unchecked node-between types-differ grows operator-writes mixed-styles mixed-capacities \
            mixed-write-indices no-write-indices two-conventions tensor-wide-scale window-missing window-differs \
            alibi-missing context-shorter file-unread runtime";
        assert_eq!(Hazard::VARIANTS.join(" "), kinds);
    }
}
