//! Lays out the constant weights of a plan's products when the model is loaded.
//!
//! This happens after tract has simplified the model, so that constants are folded, and before it chooses kernels.

use std::sync::Arc;

use kvscatter::Isa;
use tract_onnx::tract_core::ops::einsum::EinSum;
use tract_onnx::tract_hir::internal::*;

use crate::constant_product::ConstantProduct;
use crate::matmul_nbits::MatMulNBits;
use crate::product::Product;

/// Replaces each product with constant weights of a decluttered model by a [`ConstantProduct`]. The weights of one
/// product at a time are in memory twice.
pub(crate) fn lay_out(model: &mut TypedModel) -> TractResult<()> {
    for id in model.eval_order()? {
        let node = model.node(id);
        let patch = if let Some(op) = node.op_as::<MatMulNBits>() {
            op.lay_out(model, node)?
        } else if let Some(op) = node.op_as::<EinSum>() {
            of_einsum(op, model, node)?
        } else {
            None
        };
        // This also frees the constant, if no other node reads it.
        patch.map_or(Ok(()), |patch| patch.apply(model))?;
    }
    Ok(())
}

/// Returns the patch that replaces the product of a matrix of float32 constants, or `None` if the node is another
/// product.
fn of_einsum(op: &EinSum, model: &TypedModel, node: &TypedNode) -> TractResult<Option<TypedModelPatch>> {
    let facts = model.node_input_facts(node.id)?;
    let ([a, b], true) = (&*facts, op.operating_dt == f32::datum_type() && op.q_params.is_none()) else {
        return Ok(None);
    };
    let (x, weights) = match (&a.konst, &b.konst) {
        (None, Some(weights)) => (0, weights),
        (Some(weights), None) => (1, weights),
        _ => return Ok(None),
    };
    let is_float = |fact: &TypedFact| fact.datum_type == f32::datum_type() && fact.exotic_fact.is_none();
    if !facts.iter().all(|fact| is_float(fact)) || !weights.is_plain_ram() {
        return Ok(None);
    }
    let Some(mut axes) = Axes::find(op, x, weights) else { return Ok(None) };
    axes.rows.sort_by_key(|[_, of_output]| *of_output);
    axes.depth.sort_by_key(|[of_input, _]| *of_input);
    axes.columns.sort_by_key(|[_, of_output]| *of_output);
    let size = |axes: &[[usize; 2]], side: usize| -> usize {
        axes.iter().map(|axis| weights.shape()[axis[side]]).product()
    };
    let [depth, columns] = [size(&axes.depth, 1), size(&axes.columns, 0)];
    if depth < 2 || columns < 2 {
        return Ok(None);
    }
    let Some(product) = axes.product(weights, [depth, columns])? else {
        bail!("weights do not fit into memory")
    };
    let outputs: TVec<usize> =
        axes.rows.iter().map(|axis| axis[1]).chain(axes.columns.iter().map(|axis| axis[1])).collect();
    let output_axes =
        (0..outputs.len()).map(|axis| outputs.iter().position(|of| *of == axis).unwrap_or(axis));
    let op = ConstantProduct {
        product: Arc::new(product),
        input_axes: axes.rows.iter().chain(&axes.depth).map(|axis| axis[0]).collect(),
        row_axes: axes.rows.len(),
        columns: axes.columns.iter().map(|axis| weights.shape()[axis[0]]).collect(),
        output_axes: output_axes.collect(),
    };
    let mut patch = TypedModelPatch::new("lay out constant weights");
    let x = patch.tap_model(model, node.inputs[x])?;
    let y = patch.wire_node(&node.name, op, &[x])?;
    patch.shunt_outside(model, node.id.into(), y[0])?;
    Ok(Some(patch))
}

/// The axes of a product, by what they index.
#[derive(Default)]
struct Axes {
    /// Axes of the rows, in the activations and in the result.
    rows: TVec<[usize; 2]>,
    /// Axes of the depth, in the activations and in the weights.
    depth: TVec<[usize; 2]>,
    /// Axes of the columns, in the weights and in the result.
    columns: TVec<[usize; 2]>,
}

impl Axes {
    /// Returns the axes of a product, or `None` if there is more than one matrix of weights.
    fn find(op: &EinSum, x: usize, weights: &Tensor) -> Option<Self> {
        let mut axes = Self::default();
        for axis in op.axes.iter_all_axes() {
            let [in_x, in_weights, in_y] = [&axis.inputs[x], &axis.inputs[1 - x], &axis.outputs[0]];
            let in_weights: TVec<usize> = in_weights
                .iter()
                .copied()
                .filter(|axis| weights.shape()[*axis] != 1 || in_x.is_empty())
                .collect();
            match (&**in_x, &*in_weights, &**in_y) {
                ([x], [weights], []) => axes.depth.push([*x, *weights]),
                ([x], [], [y]) => axes.rows.push([*x, *y]),
                ([], [weights], [y]) => axes.columns.push([*weights, *y]),
                ([], [only], []) if weights.shape()[*only] == 1 => {}
                _ => return None,
            }
        }
        Some(axes)
    }

