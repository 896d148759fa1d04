//! Random histories of sessions in an engine that computes every logit from the tokens that the caches contain.

#[path = "../../../crates/kvscatter-session/tests/conv_state/mod.rs"]
mod conv_state;
#[path = "../../../crates/kvscatter-session/tests/exact/mod.rs"]
#[expect(clippy::unwrap_used, reason = "a failed test panics")]
mod exact;
#[path = "../../../crates/kvscatter-session/tests/histories/models.rs"]
#[expect(clippy::unwrap_used, reason = "a failed test panics")]
mod models;
#[path = "../../../crates/kvscatter-session/tests/random/mod.rs"]
#[expect(
    clippy::unwrap_used,
    dead_code,
    reason = "a failed test panics, and the counts are not checked here"
)]
mod random;

use std::cell::OnceCell;

use kvscatter_session::{KvSession, SessionOptions};

use self::exact::{Exact, FromTokens};
use self::models::Made;
use self::random::faults::Plan;
use self::random::world::{Counts, World};
use crate::tally::Tally;

/// The histories of a seed.
const HISTORIES: usize = 25;

/// The models of all histories. They are made when they are first needed, and their files last as long as this.
#[derive(Default)]
pub(crate) struct Sessions(OnceCell<Vec<[Made; 2]>>);

impl Sessions {
    /// Runs histories of one model, with one, two or four samples. Counts their steps.
    pub(crate) fn attack(&self, seed: u64) -> Tally {
        let models = self.0.get_or_init(models);
        let [model, other] = &models[seed as usize % models.len()];
        let batch = [1, 2, 4][seed as usize / models.len() % 3];
        let options = |batch| SessionOptions { batch: Some(batch), ..SessionOptions::default() };
        let other = match KvSession::open(&Exact(Plan::default()), other.path(), options(3)) {
            Ok(session) => session,
            Err(error) => panic!("{error}"),
        };
        let plan = Plan::default();
        let world = World::open(&Exact(plan.clone()), &model.path(), options(batch), plan, |_| FromTokens);
        let mut counts = Counts::default();
        world.with(0..200, &[], Some(other)).run(seed, HISTORIES, &mut counts);
        Tally { accepted: counts.steps as u64, refused: (counts.injected + counts.refused) as u64 }
    }
}

/// Returns models and, for each, another one of the same samples.
fn models() -> Vec<[Made; 2]> {
    let of_rings =
        models::RINGS.map(|(windows, model, other)| [model, other].map(|s| models::rings(windows, s)));
    let linear = [models::linear(48), models::linear(40)];
    let with_state = [models::with_state(), models::with_state()];
    of_rings.into_iter().chain([linear, with_state]).collect()
}
