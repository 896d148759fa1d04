//! Helpers that both test programs use.

use std::path::{Path, PathBuf};

use kvscatter_certify::CertifyOptions;
use kvscatter_certify::certificate::Machine;

/// Returns the path of a file in the repository's test data.
pub(crate) fn testdata(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata").join(name)
}

/// Returns options to certify a model of the test data, without timing and with default sizes.
pub(crate) fn options(model: &str, original: Option<&str>) -> CertifyOptions {
    CertifyOptions {
        model: testdata(model),
        original: original.map(testdata),
        batch: None,
        prompts: None,
        steps: None,
        chunk: None,
        capacity: None,
        seed: 1,
        tolerance: None,
        threads: 1,
        memory: 1 << 30,
        is_timed: false,
        command: String::new(),
        machine: Machine { cpu: String::new(), cores: 1, os: String::new() },
        made_at: None,
    }
}
