//! `kvscatter bench`: times a write of a given shape on this machine.

mod document;
mod show;

use std::env;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use kvscatter::spec::onnx::TensorScatter;
use kvscatter::{ElementType, Mode};
use kvscatter_bench::{
    Budget, Case, Form, Histogram, Machine, Medians, Outcome as Timed, Pages, Parameters, Progress, Report,
    Scene, Starts, Temperature, UpdateLayout, Variation, engines, measure,
};
use kvscatter_onnx::file::OutputFileKind;

use crate::error::CommandError;
use crate::files;
use crate::numbers::integer;
use crate::operators::{element_type, mode};
use crate::output::{Outcome, Output, one_line, progress};
use document::BenchDocument;

/// The columns of the SVG, which are narrow enough to show the shape of a distribution.
const SVG_COLUMNS: usize = 136;

/// The default of `--layers` in a cold run.
const COLD_LAYERS: usize = 16;

/// The rounds that are made even if the time is over.
const MIN_ROUNDS: usize = 9;

/// Time a write of your shape, and compare it with memcpy
///
/// The engines take turns in every round. They are one memcpy of the same bytes, a hand-written loop of
/// memcpys at precomputed offsets, and kvscatter as a host calls it. More engines are added for threads and
/// for a wrap. The result of each engine is compared with the specification's pseudocode before the engine is
/// timed.
///
/// One engine has two turns in each round. The difference between these turns is the A/A spread. Smaller
/// differences between engines mean nothing. The spread does not show what slows a whole process down.
/// Therefore more processes repeat the measurement, and the range of their medians is printed.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  kvscatter bench --shape 8,8,4096,128
      one token for each of 8 samples, the same call again and again
  kvscatter bench --shape 8,8,4096,128 --cold --layers 4
      writes as in a decoder: keys and values of one layer after another, and
      nothing is in the caches of the CPU
  kvscatter bench --shape 1,8,8192,128 --rows 512 --type f32 --svg prefill.svg
  kvscatter bench --shape 2,8,4096,64 --rows 8 --mode circular --starts wrap
  kvscatter bench --shape 2,8,512,64 --form functional --json

The command needs Linux. Build it with --release, and run nothing else on the machine. \
docs/performance.md explains how to read the table. The environment variable KVSCATTER_MAX_ISA \
(portable, sse2 or avx2) limits the instructions.

Exit codes: 0 all results were right, 1 a result was wrong, 2 bad input or usage.")]
pub(crate) struct Bench {
    /// Shape of the cache: 8,8,4096,128 is batch, heads, capacity, head size
    #[arg(long, required = true, value_delimiter = ',', value_name = "SHAPE", value_parser = integer::<usize>)]
    shape: Vec<usize>,

    /// Rows written per sample
    #[arg(long, default_value_t = 1, value_parser = integer::<usize>)]
    rows: usize,

    /// Element type, such as f16, bf16, f32, i8 or int4
    #[arg(long = "type", value_name = "TYPE", default_value = "float16", ignore_case = true, hide_possible_values = true, value_parser = element_type())]
    element: ElementType,

    /// Sequence dimension of the cache
    #[arg(long, default_value_t = TensorScatter::DEFAULT_AXIS, value_parser = integer::<i64>)]
    axis: i64,

    /// In circular mode slots are taken modulo the capacity
    #[arg(long, default_value = "linear", value_parser = mode())]
    mode: Mode,

    /// First slots written: ragged, equal, wrap (across the end of the ring), or one per sample: 3,0,5
    #[arg(long, default_value = "ragged")]
    starts: Starts,

    /// Write in place, or write past and update into a new cache (functional)
    #[arg(long, default_value = "in-place", value_parser = one_of([("in-place", Form::InPlace), ("functional", Form::Functional)]))]
    form: Form,

    /// Order of the update in memory: dense is the order of the cache, bshd is [batch, rows, heads, head
    /// size]
    #[arg(long, value_name = "LAYOUT", default_value = "dense", value_parser = one_of([("dense", UpdateLayout::Dense), ("bshd", UpdateLayout::Bshd)]))]
    update: UpdateLayout,

    /// Write keys and values of many layers, at new positions in every step
    ///
    /// flushed also empties the caches of the CPU before each pair of keys and values. flushed-rows does the
    /// same, and then lets the engine write the previous layer, untimed, so that its code is in the caches.
    #[arg(long, value_name = "HOW", num_args = 0..=1, require_equals = true, default_missing_value = "flushed",
        value_parser = one_of([("flushed", Temperature::Flushed), ("unflushed", Temperature::Unflushed), ("flushed-rows", Temperature::FlushedRows)]))]
    cold: Option<Temperature>,

    /// Layers of a cold run [default: 16]
    #[arg(long, requires = "cold", value_parser = integer::<usize>)]
    layers: Option<usize>,

    /// Page size of the memory: 4 KiB or 2 MiB
    #[arg(long, default_value = "2m", value_parser = one_of([("4k", Pages::Small), ("2m", Pages::Huge)]))]
    pages: Pages,

    /// Threads that share one write
    #[arg(long, default_value_t = 1, value_parser = integer::<usize>)]
    threads: usize,

    /// Seconds for all measurements together
    #[arg(long, value_name = "S", default_value = "2", value_parser = seconds)]
    seconds: Duration,

    /// Processes that share this time, each at other addresses in memory [default: 4, or 1 with --cold]
    ///
    /// The table shows the first process, and the range of all processes is printed below it. With --cold,
    /// each process fills gigabytes.
    #[arg(long, value_parser = processes)]
    processes: Option<u8>,

    /// Print only the medians, for the process that started this one
    #[arg(long, hide = true)]
    medians: bool,

    /// Also draw the histogram into this SVG file; - prints only the picture
    ///
    /// An existing file is replaced only if it is an SVG picture.
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
}

