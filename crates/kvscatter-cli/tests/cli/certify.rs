//! Tests what `certify` refuses without ONNX Runtime, and what it certifies in tract. The tests of the
//! exporters' models cover ONNX Runtime.

use kvscatter_onnx::internal::proto::tensor_shape_proto::dimension::Value as DimValue;
use kvscatter_onnx::internal::proto::type_proto::Value as TypeValue;
use kvscatter_onnx::{Model, WeightTransfer};

use crate::support::Folder;

/// Checks that claims that cannot be judged are printed with the verdict and do not change the exit code.
#[test]
fn scales_of_whole_tensors_are_named() {
    let folder = Folder::with_testdata();
    folder.run("convert testdata/decoders/optimum-llama-int8/model.onnx -o int8.onnx --max-seq 24").passed();
    let line = "certify int8.onnx --engine tract --steps 2 --no-timing";
    let printed = folder.run(line).passed();
    let summary = &printed[printed.find("The KV cache is written in place.").unwrap()..];
    assert!(summary.contains("1 is not comparable"), "{summary}");
    assert!(
        summary.contains("not comparable because DynamicQuantizeLinear (\"/model/layers.0/"),
        "{summary}"
    );
    let document = folder.json(line);
    assert_eq!(document["second_opinion"], "none");
    let observed = document["evidence"]["observed"].as_array().unwrap();
    let verdicts = observed.iter().filter(|check| check["verdict"] == "not_comparable");
    assert_eq!(verdicts.map(|check| &check["id"]).collect::<Vec<_>>(), ["logits-equal-in-batches"]);
}

/// Gives a library that cannot be loaded. Errors that are found before it is loaded must not mention it.
const NO_LIBRARY: &str = "--ort-lib testdata/files/two.npz";

#[test]
fn refusals() {
    let folder = Folder::with_testdata();
    let lines = [
        "testdata/absent.onnx",
        "testdata/files/two.npz",
        "testdata/mobius-llama-static/model.onnx",
        "testdata/mobius-llama-static/model.onnx --original testdata/absent.onnx",
        "testdata/mobius-llama-static/model.onnx --html testdata/mobius-llama-static/model.onnx",
        "testdata/mobius-llama-static/model.onnx --html testdata/mobius-llama-static/model.onnx.data",
        "testdata/mobius-llama-static/model.onnx --prompt 0",
        "testdata/mobius-llama-static/model.onnx --prompt 3,x",
        "testdata/mobius-llama-static/model.onnx --tolerance -1",
        "testdata/mobius-llama-static/model.onnx --batch 0",
    ];
    insta::assert_snapshot!(folder.refusals(&format!("certify {NO_LIBRARY}"), &lines));
}

#[test]
fn a_refusal_names_the_options() {
    let folder = Folder::with_testdata();
    let lines = [
        ("--prompt 3,4 --batch 3", "2 prompts do not match a batch of 3 (--prompt, --batch)"),
        (
            "--prompt 60 --batch 1 --steps 60",
            "a prompt of 60 tokens and 60 steps must fit a cache of 64 slots, and every prompt must have at least 1 token (--prompt, --steps)",
        ),
        ("--memory 1000", "bytes of memory are needed, the limit is 1000 bytes (--memory)"),
        ("--capacity 32", "the model's capacity is fixed to 64, got 32 (--capacity)"),
    ];
    let check = |line: &str, end: &str| {
        let refused = folder.run_without_onnxruntime(line).refused();
        assert!(refused.trim_end().ends_with(end), "{line}: {refused}");
    };
    for (options, end) in lines {
        check(&format!("certify testdata/mobius-llama-static/model.onnx --engine tract {options}"), end);
    }
    // The model has two samples, and its caches have any capacity.
    let other = folder.path("other.onnx");
    let mut model = Model::load(&folder.path("testdata/mobius-llama-static/model.onnx")).unwrap();
    for input in &mut model.proto_mut().graph.as_option_mut().unwrap().input {
        let name = input.name.clone().unwrap();
        let Some(TypeValue::TensorType(tensor)) = input.r#type.as_option_mut().unwrap().value.as_mut() else {
            panic!("{name} is no tensor")
        };
        let dims = &mut tensor.shape.as_option_mut().unwrap().dim;
        match name.as_str() {
            "input_ids" => dims[0].value = Some(DimValue::DimValue(2)),
            name if name.contains("cache") => dims[1].value = None,
            _ => {}
        }
    }
    model.save_with_weights(&other, WeightTransfer::Copy).unwrap();
    let open = "the caches have an open capacity: one must be given (--capacity)";
    check("certify other.onnx --engine tract", open);
    check(
        "certify other.onnx --engine tract --capacity 1",
        "the batch is 2 and the capacity is 1, but they must be at least 1 and 2 (--batch, --capacity)",
    );
    let batch = "the model's batch is fixed to 2, got 3 (--prompt, --batch)";
    check("certify other.onnx --engine tract --batch 3", batch);
    // In `generate`, the batch is the number of prompts, and no option sets it.
    check("generate other.onnx --prompt-ids 1 --prompt-ids 2 --prompt-ids 3", "fixed to 2, got 3");
    check("certify other.onnx --engine ort", "its library, or a folder with it, can be given (--ort-lib)");
}

#[test]
fn in_the_engine_that_is_part_of_the_command() {
    let folder = Folder::with_testdata();
    folder.run("convert testdata/optimum-llama/model.onnx -o static.onnx --max-seq 24").passed();
    for model in ["static.onnx", "testdata/mobius-llama-static/model.onnx"] {
        let document = folder.json(&format!("certify {model} --engine tract --steps 2 --no-timing"));
        assert_eq!(document["runtime"]["name"], "tract", "{model}");
        assert_eq!(document["verdict"], "passed", "{model}");
    }
    let summary = |line: &str| {
        let printed = folder.run(&format!("certify {line} --engine tract --steps 2 --no-timing")).passed();
        printed[printed.find("The KV cache is written in place.").unwrap()..].to_owned()
    };
    let alone = summary("static.onnx");
    assert!(alone.contains("No second opinion: ") && alone.contains("tract 0.23.9"), "{alone}");
    // tract does not run an original with growing caches, so the original here is another static model.
    folder.run("convert testdata/mobius-llama-dynamic/model.onnx -o other.onnx --max-seq 24").passed();
    let compared = summary("static.onnx --original other.onnx");
    assert!(
        compared.contains("both models ran in tract 0.23.9") && !compared.contains("No second"),
        "{compared}"
    );
    let line = "certify static.onnx --engine tract --ort-lib testdata/files/two.npz";
    assert!(folder.run(line).refused().contains("add --engine ort"));
}
