//! Nodes of ONNX `Attention`, which kvscatter-attention computes.

use half::{bf16, f16};
use kvscatter::ElementType;
use kvscatter_attention::{
    Attention, AttentionError, Attributes, Float, Inputs, Mask, Outputs, Prepared, Shapes, Valid,
};
use kvscatter_onnx::internal::DEFAULT_MEMORY_LIMIT;
use kvscatter_onnx::{Data, EvalError, GraphError, Node, OnnxError, Tensor};

use super::rejection::NodeFault;
use super::single_node::SingleNode;

/// The attributes of operator set 23, and those that operator set 25 adds.
const ATTRIBUTES: [&str; 7] = [
    "is_causal",
    "kv_num_heads",
    "q_num_heads",
    "qk_matmul_output_mode",
    "scale",
    "softcap",
    "softmax_precision",
];
const WINDOWS: [&str; 2] = ["left_window_size", "right_window_size"];

/// The inputs of a node by their roles.
struct Operands<'a> {
    query: &'a Tensor,
    key: &'a Tensor,
    value: &'a Tensor,
    mask: Option<&'a Tensor>,
    past: Option<[&'a Tensor; 2]>,
    lengths: Option<&'a Tensor>,
}

/// An element type of the kernels, with its bytes in a tensor.
trait Bytes: Float {
    fn decode(bytes: &[u8]) -> Vec<Self>;
    fn encode(elements: &[Self]) -> Vec<u8>;
}

/// Computes `Attention(Q, K, V, attn_mask?, past_key?, past_value?, nonpad_kv_seqlen?)`.
pub(super) fn attention(node: &SingleNode<'_>) -> Result<Vec<Option<Tensor>>, NodeFault> {
    let operands = Operands::from_node(node)?;
    let operator = operator(node.node).map_err(|fault| match fault {
        // Inputs of rank 3 need both numbers.
        NodeFault::Attention(AttentionError::HeadsAlone) if operands.query.shape().len() == 3 => {
            AttentionError::HeadsMissing.into()
        }
        fault => fault,
    })?;
    match operands.query.element() {
        ElementType::Float32 => compute::<f32>(&operator, &operands),
        ElementType::Float16 => compute::<f16>(&operator, &operands),
        ElementType::BFloat16 => compute::<bf16>(&operator, &operands),
        element => Err(AttentionError::ElementType { element }.into()),
    }
}

fn operator(node: &Node<'_>) -> Result<Attention, NodeFault> {
    let version = node.version();
    match version {
        ..23 => return Err(OnnxError::from(GraphError::OpsetTooOld { version, min: 23 }).into()),
        23 | 24 => node.check_attributes(&ATTRIBUTES)?,
        _ => node.check_attributes(&[&ATTRIBUTES[..], &WINDOWS].concat())?,
    }
    let attributes = Attributes {
        is_causal: node.int("is_causal")?,
        kv_num_heads: node.int("kv_num_heads")?,
        left_window_size: node.int("left_window_size")?,
        q_num_heads: node.int("q_num_heads")?,
        qk_matmul_output_mode: node.int("qk_matmul_output_mode")?,
        right_window_size: node.int("right_window_size")?,
        scale: node.float("scale")?,
        softcap: node.float("softcap")?,
        softmax_precision: node.int("softmax_precision")?,
    };
    Ok(attributes.operator(node.output(3).is_some())?)
}

impl<'a> Operands<'a> {
    fn from_node(node: &SingleNode<'a>) -> Result<Self, NodeFault> {
        // Operator set 24 added nonpad_kv_seqlen.
        node.check_inputs(3, if node.node.version() < 24 { 6 } else { 7 })?;
        let operands = Self {
            query: node.required(0)?,
            key: node.required(1)?,
            value: node.required(2)?,
            mask: node.input(3),
            past: match (node.input(4), node.input(5)) {
                (Some(key), Some(value)) => Some([key, value]),
                (None, None) => None,
                _ => return Err(AttentionError::PastAlone.into()),
            },
            lengths: node.input(6),
        };
        operands.check_types()?;
        if operands.past.is_some() && operands.lengths.is_some() {
            return Err(AttentionError::LengthsAndPast.into());
        }
        Ok(operands)
    }

    fn check_types(&self) -> Result<(), NodeFault> {
        let element = self.query.element();
        let [past_key, past_value] = self.past.map_or([None; 2], |past| past.map(Some));
        let floats = [Some(self.key), Some(self.value), past_key, past_value];
        for (input, tensor) in ["K", "V", "past_key", "past_value"].into_iter().zip(floats) {
            check_type(input, tensor, &[element])?;
        }
        check_type("attn_mask", self.mask, &[ElementType::Bool, element])?;
        check_type("nonpad_kv_seqlen", self.lengths, &[ElementType::Int64])
    }

