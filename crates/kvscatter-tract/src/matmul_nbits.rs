//! The `MatMulNBits` operator of `com.microsoft`, a product with weights that are stored in blocks of 2, 4 or
//! 8 bits.
//!
//! This operator replaces tract's, because tract 0.23.9 returns wrong products. tract keeps blocks of 32
//! weights packed. If a `Reshape` merges the heads before the product, tract splits the inner dimension of
//! both operands and moves axes of the packed weights. It then changes their shape but not the order of their
//! bytes (`AxisOp::change_tensor`). tract also rounds the scales of these blocks to float16.
//!
//! The weights stay codes. A [`ConstantProduct`] dequantises them within the product.

use tract_onnx::model::ParsingContext;
use tract_onnx::pb::NodeProto;
use tract_onnx::tract_core::ops::cast::cast;
use tract_onnx::tract_core::ops::math::add;
use tract_onnx::tract_hir::internal::*;
use tract_onnx::tract_hir::ops::logic::wire_with_rank_broadcast;

use crate::attributes::{Attributes, given_index};
use crate::constant_product::ConstantProduct;
use crate::element;
use crate::error::{NodeError, label};
use crate::product::{Codes, Product, Zeros};
use kvscatter::Isa;

const DOMAIN: &str = "com.microsoft";

/// Builds the operator of a node.
pub(crate) fn build(
    _: &ParsingContext<'_>,
    node: &NodeProto,
) -> TractResult<(Box<dyn InferenceOp>, Vec<String>)> {
    Ok((expand(MatMulNBits::new(node)?), vec![]))
}

/// The operator of one node, whose weights are constants of the plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct MatMulNBits {
    node: String,
    format: Format,
    /// The number of inputs of the node that are present.
    inputs: usize,
    /// The indices of the optional inputs among those that are present.
    zero_points: Option<usize>,
    groups: Option<usize>,
    bias: Option<usize>,
}

/// The storage format of the weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Format {
    /// The number of rows of the weight matrix, which is the right operand of the product.
    k: usize,
    /// The number of columns of the weight matrix.
    n: usize,
    bits: u8,
    /// The number of weights of one column that share a scale and a zero point.
    block_size: usize,
}

/// The constants of a node, checked against its [`Format`].
struct Weights {
    /// The codes, column by column. Each column has blocks of whole bytes, and the lowest bits of a byte come
    /// first.
    codes: Arc<Tensor>,
    /// The scale of each block of each column.
    scales: Vec<f32>,
    zeros: Zeros<Vec<u8>, Vec<f32>>,
    /// For each row, the index of the block whose scale and zero point it uses. `None` if every row uses the
    /// block in which it is stored.
    groups: Option<Vec<usize>>,
}

impl MatMulNBits {
    fn new(node: &NodeProto) -> Result<Self, NodeError> {
        let refused = |why: String| NodeError::new(node, why);
        let known = ["K", "N", "accuracy_level", "bits", "block_size", "weight_prepacked"];
        let attributes = Attributes::in_domain(node, DOMAIN, &known)?;
        let size = |name: &str| match attributes.integer(name)? {
            None => Err(refused(format!("attribute {name:?} is missing"))),
            Some(got) => usize::try_from(got)
                .ok()
                .filter(|size| *size > 0)
                .ok_or_else(|| refused(format!("{name} must be at least 1, got {got}"))),
        };
        let bits = match attributes.integer("bits")?.unwrap_or(4) {
            bits @ (2 | 4 | 8) => u8::try_from(bits).unwrap_or_default(),
            bits => return Err(refused(format!("bits must be 2, 4 or 8, got {bits}"))),
        };
        let format = Format { k: size("K")?, n: size("N")?, bits, block_size: size("block_size")? };
        let block_size = format.block_size;
        if block_size < 16 || !block_size.is_power_of_two() {
            let why = format!("block_size must be a power of two of at least 16, got {block_size}");
            return Err(refused(why));
        }
        // The level is the lowest accuracy that the node accepts. This operator computes in float32, the
        // highest accuracy.
        let level = attributes.integer("accuracy_level")?.unwrap_or(0);
        if !(0..=4).contains(&level) {
            return Err(refused(format!("accuracy_level must be between 0 and 4, got {level}")));
        }
        let prepacked = attributes.integer("weight_prepacked")?.unwrap_or(0);
        if prepacked != 0 {
            return Err(refused(format!("weight_prepacked must be 0, got {prepacked}")));
        }
        let groups = given_index(&node.input, 4);
        if groups.is_some() && bits != 4 {
            return Err(refused(format!("g_idx is supported for 4 bits, got {bits}")));
        }
        let count = node.input.len();
        if (0..3).any(|index| given_index(&node.input, index).is_none()) || count > 6 {
            return Err(refused(format!("takes 3 to 6 inputs, got {count}")));
        }
        if given_index(&node.output, 0).is_none() || node.output.len() != 1 {
            return Err(refused(format!("has 1 output, got {}", node.output.len())));
        }
        Ok(Self {
            node: label(node),
            format,
            inputs: node.input.iter().filter(|name| !name.is_empty()).count(),
            zero_points: given_index(&node.input, 3),
            groups,
            bias: given_index(&node.input, 5),
        })
    }

