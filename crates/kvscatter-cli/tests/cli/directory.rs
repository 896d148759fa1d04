//! Test directories of one node.

use kvscatter::ElementType;
use kvscatter_onnx::internal::proto::{AttributeProto, GraphProto, ModelProto, NodeProto, ValueInfoProto};
use kvscatter_onnx::internal::test_dir::TestCase;
use kvscatter_onnx::{Data, Dimension, Model, Tensor};

use crate::support::Folder;

/// A test directory with one node and one data set.
pub(crate) struct Directory {
    pub(crate) op_type: &'static str,
    pub(crate) domain: &'static str,
    pub(crate) version: i64,
    pub(crate) attributes: Vec<(&'static str, Attribute)>,
    /// The inputs of the node. An absent input has an empty name.
    pub(crate) inputs: Vec<Option<Input>>,
    pub(crate) expectation: Expectation,
    /// The absolute and the relative tolerance.
    pub(crate) tolerance: Option<(f64, f64)>,
}

pub(crate) enum Attribute {
    Int(i64),
    Float(f32),
    Text(&'static str),
}

pub(crate) enum Expectation {
    Outputs(Vec<Input>),
    /// The rule that the inputs break.
    Refused(String),
}

#[derive(Clone)]
pub(crate) struct Input(pub(crate) Tensor);

impl Input {
    pub(crate) fn new(element: &str, shape: &[usize], bytes: Vec<u8>) -> Self {
        let element = ElementType::from_name(element).unwrap();
        // The shapes of a few refused calls do not fit the elements.
        let length = element.storage_len(shape).unwrap();
        let bytes = bytes.into_iter().chain(std::iter::repeat(0)).take(length).collect();
        Self(Tensor::new(element, shape.to_vec(), Data::Bytes(bytes)).unwrap())
    }

    pub(crate) fn strings(shape: &[usize], strings: &[String]) -> Self {
        let data = Data::Strings(strings.iter().map(|text| text.as_bytes().to_vec()).collect());
        Self(Tensor::new(ElementType::String, shape.to_vec(), data).unwrap())
    }

    pub(crate) fn int64s(values: &[i64]) -> Self {
        Self::new("int64", &[values.len()], values.iter().flat_map(|value| value.to_le_bytes()).collect())
    }

    pub(crate) fn int32s(values: &[i32]) -> Self {
        Self::new("int32", &[values.len()], values.iter().flat_map(|value| value.to_le_bytes()).collect())
    }
}

impl Directory {
    pub(crate) fn write(self, folder: &Folder, name: &str) {
        let outputs = match &self.expectation {
            Expectation::Outputs(outputs) => outputs.clone(),
            Expectation::Refused(_) => Vec::new(),
        };
        let names =
            |prefix: &str, count: usize| (0..count).map(|n| format!("{prefix}_{n}")).collect::<Vec<_>>();
        // A refused case has one output, of the type of the first input.
        let first = self.inputs.iter().flatten().next().cloned();
        let declared: Vec<_> = if outputs.is_empty() { first.into_iter().collect() } else { outputs.clone() };
        let of_outputs = names("output", declared.len());
        let of_inputs: Vec<_> = names("input", self.inputs.len())
            .into_iter()
            .zip(&self.inputs)
            .map(|(name, input)| if input.is_some() { name } else { String::new() })
            .collect();
        let node = NodeProto {
            op_type: Some(self.op_type.to_owned()),
            domain: Some(self.domain.to_owned()),
            input: of_inputs.clone(),
            output: of_outputs.clone(),
            attribute: self.attributes.into_iter().map(|(name, value)| attribute(name, value)).collect(),
            ..NodeProto::default()
        };
        let inputs: Vec<_> = self.inputs.into_iter().flatten().map(|input| input.0).collect();
        let given = of_inputs.iter().filter(|name| !name.is_empty());
        let graph = GraphProto {
            name: Some("one_node".to_owned()),
            node: vec![node],
            input: given.zip(&inputs).map(|(name, tensor)| value(name, tensor)).collect(),
            output: of_outputs.iter().zip(&declared).map(|(name, output)| value(name, &output.0)).collect(),
            ..GraphProto::default()
        };
        let model = Model::from_proto(ModelProto::new(12, &[(self.domain, self.version)], graph));
        let outputs = outputs.into_iter().map(|output| output.0).collect();
        TestCase::write(&folder.path(name), &model, &[(inputs, outputs)]).unwrap();
        if let Expectation::Refused(rule) = self.expectation {
            let document = serde_json::json!({ "kind": rule, "reason": "the oracle refuses it" });
            folder.write(&format!("{name}/refused.json"), document.to_string().as_bytes());
        }
        if let Some((atol, rtol)) = self.tolerance {
            let document = serde_json::json!({ "rtol": rtol, "atol": atol });
            folder.write(&format!("{name}/tolerance.json"), document.to_string().as_bytes());
        }
    }
}

fn attribute(name: &str, value: Attribute) -> AttributeProto {
    match value {
        Attribute::Int(value) => AttributeProto::int(name, value),
        Attribute::Float(value) => AttributeProto::float(name, value),
        Attribute::Text(text) => AttributeProto::string(name, text),
    }
}

/// Returns the declaration of a value of the type and shape of a tensor.
fn value(name: &str, tensor: &Tensor) -> ValueInfoProto {
    let dims: Vec<_> = tensor.shape().iter().map(|&size| Dimension::Known(size)).collect();
    ValueInfoProto::tensor(name, tensor.element().onnx_code(), &dims)
}
