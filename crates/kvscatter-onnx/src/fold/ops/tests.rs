//! Tests what operators compute, with one line for each behaviour.
//!
//! Each line is `Operator/version attributes | inputs => outputs`. Inputs and outputs have a type, dimensions and, if
//! they are known, elements. Attributes are those of [`Nodes`](crate::support::Nodes).

use kvscatter::ElementType;

use crate::fold::{Fold, FoldError, Value, Values};
use crate::support::parsed;
use crate::{Model, OnnxError};

#[test]
fn shapes_and_what_is_made_of_them() {
    holds(&[
        "Shape | float 2x3x4 => int64 3: 2 3 4",
        "Shape start=1 end=-1 | float 2x3x4 => int64 1: 3",
        "Shape start=-9 end=9 | float 2x3x4 => int64 3: 2 3 4",
        "Shape start=2 end=1 | float 2x3x4 => int64 0:",
        "Shape | float scalar => int64 0:",
        "Size | float 2x0x4 => int64 scalar: 0",
        "Identity | bool 2: 1 0 => bool 2: 1 0",
        "ConstantOfShape | int64 2: 1 2 => float 1x2: 0 0",
        "ConstantOfShape | int64 0: => float scalar: 0",
        "Constant value_int=-3 => int64 scalar: -3",
        "Constant value_ints=[1,2] => int64 2: 1 2",
        "Constant value_float=0.1 => float scalar: 0.10000000149011612",
        "Constant value_floats=[0.5] => float 1: 0.5",
        "Constant value_string=\"text\" => string scalar",
        "Reshape | int32 2x3: 1 2 3 4 5 6, int64 2: 0 -1 => int32 2x3: 1 2 3 4 5 6",
        "Reshape | int32 2x3: 1 2 3 4 5 6, int64 1: -1 => int32 6: 1 2 3 4 5 6",
        "Reshape | float 2x3x4, int64 3: 0 -1 2 => float 2x6x2",
        "Reshape allowzero=1 | float 0x3, int64 2: 5 0 => float 5x0:",
        "Flatten axis=2 | int32 1x2x3: 1 2 3 4 5 6 => int32 2x3: 1 2 3 4 5 6",
        "Flatten axis=0 | float 2x3 => float 1x6",
        "Flatten axis=2 | float 2x3 => float 6x1",
        "Squeeze | float 1x3x1 => float 3",
        "Squeeze | float 1x3x1, int64 1: -1 => float 1x3",
        "Squeeze/11 axes=[0] | float 1x3x1 => float 3x1",
        "Unsqueeze | int64 2: 1 2, int64 2: -1 0 => int64 1x2x1: 1 2",
        "Unsqueeze/11 axes=[1] | float 3 => float 3x1",
        "Range | int64 scalar: 2, int64 scalar: 9, int64 scalar: 3 => int64 3: 2 5 8",
        "Range | int64 scalar: 5, int64 scalar: 0, int64 scalar: -2 => int64 3: 5 3 1",
        "Range | int64 scalar: 5, int64 scalar: 0, int64 scalar: 1 => int64 0:",
        "Range | float scalar: 0, float scalar: 1, float scalar: 0.25 => float 4: 0 0.25 0.5 0.75",
        "EyeLike k=1 | float 2x3 => float 2x3: 0 1 0 0 0 1",
        "EyeLike dtype=9 | float 2x2 => bool 2x2: 1 0 0 1",
        "Dropout | float 2: 1 2 => float 2: 1 2, bool 2: 1 1",
    ]);
}

