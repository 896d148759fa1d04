//! Picks the rows of rotary tables before the nodes that use them.
//!
//! `RotaryEmbedding` takes whole tables and the positions of tokens. tract reads its positions only if they are
//! int64, and the sum of `write_indices` and a `Range` over a dimension has tract's type for dimensions.
//! `Gather` accepts both types, and the node then takes one row for each token. Layers share the rows.

use std::collections::{BTreeMap, BTreeSet};

use tract_onnx::pb::{GraphProto, NodeProto};

use crate::error::is_onnx;

/// The indices of the tables and of the positions among the operator's inputs.
const TABLES: std::ops::Range<usize> = 1..3;
const POSITIONS: usize = 3;

/// Replaces the tables and positions of every `RotaryEmbedding` by the rows at the positions.
pub(super) fn pick_rows(graph: &mut GraphProto) {
    let outputs = graph.node.iter().flat_map(|node| &node.output);
    let inputs = graph.input.iter().map(|input| &input.name);
    let initializers = graph.initializer.iter().map(|tensor| &tensor.name);
    let names: BTreeSet<String> = outputs.chain(inputs).chain(initializers).cloned().collect();
    let mut unused =
        (0_usize..).map(|number| format!("rotary_rows_{number}")).filter(|name| !names.contains(name));
    let mut picked: BTreeMap<(String, String), String> = BTreeMap::new();
    let mut nodes = Vec::with_capacity(graph.node.len());
    for mut node in std::mem::take(&mut graph.node) {
        let positions = node.input.get(POSITIONS).filter(|name| !name.is_empty()).cloned();
        let positions = positions.filter(|_| node.op_type == "RotaryEmbedding" && is_onnx(&node));
        for positions in positions.iter() {
            for table in node.input.iter_mut().take(TABLES.end).skip(TABLES.start) {
                let rows = picked.entry((table.clone(), positions.clone())).or_insert_with(|| {
                    let rows = unused.next().unwrap_or_default();
                    nodes.push(gather(table, positions, &rows));
                    rows
                });
                table.clone_from(rows);
            }
            node.input.truncate(POSITIONS);
        }
        nodes.push(node);
    }
    graph.node = nodes;
}

fn gather(table: &str, positions: &str, rows: &str) -> NodeProto {
    NodeProto {
        op_type: "Gather".to_owned(),
        name: rows.to_owned(),
        input: vec![table.to_owned(), positions.to_owned()],
        output: vec![rows.to_owned()],
        ..NodeProto::default()
    }
}

#[cfg(test)]
mod tests {
    use tract_onnx::pb::{GraphProto, NodeProto};

    use super::pick_rows;

    #[test]
    fn layers_share_the_rows_of_their_positions() {
        let node = |domain: &str, inputs: &[&str]| NodeProto {
            op_type: "RotaryEmbedding".to_owned(),
            domain: domain.to_owned(),
            input: inputs.iter().map(|&input| input.to_owned()).collect(),
            output: vec!["rotary_rows_0".to_owned()],
            ..NodeProto::default()
        };
        let nodes = vec![
            node("", &["q", "cos", "sin", "positions"]),
            node("", &["k", "cos", "sin", "positions"]),
            node("", &["x", "cos", "sin"]),
            node("com.microsoft", &["x", "positions", "cos", "sin"]),
        ];
        let mut graph = GraphProto { node: nodes, ..GraphProto::default() };
        pick_rows(&mut graph);
        let after: Vec<_> = graph.node.iter().map(|node| node.input.join(" ")).collect();
        let expected = [
            "cos positions",
            "sin positions",
            "q rotary_rows_1 rotary_rows_2",
            "k rotary_rows_1 rotary_rows_2",
            "x cos sin",
            "x positions cos sin",
        ];
        assert_eq!(after, expected);
    }
}
