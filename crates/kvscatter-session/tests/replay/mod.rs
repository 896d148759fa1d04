//! Random histories of sessions in real engines. Every logit must be that of the sample's tokens alone, and failures of
//! every kind must lose nothing.

pub(crate) mod faulty;
pub(crate) mod narrow;
pub(crate) mod oracle;
pub(crate) mod protos;
mod reference;
pub(crate) mod rings;
pub(crate) mod tiny;

use std::path::Path;

use kvscatter_onnx::Model;
use kvscatter_session::{Engine, KvSession, LoadOptions, SessionOptions};

use crate::random::faults::Plan;
use crate::random::world::{Counts, World};
use faulty::{Faulty, Runs};
use oracle::Replay;
use reference::Reference;
use tiny::TOKENS;

/// A model and the options of its sessions.
#[derive(Clone, Copy)]
pub(crate) struct Subject<'m> {
    pub(crate) model: &'m Path,
    pub(crate) capacity: Option<usize>,
    /// Tokens with which a run fails.
    pub(crate) traps: &'m [i64],
}

/// Runs this many random histories in a batch. The logits must be bit for bit those of the same runs with one sample.
pub(crate) fn run(engine: &dyn Engine, of: Subject<'_>, batch: usize, histories: usize, counts: &mut Counts) {
    let (plan, runs) = (Plan::default(), Runs::default());
    let options = SessionOptions {
        batch: Some(batch),
        capacity: of.capacity,
        threads: Some(1),
        ..SessionOptions::default()
    };
    let faulty = Faulty { engine, plan: plan.clone(), runs: runs.clone() };
    let oracle = |session: &KvSession| {
        let file = Model::load(of.model).unwrap().file().unwrap();
        let alone = engine.load(&file, LoadOptions { threads: options.threads }).unwrap();
        Replay::new(session, alone, runs)
    };
    let world = World::open(&faulty, of.model, options, plan, oracle);
    world.with(TOKENS, of.traps, None).run(batch as u64, histories, counts);
}

/// Runs random histories of a model in batches of 1 to 4. The logits may differ by `tolerance` from those of a
/// reference in a separate session, which gets all tokens of a sample at once.
pub(crate) fn compare(
    engine: &dyn Engine,
    [model, reference]: [&Path; 2],
    capacity: Option<usize>,
    histories: usize,
    tolerance: f32,
) {
    let mut counts = Counts::default();
    for batch in 1..=4 {
        let plan = Plan::default();
        let options = |batch| SessionOptions { batch: Some(batch), capacity, ..SessionOptions::default() };
        let faulty = Faulty { engine, plan: plan.clone(), runs: Runs::default() };
        let alone = KvSession::open(engine, reference, options(1)).unwrap();
        let oracle = |_: &KvSession| Reference { alone, tolerance };
        let world = World::open(&faulty, model, options(batch), plan, oracle);
        world.with(0..200, &[], None).run(batch as u64, histories, &mut counts);
    }
    assert!(counts.steps > 4 * histories && counts.injected > 0, "{counts:?}");
}
