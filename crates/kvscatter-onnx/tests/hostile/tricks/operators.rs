//! Changes operators and operator sets, and puts new operators between others.

use kvscatter_onnx::proto::ModelProto;

use super::Trick;
use crate::dice::Dice;
use crate::parts::{graph, main_graph, node, values};
use crate::support::{int, int64s, ints, node as new_node, opset, string};

pub(super) const ALL: &[Trick] = &[
    ("another operator", operator),
    ("another operator", operator),
    ("another domain", domain),
    ("a new operator between two nodes", between),
    ("a new operator between two nodes", between),
    ("a new operator between two nodes", between),
    ("a large value between two nodes", large),
    ("another version of an operator set", version),
    ("an operator set less", less),
    ("an operator set twice", twice),
    ("a write more", write),
    ("a ring", ring),
    ("a cache that is read elsewhere", read_elsewhere),
];

const MICROSOFT: &str = "com.microsoft";

/// Operators that the code under test treats in a special way.
const OPERATORS: [&str; 70] = [
    "Abs",
    "Add",
    "And",
    "ArgMax",
    "Attention",
    "BitShift",
    "Cast",
    "CastLike",
    "Clip",
    "Concat",
    "Constant",
    "ConstantOfShape",
    "Cos",
    "CumSum",
    "DequantizeLinear",
    "Div",
    "Dropout",
    "DynamicQuantizeLinear",
    "Einsum",
    "Equal",
    "Expand",
    "EyeLike",
    "Flatten",
    "Gather",
    "GatherElements",
    "GatherND",
    "Gelu",
    "Gemm",
    "Identity",
    "If",
    "LayerNormalization",
    "Less",
    "Loop",
    "MatMul",
    "MatMulInteger",
    "Mean",
    "Mod",
    "Neg",
    "NonZero",
    "OneHot",
    "Pad",
    "Pow",
    "QuantizeLinear",
    "Range",
    "ReduceMax",
    "ReduceSum",
    "Reshape",
    "RMSNormalization",
    "RotaryEmbedding",
    "Scan",
    "ScatterElements",
    "ScatterND",
    "Shape",
    "SimplifiedLayerNormalization",
    "Size",
    "Slice",
    "Softmax",
    "Split",
    "Sqrt",
    "Squeeze",
    "Sub",
    "Sum",
    "TensorScatter",
    "Tile",
    "TopK",
    "Transpose",
    "Trilu",
    "Unsqueeze",
    "Where",
    "Xor",
];

/// Operators of ONNX Runtime that the code under test treats in a special way.
const MICROSOFTS: [&str; 14] = [
    "BiasGelu",
    "CausalConvWithState",
    "FastGelu",
    "FusedMatMul",
    "GatherBlockQuantized",
    "GroupQueryAttention",
    "MatMulNBits",
    "MoE",
    "MultiHeadAttention",
    "QMoE",
    "QuickGelu",
    "RotaryEmbedding",
    "SkipLayerNormalization",
    "SkipSimplifiedLayerNormalization",
];

fn operator(dice: &mut Dice, model: &mut ModelProto) {
    let is_microsoft = dice.chance(25);
    let name = if is_microsoft { *dice.pick(&MICROSOFTS) } else { *dice.pick(&OPERATORS) };
    if let Some(node) = node(dice, model) {
        node.op_type = Some(name.to_owned());
        node.domain = is_microsoft.then(|| MICROSOFT.to_owned());
    }
    if is_microsoft {
        import_microsoft(model);
    }
}

fn import_microsoft(model: &mut ModelProto) {
    if !model.opset_import.iter().any(|import| import.domain.as_deref() == Some(MICROSOFT)) {
        model.opset_import.push(opset(MICROSOFT, 1));
    }
}

fn domain(dice: &mut Dice, model: &mut ModelProto) {
    let domain = (*dice.pick(&["", "ai.onnx", MICROSOFT, "ai.onnx.ml", "unknown", "local"])).to_owned();
    if dice.chance(80) {
        let known = model.opset_import.iter().any(|import| import.domain.as_deref() == Some(&domain));
        if !known && !["", "ai.onnx"].contains(&domain.as_str()) {
            model.opset_import.push(opset(&domain, 1));
        }
    }
    if let Some(node) = node(dice, model) {
        node.domain = Some(domain);
    }
}

