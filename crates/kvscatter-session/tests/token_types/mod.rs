//! A decoder with an input whose meaning the graph does not show.

use kvscatter_onnx::internal::proto::{GraphProto, NodeProto, ValueInfoProto};

/// Adds the input `token_type_ids`. It picks rows of the embeddings, as the tokens do, and the rows are added.
pub(crate) fn add_token_types(graph: &mut GraphProto) {
    let at = graph.node.iter().position(|node| node.input.iter().any(|name| name == "input_ids")).unwrap();
    let mut rows = graph.node[at].clone();
    let embedded = std::mem::replace(&mut graph.node[at].output[0], "of_tokens".to_owned());
    (rows.name, rows.input[1], rows.output[0]) = (None, "token_type_ids".to_owned(), "of_types".to_owned());
    let sum = NodeProto::new("Add", &["of_tokens", "of_types"], &[&embedded]);
    graph.node.splice(at + 1..at + 1, [rows, sum]);
    let tokens = graph.input.iter().find(|input| input.name.as_deref() == Some("input_ids")).unwrap();
    graph.input.push(ValueInfoProto { name: Some("token_type_ids".to_owned()), ..tokens.clone() });
}
