//! Tables for the terminal.

use comfy_table::{CellAlignment, Table, presets};
use kvscatter_bench::{MedianSpread, Spread, Variation};
use kvscatter_onnx::text::units;

use crate::results::{CaseResults, EngineResults, Note, Results};
use crate::target::{Status, Verdict};

/// Returns the table of one case: every engine, then the targets.
pub(crate) fn case(case: &CaseResults) -> String {
    if let Some(why) = &case.refused {
        return format!("{} is not measured: {why}\n", case.case.name);
    }
    let cold = case.engines.iter().any(|engine| engine.with_read_over_hand_loop.is_some());
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    let mut header = vec!["engine", "time", "p10 – p90", "GB/s", "× memcpy", "× hand loop"];
    if cold {
        header.push("and read back");
    }
    table.set_header(header);
    for engine in &case.engines {
        table.add_row(line(engine, case.moved_bytes, cold));
    }
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    let mut text = format!("{}\n{table}\n", case.case.name);
    if let Some(MedianSpread { lowest, highest }) = case.noise {
        text += &format!(" A/A spread {lowest:.2} – {highest:.2}\n");
    }
    if let Some(Variation { engine, processes, lowest, highest, .. }) = &case.variation {
        let [lowest, highest] = [*lowest, *highest].map(units::time);
        text += &format!(" {engine} {lowest} – {highest} over blocks of {processes} processes\n");
    }
    for verdict in &case.verdicts {
        text += &format!(" {}\n", target(verdict));
    }
    for engine in &case.engines {
        match &engine.note {
            Some(Note::Wrong(why)) => text += &format!(" {} is WRONG, not timed: {why}\n", engine.name),
            Some(Note::Failed(why)) => text += &format!(" {} failed, not timed: {why}\n", engine.name),
            Some(Note::Unsupported(_)) | None => {}
        }
    }
    text
}

/// Returns how many targets were met, and lists the others.
pub(crate) fn summary(results: &Results) -> String {
    let all = || results.rows.iter().flat_map(|row| &row.cases);
    let verdicts = || all().flat_map(|case| case.verdicts.iter().map(move |verdict| (case, verdict)));
    let count = |status| verdicts().filter(|(_, verdict)| verdict.status == status).count();
    let mut text = format!(
        "{} met, {} missed; undecided: {} met and {} missed by less than they move, {} without a time\n",
        count(Status::Met),
        count(Status::Missed),
        count(Status::MetWithinSpread),
        count(Status::MissedWithinSpread),
        count(Status::NotMeasured),
    );
    for (case, verdict) in verdicts().filter(|(_, verdict)| verdict.status != Status::Met) {
        text += &format!("  {}: {}\n", case.case.name, target(verdict));
    }
    text
}

/// Returns a verdict in one line.
pub(crate) fn target(verdict: &Verdict) -> String {
    let Verdict { engine, baseline, limit, ratio, processes, status } = verdict;
    let is = ratio.map_or("–".to_owned(), |ratio| format!("{ratio:.2}"));
    let moves = processes.map_or(String::new(), |MedianSpread { lowest, highest }| {
        format!(" ({lowest:.2} – {highest:.2} in all processes)")
    });
    format!("{engine} is {is} × {baseline}{moves}, at most {limit:.2}: {}", status.word())
}

fn line(engine: &EngineResults, moved: usize, cold: bool) -> Vec<String> {
    let dash = || "–".to_owned();
    let ratio = |ratio: Option<Spread>| ratio.map_or_else(dash, |ratio| units::three_digits(ratio.median));
    let time = |form: fn(Spread, usize) -> String| engine.time.map_or_else(dash, |time| form(time, moved));
    let mut cells = vec![
        engine.name.clone(),
        time(|time, _| units::time(time.median)),
        time(|time, _| format!("{} – {}", units::time(time.p10), units::time(time.p90))),
        time(|time, moved| units::three_digits(moved as f64 / time.median)),
        ratio(engine.over_memcpy),
        ratio(engine.over_hand_loop),
    ];
    if cold {
        cells.push(ratio(engine.with_read_over_hand_loop));
    }
    cells
}
