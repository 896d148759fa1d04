//! Runs the passes of the hostile test on models that its generator makes of the input, and reads the input itself.
//!
//! - Nothing panics, and no pass takes more memory than the size of the file allows.
//! - A saved model that is read and saved again has the same bytes.
//! - All placements give the same outputs.

#![no_main]

#[path = "../../crates/kvscatter-onnx/tests/hostile/bounds.rs"]
mod bounds;
#[path = "../../crates/kvscatter-onnx/tests/hostile/counts.rs"]
#[expect(dead_code, reason = "the test prints the counts")]
mod counts;
#[path = "../../crates/kvscatter-onnx/tests/linear/models.rs"]
mod families;
#[path = "../../crates/kvscatter-onnx/tests/hostile/generator/mod.rs"]
#[expect(dead_code, reason = "the test also has a folder of files")]
mod generator;
#[path = "../../crates/kvscatter-onnx/tests/hostile/passes.rs"]
mod passes;
#[path = "../../crates/kvscatter-onnx/tests/onnx/support.rs"]
#[expect(dead_code, unused_imports, unused_macros, reason = "the other tests use the rest of it")]
mod support;

use std::collections::BTreeSet;

use kvscatter_onnx::{Model, read_tensor_pb};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    if let Ok(tensor) = read_tensor_pb(bytes) {
        assert!(passes::read_back(&tensor).is_ok());
    }
    run(bytes);
    run(&generator::Case::new(&mut generator::dice::Dice::new(0, bytes)).bytes);
});

fn run(bytes: &[u8]) {
    let Ok(model) = Model::from_bytes(bytes) else { return };
    let mut counts = counts::Counts::default();
    let mut meter = bounds::Meter {
        counts: &mut counts,
        seed: 0,
        // The checks of the fuzzer take most of the time.
        slower: f64::INFINITY,
        len: counts::number(u64::try_from(bytes.len()).unwrap()),
        failures: Vec::new(),
        passed: BTreeSet::new(),
        starts: &|_| {},
        ends: &|_, _| {},
    };
    let seed = bytes.first().copied().unwrap_or_default().into();
    passes::run(&mut meter, model, seed, &|model, _| Ok(Model::from_bytes(&model.to_bytes()?).map(drop)?));
    assert!(meter.failures.is_empty(), "{:?}", meter.failures);
}
