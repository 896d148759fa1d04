//! Tests that attention of separate nodes becomes one `Attention` node in every form that exporters write, and
//! that it stays as it is where one node would compute something else.
//!
//! `python-tests/test_fuse.py` shows in ONNX Runtime that such decoders compute the same.

use half::{bf16, f16};
use kvscatter::ElementType;
use kvscatter_onnx::convert::{
    ConvertOptions, ConvertRefusal, Converted, KeptReason, LinearReason, LinearWindow, MaskRule,
    WindowedCaches, convert, mask_rule,
};
use kvscatter_onnx::proto::{GraphProto, NodeProto, TensorProto};
use kvscatter_onnx::{Model, Node, OnnxError};

use crate::support::{int, ints, model, node, testdata, value};

/// The sizes of the decoder. Its vocabulary is as large as its hidden state, so that the table of embeddings
/// is known by the logits.
const HEADS: usize = 6;
const KV_HEADS: usize = 3;
const SIZE: usize = 4;
const SLOTS: usize = 16;

/// One attention operation that reads two caches, with a node at each place where exporters put one. Each
/// function adds nodes that read a value and returns the name of the result.
#[derive(Clone)]
pub(super) struct Form {
    pub(super) element: ElementType,
    pub(super) kv_heads: usize,
    pub(super) queries: Step,
    pub(super) keys: Step,
    pub(super) repeat: Step,
    pub(super) values: Step,
    pub(super) scores: Step,
    pub(super) mask: Step,
    pub(super) masked: Step,
    pub(super) weights: Step,
}

pub(super) type Step = fn(&mut Nodes, &str) -> String;

impl Form {
    /// Returns attention as it is defined, with a mask that is added.
    pub(super) fn plain() -> Self {
        Self {
            element: ElementType::Float32,
            kv_heads: HEADS,
            queries: as_it_is,
            keys: as_it_is,
            repeat: as_it_is,
            values: as_it_is,
            scores: |nodes, scores| nodes.number("Mul", scores, 0.5),
            mask: |nodes, scores| nodes.add("Add", &[scores, "bias"]),
            masked: as_it_is,
            weights: as_it_is,
        }
    }

    pub(super) fn grouped() -> Self {
        Self { kv_heads: KV_HEADS, repeat: expanded, ..Self::plain() }
    }

    pub(super) fn model(&self) -> Model {
        let mut nodes = Nodes { element: self.element, nodes: Vec::new(), initializers: Vec::new() };
        let hidden = HEADS * SIZE;
        nodes.floats("table", &[hidden, hidden], 0.1);
        nodes.floats("places_table", &[32, hidden], 0.3);
        let low = match self.element {
            ElementType::Float16 => f16::MIN.to_f32(),
            ElementType::BFloat16 => bf16::MIN.to_f32(),
            _ => f32::MIN,
        };
        nodes.floats("low", &[], low);
        nodes.floats("none", &[], 0.0);
        nodes.floats("project", &[hidden, self.kv_heads * SIZE], 0.2);
        for (name, values) in [
            ("zero", &[0_i64][..]),
            ("one", &[1]),
            ("last", &[-1]),
            ("first_two", &[1, 2]),
            ("two", &[2]),
            ("shared", &[1, 1, 2, 1, 1]),
            ("times", &[1, 2, 1, 1, 1]),
            ("by_head", &[0, 0, 6, 4]),
            ("by_kv_head", &[0, 0, self.kv_heads.try_into().unwrap(), 4]),
            ("all_heads", &[0, 6, -1, 4]),
            ("all_heads_turned", &[0, 6, 4, -1]),
            ("by_sample", &[-1, 6]),
            ("for_each_head", &[1, 6, 1, 1]),
            ("flat", &[0, 0, 24]),
        ] {
            nodes.ints(name, values);
        }
        nodes.called("words", "Gather", &["table", "input_ids"]);
        nodes.called("where", "Gather", &["places_table", "position_ids"]);
        nodes.called("x", "Add", &["words", "where"]);
        nodes.visible();
        let queries = nodes.by_head("x", "by_head");
        let rows = nodes.add("MatMul", &["x", "project"]);
        let rows = nodes.by_head(&rows, "by_kv_head");
        for part in ["k", "v"] {
            let present = format!("present.{part}");
            nodes.called(&present, "Concat", &[&format!("past.{part}"), &rows]);
            nodes.attribute(int("axis", 2));
        }
        let keys = (self.repeat)(&mut nodes, "present.k");
        let keys = nodes.add("Transpose", &[&keys]);
        nodes.attribute(ints("perm", &[0, 1, 3, 2]));
        let keys = (self.keys)(&mut nodes, &keys);
        let queries = (self.queries)(&mut nodes, &queries);
        let scores = nodes.add("MatMul", &[&queries, &keys]);
        let scores = (self.scores)(&mut nodes, &scores);
        let masked = (self.mask)(&mut nodes, &scores);
        let masked = (self.masked)(&mut nodes, &masked);
        let weights = nodes.add("Softmax", &[&masked]);
        let weights = (self.weights)(&mut nodes, &weights);
        let values = (self.repeat)(&mut nodes, "present.v");
        let values = (self.values)(&mut nodes, &values);
        nodes.called("y", "MatMul", &[&weights, &values]);
        nodes.called("by_token", "Transpose", &["y"]);
        nodes.attribute(ints("perm", &[0, 2, 1, 3]));
        nodes.called("logits", "Reshape", &["by_token", "flat"]);
        let cache = |name: &str, length| {
            value(name, self.element, &["batch", &self.kv_heads.to_string(), length, "4"])
        };
        let mut model = model(
            vec![
                value("input_ids", ElementType::Int64, &["batch", "tokens"]),
                value("position_ids", ElementType::Int64, &["batch", "tokens"]),
                value("attention_mask", ElementType::Int64, &["batch", "all"]),
                cache("past.k", "past"),
                cache("past.v", "past"),
            ],
            nodes.nodes,
            vec![
                value("logits", self.element, &["batch", "tokens", "24"]),
                cache("present.k", "all"),
                cache("present.v", "all"),
            ],
        );
        model.proto_mut().graph.get_or_insert_default().initializer = nodes.initializers;
        model
    }
}

