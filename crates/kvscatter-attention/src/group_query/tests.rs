use kvscatter::ElementType::{self, BFloat16, Float16, Float32, Float64, Int8, Int32, Int64};

use super::AttributeValue::{Float, Int, Other, String};
use super::Declared::{Absent, Of, Unknown};
use super::{AttributeValue, CacheScale, Declared, GroupQuery, NotTaken, RotaryOrder};
use crate::{Attention, AttentionError};

type Attributes = &'static [(&'static str, AttributeValue<'static>)];

const HEADS: [(&str, AttributeValue<'_>); 2] = [("num_heads", Int(6)), ("kv_num_heads", Int(2))];

/// Returns the inputs of these names. `T` is the type of the activations, and `cache` that of the cache.
fn inputs(element: Declared, cache: Declared, present: &[&str]) -> [Declared; 17] {
    GroupQuery::INPUTS.map(|name| match name {
        "past_key" | "past_value" => cache,
        "seqlens_k" | "total_sequence_length" => Of(Int32),
        "query" => element,
        _ if !present.contains(&name) => Absent,
        "position_ids" => Of(Int64),
        _ => element,
    })
}

fn plain() -> [Declared; 17] {
    inputs(Of(Float32), Of(Float32), &[])
}

/// Returns the inputs with another declaration of one of them.
fn with(name: &str, declared: Declared) -> [Declared; 17] {
    let mut all = inputs(
        Of(Float32),
        Of(Float32),
        &["key", "value", "cos_cache", "sin_cache", "position_ids", "attention_bias", "head_sink"],
    );
    let index = GroupQuery::INPUTS.iter().position(|input| *input == name).unwrap();
    all[index] = declared;
    all
}

fn read(attributes: Attributes, inputs: &[Declared]) -> Result<GroupQuery, NotTaken> {
    GroupQuery::read(HEADS.into_iter().chain(attributes.iter().copied()), inputs, &[true; 3])
}

#[test]
fn attributes_set_what_is_computed() {
    let operator = Attention::new().causal(true);
    let none = GroupQuery { heads: 6, kv_heads: 2, rotation: None, is_smooth: false, scales: None, operator };
    let sets: [(Attributes, GroupQuery); 12] = [
        (&[], none),
        (&[("num_heads", Int(2))], GroupQuery { heads: 2, ..none }),
        (&[("scale", Float(0.5))], GroupQuery { operator: operator.scale(0.5), ..none }),
        (&[("scale", Float(0.0)), ("softcap", Float(0.0))], none),
        (&[("softcap", Float(30.0))], GroupQuery { operator: operator.softcap(30.0), ..none }),
        (&[("local_window_size", Int(1))], GroupQuery { operator: operator.window(Some(0), None), ..none }),
        (
            &[("local_window_size", Int(512))],
            GroupQuery { operator: operator.window(Some(511), None), ..none },
        ),
        (&[("rotary_interleaved", Int(1))], none),
        (&[("do_rotary", Int(1))], GroupQuery { rotation: Some(RotaryOrder::Halves), ..none }),
        (
            &[("rotary_interleaved", Int(1)), ("do_rotary", Int(1))],
            GroupQuery { rotation: Some(RotaryOrder::Interleaved), ..none },
        ),
        (&[("smooth_softmax", Int(1))], GroupQuery { is_smooth: true, ..none }),
        // The defaults of ONNX Runtime 1.32, which adds them to nodes.
        (
            &[
                ("local_window_size", Int(-1)),
                ("smooth_softmax", Int(-1)),
                ("qk_output", Int(0)),
                ("causal", Int(1)),
                ("sliding_window_cache", Int(0)),
                ("kv_cache_bit_width", Int(0)),
                ("k_quant_type", String("NONE")),
                ("v_quant_type", String("NONE")),
                ("qk_norm_epsilon", Float(1e-6)),
                ("q_norm_epsilon", Float(1e-5)),
                ("k_norm_epsilon", Float(1e-5)),
            ],
            none,
        ),
    ];
    let given = inputs(Of(Float32), Of(Float32), &["cos_cache", "sin_cache"]);
    for (attributes, expected) in sets {
        assert_eq!(read(attributes, &given), Ok(expected), "{attributes:?}");
    }
}

/// A kernel reads only the attributes that are listed.
#[test]
fn attributes_that_set_something_are_listed() {
    let given = inputs(Of(Float32), Of(Float32), &["cos_cache", "sin_cache"]);
    let plain = read(&[("do_rotary", Int(1))], &given);
    for (attribute, list) in [
        (("num_heads", Int(8)), GroupQuery::INTEGERS.as_slice()),
        (("kv_num_heads", Int(3)), &GroupQuery::INTEGERS),
        (("local_window_size", Int(7)), &GroupQuery::INTEGERS),
        (("do_rotary", Int(0)), &GroupQuery::INTEGERS),
        (("rotary_interleaved", Int(1)), &GroupQuery::INTEGERS),
        (("smooth_softmax", Int(1)), &GroupQuery::INTEGERS),
        (("scale", Float(2.0)), &GroupQuery::FLOATS),
        (("softcap", Float(2.0)), &GroupQuery::FLOATS),
    ] {
        let attributes = HEADS.into_iter().chain([("do_rotary", Int(1)), attribute]);
        assert_ne!(GroupQuery::read(attributes, &given, &[true; 3]), plain, "{attribute:?}");
        assert!(list.contains(&attribute.0));
    }
    // Those of codes set something together only.
    let listed = [GroupQuery::INTEGERS.len(), GroupQuery::FLOATS.len(), GroupQuery::STRINGS.len()];
    assert_eq!(listed, [6 + 1, 2, 2]);
}

#[test]
fn other_values_are_refused() {
    let sets = [
        ("num_heads", Int(0), "an integer above 0"),
        ("kv_num_heads", Int(-2), "an integer above 0"),
        ("num_heads", Float(6.0), "an integer above 0"),
        ("scale", Int(1), "a float"),
        ("softcap", Other, "a float"),
        ("local_window_size", Int(0), "-1, or an int32 above 0"),
        ("local_window_size", Int(-2), "-1, or an int32 above 0"),
        ("local_window_size", Int(1 << 31), "-1, or an int32 above 0"),
        ("local_window_size", Int((1 << 32) - 1), "-1, or an int32 above 0"),
        ("local_window_size", Float(1.0), "an integer"),
        ("do_rotary", Int(2), "0 or 1"),
        ("rotary_interleaved", Int(-1), "0 or 1"),
        ("smooth_softmax", Int(2), "0 or 1"),
        ("smooth_softmax", Float(-1.0), "0 or 1"),
        ("causal", Int(0), "1"),
        ("qk_output", Int(1), "0"),
        ("sliding_window_cache", Int(1), "0"),
        ("kv_cache_bit_width", Int(8), "0"),
        ("kv_cache_bit_width", Float(8.0), "an integer"),
        ("k_quant_type", String("PER_ROW"), "NONE, PER_TENSOR or PER_CHANNEL"),
        ("v_quant_type", Int(1), "NONE, PER_TENSOR or PER_CHANNEL"),
        ("qk_norm_epsilon", String("1e-6"), "a float"),
    ];
    for (name, value, expected) in sets {
        let attributes = HEADS.into_iter().chain([(name, value)]);
        let refused = GroupQuery::read(attributes, &plain(), &[true; 3]).unwrap_err();
        let (name, value) = (name.to_owned(), value.to_string());
        assert_eq!(refused, NotTaken::Value { name, value, expected });
    }
    assert_eq!(
        read(&[("scale", Float(-0.5))], &plain()),
        Err(NotTaken::Operator(AttentionError::Scale { scale: -0.5 }))
    );
    assert_eq!(
        read(&[("softcap", Float(f32::INFINITY))], &plain()),
        Err(NotTaken::Operator(AttentionError::Softcap { softcap: f32::INFINITY }))
    );
    assert_eq!(read(&[("kv_num_heads", Int(4))], &plain()), Err(NotTaken::Group { heads: 6, kv_heads: 4 }));
}

#[test]
fn attributes_are_required_and_known() {
    for (index, name) in ["num_heads", "kv_num_heads"].into_iter().enumerate() {
        let other = HEADS[1 - index];
        let refused = GroupQuery::read([other], &plain(), &[true; 3]).unwrap_err();
        assert_eq!(refused, NotTaken::AttributeMissing { name });
    }
    // The name that a later version may use for anything.
    assert_eq!(
        read(&[("num_sinks", Int(0))], &plain()),
        Err(NotTaken::Attribute { name: "num_sinks".to_owned() })
    );
}

#[test]
fn nodes_have_the_inputs_of_the_cache() {
    assert!(read(&[], &plain()).is_ok());
    // Trailing inputs that are absent need not be listed.
    assert!(read(&[], &plain()[..7]).is_ok());
    assert!(read(&[("do_rotary", Int(1))], &with("head_sink", Absent)[..9]).is_ok());
    for name in ["query", "past_key", "past_value", "seqlens_k", "total_sequence_length"] {
        assert_eq!(read(&[], &with(name, Absent)), Err(NotTaken::InputMissing { name }));
    }
    for (one, other) in [("key", "value"), ("cos_cache", "sin_cache")] {
        for absent in [one, other] {
            assert_eq!(read(&[], &with(absent, Absent)), Err(NotTaken::InputAlone { one, other }));
        }
    }
    for name in ["position_ids", "attention_bias", "head_sink"] {
        assert!(read(&[], &with(name, Absent)).is_ok(), "{name}");
    }
    for name in ["k_scale", "v_scale", "q_norm_weight", "k_norm_weight", "query_seqlens"] {
        for declared in [Unknown, Of(Float32)] {
            assert_eq!(read(&[], &with(name, declared)), Err(NotTaken::Input { name }));
        }
    }
    assert_eq!(read(&[("do_rotary", Int(1))], &plain()), Err(NotTaken::InputMissing { name: "cos_cache" }));
    assert_eq!(read(&[("smooth_softmax", Int(1))], &with("head_sink", Unknown)), Err(NotTaken::Sinks));
    assert_eq!(
        read(&[], &[plain().as_slice(), &[Absent]].concat()),
        Err(NotTaken::Inputs { got: 18, known: 17 })
    );
}

#[test]
fn nodes_have_the_outputs_of_the_cache() {
    let read = |outputs: &[bool]| GroupQuery::read(HEADS, &plain(), outputs);
    assert!(read(&[true, true, true, false]).is_ok());
    assert_eq!(read(&[true; 4]), Err(NotTaken::Output { name: "output_qk" }));
    for (index, name) in ["output", "present_key", "present_value"].into_iter().enumerate() {
        let mut outputs = [true; 3];
        outputs[index] = false;
        assert_eq!(read(&outputs), Err(NotTaken::OutputMissing { name }));
    }
    assert!(read(&[true]).is_ok(), "a cache that the node does not return");
    assert_eq!(read(&[]), Err(NotTaken::OutputMissing { name: "output" }));
    assert_eq!(read(&[true; 2]), Err(NotTaken::OutputMissing { name: "present_value" }));
}

#[test]
fn types_agree() {
    let present = &["key", "value", "cos_cache", "sin_cache", "attention_bias", "head_sink"];
    let takes = |element, cache| read(&[], &inputs(element, cache, present)).is_ok();
    let floats = [Float32, Float16, BFloat16];
    for element in floats {
        for cache in floats {
            assert_eq!(takes(Of(element), Of(cache)), element == Float32 || element == cache);
        }
        assert!(takes(Of(element), Unknown) && takes(Unknown, Of(element)), "{element}");
    }
    assert!(takes(Unknown, Unknown));
    assert!(!takes(Of(Float64), Unknown) && !takes(Unknown, Of(Int8)));
}

#[test]
fn other_types_are_refused() {
    let refused = |name, element: ElementType, expected: &str| {
        let expected = expected.to_owned();
        assert_eq!(read(&[], &with(name, Of(element))), Err(NotTaken::Type { name, element, expected }));
    };
    for name in ["key", "value", "cos_cache", "sin_cache", "attention_bias", "head_sink"] {
        refused(name, Float16, "float");
        refused(name, Float64, "float or float16 or bfloat16");
    }
    // The first of two types that differ is taken for that of the node.
    assert_eq!(
        read(&[], &with("query", Of(Float16))),
        Err(NotTaken::Type { name: "key", element: Float32, expected: "float16".to_owned() })
    );
    refused("past_value", Float16, "float");
    refused("past_key", Int8, "float or float16 or bfloat16");
    refused("seqlens_k", Int64, "int32");
    refused("total_sequence_length", Int64, "int32");
    refused("position_ids", Int32, "int64");
}

/// A cache of codes needs both types, 8 bits, both scales, and float32 queries.
#[test]
fn codes_need_their_scales() {
    const fn types(
        key: &'static str,
        value: &'static str,
        bits: i64,
    ) -> [(&'static str, AttributeValue<'static>); 3] {
        [("k_quant_type", String(key)), ("v_quant_type", String(value)), ("kv_cache_bit_width", Int(bits))]
    }
    let read_as = |types: [(&'static str, AttributeValue<'static>); 3], inputs: &[Declared]| {
        GroupQuery::read(HEADS.into_iter().chain(types), inputs, &[true; 3])
    };
    let read_all = |inputs: &[Declared]| read_as(types("PER_TENSOR", "PER_CHANNEL", 8), inputs);
    let given = |query, cache, scales: &[&str]| {
        let mut given = inputs(Of(query), Of(cache), &[]);
        for name in scales {
            given[GroupQuery::INPUTS.iter().position(|input| input == name).unwrap()] = Of(Float32);
        }
        given
    };
    let scaled = given(Float32, Int8, &["k_scale", "v_scale"]);
    let scales = Some([CacheScale::Tensor, CacheScale::Channel]);
    let none = read(&[], &plain()).unwrap();
    assert_eq!(read_all(&scaled), Ok(GroupQuery { scales, ..none }));
    let missing = |name| Err(NotTaken::InputMissing { name });
    assert_eq!(read_all(&given(Float32, Int8, &["k_scale"])), missing("v_scale"));
    assert_eq!(read_all(&given(Float32, Int8, &[])), missing("k_scale"));
    assert_eq!(read(&[], &given(Float32, Float32, &["k_scale"])), Err(NotTaken::Input { name: "k_scale" }));
    let other =
        |name, element, expected: &str| Err(NotTaken::Type { name, element, expected: expected.to_owned() });
    assert_eq!(read_all(&given(Float16, Int8, &["k_scale", "v_scale"])), other("query", Float16, "float"));
    assert_eq!(
        read_all(&given(Float32, Float16, &["k_scale", "v_scale"])),
        other("past_key", Float16, "int8")
    );
    for bits in [0, 4] {
        let (name, value) = ("kv_cache_bit_width".to_owned(), bits.to_string());
        let refused = Err(NotTaken::Value { name, value, expected: "8" });
        assert_eq!(read_as(types("PER_TENSOR", "PER_TENSOR", bits), &scaled), refused);
    }
    let (one, other) = ("k_quant_type", "v_quant_type");
    assert_eq!(read_as(types("PER_TENSOR", "NONE", 8), &scaled), Err(NotTaken::InputAlone { one, other }));
}

#[test]
fn errors_are_one_line() {
    let refused = |name, value| {
        let attributes = HEADS.into_iter().chain([(name, value)]);
        GroupQuery::read(attributes, &plain(), &[true; 3]).unwrap_err().to_string()
    };
    assert_eq!(refused("causal", Int(0)), "causal = 0: must be 1");
    assert_eq!(
        refused("k_quant_type", String("A\nB")),
        "k_quant_type = A\\nB: must be NONE, PER_TENSOR or PER_CHANNEL"
    );
    assert_eq!(refused("scale", Other), "scale = a value of another type: must be a float");
    assert_eq!(
        read(&[], &with("key", Of(Float16))).unwrap_err().to_string(),
        "input key has elements of type float16, must be float"
    );
}
