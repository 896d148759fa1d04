//! Measures what a static cache saves in a decode step.
//!
//! 1. Attention over a cache is measured alone.
//! 2. A generated decoder with growing caches, the decoder that `kvscatter convert` makes from it, and the same
//!    decoder with `GroupQueryAttention` run in ONNX Runtime, in turn.
//! 3. Converted test decoders run in tract, with caches of several capacities in turn.

mod decoder;
mod measure;
mod page;
mod results;
pub(crate) mod rings;
pub(crate) mod sessions;
mod tract;

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Args, ValueEnum};
use kvscatter_bench::Budget;
use kvscatter_onnx::convert::{ConvertOptions, convert};
use serde::Serialize;
use serde::de::DeserializeOwned;

use self::decoder::{Decoder, Style};
use self::measure::Decoders;
use self::results::Results;
use crate::attention::{self, Runtimes};
use crate::host::Host;
use crate::output::write;
use crate::plots::Figure;

/// The number of slots of the static caches.
const CAPACITY: usize = 4096;
/// The numbers of tokens in the caches before the timed step.
const CONTEXTS: [usize; 9] = [1, 16, 64, 128, 256, 512, 1024, 2048, CAPACITY - 1];
const COMMAND: &str = "cargo xtask bench-models --write-docs";
/// The command for the second table of `docs/models.md`.
const TRACT_COMMAND: &str = "cargo xtask bench-models --write-docs --only tract";

/// Times attention over static caches, and a decode step of decoders with growing and with static caches
///
/// Every result is compared with the oracle, or with that of another decoder, before it is timed. All that is
/// compared is timed in turn in one process. The measurement takes about six minutes and 6 GiB of memory. Close
/// other programs first.
#[derive(Args)]
#[command(
    bin_name = "cargo xtask bench-models",
    after_help = "Examples:
  cargo xtask bench-models --quick                     everything, in about a minute
  cargo xtask bench-models --case decode-8             one row of bench/attention.toml
  cargo xtask bench-models --only decoder              one part
  cargo xtask bench-models --write-docs                everything, and writes the pages"
)]
pub(crate) struct Arguments {
    #[command(flatten)]
    options: Options,
    /// Measures this part only
    #[arg(long, value_name = "PART")]
    only: Option<Part>,
    /// Measures this row or case of bench/attention.toml only; may be repeated
    #[arg(long = "case", value_name = "NAME", conflicts_with_all = ["write_docs", "from", "only"])]
    cases: Vec<String>,
}

/// The options that this benchmark and those of rings and sessions have in common.
#[derive(Args)]
struct Options {
    /// Measures few rounds, as a test that everything works
    #[arg(long, conflicts_with = "write_docs")]
    quick: bool,
    /// Also rewrites the pages in docs/ between their markers, and their plots
    #[arg(long)]
    write_docs: bool,
    /// Reads the results of an earlier run in the folder of --out instead of measuring
    #[arg(long, conflicts_with = "quick")]
    from: bool,
    /// The library of ONNX Runtime. Default: KVSCATTER_ORT_LIB, ORT_DYLIB_PATH or the active Python
    #[arg(long, value_name = "PATH")]
    ort_lib: Option<PathBuf>,
    /// kvscatter's plugin for ONNX Runtime. Default: KVSCATTER_ORT_PLUGIN or beside the program
    #[arg(long, value_name = "PATH")]
    plugin: Option<PathBuf>,
    /// The folder for the results, as JSON, and the plots
    #[arg(long, value_name = "FOLDER", default_value = "target/bench")]
    out: PathBuf,
}

/// A part of the benchmark.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Part {
    /// Attention over a cache alone
    Attention,
    /// A whole decode step in ONNX Runtime
    Decoder,
    /// A token in tract, against the capacity
    Tract,
}

