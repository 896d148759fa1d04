//! Times kvscatter and compares it with other implementations: `cargo xtask bench --help`.

mod attention;
mod graph;
mod host;
mod measure;
mod models;
mod results;
mod runtimes;
mod statistics;
mod suite;
mod target;
mod threads;
mod write;

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use clap::{Args, Parser, Subcommand, ValueEnum};

use crate::attention::Attention;
use crate::host::{MAX_ISA, TUNABLES};
use crate::models::{rings, sessions, tract};
use crate::results::Results;
use crate::runtimes::Runtimes;
use crate::suite::{Case, Suite};
use crate::write::Write;

/// Times the KV-cache write and compares it with memcpy, a hand-written loop of memcpys, and other libraries.
///
/// The result of every subject is checked before it is timed. Close other programs first. The A/A spread compares a
/// subject with itself. It shows how much of a ratio is noise, and a target within the noise counts as undecided.
#[derive(Parser)]
#[command(
    bin_name = "cargo xtask bench",
    args_conflicts_with_subcommands = true,
    after_help = "Examples:
  cargo xtask bench --quick                         nearly everything, in about two minutes
  cargo xtask bench --case decode --case wrap-512   one row of bench/cases.toml, and one case
  cargo xtask bench --write-docs                    everything, and writes this machine's table in docs/performance.md
  cargo xtask bench --write-docs --isa avx2         the same as on a machine that has no AVX-512"
)]
struct Arguments {
    #[command(subcommand)]
    suite: Option<Subcommands>,
    #[command(flatten)]
    selection: Selection,
    #[command(flatten)]
    options: Options,
    /// Limits the library and libc's memcpy to this instruction set, as on a machine without newer ones
    #[arg(long, value_name = "ISA", value_parser = ["avx2", "sse2"])]
    isa: Option<String>,
}

#[derive(Subcommand)]
enum Subcommands {
    /// Times the adapter for candle and compares it with the core's call, slice_set, scatter_set, cat and candle-nn's
    /// caches, in about two minutes and 4 GiB of memory
    Candle {
        #[command(flatten)]
        selection: Selection,
        #[command(flatten)]
        options: Options,
    },
    /// Times attention over static caches, and a decode step of decoders with growing and with static caches, in about
    /// six minutes and 6 GiB of memory
    Models {
        /// Measures this part only
        #[arg(long, value_name = "PART")]
        only: Option<Part>,
        #[command(flatten)]
        selection: Selection,
        #[command(flatten)]
        options: Options,
    },
    /// Times attention over caches of each type, with every instruction set of this machine, in about two minutes and
    /// 5 GiB of memory. `cargo xtask bench-cache-types` writes the table into a page
    CacheTypes {
        #[command(flatten)]
        selection: Selection,
        #[command(flatten)]
        options: Options,
    },
    /// Measures the caches and the decode step of a decoder like Gemma 3 with rings and with linear caches, in about
    /// two minutes and 5 GiB of memory
    Rings {
        #[command(flatten)]
        options: Options,
    },
    /// Measures how long a session takes to copy, save, load and undo samples, in about a minute, 3 GiB of memory and
    /// 600 MB of disk
    Sessions {
        #[command(flatten)]
        options: Options,
    },
}

/// A part of the benchmark of models.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Part {
    /// Attention over a cache alone
    Attention,
    /// A whole decode step in ONNX Runtime
    Decoder,
    /// A token in tract, against the capacity
    Tract,
}

#[derive(Args)]
struct Selection {
    /// Measures this row or case, by the name that --list shows; may be repeated
    #[arg(long = "case", value_name = "NAME", conflicts_with_all = ["write_docs", "from"])]
    cases: Vec<String>,
    /// Lists all rows and cases without measuring
    #[arg(long)]
    list: bool,
}

#[derive(Args)]
struct Options {
    /// Measures briefly, as a test that everything works
    #[arg(long, conflicts_with_all = ["write_docs", "from"])]
    quick: bool,
    /// Also writes the tables and plots into docs/ (needs Python with matplotlib)
    #[arg(long)]
    write_docs: bool,
    /// Reads the results of an earlier run in the folder of --out instead of measuring
    #[arg(long)]
    from: bool,
    /// The library of ONNX Runtime. Default: KVSCATTER_ORT_LIB, ORT_DYLIB_PATH or the active Python
    #[arg(long, value_name = "PATH")]
    ort_lib: Option<PathBuf>,
    /// kvscatter's plugin for ONNX Runtime. Default: KVSCATTER_ORT_PLUGIN or beside the program
    #[arg(long, value_name = "PATH")]
    plugin: Option<PathBuf>,
    /// The folder for the results, as JSON
    #[arg(long, value_name = "FOLDER", default_value = "target/bench")]
    out: PathBuf,
}

