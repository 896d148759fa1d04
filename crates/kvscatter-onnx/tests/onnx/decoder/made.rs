//! One layer of a decoder, in which a test breaks one thing.

use kvscatter_onnx::Model;
use kvscatter_onnx::decoder::{Decoder, Hazard, TensorRtRule};
use kvscatter_onnx::internal::proto::{NodeProto, ValueInfoProto};

use crate::support::{Nodes, graph_mut, model, opset, values};

/// A decoder of one layer. One attention reads its keys and values, which are written in one style.
#[derive(Clone)]
pub(super) struct Made {
    pub(super) inputs: Vec<ValueInfoProto>,
    pub(super) nodes: Vec<NodeProto>,
    pub(super) outputs: Vec<ValueInfoProto>,
    /// The declarations of intermediate values.
    pub(super) values: Vec<ValueInfoProto>,
}

impl Made {
    /// Creates a layer with `TensorScatter` on caches of 64 slots, which TensorRT accepts.
    pub(super) fn fixed() -> Self {
        let nodes = "present_k = TensorScatter(past_k, new_k, write_indices)
            present_v = TensorScatter(past_v, new_v, write_indices)
            y = Attention(q, present_k, present_v, _, _, _, nonpad)";
        Self::with("write_indices, nonpad: int64[batch],", nodes, "64", "64")
    }

    /// Creates a layer with `Concat` on the sequence.
    pub(super) fn growing() -> Self {
        let nodes = "present_k = Concat(past_k, new_k) {axis=-2}
            present_v = Concat(past_v, new_v) {axis=2}
            y = Attention(q, present_k, present_v)";
        Self::with("", nodes, "past", "all")
    }

    /// Creates a layer with `Attention` with past inputs.
    pub(super) fn attention_past() -> Self {
        Self::with(
            "",
            "y, present_k, present_v = Attention(q, new_k, new_v, _, past_k, past_v)",
            "past",
            "all",
        )
    }

    /// Creates a layer with `GroupQueryAttention`.
    pub(super) fn group_query() -> Self {
        let inputs = "q, new_k, new_v, past_k, past_v, last, total";
        let nodes = format!(
            "y, present_k, present_v = GroupQueryAttention@com.microsoft({inputs})
                {{num_heads=4, kv_num_heads=2}}"
        );
        Self::with("last: int32[batch], total: int32[],", &nodes, "past", "all")
    }

    fn with(inputs: &str, nodes: &str, past: &str, present: &str) -> Self {
        let rows = "float[batch, 2, s, 16]";
        let inputs = format!("{inputs} past_k, past_v: float[batch, 2, {past}, 16], new_k, new_v, q: {rows}");
        Self {
            inputs: values(&inputs),
            nodes: Nodes::parse(nodes).nodes,
            outputs: values(&format!("y: {rows}, present_k, present_v: float[batch, 2, {present}, 16]")),
            values: Vec::new(),
        }
    }

    /// Declares inputs, which may take the place of others.
    pub(super) fn input(mut self, inputs: &str) -> Self {
        for input in values(inputs) {
            self.inputs.retain(|other| other.name != input.name);
            self.inputs.push(input);
        }
        self
    }

    pub(super) fn output(mut self, outputs: &str) -> Self {
        for output in values(outputs) {
            self.outputs.retain(|other| other.name != output.name);
            self.outputs.push(output);
        }
        self
    }

    pub(super) fn without_output(mut self, name: &str) -> Self {
        self.outputs.retain(|output| output.name.as_deref() != Some(name));
        self
    }

    /// Adds nodes after all others.
    pub(super) fn node(mut self, nodes: &str) -> Self {
        self.nodes.extend(Nodes::parse(nodes).nodes);
        self
    }

    /// Adds nodes before all others.
    pub(super) fn before(mut self, nodes: &str) -> Self {
        self.nodes.splice(0..0, Nodes::parse(nodes).nodes);
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

    /// Replaces the node that makes a value.
    pub(super) fn replace(self, output: &str, node: &str) -> Self {
        self.change(output, |old| *old = Nodes::parse(node).nodes.remove(0))
    }

    /// Replaces the inputs of the node that makes a value.
    pub(super) fn reads(self, output: &str, inputs: &[&str]) -> Self {
        self.change(output, |node| node.input = inputs.iter().map(|&input| input.to_owned()).collect())
    }

    /// Adds attributes to the node that makes a value.
    pub(super) fn with_attributes(self, output: &str, attributes: &str) -> Self {
        let mut parsed = Nodes::parse(&format!("Any() {{{attributes}}}")).nodes.remove(0);
        self.change(output, |node| node.attribute.append(&mut parsed.attribute))
    }

    pub(super) fn model(self) -> Model {
        let mut model = model(self.inputs, self.nodes, self.outputs);
        model.proto_mut().opset_import.push(opset("com.microsoft", 1));
        graph_mut(&mut model).value_info = self.values;
        model
    }

    /// Returns the hazards, except those of growth and of runtimes, which depend only on the style.
    #[track_caller]
    pub(super) fn hazards(self) -> Vec<Hazard> {
        let model = self.model();
        let mut hazards = Decoder::from_graph(&model.graph().unwrap()).unwrap().hazards();
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
        let refusals = Decoder::from_graph(&model.graph().unwrap()).unwrap().tensorrt_refusals();
        refusals.into_iter().map(|refusal| (refusal.node.name, refusal.reason)).collect()
    }
}