/// The nodes of a decoder while it is built.
pub(super) struct Nodes {
    pub(super) element: ElementType,
    pub(super) nodes: Vec<NodeProto>,
    pub(super) initializers: Vec<TensorProto>,
}

impl Nodes {
    pub(super) fn called(&mut self, output: &str, op_type: &str, inputs: &[&str]) {
        self.nodes.push(node(op_type, inputs, output));
    }

    pub(super) fn add(&mut self, op_type: &str, inputs: &[&str]) -> String {
        let output = format!("{}_{}", op_type.to_lowercase(), self.nodes.len());
        self.called(&output, op_type, inputs);
        output
    }

    pub(super) fn attribute(&mut self, attribute: kvscatter_onnx::proto::AttributeProto) {
        self.nodes.last_mut().unwrap().attribute.push(attribute);
    }

    /// Adds a node that multiplies or divides by a number.
    pub(super) fn number(&mut self, op_type: &str, value: &str, number: f32) -> String {
        let name = format!("number_{}", self.nodes.len());
        self.floats(&name, &[], number);
        self.add(op_type, &[value, &name])
    }

    pub(super) fn cast(&mut self, value: &str, to: ElementType) -> String {
        let output = self.add("Cast", &[value]);
        self.attribute(int("to", to.onnx_code().into()));
        output
    }

    pub(super) fn by_head(&mut self, value: &str, shape: &str) -> String {
        let split = self.add("Reshape", &[value, shape]);
        let output = self.add("Transpose", &[&split]);
        self.attribute(ints("perm", &[0, 2, 1, 3]));
        output
    }

    /// Adds `visible` and `bias`, `[batch, 1, tokens, all]`.
    pub(super) fn visible(&mut self) {
        for (of, axis, output) in [("past.k", 2, "length"), ("input_ids", 1, "new")] {
            let size = self.add("Shape", &[of]);
            self.attribute(int("start", axis));
            self.attribute(int("end", axis + 1));
            self.called(output, "Squeeze", &[&size]);
        }
        for (name, from) in [("zero", "from"), ("one", "step")] {
            self.called(from, "Squeeze", &[name]);
        }
        self.called("total", "Add", &["length", "new"]);
        self.called("slots", "Range", &["from", "total", "step"]);
        self.called("places", "Range", &["length", "total", "step"]);
        self.called("column", "Unsqueeze", &["places", "last"]);
        self.called("causal", "LessOrEqual", &["slots", "column"]);
        let real = self.cast("attention_mask", ElementType::Bool);
        self.called("real", "Unsqueeze", &[&real, "first_two"]);
        self.called("visible", "And", &["causal", "real"]);
        self.called("bias", "Where", &["visible", "none", "low"]);
    }

    pub(super) fn floats(&mut self, name: &str, shape: &[usize], first: f32) {
        let count = shape.iter().product::<usize>();
        let number = |at: usize| first * if at.is_multiple_of(3) { 1.0 } else { -0.5 };
        let data: Vec<u8> = match self.element {
            ElementType::Float16 => {
                (0..count).flat_map(|at| f16::from_f32(number(at)).to_le_bytes()).collect()
            }
            ElementType::BFloat16 => {
                (0..count).flat_map(|at| bf16::from_f32(number(at)).to_le_bytes()).collect()
            }
            _ => (0..count).flat_map(|at| number(at).to_le_bytes()).collect(),
        };
        self.initializers.push(TensorProto {
            name: Some(name.to_owned()),
            dims: shape.iter().map(|&dim| dim.try_into().unwrap()).collect(),
            data_type: Some(self.element.onnx_code()),
            raw_data: Some(data),
            ..TensorProto::default()
        });
    }

    pub(super) fn ints(&mut self, name: &str, values: &[i64]) {
        self.initializers.push(TensorProto {
            name: Some(name.to_owned()),
            dims: vec![values.len().try_into().unwrap()],
            data_type: Some(ElementType::Int64.onnx_code()),
            raw_data: Some(values.iter().flat_map(|value| value.to_le_bytes()).collect()),
            ..TensorProto::default()
        });
    }
}

pub(super) fn as_it_is(_: &mut Nodes, value: &str) -> String {
    value.to_owned()
}

/// Repeats each head of keys or values for the queries that share it.
fn expanded(nodes: &mut Nodes, value: &str) -> String {
    let apart = nodes.add("Unsqueeze", &[value, "two"]);
    let repeated = nodes.add("Expand", &[&apart, "shared"]);
    nodes.add("Reshape", &[&repeated, "all_heads"])
}

/// Repeats all heads in a row, so that neighbouring queries read different heads.
pub(super) fn tiled_heads(nodes: &mut Nodes, value: &str) -> String {
    let apart = nodes.add("Unsqueeze", &[value, "one"]);
    let repeated = nodes.add("Tile", &[&apart, "times"]);
    nodes.add("Reshape", &[&repeated, "all_heads"])
}

pub(super) fn capped(nodes: &mut Nodes, scores: &str) -> String {
    let scaled = nodes.number("Mul", scores, 0.5);
    let small = nodes.number("Div", &scaled, 4.0);
    let bent = nodes.add("Tanh", &[&small]);
    nodes.number("Mul", &bent, 4.0)
}

pub(super) fn converted(form: &Form) -> Converted {
    convert(&form.model(), SLOTS).unwrap()
}

pub(super) fn op_types(converted: &Converted) -> Vec<&str> {
    let graph: &GraphProto = converted.model.proto().graph.as_option().unwrap();
    graph.node.iter().filter_map(|node| node.op_type.as_deref()).collect()
}

