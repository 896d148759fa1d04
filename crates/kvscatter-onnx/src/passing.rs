//! Which operators pass a value on, and what they do to it.
//!
//! Searches that know only the structure of a graph use these tables. The walk of a [conversion](crate::convert) also
//! knows shapes, and uses the table of idioms. It follows scores only through the operators that are listed here.

use crate::{Graph, Node};

/// The maximum number of nodes between constant weights and their product.
const MAX_STEPS: usize = 8;

/// What a node does to its first input, which it passes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Passing {
    /// It keeps shape and order, and may round.
    Keeps,
    /// It keeps the elements in order, in another shape.
    Reshapes,
    /// It changes the order of axes.
    Transposes,
    /// It picks a part.
    Cuts,
    /// It repeats elements.
    Repeats,
    /// It puts other elements next to them.
    Joins,
    /// It computes each element from the same element.
    Computes,
    /// It computes each element from the same element and a second input.
    Combines,
}

/// The operators of the default domain that pass a value on.
const OPERATORS: [(&str, Passing); 29] = [
    ("Identity", Passing::Keeps),
    ("Cast", Passing::Keeps),
    ("CastLike", Passing::Keeps),
    ("Dropout", Passing::Keeps),
    ("Reshape", Passing::Reshapes),
    ("Squeeze", Passing::Reshapes),
    ("Unsqueeze", Passing::Reshapes),
    ("Flatten", Passing::Reshapes),
    ("Transpose", Passing::Transposes),
    ("Slice", Passing::Cuts),
    ("Split", Passing::Cuts),
    ("Gather", Passing::Cuts),
    ("GatherElements", Passing::Cuts),
    ("GatherND", Passing::Cuts),
    ("Expand", Passing::Repeats),
    ("Tile", Passing::Repeats),
    ("Concat", Passing::Joins),
    ("Pad", Passing::Joins),
    ("TensorScatter", Passing::Joins),
    ("Neg", Passing::Computes),
    ("Abs", Passing::Computes),
    ("Clip", Passing::Computes),
    ("QuantizeLinear", Passing::Computes),
    ("DequantizeLinear", Passing::Computes),
    ("Add", Passing::Combines),
    ("Sub", Passing::Combines),
    ("Mul", Passing::Combines),
    ("Div", Passing::Combines),
    ("Min", Passing::Combines),
];

/// What a node does to attention scores that it reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OnScores {
    /// Its result is scores.
    Keeps,
    /// Its result is scores, and another input may hide some of them.
    Masks,
    /// Its result is weights.
    Weighs,
    /// Its result has one number for each row of scores.
    Reduces,
}

/// The operators of the default domain that may read scores, beside those that move them.
const ON_SCORES: [(&str, OnScores); 10] = [
    ("Mul", OnScores::Keeps),
    ("Div", OnScores::Keeps),
    ("Sub", OnScores::Keeps),
    ("Tanh", OnScores::Keeps),
    ("Max", OnScores::Keeps),
    ("Clip", OnScores::Keeps),
    ("Add", OnScores::Masks),
    ("Where", OnScores::Masks),
    ("Softmax", OnScores::Weighs),
    ("ReduceMax", OnScores::Reduces),
];

impl OnScores {
    /// Returns what a node does to scores, or `None` if it is not known to read them.
    pub(crate) fn from_node(node: &Node<'_>) -> Option<Self> {
        let row = ON_SCORES.iter().find(|(op_type, _)| node.is(op_type));
        row.map(|(_, on_scores)| *on_scores).or_else(|| moves(node).then_some(Self::Keeps))
    }
}

impl Passing {
    /// Returns what an operator does, or `None` if it passes nothing on. ONNX Runtime's own operators of quantization
    /// have the names of those of ONNX.
    pub(crate) fn of_node(node: &Node<'_>) -> Option<Self> {
        let (_, passing) = OPERATORS.iter().find(|(op_type, _)| *op_type == node.op_type())?;
        let is_quantization = || matches!(node.op_type(), "QuantizeLinear" | "DequantizeLinear");
        (node.is(node.op_type()) || (!node.is_function() && is_quantization())).then_some(*passing)
    }
}