#[test]
fn movements() {
    holds(&[
        "Transpose | int64 2x3: 1 2 3 4 5 6 => int64 3x2: 1 4 2 5 3 6",
        "Transpose perm=[1,0,2] | int64 2x3x1: 1 2 3 4 5 6 => int64 3x2x1: 1 4 2 5 3 6",
        "Expand | int64 2x1: 1 2, int64 3: 2 1 2 => int64 2x2x2: 1 1 2 2 1 1 2 2",
        "Expand | int64 2: 1 2, int64 1: 1 => int64 2: 1 2",
        "Tile | int64 2x1: 1 2, int64 2: 1 3 => int64 2x3: 1 1 1 2 2 2",
        "Tile | int64 2: 1 2, int64 1: 2 => int64 4: 1 2 1 2",
        "Concat axis=-1 | int64 2x1: 1 4, int64 2x2: 2 3 5 6 => int64 2x3: 1 2 3 4 5 6",
        "Concat axis=-2 | float 1x2x7x4, float 1x2x3x4 => float 1x2x10x4",
        "Split axis=1 | int64 2x3: 1 2 3 4 5 6, int64 2: 1 2 => int64 2x1: 1 4, int64 2x2: 2 3 5 6",
        "Split num_outputs=2 | int64 3: 1 2 3 => int64 2: 1 2, int64 1: 3",
        "Slice | int64 5: 0 1 2 3 4, int64 1: 1, int64 1: 9223372036854775807 => int64 4: 1 2 3 4",
        "Slice | int64 5: 0 1 2 3 4, int64 1: -2, int64 1: -1 => int64 1: 3",
        "Slice | int64 5: 0 1 2 3 4, int64 1: -1, int64 1: -9223372036854775807, int64 1: 0, int64 1: -2 => int64 3: 4 2 0",
        "Slice | int64 2x2: 1 2 3 4, int64 1: 1, int64 1: 2, int64 1: -1 => int64 2x1: 2 4",
        "Slice | int64 3: 1 2 3, int64 1: 2, int64 1: 1 => int64 0:",
        "Slice | float 0x3, int64 1: -1, int64 1: -9, int64 1: 0, int64 1: -1 => float 0x3:",
        "Pad | int64 2: 1 2, int64 2: 1 2 => int64 5: 0 1 2 0 0",
        "Pad | float 2: 1 2, int64 2: 0 1, float scalar: -inf => float 3: 1 2 -inf",
        "Pad | int64 2x2: 1 2 3 4, int64 2: -1 1, int64 scalar: 9, int64 1: 1 => int64 2x2: 2 9 4 9",
        "Pad mode=\"edge\" | int64 2: 1 2, int64 2: 2 1 => int64 5: 1 1 1 2 2",
        "Pad mode=\"reflect\" | int64 3: 1 2 3, int64 2: 2 2 => int64 7: 3 2 1 2 3 2 1",
        "Pad mode=\"wrap\" | int64 3: 1 2 3, int64 2: 1 1 => int64 5: 3 1 2 3 1",
        "Trilu | int64 2x2: 1 2 3 4 => int64 2x2: 1 2 0 4",
        "Trilu upper=0 | float 2x3: -inf -inf -inf -inf -inf -inf, int64 scalar: 1 => float 2x3: -inf -inf 0 -inf -inf -inf",
    ]);
}

#[test]
fn indices() {
    holds(&[
        "Gather | int64 3: 7 8 9, int64 scalar: -1 => int64 scalar: 9",
        "Gather axis=1 | int64 2x3: 1 2 3 4 5 6, int64 1x2: 2 0 => int64 2x1x2: 3 1 6 4",
        "Gather | float 256x64, int64 2x3 => float 2x3x64",
        "GatherElements axis=1 | int64 2x2: 1 2 3 4, int64 2x1: 1 -2 => int64 2x1: 2 3",
        "GatherND | int64 2x2: 1 2 3 4, int64 2x2: 0 1 1 -2 => int64 2: 2 3",
        "GatherND batch_dims=1 | int64 2x2x2: 1 2 3 4 5 6 7 8, int64 2x1: 1 0 => int64 2x2: 3 4 5 6",
        "ScatterElements axis=1 | int64 1x4: 1 2 3 4, int64 1x2: 3 -3, int64 1x2: 8 9 => int64 1x4: 1 9 3 8",
        "ScatterElements reduction=\"add\" | int64 1: 1, int64 1: 0, int64 1: 8 => int64 1",
        "ScatterND | int64 2x2: 1 2 3 4, int64 1x1: -1, int64 1x2: 8 9 => int64 2x2: 1 2 8 9",
        "ScatterND | int64 4: 1 2 3 4, int64 2x1: 0 3, int64 2: 8 9 => int64 4: 8 2 3 9",
        "NonZero | int64 2x2: 0 1 1 1 => int64 2x3: 0 1 1 1 0 1",
        "NonZero | bool 3: 0 0 0 => int64 1x0:",
        "OneHot axis=0 | int64 3, int64 scalar: 5, float 2 => float 5x3",
    ]);
}

