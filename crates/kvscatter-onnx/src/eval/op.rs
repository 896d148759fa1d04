//! Parses a node into an operator that can be evaluated, with its attributes.

use std::borrow::Cow;

use kvscatter::spec::onnx::TensorScatter;
use kvscatter::{ElementType, Mode};

use crate::attribute::{self, int, string};
use crate::graph::DEFAULT_DOMAIN;
use crate::proto::{AttributeProto, TensorProto};
use crate::{EvalError, GraphError, Node, OnnxError};

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
        value: Box<Cow<'m, TensorProto>>,
        output: &'m str,
    },
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

/// Returns the tensor in a `Constant`'s attribute of this name. If the attribute is not a tensor, the type is int64,
/// float or string.
pub(crate) fn constant_tensor<'m>(
    name: &str,
    attribute: &'m AttributeProto,
) -> Result<Cow<'m, TensorProto>, OnnxError> {
    let header = |element: ElementType, len: Option<usize>| TensorProto {
        data_type: Some(element.onnx_code()),
        dims: len.into_iter().map(|len| i64::try_from(len).unwrap_or(i64::MAX)).collect(),
        ..TensorProto::default()
    };
    let ints =
        |ints: &[i64], len| TensorProto { int64_data: ints.to_vec(), ..header(ElementType::Int64, len) };
    let floats = |floats: &[f32], len| TensorProto {
        float_data: floats.to_vec(),
        ..header(ElementType::Float32, len)
    };
    let strings =
        |strings: Vec<Vec<u8>>, len| TensorProto { string_data: strings, ..header(ElementType::String, len) };
    Ok(Cow::Owned(match name {
        "value" => return Ok(Cow::Borrowed(attribute::tensor(attribute)?)),
        "value_int" => ints(&[int(attribute)?], None),
        "value_ints" => ints(attribute::ints(attribute)?, Some(attribute.ints.len())),
        "value_float" => floats(&[attribute::float(attribute)?], None),
        "value_floats" => floats(attribute::floats(attribute)?, Some(attribute.floats.len())),
        "value_string" => strings(vec![string(attribute)?.to_vec()], None),
        "value_strings" => strings(attribute::strings(attribute)?.to_vec(), Some(attribute.strings.len())),
        "sparse_value" => return Err(GraphError::Sparse { name: name.to_owned() }.into()),
        _ => return Err(unknown(attribute).into()),
    }))
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
        "Identity" => {
            no_attributes(node)?;
            Ok(Op::Identity { input: present(&inputs(node, 1, 1)?, 0)?, output: output(node)? })
        }
        "Add" => {
            // Before version 7, an attribute controlled broadcasting.
            no_attributes(at_least(7, node)?)?;
            let inputs = inputs(node, 2, 2)?;
            Ok(Op::Add { left: present(&inputs, 0)?, right: present(&inputs, 1)?, output: output(node)? })
        }
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
            Some("mode") => {
                let name = String::from_utf8_lossy(string(attribute)?);
                mode = name.parse().map_err(|_| EvalError::Mode { mode: name.into_owned() })?;
            }
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

fn constant<'m>(node: &Node<'m>) -> Result<Op<'m>, OnnxError> {
    inputs(node, 0, 0)?;
    let &[attribute] = attributes(node)?.as_slice() else {
        return Err(EvalError::ConstantAttributes { got: node.proto().attribute.len() }.into());
    };
    let name = attribute.name.as_deref().unwrap_or_default();
    Ok(Op::Constant { value: constant_tensor(name, attribute)?.into(), output: output(node)? })
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
