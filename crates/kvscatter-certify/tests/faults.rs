//! Creates every fault in a small fake engine and checks that the certificate reports it. A runtime is not
//! needed.

#![expect(clippy::unwrap_used, clippy::panic, reason = "helpers of tests fail the test they help")]

#[path = "../../kvscatter-session/tests/conv_state/mod.rs"]
mod conv_state;
#[path = "../../kvscatter-session/tests/decoders/mod.rs"]
#[expect(dead_code, reason = "certificates need no generator")]
mod decoders;
mod fake;
mod support;

use fake::{Fake, Fault};
use kvscatter_certify::certificate::{Certificate, Fill, LogitsReference, SecondOpinion, Verdict};
use kvscatter_certify::{CertifyError, CertifyOptions, certify};
use kvscatter_onnx::decoder::Growth;
use kvscatter_onnx::internal::proto::NodeProto;
use kvscatter_onnx::{LowerTarget, Model, WeightTransfer, lower};
use kvscatter_session::{KvSession, SessionError, SessionOptions, SessionSetting};
use support::{assert_verdict, check, failed, testdata};

const STATIC: &str = "mobius-llama-static/model.onnx";
const GROWING: &str = "optimum-llama/model.onnx";
const OPERATOR: &str = "genai-llama-gqa/model.onnx";

fn options(original: Option<&str>) -> CertifyOptions {
    CertifyOptions { steps: Some(6), seed: 7, ..support::options(STATIC, original) }
}

fn certified(fault: Fault, original: Option<&str>) -> Certificate {
    certify(&Fake(fault), &options(original), &mut |_| {}).unwrap()
}

#[test]
fn a_right_decoder_passes_next_to_its_original_and_without() {
    for (original, against, opinion) in [
        (None, LogitsReference::UnaliasedRun, SecondOpinion::None),
        (Some(GROWING), LogitsReference::Original, SecondOpinion::OriginalInSameEngine),
    ] {
        let certificate = certified(Fault::None, original);
        assert_eq!(certificate.second_opinion, opinion);
        assert_verdict(&certificate, Verdict::Passed);
        assert!(certificate.logits.iter().all(|logits| logits.against == against && logits.compared > 0));
        assert!(certificate.logits.iter().any(|logits| logits.fill == Fill::Canaries));
        assert_eq!(certificate.decoder.bytes, 4 * 3 * 64 * 32 * 4);
        assert_eq!(certificate.decoder.bytes_per_token, 4 * 32 * 4);
    }
}

#[track_caller]
fn assert_caught(certificate: &Certificate, fault: Fault, claim: &str) {
    assert_eq!(certificate.verdict, Verdict::Failed, "{fault:?}");
    assert!(failed(certificate).contains(claim), "{fault:?}: {:?}", failed(certificate));
}

fn certified_operator(fault: Fault, batch: Option<usize>) -> Certificate {
    let options = CertifyOptions {
        capacity: Some(40),
        batch,
        steps: Some(6),
        seed: 7,
        ..support::options(OPERATOR, None)
    };
    certify(&Fake(fault), &options, &mut |_| {}).unwrap()
}

#[test]
fn caches_of_an_operator_are_certified_as_far_as_it_goes() {
    let certificate = certified_operator(Fault::None, None);
    assert_verdict(&certificate, Verdict::Passed);
    let left_out = check(&certificate, "every-scenario-is-taken");
    assert_eq!(left_out.verdict, Verdict::NotApplicable);
    assert_eq!(
        left_out.evidence,
        "because of GroupQueryAttention, these were not run: prompts padded on the left, chunks of several samples in \
         mid-cache"
    );
    let mut ran: Vec<_> = certificate.occupancy.iter().map(|picture| picture.scenario.as_str()).collect();
    ran.dedup();
    let orders = ["ragged decode", "ragged decode, short sample first", "ragged decode, short sample last"];
    assert_eq!(ran, [&["prefill", "chunked prefill"], &orders[..], &["to the last slot"]].concat());
    for id in ["shape-is-kept", "write-indices-unchanged"] {
        assert_eq!(check(&certificate, id).verdict, Verdict::NotApplicable, "{id}");
    }
    for id in ["written-by-groupqueryattention", "nothing-in-between", "present-aliases-past", "logits-equal"]
    {
        assert_eq!(check(&certificate, id).verdict, Verdict::Passed, "{id}");
    }
    let alone = certified_operator(Fault::None, Some(1));
    let evidence = &check(&alone, "every-scenario-is-taken").evidence;
    assert!(evidence.ends_with("not run: prompts padded on the left"), "{evidence}");
}

