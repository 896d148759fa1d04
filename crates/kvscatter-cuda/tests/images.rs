//! Checks that the checked-in images were made from the kernels.
//!
//! A changed kernel fails here, without a compiler for devices. `cargo xtask cuda-images` compiles the
//! kernels again, and `--check` compares every byte.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Read as _};
use std::path::Path;

use flate2::read::GzDecoder;
use sha2::{Digest, Sha256};

#[test]
fn every_image_was_made_from_the_kernels_of_today() {
    let kernels = Path::new(env!("CARGO_MANIFEST_DIR")).join("kernels");
    let images = kernels.join("images");
    let made_by = fs::read_to_string(images.join("made-by.txt")).unwrap();
    let sums = sums(&made_by);
    let compiled = |name: &String| name.ends_with(".cuh") || name == "kvscatter.cu";
    for name in names(&kernels).unwrap().into_iter().filter(compiled) {
        assert!(sums.contains_key(&*format!("../{name}")), "made-by.txt does not name {name}");
    }
    for (name, &sum) in &sums {
        let now = sha256(&content(&images.join(name)).unwrap());
        assert_eq!(
            now, sum,
            "{name} does not match its checksum in made-by.txt: run `cargo xtask cuda-images`"
        );
    }
    for file in names(&images).unwrap() {
        let name = file.strip_suffix(".gz").unwrap_or(&file);
        assert!(name == "made-by.txt" || sums.contains_key(name), "made-by.txt does not name {name}");
    }
}

fn names(folder: &Path) -> io::Result<Vec<String>> {
    fs::read_dir(folder)?.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned())).collect()
}

/// Returns the content of a file, or the decompressed content of the file with this name and `.gz`.
fn content(path: &Path) -> io::Result<Vec<u8>> {
    let compressed = path.with_added_extension("gz");
    if !compressed.exists() {
        return fs::read(path);
    }
    let mut content = Vec::new();
    GzDecoder::new(&*fs::read(compressed)?).read_to_end(&mut content)?;
    Ok(content)
}

/// Returns the names and sums of the lines that are in the format of `sha256sum`.
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
