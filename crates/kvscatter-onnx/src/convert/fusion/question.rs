//! Everything that a proof depends on. Equal layers of a model ask equal questions.

use std::collections::{BTreeMap, BTreeSet};

use super::region::Region;
use super::{KeptReason, Operands};
use crate::fold::{Budget, Fold, MAX_VALUES, Value};
use crate::proto::NodeProto;

/// Whether the nodes of a region compute the same as an `Attention` node. The names of values are numbers in
/// the order in which the values appear, and the nodes have no names.
#[derive(Debug, PartialEq)]
pub(super) struct Question {
    pub(super) nodes: Vec<NodeProto>,
    pub(super) operands: Operands,
    /// What the nodes read, on each probe. Of queries, keys and values, only the shapes are given.
    pub(super) given: Vec<BTreeMap<String, Value>>,
}

impl Question {
    /// Creates the question about a region. The folds are evaluations of the model on the probes.
    ///
    /// # Errors
    /// Returns [`KeptReason::Unknown`] if a value that the nodes read is not known or too large, and errors of
    /// the evaluation.
    pub(super) fn new(
        region: &Region<'_>,
        operands: &Operands,
        folds: &mut [Fold<'_>],
        budget: &Budget,
    ) -> Result<Self, KeptReason> {
        let nodes = &region.nodes;
        let mut names = Numbering::new(nodes.iter().any(|node| {
            node.proto()
                .attribute
                .iter()
                .any(|attribute| attribute.g.is_set() || !attribute.graphs.is_empty())
        }));
        let Operands { queries, keys, values, output, sinks, .. } = operands;
        let random = [queries, keys, values].map(String::as_str);
        let made: BTreeSet<_> =
            nodes.iter().flat_map(|node| &node.proto().output).map(String::as_str).collect();
        let read: BTreeSet<_> = nodes
            .iter()
            .flat_map(|node| node.reads())
            .filter(|value| !made.contains(value) && !random.contains(value) && !operands.is_sink(value))
            .collect();
        let numbered = Operands {
            queries: names.new_name(queries),
            keys: names.new_name(keys),
            values: names.new_name(values),
            output: names.new_name(output),
            sinks: sinks.as_ref().map(|sinks| sinks.moderate(names.new_name(&sinks.value))),
            ..operands.clone()
        };
        // The proof gives the sinks other numbers, so nothing may compute them.
        let nodes = nodes.iter().filter(|node| !operands.makes_sinks(node));
        let nodes = nodes.map(|node| names.renamed(node.proto())).collect();
        let mut given = Vec::new();
        for fold in folds {
            let mut of_probe = BTreeMap::new();
            for value in random {
                let known = fold.value(value)?;
                if known.len() > MAX_VALUES {
                    return Err(KeptReason::Unknown { value: value.to_owned() });
                }
                of_probe.insert(names.new_name(value), Value::shaped(known.element, known.shape.clone())?);
            }
            if let (Some(sinks), Some(moderate)) = (sinks, &numbered.sinks) {
                let known = fold.value(&sinks.value)?;
                of_probe.insert(names.new_name(&sinks.value), moderate.spread(known.element, &known.shape)?);
            }
            for &value in &read {
                let known = fold.known(value)?.filter(|known| known.data.is_some());
                let known = known.ok_or_else(|| KeptReason::Unknown { value: value.to_owned() })?;
                budget.charge_values(known)?;
                of_probe.insert(names.new_name(value), known.clone());
            }
            given.push(of_probe);
        }
        Ok(Self { nodes, operands: numbered, given })
    }
}

/// Numbers values in the order in which they appear.
struct Numbering {
    numbers: BTreeMap<String, String>,
    /// Whether values keep their names, because bodies of nodes capture them.
    are_kept: bool,
}

impl Numbering {
    fn new(are_kept: bool) -> Self {
        Self { numbers: BTreeMap::new(), are_kept }
    }

    /// Returns the new name of a value. An input or output that is left out has none.
    fn new_name(&mut self, name: &str) -> String {
        if self.are_kept || name.is_empty() {
            return name.to_owned();
        }
        let next = self.numbers.len();
        self.numbers.entry(name.to_owned()).or_insert_with(|| next.to_string()).clone()
    }

    fn renamed(&mut self, node: &NodeProto) -> NodeProto {
        NodeProto {
            input: node.input.iter().map(|name| self.new_name(name)).collect(),
            output: node.output.iter().map(|name| self.new_name(name)).collect(),
            op_type: node.op_type.clone(),
            domain: node.domain.clone(),
            overload: node.overload.clone(),
            attribute: node.attribute.clone(),
            ..NodeProto::default()
        }
    }
}
