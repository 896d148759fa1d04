//! The messages of `onnx.proto` (ONNX 1.23.2), whose comments describe the fields. A message writes its fields in
//! the order in which they stand here, which is the order of their numbers.

#![expect(missing_docs, reason = "onnx.proto describes the fields")]
#![expect(non_camel_case_types, reason = "names of onnx.proto")]

use super::field::{MessageField, messages};
use std::sync::Arc;

messages! {
    ModelProto {
        ir_version: Option<i64> = 1,
        producer_name: Option<String> = 2,
        producer_version: Option<String> = 3,
        domain: Option<String> = 4,
        model_version: Option<i64> = 5,
        doc_string: Option<String> = 6,
        graph: MessageField<GraphProto> = 7,
        opset_import: Vec<OperatorSetIdProto> = 8,
        metadata_props: Vec<StringStringEntryProto> = 14,
        training_info: Vec<TrainingInfoProto> = 20,
        functions: Vec<FunctionProto> = 25,
        configuration: Vec<DeviceConfigurationProto> = 26,
    }

    OperatorSetIdProto {
        domain: Option<String> = 1,
        version: Option<i64> = 2,
    }

    StringStringEntryProto {
        key: Option<String> = 1,
        value: Option<String> = 2,
    }

    TrainingInfoProto {
        initialization: MessageField<GraphProto> = 1,
        algorithm: MessageField<GraphProto> = 2,
        initialization_binding: Vec<StringStringEntryProto> = 3,
        update_binding: Vec<StringStringEntryProto> = 4,
    }

    FunctionProto {
        name: Option<String> = 1,
        input: Vec<String> = 4,
        output: Vec<String> = 5,
        attribute: Vec<String> = 6,
        node: Vec<NodeProto> = 7,
        doc_string: Option<String> = 8,
        opset_import: Vec<OperatorSetIdProto> = 9,
        domain: Option<String> = 10,
        attribute_proto: Vec<AttributeProto> = 11,
        value_info: Vec<ValueInfoProto> = 12,
        overload: Option<String> = 13,
        metadata_props: Vec<StringStringEntryProto> = 14,
    }

    GraphProto {
        node: Vec<NodeProto> = 1,
        name: Option<String> = 2,
        initializer: Vec<TensorProto> = 5,
        doc_string: Option<String> = 10,
        input: Vec<ValueInfoProto> = 11,
        output: Vec<ValueInfoProto> = 12,
        value_info: Vec<ValueInfoProto> = 13,
        quantization_annotation: Vec<TensorAnnotation> = 14,
        sparse_initializer: Vec<SparseTensorProto> = 15,
        metadata_props: Vec<StringStringEntryProto> = 16,
    }

    TensorAnnotation {
        tensor_name: Option<String> = 1,
        quant_parameter_tensor_names: Vec<StringStringEntryProto> = 2,
    }

    NodeProto {
        input: Vec<String> = 1,
        output: Vec<String> = 2,
        name: Option<String> = 3,
        op_type: Option<String> = 4,
        attribute: Vec<AttributeProto> = 5,
        doc_string: Option<String> = 6,
        domain: Option<String> = 7,
        overload: Option<String> = 8,
        metadata_props: Vec<StringStringEntryProto> = 9,
    }

    AttributeProto {
        name: Option<String> = 1,
        f: Option<f32> = 2,
        i: Option<i64> = 3,
        s: Option<Vec<u8>> = 4,
        t: MessageField<TensorProto> = 5,
        g: MessageField<GraphProto> = 6,
        floats: Vec<f32> = 7,
        ints: Vec<i64> = 8,
        strings: Vec<Vec<u8>> = 9,
        tensors: Vec<TensorProto> = 10,
        graphs: Vec<GraphProto> = 11,
        doc_string: Option<String> = 13,
        tp: MessageField<TypeProto> = 14,
        type_protos: Vec<TypeProto> = 15,
        r#type: Option<attribute_proto::AttributeType> = 20,
        ref_attr_name: Option<String> = 21,
        sparse_tensor: MessageField<SparseTensorProto> = 22,
        sparse_tensors: Vec<SparseTensorProto> = 23,
    }

    TensorProto {
        dims: Vec<i64> = 1,
        data_type: Option<i32> = 2,
        segment: MessageField<tensor_proto::Segment> = 3,
        float_data: Vec<f32> = 4 [packed],
        int32_data: Vec<i32> = 5 [packed],
        string_data: Vec<Vec<u8>> = 6,
        int64_data: Vec<i64> = 7 [packed],
        name: Option<String> = 8,
        raw_data: Option<Arc<Vec<u8>>> = 9,
        double_data: Vec<f64> = 10 [packed],
        uint64_data: Vec<u64> = 11 [packed],
        doc_string: Option<String> = 12,
        external_data: Vec<StringStringEntryProto> = 13,
        data_location: Option<tensor_proto::DataLocation> = 14,
        metadata_props: Vec<StringStringEntryProto> = 16,
    }

    SparseTensorProto {
        values: MessageField<TensorProto> = 1,
        indices: MessageField<TensorProto> = 2,
        dims: Vec<i64> = 3,
    }

    ValueInfoProto {
        name: Option<String> = 1,
        r#type: MessageField<TypeProto> = 2,
        doc_string: Option<String> = 3,
        metadata_props: Vec<StringStringEntryProto> = 4,
    }

    TypeProto {
        value: Option<type_proto::Value> = 1 | 4 | 5 | 7 | 8 | 9,
        denotation: Option<String> = 6,
    }

    TensorShapeProto {
        dim: Vec<tensor_shape_proto::Dimension> = 1,
    }

    DeviceConfigurationProto {
        name: Option<String> = 1,
        num_devices: Option<i32> = 2,
        device: Vec<String> = 3,
    }
}