    fn error(&self, why: impl std::fmt::Display) -> NodeError {
        NodeError { node: self.node.clone(), op: format!("{DOMAIN}.MatMulNBits"), why: why.to_string() }
    }

    /// Returns the value of an input, which must be known when the model is loaded.
    fn constant(
        &self,
        what: &str,
        model: &TypedModel,
        inputs: &[OutletId],
        index: usize,
    ) -> TractResult<Arc<Tensor>> {
        let outlet = inputs.get(index).ok_or_else(|| self.error(format!("{what} are missing")))?;
        let value = model.outlet_fact(*outlet)?.konst.clone();
        Ok(value.ok_or_else(|| self.error(format!("{what} must be a constant")))?)
    }

    fn check_len(&self, what: &str, tensor: &Tensor, expected: Option<usize>) -> Result<(), NodeError> {
        match expected {
            Some(expected) if expected == tensor.len() => Ok(()),
            Some(expected) => {
                Err(self.error(format!("{what} must have {expected} elements, got {}", tensor.len())))
            }
            None => Err(self.error(format!("{what} must have more elements than can be addressed"))),
        }
    }

    fn check_type(
        &self,
        what: &str,
        tensor: &Tensor,
        expected: &[DatumType],
        words: &str,
    ) -> Result<(), NodeError> {
        let got = tensor.datum_type();
        if expected.contains(&got) {
            return Ok(());
        }
        let got = element::ours(got).map_or_else(|| format!("{got:?}"), |got| got.onnx_name().to_owned());
        Err(self.error(format!("{what} must be of {words}, got {got}")))
    }

    /// Checks that activations are float32 or float16, and that they have one column for each row of the
    /// weights.
    fn check_activations(&self, fact: &TypedFact) -> Result<(), NodeError> {
        if !matches!(fact.datum_type, DatumType::F32 | DatumType::F16) {
            return Err(
                self.error(format!("activations must be of float or float16, got {:?}", fact.datum_type))
            );
        }
        match fact.shape.last().map(|columns| columns.to_usize()) {
            None => Err(self.error("activations must have a rank of at least 1, got 0")),
            Some(Ok(got)) if got != self.format.k => {
                Err(self.error(format!("activations must have K = {} columns, got {got}", self.format.k)))
            }
            Some(_) => Ok(()),
        }
    }

    /// Checks that there is one bias for each column. A bias need not be a constant.
    fn check_bias(&self, bias: &TypedFact) -> Result<(), NodeError> {
        let n = self.format.n;
        match bias.shape.as_concrete() {
            Some([got]) if *got != n => Err(self.error(format!("bias must have {n} elements, got {got}"))),
            _ if bias.rank() != 1 => {
                Err(self.error(format!("bias must have a rank of 1, got {}", bias.rank())))
            }
            _ => Ok(()),
        }
    }

    /// Returns the constants of a node.
    fn weights(&self, constant: &dyn Fn(&str, usize) -> TractResult<Arc<Tensor>>) -> TractResult<Weights> {
        let codes = constant("weights", 1)?;
        self.check_type("weights", &codes, &[DatumType::U8], "uint8")?;
        self.check_len("weights", &codes, self.format.code_bytes())?;
        let scales = constant("scales", 2)?;
        let scales = self.checked_floats("scales", &scales, "float or float16")?;
        let zeros = self.checked_zero_points(constant)?;
        let groups = match self.groups {
            Some(index) => Some(self.checked_groups(&*constant("g_idx", index)?)?),
            None => None,
        };
        Ok(Weights { codes, scales, zeros, groups })
    }

    /// Lays out the weights.
    fn product(&self, weights: &Weights) -> TractResult<Product> {
        let Format { k, n, bits, block_size } = self.format;
        let Weights { codes, scales, zeros, groups } = weights;
        let codes = codes.try_as_plain_ram()?;
        let codes = Codes { depth: k, bits, block_size, codes: codes.as_slice()?, zeros, scales };
        let isa = Isa::allowed();
        let product = match groups {
            None => Product::of_codes(n, &codes, isa),
            Some(groups) => self
                .format
                .dequantise(&codes, groups)
                .and_then(|values| Product::of_floats([k, n], [1, k], &values, isa)),
        };
        Ok(product.ok_or_else(|| self.error("its weights do not fit into memory"))?)
    }

