//! Times the KV-cache write and compares it with other implementations: `cargo xtask bench --help`.

mod attention;
mod candle;
mod capped;
mod graph;
mod host;
mod models;
mod output;
mod page;
mod peers;
mod plots;
mod results;
mod suite;
mod table;
mod target;

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use indicatif::{ProgressBar, ProgressStyle};
use kvscatter_bench::{BenchError, Budget, Case, Parameters, Progress, Report, Scene, engines, measure};

use crate::host::Host;
use crate::output::write;
use crate::peers::Peers;
use crate::plots::Figure;
use crate::results::{CaseResults, Results, RowResults};
use crate::suite::{Row, Suite};

/// Times the KV-cache write and compares it with memcpy, a hand-written loop of memcpys, and other libraries.
///
/// The result of every engine is checked before the engine is timed. Close other programs first. The A/A
/// spread compares an engine with itself. It shows how much of a ratio is noise. Small hot cases are measured
/// again in fresh processes. A target that the spread or these processes put in doubt counts as undecided.
#[derive(Parser)]
#[command(
    bin_name = "cargo xtask bench",
    args_conflicts_with_subcommands = true,
    after_help = "Examples:
  cargo xtask bench --quick                         nearly everything, in about two minutes
  cargo xtask bench --case decode --case wrap-512   one row of the target table, and one case
  cargo xtask bench --write-docs                    everything, and writes this machine's page in docs/performance/
  cargo xtask bench --write-docs --isa avx2         the same as on a machine that has no AVX-512"
)]
struct Arguments {
    #[command(subcommand)]
    command: Option<Command>,
    /// Measures briefly, as a test that everything works
    #[arg(long, conflicts_with = "write_docs")]
    quick: bool,
    /// Measures this row or case, by the name that --list shows; may be repeated
    #[arg(long = "case", value_name = "NAME", conflicts_with = "write_docs")]
    cases: Vec<String>,
    /// Limits the library and libc's memcpy to this instruction set, as on a machine without newer ones: avx2
    #[arg(long, value_name = "ISA", value_parser = ["avx2"])]
    isa: Option<String>,
    /// Leaves out other libraries and the processes that measure again
    #[arg(long, hide = true)]
    alone: bool,
    /// Lists all rows and cases without measuring
    #[arg(long)]
    list: bool,
    /// Also writes the results and plots of this machine to docs/performance/
    #[arg(long)]
    write_docs: bool,
    /// Reads the results of an earlier run instead of measuring
    #[arg(long, value_name = "FILE", conflicts_with_all = ["quick", "cases", "list"])]
    from: Option<PathBuf>,
    /// The folder for results.json and the plots
    #[arg(long, value_name = "FOLDER", default_value = "target/bench")]
    out: PathBuf,
}

