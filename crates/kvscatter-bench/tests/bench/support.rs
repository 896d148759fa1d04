//! Cases written down, and runs that are over at once.

use std::time::Duration;

use kvscatter_bench::{Budget, Case, Engine, Error, Report, Scene, measure};

/// A case, or what is wrong with it.
pub(crate) fn parse(text: &str) -> Result<Case, String> {
    toml::from_str(text).map_err(|error| error.message().to_owned())
}

/// A valid case.
#[track_caller]
pub(crate) fn case(text: &str) -> Case {
    parse(text).unwrap()
}

pub(crate) fn run(case: &Case, engines: &[Box<dyn Engine>]) -> Result<Report, Error> {
    let budget = Budget { time: Duration::ZERO, least_rounds: 4 };
    measure(&mut Scene::new(case)?, engines, budget, |_| ())
}
