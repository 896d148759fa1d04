//! Tests the pictures, tables, JSON and SVG of `kvscatter plan`.

use crate::support::{Folder, npy, npy_i64};

#[test]
fn a_ring_with_every_kind_of_lane() {
    let line = "plan tensor-scatter --cache 6,8,16,64 --update 6,8,3,64 --write-indices=-1,0,14,7,99,3 --mode circular \
                --lengths 3,3,3,1,0,2 --svg ring.svg";
    let folder = Folder::new();
    insta::assert_snapshot!("ring", folder.run(line).passed());
    insta::assert_snapshot!("ring_svg", String::from_utf8(folder.read("ring.svg")).unwrap());
}

#[test]
fn slots_that_the_last_written_token_sees_are_marked() {
    let folder = Folder::new();
    let ring = "plan tensor-scatter --cache 3,8,16,64 --update 3,8,2,64 --write-indices 3,20,31 --mode circular \
                --lengths 2,1,2 --svg seen.svg";
    let windowed = folder.run(&format!("{ring} --visible=8")).passed();
    insta::assert_snapshot!("seen_in_a_ring", windowed);
    assert!(String::from_utf8(folder.read("seen.svg")).unwrap().contains("url(#visible)"));
    // Without a window, a token of a full ring sees all slots.
    assert!(folder.run(&format!("{ring} --visible")).passed().contains("  4, sees 5-15, 0-4\n"));
    assert!(!folder.run(ring).passed().contains("sees"));
    // The positions of this operator are lengths after the write.
    let operation = "plan kv-cache-operation --past 2,2,8,64 --new-kv 3,64 --layer-id 1 --token-offset 5,2 \
                     --seq-len 2,1 --visible=4";
    let text = folder.run(operation).passed();
    assert!(text.contains("  3-4, sees 1-4\n") && text.contains("  1, sees 0-1\n"), "{text}");
}

#[test]
fn a_window_is_checked_against_its_ring() {
    let folder = Folder::new();
    let line = "plan tensor-scatter --cache 4,8,11,64 --update 4,8,5,64 --write-indices 20,18,2,-1 --lengths 4,5,3,2 \
                --mode circular --window 8";
    insta::assert_snapshot!("window_of_a_ring", folder.run(line).passed());
    let json = folder.json(line);
    insta::assert_snapshot!("window_of_a_ring_json", serde_json::to_string_pretty(&json["ring"]).unwrap());
    // The page shows one of these steps.
    let page = include_str!("../../README.md");
    let shown = page
        .lines()
        .find_map(|line| line.strip_prefix("kvscatter ").filter(|line| line.contains("--window")));
    let text = folder.run(shown.unwrap()).passed();
    let picture = text.split("\n\n").nth(2).unwrap();
    assert!(page.contains(&format!("```text\n{picture}\n```\n")), "{picture}");
    let linear = folder.run("plan tensor-scatter --cache 1,1,4,1 --update 1,1,1,1 --window 3").refused();
    assert_eq!(
        linear,
        "error: --window 3: a linear cache keeps every position; add --mode circular for a ring"
    );
    let none = folder.run("plan tensor-scatter --cache 1,1,4,1 --update 1,1,1,1 --mode circular --window 0");
    assert!(none.refused().contains("--window"));
    // Each ring takes several lines, so that a large batch shows the first.
    let many =
        folder.run("plan tensor-scatter --cache 20,1,4224,1 --update 20,1,1,1 --mode circular --window 4096");
    assert!(many.passed().contains("\n… 12 more samples\n"));
}

#[test]
fn skipped_samples() {
    let line = "plan tensor-scatter --cache 3,2,8,4 --update 3,2,2,4 --write-indices 7,0,-1 --out-of-range skip-sample";
    insta::assert_snapshot!(Folder::new().run(line).passed());
}

#[test]
fn a_packed_kv_cache_update() {
    let line = "plan kv-cache-update --cache 4,2,8,64 --update 3,2,64 --update-lengths 0,1,1,3 --write-indices 2,0,5 \
                --type bfloat16";
    insta::assert_snapshot!(Folder::new().run(line).passed());
}

#[test]
fn a_kv_cache_operation() {
    let line =
        "plan kv-cache-operation --past 2,2,8,64 --new-kv 3,64 --layer-id 1 --token-offset 5,2 --seq-len 2,1";
    insta::assert_snapshot!(Folder::new().run(line).passed());
}

#[test]
fn a_wide_cache_is_scaled_and_a_large_batch_is_cut() {
    let line = "plan tensor-scatter --cache 40,8,4096,128 --update 40,8,1,128";
    insta::assert_snapshot!(Folder::new().run(line).passed());
}

