//! How the masks of an exported decoder differ from causal attention over all tokens.

use std::collections::BTreeSet;

use super::caches;
use super::exported::ExportedDecoder;
use super::options::ConvertOptions;
use super::pass::Stage;
use super::passes::{self, PASSES};
use super::refusal::ConvertRefusal;
use super::rule::Rule;
use crate::decoder::Decoder;
use crate::{Model, OnnxError};

/// The rule that the masks of a decoder follow.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum MaskRule {
    /// Every token sees itself and all real tokens before it.
    Causal,
    /// Attention has windows of these numbers of tokens, each once. Other attention may have none.
    Windows(BTreeSet<usize>),
    /// A token does not see all real tokens before it, and the masks are no windows.
    Hidden,
    /// The masks add a bias to the scores.
    Bias,
}

/// Returns the rule that the masks of a decoder with growing caches follow in texts of this many tokens.
/// Returns `None` if the masks cannot be evaluated, or if they follow another rule.
///
/// The check of [`convert`](super::convert()) decides. It evaluates the mask of every attention on probes, of
/// which the longest ends with `tokens` tokens. Only windows of fewer tokens are found, because a longer one
/// hides no slot there.
#[must_use]
pub fn mask_rule(model: &Model, tokens: usize) -> Option<MaskRule> {
    match check(model, tokens) {
        Ok(rules) if rules.iter().any(|rule| rule.bias.is_some()) => Some(MaskRule::Bias),
        Ok(rules) => {
            let windows: BTreeSet<_> = rules.iter().filter_map(|rule| Some(rule.window?.size)).collect();
            Some(if windows.is_empty() { MaskRule::Causal } else { MaskRule::Windows(windows) })
        }
        Err(error) => match error.cause() {
            Some(ConvertRefusal::Visibility { hidden: true, .. }) => Some(MaskRule::Hidden),
            Some(ConvertRefusal::Bias { .. }) => Some(MaskRule::Bias),
            _ => None,
        },
    }
}

/// Checks the masks, and returns the rule of each attention.
fn check(model: &Model, tokens: usize) -> Result<Vec<Rule>, OnnxError> {
    let options = ConvertOptions::new(tokens);
    let preparing = PASSES.iter().filter(|pass| pass.stage == Stage::Prepares);
    let passed = passes::run(model, options, preparing)?;
    let graph = passed.model.graph()?;
    let decoder = Decoder::from_graph(&graph)?;
    caches::check(&graph, &decoder, tokens)?;
    let mut exported = ExportedDecoder::new(&passed.model, &graph, &decoder, tokens, passed.padding)?;
    exported.check_masks()?;
    Ok(exported.rules().cloned().collect())
}
