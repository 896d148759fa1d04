//! Compares a decoder with what the files beside it declare.
//!
//! An exporter can leave a part of the attention out of the graph, although the configuration of the original
//! model asks for it. The graph then runs, and computes other results than the original. This module reports
//! such parts if the graph shows that it does not contain them. It reports nothing about attention that it
//! does not understand.

mod config;

use crate::convert::mask_rule::{MaskRule, mask_rule};
use crate::decoder::{Decoder, Hazard, InputRole, WriterStyle};
use crate::soundness::seen_in_static;
use crate::{Graph, Model, Node};

pub(crate) use config::context;
pub use config::hazards_beside;

/// The number of tokens on which masks are searched for a bias.
const BIAS_TOKENS: usize = 16;

/// The inputs of `GroupQueryAttention` with the table of cosines and with a bias.
const COS_CACHE: usize = 7;
const ATTENTION_BIAS: usize = 10;

/// What a file beside a model declares about the decoder's attention.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Declared {
    /// The name of the file.
    pub file: String,
    /// The window of the layers that have one, in tokens. A token sees itself and the `window - 1` tokens
    /// before it.
    pub window: Option<usize>,
    /// Whether scores have a bias by position (ALiBi).
    pub alibi: bool,
    /// The number of tokens that a text may have.
    pub context: Option<usize>,
}

/// How attention reads the caches of a decoder.
enum Attention<'m> {
    /// `GroupQueryAttention` nodes, whose inputs and attributes show what they do.
    GroupQuery(Vec<Node<'m>>),
    /// Masks, which are evaluated if [`mask_rule`] supports them.
    Masked,
    /// `Attention` nodes over static caches, which are evaluated.
    Static,
}

/// Returns a hazard for each declared part of the attention that the decoder does not contain.
///
/// `decoder` must have been found in the graph of `model`.
#[must_use]
pub fn hazards(model: &Model, graph: &Graph<'_>, decoder: &Decoder<'_>, declared: &Declared) -> Vec<Hazard> {
    let attention = Attention::from_decoder(decoder);
    let context = declared.context.unwrap_or(usize::MAX);
    // A window that is as long as the longest text hides nothing.
    let window = declared.window.filter(|&window| window < context);
    let lost = [
        window.and_then(|window| attention.window(model, graph, decoder, &declared.file, window)),
        declared.alibi.then(|| attention.alibi(model, &declared.file)).flatten(),
        declared.context.and_then(|context| context_of(graph, decoder, &declared.file, context)),
    ];
    lost.into_iter().flatten().collect()
}

impl<'m> Attention<'m> {
    fn from_decoder(decoder: &Decoder<'m>) -> Self {
        let all = |is: fn(&WriterStyle) -> bool| decoder.caches.iter().all(|cache| is(&cache.style));
        if all(|style| *style == WriterStyle::GroupQueryAttention) {
            Self::GroupQuery(decoder.caches.iter().filter_map(|cache| cache.writer).collect())
        } else if all(|style| matches!(style, WriterStyle::TensorScatter(_))) {
            Self::Static
        } else {
            Self::Masked
        }
    }

    /// Returns a hazard if no attention has the window, or if one has a window of another length.
    fn window(
        &self,
        model: &Model,
        graph: &Graph<'_>,
        decoder: &Decoder<'_>,
        file: &str,
        window: usize,
    ) -> Option<Hazard> {
        let file = file.to_owned();
        // A window that is longer by 1 hides a slot from the last of these tokens.
        let tokens = window.checked_add(2)?;
        match self {
            Self::GroupQuery(nodes) => {
                let windows = || nodes.iter().filter_map(|node| Some((node, window_of(node)?)));
                if windows().next().is_none() {
                    return Some(Hazard::WindowMissing { file, window });
                }
                let (node, found) = windows().find(|(_, found)| differs(*found, window))?;
                Some(Hazard::WindowDiffers { file, window, node: Some(node.label()), found })
            }
            Self::Masked => match mask_rule(model, tokens)? {
                MaskRule::Causal => Some(Hazard::WindowMissing { file, window }),
                MaskRule::Windows(windows) => {
                    let found = windows.into_iter().find(|&found| differs(found, window))?;
                    Some(Hazard::WindowDiffers { file, window, node: None, found })
                }
                _ => None,
            },
            Self::Static => {
                let seen = seen_in_static(model, graph, decoder, tokens)?;
                let mut windows = seen.into_values().filter(|(_, found)| *found < tokens).peekable();
                if windows.peek().is_none() {
                    return Some(Hazard::WindowMissing { file, window });
                }
                let (node, found) = windows.find(|(_, found)| differs(*found, window))?;
                Some(Hazard::WindowDiffers { file, window, node: Some(node), found })
            }
        }
    }

    /// Returns a hazard if no attention adds a bias to its scores.
    fn alibi(&self, model: &Model, file: &str) -> Option<Hazard> {
        let is_missing = match self {
            Self::GroupQuery(nodes) => nodes.iter().all(|node| node.input(ATTENTION_BIAS).is_none()),
            Self::Masked => {
                matches!(mask_rule(model, BIAS_TOKENS), Some(MaskRule::Causal | MaskRule::Windows(_)))
            }
            Self::Static => false,
        };
        is_missing.then(|| Hazard::AlibiMissing { file: file.to_owned() })
    }
}

/// Returns the window of a `GroupQueryAttention`, or `None` if it has none.
fn window_of(node: &Node<'_>) -> Option<usize> {
    usize::try_from(node.attribute("local_window_size")?.i?).ok().filter(|&window| window > 0)
}

/// Returns `true` if two windows differ by more than 1. Exporters disagree on whether a token itself counts.
fn differs(left: usize, right: usize) -> bool {
    left.abs_diff(right) > 1
}

/// Returns a hazard if a table of positions has fewer rows than a text may have tokens.
fn context_of(graph: &Graph<'_>, decoder: &Decoder<'_>, file: &str, context: usize) -> Option<Hazard> {
    let positions = decoder.input(InputRole::PositionIds).map(|positions| positions.name);
    let tables = graph.nodes().iter().filter_map(|node| {
        let table = match node.op_type() {
            "Gather" if node.is("Gather") => {
                node.input(0).filter(|_| node.input(1).is_some() && node.input(1) == positions)?
            }
            "GroupQueryAttention" if node.domain() == "com.microsoft" => node.input(COS_CACHE)?,
            _ => return None,
        };
        let rows = *graph.initializer(table)?.dims.first()?;
        Some((usize::try_from(rows).ok()?, table))
    });
    let (rows, table) = tables.min()?;
    (rows < context).then(|| Hazard::ContextShorter {
        file: file.to_owned(),
        context,
        table: table.to_owned(),
        rows,
    })
}
