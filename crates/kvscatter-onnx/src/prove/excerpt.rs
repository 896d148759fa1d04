//! Some nodes of a graph as a model whose names do not depend on the layer.

use std::collections::{BTreeMap, BTreeSet};

use super::untyped_model;
use crate::names;
use crate::proto::{ModelProto, NodeProto, OperatorSetIdProto};

/// A model of some nodes of a graph. The models of equal layers are equal.
#[derive(Debug)]
pub(crate) struct Excerpt<'m> {
    pub(crate) model: ModelProto,
    /// The values that the nodes read and do not compute, with their names in the model.
    pub(crate) inputs: BTreeMap<&'m str, String>,
}

impl<'m> Excerpt<'m> {
    /// Copies nodes, in their order, into a model that returns these outputs.
    ///
    /// The new names of some values are given, and the first one of a value counts. Other values get numbers in the
    /// order in which they appear.
    pub(crate) fn new(
        nodes: &[&'m NodeProto],
        outputs: &[&'m str],
        new_names: impl IntoIterator<Item = (&'m str, String)>,
        opset_import: Vec<OperatorSetIdProto>,
    ) -> Self {
        let mut names = BTreeMap::from([("", String::new())]);
        for (value, name) in new_names {
            names.entry(value).or_insert(name);
        }
        for value in nodes.iter().flat_map(|node| node.input.iter().chain(&node.output)) {
            let next = names.len();
            names.entry(value).or_insert_with(|| next.to_string());
        }
        let new_name = |value: &str| names.get(value).cloned().unwrap_or_default();
        let new_names = |values: &[String]| values.iter().map(|value| new_name(value)).collect();
        let copy = |node: &&NodeProto| NodeProto {
            input: new_names(&node.input),
            output: new_names(&node.output),
            op_type: node.op_type.clone(),
            domain: node.domain.clone(),
            overload: node.overload.clone(),
            attribute: node.attribute.clone(),
            ..NodeProto::default()
        };
        let inputs = read_from_outside(nodes).into_iter().map(|value| (value, new_name(value))).collect();
        let declared: BTreeSet<&String> = BTreeMap::values(&inputs).collect();
        let declared = declared.into_iter().map(String::as_str);
        let outputs: Vec<_> = outputs.iter().map(|value| new_name(value)).collect();
        let outputs = outputs.iter().map(String::as_str);
        let model = untyped_model(nodes.iter().map(copy).collect(), declared, outputs, opset_import);
        Self { model, inputs }
    }
}

/// Returns the values that nodes read and do not compute.
fn read_from_outside<'m>(nodes: &[&'m NodeProto]) -> BTreeSet<&'m str> {
    let computed: BTreeSet<&str> = nodes.iter().flat_map(|node| &node.output).map(String::as_str).collect();
    let read = nodes.iter().flat_map(|node| names::reads(node));
    read.filter(|value| !computed.contains(value)).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::Excerpt;
    use crate::proto::ModelProto;
    use crate::support::Nodes;

    /// Returns the excerpt of nodes from `x` to `y`.
    fn excerpt(nodes: &str) -> (ModelProto, BTreeMap<String, String>) {
        let nodes = Nodes::parse(nodes).nodes;
        let nodes: Vec<_> = nodes.iter().collect();
        let new_names = [("x", "input"), ("y", "output"), ("x", "another name")];
        let new_names = new_names.map(|(value, name)| (value, name.to_owned()));
        let excerpt = Excerpt::new(&nodes, &["y"], new_names, Vec::new());
        let inputs = excerpt.inputs.into_iter().map(|(value, name)| (value.to_owned(), name));
        (excerpt.model, inputs.collect())
    }

    #[test]
    fn layers_with_other_names_have_equal_models() {
        let (model, inputs) = excerpt("a = Neg(x); b = Clip(a, _, limit); y = Add(b, a)");
        let expected = [("limit", "4"), ("x", "input")];
        assert_eq!(inputs, expected.map(|(value, name)| (value.to_owned(), name.to_owned())).into());
        let graph = &model.graph;
        assert_eq!(
            graph.input.iter().filter_map(|value| value.name.as_deref()).collect::<Vec<_>>(),
            ["4", "input"]
        );
        assert_eq!(
            graph.output.iter().filter_map(|value| value.name.as_deref()).collect::<Vec<_>>(),
            ["output"]
        );
        assert_eq!(graph.node.first().map(|node| node.name.clone()), Some(None));
        assert_eq!(model, excerpt("b = Neg(x); limit = Clip(b, _, a); y = Add(limit, b)").0);
        assert_ne!(model, excerpt("a = Neg(x); b = Clip(a, _, limit); y = Add(a, b)").0);
    }
}