#[test]
fn faults_of_caches_that_an_operator_writes_are_caught() {
    for (fault, claim) in [
        (Fault::IndexOffByOne, "rows-lie-where-named"),
        (Fault::IndexOffByOne, "only-named-rows-change"),
        (Fault::IndexOffByOne, "named-rows-are-written"),
        (Fault::Copied, "present-aliases-past"),
        (Fault::Clobbered, "only-named-rows-change"),
        (Fault::LengthOffByOne, "logits-equal"),
        (Fault::SharedIndex, "rows-lie-where-named"),
        (Fault::SeesUnwritten, "initial-values-do-not-matter"),
        (Fault::WritesPast, "rows-equal-unaliased-run"),
    ] {
        assert_caught(&certified_operator(fault, None), fault, claim);
    }
}

/// Certifies decoders with the state of a convolution.
fn certified_with_state(fault: Fault, model: &str, original: Option<&str>) -> Certificate {
    let changed = |name| decoders::changed(name, conv_state::add);
    let (model, original) = (changed(model), original.map(changed));
    let options = CertifyOptions {
        model: model.1.clone(),
        original: original.as_ref().map(|(_, path)| path.clone()),
        capacity: Some(64),
        ..options(None)
    };
    certify(&Fake(fault), &options, &mut |_| {}).unwrap()
}

#[test]
fn decoders_with_states_are_certified_without_padding() {
    let orders = ["ragged decode", "ragged decode, short sample first", "ragged decode, short sample last"];
    let ragged = [&["ragged chunks"], &orders[..]].concat();
    let by_states = "because of states, which depend on every row that is fed, these were not run: prompts padded on the \
                     left, prompts padded on the right";
    let by_operator = "because of GroupQueryAttention and states, which depend on every row that is fed, these were not \
                       run: prompts padded on the left, chunks of several samples in mid-cache, prompts padded on the \
                       right";
    for (model, original, ragged, left_out) in [
        (decoders::STATIC, None, &ragged[..], by_states),
        (decoders::STATIC, Some(decoders::GROWING), &ragged, by_states),
        (decoders::OPERATOR, None, &orders[..1], by_operator),
    ] {
        let certificate = certified_with_state(Fault::None, model, original);
        assert_verdict(&certificate, Verdict::Passed);
        assert_eq!(check(&certificate, "states-equal-unaliased-run").verdict, Verdict::Passed);
        assert_eq!(check(&certificate, "every-scenario-is-taken").evidence, left_out);
        let mut ran: Vec<_> = certificate.logits.iter().map(|logits| logits.scenario.as_str()).collect();
        ran.dedup();
        assert_eq!(ran, [&["prefill", "chunked prefill"], ragged, &["to the last slot"]].concat());
    }
}

#[test]
fn faults_of_states_are_caught() {
    for (fault, claim) in [
        (Fault::StateLost, "logits-equal"),
        (Fault::StateNotUpdated, "logits-equal"),
        (Fault::StateOfNeighbour, "logits-equal"),
        (Fault::NanInState, "states-equal-unaliased-run"),
        (Fault::WritesPast, "states-equal-unaliased-run"),
    ] {
        assert_caught(&certified_with_state(fault, decoders::STATIC, Some(decoders::GROWING)), fault, claim);
        // The model may take any number of tokens at once, so a fault shows without an original too.
        assert_caught(&certified_with_state(fault, decoders::STATIC, None), fault, claim);
        assert_caught(&certified_with_state(fault, decoders::OPERATOR, None), fault, claim);
    }
}