/// Returns the attributes of the only `Attention`: its scale, its cap and the precision of its softmax.
fn attributes(attention: &Node<'_>) -> (f32, f32, i64) {
    let attribute = |name| attention.attribute(name);
    let float = |name| attribute(name).and_then(|it| it.f).unwrap_or_default();
    (float("scale"), float("softcap"), attribute("softmax_precision").and_then(|it| it.i).unwrap_or_default())
}

/// Checks that a decoder has one `Attention` that reads the caches, and returns the attributes.
fn fused(what: &str, form: &Form) -> (f32, f32, i64) {
    let converted = converted(form);
    let kept: Vec<_> = converted.kept.iter().map(|kept| kept.reason.to_string()).collect();
    assert_eq!(
        (converted.attentions, converted.attention_nodes, converted.fused),
        (1, 1, 1),
        "{what}: {kept:?}"
    );
    let graph = converted.model.graph().unwrap();
    let attention = *graph.nodes().iter().find(|node| node.is("Attention")).unwrap();
    assert_eq!(
        [1, 2, 6].map(|slot| attention.input(slot)),
        ["present.k", "present.v", "nonpad_kv_seqlen"].map(Some)
    );
    assert_eq!([4, 5].map(|slot| attention.input(slot)), [None, None], "{what}");
    assert_eq!(converted.nonpad_kv_seqlen.as_deref(), Some("nonpad_kv_seqlen"), "{what}");
    let visible = attention.input(3).unwrap();
    let mask = graph.nodes().iter().find(|node| node.output(0) == Some(visible)).unwrap();
    assert_eq!(mask.op_type(), "Unsqueeze", "{what}");
    let readers = |name: &str| {
        graph.nodes().iter().filter(|node| node.reads().contains(name)).map(Node::op_type).collect::<Vec<_>>()
    };
    assert_eq!([readers("present.k"), readers("present.v")], [["Attention"], ["Attention"]], "{what}");
    let of_attention = ["Softmax", "Expand", "Tile", "Tanh", "Where", "Max"];
    assert!(!op_types(&converted).iter().any(|op_type| of_attention.contains(op_type)), "{what}");
    let found = attributes(&attention);
    // Older versions of ONNX Runtime cap scores that are masked.
    let least = if found.1 == 0.0 { "1.25" } else { "1.27" };
    assert_eq!(converted.model.metadata("kvscatter.least_onnxruntime"), Some(least), "{what}");
    found
}

/// Checks that the attention of a decoder stays as it is, and returns the reason.
pub(super) fn kept(form: &Form) -> KeptReason {
    let mut converted = converted(form);
    assert_eq!((converted.attentions, converted.attention_nodes, converted.fused), (1, 0, 0));
    assert!(op_types(&converted).contains(&"Softmax") && !op_types(&converted).contains(&"Attention"));
    assert_eq!(converted.nonpad_kv_seqlen, None);
    let kept = converted.kept.remove(0);
    assert!(converted.kept.is_empty());
    assert_eq!(kept.output, "y");
    kept.reason
}

/// Checks that a value is read in an unknown way, and returns its name.
pub(super) fn refused_value(form: &Form) -> String {
    match convert(&form.model(), SLOTS).unwrap_err().root() {
        OnnxError::Convert(ConvertRefusal::Reader { value }) => value.clone(),
        other => panic!("{other}"),
    }
}

#[test]
fn the_scale_is_found_wherever_exporters_put_it() {
    let half: Step = |nodes, value| nodes.number("Mul", value, 0.5);
    let divided: Step = |nodes, value| nodes.number("Div", value, 4.0);
    let first: Step = |nodes, value| {
        nodes.floats("factor", &[1], 0.5);
        nodes.add("Mul", &["factor", value])
    };
    let unscaled = Form { scores: as_it_is, ..Form::plain() };
    let forms = [
        ("nowhere", unscaled.clone(), 1.0),
        ("on the scores", Form::plain(), 0.5),
        ("dividing the scores", Form { scores: divided, ..unscaled.clone() }, 0.25),
        ("before the scores", Form { scores: first, ..unscaled.clone() }, 0.5),
        ("on the queries", Form { queries: half, ..unscaled.clone() }, 0.5),
        ("before the queries", Form { queries: first, ..unscaled.clone() }, 0.5),
        ("on the keys", Form { keys: divided, ..unscaled.clone() }, 0.25),
        ("on both", Form { queries: half, keys: half, ..unscaled.clone() }, 0.25),
        ("on all three", Form { queries: half, keys: divided, ..Form::plain() }, 0.0625),
        ("after the mask", Form { masked: half, ..unscaled }, 0.5),
    ];
    for (what, form, scale) in forms {
        assert_eq!(fused(what, &form), (scale, 0.0, 0), "{what}");
    }
}

/// Each factor is allowed alone. Three of 1/32 leave -0.3 of a hidden score of -1e4.
#[test]
fn masked_scores_are_scaled_at_most_once() {
    let twice: Step = |nodes, scores| {
        let small = nodes.number("Div", scores, 32.0);
        nodes.number("Div", &small, 32.0)
    };
    let error = convert(&Form { masked: twice, ..Form::plain() }.model(), SLOTS).unwrap_err();
    assert!(matches!(error.root(), OnnxError::Convert(ConvertRefusal::Reader { .. })), "{error}");
}

