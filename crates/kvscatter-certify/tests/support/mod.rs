//! Helpers that all test programs use.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use kvscatter_certify::CertifyOptions;
use kvscatter_certify::certificate::{Certificate, Check, Machine, Verdict};

/// Returns the path of a file in the repository's test data.
pub(crate) fn testdata(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata").join(name)
}

/// Returns the claim with this name.
pub(crate) fn check<'c>(certificate: &'c Certificate, id: &str) -> &'c Check {
    let found: Vec<_> = certificate.evidence.checks().filter(|check| check.id == id).collect();
    assert_eq!(found.len(), 1, "{id}");
    found[0]
}

/// Returns the names of the claims that fail.
pub(crate) fn failed(certificate: &Certificate) -> BTreeSet<&str> {
    let failed = certificate.evidence.checks().filter(|check| check.verdict == Verdict::Failed);
    failed.map(|check| check.id.as_str()).collect()
}

/// Checks that a certificate has this verdict. Prints its claims otherwise.
#[track_caller]
pub(crate) fn assert_verdict(certificate: &Certificate, verdict: Verdict) {
    let claims = certificate.evidence.checks().map(|check| {
        format!("{:?} {}: {} {:?}", check.verdict, check.id, check.evidence, check.failures.first())
    });
    let claims: Vec<_> = claims.collect();
    assert_eq!(certificate.verdict, verdict, "{:?}\n{}", failed(certificate), claims.join("\n"));
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