#[test]
fn elements() {
    holds(&[
        "Add | int64 2x1: 1 2, int64 2: 10 20 => int64 2x2: 11 21 12 22",
        "Sub | float 1: 0.1, float 1: 0.3 => float 1: -0.20000000298023224",
        "Div | int64 4: 7 -7 7 -7, int64 4: 2 2 -2 -2 => int64 4: 3 -3 -3 3",
        "Div | float 3: 1 -1 0, float scalar: 0 => float 3: inf -inf nan",
        "Mod | int64 4: 7 -7 7 -7, int64 4: 4 4 -4 -4 => int64 4: 3 1 -1 -3",
        "Mod | int64 1: -9223372036854775808, int64 1: -1 => int64 1: 0",
        "Mod fmod=1 | int64 2: 7 -7, int64 1: 4 => int64 2: 3 -3",
        "Mod fmod=1 | float 2: 5.5 -5.5, float 1: 2 => float 2: 1.5 -1.5",
        "Pow | int64 2: -2 3, int64 1: 3 => int64 2: -8 27",
        "Pow | float 2: 2 9, float 1: 0.5 => float 2: 1.4142135381698608 3",
        "BitwiseAnd | uint8 2: 12 255, uint8 1: 10 => uint8 2: 8 10",
        "BitShift direction=\"RIGHT\" | uint8 3: 12 255 7, uint8 scalar: 4 => uint8 3: 0 15 0",
        "Min | int64 3: 1 5 3, int64 1: 3 => int64 3: 1 3 3",
        "Max | float 3: 1 nan 3, float 1: 2, float 1: -inf => float 3: 2 nan 3",
        "Mean | float 1: 1, float 1: 2 => float 1: 1.5",
        "Neg | int64 2: 1 -2 => int64 2: -1 2",
        "Sign | float 4: -2 0 3 nan => float 4: -1 0 1 nan",
        "Abs | float16 1: -65504 => float16 1: 65504",
        "Sqrt | float 2: 4 -1 => float 2: 2 nan",
        "Round | float 3: 0.5 1.5 -2.5 => float 3: 0 2 -2",
        "Sigmoid | float 2: 0 -inf => float 2: 0.5 0",
        "Relu | float 3: -1 2 nan => float 3: 0 2 nan",
        "Clip | int64 3: -5 0 5, int64 scalar: -1, int64 scalar: 1 => int64 3: -1 0 1",
        "Clip | float 3: -inf nan 5, float scalar: -2 => float 3: -2 nan 5",
        "Equal | float 2: nan 1, float 1: 1 => bool 2: 0 1",
        "LessOrEqual | int64 3: 1 2 3, int64 2x1: 1 2 => bool 2x3: 1 0 0 1 1 0",
        "And | bool 2: 1 1, bool 2x1: 1 0 => bool 2x2: 1 1 0 0",
        "Xor | bool 2: 1 0, bool 1: 1 => bool 2: 0 1",
        "Not | bool 2: 1 0 => bool 2: 0 1",
        "Where | bool 2: 1 0, float scalar: 0, float scalar: -inf => float 2: 0 -inf",
        "Where | bool 2: 1 0, float 2, float scalar: -inf => float 2",
        "IsNaN | float 3: nan inf 0 => bool 3: 1 0 0",
        "IsInf detect_positive=0 | float 3: inf -inf 0 => bool 3: 0 1 0",
        "Cast to=9 | float 4: 0 -0.5 nan -inf => bool 4: 0 1 1 1",
        "Cast to=7 | float 2: -1.9 1.9 => int64 2: -1 1",
        "Cast to=7 | float 1: -0 => int64 1: 0",
        "Cast to=6 | int64 3: 9223372036854775807 4294967297 2147483648 => int32 3: -1 1 -2147483648",
        "Cast to=2 | int64 2: -1 300 => uint8 2: 255 44",
        "Cast to=10 | float 4: -65504 -65519 -131008 -3.4028234663852886e38 => float16 4: -65504 -65504 -inf -inf",
        "Cast to=10 | int64 1: 70000 => float16 1: inf",
        "Cast to=10 | float 1: nan => float16 1: nan",
        "Cast to=16 | float 1: 1.00390625 => bfloat16 1: 1",
        "Cast to=1 | double 3: -3.4028235e38 -1e39 0.1 => float 3: -3.4028234663852886e38 -inf 0.10000000149011612",
        "Cast to=19 | int64 1: 1 => float8e5m2 1",
        "Cast to=17 | float 1: 1 => float8e4m3fn 1",
        "CastLike | bool 2: 1 0, float 1 => float 2: 1 0",
        // A mask that is added twice exceeds the range of its type and becomes infinite.
        "Add | float16 1: -65504, float16 1: -65504 => float16 1: -inf",
        "Add | float 1: -3.4028234663852886e38, float 1: -3.4028234663852886e38 => float 1: -inf",
        "Add | float 1: -3.4028234663852886e38, float 1: 5 => float 1: -3.4028234663852886e38",
        "Mul | float 2: 0 1, float 1: -inf => float 2: nan -inf",
        "Add | float 1x1000000, float 2x1 => float 2x1000000",
    ]);
}