#[test]
fn every_form_of_mask_becomes_the_mask_of_the_node() {
    let chosen: Step = |nodes, scores| nodes.add("Where", &["visible", scores, "low"]);
    let hidden: Step = |nodes, scores| {
        let hidden = nodes.add("Not", &["visible"]);
        nodes.add("Where", &[&hidden, "low", scores])
    };
    let floored: Step = |nodes, scores| {
        let sum = nodes.add("Add", &["bias", scores]);
        nodes.add("Max", &[&sum, "low"])
    };
    let floored_first: Step = |nodes, scores| {
        let sum = nodes.add("Add", &["bias", scores]);
        nodes.add("Max", &["low", &sum])
    };
    let guarded: Step = |nodes, weights| {
        let flags = nodes.add("IsNaN", &[weights]);
        nodes.add("Where", &[&flags, "none", weights])
    };
    for (what, mask, weights) in [
        ("added", Form::plain().mask, as_it_is as Step),
        ("chosen", chosen, as_it_is),
        ("chosen where hidden", hidden, as_it_is),
        ("with a floor", floored, as_it_is),
        ("with a floor before", floored_first, as_it_is),
        ("with a guard", Form::plain().mask, guarded),
    ] {
        assert_eq!(fused(what, &Form { mask, weights, ..Form::plain() }), (0.5, 0.0, 0), "{what}");
    }
}

#[test]
fn grouped_heads_are_not_repeated() {
    let tiled: Step = |nodes, value| {
        let apart = nodes.add("Unsqueeze", &[value, "two"]);
        let repeated = nodes.add("Tile", &[&apart, "shared"]);
        nodes.add("Reshape", &[&repeated, "all_heads"])
    };
    assert_eq!(fused("expanded", &Form::grouped()), (0.5, 0.0, 0));
    assert_eq!(fused("tiled", &Form { repeat: tiled, ..Form::grouped() }), (0.5, 0.0, 0));
    let one = Form { kv_heads: 1, repeat: as_it_is, ..Form::plain() };
    assert_eq!(fused("one head by broadcast", &one), (0.5, 0.0, 0));
}

#[test]
fn a_cap_becomes_an_attribute() {
    assert_eq!(fused("capped", &Form { scores: capped, ..Form::grouped() }), (0.5, 4.0, 0));
    // The hyperbolic tangent is odd.
    let negative: Step = |nodes, scores| {
        let small = nodes.number("Mul", scores, -0.25);
        let bent = nodes.add("Tanh", &[&small]);
        nodes.number("Mul", &bent, -2.0)
    };
    assert_eq!(fused("negative", &Form { scores: negative, ..Form::plain() }), (0.5, 2.0, 0));
}

/// ONNX Runtime before 1.27 would compute something else.
#[test]
fn a_cap_stays_for_an_older_onnx_runtime() {
    let options = |version: &str| ConvertOptions::new(SLOTS).onnxruntime(version.parse().unwrap());
    let model = Form { scores: capped, ..Form::grouped() }.model();
    assert_eq!(convert(&model, options("1.27")).unwrap().fused, 1);
    let converted = convert(&model, options("1.26.9")).unwrap();
    assert_eq!(converted.model.metadata("kvscatter.least_onnxruntime"), Some("1.25"));
    assert_eq!((converted.attentions, converted.attention_nodes, converted.fused), (1, 0, 0));
    let reasons: Vec<_> = converted.kept.iter().map(|kept| &kept.reason).collect();
    assert!(matches!(*reasons, [KeptReason::Softcap]), "{reasons:?}");
    assert!(op_types(&converted).contains(&"Tanh") && !op_types(&converted).contains(&"Attention"));
    let error = convert(&model, options("1.24")).unwrap_err().to_string();
    assert_eq!(
        error,
        "ONNX Runtime 1.24 must run the model, but TensorScatter needs 1.25 or newer without kvscatter's plugin"
    );
}

#[test]
fn float16() {
    let element = ElementType::Float16;
    assert_eq!(fused("float16", &Form { element, ..Form::grouped() }), (0.5, 0.0, 0));
    assert_eq!(fused("capped", &Form { element, scores: capped, ..Form::plain() }), (0.5, 4.0, 0));
    // The softmax is computed in float32.
    let scores: Step = |nodes, scores| {
        let scaled = nodes.number("Mul", scores, 0.5);
        nodes.cast(&scaled, ElementType::Float32)
    };
    let mask: Step = |nodes, scores| {
        let wide = nodes.cast("bias", ElementType::Float32);
        nodes.add("Add", &[scores, &wide])
    };
    let narrow: Step = |nodes, weights| nodes.cast(weights, ElementType::Float16);
    let form = Form { element, scores, mask, weights: narrow, ..Form::grouped() };
    assert_eq!(fused("a softmax in float32", &form), (0.5, 0.0, 1));
    // The values are cast as well, so the result is float32 and is cast to it.
    let values: Step = |nodes, values| nodes.cast(values, ElementType::Float32);
    let mut model = Form { weights: as_it_is, values, ..form }.model();
    let graph = model.proto_mut().graph.as_option_mut().unwrap();
    graph.output[0] = value("logits", ElementType::Float32, &["batch", "tokens", "24"]);
    let converted = convert(&model, SLOTS).unwrap();
    assert_eq!(converted.fused, 1);
    let graph = converted.model.graph().unwrap();
    let last = graph.nodes().iter().find(|node| node.output(0) == Some("y")).unwrap();
    assert_eq!((last.op_type(), last.attribute("to").unwrap().i), ("Cast", Some(1)));
}

#[test]
fn products_of_rank_3_are_reshaped_away() {
    let model = Model::load(&testdata("decoders/optimum-1.18-opt/model.onnx")).unwrap();
    let converted = convert(&model, SLOTS).unwrap();
    assert_eq!((converted.fused, converted.kept.len()), (2, 0));
    let graph = converted.model.graph().unwrap();
    let attentions: Vec<_> = graph.nodes().iter().filter(|node| node.is("Attention")).collect();
    assert_eq!(attentions.len(), 2);
    for attention in attentions {
        let reader = graph.nodes().iter().find(|node| node.reads().contains(attention.output(0).unwrap()));
        assert_eq!(reader.unwrap().op_type(), "Transpose");
    }
}

