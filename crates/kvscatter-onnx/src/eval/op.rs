//! Parses a node into an operator that can be evaluated, with its attributes.

use kvscatter::spec::onnx::TensorScatter;
use kvscatter::{ElementType, Mode};

use crate::attribute::{self, int, string};
use crate::graph::DEFAULT_DOMAIN;
use crate::proto::{AttributeProto, TensorProto};
use crate::{Data, EvalError, ExternalData, GraphError, Node, OnnxError, Tensor, tensor_proto};

/// An operator with the names of its inputs and its output.
#[derive(Clone, Debug)]
pub(crate) enum Op<'m> {
    TensorScatter {
        op: TensorScatter,
        mode: Mode,
        past_cache: &'m str,
        update: &'m str,
        write_indices: Option<&'m str>,
        present_cache: &'m str,
    },
    Identity {
        input: &'m str,
        output: &'m str,
    },
    Add {
        left: &'m str,
        right: &'m str,
        output: &'m str,
    },
    Constant {
        value: ConstantValue<'m>,
        output: &'m str,
    },
}

/// The one attribute of a `Constant`.
#[derive(Clone, Copy, Debug)]
pub(crate) enum ConstantValue<'m> {
    Tensor(&'m TensorProto),
    Int(i64),
    Ints(&'m [i64]),
    Float(f32),
    Floats(&'m [f32]),
    String(&'m [u8]),
    Strings(&'m [Vec<u8>]),
}

impl<'m> Op<'m> {
    pub(crate) fn parse(node: &Node<'m>) -> Result<Self, OnnxError> {
        parse(node).map_err(|error| node.error(error))
    }

    /// Returns the values that the operator reads.
    pub(crate) fn inputs(&self) -> impl Iterator<Item = &'m str> {
        let inputs = match *self {
            Self::TensorScatter { past_cache, update, write_indices, .. } => {
                [Some(past_cache), Some(update), write_indices]
            }
            Self::Identity { input, .. } => [Some(input), None, None],
            Self::Add { left, right, .. } => [Some(left), Some(right), None],
            Self::Constant { .. } => [None; 3],
        };
        inputs.into_iter().flatten()
    }

    /// Returns the name of the operator's output.
    pub(crate) fn output(&self) -> &'m str {
        match self {
            Self::TensorScatter { present_cache: output, .. }
            | Self::Identity { output, .. }
            | Self::Add { output, .. }
            | Self::Constant { output, .. } => output,
        }
    }
}

impl<'m> ConstantValue<'m> {
    /// Parses the value in a `Constant`'s attribute of this name.
    pub(crate) fn parse(name: &str, attribute: &'m AttributeProto) -> Result<Self, OnnxError> {
        Ok(match name {
            "value" => Self::Tensor(attribute::tensor(attribute)?),
            "value_int" => Self::Int(int(attribute)?),
            "value_ints" => Self::Ints(attribute::ints(attribute)?),
            "value_float" => Self::Float(attribute::float(attribute)?),
            "value_floats" => Self::Floats(attribute::floats(attribute)?),
            "value_string" => Self::String(string(attribute)?),
            "value_strings" => Self::Strings(attribute::strings(attribute)?),
            "sparse_value" => return Err(GraphError::Sparse { name: name.to_owned() }.into()),
            _ => return Err(unknown(attribute).into()),
        })
    }

    /// Returns the tensor. If the attribute is not a tensor, the type is int64, float or string.
    pub(crate) fn read(&self, external: Option<&ExternalData>) -> Result<Tensor, OnnxError> {
        let bytes = |element, shape, bytes| Tensor::new(element, shape, Data::Bytes(bytes));
        let strings = |shape, strings| Tensor::new(ElementType::String, shape, Data::Strings(strings));
        Ok(match *self {
            Self::Tensor(message) => return tensor_proto::decode(message.clone(), external),
            Self::Int(value) => bytes(ElementType::Int64, vec![], value.to_le_bytes().to_vec()),
            Self::Ints(values) => bytes(
                ElementType::Int64,
                vec![values.len()],
                values.iter().flat_map(|value| value.to_le_bytes()).collect(),
            ),
            Self::Float(value) => bytes(ElementType::Float32, vec![], value.to_le_bytes().to_vec()),
            Self::Floats(values) => bytes(
                ElementType::Float32,
                vec![values.len()],
                values.iter().flat_map(|value| value.to_le_bytes()).collect(),
            ),
            Self::String(value) => strings(vec![], vec![value.to_vec()]),
            Self::Strings(values) => strings(vec![values.len()], values.to_vec()),
        }?)
    }
}

fn parse<'m>(node: &Node<'m>) -> Result<Op<'m>, OnnxError> {
    if node.is_function() {
        return Err(EvalError::Function.into());
    }
    if node.domain() != DEFAULT_DOMAIN {
        return Err(EvalError::UnsupportedOperator.into());
    }
    match node.op_type() {
        "TensorScatter" => tensor_scatter(at_least(24, node)?),
        "Identity" => identity(node),
        // Before version 7, an attribute controlled broadcasting.
        "Add" => add(at_least(7, node)?),
        "Constant" => constant(node),
        _ => Err(EvalError::UnsupportedOperator.into()),
    }
}

