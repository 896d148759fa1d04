//! Which `GroupQueryAttention` nodes kvscatter's plugin takes in ONNX Runtime.

use kvscatter_attention::{AttributeValue, Declared, GroupQuery, NotTaken};
use kvscatter_onnx::{Graph, Node, NodeLabel};

/// The `GroupQueryAttention` nodes of a model, and those of them that the plugin does not take.
pub(super) struct Coverage {
    /// The number of nodes, which is not 0.
    pub(super) nodes: usize,
    /// The nodes that the plugin leaves to ONNX Runtime's own kernel, and why.
    pub(super) left: Vec<(NodeLabel, NotTaken)>,
}

impl Coverage {
    /// Reads the nodes of a graph, if it has any.
    pub(super) fn read(graph: &Graph<'_>) -> Option<Self> {
        let is_one = |node: &&Node<'_>| {
            (node.domain(), node.op_type(), node.is_function())
                == (GroupQuery::DOMAIN, GroupQuery::NAME, false)
        };
        let nodes: Vec<_> = graph.nodes().iter().filter(is_one).collect();
        let left = nodes.iter().filter_map(|node| Some((node.label(), declaration(graph, node).err()?)));
        (!nodes.is_empty()).then(|| Self { nodes: nodes.len(), left: left.collect() })
    }

    /// Returns the number of nodes that the plugin takes.
    pub(super) fn in_plugin(&self) -> usize {
        self.nodes.saturating_sub(self.left.len())
    }
}

fn declaration(graph: &Graph<'_>, node: &Node<'_>) -> Result<GroupQuery, NotTaken> {
    let names = node.proto().attribute.iter().map(|attribute| attribute.name.as_deref().unwrap_or_default());
    let inputs = node.inputs().map(|input| match input {
        None => Declared::Absent,
        Some(value) => graph.element(value).map_or(Declared::Unknown, Declared::Of),
    });
    let outputs = (0..GroupQuery::OUTPUTS.len()).map(|slot| node.output(slot).is_some());
    GroupQuery::read(
        names.map(|name| (name, value(node, name))),
        &inputs.collect::<Vec<_>>(),
        &outputs.collect::<Vec<_>>(),
    )
}

/// Returns the value of an attribute that the node has.
fn value<'m>(node: &Node<'m>, name: &str) -> AttributeValue<'m> {
    let text = || str::from_utf8(node.string(name).ok().flatten()?).ok();
    match (node.int(name), node.float(name)) {
        (Ok(Some(value)), _) => AttributeValue::Int(value),
        (_, Ok(Some(value))) => AttributeValue::Float(value),
        _ => text().map_or(AttributeValue::Other, AttributeValue::String),
    }
}