#[test]
fn written_slots_are_pictured() {
    let certificate = certified(Fault::None, None);
    let ragged = certificate.occupancy.iter().find(|picture| picture.scenario == "ragged decode").unwrap();
    // The prompts have 7, 3 and 5 tokens and are padded to 7. Each step then writes one token over the
    // padding.
    let written = |step: usize| {
        ragged.steps[step].samples.iter().map(|slots| slots.written.clone()).collect::<Vec<_>>()
    };
    assert_eq!(written(0), vec![vec![0..7]; 3]);
    assert_eq!(written(1), [7..8, 3..4, 5..6].map(|slots| vec![slots]));
    assert_eq!(ragged.steps[1].samples[1].valid, vec![0..4]);
    let last = certificate.occupancy.last().unwrap().steps.last().unwrap();
    assert_eq!(last.samples[0].written, vec![63..64]);
}

#[test]
fn every_fault_is_caught_by_the_claim_that_it_breaks() {
    for (fault, claim) in [
        (Fault::IndexOffByOne, "rows-lie-where-named"),
        (Fault::IndexOffByOne, "only-named-rows-change"),
        (Fault::IndexOffByOne, "named-rows-are-written"),
        (Fault::Copied, "present-aliases-past"),
        (Fault::Copied, "named-rows-are-written"),
        (Fault::Clobbered, "only-named-rows-change"),
        (Fault::NanInPadding, "caches-stay-finite"),
        (Fault::LengthOffByOne, "position-conventions"),
        (Fault::SharedIndex, "rows-lie-where-named"),
        (Fault::SeesUnwritten, "initial-values-do-not-matter"),
        (Fault::WritesPast, "rows-equal-unaliased-run"),
        (Fault::RefusesLastSlot, "every-step-runs"),
    ] {
        assert_caught(&certified(fault, Some(GROWING)), fault, claim);
    }
}

#[test]
fn faults_of_the_cache_are_caught_without_an_original_too() {
    for fault in [
        Fault::IndexOffByOne,
        Fault::Copied,
        Fault::Clobbered,
        Fault::NanInPadding,
        Fault::SharedIndex,
        Fault::SeesUnwritten,
        Fault::RefusesLastSlot,
    ] {
        assert_eq!(certified(fault, None).verdict, Verdict::Failed, "{fault:?}");
    }
}

#[test]
fn a_failure_names_step_cache_sample_and_slot() {
    let certificate = certified(Fault::Clobbered, None);
    let check = check(&certificate, "only-named-rows-change");
    let first = check.failures.first().unwrap();
    assert_eq!(first.cache.as_deref(), Some("value_cache.1"));
    assert_eq!((first.sample, first.slot), (Some(0), Some(0)));
    assert!(first.scenario.is_some() && first.step.is_some_and(|step| step > 0));
    let pictures =
        certificate.occupancy.iter().flat_map(|picture| &picture.steps).flat_map(|step| &step.samples);
    assert!(pictures.clone().any(|slots| slots.clobbered.first() == Some(&(0..1))));

    let certificate = certified(Fault::IndexOffByOne, None);
    let message = &self::check(&certificate, "rows-lie-where-named").failures.first().unwrap().message;
    assert_eq!(message, "rows were written from slot 1 on, the write index is 0");
}

#[test]
fn nan_in_unwritten_slots_is_a_property_and_no_failure() {
    let certificate = certified(Fault::None, None);
    let nan = check(&certificate, "nan-does-not-spread");
    assert_eq!(nan.verdict, Verdict::NotApplicable);
    assert!(nan.evidence.contains("must start with finite values"), "{}", nan.evidence);
}

#[test]
fn the_same_seed_gives_the_same_certificate() {
    let [one, other] = [0, 0].map(|_| certified(Fault::Clobbered, Some(GROWING)));
    assert_eq!(one, other);
}

