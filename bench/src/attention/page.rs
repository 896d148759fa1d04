//! The tables, the plots and the generated part of `docs/attention.md`.

use comfy_table::{CellAlignment, Table, presets};
use kvscatter_bench::Spread;
use kvscatter_onnx::text::units;

use super::results::{CaseResults, Results, RowResults};
use super::subjects;
use super::suite::Plot;
use crate::plots::{Figure, Look, PlotLine};
use crate::table;
use crate::target::Status;

const ORANGE: u32 = 0xbc4c00;
const PURPLE: u32 = 0x8250df;
const GREEN: u32 = 0x1a7f37;
const PINK: u32 = 0xbf3989;
const SAND: u32 = 0xd4a72c;

/// Returns the table of one case for a terminal.
pub(super) fn case_table(case: &CaseResults) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_header(["subject", "time", "p10 – p90", "× first"]);
    let first = case.subjects.first().and_then(|subject| subject.time.as_ref().ok()).map(|time| time.median);
    let mut notes = String::new();
    for subject in &case.subjects {
        match &subject.time {
            Ok(time) => {
                let ratio = first.map_or_else(dash, |first| format!("{:.2}", time.median / first));
                table.add_row([subject.name.clone(), units::time(time.median), range(*time), ratio]);
            }
            Err(why) => {
                // Some libraries add a backtrace.
                let why = why.lines().next().unwrap_or_default();
                notes += &format!(" {}: {why}\n", subject.name);
            }
        }
    }
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    let mut text = format!(
        "{}\n{table}\n A/A spread {:.2} – {:.2}\n{notes}",
        case.case.name, case.noise.lowest, case.noise.highest
    );
    for verdict in &case.verdicts {
        text += &format!(" {}\n", table::target(verdict));
    }
    text
}

/// Returns how many targets were met, and lists the others.
pub(crate) fn summary(results: &Results) -> String {
    let count = |status| results.verdicts().filter(|(_, verdict)| verdict.status == status).count();
    let mut text = format!(
        "attention: {} met, {} missed; undecided: {} met and {} missed by less than the noise, {} without a time\n",
        count(Status::Met),
        count(Status::Missed),
        count(Status::MetWithinSpread),
        count(Status::MissedWithinSpread),
        count(Status::NotMeasured),
    );
    for (case, verdict) in results.verdicts().filter(|(_, verdict)| verdict.status != Status::Met) {
        text += &format!("  {}: {}\n", case.case.name, table::target(verdict));
    }
    text
}

/// Returns two plots: the time against the valid slots, and against the capacity.
pub(crate) fn figures(results: &Results) -> Vec<Figure> {
    let machine = format!("{}; {}", results.runtime, results.host.cpu());
    let valid = figure(
        results,
        Plot::Valid,
        ("Time of one token's attention against the valid slots", "attention-valid", "valid slots"),
        format!("8 heads of 128 float32, capacity 4096, batch 1, one thread; {machine}"),
    );
    let capacity = figure(
        results,
        Plot::Capacity,
        ("Time of one token's attention against the capacity", "attention-capacity", "slots of the cache"),
        format!("8 heads of 128 float32, 300 valid slots, batch 1, one thread; {machine}"),
    );
    valid.into_iter().chain(capacity).collect()
}

/// The lines of the plots: a subject, and its look.
const LINES: [(&str, Look); 7] = [
    (subjects::PASS, Look::Limit),
    (subjects::KVSCATTER, Look::Ours),
    (subjects::GROUP_QUERY, Look::Peer(PURPLE)),
    (subjects::ATTENTION, Look::Peer(ORANGE)),
    (subjects::PLUGIN, Look::Peer(GREEN)),
    (subjects::CANDLE, Look::Peer(PINK)),
    (subjects::TRACT, Look::Peer(SAND)),
];

fn figure(
    results: &Results,
    plot: Plot,
    (title, file_stem, x): (&'static str, &'static str, &'static str),
    subtitle: String,
) -> Option<Figure> {
    let cases = || {
        let rows = results.rows.iter().filter(|row| row.plot == Some(plot));
        rows.flat_map(|row| &row.cases).filter(|case| case.case.threads == 1)
    };
    let at = |case: &CaseResults| match plot {
        Plot::Valid => case.case.valid.iter().sum::<usize>() as f64,
        Plot::Capacity => case.case.capacity as f64,
    };
    let lines = LINES.into_iter().filter_map(|(name, look)| {
        let points: Vec<_> = cases().filter_map(|case| Some((at(case), case.time(name)?.median))).collect();
        (points.len() > 1).then(|| PlotLine { name: name.to_owned(), look, points })
    });
    let lines: Vec<_> = lines.collect();
    if lines.is_empty() { None } else { Figure::of_times(title, subtitle, file_stem, x, lines) }
}

/// Returns the generated part of the page.
pub(crate) fn generate(results: &Results, figures: &[Figure]) -> String {
    let mut text = format!(
        "Measured with {}. kvscatter uses {} unless a line names AVX2.\n\n### Targets\n\n\
         | what | target | case | time | compared with | ratio | at most | A/A spread | |\n\
         |---|---|---|--:|---|--:|--:|--:|---|\n",
        results.runtime, results.isa
    );
    for row in &results.rows {
        let mut words = (row.description.as_str(), row.goal.as_str());
        for case in &row.cases {
            for verdict in &case.verdicts {
                text += &format!(
                    "| {} | {} | {}, {} | {} | {} | {} | {:.2} | {:.2} – {:.2} | {} |\n",
                    words.0,
                    words.1,
                    case.case.name,
                    verdict.engine,
                    case.time(&verdict.engine).map_or_else(dash, |time| units::time(time.median)),
                    verdict.baseline,
                    verdict.ratio.map_or_else(dash, |ratio| format!("{ratio:.2}")),
                    verdict.limit,
                    case.noise.lowest,
                    case.noise.highest,
                    verdict.status.word(),
                );
                // The first line of a row names the row.
                words = ("", "");
            }
        }
    }
    text += "\n### Every subject\n\nTimes are medians, in microseconds or milliseconds per call.\n\n";
    results.rows.iter().for_each(|row| text += &row_table(row));
    for figure in figures {
        text += &format!("![{}](attention/{}.svg)\n\n", figure.title(), figure.file_stem());
    }
    text += "| | |\n|---|---|\n";
    for (name, fact) in &results.host.facts {
        text += &format!("| {name} | {fact} |\n");
    }
    text.trim_end().to_owned()
}

/// Returns one line for each case, and a column for each subject that any of them has.
fn row_table(row: &RowResults) -> String {
    let first = row.cases.first();
    let names: Vec<_> =
        first.into_iter().flat_map(|case| &case.subjects).map(|subject| &subject.name).collect();
    let timed = |name: &&&String| row.cases.iter().any(|case| case.time(name).is_some());
    let names: Vec<_> = names.iter().filter(timed).collect();
    let mut text = format!("{}:\n\n| case |", row.description);
    names.iter().for_each(|name| text += &format!(" {name} |"));
    text += &format!("\n|---|{}\n", "--:|".repeat(names.len()));
    for case in &row.cases {
        text += &format!("| {} |", case.case.name);
        for name in &names {
            let time = case.time(name).map_or_else(dash, |time| units::time(time.median));
            text += &format!(" {time} |");
        }
        text += "\n";
    }
    text + "\n"
}

fn range(time: Spread) -> String {
    format!("{} – {}", units::time(time.p10), units::time(time.p90))
}

fn dash() -> String {
    "–".to_owned()
}