#[test]
fn another_order_of_heads_is_found_by_what_it_computes() {
    let tiled_keys: Step = |nodes, keys| {
        let apart = nodes.add("Unsqueeze", &[keys, "one"]);
        let repeated = nodes.add("Tile", &[&apart, "times"]);
        nodes.add("Reshape", &[&repeated, "all_heads_turned"])
    };
    for (what, form) in [
        ("keys and values", Form { repeat: tiled_heads, ..Form::grouped() }),
        ("keys", Form { repeat: as_it_is, keys: tiled_keys, values: expanded, ..Form::grouped() }),
    ] {
        let reason = kept(&form);
        assert!(
            matches!(reason, KeptReason::Differs { scale: 0.5, softcap: 0.0, difference } if difference > 0.1),
            "{what}: {reason}"
        );
    }
}

#[test]
fn queries_may_be_reshaped_without_a_transposition() {
    let reshaped: Step = |nodes, _| nodes.add("Reshape", &["x", "all_heads"]);
    assert_eq!(fused("reshaped", &Form { queries: reshaped, ..Form::plain() }), (0.5, 0.0, 0));
}

/// BLOOM multiplies matrices with all heads of all samples in one axis.
#[test]
fn samples_and_heads_may_be_merged() {
    let mask: Step = |nodes, scores| {
        let by_head = nodes.add("Expand", &["bias", "for_each_head"]);
        let by_row = merge(nodes, &by_head);
        nodes.add("Add", &[scores, &by_row])
    };
    let form = Form { queries: merge, keys: merge, values: merge, mask, ..Form::plain() };
    let mut model = form.model();
    let graph = model.proto_mut().graph.as_option_mut().unwrap();
    // The heads are split after another node has read the result.
    let end = graph.node.iter().position(|node| node.output[0] == "y").unwrap();
    graph.node[end].output[0] = "rows".to_owned();
    let mut shape = node("Shape", &["rows"], "tokens_and_size");
    shape.attribute = vec![int("start", 1)];
    let mut split = node("Concat", &["by_sample", "tokens_and_size"], "split");
    split.attribute = vec![int("axis", 0)];
    let nodes =
        [shape, split, node("Neg", &["rows"], "negative"), node("Reshape", &["negative", "split"], "y")];
    graph.node.splice(end + 1..=end, nodes);
    let converted = convert(&model, SLOTS).unwrap();
    let kept: Vec<_> = converted.kept.iter().map(|kept| kept.reason.to_string()).collect();
    assert_eq!((converted.attention_nodes, converted.fused), (1, 1), "{kept:?}");
    let graph = converted.model.graph().unwrap();
    let rows = graph.nodes().iter().find(|node| node.output(0) == Some("rows")).unwrap();
    assert_eq!(rows.op_type(), "Reshape");
}

/// Puts all heads of all samples in one axis.
fn merge(nodes: &mut Nodes, value: &str) -> String {
    let inner = nodes.add("Shape", &[value]);
    nodes.attribute(int("start", 2));
    let shape = nodes.add("Concat", &["last", &inner]);
    nodes.attribute(int("axis", 0));
    nodes.add("Reshape", &[value, &shape])
}

#[test]
fn bfloat16() {
    let form = Form { element: ElementType::BFloat16, ..Form::grouped() };
    assert_eq!(fused("bfloat16", &form), (0.5, 0.0, 0));
}

#[test]
fn a_bias_is_compared_with_the_precision_of_its_type() {
    let proportional: Step = |nodes, scores| {
        let biased = with_bias(nodes, scores, |_, places| places.to_owned());
        nodes.add("Add", &[&biased, "bias"])
    };
    let bent: Step = |nodes, scores| {
        let biased = with_bias(nodes, scores, |nodes, places| nodes.add("Sqrt", &[places]));
        nodes.add("Add", &[&biased, "bias"])
    };
    for element in [ElementType::Float16, ElementType::BFloat16] {
        let form = Form { element, mask: proportional, ..Form::plain() };
        assert!(convert(&form.model(), SLOTS).is_ok(), "{element}");
        let model = Form { mask: bent, ..form }.model();
        assert_eq!(mask_rule(&model, SLOTS), Some(MaskRule::Bias));
        let error = convert(&model, SLOTS).unwrap_err();
        assert!(
            matches!(error.root(), OnnxError::Convert(ConvertRefusal::Bias { .. })),
            "{element}: {error}"
        );
    }
}

/// Adds a number for each head and slot to the scores.
fn with_bias(nodes: &mut Nodes, scores: &str, of_places: fn(&mut Nodes, &str) -> String) -> String {
    nodes.floats("slopes", &[HEADS, 1, 1], 0.5);
    let places = nodes.cast("slots", nodes.element);
    let places = of_places(nodes, &places);
    let bias = nodes.add("Mul", &["slopes", &places]);
    nodes.add("Add", &[scores, &bias])
}

/// Hides all but the last 4 positions, and adds `seen`, which is true for these.
fn windowed(nodes: &mut Nodes, scores: &str) -> String {
    nodes.ints("width", &[4]);
    let edge = nodes.add("Sub", &["column", "width"]);
    let recent = nodes.add("Greater", &["slots", &edge]);
    nodes.called("seen", "And", &["visible", &recent]);
    nodes.add("Where", &["seen", scores, "low"])
}

fn with_rings(model: &Model) -> Converted {
    let windows = WindowedCaches::Ring { chunk: Some(2), rewind: 0 };
    convert(model, ConvertOptions::new(SLOTS).windowed(windows)).unwrap()
}

/// A ring has no slot for the bias of an early position.
#[test]
fn a_window_with_a_bias_is_no_ring() {
    let mask: Step = |nodes, scores| {
        let biased = with_bias(nodes, scores, as_it_is);
        windowed(nodes, &biased)
    };
    let converted = with_rings(&Form { mask, ..Form::plain() }.model());
    let reason = LinearReason::Bias;
    assert_eq!(converted.linear_windows, [LinearWindow { window: 4, attentions: 1, reason }]);
    assert!(converted.rings.is_empty());
}

