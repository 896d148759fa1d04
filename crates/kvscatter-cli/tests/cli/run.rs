//! Tests `kvscatter run` with models and test directories.

use crate::support::{Folder, f32s, npy, npy_f32, npy_i64};

const CIRCULAR: &str = "testdata/onnx-node/test_tensorscatter_circular";

#[test]
fn answers_and_refusals() {
    let folder = Folder::with_testdata();
    folder.write("past_k.npy", &npy("<f2", &[3, 2, 24, 4], &[0; 1152]));
    folder.write("cursor.npy", &npy_i64(&[-1, 21, 100]));
    folder.write("past.npy", &npy_f32(&[2, 1, 4, 5], [0.0; 40]));
    folder.write("small.npy", &npy_f32(&[2, 1, 3, 5], [0.0; 30]));
    folder.write("int32.npy", &npy("<i4", &[2], &[0; 8]));
    folder.write("far.npy", &npy_i64(&[9, 9]));
    folder.write("garbage.onnx", &[0xff; 100]);
    folder.write("empty/readme", b"");
    folder.check_transcript("run");
    assert!(!folder.path("out.npy").exists());
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
    let mismatch = &answer.document()[0]["mismatch"];
    assert_eq!((&mismatch["kind"], &mismatch["differing"]), (&"values".into(), &1.into()), "{answer}");
}

#[test]
fn generated_inputs_are_reproducible() {
    let folder = Folder::with_testdata();
    let line = |seed| format!("run {CIRCULAR}/model.onnx --seed {seed} -o present_cache=out.npy");
    folder.run(&line(7)).passed();
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
