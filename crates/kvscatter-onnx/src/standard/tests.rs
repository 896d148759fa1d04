//! Proves every form of every operator, and that a form with a fault is not proved.
#![expect(clippy::arithmetic_side_effects, reason = "the numbers are small")]

mod shared;

use kvscatter::ElementType;

use super::error::NoStandardForm;
use super::form::{MICROSOFT, StandardForm, standard_form};
use super::node::{Replacing, StandardEditor};
use super::proof::{FormProofs, node_model};
use super::{group_query, multi_head, norm};
use crate::edit::NewNode;
use crate::fold::{Value, Values};
use crate::names::Names;
use crate::proto::NodeProto;
use crate::support::node;
use crate::{Graph, Node, OnnxError};

/// A node and what is known about its inputs.
#[derive(Clone)]
struct Case {
    node: NodeProto,
    facts: Vec<Option<Value>>,
}

impl Case {
    /// Creates a node whose inputs have these shapes. An input without a shape is absent.
    fn new(op_type: &str, element: ElementType, shapes: &[&[usize]]) -> Self {
        let domain = Some(MICROSOFT.to_owned());
        let case = Self { node: NodeProto { domain, ..node(op_type, &[], "out0") }, facts: Vec::new() };
        let given = shapes.iter().enumerate().filter(|(_, shape)| !shape.is_empty());
        given.fold(case, |case, (slot, shape)| case.input(slot, element, shape, None))
    }

    fn input(mut self, slot: usize, element: ElementType, shape: &[usize], data: Option<Values>) -> Self {
        let count = self.facts.len().max(slot + 1);
        self.facts.resize(count, None);
        self.node.input.resize(count, String::new());
        self.node.input[slot] = format!("in{slot}");
        self.facts[slot] = Some(Value::new(element, shape.to_vec(), data).unwrap());
        self
    }

    fn without(mut self, slot: usize) -> Self {
        self.node.input[slot].clear();
        self.facts[slot] = None;
        self
    }

    fn outputs(mut self, names: &[&str]) -> Self {
        self.node.output = names.iter().map(|&name| name.to_owned()).collect();
        self
    }

    fn with(mut self, set: impl FnOnce(NewNode) -> NewNode) -> Self {
        self.node = set(NewNode::from(self.node)).into_proto(&mut Names::default());
        self
    }

    fn proved(&self) -> Result<(), OnnxError> {
        self.proved_by(|node| standard_form(node).expect("an operator that is replaced"))
    }

