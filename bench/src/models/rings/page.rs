//! The tables for a terminal and for `docs/rings.md`.

use std::slice;

use kvscatter_onnx::text::units;

use super::results::{CAPACITY, Column, LINEAR, Measured, RING_MASK, RINGS, Results, WINDOW};
use crate::models::results::GROUP_QUERY;

/// Returns the tables for a terminal.
pub(super) fn summary(results: &Results) -> String {
    let [windowed, stock] = [&results.windowed, &results.stock_windowed].map(|it| steps(slice::from_ref(it)));
    [bytes(results), windowed, stock, steps(&results.whole), targets(results)].join("\n")
}

/// Returns the generated part of the page.
pub(super) fn generate(results: &Results) -> String {
    let decoder = &results.decoder;
    let all = [&results.windowed, &results.stock_windowed].into_iter().chain(&results.whole);
    let difference = all.map(|it| it.difference).fold(0.0, f32::max);
    let mut text = format!(
        "The decoder is generated. Its {} layers have {} query heads and {} key/value head of size {} in float32, as Gemma 3 \
         1B has. Every {}th layer is global, and the others have a window of {WINDOW} tokens. Its weights are smaller \
         than those of Gemma 3, with a hidden size of {}, so caches and masks take a larger part of a step. It is \
         exported with GroupQueryAttention. `kvscatter convert --max-seq {CAPACITY}` makes the decoder with *{RINGS}*, and \
         `--window mask` the one with *{LINEAR}* caches. All ran in {} with one thread and batch 1, and with kvscatter's \
         plugin except where a table names its absence. Caches start full of values. The logits of all decoders are compared at \
         each context length before they are timed, and differ by at most {difference:.1e}. Times are medians of \
         interleaved rounds. *× rings* is the time divided by that with rings, the median of the ratios within a \
         round.\n\n\
         The memory of all caches at {CAPACITY} tokens:\n\n{}\n\
         A decode step of {} layers that all have the window:\n\n{}\n\
         The same step without the plugin:\n\n{}\n\
         A decode step of the whole decoder. *{GROUP_QUERY}* is the exported decoder, without the plugin, with past and \
         present in one buffer. *{RING_MASK}* is the time of the nodes that compute it, run as a separate model. It \
         includes the time that ONNX Runtime takes to start a run, but not the time in which attention reads the mask.\n\n{}\n",
        decoder.layers,
        decoder.heads,
        decoder.kv_heads,
        decoder.head_size,
        decoder.global_every.unwrap_or_default(),
        decoder.hidden,
        results.runtime,
        bytes(results),
        results.windowed_layers,
        steps(slice::from_ref(&results.windowed)),
        steps(slice::from_ref(&results.stock_windowed)),
        steps(&results.whole),
    );
    text += &targets(results);
    text += "\n| | |\n|---|---|\n";
    for (name, fact) in &results.host.facts {
        text += &format!("| {name} | {fact} |\n");
    }
    text.trim_end().to_owned()
}

fn bytes(results: &Results) -> String {
    let [rings, linear] = results.bytes;
    let ratio = results.bytes_verdict.ratio.unwrap_or_default();
    format!(
        "| {RINGS} | {LINEAR} | ratio |\n|--:|--:|--:|\n| {} | {} | {ratio:.3} |\n",
        units::bytes(rings),
        units::bytes(linear),
    )
}

/// Returns a row for each context length. Each column but the first one has a second one for its ratio.
fn steps(measured: &[Measured]) -> String {
    let columns = measured.first().map(|first| first.columns.as_slice()).unwrap_or_default();
    let names = columns.iter().enumerate();
    let names = names.map(|(index, Column { name, .. })| match index {
        0 => format!(" {name} |"),
        _ => format!(" {name} | × rings |"),
    });
    let mut text = format!("| context |{}\n", names.collect::<String>());
    text += &format!("|{}\n", "--:|".repeat(2 * columns.len()));
    for Measured { contexts, columns, .. } in measured {
        for (row, context) in contexts.iter().enumerate() {
            text += &format!("| {context} |");
            for (index, Column { times, over_rings, .. }) in columns.iter().enumerate() {
                text += &format!(" {} |", units::time(times[row].median));
                if index > 0 {
                    text += &format!(" {} |", ratio(over_rings[row].median));
                }
            }
            text += "\n";
        }
    }
    text
}

fn targets(results: &Results) -> String {
    let mut text =
        "| what | compared with | ratio | at most | A/A spread | |\n|---|---|--:|--:|--:|---|\n".to_owned();
    let of = |it: &Measured| format!("{:.2} – {:.2}", it.noise.lowest, it.noise.highest);
    let steps = [&results.windowed].into_iter().chain(&results.whole);
    let steps = steps.flat_map(|it| it.verdicts.iter().map(move |verdict| (verdict, of(it))));
    for (verdict, spread) in [(&results.bytes_verdict, "–".to_owned())].into_iter().chain(steps) {
        text += &format!(
            "| {} | {} | {} | {} | {spread} | {} |\n",
            verdict.engine,
            verdict.baseline,
            verdict.ratio.map_or("–".to_owned(), ratio),
            verdict.limit,
            verdict.status.word(),
        );
    }
    text
}

fn ratio(ratio: f64) -> String {
    if ratio < 0.1 { format!("{ratio:.4}") } else { units::three_digits(ratio) }
}
