//! Tests when a cache is written in place, when it is not, and the reasons.

use kvscatter::ElementType::Int8;
use kvscatter_onnx::internal::eval::{Evaluation, Evaluator, Feed, NotInPlace, Outcome, Placement, Use};
use kvscatter_onnx::internal::tensor_proto;
use kvscatter_onnx::{Data, EvalError, Model, OnnxError, Tensor};

use crate::support::{assert_refused, bytes, graph_mut, parsed};

/// Creates a graph with a cache `x` and an update `u`, which every `TensorScatter` writes at slot 0.
fn graph(nodes: &str, outputs: &str) -> Model {
    let nodes = nodes.replace("u)", "u) {axis=1}");
    parsed("x: int8[1, 4], u: int8[1, 1]", &nodes, &format!("{outputs}: int8[1, 4]"))
}

fn cache() -> Tensor {
    bytes(Int8, &[1, 4], &[1, 2, 3, 4])
}

fn run(model: &Model, cache: Feed<'_>, placement: Placement) -> Result<Evaluation, OnnxError> {
    let update = bytes(Int8, &[1, 1], &[9]);
    let feeds = [("x", cache), ("u", Feed::Borrowed(&update))].into();
    Evaluator::new(model)?.run(feeds, placement)
}

/// Runs a model on a donated cache. Returns the reason why each `TensorScatter` copied, or `None` if it wrote
/// in place.
fn reasons(model: &Model) -> Vec<Option<NotInPlace>> {
    let done = run(model, Feed::Donated(cache()), Placement::Auto).unwrap();
    let reason = |outcome: &Outcome| match outcome {
        Outcome::InPlace { past_address, present_address } => {
            assert_eq!(past_address, present_address);
            Some(None)
        }
        Outcome::Copied { reason } => Some(Some(reason.clone())),
        Outcome::Alias | Outcome::Constant | Outcome::Computed => None,
    };
    done.report.nodes.iter().filter_map(|node| reason(&node.outcome)).collect()
}

fn used_later_by(reasons: &[Option<NotInPlace>], value: &str, node: Option<usize>) -> bool {
    let [Some(NotInPlace::UsedLater { value: got, by }), ..] = reasons else { return false };
    let by = match by {
        Use::Node(label) => Some(label.index),
        Use::GraphOutput => None,
    };
    &**got == value && by == node
}

#[test]
fn through_identity_and_one_write_after_another() {
    let nodes = "b = TensorScatter(Identity(x), u); d = TensorScatter(Identity(b), u); y = Identity(d)";
    let model = graph(nodes, "y");
    assert_eq!(reasons(&model), [None, None]);
    let input = cache();
    let Data::Bytes(bytes) = input.data() else { panic!("strings") };
    let address = bytes.as_ptr().addr();
    let done = run(&model, Feed::Donated(input), Placement::InPlace).unwrap();
    let Data::Bytes(bytes) = done.outputs[0].1.data() else { panic!("strings") };
    assert_eq!((bytes.as_slice(), bytes.as_ptr().addr()), ([9, 2, 3, 4].as_slice(), address));
    assert!(done.report.is_in_place());
}

#[test]
fn the_caller_keeps_what_is_not_donated() {
    let model = graph("y = TensorScatter(x, u)", "y");
    let kept = cache();
    let done = run(&model, Feed::Borrowed(&kept), Placement::Auto).unwrap();
    assert_eq!(kept, cache());
    assert!(matches!(
        &done.report.nodes[0].outcome,
        Outcome::Copied { reason: NotInPlace::NotDonated { input } } if &**input == "x"
    ));
    assert_refused!(
        run(&model, Feed::Borrowed(&kept), Placement::InPlace),
        EvalError::NotInPlace { reason } if matches!(**reason, NotInPlace::NotDonated { .. })
    );
    // The evaluation owns the copy that the first write made, so the second write is in place.
    let model = graph("y = TensorScatter(x, u); z = TensorScatter(y, u)", "z");
    let done = run(&model, Feed::Borrowed(&kept), Placement::Auto).unwrap();
    assert!(matches!(done.report.nodes[1].outcome, Outcome::InPlace { .. }));
}

#[test]
fn old_values_that_are_needed_later() {
    let output = graph("y = TensorScatter(x, u)", "y, x");
    assert!(used_later_by(&reasons(&output), "x", None));
    let done = run(&output, Feed::Donated(cache()), Placement::Auto).unwrap();
    assert_eq!(done.outputs[1].1, cache());

    let alias = graph("a = Identity(x); y = TensorScatter(x, u)", "y, a");
    assert!(used_later_by(&reasons(&alias), "a", None));
    assert_refused!(
        run(&alias, Feed::Donated(cache()), Placement::InPlace),
        EvalError::NotInPlace { reason } if matches!(**reason, NotInPlace::UsedLater { .. })
    );

    // There are two writes to one cache. The first must keep the old values, and the second may overwrite
    // them.
    let two = graph("y = TensorScatter(x, u); z = TensorScatter(x, u)", "y, z");
    let reasons = reasons(&two);
    assert!(used_later_by(&reasons, "x", Some(1)) && reasons[1].is_none(), "{reasons:?}");
}

#[test]
fn constants_and_updates_in_the_same_buffer() {
    let mut constant = graph("y = TensorScatter(w, u)", "y");
    graph_mut(&mut constant).initializer = vec![tensor_proto::encode("w", &cache())];
    assert_eq!(reasons(&constant), [Some(NotInPlace::Constant { name: "w".into() })]);

    let itself = graph("a = Identity(x); y = TensorScatter(x, a) {axis=1}", "y");
    assert_eq!(reasons(&itself), [Some(NotInPlace::IsUpdate)]);
    let done = run(&itself, Feed::Donated(cache()), Placement::Auto).unwrap();
    assert_eq!(done.outputs[0].1, cache());
}

#[test]
fn outputs_that_share_a_buffer_are_copied() {
    let model = graph("y = TensorScatter(x, u); z = Identity(y)", "y, z");
    let done = run(&model, Feed::Donated(cache()), Placement::InPlace).unwrap();
    assert!(matches!(done.report.nodes[0].outcome, Outcome::InPlace { .. }));
    assert_eq!(done.outputs[0].1, done.outputs[1].1);
    let copies: Vec<_> =
        done.report.output_copies.iter().map(|copy| (copy.output.as_str(), copy.bytes)).collect();
    assert_eq!(copies, [("z", 4)]);
    assert!(!done.report.is_in_place());
}

#[test]
fn the_functional_form_on_request() {
    let model = graph("y = TensorScatter(x, u)", "y");
    let done = run(&model, Feed::Donated(cache()), Placement::Functional).unwrap();
    assert_eq!(done.report.nodes[0].outcome, Outcome::Copied { reason: NotInPlace::Asked });
}
