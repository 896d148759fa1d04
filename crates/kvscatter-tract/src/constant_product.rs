//! The operator of a product whose weights are laid out.

use std::sync::Arc;

use tract_onnx::tract_hir::internal::*;

use crate::product::Product;
use crate::threads::Threads;

/// A product whose weights are laid out.
#[derive(Clone, Debug)]
pub(crate) struct ConstantProduct {
    pub(crate) product: Arc<Product>,
    /// The axes of the activations: first those of the rows, then those of the depth.
    pub(crate) input_axes: TVec<usize>,
    /// How many axes of the activations are axes of the rows.
    pub(crate) row_axes: usize,
    /// The sizes of the axes of the weights' columns.
    pub(crate) columns: TVec<usize>,
    /// For each axis of the result, its index among the axes of the rows and then of the columns.
    pub(crate) output_axes: TVec<usize>,
}

impl ConstantProduct {
    /// Multiplies the last of `rank` axes of the activations.
    pub(crate) fn of_last_axis(product: Product, rank: usize) -> Self {
        let [_, columns] = product.shape();
        Self {
            product: Arc::new(product),
            input_axes: (0..rank).collect(),
            row_axes: rank.saturating_sub(1),
            columns: tvec!(columns),
            output_axes: (0..rank).collect(),
        }
    }

    /// Returns the shape of the result for a shape of activations.
    fn output_shape<D: DimLike>(&self, input: &[D]) -> TVec<D> {
        let rows = self.input_axes.iter().take(self.row_axes).map(|axis| input[*axis].clone());
        let all: TVec<D> = rows.chain(self.columns.iter().map(|size| D::from(*size))).collect();
        self.output_axes.iter().map(|axis| all[*axis].clone()).collect()
    }
}

/// Products are equal if they have the same weights in memory.
impl PartialEq for ConstantProduct {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.product, &other.product)
            && (&self.input_axes, self.row_axes) == (&other.input_axes, other.row_axes)
            && (&self.columns, &self.output_axes) == (&other.columns, &other.output_axes)
    }
}

impl Eq for ConstantProduct {}

impl Op for ConstantProduct {
    fn name(&self) -> StaticName {
        "ConstantProduct".into()
    }

    op_as_typed_op!();
}

impl EvalOp for ConstantProduct {
    op_out_of_plan!();

    fn eval(&self, _: &EvalContext<'_>, inputs: TVec<TValue>) -> TractResult<TVec<TValue>> {
        let x = args_1!(inputs);
        // The size may be a symbol that is known in a run only.
        let [expected, _] = self.product.shape();
        let depth: usize = self.input_axes.iter().skip(self.row_axes).map(|axis| x.shape()[*axis]).product();
        ensure!(depth == expected, "activations must have {expected} columns, got {depth}");
        let x = permuted(x, &self.input_axes)?;
        let rows = x.shape().iter().take(self.row_axes);
        let shape_of_product: TVec<usize> = rows.chain(&self.columns).copied().collect();
        let mut y = Tensor::zero::<f32>(&shape_of_product)?;
        let threads = Threads::current();
        let x = x.try_as_plain_ram()?;
        self.product.run(x.as_slice()?, y.try_as_plain_ram_mut()?.as_slice_mut()?, threads.executor());
        Ok(tvec!(permuted(y.into_tvalue(), &self.output_axes)?))
    }
}

impl TypedOp for ConstantProduct {
    fn output_facts(&self, inputs: &[&TypedFact]) -> TractResult<TVec<TypedFact>> {
        let [x] = inputs else { bail!("takes the activations, got {} inputs", inputs.len()) };
        Ok(tvec!(f32::fact(self.output_shape(&x.shape.to_tvec()))))
    }

    as_op!();
}

/// Moves the axes of a tensor. Axes of size 1 take no copy.
fn permuted(tensor: TValue, axes: &[usize]) -> TractResult<TValue> {
    if axes.is_sorted() {
        return Ok(tensor);
    }
    let shape: TVec<usize> = axes.iter().map(|axis| tensor.shape()[*axis]).collect();
    if axes.iter().filter(|axis| tensor.shape()[**axis] != 1).is_sorted() {
        return Ok(tensor.into_tensor().into_shape(&shape)?.into_tvalue());
    }
    Ok(tensor.into_tensor().permute_axes(axes)?.into_tvalue())
}