#[test]
fn axes() {
    holds(&[
        "ReduceSum | int64 2x3: 1 2 3 4 5 6, int64 1: -1 => int64 2x1: 6 15",
        "ReduceSum keepdims=0 | int64 2x3: 1 2 3 4 5 6 => int64 scalar: 21",
        "ReduceSum/11 axes=[0] | int64 2x2: 1 2 3 4 => int64 1x2: 4 6",
        "ReduceSum noop_with_empty_axes=1 | int64 2: 1 2 => int64 2: 1 2",
        "ReduceSum keepdims=0 | float 2x0:, int64 1: 1 => float 2: 0 0",
        "ReduceMax | float 3: 1 nan 3 => float 1: nan",
        "ReduceMin | int64 3: 4 -1 3 => int64 1: -1",
        "ReduceProd | int64 3: 4 -1 3 => int64 1: -12",
        "ReduceMean | float 2: 1 2 => float 1: 1.5",
        "ReduceMax | bool 2: 0 1 => bool 1: 1",
        "ArgMax axis=1 | int64 2x3: 1 3 3 0 0 0 => int64 2x1: 1 0",
        "ArgMin axis=0 keepdims=0 select_last_index=1 | float 3: 1 0 0 => int64 scalar: 2",
        "CumSum | int64 2x3: 1 2 3 4 5 6, int64 scalar: 1 => int64 2x3: 1 3 6 4 9 15",
        "CumSum exclusive=1 reverse=1 | int64 3: 1 2 3, int64 scalar: 0 => int64 3: 5 3 0",
        "Softmax | float 2: 0 -inf => float 2: 1 0",
        "Softmax | float 2: -inf -inf => float 2: nan nan",
        "Softmax/11 | float 1x2x2: 0 0 0 0 => float 1x2x2: 0.25 0.25 0.25 0.25",
        "TopK | float 2x5, int64 1: 3 => float 2x3, int64 2x3",
        "MatMul | int64 1x2: 1 2, int64 2x1: 3 4 => int64 1x1: 11",
        "MatMul | float 2: 1 2, float 2x2: 1 2 3 4 => float 2: 7 10",
        "MatMul | float 5x1x2x3, float 4x3x7 => float 5x4x2x7",
    ]);
}

