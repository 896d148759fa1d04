//! Tests `kvscatter verify` on test directories of KVCacheUpdate, KVCacheOperation and Attention, whose expectations
//! come from the oracle.

use std::fmt::Debug;

use half::{bf16, f16};
use kvscatter_oracle::attention::{Array, Float, Mask, Positions};
use kvscatter_oracle::cases::attention::{AttentionCase, random, refused};
use kvscatter_oracle::cases::{Call, Case, Element, Values, cases};
use kvscatter_oracle::tensorrt::UpdateForm;
use kvscatter_oracle::{OutOfRange, ascend, tensorrt};

use crate::directory::{Attribute, Directory, Expectation, Input};
use crate::support::Folder;

#[test]
fn the_attention_cases_of_onnx_pass() {
    let folder = Folder::with_testdata();
    insta::assert_snapshot!(folder.run("verify testdata/onnx-attention --rtol 1e-3 --atol 1e-6"));
    assert_eq!(folder.run("verify testdata/onnx-attention").code, Some(1));
    // A directory may have its own tolerance, and options replace it.
    let case = "testdata/onnx-attention/test_attention_4d_gqa_causal_nonpad_decode";
    folder.write(&format!("{case}/tolerance.json"), br#"{"rtol": 0, "atol": 1e-6}"#);
    folder.run(&format!("verify {case}")).passed();
    assert_eq!(folder.run(&format!("verify {case} --atol 0")).code, Some(1));
    for contents in ["{", r#"{"rtol": 0}"#, r#"{"rtol": 0, "atol": -1}"#, r#"{"rtol": 0, "atol": 1, "x": 1}"#]
    {
        folder.write(&format!("{case}/tolerance.json"), contents.as_bytes());
        let answer = folder.run(&format!("verify {case}"));
        assert_eq!(answer.code, Some(2), "{contents}: {answer}");
        assert!(answer.stdout.contains("tolerance.json: "), "{contents}: {answer}");
    }
}

/// Checks the outputs of calls of both operators that write a cache, and the rules that refused calls break.
#[test]
fn the_cases_of_the_oracle_pass_for_writes() {
    let folder = Folder::new();
    let (mut updates, mut operations) = (0, 0);
    for case in cases(1, 2400) {
        let Some(directory) = write_directory(&case) else { continue };
        *if directory.op_type == "KVCacheUpdate" { &mut updates } else { &mut operations } += 1;
        directory.write(&folder, &format!("cases/{}", case.name));
    }
    assert!(updates > 300 && operations > 300, "{updates}, {operations}");
    let answer = folder.run("verify cases --quiet").passed();
    assert_eq!(answer, format!("{} cases passed, 0 failed\n", updates + operations));
}

/// Checks the outputs of calls of Attention, and the rules that refused calls break.
#[test]
fn the_cases_of_the_oracle_pass_for_attention() {
    let folder = Folder::new();
    let mut written = 0;
    for case in random(1, 150).chain(refused(1, 150)) {
        if let Some(directory) = attention_directory(&case) {
            written += 1;
            directory.write(&folder, &format!("cases/{}", case.name));
        }
    }
    assert!(written > 200, "{written}");
    let answer = folder.run("verify cases --quiet").passed();
    assert_eq!(answer, format!("{written} cases passed, 0 failed\n"));
}

/// Returns a directory for a case of KVCacheUpdate or KVCacheOperation without extensions.
fn write_directory(case: &Case) -> Option<Directory> {
    let [cache, update] = [
        (case.elements[0], &case.cache_shape, &case.cache),
        (case.elements[1], &case.update_shape, &case.update),
    ]
    .map(|(element, shape, values)| tensor(element, shape, values));
    let (op_type, attributes, inputs) = match &case.call {
        Call::KvCacheUpdate { operator, write_indices, update_lengths, lengths: None }
            if *operator
                == (tensorrt::KvCacheUpdate { out_of_range: OutOfRange::Error, ..operator.clone() }) =>
        {
            let form = match operator.update_form {
                UpdateForm::Padded => "padded",
                UpdateForm::Packed => "packed_nhd",
            };
            let mut inputs = vec![cache, update, Input::int64s(write_indices)];
            inputs.extend(update_lengths.as_deref().map(Input::int32s));
            ("KVCacheUpdate", vec![("update_form", Attribute::Text(form))], inputs)
        }
        Call::KvCacheOperation { operator, layer_id, token_offset, seq_len, lengths: None }
            if *operator == ascend::KvCacheOperation::default() =>
        {
            let [layer_id, token_offset, seq_len] =
                [layer_id, token_offset, seq_len].map(|list| Input::int32s(list));
            ("KVCacheOperation", vec![], vec![update, layer_id, cache, token_offset, seq_len])
        }
        _ => return None,
    };
    let expectation = match &case.expected {
        Ok(expected) => {
            Expectation::Outputs(vec![tensor(case.elements[0], &case.cache_shape, &expected.present)])
        }
        Err(refusal) => Expectation::Refused(rule(refusal)),
    };
    let inputs = inputs.into_iter().map(Some).collect();
    Some(Directory {
        op_type,
        domain: "com.kvscatter",
        version: 1,
        attributes,
        inputs,
        expectation,
        tolerance: None,
    })
}

/// Returns a directory for a case of Attention. Rings are no cases of ONNX.
fn attention_directory(case: &AttentionCase) -> Option<Directory> {
    let (op, inputs) = (&case.attention, &case.inputs);
    let lengths = match &inputs.positions {
        Positions::Full => None,
        Positions::Lengths(lengths) => Some(Input::int64s(lengths)),
        Positions::Ring(_) => return None,
    };
    let number = |value: f64| Attribute::Float(value as f32);
    let mut attributes = vec![
        ("is_causal", Attribute::Int(op.is_causal.into())),
        ("qk_matmul_output_mode", Attribute::Int(op.qk_matmul_output_mode)),
        ("softcap", number(op.softcap.max(0.0))),
    ];
    let integers = [
        ("q_num_heads", op.q_num_heads),
        ("kv_num_heads", op.kv_num_heads),
        ("softmax_precision", op.softmax_precision),
        ("left_window_size", Some(op.left_window_size).filter(|size| *size != -1)),
        ("right_window_size", Some(op.right_window_size).filter(|size| *size != -1)),
    ];
    attributes.extend(integers.into_iter().filter_map(|(name, value)| Some((name, Attribute::Int(value?)))));
    attributes.extend(op.scale.map(|scale| ("scale", number(scale))));
    let floats = |array: &Array<f64>| floats(inputs.element, array);
    let mask = inputs.mask.as_ref().map(|mask| match mask {
        Mask::Bool(mask) => {
            Input::new("bool", &mask.shape, mask.data.iter().map(|&shown| shown.into()).collect())
        }
        Mask::Float(mask) => floats(mask),
    });
    let [past_key, past_value] = [&inputs.past_key, &inputs.past_value].map(|past| past.as_ref().map(floats));
    let [q, k, v] = [&inputs.q, &inputs.k, &inputs.v].map(|input| Some(floats(input)));
    let expectation = match case.expected() {
        Ok(made) => {
            let outputs = [made.y, made.present_key, made.present_value];
            Expectation::Outputs(outputs.iter().map(floats).collect())
        }
        Err(refusal) => Expectation::Refused(rule(&refusal)),
    };
    Some(Directory {
        op_type: "Attention",
        domain: "",
        version: 25,
        attributes,
        inputs: vec![q, k, v, mask, past_key, past_value, lengths],
        expectation,
        tolerance: Some((case.tolerance(0.0), if inputs.element == Float::F32 { 0.0 } else { 1.0 / 64.0 })),
    })
}

fn tensor(element: &Element, shape: &[usize], values: &Values) -> Input {
    match values {
        Values::Bytes(bytes) => Input::new(element.name, shape, bytes.clone()),
        Values::Strings(strings) => Input::strings(shape, strings),
    }
}

fn floats(element: Float, array: &Array<f64>) -> Input {
    let values = array.data.iter();
    let bytes = match element {
        Float::F32 => values.flat_map(|&value| (value as f32).to_le_bytes()).collect(),
        Float::F16 => values.flat_map(|&value| f16::from_f64(value).to_le_bytes()).collect(),
        Float::Bf16 => values.flat_map(|&value| bf16::from_f64(value).to_le_bytes()).collect(),
    };
    Input::new(element.name(), &array.shape, bytes)
}

/// Returns the name in `refused.json` of a rule that the oracle names: `HeadsMissing` is `heads-missing`.
fn rule(refusal: &impl Debug) -> String {
    let refusal = format!("{refusal:?}");
    match refusal.split(|c: char| !c.is_alphanumeric()).next().unwrap() {
        "CacheRank" => "rank".to_owned(),
        "UpdateRank" => "rank-mismatch".to_owned(),
        name => {
            let mut words = String::new();
            for c in name.chars() {
                let hyphen = c.is_uppercase() && !words.is_empty();
                words.extend(hyphen.then_some('-'));
                words.extend(c.to_lowercase());
            }
            words
        }
    }
}
