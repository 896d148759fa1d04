//! The `MatMulNBits` operator of `com.microsoft`, a product with weights that are stored in blocks of 2, 4 or
//! 8 bits.
//!
//! This operator replaces tract's, because tract 0.23.9 returns wrong products. tract keeps blocks of 32
//! weights packed. If a `Reshape` merges the heads before the product, tract splits the inner dimension of
//! both operands and moves axes of the packed weights. It then changes their shape but not the order of their
//! bytes (`AxisOp::change_tensor`). tract also rounds the scales of these blocks to float16.
//!
//! This operator dequantises the weights when the model is loaded. Each weight takes 4 bytes of memory, 8
//! times what a 4-bit weight takes in the file.

use tract_onnx::model::ParsingContext;
use tract_onnx::pb::NodeProto;
use tract_onnx::tract_core::ops::cast::cast;
use tract_onnx::tract_core::ops::einsum::EinSum;
use tract_onnx::tract_core::ops::math::add;
use tract_onnx::tract_hir::internal::*;
use tract_onnx::tract_hir::ops::logic::wire_with_rank_broadcast;

use crate::attributes::{Attributes, given_index};
use crate::element;
use crate::error::{NodeError, label};

const DOMAIN: &str = "com.microsoft";

/// Builds the operator of a node.
pub(crate) fn build(
    _: &ParsingContext<'_>,
    node: &NodeProto,
) -> TractResult<(Box<dyn InferenceOp>, Vec<String>)> {
    Ok((expand(MatMulNBits::of(node)?), vec![]))
}

/// The operator of one node.
#[derive(Clone, Debug, PartialEq, Eq)]
struct MatMulNBits {
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
struct Weights<'a> {
    format: Format,
    /// The codes, column by column. Each column has blocks of whole bytes, and the lowest bits of a byte come
    /// first.
    codes: &'a [u8],
    /// The scale of each block of each column.
    scales: &'a [f32],
    /// The code that means 0, for each block of each column.
    zero_points: &'a [f32],
    /// For each row, the index of the block whose scale and zero point it uses. `None` if every row uses the
    /// block in which it is stored.
    groups: Option<Vec<usize>>,
}

impl MatMulNBits {
    fn of(node: &NodeProto) -> Result<Self, NodeError> {
        let refused = |why: String| NodeError::of(node, why);
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
        // tract labels axes with letters, which limits their number.
        let columns = fact.shape.last().filter(|_| fact.rank() <= 8);
        match columns.map(|columns| columns.to_usize()) {
            None => Err(self.error(format!("activations must have a rank of 1 to 8, got {}", fact.rank()))),
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

    /// Returns the weights as a float32 matrix of `[n, k]`.
    fn dequantise(&self, model: &TypedModel, inputs: &[OutletId]) -> TractResult<Tensor> {
        let codes = self.constant("weights", model, inputs, 1)?;
        self.check_type("weights", &codes, &[DatumType::U8], "uint8")?;
        self.check_len("weights", &codes, self.format.code_bytes())?;
        let scales = self.constant("scales", model, inputs, 2)?;
        let scales = self.checked_floats("scales", &scales, "float or float16")?;
        let zero_points = self.checked_zero_points(model, inputs)?;
        let groups = match self.groups {
            Some(index) => Some(self.checked_groups(&*self.constant("g_idx", model, inputs, index)?)?),
            None => None,
        };
        let (codes, scales) = (codes.try_as_plain_ram()?, scales.try_as_plain_ram()?);
        let weights = Weights {
            format: self.format,
            codes: codes.as_slice()?,
            scales: scales.as_slice()?,
            zero_points: &zero_points,
            groups,
        };
        let values = weights.dequantise().ok_or_else(|| self.error("its weights do not fit into memory"))?;
        Ok(tract_ndarray::Array2::from_shape_vec((self.format.n, self.format.k), values)?.into_tensor())
    }

    /// Checks that an input has one number for each block of each column, and returns these in float32.
    fn checked_floats<'a>(
        &self,
        what: &str,
        floats: &'a Tensor,
        words: &str,
    ) -> TractResult<Cow<'a, Tensor>> {
        self.check_type(what, floats, &[DatumType::F32, DatumType::F16], words)?;
        self.check_len(what, floats, self.format.all_blocks())?;
        floats.cast_to::<f32>()
    }