#[test]
fn layers_with_shapes_alone() {
    holds(&[
        "Gemm transB=1 | float 2x3, float 4x3 => float 2x4",
        "Einsum equation=\"bhid,bhjd->bhij\" | float 2x4x3x16, float 2x4x10x16 => float 2x4x3x10",
        "FusedMatMul@com.microsoft transB=1 | float 2x3x8, float 2x5x8 => float 2x3x5",
        "MatMulNBits@com.microsoft K=32 N=6 | float 2x3x32, uint8 6x1x16, float 6 => float 2x3x6",
        "GatherBlockQuantized@com.microsoft | uint8 9x32, int64 2x3, float16 9x2 => float16 2x3x64",
        "GatherBlockQuantized@com.microsoft bits=8 | uint8 9x64, int64 5, float 9x2 => float 5x64",
        "GatherBlockQuantized@com.microsoft gather_axis=1 quantize_axis=0 | int4 32x7, int64 2, float 1x7 => float 32x2",
        "QMoE@com.microsoft k=2 | float 2x3x32, float 6x4, uint8 4x8x16 => float 2x3x32",
        "LayerNormalization | float16 2x3x8, float16 8 => float16 2x3x8, float 2x3x1, float 2x3x1",
        "RMSNormalization | float 2x3x8, float 8 => float 2x3x8",
        "SkipSimplifiedLayerNormalization@com.microsoft | float 2x3x8, float 2x3x8, float 8 => float 2x3x8, float 2x3x1, float 2x3x1, float 2x3x8",
        "RotaryEmbedding | float 2x3x8, float 9x2, float 9x2 => float 2x3x8",
        "Attention q_num_heads=4 kv_num_heads=2 | float 2x3x64, float 2x3x32, float 2x3x32, -, float 2x2x7x16, float 2x2x7x16 => float 2x3x64, float 2x2x10x16, float 2x2x10x16",
        "Attention | float 2x4x3x16, float 2x2x5x16, float 2x2x5x8 => float 2x4x3x8",
        // Two heads of queries share one of keys. The weights of ln 3 and 0 are 3/4 and 1/4.
        "Attention scale=1.0 | float 1x2x1x1: 1 0, float 1x1x2x1: 1.0986122886681098 0, float 1x1x2x1: 8 4 => float 1x2x1x1: 7 6",
        "Attention | float 1x1x1x4: 2 0 0 0, float 1x1x2x4: 1.0986122886681098 0 0 0 0 0 0 0, float 1x1x2x1: 8 4 => float 1x1x1x1: 7",
        "Attention q_num_heads=2 kv_num_heads=1 scale=1.0 | float 1x1x2: 1 0, float 1x2x1: 1.0986122886681098 0, float 1x2x1: 8 4 => float 1x1x2: 7 6",
        // The cap comes before the mask. A query that sees nothing gives zeros.
        "Attention softcap=1e-9 | float 1x1x2x1: 5 5, float 1x1x3x1: 1 2 3, float 1x1x3x1: 8 4 1, bool 2x3: 1 1 0 0 0 0 => float 1x1x2x1: 6 0",
        "Attention | float 1x1x1x1: 0, float 1x1x3x1: 1 2 3, float 1x1x3x1: 8 4 1, float 1x3: 0 1.0986122886681098 0, -, -, int64 1: 2 => float 1x1x1x1: 5",
        "Attention qk_matmul_output_mode=2 | float 1x1x1x1: 1, float 1x1x3x1: 1.0986122886681098 5 0, float 1x1x3x1: 8 9 4, bool 1x3: 1 0 1 => float 1x1x1x1: 7, float 1x1x3x1: 1.0986122886681098 5 0, float 1x1x3x1: 8 9 4, float 1x1x1x3: 1.0986123085021973 -inf 0",
        "Attention is_causal=1 | float 1x1x2x1: 0 0, float 1x1x3x1: 1 2 3, float 1x1x3x1: 8 4 1, -, -, -, int64 1: 2 => float 1x1x2x1: 8 6",
        "Conv group=8 | float 2x8x7, float 8x1x4 => float 2x8x4",
        "Conv strides=[2,1] pads=[1,0,1,2] dilations=[1,3] | float16 2x3x8x9, float16 6x3x3x2 => float16 2x6x4x8",
        "CausalConvWithState@com.microsoft | float 2x8x5, float 8x1x4, -, float 2x8x3 => float 2x8x5, float 2x8x3",
        "CausalConvWithState/27 | float 2x8x5, float 8x1x4 => float 2x8x5, float 2x8x3",
        "LinearAttention/27 q_num_heads=4 kv_num_heads=2 | float 2x5x12, float 2x5x6, float 2x5x8, float 2x2x3x4 => float 2x5x16, float 2x2x3x4",
        "LinearAttention@com.microsoft q_num_heads=2 kv_num_heads=4 | float16 1x1x6, float16 1x1x6, float16 1x1x8, float 1x4x3x2 => float16 1x1x8, float 1x4x3x2",
        "LinearAttention@com.microsoft q_num_heads=2 kv_num_heads=2 | float 1x3x6, float 1x3x6, float 1x3x8 => float 1x3x8, float 1x2x3x4",
        "GroupQueryAttention@com.microsoft num_heads=4 kv_num_heads=2 | float 2x1x128, -, -, float 2x2x6x16, float 2x2x6x16, int32 2, int32 scalar: 7 => float 2x1x64, float 2x2x7x16, float 2x2x7x16",
        "GroupQueryAttention@com.microsoft num_heads=4 kv_num_heads=2 | float 2x1x128, -, -, float 2x2x32x16, float 2x2x32x16, int32 2, int32 scalar: 7 => float 2x1x64, float 2x2x32x16, float 2x2x32x16",
        // In the first case, a bias of ln 3 makes the weights of two tokens 3/4 and 1/4. In the others, a sink halves
        // the weight of the only token, if `smooth_softmax` is 1.
        "GroupQueryAttention@com.microsoft num_heads=1 kv_num_heads=1 | float 1x1x1: 0, float 1x1x1: 5, float 1x1x1: 4, float 1x1x3x1: 1 2 3, float 1x1x3x1: 8 9 9, int32 1: 1, int32 scalar: 2, -, -, -, float 1x1x1x2: 1.0986122886681098 0 => float 1x1x1: 7, float 1x1x3x1: 1 5 3, float 1x1x3x1: 8 4 9",
        "GroupQueryAttention@com.microsoft num_heads=1 kv_num_heads=1 smooth_softmax=1 | float 1x1x1: 0, float 1x1x1: 5, float 1x1x1: 4, float 1x1x3x1: 1 2 3, float 1x1x3x1: 8 9 9, int32 1: 0, int32 scalar: 1 => float 1x1x1: 2, float 1x1x3x1: 5 2 3, float 1x1x3x1: 4 9 9",
        "GroupQueryAttention@com.microsoft num_heads=1 kv_num_heads=1 smooth_softmax=2 | float 1x1x1: 0, float 1x1x1: 5, float 1x1x1: 4, float 1x1x3x1: 1 2 3, float 1x1x3x1: 8 9 9, int32 1: 0, int32 scalar: 1 => float 1x1x1: 4, float 1x1x3x1: 5 2 3, float 1x1x3x1: 4 9 9",
        "MultiHeadAttention@com.microsoft num_heads=2 | float 2x3x8, float 2x3x8, float 2x3x12, -, -, -, float 2x2x4x4, float 2x2x4x6 => float 2x3x12, float 2x2x7x4, float 2x2x7x6",
        "TensorScatter | float 2x2x32x16, float 2x2x3x16, int64 2 => float 2x2x32x16",
        "QuantizeLinear axis=1 block_size=3 output_dtype=3 | float 2x3: 0.5 1.5 -2.5 300 -300 2, float 2x1: 1 2 => int8 2x3: 0 2 -2 127 -128 1",
        "QuantizeLinear axis=-1 block_size=2 output_dtype=2 | float 1x2: -1 300, float 1x1: 1 => uint8 1x2: 0 255",
        "QuantizeLinear axis=1 block_size=2 output_dtype=3 | float 1x4: 1 2 3 4, float 1x2: 1 2 => int8 1x4",
        "QuantizeLinear axis=1 block_size=2 | float 1x2: 1 2, float 1x1: 1, uint8 1x1: 3 => uint8 1x2",
        "QuantizeLinear axis=0 output_dtype=3 | float 2: 1 2, float 2: 1 2 => int8 2",
        "DequantizeLinear axis=1 block_size=2 | int8 2x2: -127 3 1 0, float 2x1: 0.5 0.10000000149011612 => float 2x2: -63.5 1.5 0.10000000149011612 0",
        "QuantizeLinear | float 3: -1 2.5 300, float scalar: 0.5, uint8 scalar: 3 => uint8 3: 1 8 255",
        "DequantizeLinear | uint8 1x3: 0 3 255, float scalar: 0.5, uint8 scalar: 3 => float 1x3: -1.5 0 126",
        "DequantizeLinear | int8 2: -128 127, float scalar: 2 => float 2: -256 254",
        "DequantizeLinear axis=0 | uint8 2: 0 3, float 2: 0.5 1, uint8 2: 3 3 => float 2",
        "DequantizeLinear axis=1 block_size=2 | int8 1x2: 1 2, float16 1x1: 0.5 => float16 1x2",
        "DynamicQuantizeLinear | float 2x3 => uint8 2x3, float scalar, uint8 scalar",
        "DequantizeLinear | uint8 2x3, float16 scalar => float16 2x3",
    ]);
}

