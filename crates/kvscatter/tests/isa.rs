//! Which instruction set a geometry uses, and what the variable that limits it does.

use std::env;
use std::io::Write;
use std::process::Command;

use kvscatter::spec::onnx::TensorScatter;
use kvscatter::{ElementType, Isa};

const VARIABLE: &str = "KVSCATTER_MAX_ISA";

/// Set where the word is meant to be none of the names.
const ANY_WORD: &str = "KVSCATTER_TEST_ANY_WORD";

/// Narrowest first.
const NAMES: [(&str, Isa); 4] =
    [("portable", Isa::Portable), ("sse2", Isa::Sse2), ("avx2", Isa::Avx2), ("avx512", Isa::Avx512)];

/// The whole suite runs once per instruction set (`cargo xtask kernels`): this test says that it is the one
/// asked for.
#[test]
fn the_suite_runs_on_the_instruction_set_it_names() {
    let named = env::var(VARIABLE).ok();
    let place = |isa| NAMES.iter().position(|&(_, other)| other == isa);
    let limit = NAMES.iter().find(|(name, _)| named.as_deref() == Some(name)).map(|(_, isa)| *isa);
    // A misspelt word would run the suite on the wrong kernels.
    assert!(limit.is_some() || named.is_none() || env::var_os(ANY_WORD).is_some(), "{VARIABLE}={named:?}");
    let narrower = limit.filter(|&limit| place(limit) < place(Isa::detected()));
    let expected = narrower.unwrap_or(Isa::detected());
    let write = TensorScatter::new().prepare(ElementType::Float16, &[1, 4, 8], &[1, 1, 8]).unwrap();
    assert_eq!(write.isa(), expected);
    if let Some(limit) = limit.filter(|&limit| limit != expected) {
        // Past the harness, which keeps what a passing test prints to itself.
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