/// Puts a node between a value and one of its readers.
fn between(dice: &mut Dice, model: &mut ModelProto) {
    let is_microsoft = dice.chance(20);
    let name = if is_microsoft { *dice.pick(&MICROSOFTS) } else { *dice.pick(&OPERATORS) };
    let numbers = [dice.int(), dice.int()];
    let graph = graph(dice, model);
    let known = values(graph);
    let at = dice.below(graph.node.len());
    let Some(reader) = graph.node.get_mut(at) else { return };
    let Some(input) = dice.pick_mut(&mut reader.input) else { return };
    if input.is_empty() {
        return;
    }
    let mut inputs = vec![std::mem::replace(input, "between".to_owned())];
    for _ in 0..*dice.pick(&[0, 0, 1, 2, 4]) {
        inputs.push(if dice.chance(50) { inputs[0].clone() } else { dice.pick(&known).clone() });
    }
    let inputs: Vec<&str> = inputs.iter().map(String::as_str).collect();
    let mut new = new_node(name, &inputs, "between");
    new.domain = is_microsoft.then(|| MICROSOFT.to_owned());
    match dice.below(4) {
        0 => new.attribute = vec![int("axis", numbers[0]), ints("perm", &numbers), int("to", 1)],
        1 => new.attribute = vec![int("to", numbers[0]), int("axis", -1), int("num_heads", 2)],
        2 => new.attribute = vec![int("num_heads", numbers[0]), int("kv_num_heads", numbers[1])],
        _ => {}
    }
    graph.node.insert(at, new);
    if is_microsoft {
        import_microsoft(model);
    }
}

/// Puts a value of many elements between a value and one of its readers, by a few bytes in the file.
fn large(dice: &mut Dice, model: &mut ModelProto) {
    let graph = graph(dice, model);
    let side = *dice.pick(&[1000, 2048, 4096, 1 << 20, 1 << 40]);
    graph.initializer.push(int64s("large_shape", &[2], &[side, side]));
    let at = dice.below(graph.node.len());
    let Some(reader) = graph.node.get_mut(at) else { return };
    let Some(input) = dice.pick_mut(&mut reader.input) else { return };
    let old = std::mem::replace(input, "large".to_owned());
    let new = match dice.below(5) {
        0 => vec![new_node("ConstantOfShape", &["large_shape"], "large")],
        3 => {
            let zeros = new_node("ConstantOfShape", &["large_shape"], "large0");
            let link = |at: usize| format!("large{at}");
            let negs = (0..40).map(|at| new_node("Neg", &[&link(at)], &link(at + 1)));
            let sum = new_node("Add", &[&old, "large40"], "large");
            std::iter::once(zeros).chain(negs).chain([sum]).collect()
        }
        1 => vec![new_node("Expand", &[&old, "large_shape"], "large")],
        2 => vec![new_node("Tile", &[&old, "large_shape"], "large")],
        _ => vec![
            new_node("ConstantOfShape", &["large_shape"], "large_zeros"),
            new_node("MatMul", &["large_zeros", "large_zeros"], "large_product"),
            new_node("ReduceSum", &["large_product"], "large_sum"),
            new_node("Add", &[&old, "large_sum"], "large"),
        ],
    };
    graph.node.splice(at..at, new);
}

fn version(dice: &mut Dice, model: &mut ModelProto) {
    let version = match dice.below(3) {
        0 => dice.int(),
        _ => i64::try_from(7 + dice.below(20)).unwrap(),
    };
    if let Some(import) = dice.pick_mut(&mut model.opset_import) {
        import.version = Some(version);
    }
}

fn less(dice: &mut Dice, model: &mut ModelProto) {
    if !model.opset_import.is_empty() {
        model.opset_import.remove(dice.below(model.opset_import.len()));
    }
}

fn twice(dice: &mut Dice, model: &mut ModelProto) {
    let domain = *dice.pick(&["", "ai.onnx", MICROSOFT, "local", "unused"]);
    model.opset_import.push(opset(domain, dice.int()));
}

/// Writes rows into an input that returns as an output.
fn write(dice: &mut Dice, model: &mut ModelProto) {
    let graph = main_graph(model);
    let known = values(graph);
    let (Some(past), false) = (dice.pick_mut(&mut graph.input).cloned(), known.is_empty()) else { return };
    let past_name = past.name.clone().unwrap_or_default();
    let mut scatter = new_node(
        "TensorScatter",
        &[&past_name, dice.pick(&known).as_str(), dice.pick(&known).as_str()],
        "written",
    );
    if dice.chance(60) {
        scatter.attribute.push(int("axis", dice.int()));
    }
    if dice.chance(40) {
        scatter.attribute.push(string("mode", "circular"));
    }
    graph.node.push(scatter);
    let mut present = past;
    present.name = Some("written".to_owned());
    graph.output.push(present);
}

fn ring(dice: &mut Dice, model: &mut ModelProto) {
    let mode = *dice.pick(&["circular", "circular", "linear", "Circular", ""]);
    let nodes = main_graph(model).node.iter_mut();
    for node in nodes.filter(|node| node.op_type.as_deref() == Some("TensorScatter")) {
        node.attribute.retain(|it| it.name.as_deref() != Some("mode"));
        node.attribute.push(string("mode", mode));
    }
}

fn read_elsewhere(dice: &mut Dice, model: &mut ModelProto) {
    let graph = main_graph(model);
    let Some(input) = dice.pick_mut(&mut graph.input).cloned() else { return };
    let operator = *dice.pick(&["Identity", "Shape", "Cast", "MatMul", "ReduceSum"]);
    graph.node.insert(0, new_node(operator, &[input.name.as_deref().unwrap_or_default()], "elsewhere"));
    if dice.chance(50) {
        let mut output = input;
        output.name = Some("elsewhere".to_owned());
        graph.output.push(output);
    }
}
