//! Tests the extraction of the nodes between past and present from real exports.

use kvscatter_onnx::Model;
use kvscatter_onnx::internal::{CachePath, CachePathError};

use crate::support::{Nodes, first, graph_mut, insert, load};

fn paths(model: &Model) -> Vec<CachePath> {
    CachePath::from_model(model).unwrap().into_iter().map(Result::unwrap).collect()
}

fn operators(path: &CachePath) -> Vec<String> {
    path.model.proto().graph.node.iter().map(|node| node.op_type.clone().unwrap()).collect()
}

#[test]
fn a_growing_cache_is_a_concat_of_two_inputs() {
    let paths = paths(&load("optimum-llama"));
    assert_eq!(paths.len(), 4);
    for path in &paths {
        assert_eq!(operators(path), ["Concat"]);
        assert!(path.grows && path.write_indices.is_empty() && path.updates.len() == 1, "{path:?}");
        assert_eq!(path.model.graph().unwrap().input_names().len(), 2);
        assert_eq!(path.axis, 2);
    }
}

#[test]
fn a_static_cache_is_a_scatter_of_three_inputs() {
    let paths = paths(&load("mobius-llama-static"));
    assert_eq!(paths.len(), 4);
    for path in &paths {
        assert_eq!(operators(path), ["TensorScatter"]);
        assert_eq!((path.grows, path.axis), (false, 1));
        assert_eq!(path.write_indices, ["write_indices"]);
        assert_eq!(path.model.graph().unwrap().input_names().len(), 3);
    }
}

#[test]
fn attention_that_joins_past_and_new_rows_itself_has_no_path() {
    for (name, operator) in
        [("mobius-llama-dynamic", "Attention"), ("genai-llama-gqa", "GroupQueryAttention")]
    {
        let paths = CachePath::from_model(&load(name)).unwrap();
        assert_eq!(paths.len(), 4);
        for path in paths {
            let Err(CachePathError::Node { node }) = path else { panic!("{path:?}") };
            assert_eq!(node.op_type, operator);
        }
    }
}

/// The cache is read through two nodes that undo each other, and scaled after the write. It is therefore
/// copied.
#[test]
fn nodes_between_past_and_present_are_in_the_path() {
    let mut model = load("mobius-llama-static");
    let graph = graph_mut(&mut model);
    let place = first(graph, "TensorScatter");
    let past = std::mem::replace(&mut graph.node[place].input[0], "twice".to_owned());
    let present = std::mem::replace(&mut graph.node[place].output[0], "unscaled".to_owned());
    let one = graph.initializer.iter().find(|tensor| tensor.dims == [64]).unwrap().name.clone().unwrap();
    insert(&mut model, place + 1, Nodes::parse(&format!("{present} = Mul({one}, unscaled)")));
    insert(&mut model, place, Nodes::parse(&format!("twice = Neg(Neg({past}))")));
    let paths = paths(&model);
    assert_eq!(operators(&paths[0]), ["Neg", "Neg", "TensorScatter", "Mul"]);
    assert_eq!(paths[0].model.proto().graph.initializer.len(), 1);
    assert_eq!(paths[0].present, present);
    assert_eq!(operators(&paths[1]), ["TensorScatter"]);
    assert!(paths.iter().all(|path| path.model.graph().is_ok()));
}