#[test]
fn json() {
    let line =
        "plan tensor-scatter --cache 2,2,4,1 --update 2,2,2,1 --write-indices 3,1 --mode circular --json";
    insta::assert_snapshot!(Folder::new().run(line).passed());
}

#[test]
fn nothing_to_write() {
    for update in ["0,2,1,4", "0,2,0,4"] {
        let line = format!("plan tensor-scatter --cache 0,2,8,4 --update {update}");
        assert!(Folder::new().run(&line).passed().contains("writes 0 elements"), "{update}");
    }
    let folder = Folder::new();
    let args = ["plan", "tensor-scatter", "--cache", "0,8,4", "--update", "0,1,4", "--write-indices", ""];
    assert!(folder.run_args(&args).passed().contains("writes 0 elements"));
}

#[test]
fn strings_are_counted_not_measured() {
    let line = "plan tensor-scatter --cache 1,4,2 --update 1,1,2 --type string";
    let text = Folder::new().run(line).passed();
    assert!(text.ends_with("writes 2 elements; nothing else changes\n"), "{text}");
}

#[test]
fn of_files_only_the_header_counts() {
    let folder = Folder::new();
    folder.write("cache.npy", &npy("<V2", &[2, 8, 4], &[0; 128]));
    folder.write("at.npy", &npy_i64(&[7, 0]));
    let line = "plan tensor-scatter --cache cache.npy --type bfloat16 --update 2,1,4 --write-indices at.npy";
    insta::assert_snapshot!(folder.run(line).passed());
}

#[test]
fn a_colossal_batch_is_answered_at_once() {
    let line = "plan tensor-scatter --cache 1000000000000,4,1 --update 1000000000000,1,1 --type uint8";
    let text = Folder::new().run(line).passed();
    assert!(text.contains("writes 1000000000000 elements"), "{text}");
}

/// Checks that lists have a limit and count what they leave out, because a shape may claim any number of
/// samples.
#[test]
fn a_colossal_batch_is_answered_at_once_as_json_too() {
    let folder = Folder::new();
    let shapes = "--cache 1000000000000,4,1 --update 1000000000000,1,1 --type uint8";
    let json = folder.json(&format!("plan tensor-scatter {shapes} --svg p.svg"));
    assert_eq!(json["segments"].as_array().unwrap().len(), 10_000);
    assert_eq!(json["samples_left_out"], 999_999_990_000_u64);
    let listed: u64 = json["blocks"]
        .as_array()
        .unwrap()
        .iter()
        .map(|block| {
            let counts = block["loops"].as_array().unwrap().iter().map(|l| l["count"].as_u64().unwrap());
            block["len"].as_u64().unwrap() * counts.product::<u64>()
        })
        .sum();
    assert_eq!(json["elements_left_out"], 1_000_000_000_000 - listed);
    let text = folder.run(&format!("plan tensor-scatter {shapes} --svg p.svg")).passed();
    assert!(text.ends_with("p.svg: the first 256 of 1000000000000 samples\n"), "{text}");

    let indices: Vec<_> = (0..10_001).map(|sample| if sample % 2 == 0 { 3 } else { 0 }).collect();
    folder.write("at.npy", &npy_i64(&indices));
    let line = "plan tensor-scatter --cache 10001,4,1 --update 10001,2,1 --write-indices at.npy";
    let json = folder.json(&format!("{line} --out-of-range skip-sample"));
    assert_eq!((&json["skipped"], &json["skipped_samples"][2]), (&5001.into(), &4.into()));
    assert_eq!((&json["samples_left_out"], &json["elements_left_out"]), (&0.into(), &0.into()));
    let json = folder.json(&format!("{line} --mode circular"));
    assert_eq!(json["segments"][1]["wrapped"], true);
    assert!(json["samples_left_out"].as_u64().unwrap() > 0);
}

#[test]
fn types_go_by_every_name_in_any_case() {
    let folder = Folder::new();
    for name in ["bfloat16", "BFLOAT16", "BF16", "bf16"] {
        let text =
            folder.run(&format!("plan tensor-scatter --cache 1,4,1 --update 1,1,1 --type {name}")).passed();
        assert!(text.starts_with("bfloat16 cache"), "{name}: {text}");
    }
    for (name, onnx) in [("F32", "float"), ("float32", "float"), ("Double", "double"), ("string", "string")] {
        let text =
            folder.run(&format!("plan tensor-scatter --cache 1,4,1 --update 1,1,1 --type {name}")).passed();
        assert!(text.starts_with(&format!("{onnx} cache")), "{name}: {text}");
    }
}