#[derive(Subcommand)]
enum Command {
    Candle(candle::Arguments),
    Models(models::Arguments),
    Rings(models::rings::Arguments),
    Sessions(models::sessions::Arguments),
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let done = match &arguments.command {
        Some(Command::Candle(arguments)) => candle::run(arguments),
        Some(Command::Models(arguments)) => models::run(arguments),
        Some(Command::Rings(arguments)) => models::rings::run(arguments),
        Some(Command::Sessions(arguments)) => models::sessions::run(arguments),
        None => run(&arguments),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &Arguments) -> Result<(), String> {
    if let Some(isa) = arguments.isa.as_deref().filter(|isa| !capped::is_limited(isa)) {
        return capped::run_limited(isa);
    }
    let mut suite = Suite::parse(include_str!("../cases.toml"))?;
    if arguments.list {
        print!("{}", suite.list());
        return Ok(());
    }
    suite.select(&arguments.cases)?;
    if arguments.quick && arguments.cases.is_empty() {
        suite.leave_out_slow().iter().for_each(|line| println!("{line}"));
    }
    let results = match &arguments.from {
        Some(file) => read(file)?,
        None => {
            let results = measure_all(&suite, arguments);
            let text = serde_json::to_string_pretty(&results).map_err(|error| error.to_string())?;
            write(&arguments.out.join("results.json"), &text)?;
            results
        }
    };
    print!("{}", table::summary(&results));
    let figures = Figure::all(&results);
    for figure in &figures {
        write(&arguments.out.join(figure.file_stem()).with_extension("svg"), &figure.svg()?)?;
    }
    if arguments.write_docs {
        results.check_complete(&suite)?;
        write_docs(&results, &figures)?;
    }
    Ok(())
}

fn measure_all(suite: &Suite, arguments: &Arguments) -> Results {
    let Arguments { quick, alone, ref out, .. } = *arguments;
    if cfg!(debug_assertions) {
        println!("this is a debug build: its times mean nothing");
    }
    let peers = if alone { Peers::default() } else { Peers::find() };
    peers.absent().iter().for_each(|line| println!("{line}"));
    let count = suite.rows.iter().map(|row| row.cases.len()).sum::<usize>();
    let bar = ProgressBar::new(count as u64 * PARTS).with_style(style());
    let rows = suite.rows.iter().map(|row| match &row.isa {
        Some(isa) if capped::needs_a_process(row) => measure_capped(row, isa, quick, out, &bar),
        _ => measure_row(row, &peers, arguments, &bar),
    });
    let rows = rows.collect();
    bar.finish_and_clear();
    Results { host: Host::read(), quick, absent: peers.absent().to_vec(), rows, tested: suite.tested.clone() }
}

/// The steps of the progress bar per case.
const PARTS: u64 = 100;

fn measure_capped(row: &Row, isa: &str, quick: bool, out: &Path, bar: &ProgressBar) -> RowResults {
    bar.suspend(|| println!("{}\n", row.title()));
    bar.set_message(format!("{}, in a process limited to {isa}", row.id));
    let results = capped::measure_row(row, isa, quick, out);
    bar.suspend(|| results.cases.iter().for_each(|case| println!("{}", table::case(case))));
    bar.inc(row.cases.len() as u64 * PARTS);
    results
}

fn measure_row(row: &Row, peers: &Peers, arguments: &Arguments, bar: &ProgressBar) -> RowResults {
    let mut results = RowResults::new(row);
    bar.suspend(|| println!("{}\n", row.title()));
    for parameters in &row.cases {
        let begin = bar.position();
        bar.set_message(parameters.name.clone());
        let peers = (row.peers && !arguments.alone).then_some(peers);
        let case = match measure_case(parameters, peers, arguments.quick, bar) {
            Ok(report) => compared(CaseResults::new(&report, &row.targets), row, arguments, bar),
            Err(why) => CaseResults::refused(parameters, why.to_string(), &row.targets),
        };
        results.push(case, row.flat.as_ref());
        bar.set_position(begin + PARTS);
        bar.suspend(|| results.cases.last().into_iter().for_each(|case| println!("{}", table::case(case))));
    }
    results
}

/// Adds the measurements of fresh processes, if the case is hot and small.
fn compared(mut case: CaseResults, row: &Row, arguments: &Arguments, bar: &ProgressBar) -> CaseResults {
    const MOMENT: usize = 16 << 20;
    let is_small = case.moved_bytes < MOMENT && !case.case.temperature.is_cold();
    if arguments.alone || arguments.quick || !is_small {
        return case;
    }
    match capped::measure_again(row, &case.case, &arguments.out) {
        Ok(others) => case.compare(&others),
        Err(why) => bar.suspend(|| println!("{}: {why}", case.case.name)),
    }
    case
}

/// Measures one case. Maps and unmaps its memory, because the largest cases do not fit together.
fn measure_case(
    parameters: &Parameters,
    peers: Option<&Peers>,
    quick: bool,
    bar: &ProgressBar,
) -> Result<Report, BenchError> {
    let case = Case::new(parameters.clone())?;
    let mut scene = Scene::new(&case)?;
    let mut all = engines::built_in(&case);
    all.extend(peers.map(Peers::engines).into_iter().flatten());
    let begin = bar.position();
    measure(&mut scene, &all, budget(&case, quick), |progress| match progress {
        Progress::Checking { engine } => bar.set_message(format!("{}: checking {engine}", parameters.name)),
        Progress::Sampling { done } => {
            bar.set_message(parameters.name.clone());
            bar.set_position(begin + (done * PARTS as f64) as u64);
        }
        _ => {}
    })
}

/// Returns the time and the rounds for a case.
///
/// A call that moves hundreds of megabytes takes so long that few rounds suffice. Cold calls cannot be
/// repeated within a sample, so they get more time.
fn budget(case: &Case, quick: bool) -> Budget {
    const LARGE: usize = 256 << 20;
    let Budget { time, min_rounds } = if quick { Budget::quick() } else { Budget::full() };
    let is_cold = case.parameters().temperature.is_cold();
    Budget {
        time: if is_cold { time * 3 } else { time },
        min_rounds: if case.moved_bytes() >= LARGE { min_rounds / 3 } else { min_rounds },
    }
}

/// Writes the page of this machine and its plots. Text of the page outside its markers is kept.
fn write_docs(results: &Results, figures: &[Figure]) -> Result<(), String> {
    const COMMAND: &str = "cargo xtask bench --write-docs";
    let folder = Path::new("docs/performance");
    let page = folder.join(results.machine_in_files()).with_extension("md");
    let text = match fs::read_to_string(&page) {
        Ok(text) => text,
        Err(error) if error.kind() == ErrorKind::NotFound => {
            page::new_machine_page(&results.machine(), COMMAND)
        }
        Err(error) => return Err(format!("{}: {error}", page.display())),
    };
    write(&page, &page::replace(&text, COMMAND, &page::generate(results, figures))?)?;
    for figure in figures {
        write(&folder.join(figure.file_stem()).with_extension("svg"), &figure.svg()?)?;
    }
    println!("docs/performance.md is written by hand: compare its tables with {}", page.display());
    Ok(())
}

fn read(file: &Path) -> Result<Results, String> {
    let text = fs::read_to_string(file).map_err(|error| format!("{}: {error}", file.display()))?;
    serde_json::from_str(&text).map_err(|error| format!("{}: {error}", file.display()))
}

fn style() -> ProgressStyle {
    ProgressStyle::with_template("{elapsed_precise} {bar:30} {percent:>3} % {msg}")
        .unwrap_or_else(|_| ProgressStyle::default_bar())
}
