//! Generates a decoder of any size, as exporters write it.
//!
//! Its caches grow by `Concat`. Its mask is computed from `attention_mask` and the length of the past.

use kvscatter_onnx::Model;
use kvscatter_onnx::proto::attribute_proto::AttributeType;
use kvscatter_onnx::proto::tensor_shape_proto::{self, dimension::Value as DimValue};
use kvscatter_onnx::proto::type_proto::{self, Value};
use kvscatter_onnx::proto::{
    AttributeProto, GraphProto, ModelProto, NodeProto, OperatorSetIdProto, TensorProto, TensorShapeProto,
    TypeProto, ValueInfoProto,
};
use serde::{Deserialize, Serialize};

/// The sizes of a decoder.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Decoder {
    pub(super) layers: usize,
    pub(super) heads: usize,
    pub(super) head_size: usize,
    pub(super) hidden: usize,
    pub(super) vocabulary: usize,
}

impl Default for Decoder {
    fn default() -> Self {
        Self { layers: 4, heads: 8, head_size: 128, hidden: 512, vocabulary: 256 }
    }
}

pub(super) const TOKENS: &str = "input_ids";
pub(super) const MASK: &str = "attention_mask";
pub(super) const POSITIONS: &str = "position_ids";
pub(super) const LOGITS: &str = "logits";

const FLOAT: i32 = 1;
const INT64: i32 = 7;
const BOOL: i64 = 9;
/// The operator set that exporters declare. `convert` raises it.
const OPSET: i64 = 18;

impl Decoder {
    /// Returns the bytes of all caches at a length, for one sample.
    pub(super) fn cache_bytes(&self, length: usize) -> usize {
        2 * self.layers * self.heads * length * self.head_size * size_of::<f32>()
    }

    /// Returns the model for at most `positions` positions.
    pub(super) fn model(&self, positions: usize) -> Model {
        let mut builder = Builder::default();
        builder.inputs_and_mask(self);
        builder.weight("tokens", &[self.vocabulary, self.hidden]);
        builder.weight("positions", &[positions, self.hidden]);
        builder.node("Gather", &["tokens", TOKENS], "embedded", vec![]);
        builder.node("Gather", &["positions", POSITIONS], "placed", vec![]);
        builder.node("Add", &["embedded", "placed"], "x0", vec![]);
        for layer in 0..self.layers {
            builder.layer(self, layer);
        }
        builder.normalized(self, &format!("x{}", self.layers), "last");
        builder.weight("head", &[self.hidden, self.vocabulary]);
        builder.node("MatMul", &["last", "head"], LOGITS, vec![]);
        let known = |size: usize| Dim::Known(size);
        builder.graph.output.insert(
            0,
            value(LOGITS, FLOAT, &[Dim::Open("batch"), Dim::Open("tokens"), known(self.vocabulary)]),
        );
        builder.finish()
    }
}

