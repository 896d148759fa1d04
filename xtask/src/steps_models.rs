//! Converts, lowers and certifies decoders, and compares them with programs that share no code with the
//! command.

use crate::cargo::{HEAVY, cargo_shared, command, target_dir};
use crate::command::With;
use crate::python::needs;
use crate::step::Step;
use crate::{steps_ort, steps_python};

const TESTS: &str = "crates/kvscatter-onnx/python-tests";
/// The script that writes ONNX's own tests of the operator, which tract's replacement must pass.
const ATTENTION_CASES: &str = "crates/kvscatter-onnx/python-tests/support/attention_cases.py";

/// Writes the conformance corpus and the tables of its page. With `is_check`, compares them instead. Writes node tests
/// for onnx into the build folder, and runs them with its reference evaluator.
pub(crate) fn conformance(is_check: bool) -> Step {
    let environment = steps_python::tools();
    let program = environment
        .python()
        .with_all(["xtask/conformance/main.py", "--command"])
        .with(target_dir().join("debug/kvscatter"))
        .with("--node-tests")
        .with(target_dir().join("conformance/tensorscatter.py"))
        .with_all(is_check.then_some("--check"));
    Step::new("conformance", vec![environment.make(), command(), program]).needs(needs(&[environment]))
}

/// Runs the Python tests in NumPy and ONNX Runtime, and the Rust tests that need ONNX Runtime. All of them
/// use the ONNX Runtime of the environment. Only the Rust tests use the plugin.
pub(crate) fn models() -> Step {
    let environment = steps_python::tools();
    let tests = environment
        .python()
        .with_all(["-m", "pytest", "--quiet", TESTS])
        .with_env("KVSCATTER_COMMAND", target_dir().join("debug/kvscatter"))
        .with_env("KVSCATTER_ORT_LIB", environment.path())
        // A plugin that another step has built would be beside the command.
        .with_env("KVSCATTER_ORT_PLUGIN", "none");
    let cases = target_dir().join("attention-cases");
    let write_cases = environment.python().with(ATTENTION_CASES).with(&cases);
    let (plugin, library) = steps_ort::development_plugin();
    let engine = cargo_shared("test", &format!("{HEAVY} --tests -- --ignored"))
        .with_env("KVSCATTER_CASES", cases)
        .with_env("KVSCATTER_ORT_LIB", environment.path())
        .with_env("KVSCATTER_ORT_PLUGIN", library);
    let commands = vec![environment.make(), command(), tests, write_cases, plugin, engine];
    Step::new("models", commands).needs(needs(&[environment]))
}
