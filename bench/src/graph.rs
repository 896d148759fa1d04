//! Builds ONNX models node by node.

use kvscatter_onnx::internal::proto::{
    AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto, ValueInfoProto,
};
use kvscatter_onnx::{Dimension, Model};

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
        self.graph.node.push(NodeProto {
            domain: (!domain.is_empty()).then(|| domain.to_owned()),
            attribute,
            ..NodeProto::new(op_type, inputs, outputs)
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
        let uses_microsoft = self.graph.node.iter().any(|node| node.domain.as_deref() == Some(MICROSOFT));
        let opsets = [("", versions.opset), (MICROSOFT, 1)];
        let opsets = if uses_microsoft { &opsets[..] } else { &opsets[..1] };
        Model::from_proto(ModelProto {
            producer_name: Some("kvscatter-bench".to_owned()),
            ..ModelProto::new(versions.ir, opsets, self.graph)
        })
    }
}

pub(crate) fn value(name: &str, element: i32, dims: &[Dimension<'_>]) -> ValueInfoProto {
    ValueInfoProto::tensor(name, element, dims)
}

pub(crate) fn int(name: &str, value: i64) -> AttributeProto {
    AttributeProto::int(name, value)
}

pub(crate) fn ints(name: &str, values: &[i64]) -> AttributeProto {
    AttributeProto::ints(name, values)
}

pub(crate) fn text(name: &str, value: &str) -> AttributeProto {
    AttributeProto::string(name, value)
}
