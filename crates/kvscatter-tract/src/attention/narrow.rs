//! Computes masks only for the columns of valid slots.
//!
//! `Attention` does not read a column of its mask at or after the largest of its lengths, and a mask may have
//! fewer columns than there are slots. So the mask is cut to [`ValidColumns`]. A cut commutes with an
//! operator that computes each element from the elements at its position, so the cut moves from the mask to
//! the constants and inputs that the mask is computed from. A step then takes the same time for every
//! capacity.
//!
//! An operator that is not known to compute elements in this way is computed for all slots, and its result is
//! cut.

use std::collections::{HashMap, HashSet};

use tract_onnx::tract_core::ops::array::MultiBroadcastTo;
use tract_onnx::tract_core::ops::binary::TypedBinOp;
use tract_onnx::tract_core::ops::cast::Cast;
use tract_onnx::tract_core::ops::element_wise::ElementWiseOp;
use tract_onnx::tract_core::ops::logic::Iff;
use tract_onnx::tract_hir::internal::*;

use super::operator::AttentionNode;
use super::valid_columns::{BLOCK, ValidColumns};

/// The longest chain of operators that a cut moves over. It bounds the recursion over an untrusted model.
const MAX_DEPTH: usize = 64;

/// Cuts the mask of a node, for all nodes of attention that read it. Returns `None` if something else reads
/// the mask, or if the mask cannot be cut.
pub(super) fn narrow(model: &TypedModel, node: &TypedNode) -> TractResult<Option<TypedModelPatch>> {
    let Some(cut) = Cut::find(model, node) else { return Ok(None) };
    let outlet = model.node(cut.mask.node).outputs.get(cut.mask.slot).context("an outlet of the model")?;
    let is_reader = |inlet: &InletId| {
        let reader = Cut::find(model, model.node(inlet.node));
        inlet.slot == cut.inlet && reader.as_ref() == Some(&cut)
    };
    if model.outputs.contains(&cut.mask) || !outlet.successors.iter().all(is_reader) {
        return Ok(None);
    }
    let readers: HashSet<usize> = outlet.successors.iter().map(|inlet| inlet.node).collect();
    let mut narrowing = Narrowing::new(model, &cut)?;
    let mask = narrowing.cut(cut.mask, cut.axis, MAX_DEPTH)?;
    // tract repeats this function until it returns `None`. A mask that kept its size would be cut again without end.
    if narrowing.patch.outlet_fact(mask)?.shape.dims().get(cut.axis) != Some(&narrowing.columns) {
        return Ok(None);
    }
    // A reader may read what another one returns, which is then replaced first.
    for reader in model.eval_order()?.into_iter().filter(|node| readers.contains(node)) {
        narrowing.replace(model.node(reader), cut.inlet, mask)?;
    }
    Ok(Some(narrowing.patch))
}

/// The mask of a node and where it can be cut. Nodes with equal cuts can share a mask.
#[derive(PartialEq)]
struct Cut {
    mask: OutletId,
    /// The index of the mask among the inputs.
    inlet: usize,
    lengths: OutletId,
    /// The dimension of the mask for slots, and its size.
    axis: usize,
    capacity: TDim,
}

impl Cut {
    /// Returns `None` if a node is not an attention with lengths and a mask of all slots, or if it returns
    /// its scores, which include those of slots that are not valid.
    fn find(model: &TypedModel, node: &TypedNode) -> Option<Self> {
        let attention = node.op_as::<AttentionNode>().filter(|attention| !attention.op.has_scores())?;
        let inlet = attention.inputs.mask?;
        let mask = *node.inputs.get(inlet)?;
        let lengths = *node.inputs.get(attention.inputs.nonpad_kv_seqlen?)?;
        let key = model.outlet_fact(*node.inputs.get(1)?).ok()?;
        let capacity = key.shape.dims().get(if key.rank() == 3 { 1 } else { 2 })?.clone();
        let columns = model.outlet_fact(mask).ok()?.shape.dims();
        let axis = columns.len().checked_sub(1).filter(|axis| columns.get(*axis) == Some(&capacity))?;
        let is_small = capacity.to_usize().is_ok_and(|capacity| capacity <= BLOCK);
        (!is_small).then_some(Self { mask, inlet, lengths, axis, capacity })
    }
}

/// A patch that computes values for the valid slots only.
struct Narrowing<'a> {
    model: &'a TypedModel,
    patch: TypedModelPatch,
    taps: HashMap<OutletId, OutletId>,
    /// The values that are cut along a dimension.
    cuts: HashMap<(OutletId, usize), OutletId>,
    lengths: OutletId,
    capacity: &'a TDim,
    columns: TDim,
}

