//! The images that are checked in are those of the kernels that are: whoever changes a kernel learns it here, where no
//! compiler for devices is needed. `cargo xtask cuda-images` compiles again, and `--check` compares every byte.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use sha2::{Digest, Sha256};

#[test]
fn every_image_was_made_from_the_kernels_of_today() {
    let images = Path::new(env!("CARGO_MANIFEST_DIR")).join("kernels/images");
    let made_by = fs::read_to_string(images.join("made-by.txt")).unwrap();
    let sums = sums(&made_by);
    assert!(sums.contains_key("../kvscatter.cu"), "made-by.txt does not say what the images were made from");
    for (name, &sum) in &sums {
        let now = sha256(&fs::read(images.join(name)).unwrap());
        assert_eq!(now, sum, "{name} is not what made-by.txt says: run `cargo xtask cuda-images`");
    }
    for entry in fs::read_dir(&images).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        assert!(
            name == "made-by.txt" || sums.contains_key(name.as_str()),
            "made-by.txt does not name {name}"
        );
    }
}

/// The lines that `sha256sum` would write: names and sums.
fn sums(made_by: &str) -> BTreeMap<&str, &str> {
    made_by
        .lines()
        .filter_map(|line| line.split_once("  "))
        .filter(|(sum, _)| sum.len() == 64)
        .map(|(sum, name)| (name, sum))
        .collect()
}

fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}
