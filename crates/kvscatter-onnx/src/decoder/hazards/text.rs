//! The texts of hazards.

use std::fmt;

use super::hazard::{Hazard, PrefixMask, RuntimeBug, WrongSlot};
use crate::NodeLabel;
use crate::decoder::roles::InputRole;
use crate::node_label::ShortLabel;

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

impl fmt::Display for Hazard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::PastReadElsewhere { past, reader } => {
                let reader = ShortLabel(reader);
                write!(
                    f,
                    "{past:?} is also read by {reader}, which may see old or new rows if the write is in place"
                )
            }
            Self::PresentReadElsewhere { present, reader } => {
                write!(f, "{present:?} is read by {}, which is not an attention", ShortLabel(reader))
            }
            Self::SharedCache { present, reader } => {
                let reader = ShortLabel(reader);
                write!(f, "{present:?} is the past of {reader}: this layer reads the cache of another layer")
            }
            Self::PresentGivenTwice { present, copies } => {
                let copies = list(copies.iter().map(|copy| format!("{copy:?}")));
                write!(f, "{present:?} is also returned as {copies}: only one of them can be in place")
            }
            Self::ResultUnused { past } => {
                write!(
                    f,
                    "no output depends on the attention over {past:?}, so the export lost a part of the model"
                )
            }
            Self::WrittenTwice { past, first, second } => {
                let (first, second) = (ShortLabel(first), ShortLabel(second));
                write!(f, "{past:?} is written by {first} and independently by {second}")
            }
            Self::WrittenInTurn { past, first, second } => {
                let (first, second) = (ShortLabel(first), ShortLabel(second));
                write!(f, "{past:?} is written by {first} and then again by {second}")
            }
            Self::CircularPrefixMask { past, attention, by, wrong } => {
                circular_prefix_mask(f, past, attention, *by)?;
                write!(f, ": {wrong}")
            }
            Self::RingMask { past, attention, wrong } => {
                write!(f, "{past:?} is a ring, and the mask of {} is wrong: {wrong}", ShortLabel(attention))
            }
            Self::RingTooSmall { past, capacity, window, rows, rewind, least } => write!(
                f,
                "{past:?} has {capacity} slots, but a window of {window}, steps of {rows} and rewinds of {rewind} need \
                 {least}: the results are wrong, and no error shows it"
            ),
            Self::RingDiffers { past, window, declared } => write!(
                f,
                "{past:?} is a ring whose mask shows a window of {window}, but the metadata declares {declared}"
            ),
            Self::RingUnchecked { past, reader, reason } => ring_unchecked(f, past, reader.as_ref(), reason),
            Self::Between { past, node } => {
                let node = ShortLabel(node);
                write!(f, "{node} is between {past:?} and its present: the whole cache is copied")
            }
            Self::TypesDiffer { past, present, past_type, present_type } => {
                write!(f, "{past:?} is {past_type} and {present:?} {present_type}: they cannot share memory")
            }
            Self::Grows { past, present } => {
                write!(
                    f,
                    "{present:?} is longer than {past:?}: they cannot share memory, all rows are copied"
                )
            }
            Self::OperatorWrites { past, writer } => operator_writes(f, past, writer),
            Self::MixedStyles { styles } => mixed(f, "are written in", "ways", "by", styles),
            Self::MixedCapacities { capacities } => mixed(f, "have", "capacities", "of", capacities),
            Self::MixedWriteIndices { past, write_indices, other, other_write_indices } => {
                let (here, there) = (written_at(write_indices), written_at(other_write_indices));
                write!(f, "{past:?} is written at {here}, {other:?} at {there}")
            }
            Self::NoWriteIndices { past, writer } => {
                let writer = ShortLabel(writer);
                write!(f, "{past:?} is written without write_indices by {writer}: always at position 0")
            }
            Self::TwoConventions { input, first, first_node, second, second_node } => {
                let (first, second) = (position(*first), position(*second));
                let (first_node, second_node) = (ShortLabel(first_node), ShortLabel(second_node));
                write!(f, "{input:?} is {first} for {first_node} but {second} for {second_node}")
            }
            Self::TensorWideScale { node } => tensor_wide_scale(f, node),
            Self::WindowMissing { file, window } => window_missing(f, file, *window),
            Self::WindowDiffers { file, window, node, found } => {
                write!(f, "{file} declares a sliding window of {window} tokens, but that of ")?;
                match node {
                    Some(node) => write!(f, "{} is {found}", ShortLabel(node)),
                    None => write!(f, "an attention is {found}"),
                }
            }
            Self::AlibiMissing { file } => write!(
                f,
                "{file} declares a bias by position (ALiBi), but no attention of the graph adds one: the results are \
                 not those of the original model"
            ),
            Self::ContextShorter { file, context, table, rows } => write!(
                f,
                "{file} declares a context of {context} tokens, but {table:?} has rows for {rows} positions only"
            ),
            Self::FileUnread { file, reason } => {
                write!(f, "{file} was not compared with the graph: {reason}")
            }
            Self::RuntimeBug { bug, node } => write!(f, "{bug} ({})", ShortLabel(node)),
        }
    }
}

