//! One layer of a decoder, in which a test breaks one thing.

use kvscatter::ElementType;
use kvscatter_onnx::Model;
use kvscatter_onnx::decoder::{Decoder, Hazard, TensorRtRule};
use kvscatter_onnx::proto::{NodeProto, ValueInfoProto};

use crate::support::{int, model, node, opset, string, value};

/// A decoder of one layer. One attention reads its keys and values, which are written in one style.
#[derive(Clone)]
pub(super) struct Made {
    pub(super) inputs: Vec<ValueInfoProto>,
    pub(super) nodes: Vec<NodeProto>,
    pub(super) outputs: Vec<ValueInfoProto>,
    /// The declarations of intermediate values.
    pub(super) values: Vec<ValueInfoProto>,
}

const FLOAT: ElementType = ElementType::Float32;

impl Made {
    /// Creates a layer with `TensorScatter` on caches of 64 slots, which TensorRT accepts.
    pub(super) fn fixed() -> Self {
        let cache = ["batch", "2", "64", "16"];
        let inputs = vec![value("write_indices", ElementType::Int64, &["batch"]), nonpad()];
        let nodes = vec![
            scatter("past_k", "new_k", "present_k"),
            scatter("past_v", "new_v", "present_v"),
            attention(&["q", "present_k", "present_v", "", "", "", "nonpad"], &["y"]),
        ];
        Self::with(inputs, nodes, &cache, &cache)
    }

    /// Creates a layer with `Concat` on the sequence.
    pub(super) fn growing() -> Self {
        let mut nodes = vec![
            node("Concat", &["past_k", "new_k"], "present_k"),
            node("Concat", &["past_v", "new_v"], "present_v"),
            attention(&["q", "present_k", "present_v"], &["y"]),
        ];
        nodes[0].attribute = vec![int("axis", -2)];
        nodes[1].attribute = vec![int("axis", 2)];
        Self::with(vec![], nodes, &["batch", "2", "past", "16"], &["batch", "2", "all", "16"])
    }

    /// Creates a layer with `Attention` with past inputs.
    pub(super) fn attention_past() -> Self {
        let inputs = ["q", "new_k", "new_v", "", "past_k", "past_v"];
        let nodes = vec![attention(&inputs, &["y", "present_k", "present_v"])];
        Self::with(vec![], nodes, &["batch", "2", "past", "16"], &["batch", "2", "all", "16"])
    }

    /// Creates a layer with `GroupQueryAttention`.
    pub(super) fn group_query() -> Self {
        let mut gqa =
            node("GroupQueryAttention", &["q", "new_k", "new_v", "past_k", "past_v", "last", "total"], "y");
        gqa.domain = Some("com.microsoft".to_owned());
        gqa.output = ["y", "present_k", "present_v"].map(str::to_owned).to_vec();
        gqa.attribute = vec![int("num_heads", 4), int("kv_num_heads", 2)];
        let inputs =
            vec![value("last", ElementType::Int32, &["batch"]), value("total", ElementType::Int32, &[])];
        Self::with(inputs, vec![gqa], &["batch", "2", "past", "16"], &["batch", "2", "all", "16"])
    }

    fn with(mut inputs: Vec<ValueInfoProto>, nodes: Vec<NodeProto>, past: &[&str], present: &[&str]) -> Self {
        for name in ["past_k", "past_v"] {
            inputs.push(value(name, FLOAT, past));
        }
        for name in ["new_k", "new_v", "q"] {
            inputs.push(value(name, FLOAT, &["batch", "2", "s", "16"]));
        }
        let mut outputs = vec![value("y", FLOAT, &["batch", "2", "s", "16"])];
        for name in ["present_k", "present_v"] {
            outputs.push(value(name, FLOAT, present));
        }
        Self { inputs, nodes, outputs, values: Vec::new() }
    }

    pub(super) fn input(mut self, input: ValueInfoProto) -> Self {
        self.inputs.retain(|other| other.name != input.name);
        self.inputs.push(input);
        self
    }

    pub(super) fn output(mut self, output: ValueInfoProto) -> Self {
        self.outputs.retain(|other| other.name != output.name);
        self.outputs.push(output);
        self
    }

    pub(super) fn without_output(mut self, name: &str) -> Self {
        self.outputs.retain(|output| output.name.as_deref() != Some(name));
        self
    }

    /// Adds a node after all others.
    pub(super) fn node(mut self, node: NodeProto) -> Self {
        self.nodes.push(node);
        self
    }

    /// Adds nodes before all others.
    pub(super) fn before(mut self, nodes: Vec<NodeProto>) -> Self {
        self.nodes.splice(0..0, nodes);
        self
    }

    /// Makes all nodes read `new` as an input instead of `old`.
    pub(super) fn reading(mut self, old: &str, new: &str) -> Self {
        for input in self.nodes.iter_mut().flat_map(|node| &mut node.input).filter(|input| *input == old) {
            new.clone_into(input);
        }
        self
    }

    /// Renames an output of a node.
    pub(super) fn making(mut self, old: &str, new: &str) -> Self {
        for output in self.nodes.iter_mut().flat_map(|node| &mut node.output).filter(|output| *output == old)
        {
            new.clone_into(output);
        }
        self
    }

    /// Changes the node that makes a value.
    pub(super) fn change(mut self, output: &str, change: impl FnOnce(&mut NodeProto)) -> Self {
        let mut nodes = self.nodes.iter_mut();
        change(nodes.find(|node| node.output.iter().any(|name| name == output)).unwrap());
        self
    }

    pub(super) fn model(self) -> Model {
        let mut model = model(self.inputs, self.nodes, self.outputs);
        model.proto_mut().opset_import.push(opset("com.microsoft", 1));
        model.proto_mut().graph.get_or_insert_default().value_info = self.values;
        model
    }

    /// Returns the hazards, except those of growth and of runtimes, which depend only on the style.
    #[track_caller]
    pub(super) fn hazards(self) -> Vec<Hazard> {
        let model = self.model();
        let mut hazards = Decoder::of(&model.graph().unwrap()).unwrap().hazards();
        hazards.retain(|hazard| !matches!(hazard.kind(), "grows" | "runtime"));
        for hazard in &hazards {
            let text = hazard.to_string();
            assert!(!text.is_empty() && !text.contains('\n'), "{text}");
        }
        hazards
    }

    /// Returns the rules of TensorRT that are broken, as the output of the node and the rule.
    #[track_caller]
    pub(super) fn refusals(self) -> Vec<(String, TensorRtRule)> {
        let model = self.model();
        let refusals = Decoder::of(&model.graph().unwrap()).unwrap().tensorrt_refusals();
        refusals.into_iter().map(|refusal| (refusal.node.name, refusal.reason)).collect()
    }
}

/// Creates a `TensorScatter` on axis -2.
pub(super) fn scatter(past: &str, new: &str, present: &str) -> NodeProto {
    node("TensorScatter", &[past, new, "write_indices"], present)
}

pub(super) fn circular(node: &mut NodeProto) {
    node.attribute.push(string("mode", "circular"));
}

pub(super) fn attention(inputs: &[&str], outputs: &[&str]) -> NodeProto {
    let mut attention = node("Attention", inputs, "y");
    attention.output = outputs.iter().map(|&output| output.to_owned()).collect();
    attention
}

fn nonpad() -> ValueInfoProto {
    value("nonpad", ElementType::Int64, &["batch"])
}
