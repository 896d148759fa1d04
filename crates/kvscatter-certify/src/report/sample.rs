//! Certificates for tests of rendering, one that passed and one that failed.

use crate::certificate::{CachePathTimes, Certificate, Check, Failure, Verdict};

/// Returns a certificate of a model for which all claims hold. An earlier build wrote the document.
pub(crate) fn passed() -> Certificate {
    serde_json::from_str(include_str!("sample.json")).unwrap()
}

/// Returns the same certificate with a clobbered slot, wrong logits and a copied cache.
pub(crate) fn failed() -> Certificate {
    let mut certificate = passed();
    let place = |slot| Failure {
        scenario: Some("ragged decode".to_owned()),
        step: Some(4),
        cache: Some("past_key_values.0.key".to_owned()),
        sample: Some(1),
        slot: Some(slot),
        ..Failure::new("the row has changed, although no write index names it")
    };
    certificate.evidence.observed[1] = Check::unless(
        "only-named-rows-change",
        "Only the rows that the write indices name have changed.",
        "27 steps, 4 caches, 2 fills: 20,736 rows compared, byte for byte.",
        (30..60).map(place),
    );
    certificate.occupancy[0].steps[4].samples[1].clobbered.push(30..60);
    certificate.logits[1].worst = 0.156;
    certificate.logits[1].greedy_equal = 31;
    if let Some(CachePathTimes { at, ratio, .. }) =
        certificate.timings.as_mut().and_then(|timings| timings.cache_path.as_mut())
    {
        (at[1].median_ns, *ratio) = (1.7e6, 4.1);
    }
    certificate.verdict = certificate.evidence.verdict();
    certificate
}

#[test]
fn verdicts_are_those_of_the_claims() {
    for (certificate, verdict) in [(passed(), Verdict::Passed), (failed(), Verdict::Failed)] {
        assert_eq!((certificate.verdict, certificate.evidence.verdict()), (verdict, verdict));
    }
}