#[derive(Clone, Copy)]
enum Dim {
    Known(usize),
    Open(&'static str),
}

#[derive(Default)]
struct Builder {
    graph: GraphProto,
    seed: u32,
}

impl Builder {
    /// Adds the inputs and the mask. Key `j` is visible to query `i` if `j <= past + i` and
    /// `attention_mask[b, j]`.
    fn inputs_and_mask(&mut self, decoder: &Decoder) {
        let (batch, tokens, total) = (Dim::Open("batch"), Dim::Open("tokens"), Dim::Open("past + tokens"));
        self.graph.input.push(value(TOKENS, INT64, &[batch, tokens]));
        self.graph.input.push(value(MASK, INT64, &[batch, total]));
        self.graph.input.push(value(POSITIONS, INT64, &[batch, tokens]));
        for name in
            (0..decoder.layers).flat_map(|layer| ["key", "value"].map(|part| format!("{layer}.{part}")))
        {
            let dims = |length| [batch, Dim::Known(decoder.heads), length, Dim::Known(decoder.head_size)];
            self.graph.input.push(value(&format!("past.{name}"), FLOAT, &dims(Dim::Open("past"))));
            self.graph.output.push(value(&format!("present.{name}"), FLOAT, &dims(total)));
        }
        for (name, value) in [("zero", 0), ("one", 1), ("two", 2)] {
            self.ints(name, &[], &[value]);
        }
        self.ints("axes_1", &[1], &[1]);
        self.ints("axes_1_2", &[2], &[1, 2]);
        self.node("Shape", &["past.0.key"], "past_shape", vec![]);
        self.node("Gather", &["past_shape", "two"], "past_length", vec![]);
        self.node("Shape", &[TOKENS], "tokens_shape", vec![]);
        self.node("Gather", &["tokens_shape", "one"], "token_count", vec![]);
        self.node("Add", &["past_length", "token_count"], "total_length", vec![]);
        self.node("Range", &["zero", "total_length", "one"], "keys", vec![]);
        self.node("Range", &["past_length", "total_length", "one"], "queries", vec![]);
        self.node("Unsqueeze", &["queries", "axes_1"], "query_column", vec![]);
        self.node("LessOrEqual", &["keys", "query_column"], "causal", vec![]);
        self.node("Cast", &[MASK], "real", vec![int("to", BOOL)]);
        self.node("Unsqueeze", &["real", "axes_1_2"], "real_keys", vec![]);
        self.node("And", &["causal", "real_keys"], "visible", vec![]);
        self.floats("hidden_score", &[], &[f32::MIN]);
        self.floats("no_score", &[], &[0.0]);
        self.node("Where", &["visible", "no_score", "hidden_score"], "mask", vec![]);
        self.ints("to_heads", &[4], &[0, 0, decoder.heads as i64, decoder.head_size as i64]);
        self.ints("from_heads", &[3], &[0, 0, (decoder.heads * decoder.head_size) as i64]);
        self.floats("scale", &[], &[1.0 / (decoder.head_size as f32).sqrt()]);
    }

    fn layer(&mut self, decoder: &Decoder, layer: usize) {
        let width = decoder.heads * decoder.head_size;
        let n = |name: &str| format!("{name}{layer}");
        self.normalized(decoder, &n("x"), &n("normal"));
        for part in ["query", "key", "value"] {
            let (weight, flat, split, heads) = (
                n(&format!("{part}_weight")),
                n(&format!("{part}_flat")),
                n(&format!("{part}_split")),
                n(part),
            );
            self.weight(&weight, &[decoder.hidden, width]);
            self.node("MatMul", &[&n("normal"), &weight], &flat, vec![]);
            self.node("Reshape", &[&flat, "to_heads"], &split, vec![]);
            self.node("Transpose", &[&split], &heads, vec![ints("perm", &[0, 2, 1, 3])]);
        }
        let (keys, values) = (format!("present.{layer}.key"), format!("present.{layer}.value"));
        self.node("Concat", &[&format!("past.{layer}.key"), &n("key")], &keys, vec![int("axis", 2)]);
        self.node("Concat", &[&format!("past.{layer}.value"), &n("value")], &values, vec![int("axis", 2)]);
        self.node("Transpose", &[&keys], &n("keys_turned"), vec![ints("perm", &[0, 1, 3, 2])]);
        self.node("Mul", &[&n("query"), "scale"], &n("scaled"), vec![]);
        self.node("MatMul", &[&n("scaled"), &n("keys_turned")], &n("scores"), vec![]);
        self.node("Add", &[&n("scores"), "mask"], &n("masked"), vec![]);
        self.node("Softmax", &[&n("masked")], &n("weights"), vec![int("axis", -1)]);
        self.node("MatMul", &[&n("weights"), &values], &n("mixed"), vec![]);
        self.node("Transpose", &[&n("mixed")], &n("mixed_split"), vec![ints("perm", &[0, 2, 1, 3])]);
        self.node("Reshape", &[&n("mixed_split"), "from_heads"], &n("mixed_flat"), vec![]);
        self.weight(&n("out_weight"), &[width, decoder.hidden]);
        self.node("MatMul", &[&n("mixed_flat"), &n("out_weight")], &n("out"), vec![]);
        self.node("Add", &[&n("x"), &n("out")], &format!("x{}", layer + 1), vec![]);
    }

