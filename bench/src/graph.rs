//! Builds ONNX models node by node.

use kvscatter_onnx::Model;
use kvscatter_onnx::internal::proto::attribute_proto::AttributeType;
use kvscatter_onnx::internal::proto::tensor_shape_proto::{self, dimension::Value as DimValue};
use kvscatter_onnx::internal::proto::type_proto::{self, Value};
use kvscatter_onnx::internal::proto::{
    AttributeProto, GraphProto, ModelProto, NodeProto, OperatorSetIdProto, TensorProto, TensorShapeProto,
    TypeProto, ValueInfoProto,
};

pub(crate) const FLOAT: i32 = 1;
pub(crate) const INT32: i32 = 6;
pub(crate) const INT64: i32 = 7;
pub(crate) const BOOL: i64 = 9;

/// The domain of ONNX Runtime's own operators.
pub(crate) const MICROSOFT: &str = "com.microsoft";

/// The versions that a model declares.
#[derive(Clone, Copy)]
pub(crate) struct Versions {
    /// The version of ONNX's intermediate representation.
    pub(crate) ir: i64,
    /// The version of ONNX's operators.
    pub(crate) opset: i64,
}

#[derive(Clone, Copy)]
pub(crate) enum Dim {
    Known(usize),
    Open(&'static str),
}

#[derive(Default)]
pub(crate) struct Builder {
    pub(crate) graph: GraphProto,
    seed: u32,
}

impl Builder {
    /// Adds a node of an ONNX operator with one output.
    pub(crate) fn node(
        &mut self,
        op_type: &str,
        inputs: &[&str],
        output: &str,
        attribute: Vec<AttributeProto>,
    ) {
        self.node_of("", op_type, inputs, &[output], attribute);
    }

    /// Adds a node of an operator of any domain. An input without a name is missing.
    pub(crate) fn node_of(
        &mut self,
        domain: &str,
        op_type: &str,
        inputs: &[&str],
        outputs: &[&str],
        attribute: Vec<AttributeProto>,
    ) {
        let names = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect();
        self.graph.node.push(NodeProto {
            domain: (!domain.is_empty()).then(|| domain.to_owned()),
            op_type: Some(op_type.to_owned()),
            input: names(inputs),
            output: names(outputs),
            attribute,
            ..NodeProto::default()
        });
    }

    /// Adds a weight of reproducible numbers around 0, so small that sums over the hidden size stay near 1.
    pub(crate) fn weight(&mut self, name: &str, dims: &[usize]) {
        let reach = 1.0 / (dims[0] as f32).sqrt();
        let values: Vec<f32> = (0..dims.iter().product::<usize>())
            .map(|_| {
                self.seed = self.seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                ((self.seed >> 8) as f32 / (1 << 23) as f32 - 1.0) * reach
            })
            .collect();
        self.floats(name, dims, &values);
    }

    pub(crate) fn floats(&mut self, name: &str, dims: &[usize], values: &[f32]) {
        self.initializer(name, FLOAT, dims, values.iter().flat_map(|value| value.to_le_bytes()).collect());
    }

    pub(crate) fn ints(&mut self, name: &str, dims: &[usize], values: &[i64]) {
        self.initializer(name, INT64, dims, values.iter().flat_map(|value| value.to_le_bytes()).collect());
    }

    fn initializer(&mut self, name: &str, data_type: i32, dims: &[usize], raw: Vec<u8>) {
        self.graph.initializer.push(TensorProto {
            name: Some(name.to_owned()),
            data_type: Some(data_type),
            dims: dims.iter().map(|&dim| dim as i64).collect(),
            raw_data: Some(raw.into()),
            ..TensorProto::default()
        });
    }

    /// Returns the model. It may use the operators of ONNX and of ONNX Runtime.
    pub(crate) fn finish(mut self, name: &str, versions: Versions) -> Model {
        self.graph.name = Some(name.to_owned());
        let opset = |domain: &str, version| OperatorSetIdProto {
            domain: Some(domain.to_owned()),
            version: Some(version),
            ..Default::default()
        };
        let uses_microsoft = self.graph.node.iter().any(|node| node.domain.as_deref() == Some(MICROSOFT));
        let mut opset_import = vec![opset("", versions.opset)];
        opset_import.extend(uses_microsoft.then(|| opset(MICROSOFT, 1)));
        Model::from_proto(ModelProto {
            ir_version: Some(versions.ir),
            producer_name: Some("kvscatter-bench".to_owned()),
            opset_import,
            graph: self.graph.into(),
            ..ModelProto::default()
        })
    }
}

pub(crate) fn value(name: &str, element: i32, dims: &[Dim]) -> ValueInfoProto {
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

pub(crate) fn int(name: &str, value: i64) -> AttributeProto {
    let r#type = Some(AttributeType::INT);
    AttributeProto { name: Some(name.to_owned()), i: Some(value), r#type, ..Default::default() }
}

pub(crate) fn ints(name: &str, values: &[i64]) -> AttributeProto {
    let r#type = Some(AttributeType::INTS);
    AttributeProto { name: Some(name.to_owned()), ints: values.to_vec(), r#type, ..Default::default() }
}

pub(crate) fn text(name: &str, value: &str) -> AttributeProto {
    let r#type = Some(AttributeType::STRING);
    AttributeProto { name: Some(name.to_owned()), s: Some(value.into()), r#type, ..Default::default() }
}