    /// Returns the patch that lays out the weights.
    pub(crate) fn lay_out(
        &self,
        model: &TypedModel,
        node: &TypedNode,
    ) -> TractResult<Option<TypedModelPatch>> {
        let weights = self.weights(&|what, index| self.constant(what, model, &node.inputs, index))?;
        let rank = model.outlet_fact(node.inputs[0])?.rank();
        let op = ConstantProduct::of_last_axis(self.product(&weights)?, rank);
        Ok(Some(TypedModelPatch::replace_single_op(model, node, &node.inputs[..1], op)?))
    }

    /// Checks that an input has one number for each block of each column, and returns these in float32.
    fn checked_floats(&self, what: &str, floats: &Tensor, words: &str) -> TractResult<Vec<f32>> {
        self.check_type(what, floats, &[DatumType::F32, DatumType::F16], words)?;
        self.check_len(what, floats, self.format.all_blocks())?;
        Ok(floats.cast_to::<f32>()?.try_as_plain_ram()?.as_slice()?.to_vec())
    }

    /// Returns the code that means 0 for each block of each column.
    fn checked_zero_points(
        &self,
        constant: &dyn Fn(&str, usize) -> TractResult<Arc<Tensor>>,
    ) -> TractResult<Zeros<Vec<u8>, Vec<f32>>> {
        const WHAT: &str = "zero points";
        let format = self.format;
        let Some(index) = self.zero_points else { return Ok(Zeros::Same(1 << (format.bits - 1))) };
        let given = constant(WHAT, index)?;
        if given.datum_type() != DatumType::U8 {
            return self.checked_floats(WHAT, &given, "uint8, float or float16").map(Zeros::Floats);
        }
        // If there is a `g_idx`, ONNX Runtime 1.31 does not read packed zero points as the operator's
        // definition requires. No reference for the correct result is available.
        if self.groups.is_some() {
            return Err(self.error("g_idx with packed zero points is not supported").into());
        }
        self.check_len(WHAT, &given, format.n.checked_mul(format.zero_point_bytes()))?;
        let packed = given.try_as_plain_ram()?;
        let columns = packed.as_slice::<u8>()?.chunks_exact(format.zero_point_bytes());
        let codes = columns.flat_map(|column| format.unpack(column).take(format.blocks()));
        Ok(Zeros::Codes(codes.collect()))
    }

    /// Checks `g_idx`, and returns for each row the block whose scale and zero point it uses.
    fn checked_groups(&self, groups: &Tensor) -> TractResult<Vec<usize>> {
        self.check_type("g_idx", groups, &[DatumType::I32], "int32")?;
        self.check_len("g_idx", groups, Some(self.format.k))?;
        let last = self.format.blocks().saturating_sub(1);
        let groups = groups.try_as_plain_ram()?;
        let checked = groups.as_slice::<i32>()?.iter().map(|&got| {
            let group = usize::try_from(got).ok().filter(|group| *group <= last);
            group.ok_or_else(|| self.error(format!("g_idx must be between 0 and {last}, got {got}")))
        });
        Ok(checked.collect::<Result<_, _>>()?)
    }
}

impl Format {
    /// Returns the number of blocks of one column.
    const fn blocks(&self) -> usize {
        self.k.div_ceil(self.block_size)
    }

    /// Returns the number of blocks of all columns.
    fn all_blocks(&self) -> Option<usize> {
        self.n.checked_mul(self.blocks())
    }

    /// Returns the number of codes in one byte.
    fn per_byte(&self) -> usize {
        usize::from(8_u8.checked_div(self.bits).unwrap_or(1))
    }

    /// Returns the number of bytes of one block.
    fn block_bytes(&self) -> usize {
        self.block_size.div_ceil(self.per_byte())
    }

    /// Returns the number of bytes of all codes.
    fn code_bytes(&self) -> Option<usize> {
        self.all_blocks()?.checked_mul(self.block_bytes())
    }

    /// Returns the number of bytes of one column's packed zero points.
    fn zero_point_bytes(&self) -> usize {
        self.blocks().div_ceil(self.per_byte())
    }

    /// Returns the codes in these bytes, in order.
    fn unpack(self, bytes: &[u8]) -> impl Iterator<Item = u8> {
        let (bits, mask) = (self.bits, u8::MAX >> (8 - self.bits));
        let codes = move |byte: &u8| {
            let byte = *byte;
            (0..8 / bits).map(move |index| (byte >> (index * bits)) & mask)
        };
        bytes.iter().flat_map(codes)
    }

