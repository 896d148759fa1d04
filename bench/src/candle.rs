//! Times the adapter for candle and compares it with the core's call and with candle's own operations.

mod caches;
mod page;
mod results;
mod writers;

use std::fs;
use std::path::{Path, PathBuf};

use clap::Args;
use kvscatter::ElementType;
use kvscatter::spec::onnx::TensorScatter;
use kvscatter_bench::{Budget, Case, Engine, Pages, Parameters, Report, Scene, StartRule, Starts, measure};

use self::results::{Measured, Results, Time};
use crate::host::Host;
use crate::output::write;
use crate::peers;

const COMMAND: &str = "cargo xtask bench-candle --write-docs";

const HEADS: usize = 8;
const HEAD_SIZE: usize = 128;
const TYPES: [ElementType; 3] = [ElementType::Float32, ElementType::Float16, ElementType::BFloat16];
/// The name, the batch, the capacity and the rows of each case.
const SHAPES: [(&str, usize, usize, usize); 5] = [
    ("decode, batch 1", 1, 2048, 1),
    ("decode, batch 8", 8, 2048, 1),
    ("decode, batch 64", 64, 512, 1),
    ("prefill of 128", 1, 2048, 128),
    ("prefill of 512", 1, 2048, 512),
];

/// Times the adapter for candle and compares it with the core's call, slice_set, scatter_set, cat and
/// candle-nn's caches
///
/// The result of every engine is checked before the engine is timed. All engines are timed in turn. The
/// measurement takes about two minutes and 4 GiB of memory. Close other programs first.
#[derive(Args)]
#[command(bin_name = "cargo xtask bench-candle")]
pub(crate) struct Arguments {
    /// Measures briefly, as a test that everything works
    #[arg(long, conflicts_with = "write_docs")]
    quick: bool,
    /// Also rewrites docs/candle.md between its markers
    #[arg(long)]
    write_docs: bool,
    /// Reads the results of an earlier run instead of measuring
    #[arg(long, value_name = "FILE", conflicts_with = "quick")]
    from: Option<PathBuf>,
    /// The folder for candle.json
    #[arg(long, value_name = "FOLDER", default_value = "target/bench")]
    out: PathBuf,
}

pub(crate) fn run(arguments: &Arguments) -> Result<(), String> {
    let results = match &arguments.from {
        Some(file) => {
            let text = fs::read_to_string(file).map_err(|error| format!("{}: {error}", file.display()))?;
            serde_json::from_str(&text).map_err(|error| format!("{}: {error}", file.display()))?
        }
        None => {
            let results = measure_all(arguments.quick)?;
            let text = serde_json::to_string_pretty(&results).map_err(|error| error.to_string())?;
            write(&arguments.out.join("candle.json"), &text)?;
            results
        }
    };
    println!("{}", page::tables(&results));
    if arguments.write_docs {
        let page = Path::new("docs/candle.md");
        let text = fs::read_to_string(page).map_err(|error| format!("{}: {error}", page.display()))?;
        write(page, &crate::page::replace(&text, COMMAND, &page::generate(&results))?)?;
    }
    page::check(&results)
}

fn measure_all(quick: bool) -> Result<Results, String> {
    if cfg!(debug_assertions) {
        println!("this is a debug build: its times mean nothing");
    }
    let budget = if quick { Budget::quick() } else { Budget::full() };
    let mut cases = Vec::new();
    for parameters in all_parameters() {
        println!("{}, {}, {}", parameters.name, parameters.element, starts_of(&parameters));
        let report = measure_case(parameters, budget).map_err(|error| error.to_string())?;
        cases.push(Measured::new(&report)?);
    }
    Ok(Results { host: Host::read(), quick, cases })
}

fn all_parameters() -> impl Iterator<Item = Parameters> {
    SHAPES.into_iter().flat_map(|shape| {
        // A batch of one has only one start, so ragged and equal starts are the same.
        let rules =
            if shape.1 > 1 { &[StartRule::Ragged, StartRule::Equal][..] } else { &[StartRule::Equal] };
        rules.iter().flat_map(move |&rule| TYPES.map(|element| parameters(shape, element, rule)))
    })
}

fn parameters(
    (name, batch, capacity, rows): (&str, usize, usize, usize),
    element: ElementType,
    rule: StartRule,
) -> Parameters {
    Parameters {
        name: name.to_owned(),
        shape: vec![batch, HEADS, capacity, HEAD_SIZE],
        axis: TensorScatter::DEFAULT_AXIS,
        rows,
        element,
        mode: kvscatter::Mode::Linear,
        starts: Starts::Rule(rule),
        form: kvscatter_bench::Form::InPlace,
        temperature: kvscatter_bench::Temperature::Hot,
        layers: 1,
        // candle's tensors come from the allocator, which uses small pages.
        pages: Pages::Small,
        update: kvscatter_bench::UpdateLayout::Dense,
        threads: 1,
    }
}

fn starts_of(parameters: &Parameters) -> String {
    match (parameters.shape.first(), &parameters.starts) {
        (Some(1), _) => "one".to_owned(),
        (_, starts) => starts.to_string(),
    }
}

fn engines() -> Vec<Box<dyn Engine>> {
    let others = peers::candle::engines();
    writers::engines().into_iter().chain(others).chain(caches::engines()).collect()
}

fn measure_case(parameters: Parameters, budget: Budget) -> Result<Report, kvscatter_bench::BenchError> {
    let mut scene = Scene::new(&Case::new(parameters)?)?;
    measure(&mut scene, &engines(), budget, |_| ())
}

impl Measured {
    fn new(report: &Report) -> Result<Self, String> {
        use kvscatter_bench::Outcome;
        let parameters = report.case.parameters();
        let mut engines = Vec::new();
        for entry in &report.entries {
            let name = entry.engine.clone();
            match &entry.outcome {
                Outcome::Measured(times) => engines.push(Time {
                    time: times.write.spread(),
                    over_core: report.ratio(&name, writers::CORE),
                    writer_over: report.ratio(writers::WRITER, &name),
                    name,
                }),
                Outcome::Unsupported(_) => (),
                Outcome::Wrong(why) | Outcome::Failed(why) => {
                    return Err(format!("{}: {name}: {why}", parameters.name));
                }
            }
        }
        Ok(Self {
            name: parameters.name.clone(),
            element: parameters.element.to_string(),
            starts: starts_of(parameters),
            engines,
            noise: report.noise.as_ref().map(|noise| noise.spread),
        })
    }

    fn engine(&self, name: &str) -> Option<&Time> {
        self.engines.iter().find(|engine| engine.name == name)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use kvscatter_bench::{Budget, Outcome, Parameters};

    use super::{all_parameters, measure_case};

    /// Runs small cases with every engine and every element type.
    #[test]
    fn every_engine_writes_what_it_should() {
        let small = |parameters: Parameters| Parameters {
            shape: vec![parameters.shape[0].min(3), 2, 24, 4],
            rows: parameters.rows.min(5),
            ..parameters
        };
        for parameters in all_parameters().map(small) {
            let name = format!("{parameters:?}");
            let equal = parameters.starts.to_string() == "equal";
            let report = measure_case(parameters, Budget { time: Duration::ZERO, min_rounds: 1 }).unwrap();
            let mut measured = 0;
            for entry in &report.entries {
                match &entry.outcome {
                    Outcome::Measured(_) => measured += 1,
                    Outcome::Unsupported(_) => (),
                    other => panic!("{name}: {}: {other:?}", entry.engine),
                }
            }
            assert_eq!(measured, if equal { report.entries.len() } else { 6 }, "{name}");
        }
    }
}
