//! Converts, lowers and certifies decoders, and compares them with programs that share no code with the
//! command.

use crate::cargo::{HEAVY, cargo_shared, command, target_dir};
use crate::step::Step;
use crate::{steps_ort, steps_python};

const TESTS: &str = "crates/kvscatter-onnx/python-tests";
/// The script that writes ONNX's own tests of the operator, which tract's replacement must pass.
const ATTENTION_CASES: &str = "crates/kvscatter-onnx/python-tests/support/attention_cases.py";

/// Writes the conformance corpus and the tables of its page. With `is_check`, compares them instead. Writes node tests
/// for onnx into the build folder, and runs them with its reference evaluator.
pub(crate) fn conformance(is_check: bool) -> Step {
    let environment = steps_python::tools();
    let mut program = environment.python();
    program.arg("xtask/conformance/main.py").arg("--command").arg(target_dir().join("debug/kvscatter"));
    program.arg("--node-tests").arg(target_dir().join("conformance/tensorscatter.py"));
    program.args(is_check.then_some("--check"));
    let needs = steps_python::needs(&[steps_python::tools()]);
    Step::new("conformance", vec![environment.make(), command(), program]).needs(needs)
}

/// Runs the Python tests in NumPy and ONNX Runtime, and the Rust tests that need ONNX Runtime. All of them
/// use the ONNX Runtime of the environment. Only the Rust tests use the plugin.
pub(crate) fn models() -> Step {
    let environment = steps_python::tools();
    let mut tests = environment.python();
    tests.args(["-m", "pytest", "--quiet", TESTS]);
    tests.env("KVSCATTER_COMMAND", target_dir().join("debug/kvscatter"));
    let cases = target_dir().join("attention-cases");
    let mut write_cases = environment.python();
    write_cases.arg(ATTENTION_CASES).arg(&cases);
    let mut engine = cargo_shared("test", &format!("{HEAVY} --tests -- --ignored"));
    engine.env("KVSCATTER_CASES", cases);
    for command in [&mut tests, &mut engine] {
        command.env("KVSCATTER_ORT_LIB", environment.path());
    }
    // A plugin that another step has built would be beside the command.
    tests.env("KVSCATTER_ORT_PLUGIN", "none");
    let (plugin, library) = steps_ort::development_plugin();
    engine.env("KVSCATTER_ORT_PLUGIN", library);
    let needs = steps_python::needs(&[steps_python::tools()]);
    Step::new("models", vec![environment.make(), command(), tests, write_cases, plugin, engine]).needs(needs)
}
