//! Numbers and texts at which the code under test decides something.

use super::dice::Dice;

/// Names that mean something to the code under test, or that are difficult to print. Each is followed by `|`, as in
/// all lists whose texts may contain spaces or be empty.
const NAMES: &str = "|x|write_indices|attention_mask|position_ids|input_ids|past_k0|kvscatter|kvscatter_1|\
    nonpad_kv_seqlen|a\nb|\u{1b}[31m|\u{202e}txt|..|/etc/passwd|batch|é€𝄞|then_branch";

/// Operators of ONNX that the code under test treats in a special way.
const OPERATORS: &str = "Abs Add And ArgMax Attention BitShift Cast CastLike Clip Concat Constant ConstantOfShape Conv Cos \
    CumSum DequantizeLinear Div Dropout DynamicQuantizeLinear Einsum Equal Expand EyeLike Flatten Gather \
    GatherElements GatherND Gelu Gemm Identity If LayerNormalization Less Loop MatMul MatMulInteger Mean Mod Neg \
    NonZero OneHot Pad Pow QuantizeLinear Range ReduceMax ReduceSum Reshape Resize RMSNormalization RotaryEmbedding \
    Scan ScatterElements ScatterND SequenceMap Shape SimplifiedLayerNormalization Size Slice Softmax Split Sqrt \
    Squeeze Sub Sum TensorScatter Tile TopK Transpose Trilu Unsqueeze Where Xor";

/// Operators of ONNX Runtime that the code under test treats in a special way.
const MICROSOFT: &str = "BiasGelu CausalConvWithState FastGelu FusedMatMul GatherBlockQuantized GroupQueryAttention \
    MatMulNBits MoE MultiHeadAttention QMoE QuickGelu RotaryEmbedding SkipLayerNormalization \
    SkipSimplifiedLayerNormalization";

const DOMAINS: &str = "|ai.onnx|com.microsoft|ai.onnx.ml|unknown|local";

/// The domain of the operators of ONNX Runtime.
pub(crate) const MICROSOFT_DOMAIN: &str = "com.microsoft";

/// The domain of the functions that are added.
pub(crate) const LOCAL_DOMAIN: &str = "local";

const ATTRIBUTES: &str = "axis axes perm to is_causal num_heads kv_num_heads q_num_heads scale softcap \
    local_window_size do_rotary rotary_interleaved mode start end transA transB value value_ints allowzero keepdims \
    bits block_size qk_matmul_output_mode equation body then_branch else_branch";

const SYMBOLS: &str = "batch|tokens|past|total|n|past + tokens|2 * batch";

const STRINGS: &str = "|circular|linear|Circular|ij,jk->ik|a\nb|none|tanh";

/// Keys of external data and of the metadata of converted models.
const KEYS: &str = "location offset length checksum kvscatter.rings kvscatter.most_tokens kvscatter.source \
    kvscatter.max_seq kvscatter.windows kvscatter.caches kvscatter.write_indices kvscatter.version unknown";

/// Values of these keys.
const VALUES: &str = "|0|-1|x|1e3| 0|+8|0x10|8|00|512|4090|4096|2147483647|1099511627776|9223372036854775807|\
    18446744073709551615|18446744073709551616|capacity=16 window=4 chunk=8 rewind=5|\
    capacity=18446744073709551615 window=18446744073709551615 chunk=1 rewind=0|\
    capacity=0 window=0 chunk=0 rewind=0; capacity=1 window=1 chunk=1 rewind=1|capacity=16 window=4|\
    exported=00000000000000000000000000000000 converted=00000000000000000000000000000000|\
    exported=0123456789abcdef0123456789abcdef converted=|exported= |a; b; c|past_k0 -> k0; past_k0 -> k0|; ;;|é";

/// Locations in the folder of the model with values. [`Scene`](crate::scene::Scene) has the files.
pub(crate) const INSIDE: &str = "data.bin|sub/data.bin|link_in|link_to_sub/data.bin";

