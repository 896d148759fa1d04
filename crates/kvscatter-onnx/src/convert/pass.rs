//! One pass of a conversion.

use std::collections::BTreeSet;

use super::equivalence::{Comparison, Correspondence};
use super::options::ConvertOptions;
use super::probe::{Inputs, SAMPLES};
use super::probes::Padding;
use super::refusal::{ConvertError, ConvertRefusal};
use super::report::{CacheReport, Claim, KeptState, Report};
use crate::decoder::{Cache, Decoder};
use crate::edit::Origins;
use crate::fold::{Fold, FoldError};
use crate::{EvalError, Graph, Model, Node, OnnxError};

/// One change of a decoder.
pub(super) struct Pass {
    pub(super) name: &'static str,
    /// What the change keeps.
    pub(super) claim: Claim,
    /// What the pass does to caches.
    pub(super) stage: Stage,
    /// Whether the pass replaces the node that writes a cache.
    pub(super) takes: fn(&Decoder<'_>, &Cache<'_>) -> bool,
    pub(super) run: for<'m> fn(&Subject<'_, 'm>) -> Result<Option<Change>, OnnxError>,
}

/// What a pass does to caches, which determines the decoders that it may change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// It prepares a decoder whose caches are not static.
    Prepares,
    /// It makes caches static.
    MakesStatic,
    /// It changes static caches.
    AfterStatic,
}

/// A decoder that a pass may change.
pub(super) struct Subject<'a, 'm> {
    pub(super) model: &'m Model,
    pub(super) graph: &'a Graph<'m>,
    pub(super) decoder: &'a Decoder<'m>,
    pub(super) options: ConvertOptions,
    /// Where the exported decoder supports padding.
    pub(super) padding: Padding,
}

/// What a pass has changed.
pub(super) struct Change {
    pub(super) model: Model,
    /// Where the nodes of the new graph come from.
    pub(super) origins: Origins,
    /// What was changed, such as `3 GroupQueryAttention`.
    pub(super) what: String,
    /// What was compared.
    pub(super) proof: String,
    /// The values that have other axes. The pass proves them.
    pub(super) moved: BTreeSet<String>,
    /// Where the decoder supports padding, if the change shows it.
    pub(super) padding: Option<Padding>,
    /// The report of the pass that makes the caches static.
    pub(super) report: Option<Report>,
    /// The caches that got a narrower type, with their costs.
    pub(super) narrowed: Option<CacheReport>,
    /// The states, if they got outputs.
    pub(super) states: Option<Vec<KeptState>>,
}

impl<'m> Subject<'_, 'm> {
    /// Evaluates the decoder in a small step.
    ///
    /// # Errors
    /// Returns a [`ConvertRefusal`] for inputs of unknown sizes or of too many elements.
    pub(super) fn small_step(&self) -> Result<Fold<'m>, OnnxError> {
        self.step_of(2).map(|(fold, _)| fold)
    }

    /// Evaluates the decoder in a step of this many new tokens, if the model does not fix the number. Returns their
    /// number as well.
    ///
    /// # Errors
    /// Returns the errors of [`small_step`](Self::small_step).
    pub(super) fn step_of(&self, new: usize) -> Result<(Fold<'m>, usize), OnnxError> {
        let max_seq = self.options.max_seq;
        let inputs = Inputs::checked(self.decoder, max_seq)?;
        let external = self.model.shared_external_data()?;
        let mut fold = Fold::new(self.graph, external.as_ref());
        let probe = inputs.probe(SAMPLES, 3, new.min(max_seq)).within(max_seq);
        // The mask of static caches has an element for each slot.
        let is_static = self.decoder.caches.iter().all(Cache::is_static);
        let probe = if is_static { probe.ending(max_seq) } else { probe };
        let new = probe.new;
        inputs.with_blocks(probe).feed(&inputs, &mut fold)?;
        Ok((fold, new))
    }
}

