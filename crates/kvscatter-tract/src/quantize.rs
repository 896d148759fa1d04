//! The `QuantizeLinear` operator with one scale for each row, which tract does not have. tract's operator is used for
//! all other scales.

use std::sync::LazyLock;

use tract_onnx::Onnx;
use tract_onnx::model::ParsingContext;
use tract_onnx::pb::NodeProto;
use tract_onnx::pb::tensor_proto::DataType as TensorType;
use tract_onnx::tract_hir::internal::*;

use crate::attributes::{Attributes, given_index};
use crate::error::{NodeError, label};

const FLOAT: i64 = TensorType::Float as i64;
const INT8: i64 = TensorType::Int8 as i64;

/// tract's own operators.
static THEIRS: LazyLock<Onnx> = LazyLock::new(tract_onnx::onnx);

/// Builds the operator of a node.
pub(crate) fn build(
    context: &ParsingContext<'_>,
    node: &NodeProto,
) -> TractResult<(Box<dyn InferenceOp>, Vec<String>)> {
    let blocks = node.attribute.iter().find(|attribute| attribute.name == "block_size");
    match THEIRS.op_register.0.get("QuantizeLinear") {
        Some(theirs) if blocks.is_none_or(|size| size.i == 0) => theirs(context, node),
        _ => Ok((expand(QuantizeRows::new(node)?), vec![])),
    }
}

/// The operator of one node. It divides each row, the elements along the last axis, by its scale, and rounds to int8.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct QuantizeRows {
    node: String,
    axis: i64,
    block_size: i64,
}

impl QuantizeRows {
    pub(crate) fn new(node: &NodeProto) -> Result<Self, NodeError> {
        let known = ["axis", "block_size", "output_dtype", "precision", "saturate"];
        let attributes = Attributes::read(node, &known)?;
        let integer = |name| attributes.integer(name);
        let (to, precision) = (integer("output_dtype")?, integer("precision")?.unwrap_or_default());
        if to != Some(INT8) || ![0, FLOAT].contains(&precision) {
            return Err(NodeError::new(node, "blocks are quantised only with output_dtype int8, in float32"));
        }
        if node.input.len() != 2 || (0..2).any(|index| given_index(&node.input, index).is_none()) {
            return Err(NodeError::new(node, "blocks are quantised only without a zero point"));
        }
        let (axis, block_size) = (integer("axis")?.unwrap_or(1), integer("block_size")?.unwrap_or_default());
        Ok(Self { node: label(node), axis, block_size })
    }

    fn error(&self, why: impl std::fmt::Display) -> NodeError {
        NodeError { node: self.node.clone(), op: "QuantizeLinear".to_owned(), why: why.to_string() }
    }

    /// Returns `true` if a block is a row of a tensor with this rank and last size.
    pub(crate) fn takes_rows(&self, rank: usize, size: i64) -> bool {
        let axis = i64::try_from(rank).unwrap_or(i64::MAX).saturating_sub(1);
        [-1, axis].contains(&self.axis) && self.block_size == size
    }

    /// Checks that each row has one scale, as far as the shapes are known.
    fn check(&self, x: &[TDim], scale: &[TDim]) -> Result<(), NodeError> {
        let (Some((size, rows)), Some((of_row, scaled))) = (x.split_last(), scale.split_last()) else {
            return Err(self.error("x and y_scale must have the same rank, which is not 0"));
        };
        let takes = self.takes_rows(x.len(), size.to_i64().unwrap_or(self.block_size));
        if !takes || rows != scaled || !of_row.is_one() {
            let why = format!(
                "a block must be a whole row, got block_size {} of axis {}, x {x:?} and y_scale {scale:?}",
                self.block_size, self.axis
            );
            return Err(self.error(why));
        }
        Ok(())
    }
}

impl Expansion for QuantizeRows {
    fn name(&self) -> StaticName {
        "QuantizeLinear".into()
    }

    fn rules<'r, 'p: 'r, 's: 'r>(
        &'s self,
        solver: &mut Solver<'r>,
        inputs: &'p [TensorProxy],
        outputs: &'p [TensorProxy],
    ) -> InferenceResult {
        check_input_arity(inputs, 2)?;
        check_output_arity(outputs, 1)?;
        let ([x, scale], [y]) = (inputs, outputs) else { bail!("inputs are missing") };
        solver.equals(&y.datum_type, i8::datum_type())?;
        solver.equals(&x.rank, &scale.rank)?;
        solver.equals(&x.shape, &y.shape)
    }

    fn wire(&self, prefix: &str, model: &mut TypedModel, inputs: &[OutletId]) -> TractResult<TVec<OutletId>> {
        model.wire_node(prefix, self.clone(), inputs)
    }
}

impl Op for QuantizeRows {
    fn name(&self) -> StaticName {
        "QuantizeLinear".into()
    }

    op_as_typed_op!();
}

impl TypedOp for QuantizeRows {
    fn output_facts(&self, inputs: &[&TypedFact]) -> TractResult<TVec<TypedFact>> {
        let [x, scale] = inputs else { bail!("inputs are missing") };
        if [x, scale].iter().any(|fact| fact.datum_type != f32::datum_type()) {
            let why =
                format!("x is {:?}, y_scale {:?}: both must be float32", x.datum_type, scale.datum_type);
            return Err(self.error(why).into());
        }
        self.check(&x.shape, &scale.shape)?;
        Ok(tvec!(i8::fact(&*x.shape)))
    }

    as_op!();
}

impl EvalOp for QuantizeRows {
    op_out_of_plan!();

    fn eval(&self, _: &EvalContext<'_>, inputs: TVec<TValue>) -> TractResult<TVec<TValue>> {
        let (x, scale) = args_2!(inputs);
        let dims =
            |tensor: &Tensor| -> TVec<TDim> { tensor.shape().iter().map(|size| size.to_dim()).collect() };
        self.check(&dims(&x), &dims(&scale))?;
        let mut codes = Tensor::zero::<i8>(x.shape())?;
        let size = x.shape().last().copied().unwrap_or_default().max(1);
        let (x, scale) = (x.try_as_plain_ram()?, scale.try_as_plain_ram()?);
        {
            let mut codes = codes.try_as_plain_ram_mut()?;
            let rows = codes
                .as_slice_mut::<i8>()?
                .chunks_exact_mut(size)
                .zip(x.as_slice::<f32>()?.chunks_exact(size));
            for ((codes, row), scale) in rows.zip(scale.as_slice::<f32>()?) {
                for (code, x) in codes.iter_mut().zip(row) {
                    // Numbers beyond int8 become the nearest code, and NaN becomes 0.
                    *code = (x / scale).round_ties_even() as i8;
                }
            }
        }
        Ok(tvec!(codes.into_tvalue()))
    }
}