    fn proved_by(&self, form: impl FnOnce(&Node<'_>) -> StandardForm) -> Result<(), OnnxError> {
        let model = node_model(&self.node);
        let node = Graph::new(&model).unwrap().nodes()[0];
        FormProofs::new().prove(&form(&node), &Replacing { node, facts: &self.facts })
    }

    fn check(&self) {
        self.proved().unwrap_or_else(|error| panic!("{error}: {:?}", self.node));
    }

    /// Returns the reason why there is no standard form.
    fn refused(&self) -> String {
        let error = self.proved().unwrap_err();
        let Some(NoStandardForm::Form { what }) = error.cause() else { panic!("{error}: {:?}", self.node) };
        what.clone()
    }
}

const F32: ElementType = ElementType::Float32;
const F16: ElementType = ElementType::Float16;

#[test]
fn norms() {
    for element in [F32, F16] {
        let simplified = Case::new("SimplifiedLayerNormalization", element, &[&[2, 3, 8], &[8]]);
        simplified.check();
        simplified.clone().with(|node| node.float("epsilon", 0.5).int("axis", -1)).check();
        for (op_type, shapes) in [
            ("SkipSimplifiedLayerNormalization", vec![&[2, 3, 8][..], &[2, 3, 8], &[8], &[8]]),
            ("SkipLayerNormalization", vec![&[2, 3, 8], &[2, 3, 8], &[8], &[8], &[8]]),
        ] {
            for given in 3..=shapes.len() {
                let case = Case::new(op_type, element, &shapes[..given]);
                case.check();
                let case = case.with(|node| node.float("epsilon", 0.25));
                case.clone().outputs(&["out0", "", "", "out3"]).check();
                assert_eq!(case.outputs(&["out0", "mean"]).refused(), format!("output 1 of {op_type}"));
            }
            // The skipped value may have no batch.
            let mut broadcast = shapes.clone();
            broadcast[1] = &[3, 8];
            Case::new(op_type, element, &broadcast).check();
        }
    }
}

#[test]
fn activations() {
    for element in [F32, F16] {
        Case::new("BiasGelu", element, &[&[2, 3, 8], &[8]]).check();
        Case::new("FastGelu", element, &[&[2, 3, 8]]).check();
        Case::new("FastGelu", element, &[&[2, 3, 8], &[8]]).check();
        Case::new("Gelu", element, &[&[5]]).check();
        for alpha in [1.0, 1.702, -0.5] {
            Case::new("QuickGelu", element, &[&[2, 9]]).with(|node| node.float("alpha", alpha)).check();
        }
        Case::new("QuickGelu", element, &[&[2, 9]]).check();
    }
}

#[test]
fn products() {
    let flag = |node: NewNode, name: &str, is_set: bool| if is_set { node.int(name, 1) } else { node };
    for bits in 0..16_u32 {
        let [batch_a, batch_b, a, b] = [0, 1, 2, 3].map(|bit| bits >> bit & 1 == 1);
        // `transBatch` makes [2, 5, 3] of [5, 2, 3], and `trans` exchanges the last two axes after that.
        let shape = |is_batch: bool, is_turned: bool, [rows, columns]: [usize; 2]| {
            let [rows, columns] = if is_turned { [columns, rows] } else { [rows, columns] };
            if is_batch { [rows, 2, columns] } else { [2, rows, columns] }
        };
        let (left, right) = (shape(batch_a, a, [3, 4]), shape(batch_b, b, [4, 5]));
        for alpha in [1.0, 0.125] {
            Case::new("FusedMatMul", F32, &[&left, &right])
                .with(|node| {
                    let node = flag(flag(node, "transA", a), "transB", b).float("alpha", alpha);
                    flag(flag(node, "transBatchA", batch_a), "transBatchB", batch_b)
                })
                .check();
        }
    }
}

#[test]
fn rotations() {
    let ids = |shape: &[usize], ids: &[i64]| (shape.to_vec(), Some(Values::Ints(ids.to_vec())));
    for (shape, columns, is_partial) in [
        (&[2, 3, 32][..], 4, false),
        (&[2, 4, 3, 8], 4, false),
        (&[2, 4, 3, 8], 2, true),
        (&[2, 3, 32], 2, true),
    ] {
        for (positions, numbers) in [ids(&[2, 3], &[0, 1, 2, 7, 8, 9]), ids(&[1], &[5])] {
            for is_interleaved in [0, 1] {
                let case = Case::new("RotaryEmbedding", F32, &[shape, &[], &[16, columns], &[16, columns]])
                    .input(1, ElementType::Int64, &positions, numbers.clone())
                    .with(|node| {
                        let node = node.int("interleaved", is_interleaved);
                        let node = if shape.len() == 3 { node.int("num_heads", 4) } else { node };
                        if is_partial { node.int("rotary_embedding_dim", 4) } else { node }
                    });
                case.check();
                let scaled = case.clone().with(|node| node.float("scale", 0.5)).refused();
                assert_eq!(scaled, "a scale other than 1 of RotaryEmbedding");
                let packed = case.with(|node| node.int("is_packed_batching", 1)).refused();
                assert_eq!(packed, "is_packed_batching of RotaryEmbedding");
            }
        }
    }
}

/// Returns a `GroupQueryAttention` of 4 and 2 heads of 8 elements, with 2 new tokens in each of 2 samples.
fn grouped(past: usize, is_packed: bool) -> Case {
    let (element, hidden) = (F32, if is_packed { 64 } else { 32 });
    let own: &[usize] = if is_packed { &[] } else { &[2, 2, 16] };
    let cache = [2, 2, past, 8];
    let [last, total] = [1, 2].map(|new| i64::try_from(past + new).unwrap());
    Case::new("GroupQueryAttention", element, &[&[2, 2, hidden], own, own, &cache, &cache])
        .input(5, ElementType::Int32, &[2], int32s(&[last, last]))
        .input(6, ElementType::Int32, &[1], int32s(&[total]))
        .outputs(&["out0", "out1", "out2"])
        .with(|node| node.int("num_heads", 4).int("kv_num_heads", 2))
}

fn int32s(values: &[i64]) -> Option<Values> {
    Some(Values::Ints(values.to_vec()))
}

fn rotated(case: Case, columns: usize) -> Case {
    let tables = [16, columns];
    case.input(7, F32, &tables, None).input(8, F32, &tables, None).with(|node| node.int("do_rotary", 1))
}

#[test]
fn grouped_queries() {
    for (past, is_packed) in [(0, true), (0, false), (5, true), (5, false)] {
        let case = grouped(past, is_packed);
        case.check();
        case.clone().with(|node| node.float("scale", 0.25).float("softcap", 0.0)).check();
        case.clone().with(|node| node.float("scale", 0.0)).check();
        case.clone().with(|node| node.float("softcap", 3.0)).check();
        for window in [1, 2, 3, 99] {
            case.clone().with(|node| node.int("local_window_size", window)).check();
        }
        for (columns, is_interleaved) in [(4, 0), (4, 1), (2, 0), (2, 1)] {
            let case =
                rotated(case.clone(), columns).with(|node| node.int("rotary_interleaved", is_interleaved));
            case.check();
            let [first, second] = [0, 1].map(|token| i64::try_from(past + token).unwrap());
            let ids = Values::Ints(vec![first, second, first, second]);
            case.input(9, ElementType::Int64, &[2, 2], Some(ids)).check();
        }
        let normed = case.clone().input(14, F32, &[8], None).input(15, F32, &[8], None);
        normed.check();
        rotated(normed.with(|node| node.float("qk_norm_epsilon", 0.5).float("k_norm_epsilon", 0.25)), 4)
            .check();
        let sunk = case.clone().input(11, F32, &[4], None);
        for case in [sunk, case.clone().with(|node| node.int("smooth_softmax", 1))] {
            case.check();
            rotated(case, 4).with(|node| node.float("softcap", 3.0).int("local_window_size", 2)).check();
        }
        let bias = [2, 1, 2, past + 2];
        case.input(10, F32, &bias, None).with(|node| node.float("softcap", 3.0)).check();
    }
    // Samples of different lengths, as a buffer that past and present share holds them, need the static form.
    // Alone, each is one of the cases above.
}

#[test]
fn grouped_queries_without_a_standard_form() {
    let case = grouped(5, true);
    assert_eq!(case.clone().input(12, F32, &[1], None).refused(), "a quantized cache of GroupQueryAttention");
    let counts = Some(Values::Ints(vec![1, 2]));
    let chunk = case.clone().input(16, ElementType::Int32, &[2], counts);
    assert_eq!(chunk.refused(), "query_seqlens of GroupQueryAttention");
    for (name, value, what) in [
        ("causal", 0, "causal = 0 of GroupQueryAttention"),
        ("local_window_size", 0, "local_window_size = 0 of GroupQueryAttention"),
        ("local_window_size", 1 << 32, "local_window_size = 4294967296 of GroupQueryAttention"),
        ("do_rotary", 2, "do_rotary = 2 of GroupQueryAttention"),
        ("smooth_softmax", 2, "a smooth_softmax other than 0 and 1 of GroupQueryAttention"),
        ("unheard_of", 1, "attribute \"unheard_of\" of GroupQueryAttention"),
    ] {
        assert_eq!(case.clone().with(|node| node.int(name, value)).refused(), what);
    }
    let sunk = case.clone().input(11, F32, &[4], None).input(10, F32, &[1, 1, 2, 7], None);
    assert_eq!(sunk.refused(), "a sink beside attention_bias of GroupQueryAttention");
    let products = case.clone().outputs(&["out0", "out1", "out2", "out3"]);
    assert_eq!(products.refused(), "output 3 of GroupQueryAttention");
    let one = case.outputs(&["out0", "out1"]);
    assert_eq!(one.refused(), "a past without a present of GroupQueryAttention");
}

#[test]
fn heads_of_their_own() {
    let rows: &[usize] = &[2, 2, 32];
    let case = |shapes: &[&[usize]]| {
        Case::new("MultiHeadAttention", F32, shapes).with(|node| node.int("num_heads", 4))
    };
    let past: &[usize] = &[2, 4, 3, 8];
    case(&[rows, rows, rows]).check();
    case(&[rows, rows, rows]).with(|node| node.int("unidirectional", 1).float("scale", 0.5)).check();
    case(&[rows, rows, rows, &[96]]).check();
    let biased = case(&[rows, rows, rows, &[96], &[], &[1, 4, 2, 5], past, past]);
    let biased = biased.outputs(&["out0", "out1", "out2"]);
    biased.check();
    let padding = Some(Values::Ints(vec![1, 1, 1, 1, 1, 0, 1, 1, 1, 1]));
    let padded = biased.input(4, ElementType::Int32, &[2, 5], padding);
    padded.check();
    padded.clone().with(|node| node.int("unidirectional", 1).float("mask_filter_value", -3.0)).check();
    let refused = padded.input(8, ElementType::Int32, &[1], Some(Values::Ints(vec![3]))).refused();
    assert_eq!(refused, "input 8 of MultiHeadAttention");
    // Keys and values of another attention.
    case(&[rows, &[2, 4, 3, 8], &[2, 4, 3, 8]]).check();
}

/// Replaces a node as if it had other attributes.
macro_rules! with_fault {
    ($replace:path, $set:expr) => {{
        fn replace(standard: &mut StandardEditor<'_, '_>, old: &Replacing<'_>) -> Result<(), OnnxError> {
            let set: fn(NewNode) -> NewNode = $set;
            let node = set(NewNode::from(old.node.proto().clone())).into_proto(&mut Names::default());
            let model = node_model(&node);
            let node = Graph::new(&model)?.nodes()[0];
            $replace(standard, &Replacing { node, facts: old.facts })
        }
        StandardForm { replace, is_scalable: false }
    }};
}

/// What compilers got wrong when they replaced these operators.
#[test]
fn faults_are_found() {
    let differs = |form: StandardForm, case: &Case, what: &str| {
        let error = case.proved_by(|_| form).unwrap_err();
        let Some(NoStandardForm::Differs { difference, .. }) = error.cause() else {
            panic!("{what}: {error}")
        };
        assert!(*difference > 1e-3, "{what}: {difference}");
    };
    let case =
        rotated(grouped(5, true), 2).with(|node| node.float("softcap", 3.0).int("local_window_size", 4));
    use group_query::group_query_attention as gqa;
    differs(with_fault!(gqa, |node| node.int("local_window_size", 5)), &case, "window off by one");
    differs(with_fault!(gqa, |node| node.int("local_window_size", -1)), &case, "no window");
    differs(with_fault!(gqa, |node| node.float("softcap", 0.0)), &case, "no cap");
    differs(with_fault!(gqa, |node| node.int("do_rotary", 0)), &case, "no rotation");
    differs(with_fault!(gqa, |node| node.int("rotary_interleaved", 1)), &case, "interleaved");
    differs(with_fault!(gqa, |node| node.float("scale", 1.0)), &case, "scale");
    let heads = Case::new("MultiHeadAttention", F32, &[&[2, 2, 32], &[2, 2, 32], &[2, 2, 32]])
        .with(|node| node.int("num_heads", 4).int("unidirectional", 1));
    let acausal = with_fault!(multi_head::multi_head_attention, |node| node.int("unidirectional", 0));
    differs(acausal, &heads, "not causal");
    let skipped = Case::new("SkipLayerNormalization", F32, &[&[2, 3, 8], &[2, 3, 8], &[8]]);
    differs(with_fault!(norm::skip, |node| node.float("epsilon", 1.0)), &skipped, "epsilon");
}
