//! Tests that attention stays as it is if a parameter of its nodes depends on the length.
//!
//! The proof of one node evaluates short texts alone.

use kvscatter_onnx::convert::{ConvertRefusal, KeptForm, KeptReason, convert};

use super::fusion::{Form, converted, kept};
use crate::support::assert_refused;

const SLOTS: usize = 16;

/// Returns whether a position or a length is between 8 and 13. A comparison of both decoders has such a step, and a
/// proof does not.
fn between(value: &str) -> String {
    format!("And(Less([8], {value}), Less({value}, [13]))")
}

const LAST: &str = "ReduceMax(position_ids) {keepdims=0}";

/// Repeats all heads in a row where a condition is true, so that neighbouring queries read different heads.
fn tiled(is_other: &str) -> String {
    let times = format!("Where({is_other}, [1, 2, 1, 1, 1], [1, 1, 2, 1, 1])");
    format!("Reshape(Tile(Unsqueeze($, [2]), {times}), [0, 6, -1, 4])")
}

fn expanded(is_other: &str) -> String {
    let times = format!("Where({is_other}, [1, 2, 1, 1, 1], [1, 1, 2, 1, 1])");
    format!("Reshape(Expand(Unsqueeze($, Where({is_other}, [1], [2])), {times}), [0, 6, -1, 4])")
}

const SINK: &str = "Concat($, Expand(0.9[1, 6, 1, 1], Concat(Shape($) {end=3}, [1]) {axis=0})) {axis=-1}";

#[test]
fn parameters_that_depend_on_the_position_stay() {
    let is_other = between(LAST);
    let [tile, expand] = [tiled(&is_other), expanded(&is_other)];
    let first = format!(
        "is_other = {is_other}; Slice($, Cast(is_other) {{to=int64}}, Where(is_other, [99], [-1]), [-1])"
    );
    for (what, form) in [
        ("repetitions", Form { repeat: &tile, ..Form::grouped() }),
        ("axes", Form { repeat: &expand, ..Form::grouped() }),
        ("the first slot", Form { masked: SINK, weights: &first, ..Form::plain() }),
    ] {
        let reason = kept(&form);
        assert!(matches!(reason, KeptReason::Form(KeptForm::LengthDependence)), "{what}: {reason}");
    }
}

#[test]
fn parameters_that_depend_on_the_length_are_refused() {
    for is_other in [between("total"), "Less([12], total)".to_owned()] {
        let [tile, expand] = [tiled(&is_other), expanded(&is_other)];
        for repeat in [&tile, &expand] {
            let model = Form { repeat, ..Form::grouped() }.model();
            assert_refused!(convert(&model, SLOTS), ConvertRefusal::LengthDependence { .. });
        }
    }
    let axes = format!("Where({}, [2], [-1])", between(LAST));
    let masked = format!("all = {SINK}; Sub(all, ReduceMax(all, {axes}))");
    let form = Form { masked: &masked, weights: "Slice($, [0], [-1], [-1])", ..Form::plain() };
    assert_refused!(convert(&form.model(), SLOTS), ConvertRefusal::LengthDependence { .. });
}

/// Thousands of layers may share such a node.
#[test]
fn a_node_with_very_many_inputs_stays() {
    let guard = |reads: usize| {
        let many = vec!["queries"; reads].join(", ");
        format!("Where(IsNaN($), ReduceMax(Max({many})) {{keepdims=0}}, $)")
    };
    let [few, many] = [guard(50), guard(5000)];
    assert_eq!(converted(&Form { weights: &few, ..Form::plain() }).report.attention.fused, 1);
    kept(&Form { weights: &many, ..Form::plain() });
}
