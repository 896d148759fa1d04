//! Tests graphs that are not decoders, and declarations that cannot be true.

use kvscatter_onnx::decoder::Decoder;
use kvscatter_onnx::{DecoderError, EvalError, GraphError, OnnxError};

use super::made::Made;
use crate::support::{assert_refused, graph_mut, parsed, values};

fn decoder(made: Made) -> Result<usize, OnnxError> {
    let model = made.model();
    Ok(Decoder::from_graph(&model.graph()?)?.caches.len())
}

#[test]
fn no_cache() {
    let model = parsed("x: float[n, 16]", "y = Relu(x)", "y: float[n, 16]");
    assert_refused!(Decoder::from_graph(&model.graph().unwrap()), DecoderError::CacheNone);
    // An output that returns an input unchanged is not a cache.
    let mut relay = parsed("x: float[b, 2, s, 16]", "y = Identity(x)", "y: float[b, 2, s, 16]");
    assert_refused!(Decoder::from_graph(&relay.graph().unwrap()), DecoderError::CacheNone);
    graph_mut(&mut relay).node.clear();
    assert_refused!(relay.graph(), GraphError::ValueMissing { .. });
}

#[test]
fn a_cache_that_is_not_fed_back() {
    for made in [Made::fixed(), Made::growing(), Made::attention_past(), Made::group_query()] {
        assert_refused!(
            decoder(made.without_output("present_v")),
            DecoderError::CacheNotFedBack { past } if past == "past_v"
        );
    }
    let alone = Made::growing().without_output("present_v").without_output("present_k");
    assert_refused!(decoder(alone), DecoderError::CacheNotFedBack { past } if past == "past_k");
}

#[test]
fn a_present_without_a_past() {
    let made = Made::attention_past().edit(", _, past_k, past_v", "");
    assert_refused!(decoder(made), DecoderError::CacheNotFed { present } if present == "present_k");
    // A long chain is not followed to its end.
    let chain = format!("({}past_k{}", "Neg(".repeat(100), ")".repeat(100));
    let made = Made::fixed().edit("(past_k", &chain);
    assert_refused!(decoder(made), DecoderError::CacheNotFed { present } if present == "present_k");
    let zeros = Made::fixed().edit("(past_v", "(ConstantOfShape(shape)").input("shape: int64[4]");
    assert_refused!(decoder(zeros), DecoderError::CacheNotFed { present } if present == "present_v");
}

#[test]
fn sizes_that_contradict_each_other() {
    assert_refused!(
        decoder(Made::growing().output("present_k: float[batch, 4, all, 16]")),
        DecoderError::DimsDiffer { first, first_axis: 1, first_size: 2, second, second_axis: 1, second_size: 4 }
            if first == "past_k" && second == "present_k"
    );
    assert_refused!(
        decoder(Made::fixed().output("present_v: float[batch, 2, 128, 16]")),
        DecoderError::DimsDiffer { first_axis: 2, first_size: 64, second_size: 128, .. }
    );

    // One symbol has two sizes, each through another name.
    let sizes = "present_k: float[4, 2, all, 16], present_v: float[8, 2, all, 16]";
    assert_refused!(
        decoder(Made::growing().output(sizes)),
        DecoderError::DimsDiffer { first, first_size: 4, second, second_size: 8, .. }
            if first == "present_k" && second == "present_v"
    );
    let made = Made::growing().input("past_v: float[samples, 2, past, 16]").output(sizes);
    assert_refused!(decoder(made), DecoderError::DimsDiffer { .. });
}

#[test]
fn a_cache_that_grows_and_does_not() {
    let same = "present_k: float[batch, 2, past, 16]";
    for made in [Made::growing(), Made::attention_past()] {
        let made = made.output(same);
        assert_refused!(decoder(made), DecoderError::CacheDoesNotGrow { axis: 2, size, .. } if size == "past");
    }
    // A buffer that past and present may share has one size.
    assert_eq!(decoder(Made::group_query().output(same)).unwrap(), 2);
    // Different symbols do not contradict each other.
    assert_eq!(decoder(Made::growing().output("present_k: float[batch, 2, all, 16]")).unwrap(), 2);
}

#[test]
fn scatters_that_break_their_own_rules() {
    let made = Made::fixed().with_attributes("present_k", r#"mode="diagonal""#);
    assert_refused!(decoder(made), EvalError::Mode { mode } if mode == "diagonal");
    for axis in [0, -4, 4, -5, i64::MIN] {
        let made = Made::fixed().with_attributes("present_k", &format!("axis={axis}"));
        assert_eq!(decoder(made).unwrap_err().kind(), "operator");
    }
    let mut old = Made::fixed().model();
    old.proto_mut().opset_import[0].version = Some(23);
    assert_refused!(
        Decoder::from_graph(&old.graph().unwrap()),
        GraphError::OpsetTooOld { version: 23, min: 24 }
    );
}

#[test]
fn ranks_that_no_writer_takes() {
    for made in [Made::attention_past(), Made::group_query()] {
        let made = made.input("past_k: float[batch, past, 32]");
        assert_refused!(decoder(made), DecoderError::CacheRank { name, rank: 3, expected: "4" } if name == "past_k");
    }
    let made = Made::fixed().input("past_k: float[64]");
    assert_refused!(decoder(made), DecoderError::CacheRank { rank: 1, expected: "2 or more", .. });
    let made = Made::growing().edit("axis=-2", "axis=4");
    assert_refused!(decoder(made), kvscatter::Error::AxisOutOfRange { axis: 4, rank: 4 });
}

#[test]
fn shapes_that_are_not_declared() {
    let undeclared = |name: &str| {
        let mut value = values(&format!("{name}: float[]")).remove(0);
        if let Some(kvscatter_onnx::internal::proto::type_proto::Value::TensorType(tensor)) =
            &mut value.r#type.get_or_insert_default().value
        {
            tensor.shape = None.into();
        }
        value
    };
    let past = |mut made: Made| {
        made.inputs.retain(|input| input.name.as_deref() != Some("past_k"));
        made.inputs.push(undeclared("past_k"));
        made
    };
    // The operator or the other end determines the number of dimensions.
    let both = |made: Made| {
        let mut made = past(made).without_output("present_k");
        made.outputs.push(undeclared("present_k"));
        made
    };
    assert_eq!(decoder(both(Made::attention_past())).unwrap(), 2);
    assert_eq!(decoder(past(Made::growing())).unwrap(), 2);
    for made in [Made::growing(), Made::fixed()] {
        assert_refused!(decoder(both(made)), DecoderError::CacheShapeMissing { name } if name == "past_k");
    }
}

/// A file of a few hundred bytes may claim any number of samples.
#[test]
fn inputs_get_numbers_only_if_a_mask_is_proven() {
    let made = Made::fixed().input("marks: int64[batch, 64], write_indices, nonpad: int64[100000]").model();
    let graph = made.graph().unwrap();
    let memory = allocation_counter::measure(|| drop(Decoder::from_graph(&graph).unwrap()));
    assert!(memory.bytes_max < 100_000, "{} bytes", memory.bytes_max);
}
