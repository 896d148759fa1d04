//! Running batches in tract. Samples are added, extended, truncated and removed, and each gets the same
//! logits as in a batch without other samples.

use kvscatter_onnx::convert::convert;
use kvscatter_onnx::{Model, WeightTransfer};
use kvscatter_tract::Tract;

use crate::churn::churn;
use crate::rings::{check_truncation, churn_rings};
use crate::support::decoder;

#[test]
fn an_exported_static_decoder_scores_each_sample_as_alone() {
    (0..2).for_each(|seed| churn(&Tract, &decoder("mobius-llama-static"), None, seed, 1e-4));
}

#[test]
fn converted_decoders_score_each_sample_as_alone() {
    let folder = tempfile::tempdir().unwrap();
    for name in ["optimum-llama", "mobius-llama-dynamic"] {
        let converted = convert(&Model::load(&decoder(name)).unwrap(), 24).unwrap();
        let path = folder.path().join(format!("{name}.onnx"));
        converted.model.save_with_weights(&path, WeightTransfer::Copy).unwrap();
        (0..2).for_each(|seed| churn(&Tract, &path, None, seed, 1e-4));
    }
}

#[test]
fn rings_score_each_sample_as_linear_caches_do() {
    churn_rings(&Tract, &decoder("mobius-llama-dynamic"), 4);
}

#[test]
fn a_ring_is_truncated_by_its_rewind_and_no_further() {
    check_truncation(&Tract, &decoder("mobius-llama-dynamic"));
}
