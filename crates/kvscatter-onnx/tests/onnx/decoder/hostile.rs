//! Tests graphs that are made to break the code that follows them. Each must return a decoder or an error
//! quickly.

use std::collections::BTreeMap;

use kvscatter::ElementType;
use kvscatter_onnx::convert::check_rings;
use kvscatter_onnx::decoder::{CostAt, Decoder};
use kvscatter_onnx::proto::NodeProto;
use kvscatter_onnx::proto::tensor_shape_proto::dimension::Value as DimValue;
use kvscatter_onnx::proto::type_proto::Value as TypeValue;
use kvscatter_onnx::{Model, OnnxError};
use proptest::prelude::*;
use proptest::sample::Index;

use super::made::{Made, circular};
use crate::support::{int, ints, model, node, testdata, value};

/// Queries everything about a model.
fn ask(model: &Model) -> Result<usize, OnnxError> {
    let graph = model.graph()?;
    let decoder = Decoder::of(&graph)?;
    let dims = BTreeMap::new();
    for cache in &decoder.caches {
        let _ =
            (cache.cost(&CostAt { batch: 2, length: 7, capacity: 9, dims: &dims }), cache.open_dims(&dims));
        assert!(cache.axis < cache.past_shape.len());
        assert_eq!(cache.past_shape.len(), cache.known_shape.len());
    }
    let of_rings = check_rings(model, &graph, &decoder).into_iter().filter_map(|ring| ring.outcome.err());
    for hazard in decoder.hazards().into_iter().chain(of_rings) {
        let _ = (hazard.to_string(), hazard.kind(), hazard.node(), hazard.cache());
    }
    for refusal in decoder.tensorrt_refusals() {
        let _ = refusal.to_string();
    }
    Ok(decoder.caches.len())
}

/// One change to a model.
#[derive(Clone, Debug)]
enum Change {
    /// A node reads another value.
    Rewire(Index, Index, Index),
    /// A node loses its last inputs or outputs.
    Cut(Index, Index),
    /// A node gets another operator.
    Operator(Index, Index),
    /// A node gets other attributes.
    Attributes(Index, i64),
    /// A node gets another domain.
    Domain(Index),
    /// An input or output declares another size.
    Size(Index, Index, i64),
    /// An output is another value.
    Output(Index, Index),
}

const OPERATORS: [&str; 22] = [
    "Concat",
    "TensorScatter",
    "Attention",
    "Identity",
    "Cast",
    "Transpose",
    "Reshape",
    "Slice",
    "Neg",
    "Shape",
    "Gather",
    "MatMul",
    "Softmax",
    "ScatterND",
    "If",
    "Where",
    "Add",
    "Constant",
    "RotaryEmbedding",
    "Cos",
    "GroupQueryAttention",
    "MultiHeadAttention",
];

fn changes() -> impl Strategy<Value = Vec<Change>> {
    let at = any::<Index>;
    let size = prop_oneof![Just(-1), Just(0), 1..5_i64, Just(i64::MAX), Just(1 << 40)];
    let change = prop_oneof![
        (at(), at(), at()).prop_map(|(node, slot, value)| Change::Rewire(node, slot, value)),
        (at(), at()).prop_map(|(node, left)| Change::Cut(node, left)),
        (at(), at()).prop_map(|(node, op_type)| Change::Operator(node, op_type)),
        (at(), -5..5_i64).prop_map(|(node, number)| Change::Attributes(node, number)),
        at().prop_map(Change::Domain),
        (at(), at(), size).prop_map(|(value, axis, size)| Change::Size(value, axis, size)),
        (at(), at()).prop_map(|(output, value)| Change::Output(output, value)),
    ];
    proptest::collection::vec(change, 1..8)
}

