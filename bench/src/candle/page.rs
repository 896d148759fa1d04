//! The tables, and the generated part of `docs/candle.md`.

use kvscatter_onnx::text::units;

use super::caches::PAIRS;
use super::results::{Measured, Results, TARGET, Time};
use super::writers::{CAT, CORE, FLOOR, OPERATION, WRITER};

const SLICE_SET: &str = "candle slice_set";
const SCATTER_SET: &str = "candle scatter_set";

/// Returns both tables.
pub(super) fn tables(results: &Results) -> String {
    format!("{}\n{}", writes(results), caches(results))
}

/// Returns the generated part of the page.
pub(super) fn generate(results: &Results) -> String {
    let mut text = format!(
        "### The write\n\nOne cache is written. *And candle* is the time of an in-place candle operation that does \
         nothing, plus the core's call after it. *× core* and *× both* are the ratios of the writer's time to the columns *core* and \
         *and candle*. Every other *×* is the ratio to the column before it. Ratios are taken within a round. Below 1 \
         the writer is faster.\n\n{}\n### Appending\n\nKeys and values are \
         appended, and `append` returns the tensors. *×* is the ratio of this crate's median to candle-nn's.\n\n{}\n\
         | | |\n|---|---|\n",
        writes(results),
        caches(results)
    );
    let missed: Vec<_> = results.cases.iter().flat_map(missed).collect();
    for (name, fact) in &results.host.facts {
        text += &format!("| {name} | {fact} |\n");
    }
    text += &match missed.as_slice() {
        [] => "\nEvery target is met.\n".to_owned(),
        missed => {
            format!("\nTargets that this run missed by more than its noise:\n\n- {}\n", missed.join("\n- "))
        }
    };
    text.trim_end().to_owned()
}

fn writes(results: &Results) -> String {
    let mut text = "| case | type | starts | core | and candle | writer | × core | × both | InplaceOp3 | slice_set | × | scatter_set | × | cat | × |\n\
                    |---|---|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|\n"
        .to_owned();
    for case in &results.cases {
        let time = |name| case.engine(name).map_or_else(dash, |engine| units::time(engine.time.median));
        let over = |name| {
            let ratio = case.engine(name).and_then(|engine| engine.writer_over);
            ratio.map_or_else(dash, |ratio| units::three_digits(ratio.median))
        };
        let mut cells = vec![case.name.clone(), case.element.clone(), case.starts.clone()];
        cells.extend([time(CORE), time(FLOOR), time(WRITER), over(CORE), over(FLOOR), time(OPERATION)]);
        cells.extend([SLICE_SET, SCATTER_SET, CAT].into_iter().flat_map(|name| [time(name), over(name)]));
        text += &format!("| {} |\n", cells.join(" | "));
    }
    text
}

fn caches(results: &Results) -> String {
    let mut text = "| case | type | KvCache | candle-nn | × | Rotating… | candle-nn | × | Scattered… | candle-nn | × |\n\
                    |---|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|\n"
        .to_owned();
    for case in results.cases.iter().filter(|case| pair(case, PAIRS[0]).is_some()) {
        let mut cells = vec![case.name.clone(), case.element.clone()];
        for names in PAIRS {
            cells.extend(match pair(case, names) {
                Some([ours, theirs]) => [
                    units::time(ours.time.median),
                    units::time(theirs.time.median),
                    units::three_digits(ours.time.median / theirs.time.median),
                ],
                None => [dash(), dash(), dash()],
            });
        }
        text += &format!("| {} |\n", cells.join(" | "));
    }
    text
}

fn pair<'a>(case: &'a Measured, names: [&str; 2]) -> Option<[&'a Time; 2]> {
    let [ours, theirs] = names.map(|name| case.engine(name));
    Some([ours?, theirs?])
}

/// Checks that the writer is as fast as the core, up to [`TARGET`], and faster than candle's operations. A
/// short run never fails.
pub(super) fn check(results: &Results) -> Result<(), String> {
    let missed: Vec<_> = results.cases.iter().flat_map(missed).collect();
    missed.iter().for_each(|line| println!("missed: {line}"));
    if missed.is_empty() {
        println!("every target is met");
    }
    if results.quick || missed.is_empty() { Ok(()) } else { Err("a target was missed".to_owned()) }
}

fn missed(case: &Measured) -> Vec<String> {
    let what = format!("{}, {}, {}", case.name, case.element, case.starts);
    let covers = |ratio| case.noise.is_some_and(|noise| noise.covers(ratio));
    let mut lines = Vec::new();
    if let Some(ratio) = case.engine(WRITER).and_then(|writer| writer.over_core)
        && ratio.median > TARGET
        && !covers(ratio.median)
    {
        lines.push(format!("{what}: {:.2} times the core's call, must be at most {TARGET}", ratio.median));
    }
    for name in [SLICE_SET, SCATTER_SET] {
        if let Some(ratio) = case.engine(name).and_then(|engine| engine.writer_over)
            && ratio.median >= 1.0
            && !covers(ratio.median)
        {
            lines.push(format!("{what}: {:.2} times {name}, must be faster", ratio.median));
        }
    }
    lines
}

fn dash() -> String {
    "–".to_owned()
}