/// Returns `true` if a node keeps all elements in order, and may round them.
pub(crate) fn keeps_elements(node: &Node<'_>) -> bool {
    matches!(Passing::of_node(node), Some(Passing::Keeps | Passing::Reshapes))
}

/// Returns `true` if a node keeps the shape and the order of all elements, and may round them.
pub(crate) fn keeps_shape(node: &Node<'_>) -> bool {
    Passing::of_node(node) == Some(Passing::Keeps)
}

/// Returns `true` if a node moves, repeats or drops elements of its first input, or puts others next to them.
pub(crate) fn moves(node: &Node<'_>) -> bool {
    use Passing::{Cuts, Joins, Keeps, Repeats, Reshapes, Transposes};
    let is_moved = |passing| matches!(passing, Keeps | Reshapes | Transposes | Cuts | Repeats | Joins);
    Passing::of_node(node).is_some_and(is_moved) && !node.is("TensorScatter") && !node.is("Pad")
}

/// Returns `true` if a node may be between a cache and its product. Such nodes repeat, transpose or scale
/// heads.
pub(crate) fn leads_to_product(node: &Node<'_>) -> bool {
    let scales = ["Mul", "Div", "Where", "TensorScatter"].iter().any(|op_type| node.is(op_type));
    moves(node) || scales || Passing::of_node(node) == Some(Passing::Computes)
}

/// Returns `true` if a node that reads a value at `slot` may be between a cache and its product. It leads to a product
/// as it is, or computes rows of keys and values from the rows of a latent cache.
pub(crate) fn leads_from_cache<'m>(graph: &Graph<'m>, node: &Node<'m>, slot: usize) -> bool {
    let is_filled = node.is("ScatterND") && (slot == 0 || slot == 2);
    let is_biased = node.is("Add") && combined(graph, node).is_some();
    let computes = is_biased || is_projection(graph, node, slot) || (is_norm(node) && slot == 0);
    leads_to_product(node) || is_filled || computes
}

/// Returns `true` if a node multiplies the rows of a value with constant weights.
pub(crate) fn is_projection<'m>(graph: &Graph<'m>, node: &Node<'m>, slot: usize) -> bool {
    node.is("MatMul") && slot == 0 && node.input(1).is_some_and(|weights| is_weight(graph, weights))
}

/// Returns `true` for a constant, also if it is transposed, cast or dequantized.
fn is_weight<'m>(graph: &Graph<'m>, value: &'m str) -> bool {
    let mut value = value;
    for _ in 0..MAX_STEPS {
        if graph.is_constant(value) {
            return true;
        }
        let before = graph.producer(value).and_then(|(node, _)| passed_on(graph, &node));
        let Some(before) = before else { return false };
        value = before;
    }
    false
}

/// Returns `true` if a node normalises its first input.
pub(crate) fn is_norm(node: &Node<'_>) -> bool {
    node.is("RMSNormalization") || node.is("LayerNormalization")
}

/// Returns the input whose tensor a node passes on as one tensor, or `None` for nodes that compute something else.
pub(crate) fn passed_on<'m>(graph: &Graph<'m>, node: &Node<'m>) -> Option<&'m str> {
    match Passing::of_node(node)? {
        Passing::Keeps | Passing::Reshapes | Passing::Transposes | Passing::Computes => node.input(0),
        Passing::Cuts if node.is("Slice") => node.input(0),
        Passing::Joins if node.is("Pad") => node.input(0),
        Passing::Combines => combined(graph, node),
        Passing::Cuts | Passing::Joins | Passing::Repeats => None,
    }
}

/// Returns the input that a node combines with a constant.
pub(crate) fn combined<'m>(graph: &Graph<'m>, node: &Node<'m>) -> Option<&'m str> {
    let [left, right] = node.proto().input.as_slice() else { return None };
    match [left, right].map(|name| graph.is_constant(name)) {
        [false, true] => Some(left),
        [true, false] => Some(right),
        _ => None,
    }
}