fn main() -> ExitCode {
    match run(Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(Arguments { suite, selection, options, isa }: Arguments) -> Result<(), String> {
    if let Some(isa) = isa.as_deref().filter(|isa| env::var(MAX_ISA).ok().as_deref() != Some(isa)) {
        return run_limited(isa);
    }
    if cfg!(debug_assertions) {
        println!("this is a debug build: its times mean nothing");
    }
    match suite {
        None => measure_suite::<Write>("write", write::CASES, &selection, &options),
        Some(Subcommands::Candle { selection, options }) => {
            measure_suite::<Write>("candle", write::CANDLE_CASES, &selection, &options)
        }
        Some(Subcommands::Models { only, selection, options }) => {
            let only =
                if selection.cases.is_empty() && !selection.list { only } else { Some(Part::Attention) };
            let wants = |part| only.is_none_or(|only| only == part);
            if wants(Part::Attention) {
                measure_suite::<Attention>("attention", attention::CASES, &selection, &options)?;
            }
            if wants(Part::Decoder) {
                options.publish("models", || models::measure(&options.runtimes()?, options.quick))?;
            }
            if wants(Part::Tract) {
                options.publish("tract", || tract::measure(options.quick))?;
            }
            Ok(())
        }
        Some(Subcommands::CacheTypes { options, .. }) if options.write_docs => {
            Err("`cargo xtask bench-cache-types --write-docs` writes the page".to_owned())
        }
        Some(Subcommands::CacheTypes { selection, options }) => {
            measure_suite::<Attention>("cache-types", attention::CACHE_TYPES, &selection, &options)
        }
        Some(Subcommands::Rings { options }) => {
            options.publish("rings", || rings::measure(&options.runtimes()?, options.quick))
        }
        Some(Subcommands::Sessions { options }) => {
            options.publish("sessions", || sessions::measure(&options.runtimes()?, options.quick))
        }
    }
}

/// Runs this program again with the same arguments, limited to this instruction set. The limit also applies to memcpy
/// and the hand loop, as on a machine without newer instructions.
fn run_limited(isa: &str) -> Result<(), String> {
    const AVX512: &str = "-AVX512F,-AVX512VL,-AVX512BW,-AVX512DQ,-AVX512CD,-AVX512ER,-AVX512PF";
    let without = if isa == "sse2" {
        format!("{AVX512},-AVX2,-AVX,-AVX_Fast_Unaligned_Load")
    } else {
        AVX512.to_owned()
    };
    let failed = |why: &dyn std::fmt::Display| format!("a process limited to {isa}: {why}");
    let mut command = Command::new(env::current_exe().map_err(|error| failed(&error))?);
    command.args(env::args_os().skip(1));
    command.env(MAX_ISA, isa).env(TUNABLES, format!("glibc.cpu.hwcaps={without}"));
    match command.status().map_err(|error| failed(&error))? {
        status if status.success() => Ok(()),
        status => Err(failed(&status)),
    }
}

/// Measures the wanted cases of a file.
fn measure_suite<C: Case<Libraries = Runtimes>>(
    name: &'static str,
    cases: &str,
    selection: &Selection,
    options: &Options,
) -> Result<(), String> {
    let mut suite = Suite::<C>::parse(cases)?;
    if selection.list {
        print!("{}", suite.list());
        return Ok(());
    }
    suite.select(&selection.cases)?;
    let mut left_out = suite.leave_out_other_isas(&kvscatter::Isa::allowed().to_string());
    if options.quick && selection.cases.is_empty() {
        left_out.extend(suite.shorten());
    }
    options.publish(name, || {
        left_out.iter().for_each(|line| println!("{line}"));
        let runtimes = options.runtimes()?;
        let is_complete = !options.quick && selection.cases.is_empty();
        let rows = suite.measure(&runtimes, options.quick);
        Ok(Results::new(name, is_complete, rows).fact("runtime", runtimes.label()))
    })
}

impl Options {
    fn runtimes(&self) -> Result<Runtimes, String> {
        Runtimes::find(self.ort_lib.as_deref(), self.plugin.as_deref())
    }

    /// Measures and saves results unless those of an earlier run are wanted, and writes the pages if that is wanted.
    fn publish(&self, name: &str, measure: impl FnOnce() -> Result<Results, String>) -> Result<(), String> {
        let file = self.out.join(name).with_extension("json");
        let has_matplotlib = || Command::new("python3").args(["-c", "import matplotlib"]).output();
        if self.write_docs && !has_matplotlib().is_ok_and(|output| output.status.success()) {
            return Err("--write-docs: python3 has no matplotlib: pip install matplotlib".to_owned());
        }
        if !self.from {
            let results = measure()?;
            print!("{}", results.summary());
            let text = serde_json::to_string_pretty(&results).map_err(|error| error.to_string())?;
            fs::create_dir_all(&self.out).map_err(|error| format!("{}: {error}", self.out.display()))?;
            fs::write(&file, text).map_err(|error| format!("{}: {error}", file.display()))?;
            println!("wrote {}", file.display());
        }
        if !self.from && !self.write_docs {
            return Ok(());
        }
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("report.py");
        let mut report = Command::new("python3");
        report.arg(&script).arg(&file).args(self.write_docs.then_some("--write-docs"));
        match report.status() {
            Ok(status) if status.success() => Ok(()),
            Ok(status) => Err(format!("{}: {status}", script.display())),
            Err(error) => Err(format!("python3: {error}")),
        }
    }
}
