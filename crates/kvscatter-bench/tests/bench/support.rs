//! Cases written down, and runs that are over at once.

use std::time::Duration;

use kvscatter_bench::{BenchError, Budget, Case, Engine, Report, Scene, measure};

/// A case, or what is wrong with it.
pub(crate) fn parse(text: &str) -> Result<Case, String> {
    toml::from_str(text).map_err(|error| error.message().to_owned())
}

/// A valid case, with pages that every system has, unless the case names others.
#[track_caller]
pub(crate) fn case(text: &str) -> Case {
    let pages = if text.contains("pages") { "" } else { "\npages = \"4k\"" };
    parse(&format!("{text}{pages}")).unwrap()
}

pub(crate) fn run(case: &Case, engines: &[Box<dyn Engine>]) -> Result<Report, BenchError> {
    let budget = Budget { time: Duration::ZERO, min_rounds: 4 };
    measure(&mut Scene::new(case)?, engines, budget, |_| ())
}