fn circular_prefix_mask(
    f: &mut fmt::Formatter<'_>,
    past: &str,
    attention: &NodeLabel,
    by: PrefixMask,
) -> fmt::Result {
    let by = match by {
        PrefixMask::NonpadKvSeqlen => "nonpad_kv_seqlen",
        PrefixMask::IsCausal => "is_causal",
        PrefixMask::Window => "left_window_size or right_window_size",
    };
    let attention = ShortLabel(attention);
    write!(f, "{past:?} is a ring, but {attention} hides slots by their index ({by})")
}

fn ring_unchecked(
    f: &mut fmt::Formatter<'_>,
    past: &str,
    reader: Option<&NodeLabel>,
    reason: &str,
) -> fmt::Result {
    write!(f, "{past:?} is a ring")?;
    if let Some(reader) = reader {
        write!(f, ", read by {}", ShortLabel(reader))?;
    }
    write!(f, ", which was not checked: {reason}")
}

fn operator_writes(f: &mut fmt::Formatter<'_>, past: &str, writer: &NodeLabel) -> fmt::Result {
    let writer = ShortLabel(writer);
    write!(
        f,
        "{past:?} is written by {writer} itself: ONNX Runtime copies the whole cache, unless past and present are \
         bound to one buffer"
    )
}

fn window_missing(f: &mut fmt::Formatter<'_>, file: &str, window: usize) -> fmt::Result {
    write!(
        f,
        "{file} declares a sliding window of {window} tokens, but no attention of the graph has one: the results for \
         longer texts are not those of the original model"
    )
}

fn tensor_wide_scale(f: &mut fmt::Formatter<'_>, node: &NodeLabel) -> fmt::Result {
    let node = ShortLabel(node);
    write!(
        f,
        "{node} computes one scale for a whole tensor: a sample's logits depend on its neighbours in the batch, on \
         padding and on how its prompt is cut"
    )
}

/// Writes `caches have 2 capacities: 3 of 64 ("past_k"), 1 of 32 ("past_v")`.
fn mixed(
    f: &mut fmt::Formatter<'_>,
    verb: &str,
    noun: &str,
    preposition: &str,
    groups: &[(impl fmt::Display, String, usize)],
) -> fmt::Result {
    let each = groups.iter().map(|(value, past, count)| format!("{count} {preposition} {value} ({past:?})"));
    write!(f, "caches {verb} {} {noun}: {}", groups.len(), list(each))
}

/// Returns the name of the value that contains the positions at which a cache is written.
fn written_at(write_indices: &Option<String>) -> String {
    write_indices.as_deref().map_or("position 0".to_owned(), |indices| format!("{indices:?}"))
}

impl fmt::Display for WrongSlot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { position, slot, is_seen, tokens } = self;
        let plural = if *tokens == 1 { "" } else { "s" };
        let (sees, should) = if *is_seen { ("sees", "should not") } else { ("does not see", "should") };
        write!(
            f,
            "in a step of {tokens} token{plural}, the token at position {position} {sees} slot {slot} and {should}"
        )
    }
}

impl fmt::Display for RuntimeBug {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoKernel => f.write_str("ONNX Runtime before 1.25 has no TensorScatter"),
            Self::NoKernelForType(element) => write!(f, "ONNX Runtime has no TensorScatter of {element}"),
            Self::RowsLeftWritten => {
                f.write_str("ONNX Runtime up to 1.29 refuses a bad index after writing the samples before it")
            }
            Self::IndexClamped => {
                f.write_str("ONNX Runtime on CUDA clamps an invalid index and overwrites valid rows")
            }
            Self::MaskTopLeft => f.write_str(
                "ONNX Runtime 1.25 aligns this causal mask at the top left, which is wrong for several rows in mid-cache",
            ),
            Self::CapAfterMask => f.write_str(
                "ONNX Runtime before 1.27 caps these scores after the mask, so that hidden slots count",
            ),
            Self::ModuloEverywhere => {
                f.write_str("onnx up to 1.22 evaluates circular mode incorrectly: do not use it as a reference")
            }
        }
    }
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

fn list(each: impl Iterator<Item = String>) -> String {
    each.collect::<Vec<_>>().join(", ")
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