pub(crate) fn run(arguments: &Arguments) -> Result<(), String> {
    let options = &arguments.options;
    let only = if arguments.cases.is_empty() { arguments.only } else { Some(Part::Attention) };
    let wants = |part| only.is_none_or(|only| only == part);
    let runtimes = options.runtimes()?;
    if wants(Part::Attention) {
        let measure = || attention::measure(&runtimes, &arguments.cases, options.quick);
        let results: attention::Results = options.results("attention.json", measure)?;
        print!("{}", attention::summary(&results));
        let figures = attention::figures(&results);
        options.publish("docs/attention.md", COMMAND, &attention::generate(&results, &figures), &figures)?;
    }
    let mut missed = Ok(());
    if wants(Part::Decoder) {
        let results: Results = options.results("models.json", || measure_all(&runtimes, options.quick))?;
        println!("{}", page::table(&results));
        let figures = page::figures(&results);
        options.publish("docs/models.md", COMMAND, &page::generate(&results, &figures), &figures)?;
        missed = page::check(&results);
    }
    if wants(Part::Tract) {
        let results: tract::Results = options.results("tract.json", || tract::measure(options.quick))?;
        println!("{}", tract::table(&results));
        options.publish("docs/models.md", TRACT_COMMAND, &tract::generate(&results), &[])?;
    }
    missed
}

impl Options {
    fn runtimes(&self) -> Result<Runtimes, String> {
        if cfg!(debug_assertions) {
            println!("this is a debug build: its times mean nothing");
        }
        Runtimes::find(self.ort_lib.as_deref(), self.plugin.as_deref())
    }

    /// Measures and saves results, or reads those of an earlier run.
    fn results<R: Serialize + DeserializeOwned>(
        &self,
        name: &str,
        measure: impl FnOnce() -> Result<R, String>,
    ) -> Result<R, String> {
        let file = self.out.join(name);
        if self.from {
            let failed = |error: &dyn std::fmt::Display| format!("{}: {error}", file.display());
            let text = fs::read_to_string(&file).map_err(|error| failed(&error))?;
            return serde_json::from_str(&text).map_err(|error| failed(&error));
        }
        let results = measure()?;
        let text = serde_json::to_string_pretty(&results).map_err(|error| error.to_string())?;
        write(&file, &text)?;
        Ok(results)
    }

    /// Writes the plots, and a page's generated part if it is wanted.
    fn publish(&self, page: &str, command: &str, generated: &str, figures: &[Figure]) -> Result<(), String> {
        for figure in figures {
            write(&self.out.join(figure.file_stem()).with_extension("svg"), &figure.svg()?)?;
        }
        if self.write_docs {
            let page = Path::new(page);
            let text = fs::read_to_string(page).map_err(|error| format!("{}: {error}", page.display()))?;
            write(page, &crate::page::replace(&text, command, generated)?)?;
            for figure in figures {
                let file = page.with_extension("").join(figure.file_stem()).with_extension("svg");
                write(&file, &figure.svg()?)?;
            }
        }
        Ok(())
    }
}

fn measure_all(runtimes: &Runtimes, quick: bool) -> Result<Results, String> {
    let stock = runtimes.stock()?;
    let decoder = Decoder::default();
    let original = decoder.model(CAPACITY, Style::Growing);
    let options = ConvertOptions::new(CAPACITY);
    let converted = convert(&original, options).map_err(|error| error.to_string())?;
    let separate = convert(&original, options.keep_attention(true)).map_err(|error| error.to_string())?;
    let mut decoders = Decoders::new(&decoder, CAPACITY);
    decoders.add_growing(&original, stock)?;
    decoders.add_static(results::SEPARATE, &separate, stock)?;
    decoders.add_static(results::STATIC, &converted, stock)?;
    let plugin = runtimes.plugin();
    let plugin = plugin.and_then(|plugin| decoders.add_static(results::PLUGIN, &converted, plugin));
    let absent = plugin.err().map(|why| format!("{}: {why}", results::PLUGIN));
    decoders.add_group_query(&decoder.model(CAPACITY, Style::GroupQuery), stock)?;
    let budget = Budget { time: Duration::ZERO, min_rounds: if quick { 3 } else { 21 } };
    let mut at = Vec::new();
    for context in CONTEXTS {
        println!("{context} tokens in the caches");
        at.push(decoders.measure(context, budget)?);
    }
    let (host, runtime, absent) = (Host::read(), runtimes.label(), absent.into_iter().collect());
    Ok(Results { host, runtime, quick, decoder, capacity: CAPACITY, absent, at })
}