/// The table is as long as the cache of the model needs, and a list of all positions up to the last one grows with it.
#[test]
fn positions_limit_the_tokens_of_a_ring() {
    let windowed = Form { mask: windowed, ..Form::plain() };
    assert_eq!(with_rings(&windowed.model()).most_tokens, Some(SLOTS));
    let queries: Step = |nodes, queries| {
        let last = nodes.add("ReduceMax", &["position_ids"]);
        nodes.attribute(int("keepdims", 0));
        let count = nodes.add("Add", &[&last, "step"]);
        let all = nodes.add("Range", &["from", &count, "step"]);
        let all = nodes.cast(&all, nodes.element);
        let first = nodes.add("ReduceMin", &[&all]);
        nodes.attribute(int("keepdims", 0));
        nodes.add("Add", &[queries, &first])
    };
    let mut model = Form { queries, ..windowed }.model();
    for node in &mut model.proto_mut().graph.as_option_mut().unwrap().node {
        if node.output[0] == "x" {
            node.input[1] = "words".to_owned();
        }
    }
    model.proto_mut().graph.as_option_mut().unwrap().node.retain(|node| node.output[0] != "where");
    assert_eq!(with_rings(&model).most_tokens, Some(SLOTS));
}

/// Both layers read the cache of the first one, and share the nodes that repeat its heads.
#[test]
fn layers_that_share_a_cache_become_one_node_each() {
    let mut model = Model::load(&testdata("optimum-llama/model.onnx")).unwrap();
    let graph = model.proto_mut().graph.as_option_mut().unwrap();
    let is_dropped = |name: &str| name.starts_with("past_key_values.1") || name.starts_with("present.1");
    graph.input.retain(|input| !is_dropped(input.name.as_deref().unwrap()));
    graph.output.retain(|output| !is_dropped(output.name.as_deref().unwrap()));
    graph.node.retain(|node| !is_dropped(&node.output[0]));
    for read in graph.node.iter_mut().flat_map(|node| &mut node.input) {
        *read = read.replace("present.1", "present.0");
    }
    let converted = convert(&model, SLOTS).unwrap();
    assert!(converted.kept.is_empty(), "{:?}", converted.kept);
    assert_eq!((converted.caches, converted.attentions, converted.fused), (2, 2, 2));
}

/// Scores whose heads and samples share a dimension, as in Bloom and Falcon.
#[test]
fn a_bias_of_merged_heads_is_found() {
    let scores: Step = |nodes, scores| {
        let sizes = nodes.add("Shape", &[scores]);
        nodes.attribute(int("start", 2));
        let shape = nodes.add("Concat", &["last", &sizes]);
        nodes.attribute(int("axis", 0));
        let merged = nodes.add("Reshape", &[scores, &shape]);
        nodes.floats("slopes", &[HEADS, 1, 1], 0.5);
        let places = nodes.cast("slots", nodes.element);
        let from_one = nodes.number("Add", &places, 1.0);
        let bias = nodes.add("Mul", &["slopes", &from_one]);
        let whole = nodes.add("Shape", &[scores]);
        let bias = nodes.add("Expand", &[&bias, &whole]);
        let bias = nodes.add("Reshape", &[&bias, &shape]);
        let biased = nodes.add("Add", &[&merged, &bias]);
        let shape = nodes.add("Concat", &["by_sample", &sizes]);
        nodes.attribute(int("axis", 0));
        nodes.add("Reshape", &[&biased, &shape])
    };
    let model = Form { scores, ..Form::plain() }.model();
    assert_eq!(mask_rule(&model, SLOTS), Some(MaskRule::Bias));
    convert(&model, SLOTS).unwrap();
}

#[test]
fn a_factor_may_be_the_same_number_for_each_head() {
    let scores: Step = |nodes, scores| {
        nodes.floats("half", &[], 0.5);
        let for_each = nodes.add("Expand", &["half", "for_each_head"]);
        nodes.add("Mul", &[scores, &for_each])
    };
    assert_eq!(fused("a factor for each head", &Form { scores, ..Form::plain() }).0, 0.5);
}

/// The dimensions of embeddings follow from what they are.
#[test]
fn embeddings_need_no_names_of_dimensions() {
    let mut model = Form::plain().model();
    let graph = model.proto_mut().graph.as_option_mut().unwrap();
    graph.input[0] = value("inputs_embeds", ElementType::Float32, &["?", "?", "24"]);
    graph.node.retain(|node| node.output[0] != "words");
    for input in graph.node.iter_mut().flat_map(|node| &mut node.input) {
        if ["input_ids", "words"].contains(&input.as_str()) {
            *input = "inputs_embeds".to_owned();
        }
    }
    assert!(convert(&model, SLOTS).is_ok());
}

/// The table is not read to evaluate masks, so only its size shows that it is too short.
#[test]
fn a_table_of_positions_with_too_few_rows_is_named() {
    let mut later = Form::plain().model();
    let graph = later.proto_mut().graph.as_option_mut().unwrap();
    let at = graph.node.iter().position(|node| node.output[0] == "where").unwrap();
    graph.node[at].input[1] = "second".to_owned();
    graph.node.insert(at, node("Add", &["position_ids", "one"], "second"));
    for (what, model, most) in [("positions", Form::plain().model(), 32), ("later positions", later, 31)] {
        assert!(convert(&model, most).is_ok(), "{what}");
        let error = convert(&model, most + 1).unwrap_err();
        let table = "places_table".to_owned();
        let expected = ConvertRefusal::Table { table, rows: 32, max_seq: most + 1 };
        assert!(
            matches!(error.root(), OnnxError::Convert(refusal) if *refusal == expected),
            "{what}: {error}"
        );
    }
}

