//! Tests which instruction set a geometry uses, and how the environment variable limits it.

use std::env;
use std::io::Write;
use std::process::Command;

use kvscatter::spec::onnx::TensorScatter;
use kvscatter::{ElementType, Isa};

const VARIABLE: &str = "KVSCATTER_MAX_ISA";

/// The variable that allows `KVSCATTER_MAX_ISA` to contain an unknown name.
const ANY_WORD: &str = "KVSCATTER_TEST_ANY_WORD";

/// The instruction sets, narrowest first.
const NAMES: [(&str, Isa); 4] =
    [("portable", Isa::Portable), ("sse2", Isa::Sse2), ("avx2", Isa::Avx2), ("avx512", Isa::Avx512)];

/// `cargo xtask kernels` runs the whole suite once per instruction set. This test checks that the suite uses
/// the requested one.
#[test]
fn the_suite_runs_on_the_instruction_set_it_names() {
    let named = env::var(VARIABLE).ok();
    let place = |isa| NAMES.iter().position(|&(_, other)| other == isa);
    let limit = NAMES.iter().find(|(name, _)| named.as_deref() == Some(name)).map(|(_, isa)| *isa);
    // With a misspelt name, the suite would run on the wrong kernels.
    assert!(limit.is_some() || named.is_none() || env::var_os(ANY_WORD).is_some(), "{VARIABLE}={named:?}");
    let narrower = limit.filter(|&limit| place(limit) < place(Isa::detected()));
    let expected = narrower.unwrap_or(Isa::detected());
    let write = TensorScatter::new().prepare(ElementType::Float16, &[1, 4, 8], &[1, 1, 8]).unwrap();
    assert_eq!(write.isa(), expected);
    if let Some(limit) = limit.filter(|&limit| limit != expected) {
        // The line is written directly to stderr, because the test harness hides what a passing test prints.
        let line = format!("SKIPPED: this machine has no {limit}; these are the tests of {expected} again\n");
        std::io::stderr().write_all(line.as_bytes()).unwrap();
    }
}

#[test]
fn a_word_that_is_no_instruction_set_sets_no_limit() {
    for name in NAMES.map(|(name, _)| name).into_iter().chain(["AVX2", "avx3", ""]) {
        let status = Command::new(env::current_exe().unwrap())
            .args(["--exact", "the_suite_runs_on_the_instruction_set_it_names"])
            .env(VARIABLE, name)
            .env(ANY_WORD, "")
            .output()
            .unwrap();
        let printed = String::from_utf8_lossy(&status.stdout);
        assert!(status.status.success() && printed.contains("1 passed"), "{name}: {printed}");
    }
}
