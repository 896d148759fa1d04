//! The part of the page about times, bytes moved and peak memory.

use kvscatter_onnx::text::units;
use maud::{Markup, html};

use super::plain::Plain;
use super::plot::{Line, Plot};
use crate::certificate::{BytesMoved, CachePathTimes, ComparedModel, DecodeTimes, PeakMemory, Timings};
use crate::report::words;

pub(super) fn section(timings: &Timings) -> Markup {
    html! {
        section #timings {
            h2 { "Times and sizes" }
            @if let Some(times) = &timings.cache_path { (cache_path(times)) }
            @if let Some(bytes) = timings.bytes_moved { (bytes_moved(bytes)) }
            @if !timings.peak_memory.is_empty() { (peak_memory(&timings.peak_memory)) }
            @if let Some(times) = &timings.decode { (decode(times)) }
        }
    }
}

fn cache_path(times: &CachePathTimes) -> Markup {
    let longest = times.at.iter().map(|at| at.median_ns).fold(1.0, f64::max);
    html! {
        h3 { "A cache's own time" }
        p {
            (times.caches) @if times.caches == 1 { " cache was" } @else { " caches were" }
            " timed one by one. Only the nodes between past and present ran, at two capacities, and wrote slot "
            (times.context) " in both (batch " (times.batch) ", " (times.rounds) " interleaved rounds). The time of "
            code { (Plain(&times.cache)) } " grows most. The ratio of the fastest calls is "
            (format!("{:.2}", times.ratio)) ", and a ratio up to " (format!("{:.2}", times.flat_up_to))
            " counts as constant."
        }
        div.wide { table {
            thead { tr { th.n { "capacity" } th.n { "cache" } th.n { "fastest" } th.n { "median" } th {} } }
            tbody { @for at in &times.at { tr {
                td.n { (at.capacity) }
                td.n { (units::bytes(at.cache_bytes)) }
                td.n { (units::time(at.fastest_ns)) }
                td.n { (units::time(at.median_ns)) }
                td.bar { span style=(format!("width: {:.1}%", 100.0 * at.median_ns / longest)) {} }
            } } }
        } }
    }
}

fn bytes_moved(bytes: BytesMoved) -> Markup {
    html! {
        h3 { "Bytes moved per step" }
        p {
            "The bytes are computed from the shapes, not measured. To update all caches, a decode step of batch "
            (bytes.batch) " moves " b { (units::bytes(bytes.in_place)) }
            " in place, because each new row is read once and written once. If the caches of " (bytes.capacity)
            " slots are copied, it moves " b { (units::bytes(bytes.copied)) } "."
        }
    }
}

fn peak_memory(peaks: &[PeakMemory]) -> Markup {
    html! {
        h3 { "Peak memory" }
        p { "The peak memory of the process during decoding, less its memory before the first step." }
        div.wide { table {
            thead { tr {
                th { "model" } th.n { "batch" } th.n { "steps" } th.n { "tokens at the end" } th.n { "peak" }
            } }
            tbody { @for peak in peaks { tr {
                td { (words::side(peak.of)) }
                td.n { (peak.batch) }
                td.n { (peak.steps) }
                td.n { (peak.context) }
                td.n { @if let Some(bytes) = peak.bytes { (units::bytes(bytes)) } @else { "not measured" } }
            } } }
        } }
    }
}

fn decode(times: &DecodeTimes) -> Markup {
    let line = |side| {
        let time = |at: &crate::certificate::DecodeTime| match side {
            ComparedModel::Model => Some((at.context, at.model_ns)),
            ComparedModel::Original => at.original_ns.map(|time| (at.context, time)),
        };
        Line { name: words::side(side), points: times.at.iter().filter_map(time).collect() }
    };
    let lines = [ComparedModel::Model, ComparedModel::Original].map(line);
    let plot = Plot {
        label: "Time of one decode step against the tokens in the caches",
        across: "tokens in the caches before the step",
        lines: lines.into_iter().filter(|line| !line.points.is_empty()).collect(),
    };
    html! {
        h3 { "A whole decode step" }
        p {
            "Batch " (times.batch) ", static caches of " (times.capacity) " slots, medians of " (times.rounds)
            " interleaved rounds."
            @if let Some(crossover) = times.crossover { " " (words::crossover(crossover)) }
        }
        @if times.at.len() > 1 { div.wide { (plot.draw()) } }
        div.wide { table {
            thead { tr {
                th.n { "tokens before" } th.n { "this model" } th.n { "the original" } th.n { "original over this" }
            } }
            tbody { @for at in &times.at { tr {
                td.n { (at.context) }
                td.n { (units::time(at.model_ns)) }
                @if let Some(original) = at.original_ns {
                    td.n { (units::time(original)) }
                    td.n { (units::three_digits(original / at.model_ns)) }
                } @else { td.n { "–" } td.n { "–" } }
            } } }
        } }
    }
}