/// Checks that a changed decoder computes the same masks, positions and shapes in a small step. Hidden states have no
/// elements in it, so the pass itself proves the nodes that compute them, and values with other axes.
///
/// Returns `false` if the decoder cannot be evaluated before the change, such as one whose heads are merged with its
/// samples.
///
/// # Errors
/// Returns [`ConvertRefusal::PassDiffers`], wrapped with a node of the changed graph, and errors of the evaluation.
pub(super) fn check(pass: &Pass, subject: &Subject<'_, '_>, change: &Change) -> Result<bool, OnnxError> {
    let Subject { graph: before, options, padding, .. } = *subject;
    let mut exported = match evaluated(subject) {
        Err(error) if cannot_be_evaluated(&error) => return Ok(false),
        exported => exported?,
    };
    let (model, graph) = (&change.model, &change.model.graph()?);
    let decoder = &Decoder::from_graph(graph)?;
    let changed = Subject { model, graph, decoder, options, padding };
    let correspondence = |name| match before.name(name) {
        Some(_) if before.initializer(name).is_none() && !change.moved.contains(name) => {
            Correspondence::Exported(name)
        }
        _ => Correspondence::NotCompared,
    };
    let mut changed = changed.small_step()?;
    let mut comparison = Comparison {
        exported: &mut exported,
        changed: &mut changed,
        correspondence: &correspondence,
        sample: None,
        may_be_open: true,
    };
    comparison.check(graph).map_err(|error| differs(pass, error))?;
    Ok(true)
}

/// Evaluates all values of a decoder in a small step.
fn evaluated<'m>(subject: &Subject<'_, 'm>) -> Result<Fold<'m>, OnnxError> {
    let mut fold = subject.small_step()?;
    let mut values = subject.graph.nodes().iter().flat_map(Node::outputs);
    values.try_for_each(|value| fold.known(value).map(drop))?;
    Ok(fold)
}

/// Returns `true` if an error is about an operator or a size, and not about a file or an invalid graph.
fn cannot_be_evaluated(error: &OnnxError) -> bool {
    error.cause::<FoldError>().is_some()
        || error.cause::<EvalError>().is_some()
        || error.cause::<ConvertRefusal>().is_some()
}

/// Names the pass in an error about a value that differs.
fn differs(pass: &Pass, error: OnnxError) -> OnnxError {
    let Some(ConvertRefusal::LengthDependence { value }) = error.cause() else { return error };
    let refusal = ConvertRefusal::PassDiffers { pass: pass.name, value: value.clone() };
    error.caused_by(refusal)
}

impl Change {
    pub(super) fn new(model: Model, origins: Origins) -> Self {
        let (what, proof, moved) = Default::default();
        Self { model, origins, what, proof, moved, padding: None, report: None, narrowed: None, states: None }
    }

    /// Sets what was changed.
    pub(super) fn what(self, what: String) -> Self {
        Self { what, ..self }
    }

    /// Sets what was compared.
    pub(super) fn proof(self, proof: impl Into<String>) -> Self {
        Self { proof: proof.into(), ..self }
    }
}

/// Converts an error about a node of a changed graph to an error about the node that it comes from, because the user
/// has only the exported model.
pub(super) fn at_origin(mut error: OnnxError, origins: &Origins, exported: &Graph<'_>) -> OnnxError {
    move_to_origin(&mut error, origins, exported);
    error
}

/// Changes an error as [`at_origin`] does.
pub(super) fn move_to_origin(error: &mut OnnxError, origins: &Origins, exported: &Graph<'_>) {
    if let Some(ConvertError::Capacity { cause, .. }) = error.cause_mut() {
        return move_to_origin(cause, origins, exported);
    }
    if let OnnxError::InNode { node, .. } = error
        && let Some(origin) = origins.index_of(node.index).and_then(|index| exported.nodes().get(index))
    {
        **node = origin.label();
    }
}
