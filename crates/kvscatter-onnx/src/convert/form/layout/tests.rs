//! Tests that wrong nodes around a cache are not proved.

use super::{OtherLayout, proof};
use crate::Model;
use crate::decoder::Decoder;
use crate::edit::Editor;
use crate::prove::Prover;
use crate::support::{Nodes, graph_mut, parsed};

/// Creates a decoder of one cache with a head after the tokens, and forms it. `after` changes the formed nodes.
fn proves(after: impl Fn(&mut Model)) -> bool {
    let exported = parsed(
        "ids: int64[batch, new], past: float[batch, past, 6, 4]",
        "row = Unsqueeze(Gather(0.5[16, 4], ids), [2])
        rows = Expand(row, [1, 1, 6, 1])
        present = Concat(past, rows) {axis=1}
        y = ReduceSum(present)",
        "y: float[], present: float[batch, all, 6, 4]",
    );
    let graph = exported.graph().unwrap();
    let decoder = Decoder::from_graph(&graph).unwrap();
    let layout = OtherLayout::find(&decoder.caches[0], &graph).unwrap();
    let mut formed = exported.clone();
    let mut editor = Editor::new(formed.proto_mut()).unwrap();
    let name = layout.form(graph.inputs().unwrap()[0].shape.as_ref().unwrap()[0], &mut editor).unwrap();
    editor.finish().unwrap();
    after(&mut formed);
    let formed_graph = formed.graph().unwrap();
    proof::prove(&layout.relaid(&name), &formed, &formed_graph, &mut Prover::new(0)).is_ok()
}

#[test]
fn nodes_that_move_rows_elsewhere_are_not_proved() {
    assert!(proves(|_| ()));
    let replaced = |old: &str, new: &str| {
        let nodes = Nodes::parse(new).nodes;
        proves(|model| {
            let mut found = 0;
            for node in graph_mut(model).node.iter_mut().filter(|node| node.op_type.as_deref() == Some(old)) {
                node.attribute.clone_from(&nodes[0].attribute);
                found += 1;
            }
            assert!(found > 0, "{old}");
        })
    };
    assert!(!replaced("Transpose", "y = Transpose(x) {perm=[0, 1, 2, 3]}"));
    assert!(!replaced("Transpose", "y = Transpose(x) {perm=[0, 2, 3, 1]}"));
    assert!(!replaced("Concat", "y = Concat(x) {axis=1}"));
}