/// Heads that become the inner dimension of the slots mix the values of different slots.
#[test]
fn a_reshape_that_regroups_slots_is_refused() {
    let values: Step = |nodes, values| {
        let mixed = nodes.add("Reshape", &[values, "flat_slots"]);
        nodes.ints("flat_slots", &[0, -1, 24]);
        let split = nodes.add("Reshape", &[&mixed, "by_slot"]);
        nodes.ints("by_slot", &[0, -1, 6, 4]);
        let turned = nodes.add("Transpose", &[&split]);
        nodes.attribute(ints("perm", &[0, 2, 1, 3]));
        turned
    };
    let error = convert(&Form { values, ..Form::plain() }.model(), SLOTS).unwrap_err();
    assert!(matches!(error.root(), OnnxError::Convert(ConvertRefusal::Reader { .. })), "{error}");
}

/// A score of -1 is not hidden.
#[test]
fn what_takes_the_place_of_a_hidden_score_is_very_negative() {
    let mask: Step = |nodes, scores| {
        nodes.floats("weak", &[], -1.0);
        nodes.add("Where", &["visible", scores, "weak"])
    };
    let error = convert(&Form { mask, ..Form::plain() }.model(), SLOTS).unwrap_err();
    let expected = ConvertRefusal::Filler { filler: -1.0, limit: -1e4 };
    assert!(matches!(error.root(), OnnxError::Convert(refusal) if *refusal == expected), "{error}");
}

/// A floor would show a slot that a later mask hides.
#[test]
fn a_floor_of_scores_without_a_mask_is_refused() {
    let before: Step = |nodes, scores| {
        nodes.called("floored", "Max", &["low", scores]);
        "floored".to_owned()
    };
    let after: Step = |nodes, scores| {
        nodes.called("floored", "Max", &[scores, "low"]);
        "floored".to_owned()
    };
    for scores in [before, after] {
        let value = refused_value(&Form { scores, ..Form::plain() });
        assert!(value.starts_with("matmul_"), "{value}");
    }
}

/// The parts of a cache that is split along its slots have other slots.
#[test]
fn caches_that_are_split_along_their_slots_are_refused() {
    let split: Step = |nodes, value| {
        let first = nodes.add("Split", &[value]);
        nodes.nodes.last_mut().unwrap().output.push(format!("{first}_second"));
        nodes.attribute(int("axis", 2));
        nodes.attribute(int("num_outputs", 2));
        first
    };
    assert_eq!(refused_value(&Form { repeat: split, ..Form::plain() }), "present.k");
}

/// Such factors have one entry for each slot, and a static cache has more slots.
#[test]
fn scores_that_are_multiplied_by_a_number_of_each_slot_are_refused() {
    let before: Step = |nodes, scores| {
        let by_slot = nodes.cast("slots", ElementType::Float32);
        nodes.called("multiplied", "Mul", &[&by_slot, scores]);
        "multiplied".to_owned()
    };
    let after: Step = |nodes, scores| {
        let by_slot = nodes.cast("slots", ElementType::Float32);
        nodes.called("divided", "Div", &[scores, &by_slot]);
        "divided".to_owned()
    };
    for scores in [before, after] {
        let value = refused_value(&Form { scores, ..Form::plain() });
        assert!(value.starts_with("matmul_"), "{value}");
    }
}

/// A product with values that are not weights has no slots along its last axis.
#[test]
fn a_sum_of_values_without_a_softmax_is_refused() {
    let summed: Step = |nodes, weights| {
        nodes.called("sum", "MatMul", &["bias", "present.v"]);
        nodes.called("unused", "Identity", &["sum"]);
        weights.to_owned()
    };
    assert_eq!(refused_value(&Form { weights: summed, ..Form::plain() }), "present.v");
}

#[test]
fn a_factor_must_be_one_number() {
    let by_head: Step = |nodes, scores| {
        nodes.floats("factors", &[HEADS, 1, 1], 0.5);
        nodes.add("Mul", &[scores, "factors"])
    };
    let reason = kept(&Form { scores: by_head, ..Form::plain() });
    assert!(matches!(&reason, KeptReason::Factor { value } if value == "factors"), "{reason}");
    // Queries keep such a factor.
    assert_eq!(fused("queries", &Form { queries: by_head, ..Form::plain() }), (0.5, 0.0, 0));
    // The factor is 1 up to slot 12, and 0.5 from there.
    let by_length: Step = |nodes, value| {
        nodes.ints("limit", &[12]);
        let is_far = nodes.add("Less", &["limit", "total"]);
        nodes.floats("half", &[1], 0.5);
        nodes.floats("whole", &[1], 1.0);
        let factor = nodes.add("Where", &[&is_far, "half", "whole"]);
        nodes.add("Mul", &[value, &factor])
    };
    for form in [Form { queries: by_length, ..Form::plain() }, Form { scores: by_length, ..Form::plain() }] {
        let error = convert(&form.model(), SLOTS).unwrap_err();
        assert!(error.to_string().contains("depends on the length of the past"), "{error}");
    }
}

/// Adds a factor of each token that is 1 up to position 12, and 0.5 from there.
pub(super) fn factor_by_position(nodes: &mut Nodes) -> String {
    nodes.ints("limit", &[12]);
    nodes.ints("head_and_size", &[1, 3]);
    nodes.floats("half", &[], 0.5);
    nodes.floats("whole", &[], 1.0);
    let is_near = nodes.add("Less", &["position_ids", "limit"]);
    let factor = nodes.add("Where", &[&is_near, "whole", "half"]);
    nodes.add("Unsqueeze", &[&factor, "head_and_size"])
}

/// Llama 4 multiplies queries by a factor that is 1 for the first positions and grows from there.
#[test]
fn a_factor_that_changes_far_into_a_text_stays_with_the_queries() {
    let by_position: Step = |nodes, queries| {
        let factor = factor_by_position(nodes);
        nodes.called("scaled", "Mul", &[queries, &factor]);
        nodes.number("Mul", "scaled", 0.5)
    };
    let converted = converted(&Form { queries: by_position, ..Form::plain() });
    let graph = converted.model.graph().unwrap();
    let attention = graph.nodes().iter().find(|node| node.is("Attention")).unwrap();
    assert_eq!((attention.input(0), attributes(attention)), (Some("scaled"), (0.25, 0.0, 0)));
}

