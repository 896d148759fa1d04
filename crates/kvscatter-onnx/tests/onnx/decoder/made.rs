//! One layer of a decoder, in which a test breaks one thing.

use kvscatter_onnx::Model;
use kvscatter_onnx::decoder::{Hazard, TensorRtRule};
use kvscatter_onnx::internal::proto::ValueInfoProto;

use crate::support::{Nodes, decoder, graph_mut, values};

/// A decoder of one layer. One attention reads its keys and values, which are written in one style.
#[derive(Clone)]
pub(super) struct Made {
    pub(super) inputs: Vec<ValueInfoProto>,
    /// The text of the nodes, one a line.
    pub(super) nodes: String,
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
        let nodes = "y, present_k, present_v = Attention(q, new_k, new_v, _, past_k, past_v)";
        Self::with("", nodes, "past", "all")
    }

    /// Creates a layer with `GroupQueryAttention`.
    pub(super) fn group_query() -> Self {
        let nodes = "y, present_k, present_v =
            GroupQueryAttention@com.microsoft(q, new_k, new_v, past_k, past_v, last, total)
            {num_heads=4, kv_num_heads=2}";
        Self::with("last: int32[batch], total: int32[],", nodes, "past", "all")
    }

    fn with(inputs: &str, nodes: &str, past: &str, present: &str) -> Self {
        let rows = "float[batch, 2, s, 16]";
        let inputs = format!("{inputs} past_k, past_v: float[batch, 2, {past}, 16], new_k, new_v, q: {rows}");
        Self {
            inputs: values(&inputs),
            nodes: nodes.to_owned(),
            outputs: values(&format!("y: {rows}, present_k, present_v: float[batch, 2, {present}, 16]")),
            values: Vec::new(),
        }
    }

    /// Declares inputs, which may take the place of others.
    pub(super) fn input(mut self, inputs: &str) -> Self {
        declare(&mut self.inputs, inputs);
        self
    }

    pub(super) fn output(mut self, outputs: &str) -> Self {
        declare(&mut self.outputs, outputs);
        self
    }

    pub(super) fn without_output(mut self, name: &str) -> Self {
        self.outputs.retain(|output| output.name.as_deref() != Some(name));
        self
    }

    /// Adds nodes after all others.
    pub(super) fn node(mut self, nodes: &str) -> Self {
        self.nodes += &format!("\n{nodes}");
        self
    }

    /// Adds nodes before all others.
    pub(super) fn before(mut self, nodes: &str) -> Self {
        self.nodes.insert_str(0, &format!("{nodes}\n"));
        self
    }

    /// Replaces a text in all nodes.
    #[track_caller]
    pub(super) fn edit(mut self, old: &str, new: &str) -> Self {
        assert!(self.nodes.contains(old), "{old}");
        self.nodes = self.nodes.replace(old, new);
        self
    }

    /// Adds attributes to the node that makes a value.
    pub(super) fn with_attributes(self, output: &str, attributes: &str) -> Self {
        let is_made = |line: &&str| line.trim_start().starts_with(output);
        let node = self.nodes.lines().find(is_made).unwrap().to_owned();
        self.edit(&node, &format!("{node} {{{attributes}}}"))
    }

    pub(super) fn model(self) -> Model {
        let mut model = Nodes::parse(&self.nodes).model(self.inputs, self.outputs);
        graph_mut(&mut model).value_info = self.values;
        model
    }

    /// Returns the hazards, except those of growth and of runtimes, which depend only on the style.
    #[track_caller]
    pub(super) fn hazards(self) -> Vec<Hazard> {
        let mut hazards = decoder(&self.model()).hazards();
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
        let refusals = decoder(&self.model()).tensorrt_refusals();
        refusals.into_iter().map(|refusal| (refusal.node.name, refusal.reason)).collect()
    }
}

fn declare(declared: &mut Vec<ValueInfoProto>, text: &str) {
    for value in values(text) {
        declared.retain(|other| other.name != value.name);
        declared.push(value);
    }
}
