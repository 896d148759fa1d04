//! Creates messages from their parts.

use kvscatter::spec::Dimension;

use super::attribute_proto::AttributeType;
use super::tensor_shape_proto::{self, dimension::Value as DimValue};
use super::type_proto::{self, Value as TypeValue};
use super::{
    AttributeProto, GraphProto, ModelProto, NodeProto, OperatorSetIdProto, TensorProto, TensorShapeProto,
    TypeProto, ValueInfoProto,
};

impl ModelProto {
    /// Creates a model with the domains and versions of its operator sets.
    #[must_use]
    pub fn new(ir_version: i64, opsets: &[(&str, i64)], graph: GraphProto) -> Self {
        Self {
            ir_version: Some(ir_version),
            opset_import: opsets
                .iter()
                .map(|(domain, version)| OperatorSetIdProto::new(domain, *version))
                .collect(),
            graph: graph.into(),
            ..Self::default()
        }
    }
}

impl OperatorSetIdProto {
    /// Creates the import of an operator set.
    #[must_use]
    pub fn new(domain: &str, version: i64) -> Self {
        Self { domain: Some(domain.to_owned()), version: Some(version), ..Self::default() }
    }
}

impl NodeProto {
    /// Creates a node of the default domain. The name of an absent input is empty.
    #[must_use]
    pub fn new(op_type: &str, inputs: &[&str], outputs: &[&str]) -> Self {
        let owned = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect();
        Self {
            op_type: Some(op_type.to_owned()),
            input: owned(inputs),
            output: owned(outputs),
            ..Self::default()
        }
    }
}

impl AttributeProto {
    /// Creates an attribute with an integer.
    #[must_use]
    pub fn int(name: &str, value: i64) -> Self {
        Self { i: Some(value), ..Self::new(name, AttributeType::INT) }
    }

    /// Creates an attribute with a number.
    #[must_use]
    pub fn float(name: &str, value: f32) -> Self {
        Self { f: Some(value), ..Self::new(name, AttributeType::FLOAT) }
    }

    /// Creates an attribute with integers.
    #[must_use]
    pub fn ints(name: &str, values: &[i64]) -> Self {
        Self { ints: values.to_vec(), ..Self::new(name, AttributeType::INTS) }
    }

    /// Creates an attribute with a text.
    #[must_use]
    pub fn string(name: &str, value: &str) -> Self {
        Self { s: Some(value.as_bytes().to_vec()), ..Self::new(name, AttributeType::STRING) }
    }

    /// Creates an attribute with a tensor.
    #[must_use]
    pub fn tensor(name: &str, value: TensorProto) -> Self {
        Self { t: value.into(), ..Self::new(name, AttributeType::TENSOR) }
    }

    /// Creates an attribute with a graph.
    #[must_use]
    pub fn graph(name: &str, value: GraphProto) -> Self {
        Self { g: value.into(), ..Self::new(name, AttributeType::GRAPH) }
    }

    /// Creates an attribute without a value.
    #[must_use]
    pub fn new(name: &str, ty: AttributeType) -> Self {
        Self { name: Some(name.to_owned()), r#type: Some(ty), ..Self::default() }
    }
}

impl ValueInfoProto {
    /// Creates a value of no declared type.
    #[must_use]
    pub fn new(name: &str) -> Self {
        Self { name: Some(name.to_owned()), ..Self::default() }
    }

    /// Declares a tensor.
    #[must_use]
    pub fn tensor(name: &str, elem_type: i32, dims: &[Dimension<'_>]) -> Self {
        let shape = TensorShapeProto::from(dims).into();
        let tensor =
            type_proto::Tensor { elem_type: Some(elem_type), shape, ..type_proto::Tensor::default() };
        let ty = TypeProto { value: Some(TypeValue::TensorType(Box::new(tensor))), ..TypeProto::default() };
        Self { r#type: ty.into(), ..Self::new(name) }
    }
}

impl From<&[Dimension<'_>]> for TensorShapeProto {
    fn from(dims: &[Dimension<'_>]) -> Self {
        let dim = |dim: &Dimension<'_>| tensor_shape_proto::Dimension {
            value: match *dim {
                Dimension::Known(size) => Some(DimValue::DimValue(i64::try_from(size).unwrap_or(i64::MAX))),
                Dimension::Symbolic(symbol) => Some(DimValue::DimParam(symbol.to_owned())),
                Dimension::Unknown => None,
            },
            ..tensor_shape_proto::Dimension::default()
        };
        Self { dim: dims.iter().map(dim).collect(), ..Self::default() }
    }
}