#[test]
fn refusals() {
    let unknown = |input| FoldError::ValuesUnknown { input };
    let cast = |value: &str, element| FoldError::Cast { value: value.to_owned(), element };
    let shape =
        |input, shape: &[usize], expected| FoldError::InputShape { input, shape: shape.to_vec(), expected };
    let cases = [
        ("Reshape | float 2x3, int64 2 => float 2x3", unknown(1)),
        ("NonZero | bool 2 => int64 1x1", unknown(0)),
        ("Range | float scalar, float scalar: 1, float scalar: 1 => float 1", unknown(0)),
        ("Reshape | float 2x3, int64 1: 5 => float 5", FoldError::Reshape { from: vec![2, 3], to: vec![5] }),
        (
            "Reshape | float 0, int64 2: 0 -1 => float 0",
            FoldError::Reshape { from: vec![0], to: vec![0, -1] },
        ),
        (
            "Add | int64 1: 9223372036854775807, int64 1: 1 => int64 1",
            FoldError::Overflow { element: ElementType::Int64 },
        ),
        ("Mul | int8 1: 100, int8 1: 2 => int8 1", FoldError::Overflow { element: ElementType::Int8 }),
        ("Neg | uint8 1: 1 => uint8 1", FoldError::Overflow { element: ElementType::UInt8 }),
        ("Div | int64 1: 1, int64 1: 0 => int64 1", FoldError::DivisionByZero),
        ("Mod | int64 1: 1, int64 1: 0 => int64 1", FoldError::DivisionByZero),
        ("Range | int64 scalar: 1, int64 scalar: 2, int64 scalar: 0 => int64 1", FoldError::DivisionByZero),
        (
            "Slice | int64 1: 1, int64 1: 0, int64 1: 1, int64 1: 0, int64 1: 0 => int64 1",
            FoldError::DivisionByZero,
        ),
        ("Gather | int64 2: 1 2, int64 1: 2 => int64 1", FoldError::Index { index: 2, limit: 2 }),
        ("Gather axis=2 | int64 2: 1 2, int64 1: 1 => int64 1", FoldError::Axis { axis: 2, rank: 1 }),
        ("Unsqueeze | int64 2, int64 2: 0 0 => int64 1x2", FoldError::AxisTwice { axis: 0 }),
        ("Expand | int64 2, int64 1: -2 => int64 2", FoldError::Dim { dim: -2 }),
        ("Concat | int64 2, int64 2 => int64 4", FoldError::AttributeMissing { name: "axis" }),
        (
            "Squeeze | float 2, int64 1: 0 => float 2",
            shape(0, &[2], "a size of 1 on every axis that is removed"),
        ),
        ("Cast to=7 | float 1: nan => int64 1", cast("NaN", ElementType::Int64)),
        ("Cast to=7 | float 1: inf => int64 1", cast("inf", ElementType::Int64)),
        ("Cast to=7 | float 1: 9.3e18 => int64 1", cast("9300000000000000000", ElementType::Int64)),
        ("Cast to=7 | float 1: -9.3e18 => int64 1", cast("-9300000000000000000", ElementType::Int64)),
        ("Cast to=3 | float 1: 128 => int8 1", cast("128", ElementType::Int8)),
        ("Cast to=13 | int64 1: -1 => uint64 1", cast("-1", ElementType::UInt64)),
        (
            "And | bool 1: 1, int64 1: 1 => bool 1",
            FoldError::InputType { input: 1, element: ElementType::Int64, expected: "bool" },
        ),
        ("Mystery | float 1 => float 1", FoldError::NoRule),
        ("Relu@elsewhere | float 1 => float 1", FoldError::NoRule),
        ("Relu | float 1 => float 1, float 1", FoldError::NoOutput { output: 1 }),
        ("ArgMax | float 1 => int64 1, int64 1", FoldError::NoOutput { output: 1 }),
    ];
    for (line, expected) in cases {
        let error = Case::parse(line).outputs().expect_err(line);
        assert_eq!(error.cause(), Some(&expected), "{line}: {error}");
    }
}

