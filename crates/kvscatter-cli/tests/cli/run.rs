//! Tests `kvscatter run` with models and test directories.

use crate::support::{Folder, f32s, npy, npy_f32, npy_i64};

const CIRCULAR: &str = "testdata/onnx-node/test_tensorscatter_circular";

#[test]
fn the_first_command_of_the_readme() {
    insta::assert_snapshot!(Folder::with_testdata().run(&format!("run {CIRCULAR}")));
}

#[test]
fn the_other_two_node_cases() {
    let folder = Folder::with_testdata();
    for case in ["test_tensorscatter", "test_tensorscatter_3d"] {
        let text = folder.run(&format!("run testdata/onnx-node/{case} --in-place")).passed();
        assert!(text.contains("in place: present has past's address"), "{text}");
        assert!(text.ends_with("pass  every output is as expected, bit for bit\n"), "{text}");
    }
}

#[test]
fn functional_and_in_place_give_the_same() {
    let folder = Folder::with_testdata();
    let text = folder.run(&format!("run {CIRCULAR} --functional -o present_cache=functional.npy")).passed();
    assert!(text.contains("copied: the functional form was requested"), "{text}");
    assert!(text.contains("in other memory"), "{text}");
    folder.run(&format!("run {CIRCULAR} --in-place -o present_cache=in_place.npy")).passed();
    assert_eq!(folder.read("functional.npy"), folder.read("in_place.npy"));
}

#[test]
fn a_wrong_expectation_is_a_failed_check() {
    let folder = Folder::with_testdata();
    folder.flip(&format!("{CIRCULAR}/test_data_set_0/output_0.pb"), 2, 0x40);
    insta::assert_snapshot!(folder.run(&format!("run {CIRCULAR}")));
    let answer = folder.run(&format!("run {CIRCULAR} --json"));
    let json: serde_json::Value = serde_json::from_str(&answer.stdout).unwrap();
    let mismatch = &json[0]["mismatch"];
    assert_eq!((&mismatch["kind"], &mismatch["differing"]), (&"values".into(), &1.into()), "{answer}");
}

#[test]
fn json() {
    insta::assert_snapshot!(Folder::with_testdata().run(&format!("run {CIRCULAR} --json")));
}

#[test]
fn generated_inputs_are_printed_and_reproducible() {
    let folder = Folder::with_testdata();
    let line = |seed| format!("run {CIRCULAR}/model.onnx --seed {seed} -o present_cache=out.npy");
    insta::assert_snapshot!(folder.run(&line(7)).passed());
    let first = folder.read("out.npy");
    folder.run(&line(8)).passed();
    assert_ne!(folder.read("out.npy"), first);
    folder.run(&line(7)).passed();
    assert_eq!(folder.read("out.npy"), first);
}

#[test]
fn given_inputs_are_used_and_never_changed() {
    let folder = Folder::with_testdata();
    let past = npy_f32(&[2, 1, 4, 5], [0.5; 40]);
    let update = npy_f32(&[2, 1, 2, 5], (0_u8..20).map(f32::from));
    let at = npy_i64(&[3, 0]);
    folder.write("past.npy", &past);
    folder.write("update.npy", &update);
    folder.write("at.npy", &at);
    let line = format!(
        "run {CIRCULAR}/model.onnx -i past_cache=past.npy -i update=update.npy -i write_indices=at.npy \
         -o present_cache=out.npy --in-place"
    );
    folder.run(&line).passed();
    let mut expected = vec![0.5; 40];
    for (row, values) in [(3, 0_u8..5), (0, 5..10), (4, 10..15), (5, 15..20)] {
        expected.splice(row * 5..row * 5 + 5, values.map(f32::from));
    }
    assert_eq!(f32s(&folder.read("out.npy")), expected);
    assert_eq!(
        [folder.read("past.npy"), folder.read("update.npy"), folder.read("at.npy")],
        [past, update, at]
    );
}

#[test]
fn several_outputs_go_into_one_file() {
    let folder = Folder::with_testdata();
    folder.run(&format!("run {CIRCULAR} -o present_cache=out.safetensors#layer.0.k")).passed();
    let line = "plan tensor-scatter --cache out.safetensors#layer.0.k --update 2,1,1,5";
    assert!(folder.run(line).passed().starts_with("float cache [2, 1, 4, 5]"));
}

/// Runs a model whose keys and values share their positions, which an Add computes. Only the command line
/// gives its sizes.
#[test]
fn a_model_with_named_sizes() {
    let folder = Folder::with_testdata();
    let model = "testdata/files/kv_pair.onnx";
    let line = format!("run {model} --dim batch=3 --dim capacity=24 --dim rows=5 --seed 4 --in-place");
    insta::assert_snapshot!(folder.run(&line).passed());

    // The given inputs also give the sizes.
    folder.write("past.npy", &npy("<f2", &[3, 2, 24, 4], &[0; 1152]));
    folder.write("cursor.npy", &npy_i64(&[-1, 21, 100]));
    let line = format!("run {model} -i past_k=past.npy -i cursor=cursor.npy --dim rows=5");
    let text = folder.run(&line).passed();
    assert!(text.contains("int64 [3] = [-1, 21, 100]") && text.contains("22-23, 0-2"), "{text}");

    let refused = [
        format!("run {model} --dim batch=3"),
        format!("run {model} --dim batch=3 --dim capacity=4 --dim rows=5"),
        format!("run {model} -i past_k=past.npy --dim batch=2 --dim rows=5"),
    ];
    insta::assert_snapshot!("named_sizes_refused", folder.refusals("", &refused));
}

#[test]
fn refusals() {
    let folder = Folder::with_testdata();
    folder.write("past.npy", &npy_f32(&[2, 1, 4, 5], [0.0; 40]));
    folder.write("small.npy", &npy_f32(&[2, 1, 3, 5], [0.0; 30]));
    folder.write("int32.npy", &npy("<i4", &[2], &[0; 8]));
    folder.write("far.npy", &npy_i64(&[9, 9]));
    folder.write("garbage.onnx", &[0xff; 100]);
    folder.write("empty/readme", b"");
    let linear = "testdata/onnx-node/test_tensorscatter/model.onnx";
    let lines = [
        "absent.onnx".to_owned(),
        "garbage.onnx".to_owned(),
        "empty".to_owned(),
        "testdata/onnx-node".to_owned(),
        format!("{linear} --dim b=2 --dim b=3"),
        format!("{linear} --dim =3"),
        format!("{linear} -i =past.npy"),
        format!("{linear} -i past=past.npy"),
        format!("{linear} -i past_cache=past.npy -i past_cache=past.npy"),
        format!("{linear} -i past_cache=absent.npy"),
        format!("{linear} -i past_cache=small.npy"),
        format!("{linear} -i write_indices=int32.npy"),
        format!("{linear} -i write_indices=far.npy"),
        format!("{linear} -o present=out.npy"),
        format!("{linear} -o present_cache=out.npy -o present_cache=out.pb"),
        format!("{linear} -i past_cache=past.npy -o present_cache=past.npy"),
        format!("{linear} --dim batch=3"),
        format!("{linear} --ort-lib lib"),
        format!("{linear} --ort-plugin none"),
        format!("{CIRCULAR} -i past_cache=past.npy"),
        format!("{CIRCULAR} --dim batch=3"),
        format!("{CIRCULAR} -o present_cache={CIRCULAR}/test_data_set_0/output_0.pb"),
    ];
    insta::assert_snapshot!(folder.refusals("run", &lines));
    assert!(!folder.path("out.npy").exists());
}
