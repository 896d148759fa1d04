//! Tests which instruction set a geometry uses, and how a handle and the environment variable limit it.
#![cfg(test)]

use std::env;
use std::process::Command;

use kvscatter::spec::onnx::TensorScatter;
use kvscatter::{ElementType, Isa, Prepared};

const VARIABLE: &str = "KVSCATTER_MAX_ISA";

/// The variable with the name of the instruction set that a child process must use.
const EXPECTED: &str = "KVSCATTER_TEST_ISA";

fn write() -> Prepared {
    TensorScatter::new().prepare(ElementType::Float16, &[1, 4, 8], &[1, 1, 8]).unwrap()
}

/// The variable is read once, so each value is tested in a child process.
#[test]
fn the_variable_limits_the_instruction_set() {
    if let Ok(expected) = env::var(EXPECTED) {
        assert_eq!(write().isa().to_string(), expected);
        return;
    }
    let limits = Isa::Avx512.up_to().map(|isa| (isa.to_string(), isa.min(Isa::detected())));
    let unknown = ["AVX2", "avx3", ""].map(|name| (name.to_owned(), Isa::detected()));
    for (name, expected) in limits.chain(unknown) {
        let child = Command::new(env::current_exe().unwrap())
            .args(["--exact", "the_variable_limits_the_instruction_set"])
            .env(VARIABLE, &name)
            .env(EXPECTED, expected.to_string())
            .output()
            .unwrap();
        let printed = String::from_utf8_lossy(&child.stdout);
        assert!(child.status.success() && printed.contains("1 passed"), "{name}: {printed}");
    }
}

#[test]
fn a_handle_uses_at_most_its_instruction_set() {
    assert_eq!(write().isa(), Isa::allowed());
    for isa in Isa::Avx512.up_to() {
        let limited = write().with_isa(isa);
        assert_eq!(limited.isa(), isa.min(Isa::allowed()));
        assert_eq!(limited.clone().with_tiny_limits().isa(), limited.isa());
        assert_eq!(limited.with_isa(Isa::Avx512).isa(), Isa::allowed());
    }
}
