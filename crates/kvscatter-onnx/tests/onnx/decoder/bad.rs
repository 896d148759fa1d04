//! Tests graphs that are not decoders, and declarations that cannot be true.

use kvscatter::ElementType;
use kvscatter_onnx::OnnxError;
use kvscatter_onnx::decoder::Decoder;

use super::made::Made;
use crate::support::{assert_refused, int, model, node, string, value};

const FLOAT: ElementType = ElementType::Float32;
const ALL: [&str; 4] = ["batch", "2", "all", "16"];

fn decoder(made: Made) -> Result<usize, OnnxError> {
    let model = made.model();
    Ok(Decoder::of(&model.graph()?)?.caches.len())
}

#[test]
fn no_cache() {
    let x = || value("x", FLOAT, &["n", "16"]);
    let model = model(vec![x()], vec![node("Relu", &["x"], "y")], vec![value("y", FLOAT, &["n", "16"])]);
    assert_refused!(Decoder::of(&model.graph().unwrap()), OnnxError::CacheNone);
    // An output that returns an input unchanged is not a cache.
    let mut relay = crate::support::model(
        vec![value("x", FLOAT, &["b", "2", "s", "16"])],
        vec![node("Identity", &["x"], "y")],
        vec![value("y", FLOAT, &["b", "2", "s", "16"])],
    );
    assert_refused!(Decoder::of(&relay.graph().unwrap()), OnnxError::CacheNone);
    relay.proto_mut().graph.get_or_insert_default().node.clear();
    assert_refused!(relay.graph(), OnnxError::ValueMissing { .. });
}

#[test]
fn a_cache_that_is_not_fed_back() {
    for made in [Made::fixed(), Made::growing(), Made::attention_past(), Made::group_query()] {
        assert_refused!(
            decoder(made.without_output("present_v")),
            OnnxError::CacheNotFedBack { past } if past == "past_v"
        );
    }
    let alone = Made::growing().without_output("present_v").without_output("present_k");
    assert_refused!(decoder(alone), OnnxError::CacheNotFedBack { past } if past == "past_k");
}

#[test]
fn a_present_without_a_past() {
    let made = Made::attention_past().change("y", |node| node.input.truncate(3));
    assert_refused!(decoder(made), OnnxError::CacheNotFed { present } if present == "present_k");
    let made = Made::fixed()
        .reading("past_v", "zeros")
        .before(vec![node("ConstantOfShape", &["shape"], "zeros")])
        .input(value("shape", ElementType::Int64, &["4"]));
    assert_refused!(decoder(made), OnnxError::CacheNotFed { present } if present == "present_v");
}

#[test]
fn sizes_that_contradict_each_other() {
    let made = Made::growing().output(value("present_k", FLOAT, &["batch", "4", "all", "16"]));
    assert_refused!(
        decoder(made),
        OnnxError::DimsDiffer { first, first_axis: 1, first_size: 2, second, second_axis: 1, second_size: 4 }
            if first == "past_k" && second == "present_k"
    );
    let made = Made::fixed().output(value("present_v", FLOAT, &["batch", "2", "128", "16"]));
    assert_refused!(
        decoder(made),
        OnnxError::DimsDiffer { first_axis: 2, first_size: 64, second_size: 128, .. }
    );

    // One symbol has two sizes, each through another name.
    let made = Made::growing().output(value("present_k", FLOAT, &["4", "2", "all", "16"])).output(value(
        "present_v",
        FLOAT,
        &["8", "2", "all", "16"],
    ));
    assert_refused!(
        decoder(made),
        OnnxError::DimsDiffer { first, first_size: 4, second, second_size: 8, .. }
            if first == "present_k" && second == "present_v"
    );
    let made = Made::growing()
        .input(value("past_v", FLOAT, &["samples", "2", "past", "16"]))
        .output(value("present_k", FLOAT, &["4", "2", "all", "16"]))
        .output(value("present_v", FLOAT, &["8", "2", "all", "16"]));
    assert_refused!(decoder(made), OnnxError::DimsDiffer { .. });
}

#[test]
fn a_cache_that_grows_and_does_not() {
    for made in [Made::growing(), Made::attention_past()] {
        let made = made.output(value("present_k", FLOAT, &["batch", "2", "past", "16"]));
        assert_refused!(decoder(made), OnnxError::CacheDoesNotGrow { axis: 2, size, .. } if size == "past");
    }
    // A buffer that past and present may share has one size.
    let made = Made::group_query().output(value("present_k", FLOAT, &["batch", "2", "past", "16"]));
    assert_eq!(decoder(made).unwrap(), 2);
    // Different symbols do not contradict each other.
    assert_eq!(decoder(Made::growing().output(value("present_k", FLOAT, &ALL))).unwrap(), 2);
}

#[test]
fn scatters_that_break_their_own_rules() {
    let made = Made::fixed().change("present_k", |node| node.attribute = vec![string("mode", "diagonal")]);
    assert_refused!(decoder(made), OnnxError::Mode { mode } if mode == "diagonal");
    for axis in [0, -4, 4, -5, i64::MIN] {
        let made = Made::fixed().change("present_k", |node| node.attribute = vec![int("axis", axis)]);
        assert_refused!(decoder(made), OnnxError::Operator(_));
    }
    let mut old = Made::fixed().model();
    old.proto_mut().opset_import[0].version = Some(23);
    assert_refused!(Decoder::of(&old.graph().unwrap()), OnnxError::OpsetTooOld { version: 23, min: 24 });
}

#[test]
fn ranks_that_no_writer_takes() {
    for made in [Made::attention_past(), Made::group_query()] {
        let made = made.input(value("past_k", FLOAT, &["batch", "past", "32"]));
        assert_refused!(decoder(made), OnnxError::CacheRank { name, rank: 3, expected: "4" } if name == "past_k");
    }
    let made = Made::fixed().input(value("past_k", FLOAT, &["64"]));
    assert_refused!(decoder(made), OnnxError::CacheRank { rank: 1, expected: "2 or more", .. });
    let made = Made::growing().change("present_k", |node| node.attribute = vec![int("axis", 4)]);
    assert_refused!(
        decoder(made),
        OnnxError::Operator(kvscatter::Error::AxisOutOfRange { axis: 4, rank: 4 })
    );
}

#[test]
fn shapes_that_are_not_declared() {
    let undeclared = |name: &str| {
        let mut value = value(name, FLOAT, &[]);
        if let Some(kvscatter_onnx::proto::type_proto::Value::TensorType(tensor)) =
            &mut value.r#type.get_or_insert_default().value
        {
            tensor.shape = None.into();
        }
        value
    };
    // The operator or the other end determines the number of dimensions.
    let both = |made: Made| made.input(undeclared("past_k")).output(undeclared("present_k"));
    assert_eq!(decoder(both(Made::attention_past())).unwrap(), 2);
    assert_eq!(decoder(Made::growing().input(undeclared("past_k"))).unwrap(), 2);
    for made in [Made::growing(), Made::fixed()] {
        assert_refused!(decoder(both(made)), OnnxError::CacheShapeMissing { name } if name == "past_k");
    }
}
