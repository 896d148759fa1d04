//! Tests what `certify` refuses without ONNX Runtime, and what it certifies in tract. The tests of the
//! exporters' models cover ONNX Runtime.

use kvscatter_onnx::internal::proto::tensor_shape_proto::dimension::Value as DimValue;
use kvscatter_onnx::{Model, WeightTransfer};

use crate::support::{Folder, dims};

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

#[test]
fn refusals() {
    let folder = Folder::with_testdata();
    // The model has two samples, and its caches have any capacity.
    let other = folder.path("other.onnx");
    let mut model = Model::load(&folder.path("testdata/mobius-llama-static/model.onnx")).unwrap();
    for input in &mut model.proto_mut().graph.as_option_mut().unwrap().input {
        let name = input.name.clone().unwrap();
        match name.as_str() {
            "input_ids" => dims(input)[0].value = Some(DimValue::DimValue(2)),
            name if name.contains("cache") => dims(input)[1].value = None,
            _ => {}
        }
    }
    model.save_with_weights(&other, WeightTransfer::Copy).unwrap();
    folder.check_transcript("certify");
    let refused = folder.run_without_onnxruntime("certify other.onnx --engine ort").refused();
    assert!(refused.ends_with("its library, or a folder with it, can be given (--ort-lib)"), "{refused}");
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