fn at_least<'n, 'm>(min: i64, node: &'n Node<'m>) -> Result<&'n Node<'m>, GraphError> {
    let version = node.version();
    if version < min { Err(GraphError::OpsetTooOld { version, min }) } else { Ok(node) }
}

fn tensor_scatter<'m>(node: &Node<'m>) -> Result<Op<'m>, OnnxError> {
    let (mut op, mut mode) = (TensorScatter::new(), Mode::Linear);
    for attribute in attributes(node)? {
        match attribute.name.as_deref() {
            Some("axis") => op = op.axis(int(attribute)?),
            Some("mode") => mode = parse_mode(string(attribute)?)?,
            _ => return Err(unknown(attribute).into()),
        }
    }
    let inputs = inputs(node, 2, 3)?;
    Ok(Op::TensorScatter {
        op: op.mode(mode),
        mode,
        past_cache: present(&inputs, 0)?,
        update: present(&inputs, 1)?,
        write_indices: present(&inputs, 2).ok(),
        present_cache: output(node)?,
    })
}

fn identity<'m>(node: &Node<'m>) -> Result<Op<'m>, OnnxError> {
    no_attributes(node)?;
    Ok(Op::Identity { input: present(&inputs(node, 1, 1)?, 0)?, output: output(node)? })
}

fn add<'m>(node: &Node<'m>) -> Result<Op<'m>, OnnxError> {
    no_attributes(node)?;
    let inputs = inputs(node, 2, 2)?;
    Ok(Op::Add { left: present(&inputs, 0)?, right: present(&inputs, 1)?, output: output(node)? })
}

fn constant<'m>(node: &Node<'m>) -> Result<Op<'m>, OnnxError> {
    inputs(node, 0, 0)?;
    let &[attribute] = attributes(node)?.as_slice() else {
        return Err(EvalError::ConstantAttributes { got: node.proto().attribute.len() }.into());
    };
    let name = attribute.name.as_deref().unwrap_or_default();
    let value = ConstantValue::parse(name, attribute)?;
    Ok(Op::Constant { value, output: output(node)? })
}

fn inputs<'m>(node: &Node<'m>, min: usize, max: usize) -> Result<Vec<&'m str>, GraphError> {
    let inputs: Vec<_> = node.proto().input.iter().map(String::as_str).collect();
    let got = inputs.len();
    if (min..=max).contains(&got) { Ok(inputs) } else { Err(GraphError::InputCount { min, max, got }) }
}

/// Returns the name of a required input. An empty name stands for an absent input.
fn present<'m>(inputs: &[&'m str], index: usize) -> Result<&'m str, GraphError> {
    let name = inputs.get(index).copied().unwrap_or_default();
    if name.is_empty() { Err(GraphError::InputAbsent { index }) } else { Ok(name) }
}

fn output<'m>(node: &Node<'m>) -> Result<&'m str, GraphError> {
    match node.proto().output.as_slice() {
        [output] if !output.is_empty() => Ok(output),
        outputs => {
            Err(GraphError::OutputCount { got: outputs.iter().filter(|output| !output.is_empty()).count() })
        }
    }
}

fn attributes<'m>(node: &Node<'m>) -> Result<Vec<&'m AttributeProto>, GraphError> {
    let mut names = std::collections::BTreeSet::new();
    let attributes: Vec<_> = node.proto().attribute.iter().collect();
    for attribute in &attributes {
        if !names.insert(attribute.name.as_deref()) {
            let name = attribute.name.clone().unwrap_or_default();
            return Err(GraphError::AttributeTwice { name });
        }
    }
    Ok(attributes)
}

fn no_attributes(node: &Node<'_>) -> Result<(), GraphError> {
    node.proto().attribute.first().map_or(Ok(()), |attribute| Err(unknown(attribute)))
}

fn unknown(attribute: &AttributeProto) -> GraphError {
    GraphError::AttributeUnknown { name: attribute.name.clone().unwrap_or_default() }
}

fn parse_mode(name: &[u8]) -> Result<Mode, EvalError> {
    let name = String::from_utf8_lossy(name);
    name.parse().map_err(|_| EvalError::Mode { mode: name.into_owned() })
}
