//! Hazards in words.

use std::fmt;

use super::hazard::{Hazard, PrefixMask, RuntimeBug};
use crate::NodeLabel;
use crate::decoder::roles::InputRole;
use crate::node_label::ShortLabel;

impl Hazard {
    /// A name for the kind of hazard that programs can rely on.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        match self {
            Self::PastReadElsewhere { .. } => "past-read-elsewhere",
            Self::PresentReadElsewhere { .. } => "present-read-elsewhere",
            Self::PresentGivenTwice { .. } => "present-given-twice",
            Self::WrittenTwice { .. } => "written-twice",
            Self::WrittenInTurn { .. } => "written-in-turn",
            Self::CircularPrefixMask { .. } => "circular-prefix-mask",
            Self::Between { .. } => "node-between",
            Self::TypesDiffer { .. } => "types-differ",
            Self::Grows { .. } => "grows",
            Self::OperatorWrites { .. } => "operator-writes",
            Self::MixedStyles { .. } => "mixed-styles",
            Self::MixedCapacities { .. } => "mixed-capacities",
            Self::MixedWriteIndices { .. } => "mixed-write-indices",
            Self::NoWriteIndices { .. } => "no-write-indices",
            Self::TwoConventions { .. } => "two-conventions",
            Self::TensorWideScale { .. } => "tensor-wide-scale",
            Self::RuntimeBug { .. } => "runtime",
        }
    }

    /// The cache it is about, by past, or by present where only that matters; `None` if it is about several.
    #[must_use]
    pub fn cache(&self) -> Option<&str> {
        match self {
            Self::PastReadElsewhere { past, .. }
            | Self::WrittenTwice { past, .. }
            | Self::WrittenInTurn { past, .. }
            | Self::CircularPrefixMask { past, .. }
            | Self::Between { past, .. }
            | Self::TypesDiffer { past, .. }
            | Self::Grows { past, .. }
            | Self::OperatorWrites { past, .. }
            | Self::NoWriteIndices { past, .. }
            | Self::MixedWriteIndices { past, .. } => Some(past),
            Self::PresentReadElsewhere { present, .. } | Self::PresentGivenTwice { present, .. } => {
                Some(present)
            }
            Self::MixedStyles { .. }
            | Self::MixedCapacities { .. }
            | Self::TwoConventions { .. }
            | Self::TensorWideScale { .. }
            | Self::RuntimeBug { .. } => None,
        }
    }

    /// The node to look at.
    #[must_use]
    pub fn node(&self) -> Option<&NodeLabel> {
        match self {
            Self::PastReadElsewhere { reader: node, .. }
            | Self::PresentReadElsewhere { reader: node, .. }
            | Self::WrittenTwice { second: node, .. }
            | Self::WrittenInTurn { second: node, .. }
            | Self::CircularPrefixMask { attention: node, .. }
            | Self::Between { node, .. }
            | Self::NoWriteIndices { writer: node, .. }
            | Self::OperatorWrites { writer: node, .. }
            | Self::TwoConventions { second_node: node, .. }
            | Self::TensorWideScale { node }
            | Self::RuntimeBug { node, .. } => Some(node),
            Self::PresentGivenTwice { .. }
            | Self::TypesDiffer { .. }
            | Self::Grows { .. }
            | Self::MixedStyles { .. }
            | Self::MixedCapacities { .. }
            | Self::MixedWriteIndices { .. } => None,
        }
    }
}

impl fmt::Display for Hazard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::PastReadElsewhere { past, reader } => {
                let reader = ShortLabel(reader);
                write!(f, "{past:?} is read by {reader} as well, which in place may meet old rows or new")
            }
            Self::PresentReadElsewhere { present, reader } => {
                write!(f, "{present:?} is read by {}, which is no attention", ShortLabel(reader))
            }
            Self::PresentGivenTwice { present, copies } => {
                let copies = list(copies.iter().map(|copy| format!("{copy:?}")));
                write!(f, "{present:?} is given as {copies} as well: only one can be in place")
            }
            Self::WrittenTwice { past, first, second } => {
                let (first, second) = (ShortLabel(first), ShortLabel(second));
                write!(f, "{past:?} is written by {first} and, apart from it, by {second}")
            }
            Self::WrittenInTurn { past, first, second } => {
                write!(
                    f,
                    "{past:?} is written by {} and then again by {}",
                    ShortLabel(first),
                    ShortLabel(second)
                )
            }
            Self::CircularPrefixMask { past, attention, by } => {
                let by = match by {
                    PrefixMask::NonpadKvSeqlen => "nonpad_kv_seqlen",
                    PrefixMask::IsCausal => "is_causal",
                };
                let attention = ShortLabel(attention);
                write!(
                    f,
                    "{past:?} is a ring, and {attention} hides slots by their place ({by}): once it has wrapped, \
                     several rows at a time see the wrong ones"
                )
            }
            Self::Between { past, node } => {
                write!(
                    f,
                    "{past:?} passes {} on its way to present: the whole cache is copied",
                    ShortLabel(node)
                )
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
            Self::OperatorWrites { past, writer } => write!(
                f,
                "{past:?} is written by {} itself: ONNX Runtime copies the whole cache, unless past and present are \
                 bound to one buffer",
                ShortLabel(writer)
            ),
            Self::MixedStyles { styles } => {
                let each = styles.iter().map(|(style, past, count)| format!("{count} by {style} ({past:?})"));
                write!(f, "caches are written in {} ways: {}", styles.len(), list(each))
            }
            Self::MixedCapacities { capacities } => {
                let each =
                    capacities.iter().map(|(size, past, count)| format!("{count} of {size} ({past:?})"));
                write!(f, "caches have {} capacities: {}", capacities.len(), list(each))
            }
            Self::MixedWriteIndices { past, write_indices, other, other_write_indices } => {
                let name = |indices: &Option<String>| {
                    indices.as_deref().map_or("position 0".to_owned(), |indices| format!("{indices:?}"))
                };
                let (here, there) = (name(write_indices), name(other_write_indices));
                write!(f, "{past:?} is written at {here}, {other:?} at {there}")
            }
            Self::NoWriteIndices { past, writer } => {
                let writer = ShortLabel(writer);
                write!(f, "{past:?} is written without write_indices by {writer}: always at position 0")
            }
            Self::TwoConventions { input, first, first_node, second, second_node } => {
                let (first, second) = (position(*first), position(*second));
                let (first_node, second_node) = (ShortLabel(first_node), ShortLabel(second_node));
                write!(f, "{input:?} is {first} to {first_node} and {second} to {second_node}: they differ")
            }
            Self::TensorWideScale { node } => {
                let node = ShortLabel(node);
                write!(
                    f,
                    "{node} computes one scale for a whole tensor: a sample's logits depend on its neighbours in the \
                     batch, on padding and on how its prompt is cut"
                )
            }
            Self::RuntimeBug { bug, node } => write!(f, "{bug} ({})", ShortLabel(node)),
        }
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
                f.write_str("ONNX Runtime on CUDA clamps a bad index, and overwrites rows that count")
            }
            Self::MaskTopLeft => f.write_str(
                "ONNX Runtime 1.25 aligns this causal mask top-left: wrong for several rows in mid-cache",
            ),
            Self::ModuloEverywhere => {
                f.write_str("onnx up to 1.22 evaluates circular mode wrongly: it is no reference")
            }
        }
    }
}

/// What the number that has a role is.
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
