//! The table, the plots and the generated part of `docs/models.md`.

use kvscatter_text::units;

use super::measure::Measured;
use super::results::{Results, TARGET};
use crate::plots::{Figure, Look, PlotLine};

const ORANGE: u32 = 0xbc4c00;

/// The largest allowed ratio of the static caches' time at the longest context to that at the shortest.
const FLAT: f64 = 1.5;

/// Returns the table for a terminal.
pub(super) fn table(results: &Results) -> String {
    let mut table = comfy_table::Table::new();
    table.load_style(comfy_table::presets::NOTHING).set_header([
        "context",
        "caches growing",
        "in place",
        "ratio",
        "step growing",
        "static",
        "ratio",
    ]);
    for at in &results.at {
        table.add_row(cells(at));
    }
    table.trim_fmt()
}

fn cells(at: &Measured) -> [String; 7] {
    [
        at.context.to_string(),
        units::time(at.growing.caches.median),
        units::time(at.fixed.caches.median),
        units::three_digits(at.caches_ratio.median),
        units::time(at.growing.step.median),
        units::time(at.fixed.step.median),
        units::three_digits(at.step_ratio.median),
    ]
}

/// Returns two plots: the caches alone, and the whole step.
pub(super) fn figures(results: &Results) -> Vec<Figure> {
    let line = |name: &str, look, time: fn(&Measured) -> f64| PlotLine {
        name: name.to_owned(),
        look,
        points: results.at.iter().map(|at| (at.context as f64, time(at))).collect(),
    };
    let decoder = &results.decoder;
    let subtitle = |what| {
        format!(
            "{what}; {} layers, {} heads of {} float32, capacity {}, batch 1; {}; {}",
            decoder.layers,
            decoder.heads,
            decoder.head_size,
            results.capacity,
            results.runtime,
            results.host.cpu()
        )
    };
    let caches = Figure::of_models(
        "Time of the caches per decode step against the context",
        subtitle("the nodes between past and present alone"),
        "caches",
        vec![
            line("growing (Concat)", Look::Peer(ORANGE), |at| at.growing.caches.median),
            line("static, in place", Look::Ours, |at| at.fixed.caches.median),
        ],
    );
    let step = Figure::of_models(
        "Time of a whole decode step against the context",
        subtitle("everything"),
        "step",
        vec![
            line("growing (Concat)", Look::Peer(ORANGE), |at| at.growing.step.median),
            line("static, in place", Look::Ours, |at| at.fixed.step.median),
        ],
    );
    caches.into_iter().chain(step).collect()
}

/// Returns the generated part of the page.
pub(super) fn generate(results: &Results, figures: &[Figure]) -> String {
    let decoder = &results.decoder;
    let mut text = format!(
        "The decoder is generated. It has {} layers of {} heads with {} float32 each, and at {} tokens its caches take \
         {}. Its caches grow, as exporters write them. `kvscatter convert --max-seq {}` made the static decoder from it, \
         whose past and present are bound to one buffer. Both ran in {} with one thread and batch 1. Their logits are \
         compared before each length is timed, and {}. Times are medians of interleaved rounds. Ratios are medians of \
         the ratios within a round.\n\n\
         | context | caches growing | caches in place | ratio | whole step growing | whole step static | ratio |\n\
         |--:|--:|--:|--:|--:|--:|--:|\n",
        decoder.layers,
        decoder.heads,
        decoder.head_size,
        results.capacity,
        units::bytes(decoder.cache_bytes(results.capacity) as u64),
        results.capacity,
        results.runtime,
        agreement(results),
    );
    for at in &results.at {
        text += &format!("| {} |\n", cells(at).join(" | "));
    }
    text += "\n*Caches* are the nodes between past and present alone, run as a separate model. Growing caches are \
             written to memory that is already allocated. A runtime that allocates it in every step is slower.\n\n";
    for figure in figures {
        text += &format!("![{}](models/{}.svg)\n\n", figure.title(), figure.file_stem());
    }
    text += "| | |\n|---|---|\n";
    for (name, fact) in &results.host.facts {
        text += &format!("| {name} | {fact} |\n");
    }
    text.trim_end().to_owned()
}

fn agreement(results: &Results) -> String {
    match results.at.iter().map(|at| at.difference).fold(0.0, f32::max) {
        0.0 => "they are equal".to_owned(),
        largest => format!("they differ by at most {largest:.1e}"),
    }
}

/// Checks that the static caches meet their targets. A short run never fails.
pub(super) fn check(results: &Results) -> Result<(), String> {
    let (Some(first), Some(last)) = (results.at.first(), results.at.last()) else { return Ok(()) };
    let (ratio, growth) = (last.caches_ratio.median, last.fixed.caches.median / first.fixed.caches.median);
    println!(
        "caches at {} tokens: {ratio:.0} times as fast in place, must be at least {TARGET:.0}",
        last.context
    );
    println!(
        "in place from {} to {} tokens: {growth:.2} times as long, must be at most {FLAT}",
        first.context, last.context
    );
    if results.quick || (ratio >= TARGET && growth <= FLAT) {
        Ok(())
    } else {
        Err("a target was missed".to_owned())
    }
}
