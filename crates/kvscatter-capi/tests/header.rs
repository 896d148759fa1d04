//! `include/kvscatter.h` is what cbindgen makes of the code. `KVSCATTER_BLESS=1` rewrites it.

use std::ffi::CStr;
use std::path::{Path, PathBuf};
use std::{env, fs};

use kvscatter::ElementType;
use kvscatter_capi::{kvs_status, kvs_status_name};

#[cfg(test)]
fn path() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("include/kvscatter.h")
}

#[cfg(test)]
fn checked_in() -> String {
    fs::read_to_string(path()).unwrap()
}

/// The constants of the header whose names begin like this.
#[cfg(test)]
fn constants(header: &str, prefix: &str) -> Vec<(String, i32)> {
    let assignments = header.lines().filter_map(|line| line.trim().trim_end_matches(',').split_once(" = "));
    let named = assignments.filter(|(name, _)| name.starts_with(prefix) && name.bytes().all(is_upper));
    named.map(|(name, value)| (name.to_owned(), value.parse().unwrap())).collect()
}

#[cfg(test)]
fn is_upper(byte: u8) -> bool {
    byte.is_ascii_uppercase() || byte.is_ascii_digit() || byte == b'_'
}

#[test]
fn is_current() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let config = cbindgen::Config::from_file(root.join("cbindgen.toml")).unwrap();
    let mut made = Vec::new();
    cbindgen::Builder::new().with_crate(root).with_config(config).generate().unwrap().write(&mut made);
    let made = String::from_utf8(made).unwrap();
    if env::var_os("KVSCATTER_BLESS").is_some() {
        fs::write(path(), &made).unwrap();
    }
    let current = checked_in() == made;
    assert!(
        current,
        "include/kvscatter.h is not current: KVSCATTER_BLESS=1 cargo test -p kvscatter-capi --test header"
    );
}

#[test]
fn every_status_has_its_name() {
    let name = |status: kvs_status| {
        // SAFETY: it is a static string.
        unsafe { CStr::from_ptr(kvs_status_name(status)) }.to_str().unwrap()
    };
    let header = checked_in();
    let has = constants(&header, "KVS_ERROR_HAS_").len();
    let errors =
        constants(&header, "KVS_ERROR_").into_iter().filter(|(name, _)| !name.starts_with("KVS_ERROR_HAS_"));
    let all: Vec<_> = constants(&header, "KVS_OK").into_iter().chain(errors).collect();
    assert_eq!((all.len(), has), (45, 3));
    for (expected, status) in &all {
        assert_eq!(name(*status), expected);
    }
    let unknown = [-1, 99, 115, 210, 304, i32::MIN, i32::MAX];
    assert!(unknown.into_iter().all(|status| name(status) == "unknown"));
}

#[test]
fn element_types_are_the_cores() {
    let header = checked_in();
    let all = constants(&header, "KVS_").into_iter().collect::<std::collections::HashMap<_, _>>();
    for element in ElementType::ALL {
        let name = format!("KVS_{element:?}").to_uppercase();
        assert_eq!(all.get(&name), Some(&element.onnx_code()), "{name}");
    }
}