    /// Lays out the weights, or returns `None` if there is not enough memory.
    fn product(&self, weights: &Arc<Tensor>, shape: [usize; 2]) -> TractResult<Option<Product>> {
        let isa = Isa::allowed();
        let strides = weights.strides();
        if let ([[_, depth]], [[columns, _]]) = (&*self.depth, &*self.columns) {
            let strides = [strides[*depth], strides[*columns]].map(usize::try_from);
            let [Ok(depth), Ok(columns)] = strides else { return Ok(None) };
            let plain = weights.try_as_plain_ram()?;
            return Ok(Product::of_floats(shape, [depth, columns], plain.as_slice()?, isa));
        }
        let mut order: TVec<usize> = self.depth.iter().map(|axis| axis[1]).collect();
        order.extend(self.columns.iter().map(|axis| axis[0]));
        order.extend((0..weights.rank()).filter(|axis| !order.contains(axis)).collect::<TVec<_>>());
        let moved = (**weights).clone().permute_axes(&order)?;
        let plain = moved.try_as_plain_ram()?;
        Ok(Product::of_floats(shape, [shape[1], 1], plain.as_slice()?, isa))
    }
}

#[cfg(test)]
mod tests {
    use tract_onnx::tract_core::ops::einsum::EinSum;
    use tract_onnx::tract_hir::internal::*;

    use super::lay_out;
    use crate::constant_product::ConstantProduct;

    /// Returns small whole numbers, whose products and sums float32 contains exactly.
    fn tensor(shape: &[usize]) -> Tensor {
        let values: Vec<f32> =
            (0..shape.iter().product()).map(|index| (index * 7 % 11) as f32 - 5.0).collect();
        Tensor::from_shape(shape, &values).unwrap()
    }

    /// Returns the number of products that were laid out, with the results before and after.
    fn results(
        equation: &str,
        activations: &[usize],
        weights: &[usize],
        constant: usize,
    ) -> (usize, [Tensor; 2]) {
        let mut model = TypedModel::default();
        let x = model.add_source("x", f32::datum_type().fact(activations)).unwrap();
        let weights = model.add_const("weights", tensor(weights)).unwrap();
        let inputs = if constant == 0 { [weights, x] } else { [x, weights] };
        let op = EinSum::new(equation.parse().unwrap(), f32::datum_type());
        let y = model.wire_node("y", op, &inputs).unwrap();
        model.select_output_outlets(&y).unwrap();
        let run = |model: &TypedModel| {
            let plan = model.clone().into_runnable().unwrap();
            plan.run(tvec![tensor(activations).into_tvalue()]).unwrap().remove(0).into_tensor()
        };
        let before = run(&model);
        lay_out(&mut model).unwrap();
        let made = model.nodes().iter().filter(|node| node.op_is::<ConstantProduct>()).count();
        (made, [before, run(&model)])
    }

    #[test]
    fn products_of_one_constant_matrix_are_laid_out_with_axes_in_any_order() {
        type Case = (&'static str, &'static [usize], &'static [usize], usize, usize);
        let cases: &[Case] = &[
            ("mk,kn->mn", &[3, 40], &[40, 70], 1, 1),
            ("mk,nk->mn", &[3, 40], &[70, 40], 1, 1),
            ("mk,kn->nm", &[3, 40], &[40, 70], 1, 1),
            ("kn,mk->mn", &[3, 40], &[40, 70], 0, 1),
            ("km,kn->mn", &[40, 3], &[40, 70], 1, 1),
            ("bmk,kn->bmn", &[2, 3, 40], &[40, 70], 1, 1),
            ("bmk,kn->mbn", &[2, 3, 40], &[40, 70], 1, 1),
            ("bmk,bkn->bmn", &[2, 3, 40], &[1, 40, 70], 1, 1),
            ("bsk,khd->bhsd", &[2, 3, 40], &[40, 5, 8], 1, 1),
            ("bsk,hkd->bshd", &[2, 3, 40], &[5, 40, 8], 1, 1),
            ("bshd,hdn->bsn", &[2, 3, 5, 8], &[5, 8, 70], 1, 1),
            ("bshd,dhn->nbs", &[2, 3, 5, 8], &[8, 5, 70], 1, 1),
            ("k,kn->n", &[40], &[40, 70], 1, 1),
            // A matrix of weights for each sample, a vector of weights, and an outer product stay as they are.
            ("bmk,bkn->bmn", &[2, 3, 40], &[2, 40, 70], 1, 0),
            ("mk,kn->mn", &[3, 40], &[40, 1], 1, 0),
            ("mk,kn->mn", &[3, 1], &[1, 70], 1, 0),
        ];
        for &(equation, activations, weights, constant, laid_out) in cases {
            let (made, [before, after]) = results(equation, activations, weights, constant);
            assert_eq!(made, laid_out, "{equation} of {activations:?} and {weights:?}");
            assert_eq!(before, after, "{equation} of {activations:?} and {weights:?}");
        }
    }
}