#[test]
fn a_shape_too_large_for_any_buffer_is_refused_before_anything_is_allocated() {
    for line in [
        "Expand | float 1, int64 2: 9223372036854775807 9223372036854775807 => float 1",
        "ConstantOfShape | int64 1: 9223372036854775807 => float 1",
        "Range | int64 scalar: 0, int64 scalar: 9223372036854775807, int64 scalar: 1 => int64 1",
        "Tile | float 4, int64 1: 9223372036854775807 => float 1",
        "Pad | float 4, int64 2: 9223372036854775807 0 => float 1",
    ] {
        let error = Case::parse(line).outputs().expect_err(line);
        assert_eq!(error.kind(), "tensor", "{line}: {error}");
    }
    // Such sizes are possible, but only the shapes are known.
    holds(&[
        "Expand | float 1: 1, int64 1: 1000000000000 => float 1000000000000",
        "ConstantOfShape | int64 2: 1000000000000 0 => float 1000000000000x0:",
        "Range | int64 scalar: 0, int64 scalar: 1000000000000, int64 scalar: 1 => int64 1000000000000",
        "Concat axis=1 | float 1000000000000x0, float 1000000000000x0 => float 1000000000000x0:",
        "Pad | float 1x0, int64 4: 1000000000000 0 0 0 => float 1000000000001x0:",
    ]);
}

