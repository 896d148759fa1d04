//! Certificates for tests of rendering, one that passed and one that failed.

use crate::certificate::{CachePathTimes, Certificate, Check, Divergence, Failure, StoredRows, Verdict};

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
    certificate.stored.extend(["key", "value"].map(|part| StoredRows {
        cache: format!("past_key_values.0.{part}"),
        layer: 0,
        element: "int8".to_owned(),
        compared: 4256,
        worst: 0.999_82,
        largest_error: 2.28e-3,
        largest_given: 0.5943,
        score_bound: Some(1.89e-3).filter(|_| part == "key"),
        output_bound: Some(7.4e-3).filter(|_| part == "value"),
    }));
    certificate.divergence = Some(Divergence {
        tokens: 42,
        mean_kl: 2.1e-4,
        p99_kl: 1.8e-3,
        same_top_1: 41,
        largest_difference: 0.156,
        limit: 1e-2,
    });
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