/// Locations in the folder that are no file with values, or that cannot be written.
pub(crate) const STRANGE: &str =
    "|.|sub|pipe|missing.bin|dangling|loop|model.onnx|data.bin/more|a\nb|./data.bin|sub//data.bin";

/// Locations that lead out of the folder of the model.
pub(crate) const OUTSIDE: &str = "../secret.bin|sub/../../secret.bin|/etc/passwd|/dev/zero|/dev/stdin|link_out|\
    link_up/secret.bin|sub/../data.bin|..|/|link_absolute";

/// Returns a text of a list.
pub(crate) fn one(dice: &mut Dice, list: &'static str) -> &'static str {
    let texts: Vec<_> = list.split('|').collect();
    texts[dice.below(texts.len())]
}

/// Returns `true` for an operator of ONNX Runtime.
pub(crate) fn is_of_microsoft(operator: &str) -> bool {
    MICROSOFT.split_whitespace().any(|name| name == operator)
}

/// Returns a number at which arithmetic may change: a power of two or one beside it, with either sign.
fn edge(dice: &mut Dice) -> i64 {
    let power = 1_i64 << *dice.pick(&[6, 7, 8, 12, 16, 31, 32, 33, 40, 62, 63]);
    let near = power.wrapping_add(*dice.pick(&[-1, 0, 1]));
    if dice.chance(30) { near.wrapping_neg() } else { near }
}

/// Returns a number for a field. It is small in many cases.
pub(crate) fn int(dice: &mut Dice, field: &str) -> i64 {
    let small = |dice: &mut Dice, limit: usize| i64::try_from(dice.below(limit)).unwrap();
    match (field, dice.below(10)) {
        (_, 0) => dice.bits().cast_signed(),
        ("elem_type" | "data_type" | "key_type", 2..) => small(dice, 29),
        ("type", 2..) => small(dice, 16),
        ("version", 2..) => 7 + small(dice, 20),
        ("data_location", 2..) => small(dice, 3),
        (_, 1..=4) => small(dice, 9) - 2,
        _ => edge(dice),
    }
}

pub(crate) fn float(dice: &mut Dice) -> f32 {
    match dice.below(3) {
        0 => *dice.pick(&[0.0, -0.0, 1.0, f32::NAN, f32::INFINITY, f32::NEG_INFINITY, f32::MIN, f32::MAX]),
        1 => *dice.pick(&[0.5, 1e-30, -1e30, 2.0, 1e-45]),
        _ => f32::from_bits(u32::try_from(dice.bits() & 0xFFFF_FFFF).unwrap()),
    }
}

/// Returns a text for a field of a message. It is longer than names may be in a few cases.
pub(crate) fn text(dice: &mut Dice, kind: &str, field: &str) -> String {
    match dice.below(60) {
        0 => return "long".repeat(1500),
        1 => return "n".repeat(4096),
        _ => {}
    }
    let word = |dice: &mut Dice, words: &'static str| {
        let words: Vec<_> = words.split_whitespace().collect();
        *dice.pick(&words)
    };
    let text = match (kind, field) {
        ("Node", "op_type") if dice.chance(25) => word(dice, MICROSOFT),
        ("Node", "op_type") => word(dice, OPERATORS),
        ("Attribute", "name" | "ref_attr_name") | ("Function", "attribute") => word(dice, ATTRIBUTES),
        ("Attribute", "s" | "strings") => one(dice, STRINGS),
        ("Node" | "Opset" | "Function", "domain") => one(dice, DOMAINS),
        ("Dim", _) => one(dice, SYMBOLS),
        ("Entry", "key") => word(dice, KEYS),
        ("Entry", "value") => {
            let list = *dice.pick(&[VALUES, INSIDE, STRANGE, OUTSIDE]);
            one(dice, list)
        }
        _ => one(dice, NAMES),
    };
    text.to_owned()
}