/// Checks that every line is correct to the last bit.
fn holds(lines: &[&str]) {
    for line in lines {
        let case = Case::parse(line);
        let got = case.outputs().unwrap_or_else(|error| panic!("{line}: {error}"));
        // The comparison is made as text because NaN is not equal to itself.
        assert_eq!(format!("{got:?}"), format!("{:?}", case.expected), "{line}");
    }
}

struct Case {
    model: Model,
    inputs: Vec<(String, Value)>,
    expected: Vec<Value>,
}

impl Case {
    fn parse(line: &str) -> Self {
        let (left, right) = line.split_once(" => ").unwrap();
        let (operator, inputs) = left.split_once(" | ").unwrap_or((left, ""));
        let (name, attributes) = operator.split_once(' ').unwrap_or((operator, ""));
        let (name, version) = name.split_once('/').unwrap_or((name, "24"));
        let expected: Vec<_> = right.split(", ").map(value).collect();
        let outputs: Vec<_> = (0..expected.len()).map(|index| format!("y{index}")).collect();
        let inputs = inputs.split(", ").enumerate().filter(|(_, text)| !text.is_empty());
        let (reads, inputs): (Vec<_>, Vec<_>) = inputs
            .map(|(index, text)| match text {
                "-" => ("_".to_owned(), None),
                _ => (format!("x{index}"), Some((format!("x{index}"), value(text)))),
            })
            .unzip();
        let inputs: Vec<_> = inputs.into_iter().flatten().collect();
        let declared: String = inputs.iter().map(|(name, _)| format!("{name}: float[]")).collect();
        let node = format!("{} = {name}({}) {{{attributes}}}", outputs.join(", "), reads.join(", "));
        let mut model = parsed(&declared, &node, "");
        model.proto_mut().opset_import[0].version = Some(version.parse().unwrap());
        Self { model, inputs, expected }
    }

    fn outputs(&self) -> Result<Vec<Value>, OnnxError> {
        let graph = self.model.graph()?;
        let mut fold = Fold::new(&graph, None);
        for (name, value) in &self.inputs {
            fold.set(name, value.clone())?;
        }
        (0..self.expected.len()).map(|index| fold.value(&format!("y{index}")).cloned()).collect()
    }
}

/// Parses `int64 2x3: 1 2 3 4 5 6`, `float scalar: -inf`, and `float 2x3` without known values.
fn value(text: &str) -> Value {
    let (header, values) =
        text.split_once(':').map_or((text, None), |(header, values)| (header, Some(values)));
    let (element, dims) = header.split_once(' ').unwrap();
    let element = ElementType::from_name(element).unwrap();
    let shape: Vec<usize> = match dims {
        "scalar" => vec![],
        dims => dims.split('x').map(|dim| dim.parse().unwrap()).collect(),
    };
    let data = values.map(|values| {
        let words = values.split_whitespace();
        match Values::empty(element).unwrap() {
            Values::Ints(_) => Values::Ints(words.map(|word| word.parse().unwrap()).collect()),
            Values::Floats(_) => Values::Floats(words.map(|word| word.parse().unwrap()).collect()),
            Values::Bools(_) => Values::Bools(words.map(|word| word == "1").collect()),
        }
    });
    Value::new(element, shape, data).unwrap()
}