#[test]
fn values_that_are_read_elsewhere_stay() {
    let twice: Step = |nodes, weights| {
        let other = nodes.add("MatMul", &[weights, "present.v"]);
        nodes.called("other", "Identity", &[&other]);
        weights.to_owned()
    };
    let mut model = Form { weights: twice, ..Form::plain() }.model();
    let graph = model.proto_mut().graph.as_option_mut().unwrap();
    graph.output.push(value("other", ElementType::Float32, &["batch", "6", "tokens", "4"]));
    let converted = convert(&model, SLOTS).unwrap();
    assert_eq!((converted.attention_nodes, converted.kept.len()), (0, 2));
    let reasons: Vec<_> = converted.kept.iter().map(|kept| &kept.reason).collect();
    assert!(reasons.iter().any(|reason| matches!(reason, KeptReason::Read { .. })), "{reasons:?}");
    assert!(op_types(&converted).contains(&"Softmax"));
}

#[test]
fn parts_of_another_form_stay() {
    let half: Step = |nodes, value| nodes.number("Mul", value, 0.5);
    let reason = kept(&Form { values: half, ..Form::plain() });
    assert_eq!(reason.to_string(), "the values are scaled");
    let reason = kept(&Form { weights: half, ..Form::plain() });
    assert_eq!(reason.to_string(), "the weights are scaled");
    // The factor is 1 at the lengths at which random values are compared.
    let by_position: Step = |nodes, weights| {
        let factor = factor_by_position(nodes);
        nodes.add("Mul", &[weights, &factor])
    };
    let reason = kept(&Form { weights: by_position, ..Form::plain() });
    assert!(matches!(&reason, KeptReason::Factor { .. }), "{reason}");
    let negative: Step = |nodes, scores| nodes.number("Mul", scores, -0.5);
    let reason = kept(&Form { scores: negative, ..Form::plain() });
    assert_eq!(reason.to_string(), "the scale is not a positive number");
    let twice: Step = |nodes, scores| {
        let bent = nodes.add("Tanh", &[scores]);
        nodes.add("Tanh", &[&bent])
    };
    let reason = kept(&Form { scores: twice, ..Form::plain() });
    assert_eq!(reason.to_string(), "the scores have two caps");
    let shifted: Step = |nodes, scores| nodes.number("Add", scores, 0.5);
    let reason = kept(&Form { scores: shifted, ..Form::plain() });
    assert_eq!(reason.to_string(), "something is added to the scores");
    // What takes the place of NaN depends on the tokens.
    let guarded: Step = |nodes, weights| {
        let flags = nodes.add("IsNaN", &[weights]);
        let sum = nodes.add("ReduceSum", &["x"]);
        nodes.attribute(int("keepdims", 0));
        nodes.add("Where", &[&flags, &sum, weights])
    };
    let reason = kept(&Form { weights: guarded, ..Form::plain() });
    assert!(matches!(&reason, KeptReason::Unknown { value } if value.starts_with("reducesum")), "{reason}");
}

#[test]
fn types_of_queries_and_caches_must_be_equal() {
    let mut model = Form::plain().model();
    let graph = model.proto_mut().graph.as_option_mut().unwrap();
    // The caches become float16, and are cast before they are read.
    for declared in graph.input[3..].iter_mut().chain(&mut graph.output[1..]) {
        let length = if declared.name.as_deref().unwrap().starts_with("past") { "past" } else { "all" };
        *declared =
            value(declared.name.as_deref().unwrap(), ElementType::Float16, &["batch", "6", length, "4"]);
    }
    let cast = |from: &str, to: ElementType, output: &str| {
        let mut cast = node("Cast", &[from], output);
        cast.attribute = vec![int("to", to.onnx_code().into())];
        cast
    };
    let mut nodes = Vec::new();
    for mut node in std::mem::take(&mut graph.node) {
        let output = node.output[0].clone();
        if node.op_type.as_deref() == Some("Concat") {
            nodes.push(cast(&node.input[1], ElementType::Float16, &format!("narrow_{output}")));
            node.input[1] = format!("narrow_{output}");
            nodes.push(node);
            nodes.push(cast(&output, ElementType::Float32, &format!("wide_{output}")));
            continue;
        }
        for input in &mut node.input {
            if input.starts_with("present.") {
                *input = format!("wide_{input}");
            }
        }
        nodes.push(node);
    }
    graph.node = nodes;
    let converted = convert(&model, SLOTS).unwrap();
    assert_eq!(converted.fused, 0);
    let reason = &converted.kept[0].reason;
    let (queries, cache) = (ElementType::Float32, ElementType::Float16);
    assert!(
        matches!(reason, KeptReason::Types { queries: q, cache: c } if (*q, *c) == (queries, cache)),
        "{reason}"
    );
}

#[test]
fn keep_attention_leaves_every_node() {
    let options = ConvertOptions::new(SLOTS).keep_attention(true);
    let converted = convert(&Form::grouped().model(), options).unwrap();
    assert_eq!((converted.attentions, converted.attention_nodes, converted.fused), (1, 0, 0));
    assert!(converted.kept.is_empty() && converted.nonpad_kv_seqlen.is_none());
    assert!(op_types(&converted).contains(&"Expand") && op_types(&converted).contains(&"Softmax"));
    // Nodes that the exporter wrote as Attention are not kept, because they have the past as inputs.
    let exported = Model::load(&testdata("mobius-llama-dynamic/model.onnx")).unwrap();
    let converted = convert(&exported, options).unwrap();
    assert_eq!((converted.attentions, converted.attention_nodes, converted.fused), (2, 2, 0));
}
