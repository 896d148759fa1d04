//! Prints a report: the case, the machine, the table and the histogram.

use std::io::Write;

use kvscatter::Mode;
use kvscatter::spec::onnx::TensorScatter;
use kvscatter_bench::engines::{HAND_LOOP, MEMCPY};
use kvscatter_bench::{
    Case, EngineOutcome, Form, Histogram, Machine, MedianSpread, Outcome, Pages, RatioRange, Reference,
    Report, Spread, Temperature, UpdateLayout, Variation,
};
use kvscatter_onnx::text::units;

use crate::error::CommandError;
use crate::output::{Output, columns, count, hanging, one_line, table};

/// The most columns of the histogram.
const COLUMNS: usize = 56;
/// The fewest columns of the histogram, even in a narrow terminal.
const MIN_COLUMNS: usize = 16;

pub(super) fn report(
    report: &Report,
    machine: &Machine,
    variation: Option<&Variation>,
    output: &mut Output,
) -> Result<(), CommandError> {
    if cfg!(debug_assertions) {
        let text = "THIS IS A DEBUG BUILD: ITS TIMES MEAN NOTHING. Build with --release.";
        writeln!(output, "{}\n", hanging(0, text))?;
    }
    writeln!(output, "{}", hanging(0, &case(&report.case)))?;
    let isa = report.isa.as_ref().map(|isa| format!("; kvscatter uses {isa}")).unwrap_or_default();
    writeln!(output, "{}", hanging(0, &format!("{}{isa}", self::machine(machine))))?;
    let by = match report.checked_by {
        Reference::Oracle => "the specification's pseudocode",
        Reference::RowLoop => "a loop over rows, because the specification's pseudocode would take too long",
    };
    writeln!(output, "{}\n", hanging(0, &format!("checked against {by}")))?;
    engines(report, variation, output)?;
    if let Some(histogram) = histogram(report, columns().unwrap_or(usize::MAX)) {
        write!(output, "\n{histogram}")?;
    }
    Ok(())
}

/// Formats a histogram in lines of at most `columns`. The smallest histogram may be wider.
fn histogram(report: &Report, columns: usize) -> Option<String> {
    let text = |of: usize| Histogram::new(report, of).map(|histogram| histogram.to_string());
    let fits = |text: &String| text.lines().all(|line| line.chars().count() <= columns);
    let fitting = (MIN_COLUMNS..=COLUMNS).rev().filter_map(text).find(fits);
    fitting.or_else(|| text(MIN_COLUMNS))
}

/// Formats a case in one line.
pub(super) fn case(case: &Case) -> String {
    let parameters = case.parameters();
    let mode = if parameters.mode == Mode::Circular { "circular" } else { "linear" };
    let mut parts = vec![
        format!("{} cache {:?}", parameters.element.numpy_name(), parameters.shape),
        format!("{} at {} starts", count(parameters.rows, "row"), parameters.starts),
        mode.to_owned(),
    ];
    if parameters.axis != TensorScatter::DEFAULT_AXIS {
        parts.push(format!("axis {}", parameters.axis));
    }
    if parameters.update == UpdateLayout::Bshd {
        parts.push("update [batch, rows, heads, head size]".to_owned());
    }
    if parameters.form == Form::Functional {
        parts.push("functional form".to_owned());
    }
    let layers = count(parameters.layers, "layer");
    parts.push(match parameters.temperature {
        Temperature::Hot => "hot".to_owned(),
        Temperature::Unflushed => format!("keys and values of {layers}, unflushed"),
        Temperature::Flushed => format!("keys and values of {layers}, flushed"),
        Temperature::FlushedRows => format!("keys and values of {layers}, rows flushed"),
    });
    parts.push(match parameters.pages {
        Pages::Small => "4 KiB pages".to_owned(),
        Pages::Huge => "2 MiB pages".to_owned(),
    });
    if parameters.threads > 1 {
        parts.push(count(parameters.threads, "thread"));
    }
    parts.join(", ")
}

fn machine(machine: &Machine) -> String {
    let caches: Vec<_> =
        machine.caches.iter().map(|&cache| units::bytes(u64::try_from(cache).unwrap_or(u64::MAX))).collect();
    let cpu = if machine.cpu.is_empty() { "unknown processor".to_owned() } else { one_line(&machine.cpu) };
    format!("{cpu}, {}, data caches of {}", count(machine.cores, "core"), caches.join(", "))
}

