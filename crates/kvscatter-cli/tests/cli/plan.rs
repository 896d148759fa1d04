//! Tests the pictures, tables, JSON and SVG of `kvscatter plan`.

use crate::support::{Folder, npy, npy_i64};

#[test]
fn pictures_tables_and_refusals() {
    let folder = Folder::new();
    folder.write("cache.npy", &npy("<V2", &[2, 8, 4], &[0; 128]));
    folder.write("at.npy", &npy_i64(&[7, 0]));
    folder.write("int32.npy", &npy("<i4", &[2], &[0; 8]));
    folder.write("matrix.npy", &npy("<i8", &[2, 1], &[0; 16]));
    folder.write("floats.npy", &npy("<f4", &[2], &[0; 8]));
    folder.write("f32.npy", &npy("<f4", &[2, 1, 4, 1], &[0; 32]));
    folder.write("f16.npy", &npy("<f2", &[2, 1, 1, 1], &[0; 4]));
    folder.check_transcript("plan");
    let svg = |name: &str| String::from_utf8(folder.read(name)).unwrap();
    insta::assert_snapshot!("ring_svg", svg("ring.svg"));
    assert!(svg("seen.svg").contains("url(#visible)"));
}

#[test]
fn a_window_is_checked_against_its_ring() {
    let folder = Folder::new();
    let line = "plan tensor-scatter --cache 4,8,11,64 --update 4,8,5,64 --write-indices 20,18,2,-1 --lengths 4,5,3,2 \
                --mode circular --window 8";
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
    // Each ring takes several lines, so that a large batch shows the first.
    let many =
        folder.run("plan tensor-scatter --cache 20,1,4224,1 --update 20,1,1,1 --mode circular --window 4096");
    assert!(many.passed().contains("\n… 12 more samples\n"));
}

/// Checks that lists have a limit and count what they leave out, because a shape may claim any number of
/// samples.
#[test]
fn a_colossal_batch_is_answered_at_once() {
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
    assert!(text.contains("writes 1000000000000 elements"), "{text}");
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
    let bfloat16 = ["bfloat16", "BFLOAT16", "BF16", "bf16"].map(|name| (name, "bfloat16"));
    let others = [("F32", "float"), ("float32", "float"), ("Double", "double"), ("string", "string")];
    for (name, onnx) in bfloat16.into_iter().chain(others) {
        let line = format!("plan tensor-scatter --cache 1,4,1 --update 1,1,1 --type {name}");
        let text = folder.run(&line).passed();
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