    /// Computes `(code - zero point) × scale` for every weight, column by column. `groups` has the block of each row.
    /// Returns `None` if there is not enough memory.
    fn dequantise(&self, codes: &Codes<'_>, groups: &[usize]) -> Option<Vec<f32>> {
        let mut values = Vec::new();
        values.try_reserve_exact(self.n.checked_mul(self.k)?).ok()?;
        let blocks = self.blocks();
        for (column, bytes) in codes.codes.chunks_exact(blocks * self.block_bytes()).enumerate() {
            for (group, code) in groups.iter().zip(self.unpack(bytes)) {
                let block = column * blocks + group;
                let zero = match codes.zeros {
                    Zeros::Same(zero) => f32::from(*zero),
                    Zeros::Codes(zeros) => f32::from(*zeros.get(block)?),
                    Zeros::Floats(zeros) => *zeros.get(block)?,
                };
                values.push((f32::from(code) - zero) * codes.scales.get(block)?);
            }
        }
        Some(values)
    }
}

impl Expansion for MatMulNBits {
    fn name(&self) -> StaticName {
        "MatMulNBits".into()
    }

    fn rules<'r, 'p: 'r, 's: 'r>(
        &'s self,
        solver: &mut Solver<'r>,
        inputs: &'p [TensorProxy],
        outputs: &'p [TensorProxy],
    ) -> InferenceResult {
        check_input_arity(inputs, self.inputs)?;
        check_output_arity(outputs, 1)?;
        let ([a, ..], [y]) = (inputs, outputs) else { bail!("inputs are missing") };
        solver.equals(&a.datum_type, &y.datum_type)?;
        solver.equals(&a.rank, &y.rank)?;
        solver.given(&a.rank, move |solver, rank| {
            let Some(last) = usize::try_from(rank).ok().and_then(|rank| rank.checked_sub(1)) else {
                return Err(self
                    .error(format!("activations must have a rank of at least 1, got {rank}"))
                    .into());
            };
            (0..last).try_for_each(|axis| solver.equals(&y.shape[axis], &a.shape[axis]))?;
            solver.equals(&y.shape[last], self.format.n.to_dim())
        })
    }

    fn wire(&self, prefix: &str, model: &mut TypedModel, inputs: &[OutletId]) -> TractResult<TVec<OutletId>> {
        let a = *inputs.first().context("inputs are missing")?;
        let fact = model.outlet_fact(a)?.clone();
        self.check_activations(&fact)?;
        let bias = self.bias.and_then(|index| inputs.get(index)).copied();
        if let Some(bias) = bias {
            self.check_bias(model.outlet_fact(bias)?)?;
        }
        // The weights are checked here, and laid out when the plan is optimised.
        self.weights(&|what, index| self.constant(what, model, inputs, index))?;
        let mut operands: TVec<OutletId> = inputs.into();
        operands[0] = model.wire_node(format!("{prefix}.a"), cast(f32::datum_type()), &[a])?[0];
        if let Some(index) = self.bias {
            operands.remove(index);
        }
        let mut y = model.wire_node(format!("{prefix}.product"), self.clone(), &operands)?;
        if let Some(bias) = bias {
            let bias = model.wire_node(format!("{prefix}.bias"), cast(f32::datum_type()), &[bias])?;
            y = wire_with_rank_broadcast(format!("{prefix}.sum"), model, add(), &[y[0], bias[0]])?;
        }
        model.wire_node(prefix, cast(fact.datum_type), &y)
    }
}

impl Op for MatMulNBits {
    fn name(&self) -> StaticName {
        "MatMulNBits".into()
    }

    op_as_typed_op!();
}

/// The bias is not an input here, because a later node adds it.
impl EvalOp for MatMulNBits {
    op_out_of_plan!();

    /// Lays out the weights in each call. Optimised plans lay them out once.
    fn eval(&self, context: &EvalContext<'_>, inputs: TVec<TValue>) -> TractResult<TVec<TValue>> {
        let weights = self.weights(&|what, index| {
            let input = inputs.get(index).ok_or_else(|| self.error(format!("{what} are missing")))?;
            Ok(input.clone().into_arc_tensor())
        })?;
        let x = inputs.into_iter().next().context("activations are missing")?;
        ConstantProduct::of_last_axis(self.product(&weights)?, x.rank()).eval(context, tvec!(x))
    }
}

impl TypedOp for MatMulNBits {
    fn output_facts(&self, inputs: &[&TypedFact]) -> TractResult<TVec<TypedFact>> {
        let mut shape = inputs.first().context("activations are missing")?.shape.to_tvec();
        if let Some(last) = shape.last_mut() {
            *last = self.format.n.to_dim();
        }
        Ok(tvec!(f32::fact(shape)))
    }

    fn codegen(&self, model: &TypedModel, node: &TypedNode) -> TractResult<Option<TypedModelPatch>> {
        self.lay_out(model, node)
    }

    as_op!();
}
