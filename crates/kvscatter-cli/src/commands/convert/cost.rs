//! What the caches of a converted decoder cost, and what a step reads of them.

use kvscatter_onnx::convert::{Report, UNLIMITED};
use kvscatter_onnx::internal::text::units;

use crate::output::count;

/// The context lengths that the capacity is compared with.
const CONTEXTS: [usize; 4] = [8, 64, 512, 4096];

/// Times of a step with a static cache of 4096 slots, divided by the time with a growing cache: a context, the
/// ratio in ONNX Runtime, and that with the plugin. The measurement is in docs/models.md.
const MEASURED: [(usize, f64, f64); 2] = [(128, 5.3, 0.9), (4095, 0.5, 0.3)];

/// Returns the sizes of the caches.
pub(super) fn size(report: &Report, max_seq: usize) -> Option<String> {
    let sample = report.caches.bytes_per_sample?;
    let slot = units::bytes(report.caches.bytes_per_slot?);
    let linear = report.caches.linear_bytes_per_sample?;
    let without_rings = match sample == linear {
        true => ":".to_owned(),
        false => format!(". Without rings, they would take {}:", units::bytes(linear)),
    };
    let (sample, slots) = (units::bytes(sample), count(max_seq, "slot"));
    Some(format!("The caches take {sample} a sample{without_rings} {slots} of {slot}."))
}

/// Returns what a step reads, as paragraphs. This does not depend on how much of a cache is in use.
pub(super) fn cost(report: &Report, max_seq: usize) -> Vec<String> {
    let slots = count(slots_per_step(report, max_seq), "slot");
    match report.caches.most_tokens {
        Some(most_tokens) => vec![cost_of_rings(most_tokens, &slots)],
        None => cost_of_linear_caches(report, max_seq, &slots),
    }
}

/// Returns what a step of a model reads whose caches are all rings.
fn cost_of_rings(most_tokens: usize, slots: &str) -> String {
    let most = match most_tokens {
        UNLIMITED => "A sample can have any number of tokens.".to_owned(),
        most => format!(
            "A sample can have {most} tokens (--max-seq), because the decoder has a table of positions or a mask \
             of all tokens. A larger --max-seq makes no ring larger."
        ),
    };
    format!(
        "{most} A step takes the same time and memory for every length of text. With kvscatter's plugin or its engine \
         tract, an Attention node reads only the slots that a token sees. ONNX Runtime without the plugin reads \
         all {slots} of a ring."
    )
}

/// Returns what a step of a model with linear caches reads.
fn cost_of_linear_caches(report: &Report, max_seq: usize, slots: &str) -> Vec<String> {
    let ratios: Vec<_> =
        ratios(max_seq).map(|(context, ratio)| format!("{ratio} × at {context} tokens")).collect();
    let ratios = if ratios.is_empty() { String::new() } else { format!(" ({})", ratios.join(", ")) };
    let reads = |reader: &str, then: &str| {
        format!(
            "{reader} reads all {slots} of each sample in every step, even if few are in use{ratios}. {then} choose \
             --max-seq no larger than your longest text."
        )
    };
    // Without the used length, no engine can stop there.
    if report.inputs.nonpad_kv_seqlen.is_none() {
        return vec![reads("Attention of separate nodes", "So")];
    }
    let [(few, slower, few_in_plugin), (many, faster, many_in_plugin)] = MEASURED;
    // Without its option, the plugin computes the nodes that convert a narrow cache back as they are.
    let (plugin, without) = match report.caches.narrow {
        None => ("its plugin", "ONNX Runtime without the plugin"),
        Some(_) => ("its plugin with the option fusion=on", "ONNX Runtime without this option"),
    };
    let mut text = vec![
        format!(
            "With kvscatter's engine tract or {plugin}, an Attention node reads only the slots in use, so its time \
             grows with the context and not with --max-seq."
        ),
        reads(without, "Then"),
    ];
    if report.attention.nodes != report.attention.count {
        text.push(format!("Attention of separate nodes reads all {slots} in every engine."));
    }
    // The caches of that decoder are float32.
    if report.caches.narrow.is_some() {
        return text;
    }
    text.push(format!(
        "For example, a step of the decoder in docs/models.md, with 4096 slots, takes {few_in_plugin} × the \
         time of a growing cache at {few} tokens and {many_in_plugin} × at {many} with the plugin, and {slower} × \
         and {faster} × without it."
    ));
    text
}

/// Returns the slots of each sample that are an input of attention in every step, in a layer with the most slots.
pub(super) fn slots_per_step(report: &Report, max_seq: usize) -> usize {
    let largest_ring = report.caches.rings.keys().map(|ring| ring.capacity).max();
    largest_ring.filter(|_| report.caches.most_tokens.is_some()).unwrap_or(max_seq)
}

/// Returns some context lengths with the ratio of all slots to those in use, if the ratio is at least 2.
pub(super) fn ratios(slots: usize) -> impl Iterator<Item = (usize, usize)> {
    CONTEXTS
        .into_iter()
        .filter_map(move |context| Some((context, slots.checked_div(context).filter(|ratio| *ratio >= 2)?)))
}

#[cfg(test)]
mod tests {
    use super::MEASURED;

    /// The ratios agree with the generated table of the page.
    #[test]
    fn ratios_in_the_advice_are_on_the_page() {
        let page = include_str!("../../../../../docs/models.md");
        let cells = |row: &str| row.split('|').map(|cell| cell.trim().to_owned()).collect::<Vec<_>>();
        let table: Vec<_> =
            page.lines().skip_while(|line| !line.starts_with("| a whole decode step |")).collect();
        let row = |start: &str| cells(table.iter().find(|line| line.starts_with(start)).unwrap());
        let header = cells(table[0]);
        for (context, without, with) in MEASURED {
            let times = row(&format!("| context {context} |"));
            let time = |column: &str| -> f64 {
                let at = header.iter().position(|name| name == column).unwrap();
                times[at].strip_suffix(" ms").unwrap().parse().unwrap()
            };
            for (column, ratio) in [("static", without), ("static, plugin", with)] {
                let measured = time(column) / time("growing");
                assert!((measured - ratio).abs() < 0.06, "{column}: {measured}, {times:?}");
            }
        }
    }
}
