//! Checks that `include/kvscatter.h` is the output of cbindgen for this crate. `KVSCATTER_BLESS=1` rewrites
//! the header.
#![expect(clippy::unwrap_used, reason = "a helper that panics fails its test")]

use std::ffi::CStr;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::{env, fs};

use kvscatter::ElementType;
use kvscatter_capi::{kvs_status, kvs_status_name};

fn path() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("include/kvscatter.h")
}

fn checked_in() -> String {
    fs::read_to_string(path()).unwrap()
}

/// Returns the constants of the header whose names begin with `prefix`.
fn constants(header: &str, prefix: &str) -> Vec<(String, i32)> {
    let assignments = header.lines().filter_map(|line| line.trim().trim_end_matches(',').split_once(" = "));
    let named = assignments.filter(|(name, _)| name.starts_with(prefix) && name.bytes().all(is_upper));
    named.map(|(name, value)| (name.to_owned(), value.parse().unwrap())).collect()
}

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

/// The comments of the header may shorten `KVS_ERROR_RANK` to `_RANK`.
#[test]
fn every_status_in_a_comment_exists() {
    let header = checked_in();
    let errors: Vec<String> = constants(&header, "KVS_ERROR_").into_iter().map(|(name, _)| name).collect();
    let quoted = header.split('`').skip(1).step_by(2);
    let mentioned: Vec<String> = quoted
        .filter_map(|word| word.strip_prefix("KVS_ERROR").or(Some(word)))
        .filter(|word| word.len() > 1 && word.starts_with('_') && word.bytes().all(is_upper))
        .filter(|word| !word.ends_with('_'))
        .map(|word| format!("KVS_ERROR{word}"))
        .collect();
    let unknown: Vec<&String> = mentioned.iter().filter(|name| !errors.contains(name)).collect();
    assert!(mentioned.len() > 20 && unknown.is_empty(), "{unknown:?} of {}", mentioned.len());
}

/// Compiles a file that includes the header and uses every initializer, and returns the compiler's result.
/// Returns `None` if that compiler is not installed.
fn compiled(compiler: &str, language: &str, standard: &str) -> Option<Result<(), String>> {
    let header = checked_in();
    let initializers = header.lines().filter_map(|line| {
        let name = line.strip_prefix("#define ")?.split(' ').next()?;
        let of = name.strip_suffix("_INIT")?.to_lowercase();
        Some(format!("extern {of} {of}_made;\n{of} {of}_made = {name};\n"))
    });
    let source = format!("#include \"kvscatter.h\"\n{}", initializers.collect::<String>());
    assert_eq!(source.matches("_INIT;").count(), 11, "{source}");
    let mut command = Command::new(compiler);
    command.args(["-fsyntax-only", "-pedantic", "-Wall", "-Wextra", "-Werror", "-x", language]);
    command.arg(format!("-std={standard}")).arg("-I").arg(path().parent().unwrap()).arg("-");
    let child = command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn();
    if child.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::NotFound) {
        return None;
    }
    let mut child = child.unwrap();
    child.stdin.take().unwrap().write_all(source.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    Some(if output.status.success() { Ok(()) } else { Err(errors) })
}

/// The header compiles without a warning in the standards that it names. With an older standard, the compiler
/// reports one clear error.
#[test]
fn is_c99_and_cpp11() {
    for (compiler, language, standard, needed) in [
        ("cc", "c", "c99", None),
        ("cc", "c", "c11", None),
        ("c++", "c++", "c++11", None),
        ("c++", "c++", "c++17", None),
        ("cc", "c", "c89", Some("kvscatter.h needs C99 or later: compile with -std=c99")),
        ("cc", "c", "gnu89", Some("kvscatter.h needs C99 or later: compile with -std=c99")),
        ("c++", "c++", "c++98", Some("kvscatter.h needs C++11 or later: compile with -std=c++11")),
    ] {
        match (compiled(compiler, language, standard), needed) {
            // This writes to standard error itself, because the harness hides what a passing test prints.
            (None, _) => io::stderr()
                .write_all(format!("skipped: {standard}, since there is no `{compiler}`\n").as_bytes())
                .unwrap(),
            (Some(Ok(())), None) => {}
            (Some(Err(errors)), Some(needed)) => {
                assert!(errors.contains(needed), "{standard}: {errors}");
            }
            (Some(answer), _) => panic!("{standard}: {answer:?}"),
        }
    }
}

#[test]
fn every_status_has_its_name() {
    let name = |status: kvs_status| {
        // SAFETY: `kvs_status_name` returns a static string.
        unsafe { CStr::from_ptr(kvs_status_name(status)) }.to_str().unwrap()
    };
    let header = checked_in();
    let has = constants(&header, "KVS_ERROR_HAS_").len();
    let errors =
        constants(&header, "KVS_ERROR_").into_iter().filter(|(name, _)| !name.starts_with("KVS_ERROR_HAS_"));
    let all: Vec<_> = constants(&header, "KVS_OK").into_iter().chain(errors).collect();
    assert_eq!((all.len(), has), (58, 3));
    for (expected, status) in &all {
        assert_eq!(name(*status), expected);
    }
    let unknown = [-1, 99, 114, 115, 212, 305, 399, 411, i32::MIN, i32::MAX];
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