pub mod attribute_proto {
    use crate::proto::field::enumeration;

    enumeration! {
        AttributeType {
            #[default]
            UNDEFINED = 0,
            FLOAT = 1,
            INT = 2,
            STRING = 3,
            TENSOR = 4,
            GRAPH = 5,
            FLOATS = 6,
            INTS = 7,
            STRINGS = 8,
            TENSORS = 9,
            GRAPHS = 10,
            SPARSE_TENSOR = 11,
            SPARSE_TENSORS = 12,
            TYPE_PROTO = 13,
            TYPE_PROTOS = 14,
        }
    }
}

pub mod tensor_proto {
    use crate::proto::field::{enumeration, messages};

    enumeration! {
        DataLocation {
            #[default]
            DEFAULT = 0,
            EXTERNAL = 1,
        }
    }

    messages! {
        Segment {
            begin: Option<i64> = 1,
            end: Option<i64> = 2,
        }
    }
}

pub mod tensor_shape_proto {
    use crate::proto::field::messages;

    messages! {
        Dimension {
            value: Option<dimension::Value> = 1 | 2,
            denotation: Option<String> = 3,
        }
    }

    pub mod dimension {
        use crate::proto::field::choice;

        choice! {
            Value {
                DimValue(i64) = 1,
                DimParam(String) = 2,
            }
        }
    }
}

pub mod type_proto {
    use crate::proto::field::{MessageField, choice, messages};
    use crate::proto::{TensorShapeProto, TypeProto};

    choice! {
        Value {
            TensorType(Box<Tensor>) = 1,
            SequenceType(Box<Sequence>) = 4,
            MapType(Box<Map>) = 5,
            OpaqueType(Box<Opaque>) = 7,
            SparseTensorType(Box<SparseTensor>) = 8,
            OptionalType(Box<Optional>) = 9,
        }
    }

    messages! {
        Tensor {
            elem_type: Option<i32> = 1,
            shape: MessageField<TensorShapeProto> = 2,
        }

        Sequence {
            elem_type: MessageField<TypeProto> = 1,
        }

        Map {
            key_type: Option<i32> = 1,
            value_type: MessageField<TypeProto> = 2,
        }

        Optional {
            elem_type: MessageField<TypeProto> = 1,
        }

        SparseTensor {
            elem_type: Option<i32> = 1,
            shape: MessageField<TensorShapeProto> = 2,
        }

        Opaque {
            domain: Option<String> = 1,
            name: Option<String> = 2,
        }
    }
}
