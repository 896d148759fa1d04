//! The functions that evaluate operators. The function of an operator is called its rule.

mod attention;
mod elementwise;
mod index;
mod movement;
mod neural;
mod normalization;
mod reduce;
mod shape;
#[cfg(test)]
mod tests;
mod unary;

use super::Value;
use super::call::Call;
use crate::OnnxError;
use crate::graph::DEFAULT_DOMAIN;

/// A function that evaluates an operator and returns the outputs that it can compute. Outputs that the node
/// does not have are ignored.
pub(super) type Evaluate = fn(&Call<'_>) -> Result<Vec<Value>, OnnxError>;

/// The domain of ONNX Runtime's own operators.
const MICROSOFT: &str = "com.microsoft";

/// Returns the rule of an operator, or `None` if the operator is not supported. An operator of ONNX Runtime
/// that also exists in the default domain has the rule of the default domain.
pub(super) fn rule(domain: &str, op_type: &str) -> Option<Evaluate> {
    match domain {
        DEFAULT_DOMAIN => {
            moving_rule(op_type).or_else(|| arithmetic_rule(op_type)).or_else(|| layer_rule(op_type))
        }
        MICROSOFT => microsoft_rule(op_type),
        _ => None,
    }
}

/// Returns `true` for an operator whose second output is a state. Its rule applies also if the model defines it as a
/// function, which exporters do for runtimes that lack the operator.
pub(crate) fn returns_state(domain: &str, op_type: &str) -> bool {
    [DEFAULT_DOMAIN, MICROSOFT].contains(&domain)
        && ["CausalConvWithState", "LinearAttention"].contains(&op_type)
}

/// Returns the index of the input that determines the type and shape of the operator's only output,
/// regardless of the other inputs.
pub(super) fn shaped_like(domain: &str, op_type: &str) -> Option<usize> {
    let is_like_first = match domain {
        DEFAULT_DOMAIN => matches!(op_type, "ScatterElements" | "ScatterND"),
        MICROSOFT => matches!(op_type, "MoE" | "QMoE"),
        _ => false,
    };
    is_like_first.then_some(0)
}

/// Returns `true` if the shape of the operator's output depends on elements of its inputs, even if there are
/// many.
pub(super) fn is_shaped_by_values(domain: &str, op_type: &str) -> bool {
    domain == DEFAULT_DOMAIN && op_type == "NonZero"
}

/// Returns the rule of an operator that computes shapes or moves elements.
fn moving_rule(op_type: &str) -> Option<Evaluate> {
    Some(match op_type {
        "Shape" => shape::shape,
        "Size" => shape::size,
        "Identity" => shape::identity,
        "Dropout" => shape::dropout,
        "Constant" => shape::constant,
        "ConstantOfShape" => shape::constant_of_shape,
        "Reshape" => shape::reshape,
        "Flatten" => shape::flatten,
        "Squeeze" => shape::squeeze,
        "Unsqueeze" => shape::unsqueeze,
        "Range" => shape::range,
        "EyeLike" => shape::eye_like,

        "Transpose" => movement::transpose,
        "Expand" => movement::expand,
        "Tile" => movement::tile,
        "Concat" => movement::concat,
        "Split" => movement::split,
        "Slice" => movement::slice,
        "Pad" => movement::pad,
        "Trilu" => movement::trilu,

        "Gather" => index::gather,
        "GatherElements" => index::gather_elements,
        "GatherND" => index::gather_nd,
        "ScatterElements" => index::scatter_elements,
        "ScatterND" => index::scatter_nd,
        "NonZero" => index::non_zero,
        "OneHot" => index::one_hot,
        _ => return None,
    })
}

/// Returns the rule of an operator that computes elements one by one or along an axis.
fn arithmetic_rule(op_type: &str) -> Option<Evaluate> {
    Some(match op_type {
        "Cast" => elementwise::cast,
        "CastLike" => elementwise::cast_like,
        "Where" => elementwise::where_,
        "Clip" => elementwise::clip,
        "Not" => elementwise::not,
        "And" | "Or" | "Xor" => elementwise::logic,
        "Equal" | "Less" | "LessOrEqual" | "Greater" | "GreaterOrEqual" => elementwise::compare,
        "IsNaN" | "IsInf" => elementwise::is_special,
        "Add" | "Sub" | "Mul" | "Div" | "Mod" | "Pow" | "BitwiseAnd" | "BitwiseOr" | "BitwiseXor"
        | "BitShift" => elementwise::binary,
        "Min" | "Max" | "Sum" | "Mean" => elementwise::variadic,
        "Neg" | "Abs" | "Sign" => unary::signed,
        "Sqrt" | "Reciprocal" | "Floor" | "Ceil" | "Round" | "Exp" | "Log" | "Sin" | "Cos" | "Tan"
        | "Tanh" | "Sigmoid" | "Erf" | "Softplus" => unary::unary,
        "Swish" => unary::swish,
        "Relu" => unary::relu,
        "LeakyRelu" => unary::leaky_relu,
        "Gelu" => unary::gelu,

        "ReduceSum" | "ReduceMean" | "ReduceMax" | "ReduceMin" | "ReduceProd" | "ReduceSumSquare"
        | "ReduceL2" => reduce::reduce,
        "ArgMax" | "ArgMin" => reduce::arg,
        "CumSum" => reduce::cum_sum,
        "Softmax" | "LogSoftmax" => reduce::softmax,
        "TopK" => reduce::top_k,
        _ => return None,
    })
}

/// Returns the rule of an operator that is a whole layer: a product, a normalization, a quantization or an
/// attention.
fn layer_rule(op_type: &str) -> Option<Evaluate> {
    Some(match op_type {
        "MatMul" => neural::mat_mul,
        "MatMulInteger" => neural::mat_mul_integer,
        "Conv" => neural::conv,
        "Gemm" => neural::gemm,
        "Einsum" => neural::einsum,

        "LayerNormalization" | "RMSNormalization" | "SimplifiedLayerNormalization" => normalization::layer,
        "DynamicQuantizeLinear" => normalization::dynamic_quantize,
        "QuantizeLinear" => normalization::quantize,
        "DequantizeLinear" => normalization::dequantize,

        "RotaryEmbedding" => attention::rotary,
        "TensorScatter" => attention::like_first,
        "Attention" => attention::attention,
        "LinearAttention" => attention::linear_attention,
        "CausalConvWithState" => neural::causal_conv_with_state,
        _ => return None,
    })
}

fn microsoft_rule(op_type: &str) -> Option<Evaluate> {
    Some(match op_type {
        "FusedMatMul" => neural::fused_mat_mul,
        "FusedGemm" => neural::gemm,
        "Gelu" => unary::gelu,
        "QuickGelu" => unary::swish,
        "SkipLayerNormalization" | "SkipSimplifiedLayerNormalization" => normalization::skip_layer,
        "QuantizeLinear" => normalization::quantize,
        "DequantizeLinear" => normalization::dequantize,
        "MatMulNBits" => normalization::mat_mul_n_bits,
        "GatherBlockQuantized" => normalization::gather_block_quantized,
        "RotaryEmbedding" => attention::microsoft_rotary,
        "MoE" | "QMoE" => attention::like_first,
        "MultiHeadAttention" => attention::multi_head_attention,
        "GroupQueryAttention" => attention::group_query_attention,
        "LinearAttention" => attention::linear_attention,
        "CausalConvWithState" => neural::causal_conv_with_state,
        "BiasGelu" | "FastGelu" => unary::bias_gelu,
        "SimplifiedLayerNormalization" => normalization::layer,
        _ => return None,
    })
}