#[test]
fn options_that_do_not_fit_are_refused_before_anything_runs() {
    let refused = |change: &dyn Fn(&mut CertifyOptions)| {
        let mut options = options(None);
        change(&mut options);
        certify(&Fake(Fault::None), &options, &mut |_| {}).unwrap_err()
    };
    let error = refused(&|options| options.prompts = Some(vec![100, 7]));
    assert!(matches!(error, CertifyError::PromptTooLong { longest: 100, capacity: 64, .. }), "{error}");
    let error = refused(&|options| options.steps = Some(60));
    assert!(matches!(error, CertifyError::PromptTooLong { steps: 60, .. }), "{error}");
    let error = refused(&|options| options.memory = 1 << 10);
    let CertifyError::Session(error) = error else { panic!("{error}") };
    assert!(matches!(error, SessionError::MemoryLimit { needed: Some(_), limit: 1024 }), "{error}");
    let error = refused(&|options| options.batch = Some(usize::MAX / 2));
    assert!(matches!(error, CertifyError::Session(SessionError::MemoryLimit { .. })), "{error}");
    let CertifyError::Session(error) = refused(&|options| options.capacity = Some(65)) else {
        panic!("not about the session")
    };
    let SessionError::SizeFixed { setting: SessionSetting::Capacity, fixed: 64, got: 65 } = error else {
        panic!("{error}")
    };
    let error = refused(&|options| (options.prompts, options.batch) = (Some(vec![1]), Some(2)));
    assert!(matches!(error, CertifyError::PromptCount { prompts: 1, batch: 2 }), "{error}");
    let error = certify(&Fake(Fault::None), &options(Some(STATIC)), &mut |_| {}).unwrap_err();
    assert!(matches!(error, CertifyError::OriginalIsModel { .. }), "{error}");
    let error = refused(&|options| options.model = testdata(GROWING));
    let CertifyError::InModel { cause, .. } = &error else { panic!("{error}") };
    let CertifyError::Session(cause) = &**cause else { panic!("{error}") };
    assert!(matches!(cause, SessionError::NotStatic { growth: Growth::Joined, .. }), "{error}");
    let error = refused(&|options| options.model = testdata(OPERATOR));
    assert!(matches!(error, CertifyError::Session(SessionError::CapacityOpen)), "{error}");
}

/// `lower` replaces TensorScatter in a static export by other nodes and keeps the inputs.
#[test]
fn a_model_is_refused_for_the_caches_that_sessions_do_not_run() {
    let folder = tempfile::tempdir().unwrap();
    let lowered = lower(&Model::load(&testdata(STATIC)).unwrap(), LowerTarget::ScatterNd).unwrap().model;
    // The other caches are written by TensorScatter and passed on unchanged.
    let mut flattened = Model::load(&testdata(STATIC)).unwrap();
    let nodes = &mut flattened.proto_mut().graph.get_or_insert_default().node;
    let at = nodes.iter().position(|node| node.op_type.as_deref() == Some("TensorScatter")).unwrap();
    let present = std::mem::replace(&mut nodes[at].output[0], "written".to_owned());
    nodes.insert(at + 1, NodeProto::new("Flatten", &["written"], &[&present]));
    for (model, why) in [(lowered, "ScatterND writes it"), (flattened, "Flatten changes its shape")] {
        let path = folder.path().join("model.onnx");
        model.save_with_weights(&path, WeightTransfer::Copy).unwrap();
        let error = certify(
            &Fake(Fault::None),
            &CertifyOptions { model: path.clone(), ..options(None) },
            &mut |_| {},
        );
        let message = error.unwrap_err().to_string();
        let message = message.split_once("model.onnx: ").unwrap().1;
        assert_eq!(message, format!("cache \"key_cache.0\" is not written in a way that can be run: {why}"));
        let refused = KvSession::check_model(&Model::load(&path).unwrap(), SessionOptions::default());
        assert_eq!(message, refused.unwrap_err().to_string());
    }
}