pub(crate) fn run(args: Bench, output: &mut Output) -> Result<Outcome, CommandError> {
    let (svg, medians) = (args.svg.clone(), args.medians);
    let processes = args.processes.unwrap_or(if args.cold.is_some() { 1 } else { PROCESSES });
    let budget = Budget {
        time: args.seconds.checked_div(processes.into()).unwrap_or_default(),
        min_rounds: MIN_ROUNDS,
    };
    let case = args.case()?;
    let report = measured(&case, budget)?;
    if medians {
        output.json(&Medians::of(&report))?;
        return Ok(outcome(&report));
    }
    let picture = || Some(Histogram::new(&report, SVG_COLUMNS)?.svg(&show::case(&case)));
    let picture = svg.as_ref().and_then(|_| picture());
    if let (Some(picture), true) = (&picture, svg.as_deref() == Some(Path::new("-"))) {
        write!(output, "{picture}")?;
        return Ok(outcome(&report));
    }
    let (machine, variation) = (Machine::read(), variation(&report, processes)?);
    if output.is_json() {
        output.json(&BenchDocument::new(&report, &machine, variation.as_ref()))?;
    } else {
        show::report(&report, &machine, variation.as_ref(), output)?;
    }
    // This is last, so that the report is printed even if the picture cannot be written.
    if let (Some(path), Some(picture)) = (&svg, &picture) {
        files::write_page(path, picture, OutputFileKind::Svg, &[])?;
    }
    Ok(outcome(&report))
}

/// Returns how far the medians of this process and of other processes differ, or `None` if no engine was
/// measured.
fn variation(report: &Report, processes: u8) -> Result<Option<Variation>, CommandError> {
    let Some(first) = Medians::of(report) else { return Ok(None) };
    let others = (1..processes).map(|_| other_process());
    let all: Vec<_> = std::iter::once(Ok(first)).chain(others).collect::<Result<_, _>>()?;
    Ok(Variation::over(&all))
}

/// Returns the medians that a new process with the same arguments measures.
fn other_process() -> Result<Medians, CommandError> {
    let failed = |error: io::Error| CommandError::BenchProcess(error.to_string());
    let mut command = Command::new(env::current_exe().map_err(failed)?);
    // Without `--json`, errors of the process are lines.
    let arguments = env::args_os().skip(1).filter(|argument| argument != "--json");
    command.args(arguments).arg("--medians").stdin(Stdio::null());
    let output = command.output().map_err(failed)?;
    serde_json::from_slice(&output.stdout).map_err(|_| {
        let stderr = String::from_utf8_lossy(&output.stderr);
        CommandError::BenchProcess(one_line(stderr.lines().last().unwrap_or("it measured no engine")))
    })
}

/// Returns whether every result was right.
fn outcome(report: &Report) -> Outcome {
    let right = |outcome: &Timed| matches!(outcome, Timed::Measured(_) | Timed::Unsupported(_));
    match report.entries.iter().all(|entry| right(&entry.outcome)) {
        true => Outcome::Passed,
        false => Outcome::Failed,
    }
}

/// The number of processes that measure a hot case.
const PROCESSES: u8 = 4;

/// The steps of the progress bar.
const STEPS: usize = 1000;

/// Makes the report, with a progress bar.
fn measured(case: &Case, budget: Budget) -> Result<Report, CommandError> {
    let bar = progress(STEPS);
    let mut scene = Scene::new(case)?;
    let report = measure(&mut scene, &engines::built_in(case), budget, |progress| match progress {
        Progress::Sampling { done } => bar.set_position(steps(done)),
        _ => bar.tick(),
    })?;
    bar.finish_and_clear();
    Ok(report)
}

impl Bench {
    fn case(self) -> Result<Case, CommandError> {
        let layers = self.layers.unwrap_or(if self.cold.is_some() { COLD_LAYERS } else { 1 });
        Ok(Case::new(Parameters {
            name: String::new(),
            shape: self.shape,
            axis: self.axis,
            rows: self.rows,
            element: self.element,
            mode: self.mode,
            starts: self.starts,
            form: self.form,
            temperature: self.cold.unwrap_or_default(),
            layers,
            pages: self.pages,
            update: self.update,
            threads: self.threads,
        })?)
    }
}

/// Converts a part of the bar, 0 to 1, to steps.
#[expect(clippy::as_conversions, reason = "the number is 0 to 1000")]
fn steps(done: f64) -> u64 {
    (done * STEPS as f64) as u64
}

/// Returns a parser for one of these names.
fn one_of<T: Copy + Send + Sync + 'static, const N: usize>(
    names: [(&'static str, T); N],
) -> impl TypedValueParser<Value = T> {
    PossibleValuesParser::new(names.map(|(name, _)| name)).try_map(move |given| {
        let named = names.iter().find(|(name, _)| *name == given);
        named.map(|(_, value)| *value).ok_or("is none of them")
    })
}

/// Parses the number of processes, which includes this one.
fn processes(text: &str) -> Result<u8, String> {
    text.parse().ok().filter(|count| (1..=64).contains(count)).ok_or_else(|| "must be 1 to 64".to_owned())
}

/// Parses a time that is not negative and has a limit.
fn seconds(text: &str) -> Result<Duration, String> {
    let most = Duration::from_secs(3600);
    let seconds = text.parse().ok().and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    seconds.filter(|&time| time <= most).ok_or_else(|| format!("must be 0 to {}", most.as_secs()))
}