impl<'a> Narrowing<'a> {
    fn new(model: &'a TypedModel, cut: &'a Cut) -> TractResult<Self> {
        let mut patch = TypedModelPatch::new("masks are computed for valid slots");
        let lengths = patch.tap_model(model, cut.lengths)?;
        let columns = TDim::from(model.symbols.new_with_prefix("mask_columns"));
        let (taps, cuts) = (HashMap::from([(cut.lengths, lengths)]), HashMap::new());
        Ok(Self { model, patch, taps, cuts, lengths, capacity: &cut.capacity, columns })
    }

    fn tap(&mut self, outlet: OutletId) -> TractResult<OutletId> {
        if let Some(tap) = self.taps.get(&outlet) {
            return Ok(*tap);
        }
        let tap = self.patch.tap_model(self.model, outlet)?;
        self.taps.insert(outlet, tap);
        Ok(tap)
    }

    /// Returns a value, of which dimension `axis` has an element for each slot, for the valid slots only.
    fn cut(&mut self, outlet: OutletId, axis: usize, depth: usize) -> TractResult<OutletId> {
        if let Some(done) = self.cuts.get(&(outlet, axis)) {
            return Ok(*done);
        }
        let node = self.model.node(outlet.node);
        let name = format!("{}.valid_columns", node.name);
        let sources = if depth == 0 { None } else { self.sources(node, axis)? };
        let wired = match sources {
            Some(Sources { op, axes }) => {
                let mut inputs = TVec::new();
                for (input, axis) in node.inputs.iter().zip(axes) {
                    inputs.push(match axis {
                        Some(axis) => self.cut(*input, axis, depth.saturating_sub(1))?,
                        None => self.tap(*input)?,
                    });
                }
                self.patch.wire_node(name, op, &inputs)?
            }
            None => {
                let all = self.tap(outlet)?;
                let columns = ValidColumns { axis, columns: self.columns.clone() };
                self.patch.wire_node(name, columns, &[all, self.lengths])?
            }
        };
        let narrowed = *wired.first().context("an operator has an output")?;
        self.cuts.insert((outlet, axis), narrowed);
        Ok(narrowed)
    }

    /// Returns how the valid slots of a node's output are computed from those of its inputs. Returns `None`
    /// if its operator is not known to compute each slot alone.
    fn sources(&self, node: &TypedNode, axis: usize) -> TractResult<Option<Sources>> {
        let op = node.op.clone();
        if node.op_is::<ElementWiseOp>() || node.op_is::<Cast>() {
            return Ok(Some(Sources { op, axes: tvec!(Some(axis)) }));
        }
        if let Some(change @ (AxisOp::Add(_) | AxisOp::Rm(_) | AxisOp::Move(..))) = node.op_as() {
            let before = change.recip().transform_axis(axis);
            return Ok(before.map(|axis| Sources { op, axes: tvec!(Some(axis)) }));
        }
        let rank = node.outputs.first().map_or(0, |output| output.fact.rank());
        let mut axes = TVec::new();
        for input in &node.inputs {
            let dims = self.model.outlet_fact(*input)?.shape.dims();
            let axis = (axis + dims.len()).checked_sub(rank);
            axes.push(axis.filter(|axis| dims.get(*axis) == Some(self.capacity)));
            let is_repeated = axis.and_then(|axis| dims.get(axis)).is_none_or(|dim| dim.is_one());
            if axes.last() == Some(&None) && !is_repeated {
                return Ok(None);
            }
        }
        if axes.iter().all(Option::is_none) {
            return Ok(None);
        }
        if node.op_is::<TypedBinOp>() || node.op_is::<Iff>() {
            return Ok(Some(Sources { op, axes }));
        }
        Ok(node.op_as::<MultiBroadcastTo>().map(|broadcast| {
            let mut shape = broadcast.shape.clone();
            shape.set(axis, self.columns.clone());
            Sources { op: Box::new(MultiBroadcastTo { shape }), axes }
        }))
    }

    /// Replaces the mask of a node.
    fn replace(&mut self, node: &TypedNode, inlet: usize, mask: OutletId) -> TractResult<()> {
        let mut inputs = TVec::new();
        for (index, input) in node.inputs.iter().enumerate() {
            inputs.push(if index == inlet { mask } else { self.tap(*input)? });
        }
        let outputs = self.patch.wire_node(&node.name, node.op.clone(), &inputs)?;
        for (slot, output) in outputs.into_iter().enumerate() {
            let replaced = OutletId::new(node.id, slot);
            self.patch.shunt_outside(self.model, replaced, output)?;
            // A later reader of this output takes the new one.
            self.taps.insert(replaced, output);
        }
        self.patch.obliterate(node.id)
    }
}

/// How the valid slots of a node's output are computed from those of its inputs.
struct Sources {
    op: Box<dyn TypedOp>,
    /// The dimension of each input that has an element for each slot. Other inputs have one element for all
    /// slots.
    axes: TVec<Option<usize>>,
}