#[test]
fn every_lane_is_in_the_svg() {
    let folder = Folder::new();
    let line = "plan tensor-scatter --cache 200,4,1 --update 200,1,1 --svg p.svg";
    let text = folder.run(line).passed();
    assert!(!text.contains("p.svg"), "{text}");
    let svg = String::from_utf8(folder.read("p.svg")).unwrap();
    assert!(svg.contains(">sample 199<"));
}

#[test]
fn refusals() {
    let folder = Folder::new();
    folder.write("int32.npy", &npy("<i4", &[2], &[0; 8]));
    folder.write("matrix.npy", &npy("<i8", &[2, 1], &[0; 16]));
    folder.write("floats.npy", &npy("<f4", &[2], &[0; 8]));
    folder.write("f32.npy", &npy("<f4", &[2, 1, 4, 1], &[0; 32]));
    folder.write("f16.npy", &npy("<f2", &[2, 1, 1, 1], &[0; 4]));
    let onnx = "plan tensor-scatter --cache 2,1,4,1 --update 2,1,2,1";
    let tensorrt = "plan kv-cache-update --cache 2,1,4,1 --update";
    let ascend = "plan kv-cache-operation --past 2,2,8,6 --new-kv 3,6";
    let lines = [
        format!("{onnx} --write-indices 3,0"),
        format!("{onnx} --write-indices 0,9223372036854775807"),
        format!("{onnx} --write-indices -1,0"),
        format!("{onnx} --write-indices -1,0 --mode circular --negative-index reject"),
        format!("{onnx} --write-indices 0"),
        format!("{onnx} --write-indices int32.npy"),
        format!("{onnx} --write-indices matrix.npy"),
        format!("{onnx} --write-indices floats.npy"),
        format!("{onnx} --write-indices absent.npy"),
        format!("{onnx} --axis 0"),
        format!("{onnx} --axis -4"),
        format!("{onnx} --axis 4"),
        format!("{onnx} --lengths 3,0"),
        format!("{onnx} --lengths 1"),
        "plan tensor-scatter --cache 4 --update 4".to_owned(),
        "plan tensor-scatter --cache 2,4 --update 2,1".to_owned(),
        "plan tensor-scatter --cache 2,4 --update 2,1 --axis 0".to_owned(),
        "plan tensor-scatter --cache c.npy#x --update 2,1".to_owned(),
        "plan tensor-scatter --cache 2,4,1 --update 2,1,1 --write-indices at.npy#x".to_owned(),
        format!("{ascend} --layer-id 0 --token-offset 2,1 --seq-len 2,1 --type float"),
        "plan tensor-scatter --cache 2,4,1 --update 2,4".to_owned(),
        "plan tensor-scatter --cache 2,4,1 --update 3,4,1".to_owned(),
        "plan tensor-scatter --cache 2,4,1 --update 2,5,1 --mode circular".to_owned(),
        "plan tensor-scatter --cache 2,9223372036854775807,2 --update 2,1,2".to_owned(),
        "plan tensor-scatter --cache f32.npy --update f16.npy".to_owned(),
        "plan tensor-scatter --cache f32.npy --update f16.npy --type float16".to_owned(),
        "plan kv-cache-operation --past f32.npy --new-kv f16.npy --layer-id 0 --token-offset 1,1 --seq-len 1,1"
            .to_owned(),
        format!("{tensorrt} 2,1,2,1 --write-indices 3,0"),
        format!("{tensorrt} 2,1,2,1 --write-indices 0,0 --type int8"),
        format!("{tensorrt} 2,1,2,1 --write-indices 0,0 --update-lengths 0,1,2"),
        format!("{tensorrt} 2,1,1 --write-indices 0,0"),
        format!("{tensorrt} 2,1,1 --write-indices 0,0 --update-lengths 1,1,2"),
        format!("{tensorrt} 2,1,1 --write-indices 0,0 --update-lengths 0,3,2"),
        format!("{tensorrt} 2,1,1 --write-indices 0,0 --update-lengths 0,1,3"),
        format!("{tensorrt} 2,1,1 --write-indices 0,0 --update-lengths 0,1,2147483648"),
        format!("{tensorrt} 3,1,2,1 --write-indices 0,0,0"),
        format!("{ascend} --layer-id 2 --token-offset 2,1 --seq-len 2,1"),
        format!("{ascend} --layer-id 0,1 --token-offset 2,1 --seq-len 2,1"),
        format!("{ascend} --layer-id 0 --token-offset 1,1 --seq-len 2,1"),
        format!("{ascend} --layer-id 0 --token-offset 9,1 --seq-len 2,1"),
        format!("{ascend} --layer-id 0 --token-offset 3,1 --seq-len 3,0"),
        format!("{ascend} --layer-id 0 --token-offset 2,2 --seq-len 2,2"),
    ];
    insta::assert_snapshot!(folder.refusals("", &lines));
}
