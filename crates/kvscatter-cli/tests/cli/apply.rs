//! Tests `kvscatter apply` into new files: the examples of the specifications, our extensions and refusals.

use crate::support::{Folder, contents, f32s, npy, npy_f32, npy_i32, npy_i64};

/// Runs the example of TensorRT's documentation: cache [4, 2, 8, 1], update [4, 2, 4, 1], the same for both
/// heads.
#[test]
fn the_worked_example_of_kv_cache_update() {
    let cache = [
        [0.53, 0.88, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0],
        [0.41, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0],
        [0.67, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0],
        [0.32, 0.79, 0.64, 0.0, 0.0, 0.0, 0.0, 0.0],
    ];
    let update =
        [[0.72, 0.0, 0.0, 0.0], [0.55, 0.94, 0.0, 0.0], [0.61, 0.28, 0.0, 0.0], [0.83, 0.0, 0.0, 0.0]];
    let expected = [
        [0.53, 0.88, 0.72, 0.0, 0.0, 0.0, 0.0, 0.0],
        [0.41, 0.55, 0.94, 0.0, 0.0, 0.0, 0.0, 0.0],
        [0.67, 0.61, 0.28, 0.0, 0.0, 0.0, 0.0, 0.0],
        [0.32, 0.79, 0.64, 0.83, 0.0, 0.0, 0.0, 0.0],
    ];
    let folder = Folder::new();
    folder.write(
        "cache.npy",
        &npy_f32(&[4, 2, 8, 1], cache.iter().flat_map(|row| [row, row]).flatten().copied()),
    );
    folder.write(
        "update.npy",
        &npy_f32(&[4, 2, 4, 1], update.iter().flat_map(|row| [row, row]).flatten().copied()),
    );
    folder.write("at.npy", &npy_i32(&[2, 1, 1, 3]));
    let apply =
        "apply kv-cache-update --cache cache.npy --update update.npy --output out.npy --write-indices";
    let expected: Vec<f32> = expected.iter().flat_map(|row| [row, row]).flatten().copied().collect();
    for indices in ["2,1,1,3", "at.npy"] {
        insta::assert_snapshot!("kv_cache_update", folder.run(&format!("{apply} {indices}")).passed());
        assert_eq!(f32s(&folder.read("out.npy")), expected);
    }
}

#[test]
fn a_packed_update() {
    let folder = Folder::new();
    folder.write("cache.npy", &npy_f32(&[2, 1, 4, 1], [0.0; 8]));
    folder.write("update.npy", &npy_f32(&[3, 1, 1], [1.0, 2.0, 3.0]));
    let line = "apply kv-cache-update --cache cache.npy --update update.npy --write-indices 3,0 --update-lengths 0,1,3 \
                --output out.npy";
    folder.run(line).passed();
    assert_eq!(f32s(&folder.read("out.npy")), [0.0, 0.0, 0.0, 1.0, 2.0, 3.0, 0.0, 0.0]);
}

/// Checks that Ascend's token_offset is the length after the write.
#[test]
fn a_kv_cache_operation() {
    let folder = Folder::new();
    folder.write("past.npy", &npy("|i1", &[2, 2, 4, 2], &[0; 32]));
    folder.write("new.npy", &npy("|i1", &[3, 2], &[1, 2, 3, 4, 5, 6]));
    let line = "apply kv-cache-operation --past past.npy --new-kv new.npy --layer-id 1 --token-offset 4,1 --seq-len 2,1 \
                --present out.npy --json";
    insta::assert_snapshot!(folder.run(line).passed());
    let out = folder.read("out.npy");
    assert_eq!(out[128..144], [0; 16], "the other layer");
    assert_eq!(out[144..], [0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 0, 0, 0, 0, 0, 0]);
}

#[test]
fn extensions() {
    let folder = Folder::new();
    folder.write("cache.npy", &npy_f32(&[3, 4], (0_u8..12).map(f32::from)));
    folder.write("update.npy", &npy_f32(&[3, 2], [90.0, 91.0, 92.0, 93.0, 94.0, 95.0]));
    let apply =
        "apply tensor-scatter --past-cache cache.npy --update update.npy --axis 1 --present-cache out.npy";

    let skipped = folder.run(&format!("{apply} --write-indices 3,0,-1 --out-of-range skip-sample")).passed();
    insta::assert_snapshot!(skipped);
    let expected = [0.0, 1.0, 2.0, 3.0, 92.0, 93.0, 6.0, 7.0, 8.0, 9.0, 10.0, 11.0];
    assert_eq!(f32s(&folder.read("out.npy")), expected);

    let ring = format!("{apply} --write-indices 3,-1,2 --mode circular --lengths 2,1,0");
    folder.run(&ring).passed();
    let expected = [91.0, 1.0, 2.0, 90.0, 4.0, 5.0, 6.0, 92.0, 8.0, 9.0, 10.0, 11.0];
    assert_eq!(f32s(&folder.read("out.npy")), expected);
}

#[test]
fn strings_move_whole() {
    let folder = Folder::with_testdata();
    // The second row of the cache is written into the first row.
    let line = "apply tensor-scatter --past-cache testdata/files/strings.pb --update testdata/files/strings.pb --axis 1 \
                --mode circular --write-indices 1,0 --present-cache out.pb";
    insta::assert_snapshot!(folder.run(line).passed());
    let message = folder.read("out.pb");
    let at = |text: &str| message.windows(text.len()).position(|bytes| bytes == text.as_bytes());
    assert!(at("\u{3ba}") > Some(0) && at("\u{3ba}") < at("bb") && at("bb") < at("ccc"));
}

#[test]
fn nothing_is_left_behind_by_a_refusal() {
    let folder = Folder::new();
    folder.write_cache_and_update();
    folder.write("at.npy", &npy_i64(&[4]));
    let before = contents(&folder.path(""));
    folder.check_transcript("apply");
    assert!(contents(&folder.path("")) == before);
}

/// Checks that every operator also takes the cache and the update under the names of `kvscatter plan` and of
/// the other operators.
#[test]
fn the_cache_has_one_name_for_all_operators() {
    let folder = Folder::new();
    folder.write("scatter.npy", &npy_f32(&[1, 4, 1], [0.0; 4]));
    folder.write("scatter-new.npy", &npy_f32(&[1, 1, 1], [1.0]));
    folder.write("update.npy", &npy_f32(&[1, 1, 4, 1], [0.0; 4]));
    folder.write("update-new.npy", &npy_f32(&[1, 1, 1, 1], [1.0]));
    folder.write("operation.npy", &npy("<f2", &[1, 1, 4, 1], &[0; 8]));
    folder.write("operation-new.npy", &npy("<f2", &[1, 1], &[0, 0x3c]));
    for (operator, file, indices) in [
        ("tensor-scatter", "scatter", "--write-indices 2"),
        ("kv-cache-update", "update", "--write-indices 2"),
        ("kv-cache-operation", "operation", "--layer-id 0 --token-offset 3 --seq-len 1"),
    ] {
        for cache in ["cache", "past-cache", "past"] {
            for update in ["update", "new-kv"] {
                let files = format!("--{cache} {file}.npy --{update} {file}-new.npy");
                folder.run(&format!("apply {operator} {files} {indices} --in-place")).passed();
                folder.run(&format!("plan {operator} {files} {indices}")).passed();
            }
        }
        let last = folder.read(&format!("{file}.npy"));
        let data = &last[128..];
        assert!(data.iter().any(|byte| *byte != 0), "{operator}: {data:?}");
    }
}