fn engines(report: &Report, variation: Option<&Variation>, output: &mut Output) -> Result<(), CommandError> {
    let cold = report.case.parameters().temperature.is_cold();
    let per_call = if cold { "time per pair" } else { "time per call" };
    let mut headers = vec!["engine", per_call, "p10–p90", "GB/s", "× memcpy", "× hand loop"];
    if cold {
        headers.extend(["with reading", "× memcpy", "× hand loop"]);
    }
    let numbers: Vec<_> = (1..headers.len()).collect();
    let rows = report.entries.iter().filter(|entry| report.times(&entry.engine).is_some());
    let rows = rows.map(|entry| row(report, variation, &entry.engine, cold));
    writeln!(output, "{}", table(&headers, &numbers, rows))?;
    for EngineOutcome { engine, outcome } in &report.entries {
        match outcome {
            Outcome::Measured(_) => (),
            Outcome::Wrong(difference) => {
                writeln!(output, "{engine}: WRONG, not timed: {}", one_line(difference))?
            }
            Outcome::Failed(cause) => writeln!(output, "{engine}: failed, not timed: {}", one_line(cause))?,
            Outcome::Unsupported(cause) => {
                writeln!(output, "{engine}: not available here: {}", one_line(cause))?
            }
        }
    }
    if let Some(noise) = &report.noise {
        let MedianSpread { lowest, highest } = noise.spread;
        let text = format!(
            "A/A spread: the {} over its second turn, medians of blocks of rounds: {lowest:.2} to {highest:.2}; ≈ marks ratios inside this spread or the spread from run to run",
            noise.engine
        );
        writeln!(output, "{}", hanging(0, &text))?;
    }
    match variation {
        Some(variation) => run_to_run(variation, output),
        None => Ok(()),
    }
}

/// Prints the differences between processes, which ratios within a process do not show.
fn run_to_run(variation: &Variation, output: &mut Output) -> Result<(), CommandError> {
    let Variation { engine, processes, lowest, highest, ratios } = variation;
    let processes = if *processes == 1 { "1 process".to_owned() } else { format!("{processes} processes") };
    let mut text = format!(
        "run to run: the {engine} takes {} to {} in blocks of {processes}",
        units::time(*lowest),
        units::time(*highest)
    );
    for RatioRange { engine: other, lowest, highest } in ratios {
        text.push_str(&format!("; {other} {lowest:.2} to {highest:.2} × as long"));
    }
    Ok(writeln!(output, "{}", hanging(0, &text))?)
}

fn row(report: &Report, variation: Option<&Variation>, engine: &str, cold: bool) -> Vec<String> {
    let hand_loop = report.ratio(engine, HAND_LOOP).map(|ratio| ratio.median);
    let spread = variation.zip(hand_loop).map(|(variation, ratio)| variation.spread(engine, ratio));
    let noise = report.noise.as_ref().map(|noise| noise.spread);
    let noise = noise.map(|noise| noise.joined(spread.unwrap_or(noise)));
    let is_none = |ratio: f64| noise.is_some_and(|noise| noise.covers(ratio));
    let ratio = |ratio: Option<Spread>| match ratio {
        None => "–".to_owned(),
        Some(ratio) if is_none(ratio.median) => format!("≈ {:.2}", ratio.median),
        Some(ratio) => format!("{:.2}", ratio.median),
    };
    let over = |baseline: &str| match baseline == engine {
        true => "1".to_owned(),
        false => ratio(report.ratio(engine, baseline)),
    };
    let read_over = |baseline: &str| match baseline == engine {
        true => "1".to_owned(),
        false => ratio(report.ratio_with_read(engine, baseline)),
    };
    let times = report.times(engine);
    let write = times.map(|times| times.write.spread());
    let mut cells = vec![
        engine.to_owned(),
        write.map_or_else(String::new, |write| units::time(write.median)),
        write.map_or_else(String::new, |write| {
            format!("{}–{}", units::time(write.p10), units::time(write.p90))
        }),
        report.bandwidth(engine).map_or_else(String::new, units::three_digits),
        over(MEMCPY),
        over(HAND_LOOP),
    ];
    if cold {
        let with_read =
            times.and_then(|times| Some(units::time(times.write_and_read.as_ref()?.spread().median)));
        cells.extend([with_read.unwrap_or_default(), read_over(MEMCPY), read_over(HAND_LOOP)]);
    }
    cells
}