fn apply(model: &mut Model, change: &Change) {
    let graph = model.proto_mut().graph.get_or_insert_default();
    let values: Vec<String> = graph
        .input
        .iter()
        .filter_map(|input| input.name.clone())
        .chain(graph.node.iter().flat_map(|node| node.output.clone()))
        .filter(|name| !name.is_empty())
        .collect();
    let count = graph.node.len();
    match change {
        Change::Rewire(at, slot, value) => {
            let node = &mut graph.node[at.index(count)];
            if !node.input.is_empty() {
                let slot = slot.index(node.input.len());
                node.input[slot] = value.get(&values).clone();
            }
        }
        Change::Cut(at, left) => {
            let node = &mut graph.node[at.index(count)];
            node.input.truncate(left.index(node.input.len() + 1));
        }
        Change::Operator(at, op_type) => {
            graph.node[at.index(count)].op_type = Some((*op_type.get(&OPERATORS)).to_owned());
        }
        Change::Attributes(at, number) => {
            let some = ["axis", "perm", "to", "is_causal", "num_heads", "kv_num_heads", "transB"];
            let attributes = &mut graph.node[at.index(count)].attribute;
            attributes.clear();
            attributes.extend(
                some.map(|name| if name == "perm" { ints(name, &[*number]) } else { int(name, *number) }),
            );
        }
        Change::Domain(at) => graph.node[at.index(count)].domain = Some("com.microsoft".to_owned()),
        Change::Size(at, axis, size) => {
            let mut declared: Vec<_> = graph.input.iter_mut().chain(&mut graph.output).collect();
            let at = at.index(declared.len());
            if let Some(TypeValue::TensorType(tensor)) =
                &mut declared[at].r#type.get_or_insert_default().value
            {
                let dims = &mut tensor.shape.get_or_insert_default().dim;
                if *size < 0 {
                    dims.truncate(axis.index(dims.len() + 1));
                } else if !dims.is_empty() {
                    let axis = axis.index(dims.len());
                    dims[axis].value = Some(DimValue::DimValue(*size));
                }
            }
        }
        Change::Output(output, value) => {
            let output = output.index(graph.output.len());
            graph.output[output].name = Some(value.get(&values).clone());
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn changed_models_never_panic(which in 0..7_usize, changes in changes()) {
        let mut model = match which {
            0 => Made::fixed().model(),
            1 => Made::growing().model(),
            2 => Made::attention_past().model(),
            3 => Made::group_query().model(),
            4 => Made::fixed().change("present_k", circular).change("present_v", circular).model(),
            5 => Model::load(&testdata("mobius-llama-static/model.onnx")).unwrap(),
            _ => Model::load(&testdata("genai-llama-gqa/model.onnx")).unwrap(),
        };
        for change in &changes {
            apply(&mut model, change);
        }
        if let Err(error) = ask(&model) {
            prop_assert!(!error.to_string().contains('\n'));
        }
    }
}

/// The chains are far longer than those of any exporter.
#[test]
fn endless_chains_and_fans() {
    let link = |at: usize| match at {
        0 => "past_k".to_owned(),
        at => format!("link{at}"),
    };
    const LINKS: usize = 20_000;
    let chain =
        |op_type: &str| (0..LINKS).map(|at| node(op_type, &[&link(at)], &link(at + 1))).collect::<Vec<_>>();
    for op_type in ["Identity", "Neg"] {
        let made = Made::fixed().reading("past_k", &link(LINKS)).before(chain(op_type));
        // The chain is not followed to its end, so no past is found for this present.
        assert!(matches!(ask(&made.model()).unwrap_err().root(), OnnxError::CacheNotFed { .. }));
    }
    let fan: Vec<NodeProto> =
        (0..LINKS).map(|at| node("Unsqueeze", &["present_k"], &format!("fan{at}"))).collect();
    let made = fan.into_iter().fold(Made::fixed(), Made::node);
    assert_eq!(ask(&made.model()).unwrap(), 2);
}

/// The graph has as many caches as possible, all through one node of an unknown operator.
#[test]
fn many_caches_of_one_node() {
    const CACHES: usize = 5_000;
    let names = |what: &str| (0..CACHES).map(|at| format!("{what}{at}")).collect::<Vec<_>>();
    let (pasts, presents) = (names("past"), names("present"));
    let mut all = node("Everything", &pasts.iter().map(String::as_str).collect::<Vec<_>>(), "x");
    all.domain = Some("com.microsoft".to_owned());
    all.output.clone_from(&presents);
    let declare = |names: &[String]| {
        names.iter().map(|name| value(name, ElementType::Float32, &["b", "2", "s", "4"])).collect::<Vec<_>>()
    };
    let mut model = model(declare(&pasts), vec![all], declare(&presents));
    model.proto_mut().opset_import.push(crate::support::opset("com.microsoft", 1));
    assert_eq!(ask(&model).unwrap(), CACHES);
}
