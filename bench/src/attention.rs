//! Measures attention over a static cache: kvscatter's kernels, directly and as ONNX Runtime's plugin, against
//! other libraries, the memory and the multiply-adds.

mod page;
mod results;
mod runtimes;
mod scene;
mod subjects;
mod suite;

use std::time::Duration;

use kvscatter::Isa;
use kvscatter_bench::{Budget, MedianSpread, Timings, measure_calls};

pub(crate) use self::results::Results;
use self::results::{CaseResults, Measured, RowResults};
pub(crate) use self::runtimes::{Runtime, Runtimes};
use self::scene::Scene;
use self::subjects::Run;
use self::suite::{Parameters, Row, Suite};
use crate::host::Host;
pub(crate) use page::{figures, generate, summary};

const CASES: &str = include_str!("../attention.toml");

/// Measures the wanted rows or cases. An empty list means all.
pub(crate) fn measure(runtimes: &Runtimes, wanted: &[String], quick: bool) -> Result<Results, String> {
    let mut suite = Suite::parse(CASES)?;
    suite.select(wanted)?;
    if quick && wanted.is_empty() {
        suite.leave_out_slow();
    }
    let mut rows = Vec::new();
    for row in &suite.rows {
        println!("{}; target {}\n", row.description, row.goal);
        let mut results = RowResults::new(row);
        for case in &row.cases {
            let measured = measure_case(row, case, runtimes, quick)?;
            let case = CaseResults::new(case, &measured, &row.targets);
            println!("{}", page::case_table(&case));
            results.cases.push(case);
        }
        rows.push(results);
    }
    let isa = Isa::allowed().to_string();
    Ok(Results { host: Host::read(), runtime: runtimes.label(), isa, quick, rows })
}

/// Checks every subject of a case, and then times all of them in turn.
fn measure_case(row: &Row, case: &Parameters, runtimes: &Runtimes, quick: bool) -> Result<Measured, String> {
    let mut scene = Scene::new(case)?;
    let mut lanes: Vec<Box<dyn Run>> = Vec::new();
    let mut places = Vec::new();
    for name in &row.subjects {
        let checked = subjects::prepare(name, &scene, runtimes).and_then(|mut run| {
            run.time(&mut scene, 1).map_err(|error| error.to_string())?;
            run.check(&scene).map_err(|why| format!("wrong, not timed: {why}"))?;
            Ok(run)
        });
        places.push(checked.map(|run| {
            lanes.push(run);
            lanes.len() - 1
        }));
    }
    if lanes.is_empty() {
        let subjects = row.subjects.iter().cloned().zip(places.into_iter().map(|place| match place {
            Err(why) => Err(why),
            Ok(_) => Err("it was not timed".to_owned()),
        }));
        return Ok(Measured {
            subjects: subjects.collect(),
            noise: MedianSpread { lowest: 1.0, highest: 1.0 },
        });
    }
    let budget = budget(case, quick);
    let (times, noise) =
        measure_calls(lanes.len(), budget, |lane, calls| lanes[lane].time(&mut scene, calls))
            .map_err(|error| format!("{}: {error}", case.name))?;
    let of_place = |place: Result<usize, String>| -> Result<Timings, String> { Ok(times[place?].clone()) };
    let subjects = row.subjects.iter().cloned().zip(places.into_iter().map(of_place)).collect();
    Ok(Measured { subjects, noise })
}

/// Returns the time and the rounds for a case. A long prefill takes so long that few rounds suffice.
fn budget(case: &Parameters, quick: bool) -> Budget {
    /// The number of scores from which a prefill is long.
    const LONG: usize = 32 << 20;
    let is_long = case.query_heads * case.seen() > LONG;
    match (quick, is_long) {
        (true, _) => Budget { time: Duration::from_millis(200), min_rounds: 3 },
        (false, true) => Budget { time: Duration::ZERO, min_rounds: 5 },
        (false, false) => Budget { time: Duration::from_secs(3), min_rounds: 11 },
    }
}

#[cfg(test)]
mod tests {
    use super::scene::Scene;
    use super::suite::{Parameters, Suite};
    use super::{CASES, Runtimes, subjects};

    fn small(case: &Parameters) -> Parameters {
        let valid = case.valid.iter().map(|valid| valid.div_ceil(40) + 3).collect::<Vec<_>>();
        Parameters { capacity: 120, queries: case.queries.min(3), valid, ..case.clone() }
    }

    /// Runs every subject of small cases. Those that need a library which is absent are left out.
    #[test]
    fn every_subject_computes_what_the_oracle_does() {
        let runtimes = Runtimes::find(None, None).unwrap();
        let suite = Suite::parse(CASES).unwrap();
        let mut checked = 0;
        for row in &suite.rows {
            for case in row.cases.iter().map(small) {
                let mut scene = Scene::new(&case).unwrap();
                for name in &row.subjects {
                    let Ok(mut run) = subjects::prepare(name, &scene, &runtimes) else { continue };
                    run.time(&mut scene, 2).unwrap();
                    run.check(&scene).unwrap_or_else(|why| panic!("{}: {name}: {why}", case.name));
                    checked += 1;
                }
            }
        }
        assert!(checked > 100, "{checked}");
    }

    #[test]
    fn a_wrong_result_is_found() {
        let suite = Suite::parse(CASES).unwrap();
        let case = small(&suite.rows[0].cases[0]);
        let runtimes = Runtimes::find(None, None).unwrap();
        for name in [subjects::KVSCATTER, subjects::TRACT, subjects::CANDLE] {
            let mut scene = Scene::new(&case).unwrap();
            let mut run = subjects::prepare(name, &scene, &runtimes).unwrap();
            run.time(&mut scene, 1).unwrap();
            run.check(&scene).unwrap();
            // The result of a cache with one slot less.
            let shorter = Parameters { valid: vec![case.valid[0] - 1], ..case.clone() };
            let other = Scene::new(&shorter).unwrap();
            assert!(run.check(&other).is_err(), "{name}");
        }
    }
}
