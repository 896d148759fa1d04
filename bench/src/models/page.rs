//! The table, the plots and the generated part of `docs/models.md`.

use kvscatter_onnx::text::units;

use super::results::Measured;
use super::results::{self, Results, TARGET};
use crate::plots::{Figure, Look, PlotLine};
use crate::table;

const ORANGE: u32 = 0xbc4c00;
const PURPLE: u32 = 0x8250df;
const GREEN: u32 = 0x1a7f37;
const SAND: u32 = 0xd4a72c;

/// The largest allowed ratio of the static caches' time at the longest context to that at the shortest.
const FLAT: f64 = 1.5;

/// Returns the table for a terminal.
pub(super) fn table(results: &Results) -> String {
    let mut table = comfy_table::Table::new();
    table.load_style(comfy_table::presets::NOTHING).set_header(header(results));
    for at in &results.at {
        table.add_row(cells(at));
    }
    let mut text = table.trim_fmt() + "\n";
    results.absent.iter().for_each(|why| text += &format!("{why}\n"));
    for at in &results.at {
        for verdict in &at.verdicts {
            text += &format!("{} tokens: {}\n", at.context, table::target(verdict));
        }
    }
    text
}

/// Returns the names of the columns. Every decoder but the growing one has a second column for its speedup.
fn header(results: &Results) -> Vec<String> {
    let names = results.at.first().into_iter().flat_map(|at| &at.steps).enumerate();
    let names = names.flat_map(|(index, step)| {
        let speedup = (index > 0).then(|| "speedup".to_owned());
        std::iter::once(format!("step {}", step.name)).chain(speedup)
    });
    ["context", "caches growing", "in place", "speedup"].map(str::to_owned).into_iter().chain(names).collect()
}

fn cells(at: &Measured) -> Vec<String> {
    let mut cells = vec![
        at.context.to_string(),
        units::time(at.caches.growing.median),
        units::time(at.caches.in_place.median),
        units::three_digits(at.caches.ratio.median),
    ];
    for (index, step) in at.steps.iter().enumerate() {
        cells.push(units::time(step.time.median));
        if index > 0 {
            cells.push(units::three_digits(step.speedup.median));
        }
    }
    cells
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
            line("growing (Concat)", Look::Peer(ORANGE), |at| at.caches.growing.median),
            line("static, in place", Look::Ours, |at| at.caches.in_place.median),
        ],
    );
    let looks = [
        (results::GROWING, Look::Peer(ORANGE)),
        (results::SEPARATE, Look::Peer(SAND)),
        (results::STATIC, Look::Peer(GREEN)),
        (results::PLUGIN, Look::Ours),
        (results::GROUP_QUERY, Look::Peer(PURPLE)),
    ];
    let steps = looks.into_iter().filter_map(|(name, look)| {
        let time = |at: &Measured| {
            let step = at.steps.iter().find(|step| step.name == name)?;
            Some((at.context as f64, step.time.median))
        };
        let points: Vec<_> = results.at.iter().filter_map(time).collect();
        (!points.is_empty()).then(|| PlotLine { name: name.to_owned(), look, points })
    });
    let step = Figure::of_models(
        "Time of a whole decode step against the context",
        subtitle("everything"),
        "step",
        steps.collect(),
    );
    caches.into_iter().chain(step).collect()
}

/// Returns the generated part of the page.
pub(super) fn generate(results: &Results, figures: &[Figure]) -> String {
    let decoder = &results.decoder;
    let mut text = format!(
        "The decoder is generated. It has {} layers of {} heads with {} float32 each, and at {} tokens its caches take \
         {}. Its caches grow, as exporters write them. `kvscatter convert --max-seq {}` made the static decoder from it, \
         whose past and present are bound to one buffer. It has `Attention` nodes, and *separate nodes* is the same \
         decoder with `--keep-attention`. *Plugin* is with kvscatter's plugin. In *GroupQueryAttention*, the decoder \
         uses this operator instead, with past and present in one buffer. All ran in {} with one thread and batch 1. \
         Their logits are compared before each length is timed, and {}. Times are medians of interleaved rounds. A speedup is the time \
         of the growing decoder divided by that of the other, the median of the ratios within a round.\n\n",
        decoder.layers,
        decoder.heads,
        decoder.head_size,
        results.capacity,
        units::bytes(decoder.cache_bytes(results.capacity) as u64),
        results.capacity,
        results.runtime,
        agreement(results),
    );
    let header = header(results);
    text += &format!("| {} |\n|{}\n", header.join(" | "), "--:|".repeat(header.len()));
    for at in &results.at {
        text += &format!("| {} |\n", cells(at).join(" | "));
    }
    results.absent.iter().for_each(|why| text += &format!("\n{why}.\n"));
    text += &targets(results);
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

/// Returns the table of targets.
fn targets(results: &Results) -> String {
    let mut text = "\nIn this table, a ratio is the time of the decoder divided by that of the one it is compared with.\n\n\
                    | context | decoder | compared with | ratio | at most | A/A spread | |\n\
                    |--:|---|---|--:|--:|--:|---|\n"
        .to_owned();
    for at in &results.at {
        for verdict in &at.verdicts {
            text += &format!(
                "| {} | {} | {} | {} | {:.2} | {:.2} – {:.2} | {} |\n",
                at.context,
                verdict.engine,
                verdict.baseline,
                verdict.ratio.map_or("–".to_owned(), |ratio| format!("{ratio:.2}")),
                verdict.limit,
                at.noise.lowest,
                at.noise.highest,
                verdict.status.word(),
            );
        }
    }
    text
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
    let (ratio, growth) =
        (last.caches.ratio.median, last.caches.in_place.median / first.caches.in_place.median);
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
