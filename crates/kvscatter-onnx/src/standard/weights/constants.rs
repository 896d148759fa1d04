//! The constants of a graph, and the weights that are made of them.

use std::collections::BTreeMap;

use kvscatter::ElementType;

use crate::edit::Editor;
use crate::proto::TensorProto;
use crate::standard::node::{Replacing, no_form};
use crate::weights::{self, ComputedWeight, Transposition};
use crate::{Data, Graph, Node, OnnxError, external, tensor_proto};

/// The largest number of nodes between a weight and the node that reads it.
const MAX_STEPS: usize = 16;

/// A tensor in the model that no caller can replace.
#[derive(Clone, Copy)]
pub(super) struct Constant<'m> {
    pub(super) message: &'m TensorProto,
    pub(super) element: ElementType,
    /// The number of bytes of its values.
    pub(super) bytes: usize,
}

/// The constants of a graph by name.
pub(super) struct Constants<'g, 'm> {
    graph: &'g Graph<'m>,
    /// The nodes that only change the shape of a tensor, by the name of their output.
    reshapes: BTreeMap<&'m str, &'g Node<'m>>,
}

impl<'g, 'm> Constants<'g, 'm> {
    pub(super) fn of(graph: &'g Graph<'m>) -> Self {
        let is_reshape = |node: &&Node<'m>| {
            ["Constant", "Identity", "Reshape", "Squeeze", "Unsqueeze", "Flatten"]
                .iter()
                .any(|it| node.is(it))
        };
        let reshapes = graph.nodes().iter().filter(is_reshape);
        Self { graph, reshapes: reshapes.filter_map(|node| Some((node.output(0)?, node))).collect() }
    }

    /// Returns the constant at an input of a node. The shape may have been changed on the way.
    ///
    /// # Errors
    /// Returns [`OnnxError::NoStandardForm`] if the input is not a constant.
    pub(super) fn at(&self, it: &Replacing<'_>, slot: usize, name: &str) -> Result<Constant<'m>, OnnxError> {
        let message = self.source(it.input(slot)?);
        let message = message.ok_or_else(|| no_form(format!("{name} that is not a constant")))?;
        let (element, _, bytes) = tensor_proto::extent(message)
            .map_err(|error| error.in_tensor(message.name.as_deref().unwrap_or_default()))?;
        Ok(Constant { message, element, bytes })
    }

    fn source(&self, value: &str) -> Option<&'m TensorProto> {
        let mut value = value;
        for _ in 0..MAX_STEPS {
            if self.graph.input_names().any(|input| input == value) {
                return None;
            }
            if let Some(&tensor) = self.graph.initializers().get(value) {
                return Some(tensor);
            }
            let node = self.reshapes.get(value)?;
            if node.is("Constant") {
                return node.attribute("value")?.t.as_option();
            }
            value = node.input(0)?;
        }
        None
    }
}

/// The graph in which nodes are replaced, and the new weights.
pub(super) struct NewWeights<'e, 'p> {
    pub(super) editor: &'e mut Editor<'p>,
    /// Whether the folder of the model's external data is known.
    pub(super) has_folder: bool,
    pub(super) computed: &'e mut BTreeMap<String, ComputedWeight>,
    /// The names of the new weights, which several nodes may share.
    pub(super) made: BTreeMap<(String, String), String>,
}

impl NewWeights<'_, '_> {
    /// Adds the transposed values of a constant as an initializer of this type, or reuses the same weight.
    pub(super) fn transposed(
        &mut self,
        constant: &Constant<'_>,
        it: Transposition,
        element: ElementType,
    ) -> Result<String, OnnxError> {
        let name = constant.message.name.as_deref().unwrap_or_default();
        let key = (name.to_owned(), format!("{element} {it:?}"));
        if let Some(made) = self.made.get(&key).filter(|_| !name.is_empty()) {
            return Ok(made.clone());
        }
        let dims = [it.columns(), it.rows()].map(|size| i64::try_from(size).unwrap_or(i64::MAX));
        let mut message = TensorProto {
            data_type: Some(element.onnx_code()),
            dims: dims.to_vec(),
            ..TensorProto::default()
        };
        let computed = ComputedWeight::new(constant.message, it);
        if computed.is_none() {
            let tensor = tensor_proto::decode(constant.message.clone(), None)?;
            let Data::Bytes(bytes) = tensor.data() else { return Err(OnnxError::ExternalStrings) };
            let values = weights::transposed(bytes, &it).map_err(|error| error.in_tensor(name))?;
            message.raw_data = Some(values);
        } else if !self.has_folder {
            let location = external::location(&constant.message.external_data)?.to_owned();
            return Err(OnnxError::ExternalWithoutFolder { location }.in_tensor(name));
        }
        let hint = if name.is_empty() { "weight" } else { name };
        let made = self.editor.initializer(&format!("{hint}_transposed"), message);
        if let Some(computed) = computed {
            self.computed.insert(made.clone(), computed);
        }
        self.made.insert(key, made.clone());
        Ok(made)
    }
}

/// Returns an attribute that must be a positive number.
pub(super) fn positive(it: &Replacing<'_>, name: &str, default: i64) -> Result<usize, OnnxError> {
    let value = it.int(name, default)?;
    let size = usize::try_from(value).ok().filter(|size| *size > 0);
    size.ok_or_else(|| no_form(format!("{name} = {value}")))
}