    fn normalized(&mut self, decoder: &Decoder, input: &str, output: &str) {
        let scale = format!("{output}_scale");
        self.floats(&scale, &[decoder.hidden], &vec![1.0; decoder.hidden]);
        self.node("LayerNormalization", &[input, &scale], output, vec![int("axis", -1)]);
    }

    fn node(&mut self, op_type: &str, inputs: &[&str], output: &str, attribute: Vec<AttributeProto>) {
        self.graph.node.push(NodeProto {
            op_type: Some(op_type.to_owned()),
            input: inputs.iter().map(|&input| input.to_owned()).collect(),
            output: vec![output.to_owned()],
            attribute,
            ..NodeProto::default()
        });
    }

    /// Adds a weight of reproducible numbers around 0, so small that sums over the hidden size stay near 1.
    fn weight(&mut self, name: &str, dims: &[usize]) {
        let reach = 1.0 / (dims[0] as f32).sqrt();
        let values: Vec<f32> = (0..dims.iter().product::<usize>())
            .map(|_| {
                self.seed = self.seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                ((self.seed >> 8) as f32 / (1 << 23) as f32 - 1.0) * reach
            })
            .collect();
        self.floats(name, dims, &values);
    }

    fn floats(&mut self, name: &str, dims: &[usize], values: &[f32]) {
        self.initializer(name, FLOAT, dims, values.iter().flat_map(|value| value.to_le_bytes()).collect());
    }

    fn ints(&mut self, name: &str, dims: &[usize], values: &[i64]) {
        self.initializer(name, INT64, dims, values.iter().flat_map(|value| value.to_le_bytes()).collect());
    }

    fn initializer(&mut self, name: &str, data_type: i32, dims: &[usize], raw: Vec<u8>) {
        self.graph.initializer.push(TensorProto {
            name: Some(name.to_owned()),
            data_type: Some(data_type),
            dims: dims.iter().map(|&dim| dim as i64).collect(),
            raw_data: Some(raw),
            ..TensorProto::default()
        });
    }

    fn finish(mut self) -> Model {
        self.graph.name = Some("decoder".to_owned());
        let opset =
            OperatorSetIdProto { domain: Some(String::new()), version: Some(OPSET), ..Default::default() };
        Model::from_proto(ModelProto {
            ir_version: Some(8),
            producer_name: Some("kvscatter-bench".to_owned()),
            opset_import: vec![opset],
            graph: self.graph.into(),
            ..ModelProto::default()
        })
    }
}

fn value(name: &str, element: i32, dims: &[Dim]) -> ValueInfoProto {
    let dim = |dim: &Dim| tensor_shape_proto::Dimension {
        value: Some(match dim {
            Dim::Known(size) => DimValue::DimValue(*size as i64),
            Dim::Open(name) => DimValue::DimParam((*name).to_owned()),
        }),
        ..Default::default()
    };
    let shape = TensorShapeProto { dim: dims.iter().map(dim).collect(), ..Default::default() };
    let tensor = type_proto::Tensor { elem_type: Some(element), shape: shape.into(), ..Default::default() };
    let r#type = TypeProto { value: Some(Value::TensorType(Box::new(tensor))), ..Default::default() };
    ValueInfoProto { name: Some(name.to_owned()), r#type: r#type.into(), ..Default::default() }
}

fn int(name: &str, value: i64) -> AttributeProto {
    let r#type = Some(AttributeType::INT);
    AttributeProto { name: Some(name.to_owned()), i: Some(value), r#type, ..Default::default() }
}

fn ints(name: &str, values: &[i64]) -> AttributeProto {
    let r#type = Some(AttributeType::INTS);
    AttributeProto { name: Some(name.to_owned()), ints: values.to_vec(), r#type, ..Default::default() }
}