    fn shapes(&self) -> Shapes<'a> {
        Shapes {
            element: self.query.element(),
            query: self.query.shape(),
            key: self.key.shape(),
            value: self.value.shape(),
            mask: self.mask.map(Tensor::shape),
            past: self.past.map(|past| past.map(Tensor::shape)),
        }
    }
}

fn check_type(
    input: &'static str,
    tensor: Option<&Tensor>,
    accepted: &[ElementType],
) -> Result<(), NodeFault> {
    match tensor.map(Tensor::element).filter(|element| !accepted.contains(element)) {
        None => Ok(()),
        Some(got) => {
            let names: Vec<_> = accepted.iter().map(|element| element.onnx_name()).collect();
            Err(NodeFault::InputType { input, got, expected: names.join(" or ") })
        }
    }
}

fn compute<T: Bytes>(
    operator: &Attention,
    operands: &Operands<'_>,
) -> Result<Vec<Option<Tensor>>, NodeFault> {
    let prepared = operator.prepare(&operands.shapes())?;
    let lengths: Option<Vec<i64>> = operands.lengths.and_then(Tensor::int64s).map(Iterator::collect);
    let valid = match (operands.lengths.map(Tensor::shape), &lengths) {
        (Some([_]), Some(lengths)) => Valid::Lengths(lengths),
        (Some(shape), _) => {
            let operand = kvscatter_attention::Operand::Lengths;
            return Err(AttentionError::Rank { operand, rank: shape.len(), expected: "1" }.into());
        }
        (None, _) => Valid::All,
    };
    // The lengths are checked before memory for the outputs is allocated.
    prepared.check_valid(valid)?;
    check_memory::<T>(&prepared)?;

    let [query, key, value] = [operands.query, operands.key, operands.value].map(decode::<T>);
    let past = operands.past.map(|past| past.map(decode::<T>));
    let mask = operands.mask.filter(|mask| mask.element() != ElementType::Bool).map(decode::<T>);
    let inputs = Inputs {
        mask: match (operands.mask.map(Tensor::data), &mask) {
            (_, Some(mask)) => Some(Mask::Float(mask)),
            (Some(Data::Bytes(bytes)), None) => Some(Mask::Bool(bytes)),
            _ => None,
        },
        past: past.as_ref().map(|[key, value]| [&key[..], &value[..]]),
        valid,
        ..Inputs::new(&query, &key, &value)
    };
    let shapes = output_shapes(&prepared);
    let zeros = |shape: &Vec<usize>| vec![T::of_f32(0.0); shape.iter().product()];
    let [mut y, mut key, mut value, mut scores] = shapes.each_ref().map(zeros);
    let mut outputs = Outputs::new(&mut y).present(&mut key, &mut value);
    if operator.has_scores() {
        outputs = outputs.scores(&mut scores);
    }
    prepared.run(&inputs, &mut outputs, &mut prepared.scratch(1), None)?;
    let tensor = |(elements, shape): (Vec<T>, Vec<usize>)| {
        let tensor = Tensor::new(T::ELEMENT, shape, Data::Bytes(T::encode(&elements)));
        Ok(Some(tensor.map_err(OnnxError::from)?))
    };
    let computed = [y, key, value, scores].into_iter().zip(shapes);
    computed.take(if operator.has_scores() { 4 } else { 3 }).map(tensor).collect()
}

/// Returns the shapes of the four outputs.
fn output_shapes(prepared: &Prepared) -> [Vec<usize>; 4] {
    let [key, value] = prepared.present_shapes();
    [prepared.output_shape(), key.to_vec(), value.to_vec(), prepared.scores_shape().to_vec()]
}

/// Checks that the outputs fit the limit that kvscatter-onnx has for evaluations. Empty inputs can have large outputs.
fn check_memory<T>(prepared: &Prepared) -> Result<(), OnnxError> {
    let elements = output_shapes(prepared).into_iter().map(|shape| shape.iter().product::<usize>());
    let bytes = elements.fold(0_usize, usize::saturating_add).saturating_mul(size_of::<T>());
    let (needed, limit) = (u64::try_from(bytes).unwrap_or(u64::MAX), DEFAULT_MEMORY_LIMIT);
    if needed > limit { Err(EvalError::MemoryLimit { needed, limit }.into()) } else { Ok(()) }
}

fn decode<T: Bytes>(tensor: &Tensor) -> Vec<T> {
    match tensor.data() {
        Data::Bytes(bytes) => T::decode(bytes),
        Data::Strings(_) => Vec::new(),
    }
}

macro_rules! bytes {
    ($($element:ty),*) => {$(
        impl Bytes for $element {
            fn decode(bytes: &[u8]) -> Vec<Self> {
                bytes.as_chunks().0.iter().copied().map(Self::from_le_bytes).collect()
            }

            fn encode(elements: &[Self]) -> Vec<u8> {
                elements.iter().flat_map(|element| element.to_le_bytes()).collect()
            }
        }
    )*};
}

bytes!(f32, f16, bf16);
