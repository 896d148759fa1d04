//! Tests that the evaluation of any node returns a value whose parts agree, or an error.

use kvscatter::ElementType;
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;

use super::number::{fit, int_to_float};
use super::values::NumberKind;
use super::{Fold, Value, Values};
use crate::support::{opset, parsed};

const OPERATORS: &str = "Shape Size Identity Dropout Constant ConstantOfShape Reshape Flatten Squeeze Unsqueeze \
    Range EyeLike Transpose Expand Tile Concat Split Slice Pad Trilu Gather GatherElements GatherND \
    ScatterElements ScatterND NonZero OneHot Cast CastLike Where Clip Not And Or Xor Equal Less Greater IsNaN IsInf \
    Add Sub Mul Div Mod Pow BitwiseAnd Min Max Sum Mean Neg Abs Sign Sqrt Erf Softplus Swish Relu LeakyRelu Gelu \
    ReduceSum ReduceMean ReduceMax ReduceMin ReduceProd ReduceSumSquare ReduceL2 ArgMax CumSum Softmax LogSoftmax \
    TopK MatMul MatMulInteger Gemm Einsum LayerNormalization RMSNormalization DynamicQuantizeLinear QuantizeLinear \
    DequantizeLinear RotaryEmbedding TensorScatter Attention FusedMatMul MatMulNBits QuickGelu BiasGelu \
    SkipLayerNormalization SkipSimplifiedLayerNormalization SimplifiedLayerNormalization FastGelu FusedGemm \
    MultiHeadAttention MultiHeadAttention GroupQueryAttention GroupQueryAttention GroupQueryAttention";

const ATTRIBUTES: &str = "axis axes perm keepdims noop_with_empty_axes exclusive reverse start end to dtype k fmod \
    allowzero batch_dims mode reduction upper value_ints value_int split num_outputs transA transB transBatchA K N \
    num_heads kv_num_heads q_num_heads equation approximate alpha select_last_index starts ends pads shape do_rotary \
    interleaved rotary_interleaved local_window_size causal is_causal unidirectional smooth_softmax";

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4096))]

    #[test]
    fn no_operator_panics(
        op_type in select(OPERATORS.split_whitespace().collect::<Vec<_>>()),
        inputs in vec(prop::option::weighted(0.9, value()), 0..12),
        attributes in vec(attribute(), 0..4),
        outputs in 1..4_usize,
        version in select(vec![11, 24]),
        microsoft in any::<bool>(),
    ) {
        let reads = inputs.iter().enumerate();
        let reads = reads.map(|(at, input)| if input.is_some() { format!("x{at}") } else { "_".to_owned() });
        let reads = reads.collect::<Vec<_>>().join(", ");
        let makes = (0..outputs).map(|at| format!("y{at}")).collect::<Vec<_>>().join(", ");
        let domain = if microsoft { "com.microsoft" } else { "" };
        let node = format!("{makes} = {op_type}@{domain}({reads}) {{{}}}", attributes.join(", "));
        let declared: String = (0..inputs.len()).map(|at| format!("x{at}: float[]")).collect();
        let mut model = parsed(&declared, &node, "");
        model.proto_mut().opset_import = vec![opset(domain, version)];
        let graph = model.graph().unwrap();
        let fold = || {
            let mut fold = Fold::new(&graph, None);
            for (at, input) in inputs.iter().enumerate().filter_map(|(at, input)| Some((at, input.clone()?))) {
                fold.set(&format!("x{at}"), input).unwrap();
            }
            fold
        };
        let mut values = fold();
        for index in 0..outputs {
            let name = format!("y{index}");
            if let Ok(value) = values.value(&name) {
                agrees(value);
                // If only the shape is evaluated, it is the same, unless it depends on elements that are not
                // computed for a shape.
                let mut shapes = fold();
                prop_assert_eq!(shapes.shape(&name).unwrap(), value.shape.as_slice());
            }
        }
    }
}

/// Returns small numbers and numbers near which arithmetic overflows.
fn number() -> impl Strategy<Value = i64> {
    prop_oneof![8 => -4..5_i64, 1 => select(vec![i64::MIN, i64::MIN + 1, i64::MAX, 1 << 40, i32::MAX.into()])]
}

fn value() -> impl Strategy<Value = Value> {
    let elements = vec![
        ElementType::Int64,
        ElementType::Int64,
        ElementType::Float32,
        ElementType::Float16,
        ElementType::Bool,
        ElementType::UInt8,
        ElementType::String,
    ];
    let dim = prop_oneof![12 => 0..4_usize, 1 => Just(1 << 20), 1 => Just(1 << 40)];
    (select(elements), vec(dim, 0..4), vec(number(), 64), prop::bool::weighted(0.8)).prop_filter_map(
        "larger than any buffer",
        |(element, shape, numbers, is_known)| {
            let count = shape.iter().try_fold(1_usize, |count, &dim| count.checked_mul(dim))?;
            let numbers = numbers.get(..count).filter(|_| is_known);
            let data = numbers.zip(NumberKind::from_element(element)).map(|(numbers, kind)| match kind {
                NumberKind::Int => Values::Ints(
                    numbers.iter().map(|&number| fit(element, Some(number)).unwrap_or(1)).collect(),
                ),
                NumberKind::Float => Values::Floats(
                    numbers
                        .iter()
                        .map(|&number| if number > 99 { f64::NAN } else { int_to_float(element, number) })
                        .collect(),
                ),
                NumberKind::Bool => Values::Bools(numbers.iter().map(|&number| number > 0).collect()),
            });
            Value::new(element, shape, data).ok()
        },
    )
}

/// Returns the text of an attribute.
fn attribute() -> impl Strategy<Value = String> {
    let text =
        select(vec!["none", "tanh", "edge", "reflect", "wrap", "constant", "add", "ij,jk->ik", "i,i", ".."]);
    let values = (number(), vec(number(), 0..4), text, 0..4_u8);
    (select(ATTRIBUTES.split_whitespace().collect::<Vec<_>>()), values).prop_map(
        |(name, (int, ints, text, kind))| match name {
            "mode" | "reduction" | "approximate" | "equation" => format!("{name}=\"{text}\""),
            "axes" | "perm" | "value_ints" | "split" | "starts" | "ends" | "pads" | "shape" => {
                format!("{name}={ints:?}")
            }
            "alpha" => format!("{name}={:?}", f32::MIN),
            _ if kind > 0 => format!("{name}={int}"),
            _ => format!("{name}={ints:?}"),
        },
    )
}

/// Checks what [`Value::new`] checks, and that every number fits its type.
fn agrees(value: &Value) {
    let again = Value::new(value.element, value.shape.clone(), value.data.clone()).unwrap();
    assert_eq!(format!("{again:?}"), format!("{value:?}"));
    match &value.data {
        Some(Values::Ints(values)) => {
            assert!(values.iter().all(|&int| fit(value.element, Some(int)).is_ok()), "{value:?}");
        }
        Some(Values::Floats(values)) => {
            let is_rounded =
                |&float: &f64| float.is_nan() || super::number::round(value.element, float) == float;
            assert!(values.iter().all(is_rounded), "{value:?}");
        }
        _ => {}
    }
}
