//! Cases from text, and short measurements.

use std::time::Duration;

use kvscatter_bench::{BenchError, Budget, Case, Engine, Report, Scene, measure};

/// Returns a case, or the error message for an invalid one.
pub(crate) fn parse(text: &str) -> Result<Case, String> {
    toml::from_str(text).map_err(|error| error.message().to_owned())
}

/// Returns a valid case. Its pages are 4 KiB, which every system has, unless the text names others.
#[track_caller]
pub(crate) fn case(text: &str) -> Case {
    let pages = if text.contains("pages") { "" } else { "\npages = \"4k\"" };
    parse(&format!("{text}{pages}")).unwrap()
}

pub(crate) fn run(case: &Case, engines: &[Box<dyn Engine>]) -> Result<Report, BenchError> {
    let budget = Budget { time: Duration::ZERO, min_rounds: 4 };
    measure(&mut Scene::new(case)?, engines, budget, |_| ())
}