    /// Returns the code that means 0 for each block of each column. Without zero points, this code is half of
    /// the range.
    fn checked_zero_points(&self, model: &TypedModel, inputs: &[OutletId]) -> TractResult<Vec<f32>> {
        const WHAT: &str = "zero points";
        let format = self.format;
        let Some(index) = self.zero_points else {
            let middle = f32::from(1_u8 << (format.bits - 1));
            return Ok(vec![middle; self.format.all_blocks().unwrap_or_default()]);
        };
        let given = self.constant(WHAT, model, inputs, index)?;
        if given.datum_type() != DatumType::U8 {
            let floats = self.checked_floats(WHAT, &given, "uint8, float or float16")?;
            return Ok(floats.try_as_plain_ram()?.as_slice()?.to_vec());
        }
        // If there is a `g_idx`, ONNX Runtime 1.31 does not read packed zero points as the operator's
        // definition requires. No reference for the correct result is available.
        if self.groups.is_some() {
            return Err(self.error("g_idx with packed zero points is not supported").into());
        }
        self.check_len(WHAT, &given, format.n.checked_mul(format.zero_point_bytes()))?;
        let packed = given.try_as_plain_ram()?;
        let columns = packed.as_slice::<u8>()?.chunks_exact(format.zero_point_bytes());
        Ok(columns.flat_map(|column| format.unpack(column).take(format.blocks())).collect())
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
    fn unpack(self, bytes: &[u8]) -> impl Iterator<Item = f32> {
        let (bits, mask) = (self.bits, u8::MAX >> (8 - self.bits));
        let codes = move |byte: &u8| {
            let byte = *byte;
            (0..8 / bits).map(move |index| f32::from((byte >> (index * bits)) & mask))
        };
        bytes.iter().flat_map(codes)
    }
}

impl Weights<'_> {
    /// Computes `(code - zero point) × scale` for every weight, column by column. Returns `None` if there is
    /// not enough memory.
    fn dequantise(&self) -> Option<Vec<f32>> {
        let Format { k, n, block_size, .. } = self.format;
        let mut values = Vec::new();
        values.try_reserve_exact(n.checked_mul(k)?).ok()?;
        let codes = self.codes.chunks_exact(self.format.blocks() * self.format.block_bytes());
        let scales = self.scales.chunks_exact(self.format.blocks());
        let zero_points = self.zero_points.chunks_exact(self.format.blocks());
        for ((codes, scales), zero_points) in codes.zip(scales).zip(zero_points) {
            for (row, code) in self.format.unpack(codes).take(k).enumerate() {
                let block = match &self.groups {
                    Some(groups) => *groups.get(row)?,
                    None => row / block_size,
                };
                values.push((code - zero_points.get(block)?) * scales.get(block)?);
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
        let weights = self.dequantise(model, inputs)?;
        let weights = model.add_const(format!("{prefix}.weights"), weights)?;
        let a = model.wire_node(format!("{prefix}.a"), cast(f32::datum_type()), &[a])?;
        let leading: String = ('a'..='h').take(fact.rank().saturating_sub(1)).collect();
        let axes = [format!("{leading}k"), "nk".to_owned()];
        let axes = AxesMapping::from_strs(&axes, &[format!("{leading}n")])?;
        let product = EinSum::new(axes, f32::datum_type());
        let mut y = model.wire_node(format!("{prefix}.product"), product, &[a[0], weights])?;
        if let Some(bias) = bias {
            let bias = model.wire_node(format!("{prefix}.bias"), cast(f32::datum_type()), &[bias])?;
            y = wire_with_rank_broadcast(format!("{prefix}.sum"), model, add(), &[y[0], bias[0]])?;
        }
        model.wire_node(prefix, cast(fact.datum_type), &y)
    }
}
